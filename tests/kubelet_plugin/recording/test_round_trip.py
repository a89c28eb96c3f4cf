"""A node that was recorded and is replayed cannot be told from the original, by discovery and by all that follows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from support import toolkit
from support.mishaps import bind_gpu, load_driver, set_links_down, unload_driver
from support.rows import slow_but

from dra_driver.api.policy import PublishingPolicy
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import InvalidInput
from kubelet_plugin.commands.inventory import _data, _Node, _report
from kubelet_plugin.facts.hardware import Hardware, simulated_nvml
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.host_programs import ProgramOutput, described_program
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.recording.take import NodeRecorder
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.profiles import profile_names
from kubelet_plugin.simulation.recorded.format import Record, write_record
from kubelet_plugin.simulation.recorded.nvml import nvml_of


def recorded(host: SimulatedHost, *, keep_names: bool = True) -> Record:
    places = NodePlaces(host_root=host.root, simulate=host.state.profile)
    return NodeRecorder(places, ask_programs=False).record(release="test", keep_names=keep_names)


def replayed(record: Record, folder: Path, index: int = 0, machine: str = "") -> SimulatedHost:
    file = folder / "node.tar.gz"
    if not file.exists():
        write_record(record, file)
    return create_host(folder / f"replayed-{index}{machine}", str(file), index, machine=machine)


def shown(host: SimulatedHost) -> Any:
    """Inventory, slices and CDI edits."""
    files = HostFiles(host.root)
    node = _Node("node", Hardware(files, simulated_nvml(host)), DriverInstallation(files))
    return _data(_report(node, PublishingPolicy.EVERYTHING, {}))


@pytest.mark.parametrize("profile", slow_but(profile_names(), "dgx-a100-80", "gb200"))
def test_inventory_slices_and_edits_are_those_of_the_original(profile: str, tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", profile)
    with host.edit() as state:
        del state.gpus[2:]  # all have the same questions to answer
    again = replayed(recorded(host), tmp_path)
    assert shown(again) == shown(host)


def divide(host: SimulatedHost) -> None:
    host.set_mig(0, 1)
    host.make_instance(0, "1g.10gb")
    host.make_instance(0, "3g.40gb", parts=(2, 1))


def lose(host: SimulatedHost) -> None:
    host.lose_gpu(1)


def trouble(host: SimulatedHost) -> None:
    host.set_health(2, uncorrected_errors=3, remap_pending=True, recovery_action=1)
    set_links_down(host, 3, 4, 5)


def unload(host: SimulatedHost) -> None:
    unload_driver(host)


def upgrade(host: SimulatedHost) -> None:
    load_driver(host, "590.44.01")


def lend(host: SimulatedHost) -> None:
    bind_gpu(host, 4, "vfio-pci")


def in_all_kinds_of_trouble(host: SimulatedHost) -> None:
    for effect in (divide, lose, trouble, lend):
        effect(host)


@pytest.mark.parametrize("effect", slow_but([in_all_kinds_of_trouble, unload, upgrade], in_all_kinds_of_trouble))
def test_a_node_in_any_state_is_recorded_as_it_is(effect: Callable[[SimulatedHost], None], tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "dgx-h100")
    effect(host)
    again = replayed(recorded(host), tmp_path)
    assert shown(again) == shown(host)


@pytest.mark.parametrize("layout", slow_but(["operator", "gke", "talos", "bottlerocket", "nixos"], "operator"))
def test_drivers_in_every_layout_are_found_again(layout: Any, tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "t4", layout=layout)
    again = replayed(recorded(host), tmp_path)
    assert shown(again) == shown(host)


def test_nodes_of_one_record_share_no_uuid_and_no_serial_number(tmp_path: Path) -> None:
    record = recorded(create_host(tmp_path / "host", "gb200"))
    nodes = [replayed(record, tmp_path), replayed(record, tmp_path, 1), replayed(record, tmp_path, 0, "a")]
    gpus = [gpu for node in nodes for gpu in shown(node)["inventory"]["spec"]["gpus"]]
    for name in ("uuid", "serial"):
        assert len({gpu[name] for gpu in gpus}) == len(gpus) == 12
    assert len({(gpu["fabric"]["clusterUUID"], gpu["fabric"]["cliqueID"]) for gpu in gpus}) == 1


def test_a_record_without_names_is_the_same_node_under_other_names(tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "gb200")
    record = recorded(host, keep_names=False)
    text = "".join(call.model_dump_json() for call in record.calls) + "".join(file.text or "" for file in record.files)
    for gpu in host.state.gpus:
        assert gpu.fabric is not None and gpu.fabric.cluster is not None
        for name in (gpu.uuid, gpu.serial, gpu.fabric.cluster, gpu.fabric.cluster.replace("-", "")):
            assert name not in text
    first, second = (shown(node)["inventory"]["spec"] for node in (host, replayed(record, tmp_path)))
    for spec in (first, second):
        for gpu in spec["gpus"]:
            del gpu["uuid"], gpu["name"], gpu["serial"], gpu["fabric"]["clusterUUID"]
            gpu["nvlink"]["peers"] = len(gpu["nvlink"]["peers"])
            gpu["mig"]["profilesOf"] = "profilesOf" in gpu["mig"]
    assert [spec["gpus"] for spec in (first, second)] == [first["gpus"]] * 2


def test_a_hook_program_answers_again_what_it_answered(tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "t4")
    recorded_answers = toolkit.recorded()["1.18.2/nvidia-cdi-hook"]
    answers = {words: ProgramOutput(status, output) for words, (status, output) in recorded_answers.items()}
    (host.root / "usr/bin/nvidia-cdi-hook").write_text(described_program(answers))
    places = NodePlaces(host_root=host.root, simulate="t4")
    again = replayed(NodeRecorder(places).record(release="test", keep_names=True), tmp_path)
    hooks = shown(host)["cdi"]["containerEdits"]["hooks"]
    assert {hook["args"][1] for hook in hooks} >= {"enable-cuda-compat", "disable-device-node-modification"}
    assert shown(again) == shown(host)


def test_a_recorded_node_has_what_programs_change_and_refuses_to_change_its_hardware(tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "dgx-h100")
    divide(host)
    again = replayed(recorded(host), tmp_path)
    nvml = nvml_of(again)
    nvml.nvmlInitWithFlags(0)
    gpu = nvml.nvmlDeviceGetHandleByIndex(1)
    nvml.nvmlDeviceSetComputeMode(gpu, 3)
    assert nvml.nvmlDeviceGetComputeMode(gpu) == 3
    with pytest.raises(pynvml.NVMLError, match="a recorded node cannot be changed"):
        nvml.nvmlDeviceSetMigMode(gpu, 1)
    changes = (SimulatedHost.reboot, unload_driver, load_driver, lambda host: bind_gpu(host, 1, "vfio-pci"))
    for change in changes:
        with pytest.raises(InvalidInput, match="simulate a profile to change it"):
            change(again)
    again.lose_gpu(1)
    with pytest.raises(pynvml.NVMLError, match="GPU is lost"):
        nvml.nvmlDeviceGetName(gpu)
    assert [gpu["productName"] for gpu in shown(again)["inventory"]["spec"]["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 7
