"""From the device plugin and its relatives to claims: manifests in; changed manifests, new objects, findings out. Pure.

`migrate` (in `dra_driver.migration.migrate`) is the one way in. The rooms in the order in which things pass through:
`kinds` finds the pods that an object describes, `surroundings` says what their nodes' old system meant by its words,
`reading` turns what containers ask for into demands, `strategy` decides per workload, `claims` writes new objects and
edits, `edit` makes the edits in the text and leaves every other byte alone. `model` is what they hand to each other.
"""
