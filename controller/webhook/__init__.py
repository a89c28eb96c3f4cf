"""The admission webhook: reports the findings of `dractl check` when an object is created.

Every replica answers in a separate process, `worker`, which `process` starts and monitors: `service` with
`review_server` (HTTPS and its limits) and `review` (from request to answer, pure). The leader runs `trust.lead` in the
controller's own process, which keeps the certificate (`certificates`) and the webhook `configuration` up to date.
`kinds` lists the reviewed kinds, one table row each.
"""
