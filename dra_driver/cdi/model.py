"""CDI specs as values: their fields, the lowest version that has these fields, their text, and the versions that
container runtimes read.

`dra_driver.cdi.edits` builds specs from these values, `dra_driver.cdi.inject` does with them what a container runtime
does. A value here can be invalid (it may come from a file of another program): `problems_of` lists everything that is
wrong with it, `encode` refuses it. Source of the rules: CDI specification 1.1.0 and its reference library.
Network interfaces and Intel RDT are not here: this driver never writes them, and nothing reads files of others.

The text is indented JSON. Runtimes parse spec files of either extension as YAML, and this JSON means the same in YAML.
The driver's files end in `.json`, so that every JSON tool reads them. Reading is in `dra_driver.cdi.inject`, because
the node plugin only writes.

A runtime rejects a whole spec file of an unknown version, and then no container of its claim starts. So `fitted`
reduces a spec to the highest version that the node's runtime reads.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from dra_driver.errors import InvalidInput

type Version = Literal["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]

VERSIONS: tuple[str, ...] = get_args(Version.__value__)
"""All versions that a valid spec can have, oldest first."""

DEVICE_TYPES = ("b", "c", "u", "p")
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NO_PERMISSIONS = "none"
"""For `DeviceNode.permissions`: the device cgroup denies the node."""

_MOST_ANNOTATION_BYTES = 256 * 1024
_MOST_UINT32 = 2**32 - 1

_VENDOR_OR_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ANNOTATION_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")

_NOT_THE_SAME_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""JSON may contain these characters unescaped; YAML forbids them or reads them as line breaks."""

_STRICT = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


@dataclass(frozen=True)
class DeviceNode:
    """A device node in the container. With `type` and a `major` other than 0 the host's device node need not exist.
    `host_path` is empty if it is the same as `path`. `file_mode` are permission bits; the text has them in decimal.
    Without `uid` and `gid` the node belongs to the user that the container's process runs as.
    """

    __pydantic_config__ = _STRICT

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    """A subset of `rwm`; empty means all three."""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class Hook:
    """A program that the runtime runs in the host's mount namespace. `args[0]` is the program's name."""

    __pydantic_config__ = _STRICT

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None
    """Seconds."""


@dataclass(frozen=True)
class Mount:
    """A mount in the container; a bind mount if the options contain `bind`."""

    __pydantic_config__ = _STRICT

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True)
class ContainerEdits:
    """Edits of a container. `env` entries are `NAME=value`."""

    __pydantic_config__ = _STRICT

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    additional_gids: tuple[int, ...] = ()

    @cached_property
    def version(self) -> str:
        """The lowest version that has everything that is used here."""
        if self.additional_gids:
            return "0.7.0"
        if any(node.host_path for node in self.device_nodes):
            return "0.5.0"
        return "0.4.0" if any(mount.type for mount in self.mounts) else "0.3.0"

    @cached_property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """Problems: the path below these edits, and a sentence."""
        return tuple(_edits_problems(self))

    @cached_property
    def text(self) -> str:
        """The JSON of a spec file. Cached, because the edits that all claims of a node share are most of every file."""
        parts = []
        for name, value in json_of(self).items():
            if isinstance(value, list):
                items = ",\n   ".join(map(_dumps, value))
                parts.append(f'  "{name}": [\n   {items}\n  ]')
            else:
                parts.append(f'  "{name}": {_dumps(value)}')
        return "{\n" + ",\n".join(parts) + "\n }" if parts else "{}"


@dataclass(frozen=True)
class CdiDevice:
    """A device that a container can request by name; its edits must not be empty."""

    __pydantic_config__ = _STRICT

    name: str
    container_edits: ContainerEdits
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CdiSpec:
    """One spec file. Its own `container_edits` apply once to each container that gets any of its devices."""

    __pydantic_config__ = _STRICT

    cdi_version: str
    kind: str
    """`vendor/class`."""
    devices: tuple[CdiDevice, ...]
    container_edits: ContainerEdits = field(default_factory=ContainerEdits)
    annotations: Mapping[str, str] = field(default_factory=dict)


def spec_of(
    kind: str,
    devices: tuple[CdiDevice, ...],
    container_edits: ContainerEdits,
    annotations: Mapping[str, str] | None = None,
) -> CdiSpec:
    """A spec of the lowest possible version, because older runtimes reject newer versions."""
    spec = CdiSpec(VERSIONS[0], kind, devices, container_edits, annotations or {})
    return replace(spec, cdi_version=lowest_version(spec))


def qualified_name(kind: str, device: str) -> str:
    """The name by which a container requests it: `vendor/class=name`."""
    return f"{kind}={device}"


def lowest_version(spec: CdiSpec) -> str:
    """The lowest version that has all fields that `spec` uses, regardless of the version that it declares."""
    needed = [spec.container_edits.version, *(device.container_edits.version for device in spec.devices)]
    if spec.annotations or any(device.annotations for device in spec.devices) or "." in spec.kind.partition("/")[2]:
        needed.append("0.6.0")
    if any("0" <= device.name[:1] <= "9" for device in spec.devices):
        needed.append("0.5.0")
    return max(needed, key=VERSIONS.index)


def problems_of(spec: CdiSpec) -> tuple[str, ...]:
    """All problems of `spec`, one `path: sentence` each; empty if it is valid."""
    results = [*_version_problems(spec)]
    results += [f"kind: {problem}" for problem in _kind_problems(spec.kind)]
    results += [f"annotations: {problem}" for problem in _annotation_problems(spec.annotations)]
    if not spec.devices:
        results.append("devices: at least one is needed")
    names: dict[str, int] = {}
    for index, device in enumerate(spec.devices):
        results += [f"devices[{index}].{problem}" for problem in _device_problems(device)]
        if names.setdefault(device.name, index) != index:
            results.append(f"devices[{index}].name: {device.name!r} is devices[{names[device.name]}] already")
    results += [f"containerEdits.{path}: {problem}" for path, problem in spec.container_edits.problems]
    return tuple(results)


def encode(spec: CdiSpec) -> bytes:
    """The text of a spec file: same value, same bytes. Raises InvalidInput with all problems of an invalid spec."""
    problems = problems_of(spec)
    if problems:
        raise InvalidInput(f"is invalid: {'; '.join(problems)}", about=f"CDI spec {spec.kind}", problems=problems)
    lines = [f' "cdiVersion": {_dumps(spec.cdi_version)}', f' "kind": {_dumps(spec.kind)}']
    if spec.annotations:
        lines.append(f' "annotations": {_dumps(json_of(spec.annotations))}')
    devices = ",\n  ".join(_dumps(json_of(device)) for device in spec.devices)
    lines.append(f' "devices": [\n  {devices}\n ]')
    if (edits := spec.container_edits.text) != "{}":
        lines.append(f' "containerEdits": {edits}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _json_fields(kind: type[Any]) -> tuple[tuple[str, str, object], ...]:
    return tuple(
        (
            field.name,
            to_camel(field.name),
            field.default_factory() if field.default_factory is not MISSING else field.default,
        )
        for field in fields(kind)
    )


_JSON_FIELDS = {kind: _json_fields(kind) for kind in (DeviceNode, Hook, Mount, ContainerEdits, CdiDevice, CdiSpec)}
"""Attribute, JSON name and default of each field; MISSING for those that are always written."""


_PLAIN = (str, int)


def json_of(value: Any) -> Any:
    """The JSON of a value of this module, or of a tuple of them: the spec's names, without default values."""
    if isinstance(value, tuple):
        return [json_of(item) for item in value]
    table = _JSON_FIELDS.get(type(value))
    if table is None:
        return dict(sorted(value.items())) if isinstance(value, Mapping) else value
    written = {}
    for name, json_name, default in table:
        item = getattr(value, name)
        if item != default:
            written[json_name] = item if isinstance(item, _PLAIN) else json_of(item)
    return written


_encoded = json.JSONEncoder(ensure_ascii=False).encode


def _dumps(value: object) -> str:
    text = _encoded(value)
    return _NOT_THE_SAME_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _version_problems(spec: CdiSpec) -> Iterator[str]:
    version = spec.cdi_version.removeprefix("v")
    if version not in VERSIONS:
        yield f"cdiVersion: {spec.cdi_version!r} is none of {', '.join(VERSIONS)}"
    elif VERSIONS.index(version) < VERSIONS.index(lowest := lowest_version(spec)):
        yield f"cdiVersion: is {version}, but what the spec uses needs at least {lowest}"


def _kind_problems(kind: str) -> Iterator[str]:
    vendor, slash, name = kind.partition("/")
    if not slash:
        yield f"{kind!r} is not vendor/class"
        return
    for part, text in (("vendor", vendor), ("class", name)):
        if not _VENDOR_OR_CLASS.fullmatch(text):
            yield (
                f"{part} {text!r} must begin with a letter, end with a letter or digit, and have only letters, digits,"
                " '_', '-' and '.' between them"
            )


def _device_name_problems(name: str) -> Iterator[str]:
    if not _DEVICE_NAME.fullmatch(name):
        yield (
            f"{name!r} must begin and end with a letter or digit, and have only letters, digits, '_', '-', '.' and ':'"
            " between them"
        )


def _annotation_problems(annotations: Mapping[str, str]) -> Iterator[str]:
    for key in annotations:
        if not _ANNOTATION_KEY.fullmatch(key):
            yield f"{key!r} is not a qualified name"
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _MOST_ANNOTATION_BYTES:
        yield f"{size} bytes are more than {_MOST_ANNOTATION_BYTES}"


def _device_problems(device: CdiDevice) -> Iterator[str]:
    yield from (f"name: {problem}" for problem in _device_name_problems(device.name))
    yield from (f"annotations: {problem}" for problem in _annotation_problems(device.annotations))
    yield from (f"containerEdits.{path}: {problem}" for path, problem in device.container_edits.problems)
    if device.container_edits == ContainerEdits():
        yield "containerEdits: must not be empty"


def _edits_problems(edits: ContainerEdits) -> Iterator[tuple[str, str]]:
    yield from _env_problems(edits.env)
    for index, node in enumerate(edits.device_nodes):
        yield from ((f"deviceNodes[{index}].{path}", problem) for path, problem in _node_problems(node))
    for index, hook in enumerate(edits.hooks):
        yield from ((f"hooks[{index}].{path}", problem) for path, problem in _hook_problems(hook))
    for index, mount in enumerate(edits.mounts):
        for name, value in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
            if not value:
                yield f"mounts[{index}].{name}", "must not be empty"
    for index, gid in enumerate(edits.additional_gids):
        if not 0 <= gid <= _MOST_UINT32:
            yield f"additionalGids[{index}]", f"{gid} is not a group id"


def _env_problems(env: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for index, variable in enumerate(env):
        if variable.find("=") <= 0:
            yield f"env[{index}]", f"{variable!r} is not NAME=value"


def _node_problems(node: DeviceNode) -> Iterator[tuple[str, str]]:
    if not node.path:
        yield "path", "must not be empty"
    if node.type and node.type not in DEVICE_TYPES:
        yield "type", f"{node.type!r} is none of {', '.join(DEVICE_TYPES)}"
    if node.permissions != NO_PERMISSIONS and node.permissions.strip("rwm"):
        yield "permissions", f"{node.permissions!r} is not made of r, w and m, and is not {NO_PERMISSIONS}"
    for name, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        if value is not None and not 0 <= value <= _MOST_UINT32:
            yield name, f"{value} is not between 0 and {_MOST_UINT32}"


def _hook_problems(hook: Hook) -> Iterator[tuple[str, str]]:
    if hook.hook_name not in HOOK_NAMES:
        yield "hookName", f"{hook.hook_name!r} is none of {', '.join(HOOK_NAMES)}"
    if not hook.path:
        yield "path", "must not be empty"
    yield from _env_problems(hook.env)


GROUPS_SINCE = "0.7.0"
"""The CDI version that added `additionalGids`."""
_ANNOTATIONS_SINCE = "0.6.0"

_RUNTIME_RELEASES: dict[str, Sequence[tuple[tuple[int, ...], str]]] = {
    "containerd": (
        ((1, 7), "0.5.0"),
        ((1, 7, 12), "0.6.0"),
        ((1, 7, 16), "0.7.0"),
        ((1, 7, 27), "0.8.0"),
        ((2, 0, 5), "1.0.0"),
        ((2, 2, 1), "1.1.0"),
    ),
    "cri-o": (
        ((1, 23), "0.3.0"),
        ((1, 25), "0.5.0"),
        ((1, 28), "0.6.0"),
        ((1, 30), "0.7.0"),
        ((1, 31), "0.8.0"),
        ((1, 33), "1.0.0"),
        ((1, 35), "1.1.0"),
    ),
}
"""The first release that reads a version, oldest first. Source: go.mod of all release tags of containerd and CRI-O, and
`CurrentVersion` of the CDI library that it names."""


def readable_version(runtime: str) -> str | None:
    """The highest CDI version that `runtime` reads; None if unknown.

    `runtime` is `containerd://1.7.27-k3s1`, as in a Node's `status.nodeInfo.containerRuntimeVersion`.
    """
    name, _, version = runtime.partition("://")
    numbers = release_numbers(version)
    if len(numbers) < 2:
        return None
    readable = [cdi for since, cdi in _RUNTIME_RELEASES.get(name, ()) if numbers >= since]
    return readable[-1] if readable else None


def release_numbers(version: str) -> tuple[int, ...]:
    """(1, 7, 27) for `1.7.27-k3s1`; empty if the text does not begin with numbers."""
    numbers = []
    for part in version.removeprefix("v").partition("-")[0].partition("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def reads(readable: str | None, version: str) -> bool:
    """Whether a runtime whose highest version is `readable` reads `version`. An unknown runtime reads all."""
    return readable is None or VERSIONS.index(readable) >= VERSIONS.index(version)


def fitted(spec: CdiSpec, readable: str | None) -> CdiSpec:
    """`spec` reduced to the version `readable`. Removes newer fields that containers do not need: annotations, which
    are for people, and groups. Without the groups, a restricted device node still belongs to the user that the
    container starts as (CDI library, since 0.5), so only programs that change their user in the container lose access.
    """
    if reads(readable, spec.cdi_version):
        return spec
    if not reads(readable, GROUPS_SINCE):
        devices = tuple(
            replace(device, container_edits=_without_groups(device.container_edits)) for device in spec.devices
        )
        spec = replace(spec, devices=devices, container_edits=_without_groups(spec.container_edits))
    annotations = spec.annotations if reads(readable, _ANNOTATIONS_SINCE) else {}
    return spec_of(spec.kind, spec.devices, spec.container_edits, annotations)


def _without_groups(edits: ContainerEdits) -> ContainerEdits:
    return replace(edits, additional_gids=()) if edits.additional_gids else edits
