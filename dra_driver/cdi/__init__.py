"""The Container Device Interface: what a container runtime is told to put into a container."""
