"""Channels that are prepared before the kubelet asks, because their pods wait for the node's daemon."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.claims import a_claim
from support.domain_claims import NODE, Node

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.errors import DomainLack, DomainNotReady, InvalidInput, NodeNotReady, Unreachable
from dra_driver.names import ClaimRef
from kubelet_plugin.domains.service import DomainClaims
from kubelet_plugin.domains.wanted import with_domain_claim
from kubelet_plugin.prepare.journal import decode, encode
from kubelet_plugin.prepare.lifecycle import BindingStage
from kubelet_plugin.prepare.store import JOURNAL


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def waits(node: Node, name: str = "one", domain: str = "d", device: str = "channel-0", **config: Any) -> ClaimRef:
    """A claim of a channel with binding conditions."""
    ref = node.claim(name, domain, device, **config)
    for result in node.api.objects[ref.namespace, ref.name]["status"]["allocation"]["devices"]["results"]:
        result |= {"bindingConditions": [BINDING_READY], "bindingFailureConditions": [BINDING_FAILED]}
    return ref


def stage(node: Node, ref: ClaimRef) -> BindingStage | None:
    known = node.journal.current.domains.get(ref.uid)
    return None if known is None else known.binding


async def asked(plugin: DomainClaims, ref: ClaimRef) -> Any:
    return (await plugin.prepare([ref]))[ref.uid]


async def test_a_channel_is_prepared_when_the_daemon_is_ready_and_the_kubelet_finds_it(node: Node) -> None:
    node.domains.put("d")
    ref, plugin = waits(node), node.plugin()
    waiting = asyncio.create_task(plugin.prepare_ahead(ref))
    await node.domains.watched.wait()
    assert not waiting.done() and stage(node, ref) is None
    node.ready("d")
    assert await waiting is None
    assert stage(node, ref) is BindingStage.AHEAD
    assert await plugin.prepare_ahead(ref) is None
    assert stage(node, ref) is BindingStage.AHEAD
    node.domains.objects.clear()
    (answer,) = await asked(plugin, ref)
    assert answer.device == "channel-0", "the kubelet does not wait for the domain again"
    assert stage(node, ref) is BindingStage.ASKED
    journal = node.journal.current
    assert decode(encode(journal)).domains == journal.domains


async def test_a_channel_without_binding_conditions_is_as_before(node: Node) -> None:
    node.ready("d")
    ref, plugin = node.claim("one", "d"), node.plugin()
    assert await plugin.prepare_ahead(ref) is None
    assert len(await asked(plugin, ref)) == 1
    assert stage(node, ref) is BindingStage.NONE
    node.api.put(a_claim(ref))
    assert await plugin.release_given_up() is False
    assert node.file(ref) is not None


@pytest.mark.parametrize("how", ["given up", "deleted", "another channel", "no sense"])
async def test_what_the_scheduler_gave_up_is_released_at_once(node: Node, how: str) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin()
    assert await plugin.prepare_ahead(ref) is None
    assert await plugin.release_given_up() is True
    assert node.file(ref) is not None
    if how == "given up":
        node.api.put(a_claim(ref))
    elif how == "deleted":
        node.api.remove(ref)
    elif how == "another channel":
        waits(node, device="channel-1")
    else:
        waits(node, allocationMode="Some")
    assert await plugin.release_given_up() is True
    assert (stage(node, ref), node.file(ref)) == (None, None)
    assert await plugin.release_given_up() is False


@pytest.mark.parametrize("how", ["given up", "deleted", "another channel"])
async def test_what_is_given_up_while_it_waits_for_its_domain_gets_nothing(node: Node, how: str) -> None:
    """Nobody ends the wait, as the kubelet does when it gives a call up."""
    node.domains.put("d")
    ref, plugin = waits(node), node.plugin()
    waiting = asyncio.create_task(plugin.prepare_ahead(ref))
    await node.domains.watched.wait()
    if how == "given up":
        node.api.put(a_claim(ref))
    elif how == "deleted":
        node.api.remove(ref)
    else:
        waits(node, device="channel-1")
    node.ready("d")
    error = await waiting
    assert isinstance(error, NodeNotReady) and "given up" in error.message
    assert (stage(node, ref), node.file(ref)) == (None, None)
    assert plugin._waiting == {}, "the kubelet never releases it"


async def test_what_the_kubelet_has_is_not_released_by_us(node: Node) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin()
    assert await plugin.prepare_ahead(ref) is None
    await asked(plugin, ref)
    node.api.put(a_claim(ref))
    assert await plugin.release_given_up() is False
    assert node.file(ref) is not None


async def test_a_channel_that_is_allocated_again_is_prepared_again(node: Node) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin()
    assert await plugin.prepare_ahead(ref) is None
    waits(node, device="channel-1")
    (answer,) = await asked(plugin, ref)
    assert answer.device == "channel-1"
    assert stage(node, ref) is BindingStage.ASKED


def during_the_next_read(node: Node, work: Callable[[], Awaitable[Any]]) -> None:
    """The API server answers when `work` is done."""

    async def before_answer(name: str) -> None:
        node.api.before_answer = None
        await work()

    node.api.before_answer = before_answer


@pytest.mark.parametrize("ahead", [True, False])
async def test_a_channel_that_is_given_up_while_its_claim_is_read_is_prepared_again(node: Node, ahead: bool) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin()
    assert await plugin.prepare_ahead(ref) is None

    async def given_up_for_a_moment() -> None:
        node.api.put(a_claim(ref))
        assert await plugin.release_given_up() is True
        assert stage(node, ref) is None
        waits(node)

    during_the_next_read(node, given_up_for_a_moment)
    if ahead:
        assert await plugin.prepare_ahead(ref) is None
        assert stage(node, ref) is BindingStage.AHEAD, "a file without an entry would be one of a lost claim"
    else:
        (answer,) = await asked(plugin, ref)
        assert (answer.device, stage(node, ref)) == ("channel-0", BindingStage.ASKED)
    assert node.file(ref) is not None


async def test_what_the_kubelet_got_at_another_instance_is_not_taken_from_it(node: Node) -> None:
    """The claim was allocated another channel, which both instances see."""
    node.ready("d")
    ref, plugin, other = waits(node), node.plugin(), node.plugin()
    assert await plugin.prepare_ahead(ref) is None
    waits(node, device="channel-1")
    during_the_next_read(node, lambda: asked(other, ref))
    assert await plugin.prepare_ahead(ref) is None
    assert stage(node, ref) is BindingStage.ASKED
    assert [device.name for device in node.held[ref.uid].devices] == ["channel-1"]
    assert node.file(ref) is not None


async def test_what_the_kubelet_got_meanwhile_outlives_an_answer_of_before(node: Node) -> None:
    node.ready("d")
    ref, plugin, other = waits(node), node.plugin(), node.plugin()
    assert await plugin.prepare_ahead(ref) is None

    async def outdated() -> None:
        waits(node, device="channel-2")
        await asked(other, ref)
        waits(node, device="channel-1")
        during_the_next_read(node, current)

    async def current() -> None:
        waits(node, device="channel-2")

    during_the_next_read(node, outdated)
    assert isinstance(await plugin.prepare_ahead(ref), NodeNotReady)
    assert [device.name for device in node.held[ref.uid].devices] == ["channel-2"]
    assert node.file(ref) is not None


async def test_what_is_allocated_again_keeps_nothing_while_it_waits_for_its_domain(node: Node) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin(patience_s=0.01)
    assert await plugin.prepare_ahead(ref) is None
    waits(node, device="channel-1")
    node.domains.put("d")
    assert isinstance(await asked(plugin, ref), DomainNotReady)
    assert (stage(node, ref), node.file(ref)) == (None, None)


async def test_a_claim_that_the_journal_lost_is_one_that_the_kubelet_may_have(node: Node) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin()
    await asked(plugin, ref)
    (node.journal.folder / JOURNAL).write_bytes(b"")
    await node.plugin().start()
    assert stage(node, ref) is BindingStage.ASKED


async def test_a_domain_that_waits_for_other_nodes_is_no_fault_of_this_one(node: Node) -> None:
    entry = {"name": NODE, "index": 0, "status": "NotReady", "message": "its daemon's pod x is not ready yet"}
    node.takes_late_peers = False
    node.domains.put("d", nodes=[entry], num_nodes=2)
    node.domains.put("e", nodes=[{**entry, "status": "Ready"}], num_nodes=2)
    plugin = node.plugin(patience_s=0.01)
    for domain, lack in (("d", DomainLack.READY_DAEMON), ("e", DomainLack.OTHER_NODES)):
        error = await plugin.prepare_ahead(waits(node, domain, domain))
        assert isinstance(error, DomainNotReady) and error.lack is lack


async def test_a_domain_that_is_not_there_is_the_authors_to_correct(node: Node) -> None:
    assert isinstance(await node.plugin().prepare_ahead(waits(node)), InvalidInput)


async def test_the_next_start_releases_what_was_given_up_meanwhile(node: Node) -> None:
    node.ready("d")
    ref = waits(node)
    assert await node.plugin().prepare_ahead(ref) is None
    node.api.put(a_claim(ref))
    await node.plugin().start()
    assert (stage(node, ref), node.file(ref)) == (None, None)


async def test_nothing_is_released_while_the_api_server_is_away(node: Node) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin()
    assert await plugin.prepare_ahead(ref) is None
    node.api.away = Unreachable("away")
    assert await plugin.release_given_up() is True
    assert stage(node, ref) is BindingStage.AHEAD


async def test_what_was_asked_for_at_another_instance_stays_so(node: Node) -> None:
    node.ready("d")
    ref, plugin = waits(node), node.plugin()
    assert await plugin.prepare_ahead(ref) is None
    ahead = node.journal.current.domains[ref.uid]
    await asked(plugin, ref)
    later: Callable[..., Any] = with_domain_claim(ahead, NODE)
    assert later(node.journal.current).domains[ref.uid].binding is BindingStage.ASKED
    first = with_domain_claim(ahead, NODE)(replace(node.journal.current, domains={}))
    assert first.domains[ref.uid].binding is BindingStage.AHEAD
