"""What happens to a simulated node in tests alone: calls that fail, hang or kill, odd facts, and other machines.

What also demos let happen are methods of `SimulatedHost`.
"""

import shutil
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation import driver_files, kernel_files, partitions, vfio
from kubelet_plugin.simulation.fabric import fabric_manager_of, restarted
from kubelet_plugin.simulation.host import SimulatedHost, check_may_change
from kubelet_plugin.simulation.state import Mishap, NodeState, SimulatedFabric
from kubelet_plugin.simulation.tree import device_folders, link, path, pci_folder, write
from kubelet_plugin.simulation.vfio import SimulatedKernel


def fail_call(host: SimulatedHost, index: int, function: str, code: int, *, times: int | None = None) -> None:
    """One NVML function answers `code` about one GPU, `times` times or from now on; 0: it works again."""
    _mishap(host, index, function, code=code, times=times)


def slow_call(host: SimulatedHost, index: int, function: str, delay_s: float, *, times: int | None = None) -> None:
    """One NVML function takes `delay_s` about one GPU, `times` times or from now on; 0 takes none."""
    _mishap(host, index, function, delay_s=delay_s, times=times)


def crash_in(host: SimulatedHost, index: int, function: str, when: Literal["before", "after"] = "after") -> None:
    """The next process that calls this function about this GPU dies, before or after the function's work."""
    _mishap(host, index, function, crash=when, times=1)


def _mishap(host: SimulatedHost, index: int, function: str, **changes: Any) -> None:
    with host.edit() as state:
        gpu = state.gpus[index]
        mishap = gpu.mishaps.get(function, Mishap()).model_copy(update=changes)
        others = {name: other for name, other in gpu.mishaps.items() if name != function}
        gpu.mishaps = others if mishap == Mishap() else others | {function: mishap}


def fabric_mishap(host: SimulatedHost, function: str, **changes: Any) -> None:
    """What callers of a function of libnvfm meet: fields of `Mishap`; without any, it works again."""
    with host.edit() as state:
        manager = fabric_manager_of(state)
        others = {name: other for name, other in manager.mishaps.items() if name != function}
        manager.mishaps = others | {function: Mishap(**changes)} if changes else others


# -- facts


def set_links_down(host: SimulatedHost, index: int, *links: int) -> None:
    """These NVLinks of a GPU are inactive and all others are active."""
    with host.edit() as state:
        state.gpus[index].links_down = list(links)


def set_fabric(host: SimulatedHost, index: int, fabric: SimulatedFabric | None) -> None:
    """None: NVML answers NOT_SUPPORTED."""
    with host.edit() as state:
        state.gpus[index].fabric = fabric


def set_privileged(host: SimulatedHost, *, privileged: bool) -> None:
    """Whether callers of NVML are root."""
    with host.edit() as state:
        state.driver.privileged = privileged


def start_fabric_manager(
    host: SimulatedHost, mode: Literal[0, 1, 2] = 1, *, restart: Literal[0, 1] = 0, ready: bool = True
) -> None:
    """Start Fabric Manager, or start it again: with FABRIC_MODE_RESTART=0 no partition is active then, with 1 all
    stay as they are and it waits for their list. Raises KeyError on a node without NVSwitches of its own."""
    with host.edit() as state:
        restarted(fabric_manager_of(state), mode, restart)
        fabric_manager_of(state).ready = ready and not restart


def stop_fabric_manager(host: SimulatedHost) -> None:
    """Its partitions stay as they are."""
    with host.edit() as state:
        fabric_manager_of(state).running = False


def set_partition(host: SimulatedHost, partition: int, *, active: bool) -> None:
    """An administrator activates or deactivates it with a tool of NVIDIA's."""
    with host.edit() as state:
        changed = next(known for known in fabric_manager_of(state).partitions if known.id == partition)
        changed.active = active


def active_partitions(host: SimulatedHost) -> list[int]:
    return [partition.id for partition in fabric_manager_of(host.state).partitions if partition.active]


def run_persistenced(host: SimulatedHost, *, running: bool) -> None:
    """Start nvidia-persistenced, which opens all GPUs of the driver, or stop it."""
    with host.edit() as state:
        state.driver.daemon, state.driver.daemon_outdated = running, False
        for gpu in state.gpus:
            gpu.persistenced = running and gpu.bound_to == "nvidia"


def reboot_renumbered(host: SimulatedHost) -> None:
    """A boot after which GPUs have other minors and another enumeration order than before."""
    with host.edit() as state:
        minors = [gpu.minor for gpu in state.gpus]
        for gpu, minor in zip(state.gpus, reversed(minors), strict=True):
            gpu.minor = minor
        state.gpus = state.gpus[1:] + state.gpus[:1]
    host.reboot()


# -- the driver


def bind_gpu(host: SimulatedHost, index: int, driver: str | None) -> None:
    """Give a GPU to another kernel driver (`vfio-pci`), to none, or back to `nvidia`."""
    with host.edit() as state:
        check_may_change(state)
        gpu = state.gpus[index]
        if driver != gpu.bound_to:
            partitions.release(gpu, state.model.architecture)
        gpu.bound_to = driver
        place = pci_folder(gpu) / "driver"
        host.path(place).unlink(missing_ok=True)
        if driver is not None:
            host.path(f"/sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            link(host.root, place, PurePosixPath("/sys/bus/pci/drivers") / driver)


def unload_driver(host: SimulatedHost) -> None:
    """Remove the kernel module: no device nodes, no /proc/driver/nvidia; NVML answers DRIVER_NOT_LOADED."""
    with host.edit() as state:
        _unload(host.root, state)


def load_driver(host: SimulatedHost, version: str | None = None, *, libraries: bool = True) -> None:
    """Load the kernel module, of `version` when given. Without `libraries` the old ones stay: a mismatch."""
    with host.edit() as state:
        check_may_change(state)
        if version is not None and libraries:
            _remove_driver_files(host.root, state)
        if state.driver.loaded:
            _unload(host.root, state)
        state.driver.version = version or state.driver.version
        state.driver.loaded = True
        state.driver.session += 1
        _probe(host.root, state)
        kernel_files.write_kernel_files(host.root, state)
        if libraries:
            driver_files.write_driver_files(host.root, state)


def remove_driver_files(host: SimulatedHost) -> None:
    """The driver's libraries, programs and configuration go; the kernel module stays loaded."""
    check_may_change(host.state)
    _remove_driver_files(host.root, host.state)


def _remove_driver_files(root: Path, state: NodeState) -> None:
    for host_path, _ in driver_files.files_of_driver(state):
        path(root, host_path).unlink(missing_ok=True)


def _probe(root: Path, state: NodeState) -> None:
    """The GPUs that have no driver, and are not meant for another one, become the NVIDIA module's."""
    for gpu in state.gpus:
        override = HostFiles(root).read_text(str(pci_folder(gpu) / "driver_override"))
        if gpu.bound_to is None and override in (None, "", "(null)", "nvidia"):
            gpu.bound_to = "nvidia"


def _unload(root: Path, state: NodeState) -> None:
    check_may_change(state)
    state.driver.loaded = False
    for gpu in state.gpus:
        partitions.release(gpu, state.model.architecture)
        gpu.clients = []
        partitions.forget_errors(gpu)
    for folder in ("driver/nvidia", "driver/nvidia-caps", "driver/nvidia-nvswitch"):
        shutil.rmtree(path(root, f"/proc/{folder}"), ignore_errors=True)
    kernel_files.write_devices(root, loaded=False)
    shutil.rmtree(path(root, "/sys/bus/pci/drivers/nvidia"), ignore_errors=True)
    vfio.write_processes(root, state)
    for gpu in state.gpus:
        if gpu.bound_to == "nvidia":
            (path(root, pci_folder(gpu)) / "driver").unlink(missing_ok=True)
        shutil.rmtree(path(root, pci_folder(gpu)) / "drm", ignore_errors=True)
    for host_path, _ in kernel_files.device_nodes(state):
        path(root, host_path).unlink(missing_ok=True)
    for devices in device_folders(state):
        shutil.rmtree(path(root, devices / "nvidia-caps"), ignore_errors=True)


# -- the kernel


def set_persistence(kernel: SimulatedKernel, index: int, *, on: bool) -> None:
    """What `nvidia-smi -pm` does: the daemon opens the GPU, or lets it go."""
    with SimulatedHost(kernel.root).edit() as state:
        state.gpus[index].persistenced = on


def open_gpu(kernel: SimulatedKernel, index: int, pid: int, command: str) -> None:
    """A program of the node that has a GPU open from now on."""
    SimulatedHost(kernel.root).attach_client(index, pid=pid, name=command)


def open_vfio(kernel: SimulatedKernel, name: str, pid: int, command: str) -> None:
    """A virtual machine's process that has `/dev/vfio/<name>` open from now on."""
    vfio.write_process(kernel.root, pid, command, [f"/dev/vfio/{name}"])


def end_program(kernel: SimulatedKernel, pid: int) -> None:
    """It ends, and everything that it had open is closed."""
    SimulatedHost(kernel.root).detach_client(pid)
    shutil.rmtree(path(kernel.root, f"/proc/{pid}"), ignore_errors=True)


def configure(kernel: SimulatedKernel, **passthrough: Any) -> None:
    """Another machine: fields of `PassthroughState`. Bindings stay as they are."""
    with SimulatedHost(kernel.root).edit() as state:
        for name, value in passthrough.items():
            setattr(state.passthrough, name, value)
        shutil.rmtree(path(kernel.root, "/sys/kernel/iommu_groups"), ignore_errors=True)
        path(kernel.root, "/dev/iommu").unlink(missing_ok=True)
        vfio.write_machine(kernel.root, state)


def show_console(kernel: SimulatedKernel, address: str, *, bound: bool = True) -> None:
    """The node's console is on a GPU, by a frame buffer of the nvidia driver (nvidia-drm.fbdev=1)."""
    folder = HostFiles(kernel.root).resolve(f"/sys/bus/pci/devices/{address}")
    assert folder is not None
    link(kernel.root, vfio.GRAPHICS / "fb0/device", folder)
    write(kernel.root, vfio.VTCONSOLE / "name", "(M) frame buffer device\n")
    write(kernel.root, vfio.VTCONSOLE / "bind", f"{int(bound)}\n")
