"""What was recorded of a real node: the archive, and a simulated node that answers as the real one did."""
