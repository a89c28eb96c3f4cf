"""A simulated kubelet, as far as a DRA driver can see it."""
