"""A record of a node: what NVML, the kernel, the driver's files and its programs answered, as one archive."""
