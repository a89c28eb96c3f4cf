"""What is wrong with an installation, and how to fix it; and a bundle of what was observed for a support case.

`reading` reads a cluster into a `ClusterView` (`cluster`), of the kinds in `kinds`. The checks judge it: `findings`
says what a check is, `checks.yaml` has their words, `checks` lists them, and `api_server`, `access`, `nodes`,
`publishing`, `configuration`, `conflicts` and `claims` decide. `archive` makes a bundle, `redaction` cleans it.
`proofs` are for `dractl doctor --prove`. The node plugin adds its part through `node_part`.
"""
