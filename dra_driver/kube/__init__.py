"""The Kubernetes API as both services use it: client, watches, leases."""
