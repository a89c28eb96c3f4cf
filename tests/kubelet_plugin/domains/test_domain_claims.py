"""Claims of ComputeDomains on one node: who waits for what, who is refused, and what is left after any end."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.background import background
from support.claims import a_claim, a_config
from support.domain_claims import HARDWARE, NODE, Node
from support.killed import Killed
from support.plugin import eventually

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import (
    DeviceInUse,
    DomainLack,
    DomainNotReady,
    DriverError,
    InvalidInput,
    NodeNotReady,
    Rejected,
    Unreachable,
)
from dra_driver.kube.client import Listing
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION, ClaimRef
from kubelet_plugin.domains.service import DomainClaims
from kubelet_plugin.prepare.journal import encode
from kubelet_plugin.prepare.store import JOURNAL, JournalStore
from kubelet_plugin.reporting.events import claim_news


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def prepared(plugin: DomainClaims, ref: ClaimRef) -> Any:
    return (await plugin.prepare([ref]))[ref.uid]


def refused(answer: object, kind: type[DriverError], *words: str) -> None:
    assert isinstance(answer, kind), answer
    for word in words:
        assert word in str(answer), str(answer)


def nodes_in(spec: JsonObject | None) -> list[tuple[str, int, int]]:
    assert spec is not None
    edits = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
    device_nodes = [device_node for edit in edits for device_node in edit.get("deviceNodes", ())]
    return [(device_node["path"], device_node["major"], device_node.get("minor", 0)) for device_node in device_nodes]


async def test_a_container_of_a_ready_domain_gets_the_domains_channel(node: Node) -> None:
    node.ready("d")
    first, second = node.claim("one", "d"), node.claim("two", "d", "channel-3")
    plugin = node.plugin()
    for ref, device in ((first, "channel-0"), (second, "channel-3")):
        (answer,) = await prepared(plugin, ref)
        assert (answer.request_names, answer.pool, answer.device) == (("channel",), NODE, device)
        assert answer.cdi_ids == (f"k8s.compute-domain.nvidia.com/claim={ref.uid}-{device}",)
        assert nodes_in(node.file(ref)) == [("/dev/nvidia-caps-imex-channels/channel0", 234, 0)]


async def test_all_channels_are_all_that_the_driver_has(node: Node) -> None:
    node.ready("d")
    ref = node.claim("one", "d", allocationMode="All")
    await prepared(node.plugin(), ref)
    assert [minor for _, _, minor in nodes_in(node.file(ref))] == [0, 1, 2, 3, 4]


async def test_a_channel_waits_until_its_node_is_ready(node: Node) -> None:
    node.domains.put("d")
    ref = node.claim("one", "d")
    waiting = asyncio.create_task(prepared(node.plugin(), ref))
    await node.domains.watched.wait()
    assert not waiting.done()
    assert node.file(ref) is None
    node.ready("d")
    assert len(await waiting) == 1


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ({}, "node tray-1 is not in ComputeDomain team/d yet: the controller has not processed it yet"),
        (
            {
                "nodes": [
                    {"name": NODE, "index": 0, "status": "NotReady", "message": "its daemon's pod x is not ready yet"}
                ]
            },
            "ComputeDomain team/d is not ready on node tray-1: its daemon's pod x is not ready yet",
        ),
        (
            {
                "num_nodes": 2,
                "nodes": [{"name": NODE, "index": 0, "status": "Ready"}],
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "False",
                        "reason": "NodesMissing",
                        "message": "pods are on 1 node, numNodes is 2",
                        "lastTransitionTime": "t",
                    }
                ],
            },
            "waits for 2 nodes: pods are on 1 node, numNodes is 2",
        ),
    ],
)
async def test_who_waited_too_long_is_told_what_is_missing(node: Node, status: JsonObject, says: str) -> None:
    node.takes_late_peers = False
    node.domains.put("d", **status)
    refused(await prepared(node.plugin(patience_s=0.01), node.claim("one", "d")), NodeNotReady, says)


async def test_no_container_waits_for_other_nodes_where_daemons_take_them_later(node: Node) -> None:
    """As NVIDIA's API says of `numNodes`: a workload with fewer pods than that runs, too."""
    node.domains.put("d", num_nodes=18, nodes=[{"name": NODE, "index": 0, "status": "Ready"}])
    assert not isinstance(await prepared(node.plugin(patience_s=0.01), node.claim("one", "d")), DriverError)


async def test_whether_another_domain_has_the_node_is_known(node: Node) -> None:
    node.ready("d")
    node.domains.put("e")
    plugin = node.plugin(patience_s=0.2)
    first, second = node.claim("one", "d"), node.claim("two", "e", "channel-1")

    async def lack() -> DomainLack:
        error = await prepared(plugin, second)
        assert isinstance(error, DomainNotReady)
        return error.lack

    assert await lack() is DomainLack.READY_DAEMON
    node.domains.watched.clear()
    waiting = asyncio.create_task(lack())
    await node.domains.watched.wait()
    await prepared(plugin, first)
    assert await waiting is DomainLack.FREE_NODE
    node.domains.put("e", nodes=[{"name": NODE, "index": 0, "status": "NotReady", "message": "its daemon starts"}])
    assert await lack() is DomainLack.READY_DAEMON


async def test_a_domain_of_another_namespace_is_nobodys_here(node: Node) -> None:
    node.ready("d", metadata={"namespace": "others"})
    refused(await prepared(node.plugin(), node.claim("one", "d")), InvalidInput, "no ComputeDomain", "namespace team")


async def test_a_domain_that_is_being_deleted_takes_nobody(node: Node) -> None:
    node.ready("d", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    refused(await prepared(node.plugin(), node.claim("one", "d")), InvalidInput, "is being deleted")


async def test_a_node_has_channels_of_one_domain_at_a_time(node: Node) -> None:
    node.ready("d")
    node.ready("e")
    plugin = node.plugin()
    first, second = node.claim("one", "d"), node.claim("two", "e", "channel-1")
    await prepared(plugin, first)
    refused(await prepared(plugin, second), DeviceInUse, "team/d", "claim team/one")
    await plugin.unprepare([first])
    assert len(await prepared(plugin, second)) == 1


async def test_a_claim_is_for_one_domain(node: Node) -> None:
    of_driver = {"driver": COMPUTE_DOMAIN_DRIVER, "pool": NODE}
    results, configs = [], []
    for request, domain, device in (("a", "d", "channel-0"), ("b", "e", "channel-1")):
        node.ready(domain)
        results.append({"request": request, "device": device, **of_driver})
        parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "ComputeDomainChannelConfig", "domainID": domain}
        configs.append(a_config(parameters, request, driver=COMPUTE_DOMAIN_DRIVER))
    ref = node.api.put(a_claim(ClaimRef("team", "two", "uid-of-two"), *results, configs=configs))
    refused(await prepared(node.plugin(), ref), InvalidInput, "is for several ComputeDomains: d, e")


async def test_a_daemon_waits_for_nobody_and_can_manage_the_fabric(node: Node) -> None:
    entry = {"name": NODE, "index": 0, "status": "NotReady", "cliqueID": "rack.1"}
    node.domains.put("d", nodes=[entry])
    ref = node.claim("daemon", "d", "daemon-0", namespace="gpu-dra-driver")
    assert len(await prepared(node.plugin(), ref)) == 1
    spec = node.file(ref)
    assert ("/dev/nvidia-caps/nvidia-cap9", 511, 9) in nodes_in(spec)
    assert spec is not None
    environment = spec["devices"][0]["containerEdits"]["env"]
    assert environment == [
        "CLIQUE_ID=rack.1",
        "COMPUTE_DOMAIN_UUID=d",
        "COMPUTE_DOMAIN_NAME=d",
        "COMPUTE_DOMAIN_NAMESPACE=team",
    ]
    (mount,) = spec["containerEdits"]["mounts"]
    assert mount["hostPath"] == mount["containerPath"] == HARDWARE.host_path


@pytest.mark.parametrize("namespace", ["team", "others"])
async def test_the_device_of_a_daemon_is_for_claims_in_the_drivers_namespace(node: Node, namespace: str) -> None:
    """With it a container can open all GPUs of the node, whoever has them, and manage the fabric."""
    node.ready("d")
    ref = node.claim("daemon", "d", "daemon-0", namespace=namespace)
    refused(await prepared(node.plugin(), ref), InvalidInput, "daemon device", "namespace gpu-dra-driver")
    assert node.file(ref) is None and not node.held


async def test_a_daemons_claim_of_another_namespace_that_the_journal_lost_is_not_restored(node: Node) -> None:
    node.ready("d")
    ref = node.claim("daemon", "d", "daemon-0", namespace="team")
    node.cdi.write(ref.uid, b"{}")
    await node.plugin().start()
    assert node.file(ref) is None and not node.held


async def test_a_repeated_prepare_asks_nobody_and_makes_a_lost_file_again(node: Node) -> None:
    node.ready("d")
    ref = node.claim("one", "d")
    plugin = node.plugin()
    answer = await prepared(plugin, ref)
    node.api.away = NodeNotReady("no API server")
    node.domains.objects.clear()
    before = node.file(ref)
    node.cdi.remove(ref.uid)
    assert await prepared(plugin, ref) == answer
    assert node.file(ref) == before


async def test_after_a_reboot_the_files_are_there_again_with_the_new_numbers(node: Node) -> None:
    node.ready("d")
    ref = node.claim("one", "d")
    await prepared(node.plugin(), ref)
    node.cdi.remove(ref.uid)
    devices = node.host.path("/proc/devices")
    devices.write_text(devices.read_text().replace("234", "299"))
    await node.plugin().start()
    assert nodes_in(node.file(ref)) == [("/dev/nvidia-caps-imex-channels/channel0", 299, 0)]


@pytest.mark.parametrize("when", ["start", "sweep", "run"])
async def test_what_the_other_instance_was_writing_when_it_was_killed_is_removed(node: Node, when: str) -> None:
    node.ready("d")
    plugin = node.plugin(sweep_interval_s=0.01)
    await prepared(plugin, node.claim("one", "d"))
    half_done = node.cdi.folder / f".{next(node.cdi.folder.glob('*.json')).name}.0123.tmp"
    half_done.write_text("half")
    if when == "run":
        async with background(plugin.run()):
            await eventually(lambda: not half_done.exists())
    else:
        await (plugin.start() if when == "start" else plugin.sweep())
    assert not half_done.exists()


async def test_a_sweep_while_the_api_server_is_away_releases_nothing(node: Node) -> None:
    node.ready("d")
    ref, plugin = node.claim("one", "d"), node.plugin()
    await prepared(plugin, ref)
    node.api.away = Unreachable("away")
    await plugin.sweep()
    await plugin.sweep()
    assert list(node.held) == [ref.uid]


async def test_a_start_writes_each_file_that_it_can(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.ready("d")
    refs = [node.claim("one", "d"), node.claim("two", "d", "channel-1")]
    await node.plugin().prepare(refs)
    for ref in refs:
        node.cdi.remove(ref.uid)
    write = node.cdi.write

    def refuse(uid: str, content: bytes) -> None:
        if uid == refs[0].uid:
            raise NodeNotReady("cannot be written: the file system is full", about="file")
        write(uid, content)

    monkeypatch.setattr(node.cdi, "write", refuse)
    await node.plugin().start()
    assert node.cdi.claims() == {refs[1].uid}


async def two_of_which_the_first_is_gone(node: Node) -> tuple[DomainClaims, ClaimRef, ClaimRef]:
    """Both are prepared, and one sweep has looked at them since."""
    node.ready("d")
    first, second = node.claim("one", "d"), node.claim("two", "d", "channel-1")
    plugin = node.plugin()
    await prepared(plugin, first)
    await prepared(plugin, second)
    node.api.remove(first)
    await plugin.sweep()
    return plugin, first, second


async def test_what_a_claim_that_is_gone_had_is_released_in_two_looks(node: Node) -> None:
    plugin, first, second = await two_of_which_the_first_is_gone(node)
    assert node.file(first) is not None  # kubelet may be about to release it
    await plugin.sweep()
    assert node.file(first) is None
    node.api.remove(second)
    again = node.plugin()
    await again.start()
    assert node.file(second) is not None
    await again.sweep()
    assert node.file(second) is None
    assert node.held == {}


async def test_a_plugin_that_starts_lets_no_other_domain_in_before_kubelet_released_a_claim_that_is_gone(
    node: Node,
) -> None:
    """The container of a pod that was deleted by force may still run, and has the channel that all domains have."""
    node.ready("d")
    node.ready("e")
    first, other = node.claim("one", "d"), node.claim("two", "e")
    await prepared(node.plugin(), first)
    node.api.remove(first)
    again = node.plugin()
    await again.start()
    refused(await prepared(again, other), DeviceInUse, "team/d", "claim team/one")
    assert await again.unprepare([first]) == {first.uid: None}
    assert not isinstance(await prepared(again, other), DriverError)


async def test_what_is_prepared_again_while_others_are_looked_at_is_not_released(node: Node) -> None:
    plugin, first, _ = await two_of_which_the_first_is_gone(node)

    async def meanwhile(name: str) -> None:
        if name == "two":
            node.api.before_answer = None
            node.claim("one", "d")
            await prepared(plugin, first)

    node.api.before_answer = meanwhile
    await plugin.sweep()
    assert node.file(first) is not None
    assert first.uid in node.held


async def test_a_claim_that_is_released_while_it_waits_leaves_nothing(node: Node) -> None:
    node.domains.put("d")
    ref = node.claim("one", "d")
    plugin = node.plugin()
    waiting = asyncio.create_task(prepared(plugin, ref))
    await node.domains.watched.wait()
    assert (await plugin.unprepare([ref]))[ref.uid] is None
    node.ready("d")
    refused(await waiting, NodeNotReady, "was released")
    assert node.file(ref) is None
    assert node.held == {}


async def test_a_claim_that_is_released_while_it_is_entered_is_prepared_and_then_released(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ready("d")
    ref, plugin = node.claim("one", "d"), node.plugin()
    commit, releasing = node.journal.commit, list[asyncio.Task[Any]]()

    async def slow(change: Any, **more: Any) -> Any:
        if not releasing:
            releasing.append(asyncio.create_task(plugin.unprepare([ref])))
            await asyncio.sleep(0.05)
        return await commit(change, **more)

    monkeypatch.setattr(node.journal, "commit", slow)
    (device,) = await prepared(plugin, ref)
    assert device.device == "channel-0"
    assert (await releasing[0])[ref.uid] is None
    assert (node.file(ref), node.held) == (None, {})


async def test_a_call_that_is_given_up_before_its_claim_is_entered_enters_nothing(node: Node) -> None:
    node.domains.put("d")
    ref, plugin = node.claim("one", "d"), node.plugin()
    waiting = asyncio.create_task(plugin.prepare([ref]))
    await node.domains.watched.wait()
    async with plugin._files:  # another claim is entered
        node.ready("d")
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await plugin.close()
    assert (node.file(ref), node.held) == (None, {})


async def test_a_release_that_is_given_up_before_it_begins_releases_nothing(node: Node) -> None:
    """The kubelet may have asked the next instance of the plugin to prepare the claim."""
    node.ready("d")
    ref, plugin = node.claim("one", "d"), node.plugin()
    await prepared(plugin, ref)
    async with plugin._files:
        releasing = asyncio.create_task(plugin.unprepare([ref]))
        await asyncio.sleep(0.02)
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
    await plugin.close()
    assert node.file(ref) is not None and list(node.held) == [ref.uid]


async def test_the_end_waits_for_what_was_begun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.ready("d")
    ref, plugin = node.claim("one", "d"), node.plugin()
    commit, begun = node.journal.commit, asyncio.Event()

    async def slow(change: Any, **more: Any) -> Any:
        begun.set()
        await asyncio.sleep(0.05)
        return await commit(change, **more)

    monkeypatch.setattr(node.journal, "commit", slow)
    preparing = asyncio.create_task(plugin.prepare([ref]))
    await begun.wait()
    preparing.cancel()
    await plugin.close()
    assert node.file(ref) is not None and list(node.held) == [ref.uid]


async def test_a_claim_is_read_again_after_its_release(node: Node) -> None:
    """An answer to what was asked before may be outdated."""
    node.ready("d")
    ref, plugin, go_on = node.claim("one", "d"), node.plugin(), asyncio.Event()

    async def before_answer(_: str) -> None:
        await go_on.wait()

    node.api.before_answer = before_answer
    first = asyncio.create_task(prepared(plugin, ref))
    await eventually(lambda: node.api.reads == 1)
    await plugin.unprepare([ref])
    second = asyncio.create_task(prepared(plugin, ref))
    await eventually(lambda: node.api.reads == 2)
    go_on.set()
    refused(await first, NodeNotReady, "was released")
    assert len(await second) == 1


async def test_a_claim_that_may_not_be_read_is_the_administrators_move(node: Node) -> None:
    node.ready("d")
    node.api.away = Rejected("forbidden", status=403)
    refused(await prepared(node.plugin(), node.claim("one", "d")), Rejected, "forbidden", "an administrator must")


@pytest.mark.parametrize("uid", ["../uid", ""])
async def test_a_uid_that_cannot_be_in_the_name_of_a_file_is_refused(node: Node, uid: str) -> None:
    node.ready("d")
    ref = node.claim("one", "d")
    node.api.objects[ref.namespace, ref.name]["metadata"]["uid"] = uid
    refused(await prepared(node.plugin(), replace(ref, uid=uid)), InvalidInput, "cannot be the UID")


async def test_a_file_of_no_claim_is_removed(node: Node) -> None:
    node.cdi.write("uid-of-nobody", b"{}")
    await node.plugin().start()
    assert node.cdi.claims() == frozenset()


async def lost(node: Node, content: bytes = b"") -> ClaimRef:
    """A prepared claim of domain `d`, which the journal does not have after a disk lost a block."""
    node.ready("d")
    ref = node.claim("one", "d")
    await prepared(node.plugin(), ref)
    (node.journal.folder / JOURNAL).write_bytes(content or encode(replace(node.journal.current, domains={})))
    return ref


@pytest.mark.parametrize("content", [b"", b"nonsense", b"nonsense\nand more\n"])
async def test_a_claim_that_the_journal_lost_is_entered_again_and_its_pods_lose_nothing(
    node: Node, content: bytes
) -> None:
    ref = await lost(node, content)
    before = node.file(ref)
    await node.plugin().start()
    assert node.file(ref) == before
    claim = node.held[ref.uid]
    assert claim.claim == ref and claim.domain is not None and claim.domain.uid == "d"


async def test_a_released_claim_that_a_damaged_journal_brings_back_keeps_no_other_domain_away(node: Node) -> None:
    node.ready("d")
    node.ready("e")
    old, stands = node.claim("old", "d"), node.claim("stands", "d")
    plugin = node.plugin()
    await prepared(plugin, old)
    before = (node.journal.folder / JOURNAL).read_bytes()
    await plugin.unprepare([old])
    node.api.remove(old)
    (node.journal.folder / JOURNAL).write_bytes(before)
    assert list(node.held) == [old.uid]
    assert len(await prepared(plugin, node.claim("new", "e"))) == 1
    assert old.uid not in node.held
    refused(await prepared(plugin, stands), DeviceInUse)


async def test_no_other_domain_comes_to_the_node_while_a_lost_claim_is_not_settled(node: Node) -> None:
    ref = await lost(node)
    node.ready("e")
    other = node.claim("two", "e")
    pages, node.api.pages = node.api.pages, away
    plugin = node.plugin()
    await plugin.start()
    assert node.cdi.claims() == {ref.uid}
    refused(await prepared(plugin, other), NodeNotReady, ref.uid, "lost from the journal", "away")
    node.api.pages = pages
    refused(await prepared(plugin, other), DeviceInUse, "ComputeDomain team/d", "one")
    assert (await plugin.unprepare([ref]))[ref.uid] is None
    assert len(await prepared(plugin, other)) == 1


async def away(resource: Resource) -> AsyncGenerator[Listing, None]:
    raise Unreachable("away")
    yield


async def test_a_sweep_enters_lost_claims_again(node: Node) -> None:
    ref = await lost(node)
    await node.plugin().sweep()
    assert list(node.held) == [ref.uid]


async def test_of_a_lost_claim_whose_domain_is_gone_nothing_is_left(node: Node) -> None:
    """Its device is known no more, and others must not wait for it."""
    await lost(node)
    node.domains.objects.clear()
    await node.plugin().start()
    assert node.cdi.claims() == frozenset() and node.held == {}


async def test_of_a_lost_claim_that_is_gone_nothing_is_left(node: Node) -> None:
    node.api.remove(await lost(node))
    await node.plugin().start()
    assert node.cdi.claims() == frozenset() and node.held == {}


async def test_a_lost_claim_can_be_prepared_again_and_released(node: Node) -> None:
    ref = await lost(node)
    pages, node.api.pages = node.api.pages, away
    plugin = node.plugin()
    await plugin.start()
    assert len(await prepared(plugin, ref)) == 1
    assert ref.uid in node.held
    node.api.pages = pages
    assert (await plugin.unprepare([ref]))[ref.uid] is None
    assert node.cdi.claims() == frozenset()


async def test_a_journal_that_cannot_be_read_is_not_taken_for_an_empty_one(node: Node) -> None:
    node.ready("d")
    ref = node.claim("one", "d")
    plugin = node.plugin()
    await prepared(plugin, ref)
    path = node.journal.folder / JOURNAL
    path.unlink()
    path.mkdir()
    again = node.plugin()
    await again.start()
    assert node.cdi.claims() == {ref.uid}
    node.ready("e")
    refused(await prepared(again, node.claim("two", "e")), NodeNotReady, str(path))


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES])
async def test_a_disk_that_refuses_a_record_is_the_administrators_move(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """And no defect of the driver."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    node.ready("d")
    ref = node.claim("one", "d")
    plugin = node.plugin()
    for holder, name in ((Path, "mkdir"), (os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, refuse)
            answer = await prepared(plugin, ref)
            refused(answer, NodeNotReady)
            assert "internal error" not in str(answer)
    assert len(await prepared(plugin, ref)) == 1


async def test_an_instance_that_starts_takes_no_file_that_another_one_writes_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ready("d")
    ref = node.claim("one", "d")
    old, new = node.plugin(), node.plugin()
    listed = node.cdi.claims
    loop = asyncio.get_running_loop()

    def then_the_old_one_prepares() -> frozenset[str]:
        claims = listed()
        monkeypatch.setattr(node.cdi, "claims", listed)
        asyncio.run_coroutine_threadsafe(prepared(old, ref), loop).result(5)
        return claims

    monkeypatch.setattr(node.cdi, "claims", then_the_old_one_prepares)
    await new.start()
    assert node.cdi.claims() == {ref.uid}


async def test_of_two_instances_only_one_gives_out_channels_at_a_time(node: Node) -> None:
    """Else two domains could each be found alone on the node."""
    node.ready("d")
    node.ready("e")
    first, second = node.claim("one", "d"), node.claim("two", "e", "channel-1")
    plugin = node.plugin()
    node.journal = JournalStore(node.journal.folder)
    answers = await asyncio.gather(prepared(plugin, first), prepared(node.plugin(), second))
    assert sorted(isinstance(answer, DeviceInUse) for answer in answers) == [False, True]
    assert len(node.held) == 1


async def test_with_daemons_of_the_host_the_host_is_asked(node: Node) -> None:
    node.domains.put("d")
    answers: list[str | None] = ["the node's IMEX daemon says INITIALIZING", None]
    node.host_imex = lambda: answers.pop(0)
    plugin, ref = node.plugin(), node.claim("one", "d")
    refused(await prepared(plugin, ref), NodeNotReady, "INITIALIZING")
    assert len(await prepared(plugin, ref)) == 1


async def test_each_operation_is_told_with_the_driver_its_devices_and_how_it_ended(node: Node) -> None:
    """Metrics, Events, traces and the line in the log are made of it, as for GPUs."""
    plugin = node.plugin(patience_s=0.05)
    good, late = node.claim("train", "one"), node.claim("late", "two")
    node.ready("one")
    node.domains.put("two", status="NotReady")
    await plugin.prepare([good])
    await plugin.prepare([good])
    await plugin.prepare([late])
    await plugin.unprepare([good])
    await plugin.unprepare([good])
    await eventually(lambda: len(node.heard.operations) == 5)
    operations = [
        (operation.call, operation.claim.name, operation.outcome, operation.repeated)
        for operation in node.heard.operations
    ]
    assert operations == [
        ("prepare", "train", "ok", False),
        ("prepare", "train", "ok", True),
        ("prepare", "late", "DomainNotReady", False),
        ("unprepare", "train", "ok", False),
        ("unprepare", "train", "ok", True),
    ]
    assert {operation.driver for operation in node.heard.operations} == {COMPUTE_DOMAIN_DRIVER}
    devices = [[device.device for device in operation.devices] for operation in node.heard.operations]
    assert devices == [["channel-0"], ["channel-0"], ["channel-0"], ["channel-0"], []]
    news = claim_news(node.heard.operations[2], 0)
    assert news is not None and news.note.endswith("; it is tried again. Its ComputeDomain must become ready first.")


async def test_one_claims_trouble_is_not_the_others(node: Node) -> None:
    node.ready("d")
    good, bad = node.claim("one", "d"), node.claim("two", "nobody", "channel-1")
    answers = await node.plugin().prepare([good, bad])
    refused(answers[bad.uid], InvalidInput, "no ComputeDomain with UID nobody")
    assert not isinstance(answers[good.uid], DriverError)


def killed_at(node: Node, step: int, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """The plugin ends before or after the `step`th change of a file."""
    left = iter(range(step, -1, -1))

    def dying(act: Callable[..., Any]) -> Callable[..., Any]:
        def do(*given: Any) -> Any:
            last = next(left, -1) == 0
            if last and not after:
                raise Killed
            answer = act(*given)
            if last:
                raise Killed
            return answer

        return do

    def dying_async(act: Callable[..., Any]) -> Callable[..., Any]:
        async def do(*given: Any) -> Any:
            last = next(left, -1) == 0
            if last and not after:
                raise Killed
            answer = await act(*given)
            if last:
                raise Killed
            return answer

        return do

    for name in ("write", "remove"):
        monkeypatch.setattr(node.cdi, name, dying(getattr(node.cdi, name)))
    monkeypatch.setattr(node.journal, "commit", dying_async(node.journal.commit))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(4))
async def test_whoever_is_killed_at_any_file_is_followed_by_one_that_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    """A claim enters the journal and gets a file; the file is removed, and it leaves the journal: all that ever
    happens."""
    node.ready("d")
    ref = node.claim("one", "d")
    with monkeypatch.context() as patch:
        killed_at(node, step, patch, after=after)
        with pytest.raises(Killed):
            plugin = node.plugin()
            await plugin.prepare([ref])
            await plugin.unprepare([ref])
    again = node.plugin()
    await again.start()
    assert (node.cdi.claims() == {ref.uid}) == bool(node.held)
    assert len(await prepared(again, ref)) == 1
    assert nodes_in(node.file(ref)) == [("/dev/nvidia-caps-imex-channels/channel0", 234, 0)]
    assert (await again.unprepare([ref]))[ref.uid] is None
    assert node.cdi.claims() == frozenset() and node.held == {}


@pytest.mark.parametrize(("readable", "version"), [("0.6.0", "0.6.0"), ("0.5.0", "0.3.0")])
async def test_a_runtime_that_does_not_read_annotations_is_told_of_none(
    node: Node, readable: str, version: str
) -> None:
    """It would refuse the file, and no pod of the domain would start."""
    node.readable = readable
    node.ready("d")
    ref = node.claim("worker", "d")
    assert not isinstance(await prepared(node.plugin(), ref), DriverError)
    written = node.file(ref)
    assert written is not None
    assert written["cdiVersion"] == version
    assert ("annotations" in written) is (readable == "0.6.0")
