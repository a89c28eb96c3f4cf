"""What counts the old resource: quotas, limits, queues and node pools."""
