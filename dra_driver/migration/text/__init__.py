"""YAML and JSON edited in place, byte for byte."""
