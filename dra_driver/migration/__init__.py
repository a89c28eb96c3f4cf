"""From the device plugin and its relatives to claims: manifests in; changed manifests, new objects, findings out. Pure.

`migrate` (in `dra_driver.migration.migrate`) is the one way in. The rooms in the order in which things pass through:
`kinds` finds the pods that an object describes, `surroundings` says what their nodes' old system meant by its words,
`reading` turns what containers ask for into demands, `strategy` decides per workload; `drafting` holds that together
for one document, and `agreed_drafts` for all that make one pod; `claims` writes new objects and edits, which `plans`
gathers per document; `edit` makes the edits in the text and leaves every other byte alone, for `planned_texts` and
`output`. `model` is what they hand to each other.
"""
