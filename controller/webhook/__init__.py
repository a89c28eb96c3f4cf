"""The admission webhook: reports the findings of `dractl check` when an object is created.

Every replica answers in a separate process, `worker`, which `process` starts and monitors: `service` with `server`
(HTTPS), `connections` (limits), `review` (from request to answer, pure) and `served` (which certificate). The leader
runs `leading` in the controller's own process: it makes `certificates`, decides the webhook `configuration`, and writes
both objects with `trust`. `kinds` lists the reviewed kinds, one table row each.
"""
