"""Which devices claims get: kube-scheduler's decision as pure functions; enter by `allocate`."""
