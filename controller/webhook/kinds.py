"""The reviewed kinds, one row each: for which objects the API server calls the webhook, and which fields are reviewed.
The checks themselves are in `dra_driver.checking`. Conditions are CEL of `matchConditions`, where `object` is the
object as written, so every field may be missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import map_in


@dataclass(frozen=True, slots=True)
class ReviewedKind:
    """`refusing` selects objects that can be refused, `advising` those that can only get warnings, None: none;
    `{drivers}` in them is the list of driver names. With `own`, this project defines the kind, so the webhook reports
    all its problems."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool
    refusing: str
    advising: str | None
    own: bool = False


def _names_driver(configs: str) -> str:
    return f"{configs}.orValue([]).exists(c, c.?opaque.?driver.orValue('') in {{drivers}})"


def _selects(selectors: str) -> str:
    """Whether a selector names one of the drivers. `selectors` is an optional list."""
    return f"{selectors}.orValue([]).exists(s, {{drivers}}.exists(d, s.?cel.?expression.orValue('').contains(d)))"


def _requests_select(claim: str) -> str:
    """In v1beta1 the request itself contains the selectors."""
    places = (_selects("r.?exactly.?selectors"), _selects("r.?selectors"))
    alternatives = f"r.?firstAvailable.orValue([]).exists(a, {_selects('a.?selectors')})"
    return f"{claim}.?devices.?requests.orValue([]).exists(r, {' || '.join((*places, alternatives))})"


_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Versions of resource.k8s.io. All are named, although the API server could convert: messages should have the paths of
the version in which the object was written."""

_DRA = "resource.k8s.io"
_CLAIM, _TEMPLATE = "object.?spec", "object.?spec.?spec"

KINDS: tuple[ReviewedKind, ...] = (
    ReviewedKind(
        _DRA, _VERSIONS, "resourceclaims", "ResourceClaim", True,
        _names_driver(f"{_CLAIM}.?devices.?config"), _requests_select(_CLAIM),
    ),
    ReviewedKind(
        _DRA, _VERSIONS, "resourceclaimtemplates", "ResourceClaimTemplate", True,
        _names_driver(f"{_TEMPLATE}.?devices.?config"), _requests_select(_TEMPLATE),
    ),
    ReviewedKind(
        _DRA, _VERSIONS, "deviceclasses", "DeviceClass", False,
        _names_driver("object.?spec.?config"), _selects("object.?spec.?selectors"),
    ),
    ReviewedKind("resource.nvidia.com", ("v1beta1",), "computedomains", "ComputeDomain", True, "true", None, own=True),
)  # fmt: skip


def kind_of(group: str, kind: str) -> ReviewedKind | None:
    return next((row for row in KINDS if (row.group, row.kind) == (group, kind)), None)


def condition(expression: str, drivers: Sequence[str]) -> str:
    """With the names of the drivers; they are DNS subdomains, so they need no escaping."""
    names = ", ".join(f"'{name}'" for name in drivers)
    return expression.replace("{drivers}", f"[{names}]")


def judged(obj: Mapping[str, object]) -> JsonObject:
    """The reviewed fields: not other metadata, which the API server validates, and not the status, which users do not
    write."""
    named = map_in(obj.get("metadata"))
    identity = {key: named[key] for key in ("name", "generateName", "namespace") if isinstance(named.get(key), str)}
    return {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata": identity,
        **({"spec": obj["spec"]} if "spec" in obj else {}),
    }
