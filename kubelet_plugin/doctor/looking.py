"""Looks at this machine with the plugin's own adapters; writes nothing, and returns every problem as a value.

`dractl doctor --node` may run on the host, or in the plugin's pod with the host's root mounted elsewhere.
"""

import errno
import os
import re
import shutil
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dra_driver.api.inventory import GpuFacts
from dra_driver.cdi.inject import decode as decode_cdi
from dra_driver.doctor.findings import Unread
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import DriverError, InvalidInput, NodeNotReady
from kubelet_plugin.claims.node_effects import CurrentFootprint
from kubelet_plugin.doctor.seen import (
    CONTAINERD,
    CRIO,
    CdiFileSeen,
    EntrySeen,
    GpuSeen,
    HookSeen,
    JournalSeen,
    NodeSeen,
    RuntimeSeen,
    SocketSeen,
    XidSeen,
    imports,
    runtime_seen,
)
from kubelet_plugin.effects.mps import unowned
from kubelet_plugin.facts.container_files import container_files_of
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, OpenNvml, installed_nvml, simulated_nvml
from kubelet_plugin.hardware.driver_root import DriverInstallation, kernel_module_version
from kubelet_plugin.hardware.hook_program import HookMode, InstalledHook
from kubelet_plugin.hardware.host_programs import asking
from kubelet_plugin.hardware.imex import foreign_daemons
from kubelet_plugin.hardware.layouts import FABRIC_MANAGER, daemon_socket
from kubelet_plugin.hardware.sysfs import HostFiles, pci_address
from kubelet_plugin.prepare.cdi_files import CdiFiles, OtherClaims
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.store import DAMAGED, JournalFile, JournalStore

if TYPE_CHECKING:
    from kubelet_plugin.simulation.host import SimulatedHost

_CONTAINERD_FILES = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
)
_CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
_CRIO_FILE, _CRIO_FOLDER, _CRIO_SOCKET = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d", "/run/crio/crio.sock"
_PROGRAMS = (
    "/usr/bin",
    "/usr/local/bin",
    "/bin",
    "/opt/bin",
    *(f"/var/lib/rancher/{name}" for name in ("rke2/bin", "k3s/data/current/bin")),
)
"""Where hosts have their container runtime."""
_WANTED_BY = "/etc/systemd/system/multi-user.target.wants"
_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+\S*)")
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<number>\d+)")
_KERNEL_LOG = "/dev/kmsg"
_LONGEST_RECORD = 8192
"""Source: printk, LOG_LINE_MAX and its prefix; a shorter buffer is refused (EINVAL)."""
_MOST_RECORDS = 200_000
_ANSWER_WITHIN_S = 5.0


class LocalMachine:
    """This machine, as `places` say where it is."""

    def __init__(self, places: NodePlaces) -> None:
        self.places = places
        self.host = HostFiles(places.host_root)
        self._ask = asking(places.host_root)
        self._simulated = _simulated(places)
        recorded = self._simulated.configured_root if self._simulated is not None else None
        self.installation = DriverInstallation(
            self.host,
            configured_root=places.driver_root or recorded,
            configured_hook=places.cdi_hook,
            shipped_hook=InstalledHook(places.state_dir),
        )

    def open_nvml(self) -> OpenNvml:
        if self._simulated is None:
            return installed_nvml(self.installation)
        return simulated_nvml(self._simulated)

    def facts(self) -> NodeFacts:
        """Facts of the hardware, without what this driver made; they include problems."""
        ours = CurrentFootprint(JournalStore(self.places.state_dir), self.host)
        with closing(Hardware(self.host, self.open_nvml(), ours)) as hardware:
            return hardware.look()

    def look(self) -> NodeSeen:
        """Everything. Raises NodeNotReady when the kernel does not even tell its boot id."""
        facts, host, places = self.facts(), self.host, self.places
        missing, container_problem = self._for_containers(facts)
        library_version, root = self._libraries()
        xids, kernel_log = self._xids()
        journal, left = self._journal()
        sockets = tuple(self._sockets())
        return NodeSeen(
            node=os.environ.get("GPU_DRA_NODE_NAME") or socket.gethostname(),
            time=datetime.now(UTC),
            boot_id=facts.boot_id,
            driver=places.driver,
            simulated=places.simulate is not None,
            root=os.geteuid() == 0,
            kernel_module=kernel_module_version(host),
            nouveau=host.resolve("/sys/module/nouveau") is not None,
            driver_version=facts.driver.version if facts.driver is not None else None,
            library_version=library_version,
            driver_root=root,
            driver_problem=_driver_problem(facts),
            container_problem=container_problem,
            gpus=tuple(_gpu(gpu_facts, missing) for gpu_facts in facts.gpus),
            problems=tuple(problem for problem in facts.problems if problem.subject != "driver"),
            hook=self._hook(),
            persistenced=daemon_socket(host, root) is not None,
            fabric_manager=daemon_socket(host, root, FABRIC_MANAGER) is not None,
            mig_manager=host.resolve(f"{_WANTED_BY}/nvidia-mig-manager.service") is not None,
            imex_daemons=foreign_daemons(host),
            imex_unit=host.resolve(f"{_WANTED_BY}/nvidia-imex.service") is not None,
            runtimes=tuple(self._runtimes()),
            cdi_root=str(places.cdi_root),
            cdi_root_there=os.access(places.cdi_root, os.F_OK),
            cdi_files=tuple(self._cdi_files()),
            journal=journal,
            registry=str(self._registry),
            registry_there=os.access(self._registry, os.F_OK),
            sockets=sockets,
            mps_left=left,
            xids=xids,
            kernel_log=kernel_log,
            state_dir=str(places.state_dir),
            free_bytes=_free(places.state_dir),
            kubelet_folder=self._kubelet_folder(),
        )

    # -- the driver

    def _for_containers(self, facts: NodeFacts) -> tuple[dict[str, str], str | None]:
        if facts.driver is None:
            return {}, None
        try:
            others = OtherClaims(self.places.cdi_root, [self.places.driver])
            container_files = container_files_of(self.installation, facts, others=others)
        except NodeNotReady as error:
            return {}, error.message
        missing = dict(container_files.taken)
        for gpu in facts.gpus:
            try:
                container_files.gpu_nodes(gpu.uuid)
            except NodeNotReady as error:
                missing[gpu.uuid] = error.message
        return missing, None

    def _libraries(self) -> tuple[str | None, str | None]:
        try:
            root = self.installation.root()
        except NodeNotReady:
            return None, None
        return root.version, root.path

    def _hook(self) -> HookSeen:
        try:
            choice = self.installation.hook()
        except NodeNotReady as error:
            return HookSeen(HookMode.NONE, problem=str(error))
        program = choice.program
        path, version = (program.path, program.version) if program is not None else (None, None)
        return HookSeen(choice.mode, path, version, choice.missing, choice.problem)

    # -- container runtimes

    def _runtimes(self) -> Iterator[RuntimeSeen]:
        for path in _CONTAINERD_FILES:
            text = self.host.read_text(path)
            if text is not None:
                yield runtime_seen(CONTAINERD, {path: text} | self._imported(text), self._version("containerd"))
        if not any(self.host.resolve(path) for path in _CONTAINERD_FILES) and self.host.resolve(_CONTAINERD_SOCKET):
            yield runtime_seen(CONTAINERD, {}, self._version("containerd"))
        files = (_CRIO_FILE, *(f"{_CRIO_FOLDER}/{name}" for name in sorted(self.host.names(_CRIO_FOLDER))))
        crio = {path: text for path in files if (text := self.host.read_text(path)) is not None}
        if crio or self.host.resolve(_CRIO_SOCKET) is not None:
            yield runtime_seen(CRIO, crio, self._version("crio"))

    def _imported(self, text: str) -> dict[str, str]:
        imported: dict[str, str] = {}
        for pattern in imports(text):
            folder, name = str(PurePosixPath(pattern).parent), PurePosixPath(pattern).name
            for item in sorted(self.host.names(folder)):
                content = self.host.read_text(f"{folder}/{item}") if fnmatch(item, name) else None
                if content is not None:
                    imported[f"{folder}/{item}"] = content
        return imported

    def _version(self, program: str) -> str | None:
        """As the host's program says itself; None when it does not."""
        for folder in _PROGRAMS:
            if self.host.resolve(f"{folder}/{program}") is not None:
                with suppress(NodeNotReady):
                    match = _VERSION.search(self._ask([f"{folder}/{program}", "--version"]).output)
                    return match[1] if match is not None else None
        return None

    # -- what this driver made

    def _cdi_files(self) -> Iterator[CdiFileSeen]:
        files = CdiFiles(self.places.cdi_root, self.places.driver)
        try:
            claims = sorted(files.claims())
        except NodeNotReady:
            return
        for uid in claims:
            name = files.path(uid).name
            try:
                decode_cdi(files.read(uid) or b"", about=name)
            except (InvalidInput, NodeNotReady, UnicodeDecodeError) as error:
                yield CdiFileSeen(name, uid, getattr(error, "message", str(error)))
            else:
                yield CdiFileSeen(name, uid)

    def _journal(self) -> tuple[JournalSeen, tuple[str, ...]]:
        folder = self.places.state_dir
        aside = os.access(folder / DAMAGED, os.F_OK)
        try:
            journal = JournalFile(folder).current()
        except DriverError as error:
            return JournalSeen(put_aside=aside, problem=error.message), ()
        entries = tuple(
            EntrySeen(str(entry.claim), uid, entry.boot_id, entry.cdi_digest is not None, entry.releasing)
            for uid, entry in sorted(journal.held.items())
        )
        damage = tuple(item.reason for item in journal.damage)
        return JournalSeen(entries, damage, aside), _mps_left(folder / "mps", journal)

    def _kubelet_folder(self) -> Unread | None:
        folder = self.places.kubelet_root
        try:
            os.scandir(folder).close()
        except PermissionError:
            return Unread(f"folder {folder}", "permission denied", f"read {folder}")
        except OSError:  # it is not there, which is a finding of its own
            return None
        return None

    @property
    def _registry(self) -> Path:
        return self.places.kubelet_root / "plugins_registry"

    def _sockets(self) -> Iterator[SocketSeen]:
        driver = self.places.driver
        for folder, pattern in ((self.places.state_dir, "dra*.sock"), (self._registry, f"{driver}*reg.sock")):
            for path in sorted(folder.glob(pattern)):
                yield SocketSeen(str(path), _answers(path))
        for path in sorted(self._registry.glob("dra-*-reg.sock")):
            yield SocketSeen(str(path), _answers(path))

    # -- the kernel

    def _xids(self) -> tuple[tuple[XidSeen, ...], Unread | None]:
        counted: Counter[tuple[str, int]] = Counter()
        try:
            for line in self.kernel_lines():
                match = _XID.search(line)
                if match is not None:
                    counted[_pci(match["pci"]), int(match["number"])] += 1
        except OSError as error:
            permission = f"read {_KERNEL_LOG} (CAP_SYSLOG)" if isinstance(error, PermissionError) else None
            return (), Unread("the kernel log", error.strerror or str(error), permission)
        return tuple(XidSeen(pci, number, count) for (pci, number), count in sorted(counted.items())), None

    def kernel_lines(self) -> Iterator[str]:
        """Of this boot, as far as the kernel still has them. Raises OSError."""
        if self.places.simulate is not None and self.host.resolve(_KERNEL_LOG) is None:
            return  # a simulated kernel has no log
        descriptor = os.open(self.host.path(_KERNEL_LOG), os.O_RDONLY | os.O_NONBLOCK)
        try:
            for _ in range(_MOST_RECORDS):
                try:
                    record = os.read(descriptor, _LONGEST_RECORD)
                except BlockingIOError:
                    return
                except OSError as error:
                    if error.errno != errno.EPIPE:  # overwritten while we read: the next is there
                        raise
                    continue
                if not record:
                    return
                yield from record.decode(errors="replace").splitlines()
        finally:
            os.close(descriptor)


def _simulated(places: NodePlaces) -> "SimulatedHost | None":
    if places.simulate is None:
        return None

    # Only here: a real node has no use for profiles.
    from kubelet_plugin.simulation.host import open_simulated

    return open_simulated(places.host_root, places.simulate)


def _driver_problem(facts: NodeFacts) -> str | None:
    if facts.driver is not None:
        return None
    problems = (problem for problem in facts.problems if problem.subject == "driver")
    return "; ".join(f"{problem.reason}: {problem.message}" for problem in problems)


def _gpu(gpu: GpuFacts, missing: dict[str, str]) -> GpuSeen:
    return GpuSeen(
        gpu.name,
        gpu.uuid,
        gpu.pci_bus_id,
        gpu.nvlink is not None and gpu.nvlink.switched,
        gpu.fabric.state if gpu.fabric is not None else None,
        gpu.fabric.status if gpu.fabric is not None else 0,
        missing.get(gpu.uuid),
    )


def _mps_left(folder: Path, journal: Journal) -> tuple[str, ...]:
    try:
        return tuple(unowned([entry.name for entry in folder.iterdir()], journal.holds))
    except OSError:
        return ()


def _answers(path: Path) -> bool | None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(_ANSWER_WITHIN_S)
        try:
            connection.connect(str(path))
        except PermissionError:
            return None
        except OSError:
            return False
        return True


def _pci(text: str) -> str:
    """The kernel leaves out the function: `0000:1b:00`."""
    try:
        return pci_address(text if "." in text else f"{text}.0")
    except ValueError:
        return text


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
