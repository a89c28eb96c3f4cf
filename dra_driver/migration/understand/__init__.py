"""The old system: what resources and labels stand for, by the device plugin's configuration, nodes and claims."""
