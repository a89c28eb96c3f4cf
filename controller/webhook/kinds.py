"""The kinds that are reviewed, one row each: which objects the API server is to ask about, and what of them is judged.

What is said of an object is not here: that is `dra_driver.checking`. Conditions are CEL as the API server has it in
`matchConditions`, where `object` is the object as it was written, so every field may be missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject


@dataclass(frozen=True, slots=True)
class Kind:
    """`refusing` holds for objects of which something can be refused, `advising` for those that can be warned about,
    both with `{drivers}` for a list of driver names. None: for all, or for none. `ours`: the kind is of this project,
    so all that is wrong with it is for us to say."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool
    refusing: str | None
    advising: str | None
    ours: bool = False


def _names_driver(configs: str) -> str:
    return f"{configs}.orValue([]).exists(c, c.?opaque.?driver.orValue('') in {{drivers}})"


def _selects(selectors: str) -> str:
    """Whether a selector names one of the drivers. `selectors` is an optional list."""
    return f"{selectors}.orValue([]).exists(s, {{drivers}}.exists(d, s.?cel.?expression.orValue('').contains(d)))"


def _requests_select(claim: str) -> str:
    """In v1beta1 a request has the selectors itself."""
    places = (_selects("r.?exactly.?selectors"), _selects("r.?selectors"))
    alternatives = f"r.?firstAvailable.orValue([]).exists(a, {_selects('a.?selectors')})"
    return f"{claim}.?devices.?requests.orValue([]).exists(r, {' || '.join((*places, alternatives))})"


_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Of resource.k8s.io. All are named, although the API server would convert: messages have the paths of the version that
somebody wrote."""

_DRA = "resource.k8s.io"
_CLAIM, _TEMPLATE = "object.?spec", "object.?spec.?spec"

KINDS: tuple[Kind, ...] = (
    Kind(
        _DRA, _VERSIONS, "resourceclaims", "ResourceClaim", True,
        _names_driver(f"{_CLAIM}.?devices.?config"), _requests_select(_CLAIM),
    ),
    Kind(
        _DRA, _VERSIONS, "resourceclaimtemplates", "ResourceClaimTemplate", True,
        _names_driver(f"{_TEMPLATE}.?devices.?config"), _requests_select(_TEMPLATE),
    ),
    Kind(
        _DRA, _VERSIONS, "deviceclasses", "DeviceClass", False,
        _names_driver("object.?spec.?config"), _selects("object.?spec.?selectors"),
    ),
    Kind("resource.nvidia.com", ("v1beta1",), "computedomains", "ComputeDomain", True, None, None, ours=True),
)  # fmt: skip


def kind_of(group: str, kind: str) -> Kind | None:
    return next((one for one in KINDS if (one.group, one.kind) == (group, kind)), None)


def condition(expression: str, drivers: Sequence[str]) -> str:
    """With the names of the drivers; those are DNS subdomains, so nothing in them needs an escape."""
    names = ", ".join(f"'{name}'" for name in drivers)
    return expression.replace("{drivers}", f"[{names}]")


def judged(obj: Mapping[str, object]) -> JsonObject:
    """What is judged: the rest of metadata is the API server's business, and status is nobody's wish."""
    metadata = obj.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    kept = {key: named[key] for key in ("name", "generateName", "namespace") if isinstance(named.get(key), str)}
    return {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata": kept,
        **({"spec": obj["spec"]} if "spec" in obj else {}),
    }
