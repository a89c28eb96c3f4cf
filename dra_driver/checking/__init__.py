"""Manifests judged before anything is applied: what the API server refuses, and what it accepts but was not meant.

`check` (in `dra_driver.checking.check`) gets documents and `Knowledge`, and answers with findings; each has a code
(`codes`) and a place in a file (`findings`). The other modules by what they look at: `fields` (names and types of
fields), `claim_checks` (claims, templates, classes, selectors and ComputeDomains), `configs`, `pods`, `fit` (the
devices that there are). Pure: nothing is read or asked here.
"""
