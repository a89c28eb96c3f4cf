"""The checks of a node, based on what was seen of it: `checks.yaml` has their order, what each can find, and the words.
Pure.
"""

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path

from dra_driver.cdi.model import GROUPS_SINCE, reads
from dra_driver.devices.health import xid_condition, xid_severity
from dra_driver.doctor.findings import Check, Judgment, Wrong, checks_of, wrong
from dra_driver.phrases import and_more
from kubelet_plugin.doctor.seen import CONTAINERD, GpuSeen, NodeSeen, RuntimeSeen

_LEAST_FREE_BYTES = 16 * 2**20
_DEFAULT_DIRS = ("/etc/cdi", "/var/run/cdi")
"""The folders that containerd and CRI-O read by default."""


def _rights(node: NodeSeen) -> Judgment:
    if not node.root:
        yield wrong("not-root")
    return "running as root"


def _driver(node: NodeSeen) -> Judgment:
    if node.nouveau:
        yield wrong("nouveau")
    if node.driver_problem is not None:
        yield wrong("no-driver", why=node.driver_problem)
    if node.kernel_module and node.library_version and node.kernel_module != node.library_version:
        yield wrong("versions", loaded=node.kernel_module, root=node.driver_root, libraries=node.library_version)
    return f"NVIDIA driver {node.driver_version} in {node.driver_root}"


def _files(node: NodeSeen) -> Judgment:
    if node.driver_problem is not None:
        return "not checked: NVML does not work"
    if node.container_problem is not None:
        yield wrong("incomplete", why=node.container_problem)
    for gpu in node.gpus:
        if gpu.missing is not None:
            yield wrong("gpu", _about(gpu), why=gpu.missing)
    return f"the driver's files and the device nodes of {len(node.gpus)} GPUs exist"


def _about(gpu: GpuSeen) -> str:
    return f"GPU {gpu.name} ({gpu.pci})"


def _gpus(node: NodeSeen) -> Judgment:
    for problem in node.problems:
        yield wrong("not-offered", problem.subject, reason=problem.reason, message=problem.message)
    return f"{len(node.gpus)} GPUs respond"


def _persistence(node: NodeSeen) -> Judgment:
    if node.gpus and not node.persistenced:
        yield wrong("off")
    return "nvidia-persistenced is running" if node.persistenced else "no GPU that needs nvidia-persistenced"


def _fabric(node: NodeSeen) -> Judgment:
    for gpu in node.gpus:
        if gpu.fabric_state is not None and (gpu.fabric_state != "Completed" or gpu.fabric_status):
            yield wrong("not-registered", _about(gpu), state=gpu.fabric_state, status=gpu.fabric_status)
    unknown = [gpu.name for gpu in node.gpus if gpu.switched and gpu.fabric_state is None]
    if unknown and not node.fabric_manager:
        yield wrong("no-fabric-manager", gpus=and_more(unknown, 5))
    return "NVLink fabric is complete"


def _mig_manager(node: NodeSeen) -> Judgment:
    if node.mig_manager:
        yield wrong("enabled")
    return "no MIG manager is enabled on this node"


def _imex(node: NodeSeen) -> Judgment:
    if node.imex_daemons:
        yield wrong("runs", daemons=and_more(node.imex_daemons, 5))
    elif node.imex_unit:
        yield wrong("enabled")
    return "no IMEX daemon except those of ComputeDomains"


# -- what makes containers


def _hook(node: NodeSeen) -> Judgment:
    hook = node.hook
    if node.simulated:
        return "the node is simulated: its containers need no hooks"
    if hook.mode == "off":
        yield wrong("off")
    elif hook.program is None:
        yield wrong("none", why=hook.problem or "none was found")
    elif hook.lacks:
        yield wrong("old", program=hook.program, version=hook.version, lacks=", ".join(hook.lacks))
    return f"hook program {hook.program} {hook.version}"


def _runtime(node: NodeSeen) -> Judgment:
    if node.simulated:
        return "the node is simulated, and so is its container runtime"
    if not node.runtimes:
        yield wrong("not-found", cdi_root=node.cdi_root)
    for runtime in node.runtimes:
        yield from _runtime_troubles(runtime, node.cdi_root)
    names = [f"{runtime.name}{f' {runtime.version}' if runtime.version else ''}" for runtime in node.runtimes]
    return f"{' and '.join(names)} reads {node.cdi_root}"


def _runtime_troubles(runtime: RuntimeSeen, cdi_root: str) -> Iterator[Wrong]:
    about = f"{runtime.name} ({runtime.file})" if runtime.file else runtime.name
    file = runtime.file or "/etc/containerd/config.toml"
    if runtime.problem is not None:
        yield wrong("broken", about, why=runtime.problem, runtime=runtime.name)
        return
    if runtime.cdi is False:
        yield wrong("cdi-off", about, file=file)
    elif runtime.name == CONTAINERD and runtime.cdi is None and not _has_cdi_by_default(runtime.version):
        yield wrong("cdi-not-set", about, version=runtime.version or "unknown", file=file)
    dirs = runtime.spec_dirs or _DEFAULT_DIRS
    if _canonical(cdi_root) not in map(_canonical, dirs):
        yield wrong("other-folders", about, dirs=", ".join(dirs), cdi_root=cdi_root, runtime=runtime.name)
    if runtime.readable_cdi is not None and not reads(runtime.readable_cdi, GROUPS_SINCE):
        yield wrong("old-cdi", about, version=runtime.version, readable=runtime.readable_cdi, groups=GROUPS_SINCE)
    if runtime.default_runtime is not None and runtime.default_runtime.startswith("nvidia"):
        yield wrong("nvidia-by-default", about, default=runtime.default_runtime)


def _has_cdi_by_default(version: str | None) -> bool:
    major = (version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 2


def _canonical(folder: str) -> str:
    """/var/run is /run on every distribution with systemd."""
    path = posixpath.normpath(folder)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


# -- what the plugin keeps on the node


def _cdi_files(node: NodeSeen) -> Judgment:
    if not node.cdi_root_there:
        yield wrong("no-folder", folder=node.cdi_root)
        return ""
    known = {entry.uid for entry in node.journal.entries}
    for file in node.cdi_files:
        if file.problem is not None:
            yield wrong("invalid", f"file {file.name}", why=file.problem)
        elif file.claim_uid not in known and node.journal.problem is None:
            yield wrong("orphan", f"file {file.name}")
    there = {file.claim_uid for file in node.cdi_files}
    for entry in node.journal.entries:
        if entry.prepared and not entry.releasing and entry.boot_id == node.boot_id and entry.uid not in there:
            yield wrong("missing", entry.claim)
    return f"{len(node.cdi_files)} CDI file(s) of this driver, each for a prepared claim"


def _journal(node: NodeSeen) -> Judgment:
    journal, folder = node.journal, node.state_dir
    about = f"file {folder}/claims.journal"
    if journal.problem is not None:
        yield wrong("unreadable", about, why=journal.problem, folder=folder)
        return ""
    if journal.damage:
        yield wrong("damaged", about, count=len(journal.damage), why=journal.damage[0], folder=folder)
    if journal.put_aside:
        yield wrong("put-aside", folder=folder)
    for entry in journal.entries:
        if entry.boot_id != node.boot_id:
            yield wrong("earlier-boot", entry.claim)
    return f"{len(journal.entries)} claim(s) in the journal"


def _sockets(node: NodeSeen) -> Judgment:
    # Sockets of a plugin that was killed stay until the next one starts, whose sockets have other names.
    unused = [socket for socket in node.sockets if socket.answers is False]
    if not node.registry_there:
        yield wrong("no-registry", folder=node.registry)
    elif len(node.sockets) - len(unused) < 2:  # one for the service, one for registration
        for socket in unused:
            yield wrong("nobody-listens", path=socket.path)
        if not unused:
            yield wrong("no-socket")
    return "the plugin listens for the kubelet"


def _xids(node: NodeSeen) -> Judgment:
    harmless = 0
    for xid in node.xids:
        if xid_severity(xid.number) in (None, "Info"):
            harmless += xid.count
        else:
            meaning = xid_condition(xid.number, since="").message.partition(": ")[2]
            facts = {"count": xid.count, "number": xid.number, "meaning": meaning, "pci": xid.pci}
            yield wrong("xid", f"GPU {xid.pci}", **facts)
    return f"no serious Xid since the node booted{f', {harmless} caused by programs' if harmless else ''}"


def _mps(node: NodeSeen) -> Judgment:
    for name in node.mps_left:
        yield wrong("left-over", name=name)
    return "no leftover MPS daemon"


def _disk(node: NodeSeen) -> Judgment:
    if node.free_bytes is None:
        yield wrong("no-folder", folder=node.state_dir)
    elif node.free_bytes < _LEAST_FREE_BYTES:
        yield wrong("full", free=f"{node.free_bytes / 2**20:.1f} MiB", folder=node.state_dir)
    return "the disk has enough space for the journal"


_JUDGES: dict[str, Callable[[NodeSeen], Judgment]] = {
    "node-rights": _rights,
    "node-driver": _driver,
    "node-files": _files,
    "node-gpus": _gpus,
    "node-hook": _hook,
    "node-persistence": _persistence,
    "node-fabric": _fabric,
    "node-mig-manager": _mig_manager,
    "node-imex": _imex,
    "node-runtime": _runtime,
    "node-cdi-files": _cdi_files,
    "node-journal": _journal,
    "node-sockets": _sockets,
    "node-xids": _xids,
    "node-mps": _mps,
    "node-disk": _disk,
}
CHECKS: tuple[Check[NodeSeen], ...] = checks_of(
    Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"), _JUDGES
)
