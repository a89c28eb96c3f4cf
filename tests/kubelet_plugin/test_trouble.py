"""What a plugin that serves does when somebody, or a disk, takes its state away: no GPU is given out twice for it."""

import asyncio
import shutil

import pytest
from support.claims import FakeFacts, a_claim, a_ref, a_result, node_facts
from support.prepared import Bench, prepare_one, unprepare_one

from dra_driver.errors import DeviceInUse, DriverError, NodeNotReady, Unreachable
from kubelet_plugin.prepare.store import JOURNAL


async def test_of_64_claims_and_as_many_that_want_the_same_each_gpu_goes_to_one(bench: Bench) -> None:
    """All at once, asked for twice and in another order; and all go at once."""
    bench.facts = FakeFacts(node_facts(64))
    claims = [bench.api.put(a_claim(a_ref(f"claim-{number}"), a_result(number))) for number in range(64)]
    rivals = [bench.api.put(a_claim(a_ref(f"rival-{number}"), a_result(number))) for number in range(64)]
    async with bench.plugin() as service:
        calls = (claims, rivals, claims[::-1], rivals[::-1])
        answers = await asyncio.gather(*(service.prepare(call) for call in calls))
        given: dict[str, set[str]] = {}
        for uid, answer in (pair for call in answers for pair in call.items()):
            if isinstance(answer, DriverError):
                assert isinstance(answer, DeviceInUse)
            else:
                given.setdefault(answer[0].device, set()).add(uid)
        assert len(given) == 64 and all(len(holders) == 1 for holders in given.values())
        await asyncio.gather(service.unprepare(claims + rivals), service.unprepare(rivals), service.unprepare(claims))
        assert service.held == {} and bench.claims_with_file == set()


@pytest.mark.parametrize("lost", ["file", "folder"])
class TestJournalRemovedWhileServing:
    def remove(self, bench: Bench, lost: str) -> None:
        if lost == "file":
            (bench.state / JOURNAL).unlink()
        else:
            shutil.rmtree(bench.state)

    async def test_no_gpu_of_a_claim_is_given_to_another(self, bench: Bench, lost: str) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        thief = bench.api.put(a_claim(a_ref("thief"), a_result(0)))
        other = bench.api.put(a_claim(a_ref("other"), a_result(1)))
        async with bench.plugin() as service:
            answer = await prepare_one(service, ref)
            self.remove(bench, lost)
            with pytest.raises(DeviceInUse, match=ref.uid):
                await prepare_one(service, thief)
            await prepare_one(service, other)
            assert await prepare_one(service, ref) == answer
        async with bench.plugin() as service:
            assert sorted(service.held) == sorted([ref.uid, other.uid])

    async def test_a_sweep_takes_no_running_claims_file_away(self, bench: Bench, lost: str) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            self.remove(bench, lost)
            await service.sweep()
            assert list(service.held) == [ref.uid] and bench.claims_with_file == {ref.uid}
        assert (bench.state / JOURNAL).exists()

    async def test_the_claim_can_be_released(self, bench: Bench, lost: str) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        thief = bench.api.put(a_claim(a_ref("next"), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            self.remove(bench, lost)
            await unprepare_one(service, ref)
            assert bench.claims_with_file == set()
            await prepare_one(service, thief)

    async def test_what_another_instance_prepared_meanwhile_is_asked_of_the_api_server(
        self, bench: Bench, lost: str
    ) -> None:
        mine = bench.api.put(a_claim(a_ref("mine"), a_result(0)))
        theirs = bench.api.put(a_claim(a_ref("theirs"), a_result(1)))
        thief = bench.api.put(a_claim(a_ref("thief"), a_result(1)))
        async with bench.plugin() as old, bench.plugin() as new:
            await prepare_one(old, mine)
            await prepare_one(new, theirs)
            self.remove(bench, lost)
            bench.api.away = Unreachable("away")
            with pytest.raises(NodeNotReady, match="journal"):
                await prepare_one(old, thief)
            bench.api.away = None
            with pytest.raises(DeviceInUse, match=theirs.uid):
                await prepare_one(old, thief)
