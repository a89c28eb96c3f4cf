"""ComputeDomains: which objects a domain consists of, which nodes are in it, and whether it is ready. Pure.

A node joins a domain when a claim with one of its channels for the domain is allocated, and leaves after the last such
claim. The label on the node is the lock: a node is in one domain at a time.

Users: the controller, which observes and acts; the node plugin, which reads the members; and `dractl`, which needs the
objects of a domain before it exists.
"""
