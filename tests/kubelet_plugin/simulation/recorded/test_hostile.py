"""Whatever a record holds, the node that is made from it stays in its folder, and what cannot be a node is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import InvalidInput
from kubelet_plugin.recording.take import NodeRecorder
from kubelet_plugin.simulation.host import SimulatedHost, create_host, open_simulated
from kubelet_plugin.simulation.recorded.format import About, File, NvmlCall, Record, write_record

BOOT = File(path="/proc/sys/kernel/random/boot_id", kind="file", text="b\n")
HOME = "/etc/nvidia-outside"


def made(tmp_path: Path, *files: File, calls: tuple[NvmlCall, ...] = (), library: str | None = None) -> SimulatedHost:
    write_record(Record(About(library=library), calls, (BOOT, *files)), tmp_path / "record.tar.gz")
    return create_host(tmp_path / "in" / "host", str(tmp_path / "record.tar.gz"))


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/dev/nvidia0", HOME),
        ("/usr/lib64/libcuda.so", "../../../../../../../../../../etc/passwd"),
        ("/top", ".."),
        ("/top", "../outside"),
        ("/a/b/c", "x/../../../../outside"),
        ("/sim", "/etc"),
        ("/sim/state.json", "/etc/passwd"),
        ("/run", "/etc"),
        ("/dev", "/etc"),
        ("/proc/driver/nvidia", "/etc"),
    ],
)
def test_no_link_leads_out_of_the_folder(path: str, target: str, tmp_path: Path) -> None:
    host = made(tmp_path, File(path=path, kind="link", target=target))
    root = host.root.resolve()
    for folder, folders, files in os.walk(host.root):
        for name in (*folders, *files):
            place = Path(folder, name)
            assert place.resolve().is_relative_to(root), f"{place} is a link to {place.readlink()}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "record.tar.gz"]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["host"]


@pytest.mark.parametrize(
    "calls",
    [
        (NvmlCall(function="nvmlDeviceGetCount", result="many"),),
        (
            NvmlCall(function="nvmlDeviceGetCount", result=1),
            NvmlCall(function="nvmlDeviceGetUUID", args=[{"handle": "gpu0"}], result={"x": 1}),
        ),
    ],
)
def test_answers_that_no_nvml_gives_are_refused_and_leave_nothing(calls: tuple[NvmlCall, ...], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="record the node again"):
        made(tmp_path, calls=calls)
    assert not (tmp_path / "in" / "host").exists()


def test_a_million_gpus_are_not_made(tmp_path: Path) -> None:
    assert len(made(tmp_path, calls=(NvmlCall(function="nvmlDeviceGetCount", result=10**6),)).state.gpus) <= 1024


@pytest.mark.parametrize("wanted", ["nowhere/node.tar.gz", "node.tar.gz:1", "t4:x", "t44", "./t4"])
def test_what_is_no_node_is_refused(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        open_simulated(tmp_path / "host", wanted)
    assert list(tmp_path.iterdir()) == []


def test_a_node_outlives_the_file_that_it_was_made_from(tmp_path: Path) -> None:
    first = create_host(tmp_path / "first", "t4")
    record = NodeRecorder(NodePlaces(host_root=first.root, simulate="t4"), ask_programs=False)
    write_record(record.record(release="", keep_names=True), tmp_path / "node.tar.gz")
    host = open_simulated(tmp_path / "host", str(tmp_path / "node.tar.gz"), "node-a")
    (tmp_path / "node.tar.gz").unlink()
    again: Any = open_simulated(tmp_path / "host", str(tmp_path / "node.tar.gz"), "node-a")
    assert [gpu.uuid for gpu in again.state.gpus] == [gpu.uuid for gpu in host.state.gpus]
