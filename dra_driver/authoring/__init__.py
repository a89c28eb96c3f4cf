"""Claims, templates and classes from what a user wants, in words: intent in, commented objects out. Pure.

`intent` is what can be wanted, `refusals` says what does not go together and why, `objects` makes the objects,
`writing` makes YAML that explains itself of them.
"""
