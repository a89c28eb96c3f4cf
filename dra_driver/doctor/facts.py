"""What was observed of a cluster beside its objects, and how both become a `ClusterView`: live, or from a bundle. Pure.

A bundle carries the facts as JSON beside the objects, so that who gets it sees what its maker saw.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dra_driver.api.meta import JsonObject
from dra_driver.doctor.cluster import (
    NOTHING,
    AccessCheck,
    ClusterView,
    KubeletSeen,
    ReleaseSeen,
    ServerSeen,
    WebhookAnswer,
)
from dra_driver.doctor.findings import SeenKind, Unread
from dra_driver.doctor.keeping import ALL_SOURCES, ObservedKind
from dra_driver.errors import InvalidInput
from dra_driver.slices.features import ServerFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """See `ClusterView`. `unread` is by its fields."""

    time: datetime
    release: str
    server: ServerSeen
    driver_given: str | None = None
    features: SeenKind[ServerFeatures] = NOTHING
    gates: SeenKind[tuple[str, bool]] = NOTHING
    own_access: SeenKind[AccessCheck] = NOTHING
    account_access: SeenKind[AccessCheck] = NOTHING
    webhook_answer: SeenKind[WebhookAnswer] = NOTHING
    kubelets: SeenKind[KubeletSeen] = NOTHING
    releases: SeenKind[ReleaseSeen] = NOTHING
    unread: dict[str, Unread] = field(default_factory=dict)

    def unread_questions(self) -> Iterator[Unread]:
        """What had no answer, besides objects."""
        for item in (self.features, self.gates, self.own_access, self.account_access, self.webhook_answer):
            if item.unread is not None:
                yield item.unread

    def to_wire(self) -> JsonObject:
        found: JsonObject = _ADAPTER.dump_python(self, mode="json")
        return found


_ADAPTER = TypeAdapter(ClusterFacts)


def facts_from(wire: JsonObject) -> ClusterFacts:
    """Raises InvalidInput: not the facts of a bundle, or those of another release."""
    try:
        return _ADAPTER.validate_python(wire)
    except ValidationError as error:
        raise InvalidInput(f"cannot be understood: {error.errors()[0]['msg']}", about="cluster/facts.json") from error


class DecodedObjects:
    """Objects as they come, decoded; what cannot be decoded is noted and left out, for one odd object must not hide
    the others."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._items: dict[str, list[Any]] = {}

    def add(self, source: ObservedKind, obj: JsonObject) -> None:
        """`obj` as `source.keep` left it."""
        if source.field is None:
            return
        try:
            self._items.setdefault(source.field, []).append(source.decode(obj))
        except (InvalidInput, KeyError, TypeError, ValueError) as error:
            name = (obj.get("metadata") or {}).get("name")
            self.notes.append(f"{source.resource.kind} {name} is left out: {error}")

    def cluster(self, facts: ClusterFacts) -> ClusterView:
        fields: Mapping[str, SeenKind[Any]] = {
            name: SeenKind(tuple(self._items.get(name, ())), facts.unread.get(name)) for name in _fields(ALL_SOURCES)
        }
        return ClusterView(
            time=facts.time,
            release=facts.release,
            server=facts.server,
            driver_given=facts.driver_given,
            features=facts.features,
            gates=facts.gates,
            own_access=facts.own_access,
            account_access=facts.account_access,
            webhook_answer=facts.webhook_answer,
            kubelets=facts.kubelets,
            releases=facts.releases,
            **fields,
        )


def _fields(sources: Iterable[ObservedKind]) -> set[str]:
    return {source.field for source in sources if source.field is not None}
