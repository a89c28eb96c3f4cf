"""The checks of a node, from what was seen of it. Pure; `dra_driver.doctor.findings` says how checks are made."""

from collections.abc import Iterator

from dra_driver.devices.health import xid_condition, xid_severity
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, listed, ok
from kubelet_plugin.doctor.runtime_checks import HOOK, RUNTIME
from kubelet_plugin.doctor.seen import GpuSeen, NodeSeen

_LEAST_FREE_BYTES = 16 * 2**20

_NO_DRIVER = Trouble(
    "no-driver",
    Verdict.PROBLEM,
    "NVML does not work: {why}",
    "follow the advice in the message; `nvidia-smi` must work on this node. If the driver runs in a container,"
    " wait for that container; if the driver is in an unusual folder, set `kubeletPlugin.driverRoot`",
)
_NOUVEAU = Trouble(
    "nouveau",
    Verdict.PROBLEM,
    "the kernel module nouveau is loaded and prevents NVIDIA's driver from using the GPUs",
    "write `blacklist nouveau` and `options nouveau modeset=0` into /etc/modprobe.d/nouveau.conf, rebuild the"
    " initramfs, and reboot",
)
_MISMATCH = Trouble(
    "versions",
    Verdict.PROBLEM,
    "the loaded kernel module has version {loaded}, but the libraries in {root} have version {libraries}",
    "drain the node and reboot it: the driver was upgraded while the old module was loaded",
)


def _driver(node: NodeSeen) -> Iterator[Diagnosis]:
    fine = True
    if node.nouveau:
        fine = False
        yield _NOUVEAU.at()
    if node.driver_problem is not None:
        fine = False
        yield _NO_DRIVER.at(why=node.driver_problem)
    if node.kernel_module and node.library_version and node.kernel_module != node.library_version:
        fine = False
        yield _MISMATCH.at(loaded=node.kernel_module, root=node.driver_root, libraries=node.library_version)
    if fine:
        yield ok(f"NVIDIA driver {node.driver_version} in {node.driver_root}")


_INCOMPLETE = Trouble(
    "incomplete",
    Verdict.PROBLEM,
    "no container on this node can use a GPU: {why}",
    "follow the advice in the message, then run dractl doctor --node again",
)
_NODE_MISSING = Trouble(
    "gpu",
    Verdict.PROBLEM,
    "no container can use it: {why}",
    "follow the advice in the message, then run dractl doctor --node again",
)


def _device_nodes(node: NodeSeen) -> Iterator[Diagnosis]:
    if node.driver_problem is not None:
        yield ok("not checked: NVML does not work")
        return
    if node.container_problem is not None:
        yield _INCOMPLETE.at(why=node.container_problem)
    without = [gpu for gpu in node.gpus if gpu.missing is not None]
    for gpu in without:
        yield _NODE_MISSING.at(_about(gpu), why=gpu.missing)
    if node.container_problem is None and not without:
        yield ok(f"the driver's files and the device nodes of {len(node.gpus)} GPUs exist")


def _about(gpu: GpuSeen) -> str:
    return f"GPU {gpu.name} ({gpu.pci})"


_GPU_PROBLEM = Trouble(
    "not-offered",
    Verdict.PROBLEM,
    "{reason}: {message}",
    "search the kernel log: dmesg | grep -i -e nvrm -e xid; then reset the GPU (dractl gpus release; nvidia-smi"
    " --gpu-reset; dractl gpus resume) or reboot the node",
)


def _gpus(node: NodeSeen) -> Iterator[Diagnosis]:
    for problem in node.problems:
        yield _GPU_PROBLEM.at(problem.subject, reason=problem.reason, message=problem.message)
    if not node.problems:
        yield ok(f"{len(node.gpus)} GPUs respond")


_NOT_PERSISTENT = Trouble(
    "off",
    Verdict.WARNING,
    "nvidia-persistenced is not running: unless persistence mode is on, the driver resets time slices and compute"
    " modes whenever no program uses a GPU, and programs start seconds slower",
    "systemctl enable --now nvidia-persistenced",
)


def _persistence(node: NodeSeen) -> Iterator[Diagnosis]:
    if node.persistenced or not node.gpus:
        yield ok("nvidia-persistenced is running" if node.persistenced else "no GPU that needs nvidia-persistenced")
    else:
        yield _NOT_PERSISTENT.at()


_NOT_IN_FABRIC = Trouble(
    "not-registered",
    Verdict.PROBLEM,
    "is not registered with its NVLink fabric: state {state}, status {status}",
    "run systemctl status nvidia-fabricmanager and read /var/log/fabricmanager.log (on GB200 and similar: the"
    " fabric manager of the switches, and nvidia-imex); driver and fabric manager must have the same version",
)
_NO_MANAGER = Trouble(
    "no-fabric-manager",
    Verdict.WARNING,
    "{gpus} are connected by NVSwitches, but no fabric manager is running: CUDA may not start on them",
    "systemctl enable --now nvidia-fabricmanager, in the version of the driver",
)


def _fabric(node: NodeSeen) -> Iterator[Diagnosis]:
    outside = [
        gpu
        for gpu in node.gpus
        if gpu.fabric_state is not None and (gpu.fabric_state != "Completed" or gpu.fabric_status)
    ]
    for gpu in outside:
        yield _NOT_IN_FABRIC.at(_about(gpu), state=gpu.fabric_state, status=gpu.fabric_status)
    unknown = [gpu.name for gpu in node.gpus if gpu.switched and gpu.fabric_state is None]
    if unknown and not node.fabric_manager:
        yield _NO_MANAGER.at(gpus=listed(unknown))
    elif not outside:
        yield ok("NVLink fabric is complete")


_MIG_MANAGER = Trouble(
    "enabled",
    Verdict.WARNING,
    "nvidia-mig-manager.service applies its own MIG layout when the node boots, and destroys this driver's partitions",
    "if the policy has `mode: Dynamic` for this node: systemctl disable --now nvidia-mig-manager",
)


def _mig_manager(node: NodeSeen) -> Iterator[Diagnosis]:
    yield _MIG_MANAGER.at() if node.mig_manager else ok("no MIG manager is enabled on this node")


_IMEX_RUNS = Trouble(
    "runs",
    Verdict.WARNING,
    "{daemons} manages the NVLink fabric of this node: the IMEX daemons of ComputeDomains cannot start",
    "systemctl disable --now nvidia-imex (if it runs in a pod: uninstall the other driver); or let ComputeDomains"
    " use it with feature gate HostManagedIMEXDaemon",
)
_IMEX_ENABLED = Trouble(
    "enabled",
    Verdict.WARNING,
    "nvidia-imex.service starts an IMEX daemon when the node boots: the IMEX daemons of ComputeDomains cannot start",
    "systemctl disable nvidia-imex; or let ComputeDomains use it with feature gate HostManagedIMEXDaemon",
)


def _imex(node: NodeSeen) -> Iterator[Diagnosis]:
    if node.imex_daemons:
        yield _IMEX_RUNS.at(daemons=listed(node.imex_daemons))
    elif node.imex_unit:
        yield _IMEX_ENABLED.at()
    else:
        yield ok("no IMEX daemon except those of ComputeDomains")


_NO_FOLDER = Trouble(
    "no-folder",
    Verdict.PROBLEM,
    "folder {folder} does not exist: no claim can be prepared",
    "mkdir -p {folder}; or set `kubeletPlugin.cdiRoot` in the chart's values",
)
_BROKEN = Trouble(
    "invalid",
    Verdict.PROBLEM,
    "{why}: containers of its claim do not start",
    "restart the plugin on this node, which writes the file again; or delete the pods of the claim",
)
_ORPHAN = Trouble(
    "orphan",
    Verdict.WARNING,
    "belongs to no claim that is prepared on this node",
    "restart the plugin on this node: it removes files without a claim",
)
_FILE_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    "is prepared, but its CDI file is missing: its containers cannot restart",
    "restart the plugin on this node: it writes the file again if the claim is still allocated",
)


def _cdi(node: NodeSeen) -> Iterator[Diagnosis]:
    if not node.cdi_root_there:
        yield _NO_FOLDER.at(folder=node.cdi_root)
        return
    fine = True
    known = {entry_seen.uid for entry_seen in node.journal.entries}
    for file in node.cdi_files:
        about = f"file {file.name}"
        if file.problem is not None:
            fine = False
            yield _BROKEN.at(about, why=file.problem)
        elif file.claim_uid not in known and node.journal.problem is None:
            fine = False
            yield _ORPHAN.at(about)
    there = {file.claim_uid for file in node.cdi_files}
    for entry in node.journal.entries:
        if entry.prepared and not entry.releasing and entry.boot_id == node.boot_id and entry.uid not in there:
            fine = False
            yield _FILE_MISSING.at(entry.claim)
    if fine:
        yield ok(f"{len(node.cdi_files)} CDI file(s) of this driver, each for a prepared claim")


_UNREADABLE = Trouble(
    "unreadable",
    Verdict.PROBLEM,
    "{why}",
    "install the release again that wrote the file; or, if no pod on the node uses a GPU, move"
    " {folder}/claims.journal to another folder and restart the plugin",
)
_DAMAGED = Trouble(
    "damaged",
    Verdict.WARNING,
    "{count} line(s) are damaged: {why}",
    "the plugin moves them to claims.damaged when it starts; check the disk of {folder} for errors",
)
_PUT_ASIDE = Trouble(
    "put-aside",
    Verdict.WARNING,
    "the plugin has moved damaged lines of the journal to {folder}/claims.damaged",
    "check the disk for errors, then delete that file",
)
_EARLIER_BOOT = Trouble(
    "earlier-boot",
    Verdict.WARNING,
    "was prepared before the last reboot, and has not been prepared again",
    "after its pods are gone, the plugin removes it; if it stays, read the plugin's log",
)


def _journal(node: NodeSeen) -> Iterator[Diagnosis]:
    journal, folder = node.journal, node.state_dir
    if journal.problem is not None:
        yield _UNREADABLE.at(f"file {folder}/claims.journal", why=journal.problem, folder=folder)
        return
    fine = not journal.damage and not journal.put_aside
    if journal.damage:
        about = f"file {folder}/claims.journal"
        yield _DAMAGED.at(about, count=len(journal.damage), why=journal.damage[0], folder=folder)
    if journal.put_aside:
        yield _PUT_ASIDE.at(folder=folder)
    for entry in journal.entries:
        if entry.boot_id != node.boot_id:
            fine = False
            yield _EARLIER_BOOT.at(entry.claim)
    if fine:
        yield ok(f"{len(journal.entries)} claim(s) in the journal")


_NO_REGISTRY = Trouble(
    "no-registry",
    Verdict.PROBLEM,
    "folder {folder} does not exist: this is not the kubelet's root folder, or the kubelet has never run",
    "set `kubeletPlugin.kubeletRoot` to the kubelet's --root-dir (k0s: /var/lib/k0s/kubelet, microk8s:"
    " /var/snap/microk8s/common/var/lib/kubelet)",
)
_NO_SOCKET = Trouble(
    "no-socket",
    Verdict.PROBLEM,
    "the plugin has no socket on this node: it is not running",
    "find its pod on this node with kubectl -n NAMESPACE get pods -o wide, and read in its log why it does not serve",
)
_DEAF = Trouble(
    "nobody-listens",
    Verdict.PROBLEM,
    "no process listens on {path}",
    "restart the plugin's pod on this node: an earlier plugin process left the socket behind",
)


def _sockets(node: NodeSeen) -> Iterator[Diagnosis]:
    if not node.registry_there:
        yield _NO_REGISTRY.at(folder=node.registry)
        return
    if not node.sockets:
        yield _NO_SOCKET.at()
        return
    answering = [socket_seen for socket_seen in node.sockets if socket_seen.answers is not False]
    # After a plugin that was killed its sockets stay until the next one starts, whose own have other names.
    if len(answering) < 2:  # one for the service, one for registration
        for socket in node.sockets:
            if socket.answers is False:
                yield _DEAF.at(path=socket.path)
        if not any(socket_seen.answers is False for socket_seen in node.sockets):
            yield _NO_SOCKET.at()
    else:
        yield ok("the plugin listens for the kubelet")


_XIDS = Trouble(
    "xid",
    Verdict.WARNING,
    "Xid {number} occurred {count} times since the node booted: {meaning}",
    "look up the Xid in NVIDIA's Xid catalog; reset the GPU (dractl gpus release; nvidia-smi --gpu-reset -i {pci};"
    " dractl gpus resume); if the Xid returns, have the GPU serviced",
)


def _xids(node: NodeSeen) -> Iterator[Diagnosis]:
    serious = [xid for xid in node.xids if xid_severity(xid.number) not in (None, "Info")]
    for xid_seen in serious:
        meaning = xid_condition(xid_seen.number, since="").message.partition(": ")[2]
        yield _XIDS.at(
            f"GPU {xid_seen.pci}", count=xid_seen.count, number=xid_seen.number, meaning=meaning, pci=xid_seen.pci
        )
    if not serious:
        others = sum(xid.count for xid in node.xids)
        yield ok(f"no serious Xid since the node booted{f', {others} caused by programs' if others else ''}")


_DAEMON_LEFT = Trouble(
    "left-over",
    Verdict.WARNING,
    "MPS daemon {name} belongs to no claim that is prepared on this node",
    "restart the plugin on this node: it stops daemons without a claim",
)


def _mps(node: NodeSeen) -> Iterator[Diagnosis]:
    for name in node.mps_left:
        yield _DAEMON_LEFT.at(name=name)
    if not node.mps_left:
        yield ok("no leftover MPS daemon")


_DISK_FULL = Trouble(
    "full",
    Verdict.PROBLEM,
    "the disk of {folder} has only {free} free: the journal cannot be written, so no claim can be prepared",
    "free space on that disk, for example unused images and logs: crictl rmi --prune, journalctl --vacuum-size=500M",
)
_NO_STATE = Trouble(
    "no-folder",
    Verdict.WARNING,
    "folder {folder} does not exist: the plugin has never run on this node, or it uses another folder",
    "run this command with the --kubelet-root and --driver that the plugin uses: `kubeletPlugin.kubeletRoot` and"
    " `driverName`",
)


def _disk(node: NodeSeen) -> Iterator[Diagnosis]:
    if node.free_bytes is None:
        yield _NO_STATE.at(folder=node.state_dir)
    elif node.free_bytes < _LEAST_FREE_BYTES:
        yield _DISK_FULL.at(free=f"{node.free_bytes / 2**20:.1f} MiB", folder=node.state_dir)
    else:
        yield ok("the disk has enough space for the journal")


_NOT_ROOT = Trouble(
    "not-root",
    Verdict.UNKNOWN,
    "this command does not run as root: device nodes, sockets, the journal and the kernel log may wrongly appear"
    " to be missing",
    "sudo dractl doctor --node; or in the plugin's pod: kubectl exec … -- dractl doctor --node",
)


def _rights(node: NodeSeen) -> Iterator[Diagnosis]:
    yield ok("running as root") if node.root else _NOT_ROOT.at()


CHECKS: tuple[Check[NodeSeen], ...] = (
    Check("node-rights", "whether this command may read everything.", _rights, (_NOT_ROOT,)),
    Check(
        "node-driver",
        "whether NVML works, and kernel module and libraries have the same version.",
        _driver,
        (_NO_DRIVER, _NOUVEAU, _MISMATCH),
    ),
    Check(
        "node-files",
        "whether the driver's files and device nodes that containers need exist.",
        _device_nodes,
        (_INCOMPLETE, _NODE_MISSING),
    ),
    Check("node-gpus", "whether every GPU on the PCI bus responds.", _gpus, (_GPU_PROBLEM,)),
    HOOK,
    Check("node-persistence", "whether nvidia-persistenced is running.", _persistence, (_NOT_PERSISTENT,)),
    Check(
        "node-fabric",
        "whether GPUs connected by NVSwitches are registered with their fabric.",
        _fabric,
        (_NOT_IN_FABRIC, _NO_MANAGER),
    ),
    Check("node-mig-manager", "whether a MIG manager of the host changes MIG at boot.", _mig_manager, (_MIG_MANAGER,)),
    Check("node-imex", "whether the node runs its own IMEX daemon.", _imex, (_IMEX_RUNS, _IMEX_ENABLED)),
    RUNTIME,
    Check(
        "node-cdi-files",
        "whether each prepared claim has its CDI file, and each CDI file of this driver has a claim.",
        _cdi,
        (_NO_FOLDER, _BROKEN, _ORPHAN, _FILE_MISSING),
        ("journal",),
    ),
    Check(
        "node-journal",
        "whether the journal of prepared claims is readable, and its claims were prepared since the last boot.",
        _journal,
        (_UNREADABLE, _DAMAGED, _PUT_ASIDE, _EARLIER_BOOT),
        ("journal",),
    ),
    Check(
        "node-sockets",
        "whether the plugin listens where the kubelet looks for it.",
        _sockets,
        (_NO_REGISTRY, _NO_SOCKET, _DEAF),
        ("sockets",),
    ),
    Check("node-xids", "Xids in the kernel log since the last boot.", _xids, (_XIDS,), ("xids",)),
    Check("node-mps", "MPS daemons that belong to no claim.", _mps, (_DAEMON_LEFT,), ("mps_left",)),
    Check("node-disk", "disk space for the journal.", _disk, (_DISK_FULL, _NO_STATE), ("free_bytes",)),
)
"""In the order in which they are answered."""
