"""What the workloads of a run become, for objects that count, limit or queue them. Pure.

`dra_driver.migration.counts.quotas` is the entry and gives each object to its handler.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.templates import class_name
from dra_driver.migration.codes import QUOTA, FindingCode, FindingSeverity
from dra_driver.migration.demands.amounts import is_whole_or_mig
from dra_driver.migration.model import (
    Demand,
    DeviceShare,
    Edit,
    MigrationFinding,
    MigrationTarget,
    Options,
    Path,
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
"""Names of GPU resources of device plugins, and of metrics about them."""
_NUMBERS = ("volcano.sh/vgpu-number", "volcano.sh/gpu-number")


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """How workloads use one resource. `claims`: some get claims instead, or no workload is known; `old`: some keep the
    resource, or no workload is known."""

    claims: bool
    old: bool
    classes: tuple[str, ...]
    """DeviceClasses of the claims, sorted; those that claims would name if there are none."""
    wants: tuple[Want, ...]


class Workloads:
    """All workloads of a run, with what was decided for them."""

    def __init__(self, workloads: Sequence[Workload], meaning: Meaning, options: Options) -> None:
        self.all = workloads
        self.meaning = meaning
        self.options = options
        self._documents = {workload.pod.document for workload in workloads}
        self._anywhere = replace(options, unknown_kinds=True)

    def contain(self, document: Document) -> bool:
        """Whether the document describes pods, which are read and reported elsewhere."""
        return document in self._documents or is_known(document.obj) or bool(pods_of(document, self._anywhere))

    def become(self, target: MigrationTarget) -> bool:
        """Whether some workload becomes that, or no workload is known."""
        targets = {workload.choice.target for workload in self.all}
        return target in targets or not targets

    def use_of(self, resource: str, namespace: str | None = None) -> ResourceUse:
        """By workloads of a namespace, or of all namespaces."""
        demands = list(self._demands(resource, namespace))
        targets = {target for target, _ in demands}
        wants = tuple(dict.fromkeys(demand.want for target, demand in demands if target is MigrationTarget.CLAIMS))
        wants = wants or self._wants(resource)
        return ResourceUse(
            claims=MigrationTarget.CLAIMS in targets or not targets,
            old=bool(targets - {MigrationTarget.CLAIMS}) or not targets,
            classes=tuple(sorted({class_name(want, self.options) for want in wants})),
            wants=wants,
        )

    def _demands(self, resource: str, namespace: str | None) -> Iterator[tuple[MigrationTarget, Demand]]:
        for workload in self.all:
            if namespace is None or (workload.pod.document.namespace or "default") == namespace:
                for demand in workload.reading.demands:
                    if demand.resource == resource:
                        yield workload.choice.target, demand

    def is_number(self, resource: str) -> bool:
        """Whether it is a number of devices or of shares."""
        known = resource in (self.meaning.hami.count, *_NUMBERS) or resource in self.meaning.own
        return known or is_whole_or_mig(resource)

    def is_old(self, resource: str) -> bool:
        """Whether device plugins offer it."""
        return MENTION.search(resource) is not None or resource in self.meaning.own

    def _wants(self, resource: str) -> tuple[Want, ...]:
        """What no workload asks for, as it would be read on any node."""
        own = self.meaning.own.get(resource)
        if own is not None:
            return (Want(own.what, device_class=own.device_class),)
        if resource in _NUMBERS:
            return (Want(What.GPU, share=DeviceShare()),)
        meanings = self.meaning.meanings(resource, (), Hints())
        wants = [
            Want(meaning.what, profile=meaning.profile, share=DeviceShare() if meaning.sharing else None)
            for meaning in meanings
        ]
        if resource == GPU_RESOURCE and any(meaning.what is What.MIG for meaning in meanings):
            # A node without MIG devices offers its whole GPUs under this name, too.
            wants.append(Want(What.GPU))
        what = What.GPU if resource.startswith(GPU_RESOURCE) else What.MIG
        by_name = Want(what, share=DeviceShare() if resource.endswith(".shared") else None)
        return tuple(dict.fromkeys(wants)) or (by_name,)


class Changes:
    """What becomes of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.obj: JsonObject = document.obj
        self.edits: list[Edit] = []
        self.findings: list[MigrationFinding] = []
        self.reason = ""

    def say(self, code: FindingCode, path: Path, message: str, **more: Any) -> None:
        self.findings.append(finding(code, self.document, path, message, **more))

    def say_unchanged(self, path: Path, message: str) -> None:
        """Nothing to do."""
        self.say(QUOTA, path, message, severity=FindingSeverity.INFO, advice="")


def amount_of(value: object) -> Quantity | None:
    """None: it is no amount."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return Quantity.parse(str(value))
    except ValueError:
        return None


def maps_in(value: object) -> list[JsonObject]:
    """Items of a list; an item that is no map is empty. Of anything else than a list: none."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []


def pasted(obj: JsonObject) -> str:
    """YAML for a person to add to an object."""
    return str(yaml.safe_dump(obj, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110))
