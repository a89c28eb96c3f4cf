"""The admission webhook: what `dractl check` says of a config, said at the moment somebody creates the object.

The rooms: `kinds` (what is looked at: one table row a kind), `review` (a request to an answer), `configuration` (what
the API server is told, and when), all three pure; `certificates` (made, read, and when a new one is due), `served`
(which of them is served), `trust` (the Secret and the ValidatingWebhookConfiguration are kept), `server` (HTTPS), and
`service`, which `main` enters. Every replica answers; the one that leads keeps the configuration.
"""
