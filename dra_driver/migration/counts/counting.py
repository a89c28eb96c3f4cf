"""What the workloads of a run become, for objects that count, limit or queue them; and what is done with such objects.

Entered from `dra_driver.migration.counts.quotas`, which gives each object to its handler. Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import yaml

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.templates import class_name
from dra_driver.migration.codes import QUOTA, Code, Severity
from dra_driver.migration.demands.amounts import is_whole_or_mig
from dra_driver.migration.model import (
    Demand,
    Edit,
    Finding,
    NewObject,
    Options,
    Path,
    Share,
    Target,
    Want,
    What,
    Workload,
    finding,
)
from dra_driver.migration.read.kind_table import is_known
from dra_driver.migration.read.kinds import pods_of
from dra_driver.migration.understand.labels import Hints
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE
from dra_driver.quantity import Quantity

MENTION = re.compile(
    r"nvidia\.com/(?:gpu|mig-)|nvidia_com_(?:gpu|mig)|DCGM_FI_|volcano\.sh/v?gpu|aliyun\.com/gpu|tencent\.com/vcuda"
)
"""What speaks of GPUs as device plugins give them out."""
MEMORY, CORES = "memory", "cores"
"""Capacities of a share."""
_MEBIBYTE = 1024 * 1024
_NUMBERS = ("volcano.sh/vgpu-number", "volcano.sh/gpu-number")


@dataclass(frozen=True, slots=True)
class Unit:
    """Of a resource that is an amount: which capacity it is, and how much of it one is."""

    dimension: str
    one: Fraction


@dataclass(frozen=True, slots=True)
class State:
    """Of one resource. `claims`: some use claims, or nothing is known; `old`: some go on with the resource, or nothing
    is known; `left`: some get it from a device plugin only, since nothing could be done with them."""

    claims: bool
    old: bool
    known: bool
    left: bool
    classes: tuple[str, ...]
    """Of the claims, in order of their names; what they would be where there are none."""
    wants: tuple[Want, ...]


class World:
    """All workloads of a run, as they were decided."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        meaning: Meaning,
        options: Options,
        names_in_kueue: Mapping[str, str] | None = None,
    ) -> None:
        self.workloads = workloads
        self.names_in_kueue = names_in_kueue or {}
        """Names by which Kueue counts classes."""
        self.meaning = meaning
        self.options = options
        self._of_workloads = {one.pod.document for one in workloads}
        self._anywhere = replace(options, unknown_kinds=True)

    def is_workload(self, document: Document) -> bool:
        """Whether pods are in there, which are read and reported elsewhere."""
        return document in self._of_workloads or is_known(document.obj) or bool(pods_of(document, self._anywhere))

    def state(self, resource: str, namespace: str | None = None) -> State:
        """Of workloads that ask for the resource, in a namespace, or in all."""
        targets: set[Target] = set()
        wants: list[Want] = []
        for target, demand in self._demands(resource, namespace):
            targets.add(target)
            if target is Target.CLAIMS:
                wants += [one for one in demand.alternatives or (demand.want,) if one not in wants]
        known = tuple(wants) or self._wants(resource)
        return State(
            claims=Target.CLAIMS in targets or not targets,
            old=bool(targets - {Target.CLAIMS}) or not targets,
            known=bool(targets),
            left=Target.LEAVE in targets,
            classes=tuple(sorted({class_name(want, self.options) for want in known})),
            wants=known,
        )

    def _demands(self, resource: str, namespace: str | None) -> Iterator[tuple[Target, Demand]]:
        for one in self.workloads:
            if namespace is None or (one.pod.document.namespace or "default") == namespace:
                for demand in one.reading.demands:
                    if demand.resource == resource or self._is_amount_of(demand, resource):
                        yield one.choice.target, demand

    def _is_amount_of(self, demand: Demand, resource: str) -> bool:
        """Whether the demand has what the resource says: a share's memory or cores."""
        unit = self.unit_of(resource)
        share = demand.want.share
        return (
            unit is not None
            and share is not None
            and (
                (unit.dimension == MEMORY and share.memory is not None)
                or (unit.dimension == CORES and share.cores is not None)
            )
        )

    def unit_of(self, resource: str) -> "Unit | None":
        """Of resources that are amounts of a share; None: of all others."""
        hami = self.meaning.hami
        return {
            hami.memory: Unit(MEMORY, Fraction(hami.memory_factor * _MEBIBYTE)),
            hami.cores: Unit(CORES, Fraction(1)),
            "volcano.sh/vgpu-memory": Unit(MEMORY, Fraction(_MEBIBYTE)),
            "volcano.sh/gpu-memory": Unit(MEMORY, Fraction(_MEBIBYTE)),
            "volcano.sh/vgpu-cores": Unit(CORES, Fraction(1)),
            "tencent.com/vcuda-memory": Unit(MEMORY, Fraction(256 * _MEBIBYTE)),
        }.get(resource)

    def is_number(self, resource: str) -> bool:
        """Whether it is a number of devices or of shares."""
        known = resource in (self.meaning.hami.count, *_NUMBERS) or resource in self.meaning.own
        return known or is_whole_or_mig(resource)

    def is_old(self, resource: str) -> bool:
        """Whether device plugins give it out, under names of their own or of somebody's choice."""
        return MENTION.search(resource) is not None or resource in self.meaning.own

    def _wants(self, resource: str) -> tuple[Want, ...]:
        """What nobody asked for, as it would be read on one node or the other."""
        stands = self.meaning.meanings(resource, (), Hints())
        found = [Want(one.what, profile=one.profile, share=Share() if one.sharing else None) for one in stands]
        if resource == GPU_RESOURCE and any(one.what is What.MIG for one in stands):
            # Where a node has no MIG devices, its whole GPUs have this name, too.
            found.append(Want(What.GPU))
        return tuple(dict.fromkeys(found)) or (self._want(resource),)

    def _want(self, resource: str) -> Want:
        """As its name says."""
        if self.unit_of(resource) is not None or resource in _NUMBERS:
            return Want(What.GPU, share=Share())
        own = self.meaning.own.get(resource)
        if own is not None:
            return Want(own.what, device_class=own.device_class)
        what = What.GPU if resource.startswith("nvidia.com/gpu") else What.MIG
        return Want(what, share=Share() if resource.endswith(".shared") else None)


class Found:
    """What is to be done with one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.obj: JsonObject = document.obj
        self.edits: list[Edit] = []
        self.objects: list[NewObject] = []
        """That stand beside it, in its file."""
        self.findings: list[Finding] = []
        self.reason = ""

    def say(self, code: Code, path: Path, message: str, **more: Any) -> None:
        self.findings.append(finding(code, self.document, path, message, **more))


def amount_of(value: object) -> Quantity | None:
    """None: it is no amount."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return Quantity.parse(str(value))
    except ValueError:
        return None


def dicts(value: object) -> list[JsonObject]:
    """Of a list, with nothing in the place of what is no map; of anything else, none."""
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list) else []


def goes_on_counting(found: Found, path: Path, resource: str) -> None:
    message = f"{resource} goes on counting: workloads stay with the extended resource"
    found.say(QUOTA, path, message, severity=Severity.INFO, advice="")


def pasted(obj: JsonObject) -> str:
    """YAML for people, to put into an object of theirs."""
    return str(yaml.safe_dump(obj, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110))
