"""A simulated node: a host's files and the NVML that answers for them, from a profile of real hardware."""
