"""CEL, the expression language of device selectors, in the dialect that Kubernetes' scheduler evaluates.

Text becomes tokens and a tree (`parser`), a checked tree with types and resolved functions (`check`), and
Python closures (`evaluate`). What others call:

- `device.compile_selector(expression, server)` gives a `Selector` (`matches(device)`, `cost`), compiled once;
  `device.CelDevice(driver, device)` is what it is asked about.
- `functions.Server.of(36, stored=False)` is a version and its gates: which functions and fields an expression may use.
- `device.values_of_parts(expression, device, server)` gives the value of every part.
- `cost.LIMIT`; `errors`: `CelSyntaxError`, `CelTypeError`, `CelCostError` before, `CelRuntimeError` in an evaluation,
  each with `line`, `column` and `excerpt`.
"""
