"""A simulated node looks like a real one, keeps its state in its tree, and tells one story through NVML and files."""

import inspect
import shutil
import stat
from pathlib import Path, PurePosixPath
from threading import Thread

import pynvml
import pytest
from pydantic import ValidationError
from support.mishaps import load_driver, reboot_renumbered, unload_driver
from support.nodes import Node
from support.rows import rows, slow_but

from dra_driver.errors import InvalidInput
from kubelet_plugin.facts.container_files import container_files_of
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.hardware.sysfs import HostFiles, nvml_bus_id
from kubelet_plugin.simulation.driver_files import PLACES
from kubelet_plugin.simulation.host import SimulatedHost, create_host, open_simulated
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.profiles import load_profile, profile_names
from kubelet_plugin.simulation.state import Layout

WANTED_PROFILES = {
    "v100": 8, "t4": 4, "a10": 4, "l4": 4, "l40s": 8, "rtx-6000-ada": 8, "a30": 4, "a100-pcie-40": 4, "a100-pcie-80": 4,
    "dgx-a100-40": 8, "dgx-a100-80": 8, "dgx-h100": 8, "h100-nvl": 8, "hgx-h200": 8, "h200-nvl": 4, "gh200": 1,
    "dgx-b200": 8, "hgx-b300": 8, "gb200": 4, "gb300": 4, "rtx-pro-6000": 8, "gb10": 1,
}  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path, "dgx-a100-40")


def session(host: SimulatedHost) -> SimulatedNvml:
    nvml = SimulatedNvml(host.root)
    nvml.nvmlInitWithFlags(0)
    return nvml


class TestProfiles:
    def test_there_is_one_for_every_kind_of_node(self) -> None:
        assert {name: len(load_profile(name).gpus) for name in profile_names()} == WANTED_PROFILES

    def test_an_unknown_one_is_answered_with_the_names_there_are(self) -> None:
        with pytest.raises(InvalidInput, match="dgx-h100"):
            load_profile("dgx-h1000")

    @rows("name", WANTED_PROFILES)
    def test_places_are_distinct(self, name: str) -> None:
        places = load_profile(name).gpus
        assert len({place.address for place in places}) == len({place.minor for place in places}) == len(places)

    @pytest.mark.parametrize("name", WANTED_PROFILES)
    def test_nvml_and_the_files_agree(self, tmp_path: Path, name: str) -> None:
        host = create_host(tmp_path, name)
        files, nvml = HostFiles(tmp_path), Nvml(SimulatedNvml(tmp_path))
        nvml.start()
        gpus = nvml.gpus().gpus
        assert {gpu.pci_bus_id for gpu in gpus} == {facts.address for facts in files.nvidia_gpus()}
        for gpu in gpus:
            node = files.device_node(f"/dev/nvidia{gpu.minor}")
            assert node is not None
            assert (node.type, node.major, node.minor) == ("c", files.device_majors()["nvidia"], gpu.minor)
            facts = files.pci(gpu.pci_bus_id)
            assert f"0x{facts.device:04x}" == gpu.pci_device_id
            assert facts.root is not None and facts.driver == "nvidia"
        assert nvml.driver("/").version in (files.kernel_driver_version() or "")
        library = host.library_folder / f"libnvidia-ml.so.{nvml.driver('/').version}"
        assert host.path(library).is_file()


class TestIdentity:
    def test_the_same_node_is_the_same_hardware_each_time(self, tmp_path: Path) -> None:
        first, second = (create_host(tmp_path / name, "gb200", 3) for name in ("a", "b"))
        assert first.state == second.state

    def test_two_nodes_share_no_identity(self, tmp_path: Path) -> None:
        hosts = [create_host(tmp_path / str(index), "t4", index) for index in range(3)]
        for attribute in ("uuid", "serial"):
            assert len({getattr(gpu, attribute) for host in hosts for gpu in host.state.gpus}) == 12
        assert len({HostFiles(host.root).boot_id() for host in hosts}) == 3

    def test_two_machines_of_one_index_share_their_rack_and_no_gpu(self, tmp_path: Path) -> None:
        first, second = (create_host(tmp_path / name, "gb200", machine=name).state for name in ("a", "b"))
        assert not {gpu.uuid for gpu in first.gpus} & {gpu.uuid for gpu in second.gpus}
        assert [gpu.fabric for gpu in first.gpus] == [gpu.fabric for gpu in second.gpus]

    def test_a_folder_with_a_node_of_another_profile_is_refused(self, tmp_path: Path) -> None:
        open_simulated(tmp_path, "t4")
        with pytest.raises(InvalidInput, match="has a simulated t4, not a30"):
            open_simulated(tmp_path, "a30")
        assert open_simulated(tmp_path, "t4").state.profile == "t4"

    def test_opening_finds_the_node_as_it_was_left(self, tmp_path: Path) -> None:
        open_simulated(tmp_path, "t4").lose_gpu(1)
        assert [gpu.fault for gpu in open_simulated(tmp_path, "t4").state.gpus] == [None, 15, None, None]


class TestStateFile:
    def test_half_a_state_is_not_believed(self, host: SimulatedHost) -> None:
        nvml = session(host)
        path = host.root / "sim" / "state.json"
        whole = path.read_text()
        path.write_text(whole[: len(whole) // 2])
        assert nvml.nvmlDeviceGetCount() == 8
        path.write_text(whole.replace('"loaded": true', '"loaded": false'))
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            nvml.nvmlDeviceGetCount()

    def test_writers_at_the_same_time_lose_nothing(self, host: SimulatedHost) -> None:
        threads = [Thread(target=host.lose_gpu, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {gpu.fault for gpu in SimulatedHost(host.root).state.gpus} == {15}

    def test_an_edit_that_fails_changes_nothing(self, host: SimulatedHost) -> None:
        with pytest.raises(ZeroDivisionError), host.edit() as state:
            state.gpus[0].fault = 1 // 0
        with pytest.raises(ValidationError), host.edit() as state:
            state.gpus[0].minor = "two"
        assert host.state.gpus[0].fault is None


class TestLayouts:
    @pytest.mark.parametrize(
        ("layout", "profile", "library", "binary"),
        [
            ("root", "t4", "/usr/lib/x86_64-linux-gnu", "/usr/bin"),
            ("root", "gb200", "/usr/lib/aarch64-linux-gnu", "/usr/bin"),
            ("operator", "t4", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/run/nvidia/driver/usr/bin"),
            ("gke", "t4", "/home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia/bin"),
            ("talos", "t4", "/usr/local/glibc/usr/lib", "/usr/local/bin"),
            ("flatcar", "t4", "/opt/nvidia/current/usr/lib64", "/opt/bin"),
        ],
    )
    def test_files_lie_where_that_system_has_them(
        self, tmp_path: Path, layout: Layout, profile: str, library: str, binary: str
    ) -> None:
        host = create_host(tmp_path, profile, layout=layout)
        version = host.state.driver.version
        files = HostFiles(tmp_path)
        assert files.resolve(f"{library}/libcuda.so") == PurePosixPath(library, f"libcuda.so.{version}")
        assert host.path(f"{binary}/nvidia-smi").stat().st_mode & stat.S_IXUSR
        assert session(host).nvmlSystemGetDriverVersion() == version

    @pytest.mark.parametrize("layout", list(PLACES))
    @pytest.mark.parametrize("profile", slow_but(["t4", "gb200"], "t4"))
    def test_the_plugin_finds_a_complete_driver_there(self, tmp_path: Path, layout: Layout, profile: str) -> None:
        host = create_host(tmp_path, profile, layout=layout)
        version = host.state.driver.version
        installation = DriverInstallation(HostFiles(tmp_path))
        root = installation.root()
        assert (root.path, root.version) == (str(host.driver_root), version)
        assert root.nvml_library.samefile(host.path(host.library_folder / f"libnvidia-ml.so.{version}"))
        files = container_files_of(installation, Node(host).hardware.look())
        assert files.driver.version == version
        assert all(files.nodes_there(gpu.uuid) for gpu in host.state.gpus)

    def test_a_driver_in_a_container_has_device_nodes_of_its_own(self, tmp_path: Path) -> None:
        create_host(tmp_path, "t4", layout="operator")
        files = HostFiles(tmp_path)
        for folder in ("/dev", "/run/nvidia/driver/dev"):
            assert files.device_node(f"{folder}/nvidia0") is not None


class TestCapabilities:
    def test_minors_of_mig_capabilities_follow_the_drivers_pattern(self, host: SimulatedHost) -> None:
        lines = host.path("/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
        minors = {name: int(minor) for name, _, minor in (line.partition(" ") for line in lines)}
        assert minors["config"] == 1
        assert minors["gpu0/gi0/access"] == 3
        assert minors["gpu2/gi5/access"] == 3 + 135 * 2 + 9 * 5
        assert minors["gpu2/gi5/ci3/access"] == 3 + 135 * 2 + 9 * 5 + 1 + 3
        assert lines[-1] == "gpu31/gi14/ci7/access 4322"


class TestReboot:
    def test_a_reboot_changes_the_boot_id_and_empties_run(self, host: SimulatedHost) -> None:
        before = HostFiles(host.root).boot_id()
        host.path("/var/run/left-over").write_text("x")
        host.reboot()
        assert HostFiles(host.root).boot_id() != before
        assert not host.path("/run/left-over").exists()

    def test_minors_and_order_may_change_and_identities_do_not(self, host: SimulatedHost) -> None:
        def minors() -> dict[str, int]:
            nvml = Nvml(SimulatedNvml(host.root))
            nvml.start()
            return {gpu.uuid: gpu.minor for gpu in nvml.gpus().gpus}

        before = minors()
        reboot_renumbered(host)
        after = minors()
        assert before.keys() == after.keys()
        assert list(before) != list(after)
        assert before != after
        assert sorted(after.values()) == list(range(8))


class TestSimulatedNvml:
    """The answers of the library itself, where the adapter does not look."""

    def test_nothing_is_answered_before_init_and_after_shutdown(self, host: SimulatedHost) -> None:
        nvml = SimulatedNvml(host.root)
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            nvml.nvmlDeviceGetCount()
        nvml.nvmlInitWithFlags(0)
        nvml.nvmlInitWithFlags(0)
        nvml.nvmlShutdown()
        assert nvml.nvmlDeviceGetCount() == 8
        nvml.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            nvml.nvmlDeviceGetCount()

    def test_a_reloaded_driver_ends_the_session_and_its_handles(self, host: SimulatedHost) -> None:
        nvml = session(host)
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        unload_driver(host)
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            nvml.nvmlDeviceGetUUID(handle)
        load_driver(host)
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            nvml.nvmlDeviceGetUUID(handle)
        nvml.nvmlInitWithFlags(0)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetUUID(handle)

    def test_a_handle_is_found_by_address(self, host: SimulatedHost) -> None:
        nvml = session(host)
        gpu = host.state.gpus[5]
        for handle in (
            nvml.nvmlDeviceGetHandleByPciBusId(nvml_bus_id(gpu.address)),
            nvml.nvmlDeviceGetHandleByPciBusId(gpu.address),
        ):
            assert nvml.nvmlDeviceGetUUID(handle) == gpu.uuid
        with pytest.raises(pynvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetHandleByPciBusId("0000:ff:00.0")

    def test_a_function_that_is_not_simulated_is_not_found_and_reaches_no_real_library(
        self, host: SimulatedHost
    ) -> None:
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            session(host).nvmlDeviceGetFanSpeed(None)

    def test_constants_and_structures_are_those_of_the_binding(self, host: SimulatedHost) -> None:
        nvml = SimulatedNvml(host.root)
        assert nvml.NVML_ERROR_GPU_IS_LOST == 15
        assert nvml.c_nvmlGpuFabricInfo_v3_t is pynvml.c_nvmlGpuFabricInfo_v3_t
        with pytest.raises(AttributeError):
            nvml.nvmlNoSuchFunction  # noqa: B018

    @rows("name", [name for name in dir(SimulatedNvml) if name.startswith("nvml") and hasattr(pynvml, name)])
    def test_a_function_takes_what_that_of_the_binding_takes(self, name: str) -> None:
        ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (SimulatedNvml, pynvml))
        accepted = [parameter for parameter in ours if parameter not in ("self", "gpu", "mig", "instance", "_")]
        wanted = list(theirs.values())["gpu" in ours :]
        assert accepted == [parameter.name for parameter in wanted[: len(accepted)]]
        assert all(parameter.default is not inspect.Parameter.empty for parameter in wanted[len(accepted) :])

    def test_events_come_once_and_to_those_who_registered(self, host: SimulatedHost) -> None:
        nvml = session(host)
        host.inject_event(0, 13)
        events = nvml.nvmlEventSetCreate()
        for index in (0, 1):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlDeviceGetSupportedEventTypes(handle), events)
        with pytest.raises(pynvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait_v2(events, 1)
        host.inject_event(2, 48)
        host.inject_event(1, 79)
        data = nvml.nvmlEventSetWait_v2(events, 1000)
        assert (data.eventType, data.eventData, data.gpuInstanceId) == (8, 79, 0xFFFFFFFF)
        assert nvml.nvmlDeviceGetUUID(data.device) == host.state.gpus[1].uuid
        with pytest.raises(pynvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait_v2(events, 1)
        nvml.nvmlEventSetFree(events)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlEventSetWait_v2(events, 1)


def test_a_machine_whose_folder_was_removed_has_no_driver(host: SimulatedHost) -> None:
    nvml = session(host)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    shutil.rmtree(host.root)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        nvml.nvmlDeviceGetUUID(handle)
