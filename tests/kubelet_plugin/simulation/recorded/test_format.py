"""A record is written and read again the same, and whatever is no record is refused and changes nothing."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.errors import InvalidInput, NodeNotReady
from kubelet_plugin.simulation.recorded.format import (
    About,
    Elf,
    File,
    NvmlCall,
    ProgramAnswer,
    Record,
    packed,
    read_record,
    write_record,
)

RECORD = Record(
    About(release="1.0", driver_root="/", library="/usr/lib64/libnvidia-ml.so.580.1"),
    (NvmlCall(function="nvmlDeviceGetName", args=[{"handle": "gpu0"}], result="NVIDIA L40S"),),
    (
        File(path="/dev/nvidia0", kind="char", major=195, mode=0o666),
        File(path="/proc/devices", kind="file", text="Character devices:\n195 nvidia\n"),
        File(path="/usr/lib64/libnvidia-ml.so.1", kind="link", target="libnvidia-ml.so.580.1"),
        File(path="/usr/lib64/libnvidia-ml.so.580.1", kind="file", size=12, elf=Elf()),
    ),
    (ProgramAnswer(path="/usr/bin/nvidia-smi", words=["-L"], status=0, output="GPU 0"),),
)


def test_it_reads_back_the_same_and_the_same_record_has_the_same_bytes(tmp_path: Path) -> None:
    write_record(RECORD, tmp_path / "a")
    assert read_record(tmp_path / "a") == RECORD
    assert (tmp_path / "a").read_bytes() == packed(RECORD)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(NodeNotReady, match="name another one with --archive"):
        write_record(RECORD, tmp_path / "a")
    assert (tmp_path / "a").read_text() == "mine"


def archive(members: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, value in members.items():
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def members(**changes: Any) -> dict[str, Any]:
    made = {"record": {"format": 1}, "nvml": [], "files": [], "programs": []} | changes
    return {f"gpu-dra-record/{name}.json": value for name, value in made.items() if value is not None}


def listing(*files: dict[str, Any]) -> bytes:
    return archive(members(files=list(files)))


def linked() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("gpu-dra-record/record.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    return buffer.getvalue()


DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is damaged"),
    "text": (lambda: b"profile: t4\n", "is damaged"),
    "cut short": (lambda: packed(RECORD)[: len(packed(RECORD)) // 2], "is damaged"),
    "zeros": (lambda: gzip.compress(bytes(2**20)), "has no record.json"),
    "no JSON": (lambda: archive(members(nvml=b"{")), "form of a record"),
    "deep JSON": (lambda: archive(members(nvml=b"[" * 200_000)), "form of a record"),
    "another format": (lambda: archive(members(record={"format": 2})), "not of format 1"),
    "no format": (lambda: archive(members(record=[])), "not of format 1"),
    "member missing": (lambda: archive(members(files=None)), "has no files.json"),
    "unknown field": (lambda: listing({"path": "/a", "kind": "file", "owner": 1}), "form of a record: 0.owner"),
    "member elsewhere": (lambda: archive({"../../etc/passwd.json": {}}), "a member that no record has"),
    "member a link": (linked, "a member that no record has"),
    "too many members": (lambda: archive(members(**{f"x{n}": {} for n in range(40)})), "that no record has"),
    "upwards": (lambda: listing({"path": "/a/../../etc/passwd", "kind": "file"}), "not a plain absolute path"),
    "relative": (lambda: listing({"path": "etc/passwd", "kind": "file"}), "not a plain absolute path"),
    "twice": (lambda: listing(*[{"path": "/a", "kind": "file"}] * 2), "'/a' twice"),
    "below a link": (
        lambda: listing({"path": "/a", "kind": "link", "target": "/etc"}, {"path": "/a/passwd", "kind": "file"}),
        "which is not a folder",
    ),
    "file with a target": (lambda: listing({"path": "/a", "kind": "file", "target": "/etc"}), "do not agree"),
    "huge file": (lambda: listing({"path": "/a", "kind": "file", "size": 2**60}), "form of a record: 0.size"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_no_record_is_refused_with_the_reason(what: str, tmp_path: Path) -> None:
    made, reason = DAMAGED[what]
    (tmp_path / "record").write_bytes(made())
    with pytest.raises(InvalidInput, match=reason) as raised:
        read_record(tmp_path / "record")
    assert str(tmp_path / "record") in (raised.value.about or "")
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_an_archive_that_unpacks_to_more_than_any_node_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "record", "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("gpu-dra-record/nvml.json")
        info.size = 2**40
        file.write(info.tobuf())
    with pytest.raises(InvalidInput, match="more than 256 MiB"):
        read_record(tmp_path / "record")
