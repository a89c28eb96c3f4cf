"""The CDI spec: values, validity, the lowest version that holds them, and text in and out.

Versions, fields and naming rules: CDI specification 1.1.0. Specs are written as JSON, which every consumer reads: the
suffix `.json` is one of the two that count, it is what YAML is a superset of, and it is encoded a hundred times faster.
A spec always declares the lowest version that its content needs, because older runtimes refuse newer ones.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from dra_driver.errors import InvalidInput

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
SPEC_SUFFIXES = (".json", ".yaml")


class _Part(BaseModel):
    """Part of a spec: camelCase in the file, unknown fields refused as every consumer does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class DeviceNode(_Part):
    """A device file. With `type` and a non-zero `major` it need not exist on the host when a container starts."""

    path: str
    host_path: str | None = None
    type: Literal["b", "c", "u", "p"] | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    """Permission bits, as a number: 438 is 0666."""
    permissions: str | None = None
    """Of `r`, `w`, `m`, or `none`; absent means all three."""
    uid: int | None = None
    gid: int | None = None


class Mount(_Part):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str | None = None


class Hook(_Part):
    """A program that the runtime runs on the host; `args[0]` is its name."""

    hook_name: Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_Part):
    clos_id: str | None = Field(default=None, alias="closID")
    l3_cache_schema: str | None = Field(default=None, alias="l3CacheSchema")
    mem_bw_schema: str | None = Field(default=None, alias="memBwSchema")
    enable_cmt: bool | None = Field(default=None, alias="enableCMT")
    enable_mbm: bool | None = Field(default=None, alias="enableMBM")
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool | None = None


class NetDevice(_Part):
    host_interface_name: str
    name: str


class ContainerEdits(_Part):
    """What is done to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), alias="additionalGids")
    intel_rdt: IntelRdt | None = None
    net_devices: tuple[NetDevice, ...] = ()

    @property
    def empty(self) -> bool:
        return self == ContainerEdits()


class CdiDevice(_Part):
    name: str
    annotations: Mapping[str, str] = Field(default_factory=dict)
    container_edits: ContainerEdits


class CdiSpec(_Part):
    """One spec file. `kind` is `vendor/class`; the top-level edits apply once when any of its devices is injected."""

    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = Field(default_factory=dict)
    devices: tuple[CdiDevice, ...]
    container_edits: ContainerEdits = Field(default_factory=ContainerEdits)

    def all_edits(self) -> Iterator[ContainerEdits]:
        """The top-level edits and those of each device."""
        yield self.container_edits
        for device in self.devices:
            yield device.container_edits


def qualified_name(kind: str, device: str) -> str:
    """How a device is asked for: `vendor/class=name`."""
    return f"{kind}={device}"


def lowest_version(spec: CdiSpec) -> str:
    """The lowest CDI version that can hold this content; what the spec declares does not matter."""
    edits = list(spec.all_edits())
    rdt = [edit.intel_rdt for edit in edits if edit.intel_rdt is not None]
    needs = (
        ("1.1.0", any(edit.net_devices for edit in edits)),
        ("1.1.0", any(one.schemata or one.enable_monitoring is not None for one in rdt)),
        ("0.7.0", bool(rdt) or any(edit.additional_gids for edit in edits)),
        ("0.6.0", bool(spec.annotations) or any(device.annotations for device in spec.devices)),
        ("0.6.0", "." in spec.kind.partition("/")[2]),
        ("0.5.0", any(node.host_path is not None for edit in edits for node in edit.device_nodes)),
        ("0.5.0", any(device.name[:1].isdigit() for device in spec.devices)),
        ("0.4.0", any(mount.type is not None for edit in edits for mount in edit.mounts)),
    )
    return next((version for version, needed in needs if needed), "0.3.0")


def problems_of(spec: CdiSpec) -> tuple[str, ...]:
    """Everything that makes a spec invalid, one sentence each with its place; empty when it is valid."""
    return (*_version_problems(spec), *_kind_problems(spec.kind), *_device_problems(spec), *_edit_problems(spec))


def _version_problems(spec: CdiSpec) -> Iterator[str]:
    if spec.cdi_version not in VERSIONS:
        yield f"cdiVersion: {spec.cdi_version!r} is not one of {', '.join(VERSIONS)}"
    elif VERSIONS.index(spec.cdi_version) < VERSIONS.index(needed := lowest_version(spec)):
        yield f"cdiVersion: the content needs {needed}, {spec.cdi_version} is declared"


def _kind_problems(kind: str) -> Iterator[str]:
    vendor, _, class_ = kind.partition("/")
    if not _VENDOR.fullmatch(vendor):
        yield f"kind: {vendor!r} is not a vendor (a letter, then letters, digits, _ - . and at the end no sign)"
    if not _CLASS.fullmatch(class_):
        yield f"kind: {class_!r} is not a class (a letter, then letters, digits, _ - . and at the end no sign)"


def _device_problems(spec: CdiSpec) -> Iterator[str]:
    if not spec.devices:
        yield "devices: at least one is needed"
    names = [device.name for device in spec.devices]
    for index, device in enumerate(spec.devices):
        if not _DEVICE.fullmatch(device.name):
            yield f"devices[{index}].name: {device.name!r} is not a device name (letters, digits, _ - . : inside)"
        if names.index(device.name) != index:
            yield f"devices[{index}].name: {device.name!r} is there twice"
        if device.container_edits.empty:
            yield f"devices[{index}].containerEdits: must not be empty"


def _edit_problems(spec: CdiSpec) -> Iterator[str]:
    for place, edits in _placed_edits(spec):
        for index, variable in enumerate(edits.env):
            if "=" not in variable or variable.startswith("="):
                yield f"{place}.env[{index}]: {variable!r} is not NAME=value"
        for index, node in enumerate(edits.device_nodes):
            yield from _node_problems(f"{place}.deviceNodes[{index}]", node)
        for index, mount in enumerate(edits.mounts):
            if not mount.host_path or not mount.container_path:
                yield f"{place}.mounts[{index}]: hostPath and containerPath must not be empty"
        for index, hook in enumerate(edits.hooks):
            if not hook.path:
                yield f"{place}.hooks[{index}].path: must not be empty"
            if any("=" not in variable or variable.startswith("=") for variable in hook.env):
                yield f"{place}.hooks[{index}].env: every entry must be NAME=value"


def _placed_edits(spec: CdiSpec) -> Iterator[tuple[str, ContainerEdits]]:
    yield "containerEdits", spec.container_edits
    for index, device in enumerate(spec.devices):
        yield f"devices[{index}].containerEdits", device.container_edits


def _node_problems(place: str, node: DeviceNode) -> Iterator[str]:
    if not node.path:
        yield f"{place}.path: must not be empty"
    if node.permissions not in (None, "", "none") and not set(node.permissions or "") <= set("rwm"):
        yield f"{place}.permissions: {node.permissions!r} is not of r, w, m, nor 'none'"


def encode(spec: CdiSpec) -> bytes:
    """The spec as a file's content: JSON with a final newline, the same bytes for the same spec."""
    content = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def decode(content: bytes | str, *, about: str = "CDI spec") -> CdiSpec:
    """From JSON or YAML. Raises InvalidInput that lists all problems with their places."""
    try:
        document = json.loads(content)
    except ValueError:
        try:
            document = yaml.safe_load(content)
        except yaml.YAMLError as error:
            raise InvalidInput(f"neither JSON nor YAML: {error}", about=about) from error
    try:
        spec = CdiSpec.model_validate(document)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, issue['loc'])) or 'spec'}: {issue['msg']}" for issue in error.errors()]
        raise InvalidInput("; ".join(problems), about=about, problems=problems) from error
    if problems := list(problems_of(spec)):
        raise InvalidInput("; ".join(problems), about=about, problems=problems)
    return spec


@dataclass(frozen=True, slots=True)
class ContainerDescription:
    """What a container gets, as far as CDI can change it."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A spec file: `priority` is the place of its folder in the list of folders, higher wins."""

    path: PurePath
    priority: int
    spec: CdiSpec


@dataclass(frozen=True, slots=True)
class SpecFiles:
    """All spec files that count, and `unreadable`: file to the reason why it does not count."""

    files: tuple[SpecFile, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)


def resolve(names: Sequence[str], specs: SpecFiles) -> tuple[tuple[CdiSpec, CdiDevice], ...]:
    """The devices of these qualified names, in order.

    The folder of highest priority that has a device wins; two files of that folder that have it make it unresolvable.
    Raises InvalidInput that names every device which is not there or not clear.
    """
    found, problems = [], []
    for name in names:
        matches = [
            (file, device)
            for file in specs.files
            for device in file.spec.devices
            if qualified_name(file.spec.kind, device.name) == name
        ]
        best = [match for match in matches if match[0].priority == max(file.priority for file, _ in matches)]
        if len(best) == 1:
            found.append((best[0][0].spec, best[0][1]))
        elif best:
            problems.append(f"{name} is in several files: {', '.join(str(file.path) for file, _ in best)}")
        else:
            problems.append(f"{name} is in no file")
    if problems:
        hints = [f"{path} was left out: {reason}" for path, reason in specs.unreadable.items()]
        raise InvalidInput("; ".join(problems + hints), about="unresolvable CDI devices", problems=problems)
    return tuple(found)


def inject(container: ContainerDescription, names: Sequence[str], specs: SpecFiles) -> ContainerDescription:
    """The container with these devices: each spec's own edits once, then those of its device, in order of `names`."""
    applied: list[CdiSpec] = []
    for spec, device in resolve(names, specs):
        if not any(spec is other for other in applied):
            applied.append(spec)
            container = apply(container, spec.container_edits)
        container = apply(container, device.container_edits)
    return container


def apply(container: ContainerDescription, edits: ContainerEdits) -> ContainerDescription:
    """One set of edits: same variable, device path or mount point replaces; mounts end sorted by depth."""
    mounts = _replaced(container.mounts, edits.mounts, lambda mount: mount.container_path)
    gids = [gid for gid in edits.additional_gids if gid and gid not in container.additional_gids]
    return ContainerDescription(
        env=_replaced(container.env, edits.env, lambda variable: variable.partition("=")[0]),
        device_nodes=_replaced(container.device_nodes, edits.device_nodes, lambda node: node.path),
        mounts=tuple(sorted(mounts, key=lambda mount: len(PurePath(mount.container_path).parts)))
        if edits.mounts
        else mounts,
        hooks=(*container.hooks, *edits.hooks),
        additional_gids=(*container.additional_gids, *dict.fromkeys(gids)),
    )


def _replaced[T](present: Iterable[T], added: Iterable[T], key: Callable[[T], str]) -> tuple[T, ...]:
    by_key = {key(item): item for item in present}
    for item in added:
        by_key.pop(key(item), None)
        by_key[key(item)] = item
    return tuple(by_key.values())
