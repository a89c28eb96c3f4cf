"""What becomes of each workload: claims, extended resources, or nothing."""
