"""A GPU lent to a virtual machine: taken from the nvidia driver, bound to a VFIO driver, and given back.

Prepare enters here through the port of `kubelet_plugin.prepare.holds`. Each call looks up the GPU's state in sysfs and
takes the steps that are left, so an earlier attempt may have ended after any of them:

    nvidia ── persistence off, no users ── driver_override ── unbind ──► no driver ── bind ──► vfio-pci
    nvidia ◄── bind, NVML sees it, persistence on ── driver_override back ◄── no driver ◄── unbind ── no users

The override is set before the unbinding, because a driver that is loaded meanwhile takes free devices without one. The
other functions of the GPU's board that are in its IOMMU group (audio, USB) follow in the same way.

The previous state is recorded with the intent (`before`). Anything else on this GPU or in its group is not moved: the
hold is refused. Calls block, and some take long: they wait for programs that still have the GPU open, and the kernel
may wait forever in a write to sysfs. Such a write is given up after a while and left to end on its own
(`kubelet_plugin.effects.vfio_driver`); until it ends, nothing else is written for that GPU.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import structlog

from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.effects.vfio_driver import DriverOfNode, PatientWrites
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.sysfs import HostFiles, PciFacts
from kubelet_plugin.hardware.vfio import (
    Console,
    GpuUser,
    KernelModules,
    SysfsWriter,
    VfioNodes,
    companions,
    console_on,
    driver_exists,
    driver_of,
    driver_override,
    has_instances,
    intruders,
    iommu_on,
    is_vfio,
    minor_at,
    node_names,
    this_process,
    users,
    uuid_at,
    vfio_module,
    vfio_nodes,
    virtual_functions,
)
from kubelet_plugin.prepare.holds import GpuIdentity, Made, Records, VfioBinding

_log = structlog.get_logger(__name__)

_HOME = "nvidia"
_POLL_S = 0.2
_NVML_POLL_S = 1.0
"""Each time is a session of NVML that begins."""
_PERSISTENCE_DAEMON = "nvidia-persiste"
"""As the kernel cuts the name of nvidia-persistenced."""


@dataclass(frozen=True, slots=True)
class VfioPatience:
    """How long a call waits for each, in seconds, before the kubelet must try again."""

    users_s: float = 20.0
    """Programs that have the GPU open: a pod that ends, a monitoring agent between two readings."""
    last_users_s: float = 2.0
    """The same once more while NVML waits for us, and with it all that needs it."""
    write_s: float = 30.0
    """The kernel, for one write. Letting go of a GPU takes up to some ten seconds."""
    nodes_s: float = 10.0
    """udev, to make the device nodes."""
    return_s: float = 60.0
    """NVML, to see a GPU that came back; its firmware restarts."""


class VfioBindings:
    """Effect of `VfioBinding`. One object for a node: it knows which writes of its own still hang in the kernel."""

    def __init__(
        self,
        host: HostFiles,
        sysfs: SysfsWriter,
        modules: KernelModules,
        driver: DriverOfNode,
        patience: VfioPatience = VfioPatience(),
    ) -> None:
        self._host = host
        self._modules = modules
        self._driver = driver
        self._patience = patience
        self._sysfs = PatientWrites(sysfs, patience.write_s)

    def before(self, hold: VfioBinding, records: Records) -> Made:
        """The driver, the order about drivers, persistence mode, and the functions that must come along.

        Raises HardwareError that names everything that keeps this GPU from being lent, but for programs that use it.
        """
        gpu = hold.gpu
        pci = self._host.pci(gpu.pci_bus_id)
        self._check(gpu, pci)
        return Made(
            (
                ("companions", _companions_text(companions(self._host, pci))),
                ("override", driver_override(self._host, pci.address)),
                ("persistence", "on" if self._driver.persistence(gpu) else "off"),
                ("was", _HOME),
            )
        )

    def make(self, hold: VfioBinding, records: Records) -> Made:
        """Bind it, or find it bound. Raises HardwareError; what was begun is then for the next attempt, or `undo`."""
        before = records[hold].made
        pci = self._host.pci(hold.gpu.pci_bus_id)
        if not is_vfio(pci.driver):
            if pci.driver is not None:
                self._check(hold.gpu, pci)
                self._release_from_nvidia(hold.gpu, pci)
            self._bind_to_vfio(hold.gpu, pci.address)
        elif self._bound_at_boot(pci):
            raise HardwareError(
                f"it is bound to {pci.driver}, and not by this driver; bind it to {_HOME}, or delete the claim",
                about=str(hold.gpu),
            )
        for address in _companions(before):
            self._lend_companion(hold.gpu, address)
        nodes = self._nodes(hold)
        pci = self._host.pci(hold.gpu.pci_bus_id)
        facts = {"driver": pci.driver or "", "group": str(pci.iommu_group), "node": nodes.node, "api": nodes.api}
        return Made(tuple(sorted({**dict(before.facts), **facts}.items())))

    def undo(self, hold: VfioBinding, records: Records, boot_id: str) -> None:
        """Back to the nvidia driver. Raises HardwareError while a virtual machine has it, or the kernel keeps it.

        A boot gives all GPUs back. A GPU that an administrator bound to another driver meanwhile stays there. If the
        nvidia driver is not loaded, it takes the GPU when it is.
        """
        record, gpu = records[hold], hold.gpu
        pci = self._host.pci(gpu.pci_bus_id)
        if record.made.get("was") is None or record.boot_id != boot_id or pci.vendor is None:
            return
        is_home = self._take_back(gpu, pci.address, record.made.get("override") or "", _HOME)
        for companion, home in _companions(record.made).items():
            self._take_back(gpu, companion, "", home)
        if is_home:
            patience_s = self._patience.return_s if pci.driver != _HOME else 0.0
            self._wait_for_nvml(gpu, patience_s, persistence=record.made.get("persistence") == "on")

    def _bound_at_boot(self, pci: PciFacts) -> bool:
        """By an administrator: there is an order for what we bind, and none for vfio-pci.ids of the command line."""
        return is_vfio(pci.driver) and not driver_override(self._host, pci.address)

    def _check(self, gpu: GpuIdentity, pci: PciFacts) -> None:
        """Raises HardwareError with everything that is in the way of lending a GPU that the nvidia driver has."""
        problems = list(self._obstacles(gpu, pci))
        if problems:
            raise HardwareError("; ".join(problems), about=str(gpu))

    def _obstacles(self, gpu: GpuIdentity, pci: PciFacts) -> list[str]:
        if pci.vendor is None:
            return ["there is no longer a device at this PCI address; see the node's NodeInventory"]
        if pci.driver != _HOME:
            return [_other_driver(pci)]
        uuid = uuid_at(self._host, pci.address)
        if uuid is not None and uuid != gpu.uuid:
            return [f"{uuid} is at this PCI address now; see the node's NodeInventory"]
        problems = []
        if pci.iommu_group is None:
            problems.append(self._no_group())
        if others := intruders(self._host, pci):
            listed = ", ".join(f"{other.address} ({other.driver or 'no driver'})" for other in others)
            problems.append(
                f"IOMMU group {pci.iommu_group} has other devices that the virtual machine would reach: {listed}; turn"
                " on ACS in the firmware, or move the GPU to another slot"
            )
        if count := virtual_functions(self._host, pci.address):
            problems.append(f"{count} virtual functions (vGPUs) exist on it; an administrator must remove them")
        if (console := console_on(self._host, pci.address)) is not None:
            problems.append(_on_console(console))
        minor = minor_at(self._host, pci.address)
        if minor is not None and has_instances(self._host, minor):
            problems.append("it has MIG instances, which would be lost; an administrator must remove them")
        elif self._driver.mig_enabled(gpu):
            problems.append("it is in MIG mode; an administrator must switch it off")
        return problems

    def _no_group(self) -> str:
        if iommu_on(self._host):
            return "the IOMMU does not cover it; see DMAR or AMD-Vi in the kernel log"
        return (
            "the node's IOMMU is off: turn on VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on (amd_iommu"
            " is on by itself)"
        )

    def _release_from_nvidia(self, gpu: GpuIdentity, pci: PciFacts) -> None:
        target = self._vfio_driver(gpu, pci.address)
        self._driver.set_persistence(gpu, on=False)
        nodes = node_names(self._host, pci, minor_at(self._host, pci.address))

        def let_go() -> None:
            self._wait_for_users(gpu, nodes, self._patience.last_users_s)
            self._sysfs.order(gpu, pci.address, "driver_override", target)
            self._sysfs.unbind(gpu, pci.address)

        self._wait_for_users(gpu, nodes, self._patience.users_s, but=this_process(self._host))
        self._driver.without_nvml(let_go)

    def _bind_to_vfio(self, gpu: GpuIdentity, address: str) -> None:
        target = self._vfio_driver(gpu, address)
        if driver_override(self._host, address) != target:
            self._sysfs.order(gpu, address, "driver_override", target)
        self._sysfs.bind(gpu, address, target)
        if (driver := self._host.pci(address).driver) != target:
            raise HardwareError(
                f"{address} could not be bound to {target}: it is bound to {driver or 'no driver'}; search the kernel"
                " log for vfio",
                about=str(gpu),
            )

    def _vfio_driver(self, gpu: GpuIdentity, address: str) -> str:
        """The driver for this function, loaded. Raises HardwareError."""
        module = vfio_module(self._host, address)
        driver = driver_of(self._host, module)
        if driver is None:
            try:
                self._modules.modprobe(module)
            except NodeNotReady as error:
                raise HardwareError(
                    f"the kernel module {module} cannot be loaded: {error.message}; install the package of the node's"
                    " kernel that has it",
                    about=str(gpu),
                ) from error
            driver = driver_of(self._host, module)
        if driver is None:
            raise HardwareError(f"the kernel module {module} is loaded and drives no PCI device", about=str(gpu))
        return driver

    def _lend_companion(self, gpu: GpuIdentity, address: str) -> None:
        driver = self._host.pci(address).driver
        if is_vfio(driver):
            return
        self._sysfs.order(gpu, address, "driver_override", self._vfio_driver(gpu, address))
        if driver is not None:
            self._sysfs.unbind(gpu, address)
        self._bind_to_vfio(gpu, address)

    def _nodes(self, hold: VfioBinding) -> VfioNodes:
        deadline = time.monotonic() + self._patience.nodes_s
        while True:
            pci = self._host.pci(hold.gpu.pci_bus_id)
            nodes = vfio_nodes(self._host, pci, iommufd=hold.iommufd)
            if nodes is not None:
                return nodes
            if time.monotonic() >= deadline:
                raise HardwareError(
                    f"it is bound to {pci.driver}, but there is no /dev/vfio/{pci.iommu_group}; is udev running, and"
                    " the host's /dev mounted into the plugin's pod?",
                    about=str(hold.gpu),
                )
            time.sleep(_POLL_S)

    def _wait_for_users(
        self, gpu: GpuIdentity, nodes: Collection[str], patience_s: float, *, but: int | None = None
    ) -> None:
        """Until no program has one of `nodes` open; `but` is one that is not waited for. Raises HardwareError."""
        deadline = time.monotonic() + patience_s
        while using := [process for process in users(self._host, nodes) if process.pid != but]:
            if time.monotonic() >= deadline:
                raise HardwareError(_in_use(gpu, using), about=str(gpu))
            time.sleep(_POLL_S)

    def _take_back(self, gpu: GpuIdentity, address: str, override: str, home: str) -> bool:
        """Whether the function is with its own driver again: False where it is left alone. Raises HardwareError."""
        pci = self._host.pci(address)
        if (pci.driver not in (None, home) and not is_vfio(pci.driver)) or self._bound_at_boot(pci):
            _log.warning("a lent GPU was given to another driver", gpu=str(gpu), function=address, driver=pci.driver)
            return False
        if is_vfio(pci.driver):
            self._wait_for_users(gpu, node_names(self._host, pci, None), self._patience.users_s)
            self._sysfs.unbind(gpu, address)
        if driver_override(self._host, address) != override:
            self._sysfs.order(gpu, address, "driver_override", override)
        if self._host.pci(address).driver is None and home and driver_exists(self._host, home):
            self._sysfs.bind(gpu, address, home)
        return self._host.pci(address).driver == home

    def _wait_for_nvml(self, gpu: GpuIdentity, patience_s: float, *, persistence: bool) -> None:
        """A GPU that does not come back no longer concerns the claim: the inventory says what is wrong.

        But the driver must restore its persistence mode: HardwareError leaves the hold behind, to be tried again.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                if self._driver.sees(gpu):
                    if persistence:
                        self._driver.set_persistence(gpu, on=True)
                    return
                problem = "NVML does not list it"
            except HardwareError as error:
                problem = str(error)
            if time.monotonic() >= deadline:
                _log.warning("a GPU is back from a virtual machine, but not healthy", gpu=str(gpu), problem=problem)
                if not persistence:
                    return
                raise HardwareError(
                    f"it is back from a virtual machine, and persistence mode cannot be switched on again: {problem}",
                    about=str(gpu),
                    code=NvmlCode.NOT_FOUND,
                )
            time.sleep(_NVML_POLL_S)


def _on_console(console: Console) -> str:
    """Unbinding would wait for the console for ever."""
    shown = f"the node's console is on it ({console.frame_buffer})"
    if console.firmware:
        driver = console.firmware.rpartition(".")[0]
        return (
            f"{shown}, in memory that the firmware chose: boot with video=efifb:off, or until the next boot run"
            f" `echo {console.firmware} > /sys/bus/platform/drivers/{driver}/unbind` on the node"
        )
    return (
        f"{shown}: boot with nvidia-drm.fbdev=0, or until the next boot run"
        f" `echo 0 > /sys/class/vtconsole/{console.vtconsole}/bind` on the node"
    )


def _other_driver(pci: PciFacts) -> str:
    if pci.driver is None:
        return f"it has no driver; an administrator must bind it to {_HOME}"
    return f"it is bound to {pci.driver}, and not by this driver; an administrator must bind it to {_HOME}"


def _in_use(gpu: GpuIdentity, using: Collection[GpuUser]) -> str:
    listed = ", ".join(str(process) for process in sorted(using))
    advice = "it is bound as soon as they end"
    if any(process.command == _PERSISTENCE_DAEMON for process in using):
        advice = (
            f"nvidia-persistenced still has it open: run `nvidia-smi -i {gpu.pci_bus_id} -pm 0` on the node, or stop it"
            " with `systemctl stop nvidia-persistenced`"
        )
    return f"it is still in use by {listed}; {advice}"


def _companions_text(pci_factses: Collection[PciFacts]) -> str:
    """`0000:1b:00.1=snd_hda_intel,...`; nothing after `=` for one without a driver."""
    return ",".join(f"{pci.address}={pci.driver or ''}" for pci in pci_factses)


def _companions(made: Made) -> Mapping[str, str]:
    """Addresses to the drivers that they had; empty for none."""
    pairs = (text.partition("=") for text in (made.get("companions") or "").split(",") if text)
    return {address: driver for address, _, driver in pairs}
