"""What a record has of a node, and what it never has; a driver that hangs; `dractl record` and the use of its file."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pynvml
import pytest
import typer
from support.mishaps import open_gpu, remove_driver_files, slow_call, unload_driver
from typer.testing import CliRunner, Result

from dra_driver.cli.doctor import bundle
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import InvalidInput, NodeNotReady
from kubelet_plugin.commands.inventory import inventory
from kubelet_plugin.commands.record import record
from kubelet_plugin.recording.questions import _OF_GPU, answer_of
from kubelet_plugin.recording.take import CallLog, NodeRecorder
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.recorded.format import NvmlCall, read_record
from kubelet_plugin.simulation.recorded.nvml import HUNG, NOT_RECORDED, nvml_of
from kubelet_plugin.simulation.vfio import SimulatedKernel

app = typer.Typer()
for command in (record, inventory, bundle):
    app.command()(command)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path / "host", "t4")


def recorder(host: SimulatedHost, **options: Any) -> NodeRecorder:
    return NodeRecorder(NodePlaces(host_root=host.root, simulate="t4"), **options)


def test_the_command_makes_a_file_that_other_commands_take_for_a_node(host: SimulatedHost, tmp_path: Path) -> None:
    file = tmp_path / "my-node.tar.gz"
    words = ("--host-root", str(host.root), "--simulate", "t4", "--archive", str(file))
    assert "replay it: dractl inventory --host" in run("record", *words).stderr
    made = read_record(file)
    assert {program.path.rpartition("/")[2] for program in made.programs} >= {"nvidia-smi", "nvidia-cuda-mps-control"}
    assert any(
        program.words == ["-L"] and "Tesla T4" in program.output and program.status == 0 for program in made.programs
    )
    everything = "".join(f"{part}" for part in (made.calls, made.files, made.programs))
    assert all(gpu.uuid not in everything and gpu.serial not in everything for gpu in host.state.gpus)
    assert socket.gethostname() not in "".join(program.output for program in made.programs)
    shown = json.loads(run("inventory", "--host", f"{file}:1", "-o", "json").stdout)
    assert [gpu["productName"] for gpu in shown["inventory"]["spec"]["gpus"]] == ["Tesla T4"] * 4
    assert shown["inventory"]["metadata"]["name"] == "my-node-1"
    before = file.read_bytes()
    refused = run("record", *words).exception
    assert isinstance(refused, InvalidInput) and "exists already" in refused.message
    assert file.read_bytes() == before


def test_in_the_plugins_pod_the_host_is_recorded_and_not_the_container(host: SimulatedHost, tmp_path: Path) -> None:
    file = tmp_path / "node.tar.gz"
    env = {"GPU_DRA_HOST_ROOT": str(host.root)}
    assert CliRunner().invoke(app, ["record", "--archive", str(file)], env=env).exit_code == 0
    assert read_record(file).about.driver_root == "/"


def test_a_node_without_a_driver_has_the_same_problem_when_it_is_replayed(host: SimulatedHost, tmp_path: Path) -> None:
    unload_driver(host)
    remove_driver_files(host)
    file = tmp_path / "node.tar.gz"
    words = ("--host-root", str(host.root))
    done = run("record", *words, "--archive", str(file))
    problem = "driver: DriverNotFound: libnvidia-ml.so.<version> is in no library folder"
    assert done.stderr.count("is in no library folder") == 1, "a problem is reported once"
    for shown in (run("inventory", *words), run("inventory", "--host", str(file))):
        assert problem in " ".join(shown.stderr.split())


@pytest.mark.slow
def test_a_bundle_that_is_taken_for_a_record_says_where_its_record_is(host: SimulatedHost, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    run("bundle", "--node", "--host-root", str(host.root), "--simulate", "t4", "--archive", str(file))
    with pytest.raises(InvalidInput, match=r"tar xzf .* gpu-dra-bundle/node/record.tar.gz"):
        read_record(file)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bundle --node", "record"])
def test_an_archive_without_a_name_is_named_by_the_time(
    command: str, host: SimulatedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*command.split(), "--host-root", str(host.root), "--simulate", "t4")
    (file,) = tmp_path.glob("gpu-dra-*.tar.gz")
    assert re.fullmatch(rf"gpu-dra-{command.split()[0]}-\d{{8}}-\d{{6}}\.tar\.gz", file.name)
    assert re.search(rf"{file.name}: [1-9]\d* (KiB|answers)", done.stderr)


def test_a_simulated_node_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    places = NodePlaces(host_root=tmp_path / "new", simulate="t4")
    made = NodeRecorder(places, ask_programs=False).record(release="0", keep_names=True)
    assert next(call.result for call in made.calls if call.function == "nvmlDeviceGetCount") == 4


def test_a_bundle_of_a_node_has_its_record(host: SimulatedHost, tmp_path: Path) -> None:
    import tarfile

    file = tmp_path / "bundle.tar.gz"
    done = run("bundle", "--node", "--host-root", str(host.root), "--simulate", "t4", "--archive", str(file))
    assert done.exit_code == 0, done.output
    with tarfile.open(file) as tar:
        tar.extract("gpu-dra-bundle/node/record.tar.gz", tmp_path, filter="data")
    assert read_record(tmp_path / "gpu-dra-bundle/node/record.tar.gz").about.names_kept is False


def test_a_call_that_hangs_ends_the_questions_to_nvml_and_nothing_else(host: SimulatedHost, tmp_path: Path) -> None:
    slow_call(host, 1, "nvmlDeviceGetName", 2.0)
    made = recorder(host, call_patience_s=0.3, ask_programs=False).record(release="", keep_names=True)
    (hung,) = [call for call in made.calls if call.hung]
    assert (hung.function, hung.args) == ("nvmlDeviceGetName", [{"handle": "gpu1"}])
    assert "nothing more was asked" in "".join(made.about.notes)
    assert "/dev/nvidia3" in {file.path for file in made.files}
    again = replayed(made, tmp_path)
    nvml = nvml_of(again)
    nvml.nvmlInitWithFlags(0)
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError) as raised:
        nvml.nvmlDeviceGetName(handle)
    assert (raised.value.value, str(raised.value)) == (HUNG, "the call hung when the node was recorded")


def replayed(made: Any, folder: Path) -> SimulatedHost:
    from kubelet_plugin.simulation.recorded.format import write_record

    write_record(made, folder / "again.tar.gz")
    return create_host(folder / "again", str(folder / "again.tar.gz"))


def test_equal_calls_are_one_with_the_longest_time() -> None:
    now = iter([0.0, 0.5, 1.0, 3.0, 4.0, 9.0])
    log = CallLog(lambda: next(now))
    for _ in range(2):
        log.begin(NvmlCall(function="nvmlDeviceGetCount"))
        log.end(NvmlCall(function="nvmlDeviceGetCount", result=8))
    log.begin(NvmlCall(function="nvmlShutdown"))
    count, hung = log.close()
    assert (count.result, count.times, count.ms) == (8, 2, 2000.0)
    assert (hung.function, hung.hung, hung.ms) == ("nvmlShutdown", True, 5000.0)


def test_every_question_to_nvml_is_a_function_of_the_binding() -> None:
    assert [name for name in _OF_GPU if not callable(getattr(pynvml, name, None))] == []


def test_a_program_that_hangs_is_ended_with_its_children_and_one_that_is_not_there_is_said() -> None:
    hangs = answer_of(["/bin/sh", "-c", "sleep 60 & wait"], "/bin/sh", ["-c"], {}, patience_s=0.2)
    assert (hangs.status, hangs.problem) == (None, "has not ended in 0.2 s")
    absent = answer_of(["/nowhere/nvidia-smi"], "/usr/bin/nvidia-smi", [], {})
    assert absent.problem == "cannot be started: No such file or directory"


def test_what_was_not_asked_is_an_error_of_its_own(host: SimulatedHost, tmp_path: Path) -> None:
    made = recorder(host, ask_programs=False).record(release="", keep_names=True)
    less = [call for call in made.calls if call.function != "nvmlDeviceGetVbiosVersion"]
    again = replayed(type(made)(made.about, tuple(less), made.files), tmp_path)
    nvml = nvml_of(again)
    nvml.nvmlInitWithFlags(0)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError, match="not in the record") as raised:
        nvml.nvmlDeviceGetVbiosVersion(handle)
    assert raised.value.value == NOT_RECORDED
    assert nvml.nvmlDeviceGetName(handle) == "Tesla T4"


def test_programs_that_have_a_gpu_open_are_there_again(host: SimulatedHost, tmp_path: Path) -> None:
    open_gpu(SimulatedKernel(host.root), 2, 4711, "python3")
    made = recorder(host, ask_programs=False).record(release="", keep_names=True)
    again = replayed(made, tmp_path)
    assert [[(client.pid, client.name) for client in gpu.clients] for gpu in again.state.gpus] == [
        [],
        [],
        [(4711, "python3")],
        [],
    ]


def test_a_kernel_that_does_not_report_its_boot_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(NodeNotReady):
        NodeRecorder(NodePlaces(host_root=tmp_path)).record(release="", keep_names=True)
