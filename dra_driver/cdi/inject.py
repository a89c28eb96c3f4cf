"""The CDI part of a container runtime: finds requested devices in the spec files, and edits the container. Pure. The
simulated kubelet uses it to show what a container would get, and tests to check the effect of a spec. Source: CDI
specification 1.1.0 and the behavior of its reference library, which containerd and CRI-O use.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from posixpath import normpath
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from dra_driver.cdi.model import (
    NO_PERMISSIONS,
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    problems_of,
    qualified_name,
)
from dra_driver.errors import InvalidInput

SPEC_SUFFIXES = (".json", ".yaml")
"""Other files in a CDI folder are ignored."""


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """What the device cgroup allows: `access` is a subset of `rwm`, empty for nothing."""

    type: str
    major: int
    minor: int
    access: str


@dataclass(frozen=True, slots=True)
class ContainerDescription:
    """The parts of a container that CDI can change. `uid` and `gid` are those of its process."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    device_rules: tuple[DeviceRule, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A valid spec file. `priority` is the place of its folder in the list of folders; higher wins."""

    path: PurePath
    priority: int
    spec: CdiSpec


@dataclass(frozen=True, slots=True)
class SpecFiles:
    """All valid spec files, and `unreadable`: the reason for each invalid file."""

    files: tuple[SpecFile, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)


def resolve(names: Sequence[str], specs: SpecFiles) -> tuple[tuple[CdiSpec, CdiDevice], ...]:
    """The devices of these qualified names, in order.

    The folder of highest priority that has a device wins. If two files of one folder have it, they conflict and neither
    provides it, even if a folder of higher priority also has the device. Raises InvalidInput with all unresolvable
    devices.
    """
    owners: dict[str, list[SpecFile]] = {}
    for file in sorted(specs.files, key=lambda file: (file.priority, file.path)):
        for device in file.spec.devices:
            owners.setdefault(qualified_name(file.spec.kind, device.name), []).append(file)
    problems = [problem for name in names if (problem := _problem(name, owners.get(name, ()))) is not None]
    if problems:
        hints = [f"{path} was left out: {reason}" for path, reason in specs.unreadable.items()]
        raise InvalidInput("; ".join(problems + hints), about="unresolvable CDI devices", problems=problems)
    return tuple((owners[name][-1].spec, _device(owners[name][-1].spec, name)) for name in names)


def inject(container: ContainerDescription, names: Sequence[str], specs: SpecFiles) -> ContainerDescription:
    """The container with these devices: each spec's own edits once, then those of its device, in order of `names`.

    Raises InvalidInput if a device is unresolvable, or a device node's numbers are not in its spec: the host has no
    device nodes here, and a runtime does not create the container then.
    """
    done: list[CdiSpec] = []
    for spec, device in resolve(names, specs):
        if not any(spec is other for other in done):
            done.append(spec)
            container = edited(container, spec.container_edits)
        container = edited(container, device.container_edits)
    return container


def edited(container: ContainerDescription, edits: ContainerEdits) -> ContainerDescription:
    """The container after one set of edits.

    A variable replaces one of the same name. A later device node or mount replaces one at the same path, and mounts are
    sorted by depth, so that none hides another. Hooks are appended. Raises InvalidInput: see `inject`.
    """
    nodes = [_owned(node, container) for node in edits.device_nodes]
    mounts = _later(container.mounts, edits.mounts, lambda mount: mount.container_path)
    gids = dict.fromkeys((*container.additional_gids, *(gid for gid in edits.additional_gids if gid)))
    return replace(
        container,
        env=_in_place(container.env, edits.env, lambda variable: variable.partition("=")[0]),
        device_nodes=_later(container.device_nodes, nodes, lambda node: node.path),
        device_rules=(*container.device_rules, *(_rule(node) for node in nodes if node.type in ("b", "c"))),
        mounts=tuple(sorted(mounts, key=_depth)) if edits.mounts else mounts,
        hooks=(*container.hooks, *edits.hooks),
        additional_gids=tuple(gids),
    )


def _problem(name: str, owners: Sequence[SpecFile]) -> str | None:
    if not owners:
        return f"{name} is in no file"
    for priority in {file.priority for file in owners}:
        files = [str(file.path) for file in owners if file.priority == priority]
        if len(files) > 1:
            return f"{name} is in several files: {', '.join(files)}"
    return None


def _device(spec: CdiSpec, name: str) -> CdiDevice:
    return next(device for device in spec.devices if qualified_name(spec.kind, device.name) == name)


def _owned(node: DeviceNode, container: ContainerDescription) -> DeviceNode:
    """With the process' user as owner, if the spec names none."""
    if not node.type or (node.major == 0 and node.type != "p"):
        raise InvalidInput(
            f"the host has no such device node, and the spec lacks type and major: {node.host_path or node.path}",
            about=f"device node {node.path}",
        )
    return replace(
        node,
        uid=container.uid or None if node.uid is None else node.uid,
        gid=container.gid or None if node.gid is None else node.gid,
    )


def _rule(node: DeviceNode) -> DeviceRule:
    access = "" if node.permissions == NO_PERMISSIONS else node.permissions or "rwm"
    return DeviceRule(node.type, node.major, node.minor, access)


def _depth(mount: Mount) -> int:
    return normpath(mount.container_path).count("/")


def _in_place[T](present: Iterable[T], added: Iterable[T], key: Callable[[T], str]) -> tuple[T, ...]:
    by_key = {key(item): item for item in present}
    return tuple((by_key | {key(item): item for item in added}).values())


def _later[T](present: Iterable[T], added: Iterable[T], key: Callable[[T], str]) -> tuple[T, ...]:
    by_key = {key(item): item for item in present}
    for item in added:
        by_key.pop(key(item), None)
        by_key[key(item)] = item
    return tuple(by_key.values())


def decode(text: str | bytes, *, about: str = "CDI spec") -> CdiSpec:
    """The valid spec in a file's text, JSON or YAML; `about` names the file in errors.

    Raises InvalidInput with all problems: unknown fields, wrong types, or what `problems_of` finds.
    """
    try:
        spec = _ADAPTER.validate_json(json.dumps(_without_null(_parsed(text)), default=str))
    except (ValueError, yaml.YAMLError) as error:
        problems = _decoding_problems(error)
        raise InvalidInput(f"is invalid: {'; '.join(problems)}", about=about, problems=problems) from error
    problems = problems_of(spec)
    if problems:
        raise InvalidInput(f"is invalid: {'; '.join(problems)}", about=about, problems=problems)
    return spec


_ADAPTER = TypeAdapter(CdiSpec)


def _parsed(text: str | bytes) -> object:
    if isinstance(text, bytes):
        text = text.decode()
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError:
        return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """YAML as the reference library reads it: it rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _without_duplicates([(self.construct_object(key, deep=True), None) for key, _ in node.value])
        return super().construct_mapping(node, deep=True)


def _without_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        raise ValueError(f"{', '.join(twice)}: there twice")
    return mapping


def _without_null(value: object) -> object:
    """A null field counts as absent, as in the reference library."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _decoding_problems(error: Exception) -> tuple[str, ...]:
    if not isinstance(error, ValidationError):
        return (" ".join(str(error).split()),)
    return tuple(f"{_path(item['loc']) or 'document'}: {_sentence(item)}" for item in error.errors())


def _sentence(error: Any) -> str:
    known = {"missing": "is required", "unexpected_keyword_argument": "unknown field"}
    sentence = known.get(error["type"])
    if sentence is not None:
        return sentence
    if error["type"] == "dataclass_type":
        return f"must be an object, is {error['input']!r:.80}"
    wanted = {"string_type": "a string", "int_type": "an integer", "bool_type": "true or false", "tuple_type": "a list"}
    return f"must be {wanted.get(error['type'], error['msg'])}, is {error['input']!r:.80}"


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
