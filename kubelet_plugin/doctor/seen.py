"""What was seen of this machine, as values that can be written as JSON and read again; and what configurations of
containerd and CRI-O say about CDI. Pure: texts of files in, values out.

Source of the latter: containerd's docs/cri/config.md of 1.7 and 2.x; crio.conf(5).
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from dra_driver.api.inventory import Problem
from dra_driver.api.meta import JsonObject
from dra_driver.cdi.model import readable_version
from dra_driver.doctor.findings import Unread
from dra_driver.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """`missing`: why no container can have it now. `fabric_state` and `fabric_status` as NVML has them; None where it
    knows of no fabric. `switched`: its NVLinks go to switches."""

    name: str
    uuid: str
    pci: str
    switched: bool = False
    fabric_state: str | None = None
    fabric_status: int = 0
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class HookSeen:
    """What finishes containers: `mode` is one of `kubelet_plugin.hardware.hook_program.HookMode`, `program` its path on
    the host and `version` its release, None where there is none. `lacks` are hooks that every container should have;
    `problem` says why it is not the host's own program, or not any."""

    mode: str
    program: str | None = None
    version: str | None = None
    lacks: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RuntimeSeen:
    """A container runtime by its configuration. None: not set there, so its default holds; a `version`: not known."""

    name: str
    file: str
    version: str | None = None
    cdi: bool | None = None
    spec_dirs: tuple[str, ...] | None = None
    default_runtime: str | None = None
    problem: str | None = None

    @property
    def readable_cdi(self) -> str | None:
        """The highest CDI version that it reads; None when that is not known."""
        return readable_version(f"{self.name}://{self.version or ''}")


@dataclass(frozen=True, slots=True)
class CdiFileSeen:
    name: str
    claim_uid: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class EntrySeen:
    """A claim of the journal."""

    claim: str
    uid: str
    boot_id: str
    prepared: bool
    releasing: bool


@dataclass(frozen=True, slots=True)
class JournalSeen:
    """`problem`: why it cannot be read; `damage`: lines that cannot be trusted; `put_aside`: whether there is a file
    with such lines from earlier."""

    entries: tuple[EntrySeen, ...] = ()
    damage: tuple[str, ...] = ()
    put_aside: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SocketSeen:
    """`answers`: whether a server listens; None without permission to try."""

    path: str
    answers: bool | None


@dataclass(frozen=True, slots=True)
class XidSeen:
    pci: str
    number: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """One look. Paths are the host's. A `..._problem` is None when there is none."""

    node: str
    time: datetime
    boot_id: str
    driver: str
    simulated: bool
    root: bool
    """Whether who looked may see everything."""
    kernel_module: str | None
    """Version of the nvidia kernel module; None when it is not loaded."""
    nouveau: bool
    driver_version: str | None
    """As NVML says; None when it cannot be used."""
    library_version: str | None
    """Of the libraries in the driver root; None when there is none."""
    driver_root: str | None
    driver_problem: str | None
    container_problem: str | None
    """Why no container can have any GPU now."""
    gpus: tuple[GpuSeen, ...]
    problems: tuple[Problem, ...]
    """Of GPUs."""
    hook: HookSeen
    persistenced: bool
    fabric_manager: bool
    mig_manager: bool
    imex_daemons: tuple[str, ...]
    """IMEX daemons that are not this driver's, with process id and unit."""
    imex_unit: bool
    """Whether the node starts an IMEX daemon of its own at boot."""
    runtimes: tuple[RuntimeSeen, ...]
    cdi_root: str
    cdi_root_there: bool
    cdi_files: tuple[CdiFileSeen, ...]
    journal: JournalSeen
    registry: str
    registry_there: bool
    """Whether kubelet's folder of plugin sockets is there."""
    sockets: tuple[SocketSeen, ...]
    """The plugin's: those of the service, then those of registration."""
    mps_left: tuple[str, ...]
    """Folders of MPS daemons of which the journal knows nothing."""
    xids: tuple[XidSeen, ...]
    kernel_log: Unread | None
    """Why the kernel's log could not be read."""
    state_dir: str
    free_bytes: int | None
    """On the disk of the journal; None when it is not there."""
    kubelet_folder: Unread | None = None
    """Why what is below kubelet's folder could not be read."""

    def unread(self, field: str) -> Unread | None:
        return self.kernel_log if field == "xids" else self.kubelet_folder

    def to_wire(self) -> JsonObject:
        document: JsonObject = _ADAPTER.dump_python(self, mode="json", by_alias=True)
        return document


_ADAPTER = TypeAdapter(NodeSeen)


def node_seen(wire: JsonObject) -> NodeSeen:
    """Raises InvalidInput: not what `to_wire` made, or by another release."""
    try:
        return _ADAPTER.validate_python(wire)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{place}: {first['msg']}", about="what was seen of a node") from error


# -- container runtimes

CONTAINERD, CRIO = "containerd", "cri-o"

_SECTIONS = (
    ("plugins", "io.containerd.cri.v1.runtime"),
    ("plugins", "io.containerd.grpc.v1.cri"),
    ("crio", "runtime"),
)
"""Of containerd 2, of containerd 1, whose files 2 reads as well, and of CRI-O."""


def runtime_seen(name: str, texts: Mapping[str, str], version: str | None) -> RuntimeSeen:
    """From its files in the order in which they are merged, main file first. `version` is None if it is not known."""
    file = next(iter(texts), "")
    try:
        merged = _merged(tomllib.loads(text) for text in texts.values())
    except tomllib.TOMLDecodeError as error:
        return RuntimeSeen(name, file, version, problem=f"is not valid TOML: {error}")
    if name == CONTAINERD and version is None and merged.get("version") == 3:
        version = "2"  # the format of containerd 2, without a minor version
    sections = [_table(_table(merged, group), section) for group, section in _SECTIONS]
    switches = (section.get("enable_cdi") for section in sections)
    folders = (section.get("cdi_spec_dirs") for section in sections)
    defaults = (
        _table(section, "containerd").get("default_runtime_name") or section.get("default_runtime")
        for section in sections
    )
    return RuntimeSeen(
        name,
        file,
        version,
        # CRI-O has no switch for CDI.
        True if name == CRIO else next((value for value in switches if isinstance(value, bool)), None),
        next((_strings(value) for value in folders if isinstance(value, list)), None),
        next((str(value) for value in defaults if value), None),
    )


def imports(text: str) -> tuple[str, ...]:
    """Patterns of the files that a containerd configuration imports."""
    try:
        patterns = tomllib.loads(text).get("imports")
    except tomllib.TOMLDecodeError:
        return ()
    return _strings(patterns) if isinstance(patterns, list) else ()


def _merged(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            before = merged.get(key)
            together = isinstance(before, dict) and isinstance(value, dict)
            merged[key] = _merged((cast(dict[str, Any], before), value)) if together else value
    return merged


def _table(parent: dict[str, Any], name: str) -> dict[str, Any]:
    table = parent.get(name)
    return table if isinstance(table, dict) else {}


def _strings(values: list[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)
