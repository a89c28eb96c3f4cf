"""ComputeDomains: which objects one is made of, which nodes are in it, and whether it is ready. Pure.

A node joins a domain because a claim that holds one of its channels for the domain is allocated on it, and leaves when
the last such claim is gone. The label on the node is the lock: a node is in one domain at a time.

Entered from the controller, which observes and acts; from the node, which reads who is in the domain; and from
`dractl`, which needs to know what a domain will be made of before there is one.
"""
