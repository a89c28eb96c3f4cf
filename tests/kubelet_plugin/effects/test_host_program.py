"""The program that works on the host, run by itself, in mount namespaces that end with the test."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.containers import Host, container_obstacle
from support.mps import until

from kubelet_plugin.effects import host_program

in_namespaces = pytest.mark.skipif(bool(container_obstacle()), reason=container_obstacle() or "-")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Mounts spread from it, as they do on a node, to what has a copy of its namespace."""
    (tmp_path / "system").mkdir()
    host = Host(tmp_path / "system", shared=True)
    yield host
    host.end()


def _ordered(host: Host | None, do: str, **order: Any) -> subprocess.CompletedProcess[str]:
    namespaces = {"namespaces": f"/proc/{host.pid}/ns"} if host is not None else {}
    words = [sys.executable, "-I", "-S", host_program.__file__, json.dumps({"do": do, **namespaces, **order})]
    return subprocess.run(words, input="", capture_output=True, text=True, timeout=30, check=False)


def _done(host: Host | None, do: str, **order: Any) -> str:
    """What it printed."""
    done = _ordered(host, do, **order)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _started(host: Host | None, folder: Path, script: str, **order: Any) -> list[str]:
    """What a started script wrote, line by line."""
    output = folder / "output"
    usual = {"root": "", "cgroup": None, "tmpfs": [], "binds": [], "environment": {"PATH": os.defpath}}
    words = ["/bin/sh", "-c", f"({script}) 2>&1; echo end >&2"]
    answer = json.loads(_done(host, "start", **usual | {"words": words, "output": str(output)} | order))
    assert answer["pid"] > 1
    until(lambda: "end\n" in output.read_text())
    return output.read_text().splitlines()[:-1]


def _mounts(host: Host, path: Path) -> list[str]:
    lines = Path(f"/proc/{host.pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4] == str(path)]


@in_namespaces
def test_a_tmpfs_is_mounted_on_the_host_once_and_emptied_of_its_files(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "shm"
    path.mkdir()
    assert _done(host, "mount", path=str(path), options="size=64k") == ""
    (mount,) = _mounts(host, path)
    assert " - tmpfs " in mount and {"nosuid", "nodev", "noexec", "relatime"} <= set(mount.split()[5].split(","))
    assert not path.is_mount(), "only on the host"
    there = Path(f"/proc/{host.pid}/root{path}")
    (there / "folder").mkdir()
    (there / "link").symlink_to("folder")
    (there / "file").touch()
    _done(host, "mount", path=str(path), options="size=64k")
    assert len(_mounts(host, path)) == 1
    assert [entry.name for entry in there.iterdir()] == ["folder"]


@in_namespaces
def test_a_mount_that_fails_names_its_place(host: Host, tmp_path: Path) -> None:
    done = _ordered(host, "mount", path=str(tmp_path), options="size=none")
    assert (done.returncode, done.stderr) == (1, f"Invalid argument: {tmp_path}\n")


@in_namespaces
def test_all_mounts_at_a_place_are_taken_away(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "shm"
    path.mkdir()
    for _ in range(2):
        subprocess.run(["nsenter", "-t", str(host.pid), "-m", "mount", "-t", "tmpfs", "none", path], check=True)
    assert len(_mounts(host, path)) == 2
    for gone in (path, path, tmp_path / "none"):
        assert _done(host, "unmount", path=str(gone)) == ""
        assert _mounts(host, path) == []
    path = tmp_path / ("long" * 64)
    done = _ordered(host, "unmount", path=str(path))
    assert (done.returncode, done.stderr) == (1, f"File name too long: {path}\n")


def test_what_is_started_has_clean_descriptors_and_no_mask(tmp_path: Path) -> None:
    lines = _started(None, tmp_path, "umask; for fd in /proc/self/fd/*; do readlink $fd; done")
    assert lines[:4] == ["0000", "/dev/null", str(tmp_path / "output"), str(tmp_path / "output")]
    assert not any("pipe:" in line for line in lines), lines


def test_what_is_started_is_not_among_the_first_when_memory_ends(tmp_path: Path) -> None:
    try_it = "echo -900 2>/dev/null >/proc/self/oom_score_adj && cat /proc/self/oom_score_adj"
    lowest = subprocess.run(["/bin/sh", "-c", try_it], capture_output=True, text=True, check=False).stdout.split()
    if not lowest:
        pytest.skip("needs CAP_SYS_RESOURCE")
    assert _started(None, tmp_path, "cat /proc/self/oom_score_adj") == lowest


@pytest.mark.parametrize("unified", [True, False])
def test_what_is_started_leaves_the_cgroups_of_its_starter(tmp_path: Path, unified: bool) -> None:
    folders = [tmp_path] if unified else [tmp_path / "pids", tmp_path / "memory"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").touch()
    (tmp_path / "notes").touch()
    _started(None, tmp_path, "true", cgroup=str(tmp_path))
    assert [(folder / "cgroup.procs").read_text() for folder in folders] == ["0"] * len(folders)


def test_what_fails_before_the_program_runs_is_said_alone(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").mkdir()
    order = {"words": ["/bin/true"], "environment": {}, "root": "", "binds": [], "tmpfs": []}
    done = _ordered(None, "start", **order, output=str(tmp_path / "output"), cgroup=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Is a directory: {tmp_path}/cgroup.procs\n"


@in_namespaces
@pytest.mark.parametrize("below", [False, True], ids=["the host's root", "a system of its own"])
def test_what_is_started_alone_sees_its_mounts(host: Host, tmp_path: Path, below: bool) -> None:
    before = Path(f"/proc/{host.pid}/mountinfo").read_text()
    source, shm = tmp_path / "source", tmp_path / "shm"
    source.mkdir()
    shm.mkdir()
    lines = _started(
        host,
        tmp_path,
        f"touch /tmp/inner/seen /dev/shm/segment; ls /tmp; readlink /proc/self/cwd; ls {tmp_path}/system",
        root=str(tmp_path / "system") if below else "",
        tmpfs=["/tmp"],
        binds=[(str(source), "/tmp/inner"), (str(shm), "/dev/shm")],
    )
    assert lines[:2] == ["inner", "/"]
    assert [entry.name for folder in (source, shm) for entry in folder.iterdir()] == ["seen", "segment"]
    assert Path(f"/proc/{host.pid}/mountinfo").read_text() == before
    # A tmpfs is at /tmp, so nothing of `tmp_path` is there.
    assert len(lines) == 3 and "No such file" in lines[2]


@in_namespaces
@pytest.mark.parametrize("below", [False, True], ids=["the host's root", "a system of its own"])
def test_a_program_is_run_in_the_root_that_is_meant(host: Host, tmp_path: Path, below: bool) -> None:
    """The system is the host's own, mounted again; only on the host it shows below its place."""
    system = tmp_path / "system"
    words = ["/bin/sh", "-c", f"echo $VALUE; test -e .{system}/bin && echo outside"]
    order = {"words": [*words[:2], f"{words[2]} || echo below"], "environment": {"VALUE": "3"}}
    printed = _done(host, "run", **order, root=str(system) if below else "")
    assert printed.split() == ["3", "below" if below else "outside"]
