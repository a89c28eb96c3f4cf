"""Container Device Interface: the spec, its rules, and how a container is edited."""
