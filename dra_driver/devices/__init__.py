"""What is known of NVIDIA's hardware, independent of the node."""
