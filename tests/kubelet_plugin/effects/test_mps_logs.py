"""Logs of MPS daemons stay small while the daemon that writes them lives on."""

import os
from pathlib import Path

import pytest

from kubelet_plugin.effects.mps_process import bound_logs

_MOST = 64 << 10
_LINE = b"[2026-01-01 00:00:00.000 Server 1] Client connected, and this is a line\n"


def _blocks(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.mark.parametrize("appends", [True, False])
def test_whatever_a_daemon_writes_its_logs_take_no_more_than_twice_the_limit(tmp_path: Path, appends: bool) -> None:
    """NVIDIA does not say how its programs open their logs."""
    log = tmp_path / "server.log"
    with log.open("ab" if appends else "wb", buffering=0) as daemon:
        for number in range(40):
            daemon.write(_LINE * 500 + b"%d\n" % number)
            bound_logs(tmp_path, _MOST)
            assert _blocks(tmp_path) < 3 * _MOST
    content = (tmp_path / "server.log.1").read_bytes().replace(b"\0", b"") + log.read_bytes().replace(b"\0", b"")
    assert content.endswith(b"39\n") and b"\n38\n" in content


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tmp_path / "server.log").write_bytes(_LINE * 5000)
    for _ in range(2):
        bound_logs(tmp_path, _MOST)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_log_within_the_limit_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "control.log"
    log.write_bytes(_LINE)
    (tmp_path / "other").write_bytes(_LINE * 5000)
    bound_logs(tmp_path, _MOST)
    assert log.read_bytes() == _LINE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["control.log", "other"]
    bound_logs(tmp_path / "none", _MOST)


def test_no_link_is_followed_and_no_other_file_is_emptied(tmp_path: Path) -> None:
    """Servers run as the users of their clients."""
    secret, target = tmp_path / "secret", tmp_path / "target"
    secret.write_bytes(_LINE * 5000)
    target.write_bytes(b"as it was")
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "server.log").symlink_to(secret)
    (folder / "control.log").write_bytes(_LINE * 5000)
    (folder / "control.log.1").symlink_to(target)
    os.mkfifo(folder / "pipe.log")
    bound_logs(folder, _MOST)
    assert secret.read_bytes() == _LINE * 5000
    assert target.read_bytes() == b"as it was"
    assert (folder / "control.log").stat().st_size == 0
    assert (folder / "control.log.1").read_bytes() == (_LINE * 5000)[-_MOST:]
