"""What is wrong with an installation, found in what was observed of it; and what may leave it for a support case.

Pure are `findings` (what a check answers), `objects` and `cluster` (what was observed, typed), the checks themselves
(`server`, `nodes`, `gpus`, `slices`, `control`, `configuration`, `conflicts`, `claims`, `access`; `checks` lists them),
`keeping` (what of each object is looked at at all), `redaction` and `anonymity`. The edges are `reading` (a cluster)
and `archive` (a bundle, written and read). The node's part is in the node plugin and enters through `node`.
"""
