"""The Container Device Interface (CDI): what a container runtime adds to a container."""
