"""What a person decides of a migration, as a YAML file; and the file that a report proposes. Pure.

Every field can be left out. Texts of findings name a decision as the line of the file that makes it, in backticks:
`gpuMemory: 80Gi`. So the proposal is made of what the findings of a run ask for.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from dra_driver.api.meta import JsonObject, Model
from dra_driver.checking.codes import Severity
from dra_driver.errors import InvalidInput
from dra_driver.migration.demands.resources import is_whole_or_mig
from dra_driver.migration.model import Migration, MigrationTarget, Options, StrategyOption
from dra_driver.migration.understand.labels import restored_profile
from dra_driver.names import is_dns_subdomain
from dra_driver.phrases import and_more
from dra_driver.quantity import Quantity

FILE = "decisions.yaml"
_DEFAULTS = Options()
_LEAST_MEMORY = Quantity.parse("1Gi")
_SHARING = re.compile(r"(time-slicing|mps):([2-9]|[1-9][0-9]{1,4})")


def _is_profile(text: str) -> str:
    """As NVML spells it, also if it comes from the name of a resource."""
    profile = restored_profile(text)
    if profile is None:
        raise ValueError(f"{text!r} is not a MIG profile like 1g.10gb or 1g.10gb+me")
    return profile


def _is_memory(text: str) -> str:
    try:
        amount = Quantity.parse(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an amount like 80Gi") from error
    if amount < _LEAST_MEMORY:
        raise ValueError(f"{text!r} is less than any GPU has; write the unit, as in 80Gi")
    return text


def _is_sharing(text: str) -> str:
    if text != "none" and _SHARING.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not like time-slicing:4, mps:10 or none")
    return text


def _is_name(longest: int) -> AfterValidator:
    def check(text: str) -> str:
        if not is_dns_subdomain(text, longest=longest):
            raise ValueError(f"{text!r} is not a name like gpu.example.com")
        return text

    return AfterValidator(check)


def _is_other(name: str) -> str:
    if is_whole_or_mig(name):
        raise ValueError(f"{name} is a GPU; decide what it is by sharing, migStrategy and migProfile")
    return name


_OtherResource = Annotated[str, Field(min_length=1), AfterValidator(_is_other)]
_ClassName = Annotated[str, _is_name(253)]


class MigStrategy(StrEnum):
    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class SeveralShares(StrEnum):
    SHARES = "shares"
    DEVICES = "devices"


class _Strict(Model):
    model_config = ConfigDict(**{**Model.model_config, "extra": "forbid"})


class WorkloadStrategy(_Strict):
    name: Annotated[str, Field(min_length=1)]
    strategy: StrategyOption


class Classes(_Strict):
    gpu: _ClassName = _DEFAULTS.gpu_class
    mig: _ClassName = _DEFAULTS.mig_class
    shared: _ClassName = _DEFAULTS.shared_class
    vfio: _ClassName = _DEFAULTS.vfio_class


def _field(default: Any, description: str) -> Any:
    return Field(default=default, description=description)


class Decisions(_Strict):
    """The file. Descriptions are shown in it and in the docs."""

    strategy: StrategyOption = _field(
        StrategyOption.AUTO,
        "claims: all workloads get claims. extended: manifests stay, and DeviceClasses answer to their resources. "
        "auto: the latter if it keeps the meaning and the cluster's version knows it.",
    )
    workloads: tuple[WorkloadStrategy, ...] = _field(
        (), "The strategy of some workloads: `Kind/namespace/name`, parts of it, or patterns. The last match counts."
    )
    shared_claims: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = _field(
        (), "Lists of workloads of one namespace that have the same devices: one ResourceClaim for all pods of a list."
    )
    sharing: Annotated[str, AfterValidator(_is_sharing)] | None = _field(
        None, "How GPUs are shared, if no configuration says it: time-slicing:4, mps:10, or none."
    )
    mig_strategy: MigStrategy | None = _field(None, "MIG strategy of the device plugin, if no configuration says it.")
    mig_profile: Annotated[str, AfterValidator(_is_profile)] | None = _field(
        None, "What `nvidia.com/gpu` is with MIG strategy single, such as 1g.10gb."
    )
    dynamic_mig: bool = _field(False, "The driver makes MIG devices on demand, instead of the MIG manager.")
    gpu_memory: Annotated[str, BeforeValidator(str), AfterValidator(_is_memory)] | None = _field(
        None, "Memory of one GPU, to turn percent into amounts, as nvidia-smi shows it: 81559Mi."
    )
    other_resources: tuple[_OtherResource, ...] = _field(
        (), "Resources that look like GPUs of NVIDIA and are none: they stay as they are."
    )
    several_shares: SeveralShares = _field(
        SeveralShares.SHARES,
        "A request for n shares becomes n shares of one device, or one share of each of n devices.",
    )
    share_visible_all: bool = _field(
        False, "Containers with NVIDIA_VISIBLE_DEVICES=all get the GPUs of their pod's other containers."
    )
    remove_runtime_class: bool = _field(False, "Take out `runtimeClassName: nvidia`.")
    unknown_kinds: bool = _field(False, "Convert what looks like a pod in kinds that are not known, too.")
    argo_resource_claims: bool = _field(False, "Argo Workflows is new enough for resourceClaims in templates.")
    kserve_standard: bool = _field(False, "KServe's default is standard mode, whose pods keep claims.")
    extended_resources: bool | None = _field(
        None, "Whether feature gate DRAExtendedResource is on. Left out: as in the version."
    )
    driver: Annotated[str, _is_name(63)] = _field(_DEFAULTS.driver, "Name of the driver.")
    classes: Classes = _field(
        Classes.model_construct(), "Names of the DeviceClasses of GPUs, MIG devices, shares, VMs."
    )

    @classmethod
    def read(cls, text: str | bytes, file: str) -> "Decisions":
        """Raises InvalidInput that lists every problem with its field."""
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidInput(f"not YAML: {error}", about=file) from error
        if data is not None and not isinstance(data, dict):
            raise InvalidInput("decisions are a mapping, such as `strategy: claims`", about=file)
        if unknown := [str(name) for name in data or () if name not in FIELDS]:
            raise InvalidInput(f"no such decision: {', '.join(unknown)}; there are {', '.join(FIELDS)}", about=file)
        return cls.of(data or {}, about=file)

    def options(self, minor: int | None) -> Options:
        """`minor` is of the cluster's version."""
        method, _, replicas = (self.sharing or "").partition(":")
        same = {
            field.name: getattr(self, field.name) for field in fields(Options) if field.name in type(self).model_fields
        }
        made = {
            "strategy_of": tuple((workload.name, workload.strategy) for workload in self.workloads),
            **{f"{kind}_class": name for kind, name in self.classes},
            "kubernetes_minor": minor,
            "extended_resource_gate": self.extended_resources,
            "replicas": int(replicas) if replicas else 1 if method else None,
            "sharing_strategy": method if replicas else None,
            "gpu_memory": Quantity.parse(self.gpu_memory) if self.gpu_memory is not None else None,
        }
        return Options(**{**same, **made})


def is_decisions(data: JsonObject) -> bool:
    """Whether it is the content of a valid file that decides something."""
    try:
        return bool(data) and bool(Decisions.of(data))
    except InvalidInput:
        return False


# -- what a report proposes

_LINE = re.compile(r"`(\w+): [^`]+`")
FIELDS: Mapping[str, str] = {str(field.alias): str(field.description) for field in Decisions.model_fields.values()}
"""Names in the file, and what they mean."""


def lines_in(text: str) -> Iterator[tuple[str, str]]:
    """Names of decisions and the lines that make them, in a text for people; a policy has a `strategy`, too."""
    for match in _LINE.finditer(text):
        line = match[0].strip("`")
        with suppress(InvalidInput):
            Decisions.read(line, FILE)
            yield match[1], line


def wanted_decisions(migration: Migration) -> dict[str, list[str]]:
    """Lines of the file that would settle what was left to a person, each with who asks for it."""
    wanted: dict[str, list[str]] = {}
    for finding in migration.findings:
        if finding.severity is not Severity.INFO and not finding.fixed:
            for _, line in lines_in(f"{finding.message} {finding.advice}"):
                wanted.setdefault(line, []).append(f"{finding.code.name}, {finding.place.file}:{finding.place.line}")
    for workload in migration.workloads:
        if workload.choice.target is MigrationTarget.LEAVE:
            for _, line in lines_in(workload.choice.reason):
                document = workload.document
                wanted.setdefault(line, []).append(f"{document.title}, {document.file}:{document.line}")
    return {line: list(dict.fromkeys(wanted[line])) for line in sorted(wanted)}


def proposal(wanted: Mapping[str, list[str]], given: Decisions | None = None) -> str:
    """The text of a file: what was decided, and what is open as comments."""
    decided = given.model_dump(mode="json", by_alias=True, exclude_defaults=True) if given is not None else {}
    text = yaml.safe_dump(decided, sort_keys=False, allow_unicode=True) if decided else ""
    for line, who in wanted.items():
        name = line.partition(":")[0]
        if name not in decided:
            text += f"# {FIELDS[name]} ({and_more(who, 1)})\n# {line}\n"
    return text
