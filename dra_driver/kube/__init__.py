"""The Kubernetes API for both services: client, watches, leases."""
