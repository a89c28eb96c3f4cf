"""The commands of `dractl`: each a module, and what they share to speak with people."""
