"""What is known of NVIDIA's hardware, whatever node it is in."""
