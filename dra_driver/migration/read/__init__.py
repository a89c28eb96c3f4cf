"""Documents: which kinds have pods, and what is made of documents before it reaches a cluster."""
