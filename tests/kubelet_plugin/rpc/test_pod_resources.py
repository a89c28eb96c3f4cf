"""Whom kubelet names when it is asked who has a claim, and that its silence costs nothing."""

import os
from pathlib import Path

import pytest
from support.claims import a_ref
from support.pod_resources import kubelet, pod

from kubelet_plugin.rpc.pod_resources import SOCKET, PodsOfNode

CLAIM = a_ref("gang-claim")


def logs_of(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (number, number))
    return folder


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / SOCKET


async def test_the_pods_whose_containers_have_the_claim_are_named_with_their_uids(socket: Path, tmp_path: Path) -> None:
    ours = ("team-a", "gang-claim")
    pods = [
        pod("b", ours, ("team-a", "other")),
        pod("a", ours),
        pod("no-log", ours),
        pod("other-claim", ("team-a", "other")),
        pod("none"),
        pod("c", ("team-b", "gang-claim"), namespace="team-b"),
    ]
    logs = logs_of(tmp_path / "logs", "team-a_a_uid-old", "team-a_a_uid-new", "team-a_b_uid-b", "team-b_a_x", "odd")
    absent = tmp_path / "not-there"
    async with kubelet(socket, *pods):
        pods_of_claim = await PodsOfNode([absent, socket], [absent, logs]).of(CLAIM)
    assert pods_of_claim == (("a", "uid-new"), ("b", "uid-b"), ("no-log", ""))


async def test_without_logs_there_are_names(socket: Path) -> None:
    async with kubelet(socket, pod("a", ("team-a", "gang-claim"))):
        assert await PodsOfNode([socket], []).of(CLAIM) == (("a", ""),)


async def test_a_kubelet_that_cannot_be_asked_names_nobody(socket: Path) -> None:
    """Not there, too many questions, nobody who listens, and no socket."""
    nobody: tuple[tuple[str, str], ...] = ()
    assert await PodsOfNode([socket], []).of(CLAIM) == nobody
    async with kubelet(socket, pod("a", ("team-a", "gang-claim")), error="rejected by rate limit"):
        assert await PodsOfNode([socket], []).of(CLAIM) == nobody
    socket.unlink(missing_ok=True)
    socket.write_text("")
    assert await PodsOfNode([socket], [], timeout_s=0.2).of(CLAIM) == nobody
