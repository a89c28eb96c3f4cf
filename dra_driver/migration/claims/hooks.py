"""When an object is applied, where Helm or Argo CD apply some before others and wait for them. Pure.

What a pod names has to be there when it starts: a hook, or an early wave, whose claim's template came later would wait
for it, and be waited for.
"""

from collections.abc import Mapping

from dra_driver.api.documents import Document
from dra_driver.migration.model import value_at

_ARGO = ("argocd.argoproj.io/hook", "argocd.argoproj.io/hook-delete-policy", "argocd.argoproj.io/sync-wave")
"""One wave of a phase is applied as a whole before anything of it is waited for."""
_HELM = ("helm.sh/hook", "helm.sh/hook-delete-policy")
_HELM_WEIGHT = "helm.sh/hook-weight"


def annotations_beside(document: Document) -> dict[str, str]:
    """What an object needs to be applied with the document, or just before it; empty where there is no order."""
    there = value_at(document.obj, ("metadata", "annotations"))
    there = there if isinstance(there, Mapping) else {}
    found = {key: str(there[key]) for key in (*_ARGO, *_HELM) if there.get(key) is not None}
    weight = str(there.get(_HELM_WEIGHT, 0))
    if _HELM[0] in found and weight.removeprefix("-").isdecimal():
        # Helm waits for each hook by itself, in the order of their weights.
        found[_HELM_WEIGHT] = str(int(weight) - 1)
    return found
