"""The admission webhook: what `dractl check` says of a config, said at the moment somebody creates the object.

`process` starts and watches a process of its own, `worker`, in which every replica answers: `service` with `server`
(HTTPS), `connections` (how many), `review` (a request to an answer, pure) and `served` (which certificate). The replica
that leads does `leading` in the controller's own process: `certificates` are made, and `configuration` is what the API
server is told, and when; `trust` keeps the two objects. `kinds` has what is looked at, one table row a kind.
"""
