"""`dractl ui`: the cluster's GPUs, live in a browser; and `-o html`, the same as one file.

`parts` builds HTML in which all text is escaped, and compares two states of a page; `drawing` draws GPUs, nodes
and racks; `pages` decides what each address shows. These are pure. `watched`
follows the cluster, `viewers` decides who may look, and `ui_server` speaks HTTP. Pages work without a script; `ui.js`
replaces the parts that changed.
"""
