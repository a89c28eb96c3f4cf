"""Manifests judged before anything is applied: what the API server refuses, and what it takes but nobody wants.

`check` (in `dra_driver.checking.check`) gets documents and `Knowledge`, and answers with findings; every one has a code
of `dra_driver.checking.codes` and a place in a file. The rooms by what they look at: `fields` (names and types of
fields), `claims` (claims, templates, classes), `selectors`, `configs`, `domains`, `pods`, `references` (between
objects), `fit` (the devices that there are). Formats for people and programs are in `formats`. Pure: nothing is read or
asked here.
"""
