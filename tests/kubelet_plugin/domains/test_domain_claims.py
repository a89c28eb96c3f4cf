"""Claims of ComputeDomains on one node: who waits for what, who is refused, and what is left after any end."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.claims import a_claim, a_config
from support.domain_claims import HARDWARE, NODE, Node

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import DeviceInUse, DriverError, InvalidInput, NodeNotReady, Unreachable
from dra_driver.kube.client import Listing
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION, ClaimRef
from kubelet_plugin.domains.service import DomainClaims
from kubelet_plugin.domains.wanted import Record
from kubelet_plugin.prepare.turns import LOCK
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
    found = [one for edit in edits for one in edit.get("deviceNodes", ())]
    return [(one["path"], one["major"], one.get("minor", 0)) for one in found]


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
        ({}, "node tray-1 is not in ComputeDomain team/d yet: the controller has not looked at it yet"),
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
                        "message": "pods are on 1 nodes, numNodes is 2",
                        "lastTransitionTime": "t",
                    }
                ],
            },
            "waits for 2 nodes: pods are on 1 nodes, numNodes is 2",
        ),
    ],
)
async def test_who_waited_too_long_is_told_what_is_missing(node: Node, status: JsonObject, says: str) -> None:
    node.domains.put("d", **status)
    refused(await prepared(node.plugin(patience_s=0.01), node.claim("one", "d")), NodeNotReady, says)


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


async def test_a_sweep_removes_what_the_other_instance_was_writing_when_it_was_killed(node: Node) -> None:
    node.ready("d")
    plugin = node.plugin()
    await prepared(plugin, node.claim("one", "d"))
    half_done = [
        folder / f".{next(folder.glob('*.json')).name}.0123.tmp" for folder in (node.records.folder, node.cdi.folder)
    ]
    for path in half_done:
        path.write_text("half")
    await plugin.sweep()
    assert [path for path in half_done if path.exists()] == []


async def test_what_a_claim_that_is_gone_had_is_released_at_the_start_and_in_two_looks_later(node: Node) -> None:
    node.ready("d")
    first, second = node.claim("one", "d"), node.claim("two", "d", "channel-1")
    plugin = node.plugin()
    await prepared(plugin, first)
    await prepared(plugin, second)
    node.api.remove(first)
    await plugin.sweep()
    assert node.file(first) is not None  # kubelet may be about to release it
    await plugin.sweep()
    assert node.file(first) is None
    node.api.remove(second)
    await node.plugin().start()
    assert node.file(second) is None
    assert node.records.all() == {}


async def test_a_claim_that_is_released_while_it_waits_leaves_nothing(node: Node) -> None:
    node.domains.put("d")
    ref = node.claim("one", "d")
    plugin = node.plugin()
    waiting = asyncio.create_task(prepared(plugin, ref))
    await node.domains.watched.wait()
    assert (await plugin.unprepare([ref]))[ref.uid] is None
    node.ready("d")
    refused(await waiting, InvalidInput, "was released")
    assert node.file(ref) is None
    assert node.records.all() == {}


async def test_a_file_without_a_record_is_removed(node: Node) -> None:
    """A crash between the two writes."""
    node.cdi.write("uid-of-nobody", b"{}")
    await node.plugin().start()
    assert node.cdi.claims() == frozenset()


async def spoiled(node: Node, content: str = "{") -> ClaimRef:
    """A prepared claim of domain `d` whose record is something else after a disk lost a block."""
    node.ready("d")
    ref = node.claim("one", "d")
    await prepared(node.plugin(), ref)
    (record,) = node.records.folder.glob("*.json")
    record.write_text(content)
    return ref


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"claim": {}, "devices": [], "domain": null}', '"text"'])
async def test_a_damaged_record_is_made_again_from_the_claim_and_its_pods_lose_nothing(
    node: Node, content: str
) -> None:
    ref = await spoiled(node, content)
    before = node.file(ref)
    plugin = node.plugin()
    await plugin.start()
    assert node.file(ref) == before
    record = node.records.all()[ref.uid]
    assert record.claim == ref and record.domain is not None and record.domain.uid == "d"
    assert node.records.damaged() == frozenset()


async def test_no_other_domain_comes_to_the_node_while_a_damaged_record_is_not_settled(node: Node) -> None:
    ref = await spoiled(node)
    node.ready("e")
    other = node.claim("two", "e")
    node.api.failures = [Unreachable("away")]
    plugin = node.plugin()
    await plugin.start()
    assert node.cdi.claims() == {ref.uid}
    node.api.put({**node.api.objects["team", "two"]})
    pages, node.api.pages = node.api.pages, away
    refused(await prepared(plugin, other), NodeNotReady, ref.uid, "damaged", "away")
    node.api.pages = pages
    refused(await prepared(plugin, other), DeviceInUse, "ComputeDomain team/d", "one")
    assert (await plugin.unprepare([ref]))[ref.uid] is None
    assert len(await prepared(plugin, other)) == 1


async def away(resource: Resource) -> AsyncGenerator[Listing, None]:
    raise Unreachable("away")
    yield


async def test_of_a_damaged_record_whose_claim_is_gone_nothing_is_left(node: Node) -> None:
    ref = await spoiled(node)
    node.api.remove(ref)
    plugin = node.plugin()
    await plugin.start()
    assert node.cdi.claims() == frozenset() and list(node.records.folder.glob("*.*d")) == []


async def test_a_claim_with_a_damaged_record_can_be_prepared_again_and_released(node: Node) -> None:
    ref = await spoiled(node)
    node.api.failures = [Unreachable("away")]
    pages, node.api.pages = node.api.pages, away
    plugin = node.plugin()
    await plugin.start()
    node.api.failures = []
    assert len(await prepared(plugin, ref)) == 1
    assert node.records.damaged() == frozenset() and ref.uid in node.records.all()
    node.api.pages = pages
    assert (await plugin.unprepare([ref]))[ref.uid] is None
    assert node.cdi.claims() == frozenset()


async def test_files_that_are_no_records_are_left_alone_and_keep_nobody_from_preparing(node: Node) -> None:
    node.records.folder.mkdir(parents=True)
    strange = ["my notes.json", ".json", "my notes.damaged", ".damaged", "readme.txt"]
    for name in strange:
        (node.records.folder / name).write_text("{")
    node.ready("d")
    plugin, ref = node.plugin(), node.claim("one", "d")
    await plugin.start()
    assert len(await prepared(plugin, ref)) == 1
    assert (await plugin.unprepare([ref]))[ref.uid] is None
    assert set(strange) <= {path.name for path in node.records.folder.iterdir()}


async def test_fields_of_a_newer_release_are_no_damage(node: Node) -> None:
    """After a downgrade pods go on, and another domain stays away."""
    node.ready("d")
    ref = node.claim("one", "d")
    await prepared(node.plugin(), ref)
    (path,) = node.records.folder.glob("*.json")
    raw = json.loads(path.read_text())
    raw |= {"new": 1, "claim": raw["claim"] | {"new": 1}, "domain": raw["domain"] | {"new": 1}}
    raw["devices"] = [one | {"new": 1} for one in raw["devices"]]
    before = node.records.all()
    path.write_text(json.dumps(raw))
    assert node.records.all() == before


async def test_records_that_cannot_be_listed_are_not_taken_for_none(node: Node) -> None:
    node.ready("d")
    ref = node.claim("one", "d")
    plugin = node.plugin()
    await prepared(plugin, ref)
    folder = node.records.folder
    folder.rename(folder.with_name("aside"))
    folder.write_text("")
    again = node.plugin()
    await again.start()
    assert node.cdi.claims() == {ref.uid}
    node.ready("e")
    refused(await prepared(again, node.claim("two", "e")), NodeNotReady, str(folder), "not a folder")


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
    for name in ("mkdir", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refuse)
            answer = await prepared(plugin, ref)
            refused(answer, NodeNotReady, str(node.records.folder))
            assert "internal error" not in str(answer)
    assert len(await prepared(plugin, ref)) == 1


async def test_an_instance_that_starts_takes_no_file_that_another_one_writes_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ready("d")
    ref = node.claim("one", "d")
    old, new = node.plugin(), node.plugin()
    read = node.records.all
    loop = asyncio.get_running_loop()

    def then_the_old_one_prepares() -> object:
        found = read()
        monkeypatch.setattr(node.records, "all", read)
        asyncio.run_coroutine_threadsafe(prepared(old, ref), loop).result(5)
        return found

    monkeypatch.setattr(node.records, "all", then_the_old_one_prepares)
    await new.start()
    assert node.cdi.claims() == {ref.uid}


TRY = "import fcntl, os, sys; fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)"


async def test_of_two_instances_only_one_gives_out_channels_at_a_time(node: Node) -> None:
    """Else two domains could each be found alone on the node. Locks of one process do not exclude each other, so the
    other instance is another process."""
    node.ready("d")
    plugin, ref = node.plugin(), node.claim("one", "d")
    write, refusals = node.records.write, []

    def look(record: Record) -> None:
        ended = subprocess.run([sys.executable, "-c", TRY, str(node.records.folder / LOCK)], capture_output=True)
        refusals.append(b"BlockingIOError" in ended.stderr)
        write(record)

    node.records.write = look
    await prepared(plugin, ref)
    assert refusals == [True]


async def test_with_daemons_of_the_host_the_host_is_asked(node: Node) -> None:
    node.domains.put("d")
    said: list[str | None] = ["the node's IMEX daemon says INITIALIZING", None]
    node.host_imex = lambda: said.pop(0)
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
    told = [(one.call, one.claim.name, one.outcome, one.repeated) for one in node.heard.operations]
    assert told == [
        ("prepare", "train", "ok", False),
        ("prepare", "train", "ok", True),
        ("prepare", "late", "DomainNotReady", False),
        ("unprepare", "train", "ok", False),
        ("unprepare", "train", "ok", True),
    ]
    assert {one.driver for one in node.heard.operations} == {COMPUTE_DOMAIN_DRIVER}
    devices = [[one.device for one in operation.devices] for operation in node.heard.operations]
    assert devices == [["channel-0"], ["channel-0"], ["channel-0"], ["channel-0"], []]
    news = claim_news(node.heard.operations[2], 0)
    assert news is not None and news.note.endswith(
        "; kubelet tries again. Its ComputeDomain has to become ready first."
    )


async def test_one_claims_trouble_is_not_the_others(node: Node) -> None:
    node.ready("d")
    good, bad = node.claim("one", "d"), node.claim("two", "nobody", "channel-1")
    answers = await node.plugin().prepare([good, bad])
    refused(answers[bad.uid], InvalidInput, "no ComputeDomain with UID nobody")
    assert not isinstance(answers[good.uid], DriverError)


class Killed(BaseException):
    """The process ends here."""


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

    for owner in (node.records, node.cdi):
        for name in ("write", "remove"):
            monkeypatch.setattr(owner, name, dying(getattr(owner, name)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(4))
async def test_whoever_is_killed_at_any_file_is_followed_by_one_that_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    """Two files are written to prepare and two are removed to release: all that a claim ever has."""
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
    assert (node.cdi.claims() == {ref.uid}) == bool(node.records.all())
    assert len(await prepared(again, ref)) == 1
    assert nodes_in(node.file(ref)) == [("/dev/nvidia-caps-imex-channels/channel0", 234, 0)]
    assert (await again.unprepare([ref]))[ref.uid] is None
    assert node.cdi.claims() == frozenset() and node.records.all() == {}


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
