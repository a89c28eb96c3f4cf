"""Makes a record of this node: everything that discovery reads, and more, written down as it is answered."""
