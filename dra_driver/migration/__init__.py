"""From the device plugin and its relatives to claims: manifests in; changed manifests, new objects, findings out. Pure.
`dra_driver.migration.migrate` is the one way in, and walks through the packages in the order of the data: `text` and
`read` (documents), `understand` (what their nodes' old system meant), `demands` (devices that pods ask for), `claims`
(what becomes of each workload), `counts` (quotas and queues), `write` (texts and new objects). `verify`, `cutover` and
`report` look at its result. `model` is what they hand to each other.
"""
