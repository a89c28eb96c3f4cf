"""Why a pod or claim waits, and what would fit: the search of `dra_driver.allocation`, asked and put into words. Pure.

`explain_pod` and `explain_claim` answer an `Explanation`; `sentences` and `summary` make text of it (docs/library.md).
"""

from dra_driver.explain.explain import Answer, Explanation, explain_claim, explain_pod
from dra_driver.explain.wording import sentences, summary

__all__ = ["Answer", "Explanation", "explain_claim", "explain_pod", "sentences", "summary"]
