"""What pods ask for in the old way, as devices."""
