"""Guards of the claim service that are met only when two things go wrong at once."""

import asyncio

import pytest
from support.claims import FakeFacts, a_claim, a_gpu, a_ref, a_result, node_facts
from support.domain_claims import Heard
from support.prepared import Bench, prepare_one

from dra_driver.errors import InvalidInput, NodeNotReady, UnknownDevice, Unreachable
from dra_driver.names import ClaimRef
from kubelet_plugin.facts.hardware import NodeFacts

AWAY = Unreachable("cannot reach the API server: connection refused")


async def prepared(bench: Bench) -> ClaimRef:
    ref = bench.api.put(a_claim(a_ref(), a_result(0)))
    async with bench.plugin() as service:
        await prepare_one(service, ref)
    return ref


async def test_a_claim_of_an_earlier_boot_is_not_answered_from_the_journal(bench: Bench) -> None:
    """Where the CDI folder outlives a boot: its file may name what is another GPU now."""
    ref = await prepared(bench)
    bench.facts.facts = node_facts([a_gpu(0)], boot_id="boot-2")
    bench.api.away = AWAY
    async with bench.plugin() as service:
        assert bench.claims_with_file == {ref.uid}
        with pytest.raises(Unreachable):
            await prepare_one(service, ref)


async def test_a_claim_that_stands_again_at_the_second_question_is_not_released(bench: Bench) -> None:
    """A sweep reads all claims, and then acts: meanwhile one may have been allocated as before, and prepared."""
    ref = await prepared(bench)
    claim = bench.api.objects[ref.namespace, ref.name]
    questions: list[str] = []

    async def deallocated_at_first(name: str) -> None:
        questions.append(name)
        without = {**claim, "status": {}}
        bench.api.objects[ref.namespace, ref.name] = without if len(questions) == 1 else claim

    async with bench.plugin(stale_s=0.0) as service:
        bench.api.before_answer = deallocated_at_first
        report = await service.sweep()
        assert list(service.held) == [ref.uid]
    assert len(questions) == 2
    assert any("stands again" in sentence for sentence in report.done)
    assert bench.claims_with_file == {ref.uid}


async def test_a_prepared_claim_does_not_wait_for_the_api_server(bench: Bench) -> None:
    ref = await prepared(bench)
    bench.api.away, reads = AWAY, bench.api.reads
    async with bench.plugin(api_s=2.0) as service:
        await prepare_one(service, ref)
    assert bench.api.reads == reads + 2, "at the start, and once for the kubelet"


async def test_a_claim_that_a_sweep_releases_while_it_is_read_is_read_again(bench: Bench) -> None:
    ref = await prepared(bench)
    claim = bench.api.objects[ref.namespace, ref.name]

    async def gone_for_good(_: str) -> None:
        bench.api.objects.clear()

    async with bench.plugin(stale_s=0.0) as service:

        async def gone(_: str) -> None:
            bench.api.before_answer = None
            bench.api.remove(ref)
            await service.sweep()
            bench.api.put(claim)  # what was asked before is answered with what was there then
            bench.api.before_answer = gone_for_good

        bench.api.before_answer = gone
        assert isinstance((await service.prepare([ref]))[ref.uid], InvalidInput)
        assert (service.held, bench.files) == ({}, [])


async def test_a_prepared_claim_is_answered_before_the_rules_of_the_node_are_known(bench: Bench) -> None:
    ref = await prepared(bench)
    bench.policy = None
    async with bench.plugin() as service:
        assert len(await prepare_one(service, ref)) == 1
        other = bench.api.put(a_claim(a_ref("other"), a_result(1)))
        with pytest.raises(NodeNotReady, match="has not been read"):
            await prepare_one(service, other)


class UnseenFacts(FakeFacts):
    """The hardware hangs since the plugin started: nothing was seen yet."""

    @property  # type: ignore[override]
    def facts(self) -> NodeFacts:
        raise NodeNotReady("the hardware has not been read yet", about="driver")

    @facts.setter
    def facts(self, facts: NodeFacts) -> None:
        pass


async def test_a_claim_that_comes_before_the_hardware_was_seen_is_told_so(bench: Bench) -> None:
    ref = bench.api.put(a_claim(a_ref(), a_result(0)))
    bench.facts = UnseenFacts()
    async with bench.plugin() as service:
        answers = await service.prepare([ref])
    assert isinstance(answers[ref.uid], NodeNotReady)
    assert "has not been read yet" in str(answers[ref.uid])


async def test_a_claim_without_holds_is_released_before_the_hardware_was_seen(bench: Bench) -> None:
    ref = await prepared(bench)
    bench.facts = UnseenFacts()
    async with bench.plugin() as service:
        assert (await service.unprepare([ref]))[ref.uid] is None
        assert (service.held, bench.files) == ({}, [])


async def test_a_sweep_before_the_hardware_was_seen_does_not_end_the_plugin(bench: Bench) -> None:
    ref = await prepared(bench)
    bench.facts = UnseenFacts()
    async with bench.plugin() as service:
        assert "has not been read yet" in (await service.sweep()).pending[0]
        assert list(service.held) == [ref.uid]


class HungFacts(FakeFacts):
    """The hardware hangs since it was seen."""

    async def observe(self) -> NodeFacts:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_device_that_is_not_known_is_refused_although_the_hardware_hangs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_plugin.claims.service._LOOK_AGAIN_S", 0.01)
    bench.facts = HungFacts()
    ref = bench.api.put(a_claim(a_ref(), a_result("gpu-nowhere")))
    async with bench.plugin() as service:
        assert isinstance((await service.prepare([ref]))[ref.uid], UnknownDevice)


async def test_a_second_release_is_told_as_a_repeated_one(bench: Bench) -> None:
    ref, heard = await prepared(bench), Heard()
    async with bench.plugin(listener=heard) as service:
        for _ in range(2):
            await service.unprepare([ref])
    assert [operation.repeated for operation in heard.operations] == [False, True]
