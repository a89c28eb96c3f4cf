"""What a plugin that serves does when somebody, or a disk, takes its state away: no GPU is given out twice for it."""

import shutil
from pathlib import Path

import pytest
from support.claims import a_claim, a_ref, a_result
from support.prepared import Bench, prepare_one, unprepare_one

from dra_driver.errors import DeviceInUse, NodeNotReady, Unreachable
from kubelet_plugin.prepare.store import JOURNAL


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


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
