"""What preparing a claim changes on the node."""
