"""The simulated kernel binds and unbinds as a real one does: what it takes, what it refuses, and for whom it waits."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from support.mishaps import end_program, load_driver, open_gpu, set_persistence, unload_driver

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.vfio import SimulatedKernel


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path, "t4")


@pytest.fixture
def kernel(host: SimulatedHost) -> SimulatedKernel:
    kernel = SimulatedKernel(host.root)
    kernel.modprobe("vfio_pci")
    for index in range(len(host.state.gpus)):
        set_persistence(kernel, index, on=False)
    return kernel


@pytest.fixture
def address(host: SimulatedHost) -> str:
    return host.state.gpus[0].address


def override(kernel: SimulatedKernel, address: str, driver: str) -> None:
    kernel.write(f"/sys/bus/pci/devices/{address}/driver_override", f"{driver}\n")


def unbind(kernel: SimulatedKernel, address: str) -> None:
    kernel.write(f"/sys/bus/pci/devices/{address}/driver/unbind", f"{address}\n")


def bind(kernel: SimulatedKernel, address: str, driver: str) -> None:
    kernel.write(f"/sys/bus/pci/drivers/{driver}/bind", f"{address}\n")


def refused(code: int, act: Callable[[], None]) -> None:
    with pytest.raises(OSError) as caught:
        act()
    assert caught.value.errno == code


def test_a_gpu_goes_over_and_back(host: SimulatedHost, kernel: SimulatedKernel, address: str) -> None:
    files = HostFiles(host.root)
    override(kernel, address, "vfio-pci")
    assert kernel.driver(address) == "nvidia"
    unbind(kernel, address)
    assert kernel.driver(address) is None
    bind(kernel, address, "vfio-pci")
    group = files.pci(address).iommu_group
    assert (kernel.driver(address), files.pci(address).drm_nodes) == ("vfio-pci", ())
    assert files.device_node(f"/dev/vfio/{group}") is not None
    assert files.names(f"/sys/bus/pci/devices/{address}/vfio-dev") == ["vfio0"]
    override(kernel, address, "")
    unbind(kernel, address)
    assert files.device_node(f"/dev/vfio/{group}") is None
    bind(kernel, address, "nvidia")
    assert kernel.driver(address) == "nvidia"
    assert len(files.pci(address).drm_nodes) == 2


def test_nvml_loses_the_gpu_and_a_new_session_does_not_know_it(
    host: SimulatedHost, kernel: SimulatedKernel, address: str
) -> None:
    before = SimulatedNvml(host.root)
    before.nvmlInitWithFlags(0)
    handle = before.nvmlDeviceGetHandleByIndex(0)
    unbind(kernel, address)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        before.nvmlDeviceGetUUID(handle)
    after = SimulatedNvml(host.root)
    after.nvmlInitWithFlags(0)
    assert after.nvmlDeviceGetCount() == before.nvmlDeviceGetCount() - 1


def test_a_driver_takes_only_what_is_meant_for_it(kernel: SimulatedKernel, address: str) -> None:
    unbind(kernel, address)
    refused(errno.ENODEV, lambda: bind(kernel, address, "vfio-pci"))
    override(kernel, address, "vfio-pci")
    refused(errno.ENODEV, lambda: bind(kernel, address, "nvidia"))


def test_what_is_bound_is_not_bound_again(kernel: SimulatedKernel, address: str) -> None:
    refused(errno.EBUSY, lambda: bind(kernel, address, "nvidia"))


def test_what_has_no_driver_cannot_be_unbound(kernel: SimulatedKernel, address: str) -> None:
    unbind(kernel, address)
    refused(errno.ENOENT, lambda: unbind(kernel, address))


def test_a_driver_that_is_not_loaded_has_no_folder(host: SimulatedHost, address: str) -> None:
    refused(errno.ENOENT, lambda: bind(SimulatedKernel(host.root), address, "vfio-pci"))


def test_other_files_are_not_for_writing(kernel: SimulatedKernel, address: str) -> None:
    refused(errno.EACCES, lambda: kernel.write(f"/sys/bus/pci/devices/{address}/vendor", "0x10de"))
    refused(errno.ENOENT, lambda: kernel.write(f"/sys/bus/pci/devices/{address}/remoove", "1"))


def test_a_module_that_this_kernel_does_not_have_is_not_loaded(kernel: SimulatedKernel) -> None:
    with pytest.raises(NodeNotReady, match="not found"):
        kernel.modprobe("nvgrace_gpu_vfio_pci")


def test_the_kernel_waits_for_the_last_user(host: SimulatedHost, kernel: SimulatedKernel, address: str) -> None:
    open_gpu(kernel, 0, 99, "python3")
    unbinding = threading.Thread(target=unbind, args=(SimulatedKernel(host.root), address))
    unbinding.start()
    unbinding.join(0.2)
    assert unbinding.is_alive()
    assert kernel.driver(address) == "nvidia"
    end_program(kernel, 99)
    unbinding.join(10)
    assert kernel.driver(address) is None


def test_the_persistence_daemon_is_a_user(host: SimulatedHost, kernel: SimulatedKernel, address: str) -> None:
    set_persistence(kernel, 0, on=True)
    unbinding = threading.Thread(target=unbind, args=(SimulatedKernel(host.root), address))
    unbinding.start()
    unbinding.join(0.2)
    assert unbinding.is_alive()
    set_persistence(kernel, 0, on=False)
    unbinding.join(10)
    assert kernel.driver(address) is None


def test_a_boot_binds_everything_as_it_was(host: SimulatedHost, kernel: SimulatedKernel, address: str) -> None:
    override(kernel, address, "vfio-pci")
    unbind(kernel, address)
    bind(kernel, address, "vfio-pci")
    host.reboot()
    assert kernel.driver(address) == "nvidia"
    assert HostFiles(host.root).read_text(f"/sys/bus/pci/devices/{address}/driver_override") == "(null)"
    refused(errno.ENOENT, lambda: kernel.write("/sys/bus/pci/drivers/vfio-pci/bind", address))


def test_a_driver_that_is_loaded_takes_what_is_free_and_not_meant_for_another(
    host: SimulatedHost, kernel: SimulatedKernel
) -> None:
    free, meant, lent = (gpu.address for gpu in host.state.gpus[:3])
    for address in (free, meant, lent):
        unbind(kernel, address)
    for address in (meant, lent):
        override(kernel, address, "vfio-pci")
    bind(kernel, lent, "vfio-pci")
    unload_driver(host)
    assert kernel.driver(lent) == "vfio-pci"
    load_driver(host)
    assert [kernel.driver(address) for address in (free, meant, lent)] == ["nvidia", None, "vfio-pci"]
