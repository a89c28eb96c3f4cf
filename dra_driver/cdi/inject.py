"""What a container runtime does with CDI: finds requested devices in the spec files, and edits the container. Pure.

The simulated kubelet uses it to show what a container would get. Source: CDI specification 1.1.0 and the behaviour of its
reference library.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath

from dra_driver.cdi.model import CdiDevice, CdiSpec, ContainerEdits, DeviceNode, Hook, Mount, qualified_name
from dra_driver.errors import InvalidInput

SPEC_SUFFIXES = (".json", ".yaml")
"""Other files in a CDI folder do not count."""


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
    """A spec file. `priority` is the place of its folder in the list of folders; higher wins."""

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
        highest = max((file.priority for file, _ in matches), default=0)
        best = [(file, device) for file, device in matches if file.priority == highest]
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
            container = edited(container, spec.container_edits)
        container = edited(container, device.container_edits)
    return container


def edited(container: ContainerDescription, edits: ContainerEdits) -> ContainerDescription:
    """With one set of edits: same variable, device path or mount point replaces; mounts end up sorted by depth."""
    mounts = _replaced(container.mounts, edits.mounts, lambda mount: mount.container_path)
    gids = [gid for gid in edits.additional_gids if gid and gid not in container.additional_gids]
    return ContainerDescription(
        env=_replaced(container.env, edits.env, lambda variable: variable.partition("=")[0]),
        device_nodes=_replaced(container.device_nodes, edits.device_nodes, lambda node: node.path),
        mounts=tuple(sorted(mounts, key=_depth)) if edits.mounts else mounts,
        hooks=(*container.hooks, *edits.hooks),
        additional_gids=(*container.additional_gids, *dict.fromkeys(gids)),
    )


def _depth(mount: Mount) -> int:
    return len(PurePosixPath(mount.container_path).parts)


def _replaced[T](present: Iterable[T], added: Iterable[T], key: Callable[[T], str]) -> tuple[T, ...]:
    by_key = {key(item): item for item in present}
    for item in added:
        by_key.pop(key(item), None)
        by_key[key(item)] = item
    return tuple(by_key.values())
