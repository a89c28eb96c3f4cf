"""`dractl top`: the cluster's GPUs, live in the terminal.

`screen` decides what a terminal of some size shows of it and what a key means, and `loop` reads keys, watches and
exporters and draws.
"""
