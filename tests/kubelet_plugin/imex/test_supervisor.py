"""The supervisor with a simulated nvidia-imex: when it starts it, when it only tells it, and what the probes hear."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.imex import CONTROL, IMEX, ImexNode, addresses
from support.plugin import eventually

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.names import daemon_host
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.kube.watch import Backoff, MirrorChange
from kubelet_plugin.imex import probe
from kubelet_plugin.imex.probe import ProbeFolder
from kubelet_plugin.imex.settings import ImexSettings
from kubelet_plugin.imex.supervisor import NOTICED_S, SupervisedProgram, Supervisor
from kubelet_plugin.simulation.host import create_host

UID, OTHER = "11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555"
CLIQUE = "rack.1"


def domain(*nodes: tuple[str, str], uid: str = UID, clique: str = CLIQUE) -> ComputeDomain:
    """Of nodes with their addresses, in the order of their indices."""
    entries = [
        {"name": name, "ipAddress": address, "cliqueID": clique, "index": index, "status": "NotReady"}
        for index, (name, address) in enumerate(nodes)
    ]
    return ComputeDomain.of(
        {
            "metadata": {"name": "train", "namespace": "team", "uid": uid},
            "spec": {"channel": {"resourceClaimTemplate": {"name": "train"}}},
            "status": {"nodes": entries},
        }
    )


def change(seen: ComputeDomain | InvalidInput | None) -> MirrorChange[ComputeDomain | InvalidInput]:
    return MirrorChange(("team", "train"), None, seen)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_host(tmp_path_factory.mktemp("node") / "host", "gb200").root


class Pod:
    """One daemon's pod, without a container around it."""

    def __init__(self, host: Path, folder: Path, address: str, *, by_name: bool) -> None:
        self.place, self.address = ProbeFolder(folder / "imexd"), address
        self.hosts = folder / "hosts"
        self.hosts.write_text("127.0.0.1\tlocalhost\n")
        settings = ImexSettings(
            namespace="team",
            name="train",
            uid=UID,
            node_name="here",
            address=address,
            max_nodes=3,
            folder=self.place.folder,
            hosts_file=self.hosts,
            host_root=host,
            kubeconfig=None,
            log_level="info",
            log_format="json",
        )
        command = (str(host / IMEX), "-c", str(self.place.config))
        self.program = SupervisedProgram(command, Backoff(first_s=0.1, longest_s=0.2), noticed_s=1.0)
        self.supervisor = Supervisor(settings, self.program, by_name=by_name)

    def saw(self, seen: ComputeDomain | InvalidInput | None) -> None:
        self.supervisor.saw(change(seen))

    async def ready(self) -> str | None:
        return await asyncio.to_thread(probe.ready, self.place)

    async def live(self) -> str | None:
        return await asyncio.to_thread(probe.live, self.place)

    async def until_ready(self) -> None:
        await eventually(self.is_ready)

    async def is_ready(self) -> bool:
        return await self.ready() is None


@pytest.fixture
def pod(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pod]:
    """Makes the pod of this test, as `nvidia-imex` finds it in its environment."""
    monkeypatch.setenv("PATH", f"{(host / CONTROL).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GPU_DRA_HOSTS_FILE", str(tmp_path / "hosts"))
    monkeypatch.setenv("SIMULATED_DEVICES", "/dev/nvidia-caps/nvidia-cap0")
    return lambda *, by_name=True: Pod(host, tmp_path, addresses(1)[0], by_name=by_name)


@asynccontextmanager
async def running(pod: Pod) -> AsyncIterator[None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    tasks: list[asyncio.Task[object]] = []
    try:
        async with pod.supervisor.serving():
            tasks += [asyncio.create_task(pod.supervisor.run()), asyncio.create_task(pod.program.run())]
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        signal.signal(signal.SIGUSR1, before)


async def test_a_daemon_knows_its_peers_from_its_start_to_its_end(
    pod: Callable[..., Pod], host: Path, tmp_path: Path
) -> None:
    """It starts when its node is listed, hears of new peers without a restart, is started again when it is killed, goes
    on while nobody tells it anything sensible, and ends with its supervisor."""
    ours = pod()
    (peer_address,) = addresses(1)
    peer = ImexNode(host, tmp_path / "peer", peer_address, {daemon_host(0): ours.address, daemon_host(1): peer_address})
    peer.list_nodes(*map(daemon_host, range(3)))
    async with running(ours):
        assert await ours.live() is None
        assert await ours.ready() == "ComputeDomain team/train has not been read yet"
        ours.saw(domain(("here", ""), ("there", peer_address)))
        assert "does not list node here with address" in (await ours.ready() or "")
        ours.saw(domain(("here", ours.address), uid=OTHER))
        assert "is another one now" in (await ours.ready() or "")
        assert ours.program.pid is None

        ours.saw(domain(("here", ours.address), ("there", "")))
        await ours.until_ready()
        first = ours.program.pid
        assert ours.place.nodes.read_text().splitlines() == [daemon_host(index) for index in range(3)]
        assert ours.hosts.read_text().splitlines()[0] == "127.0.0.1\tlocalhost"

        with peer.running():
            inode = ours.hosts.stat().st_ino
            ours.saw(domain(("here", ours.address), ("there", peer_address)))
            await eventually(lambda: peer_address in ours.hosts.read_text())
            await eventually(lambda: asyncio.to_thread(lambda: peer.connections()[0] == "CONNECTED"))
            assert ours.program.pid == first
            assert ours.hosts.stat().st_ino == inode

        for nothing in (None, domain(), InvalidInput("nonsense")):
            ours.saw(nothing)
        assert await ours.ready() is None
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: ours.program.pid not in (None, first))
        await ours.until_ready()
        last = ours.program.pid
    assert last is not None
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)
    assert "the supervisor does not answer" in (await ours.live() or "")


async def test_a_daemon_that_is_back_at_once_is_not_ready_for_as_long_as_kubelet_takes_to_ask(
    pod: Callable[..., Pod],
) -> None:
    ours = pod()
    async with running(ours):
        ours.saw(domain(("here", ours.address)))
        await ours.until_ready()
        first = ours.program.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: ours.program.pid not in (None, first))
        assert await ours.ready() == "the IMEX daemon ended by signal 9, and is only just back"
        await ours.until_ready()
    assert NOTICED_S > 5 + 1, "kubelet asks every 5 s"


async def test_an_older_driver_gets_addresses_and_a_restart(pod: Callable[..., Pod]) -> None:
    ours = pod(by_name=False)
    (other,) = addresses(1)
    async with running(ours):
        ours.saw(domain(("here", ours.address), ("there", "")))
        await ours.until_ready()
        first = ours.program.pid
        ours.saw(domain(("here", ours.address), ("there", other)))
        await eventually(lambda: ours.program.pid not in (None, first))
        await ours.until_ready()
        assert ours.place.nodes.read_text().splitlines() == [ours.address, other]
        assert ours.hosts.read_text() == "127.0.0.1\tlocalhost\n"


async def test_without_a_clique_there_is_nothing_to_run_and_that_is_ready(pod: Callable[..., Pod]) -> None:
    ours = pod()
    async with running(ours):
        ours.saw(domain(("here", ours.address), clique=""))
        await ours.until_ready()
        assert ours.program.pid is None
        assert not ours.place.config.exists()


async def test_a_daemon_that_refuses_to_start_is_tried_again_and_not_ready(
    pod: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMULATED_DEVICES", "/dev/nvidia0")
    ours = pod()
    async with running(ours):
        ours.saw(domain(("here", ours.address)))
        await eventually(lambda: "ended with status 1" in (ours.program.problem or ""))
        assert "the IMEX daemon ended with status 1" in (await ours.ready() or "")
        assert await ours.live() is None
        monkeypatch.setenv("SIMULATED_DEVICES", "/dev/nvidia-caps/nvidia-cap0")
        await ours.until_ready()


async def test_a_file_that_cannot_be_written_is_said_and_written_later(
    pod: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_plugin.imex.supervisor._WRITE_AGAIN_S", 0.05)
    ours = pod()
    ours.hosts.unlink()
    async with running(ours):
        ours.saw(domain(("here", ours.address)))
        await eventually(lambda: "hosts: cannot be written" in ours.supervisor.state()["message"])
        ours.hosts.write_text("")
        await ours.until_ready()


async def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    program = SupervisedProgram((str(tmp_path / "nvidia-imex"),), Backoff(first_s=0.1, longest_s=0.1))
    running = asyncio.create_task(program.run())
    program.restart()
    await eventually(lambda: program.problem == "cannot be started: No such file or directory")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_its_folder_a_supervisor_cannot_serve(pod: Callable[..., Pod]) -> None:
    ours = pod()
    ours.place.folder.write_text("a file")
    with pytest.raises(NodeNotReady, match=r"supervisor\.sock: cannot be made"):
        async with ours.supervisor.serving():
            pass
