"""CEL, the expression language of device selectors, in the dialect that Kubernetes' scheduler evaluates.

Text becomes tokens (`lexer`), a tree (`parser`), a checked tree with types and resolved functions (`check`), and
Python closures (`evaluate`). What `device` means is in `device`, whose `compile_selector` is what everybody else calls.
"""
