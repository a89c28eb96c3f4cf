"""What commands show of a cluster: its objects typed, who uses what, and rows of it. Most is pure."""
