"""The node as it is: NVML, the host's files, and where the NVIDIA driver lies."""
