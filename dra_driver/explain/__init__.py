"""Why something waits and what would fit, or what is wrong with what runs. Pure.

`subjects` is the way in; it asks the search of `dra_driver.allocation`, and `wording` makes text of the answers.
"""
