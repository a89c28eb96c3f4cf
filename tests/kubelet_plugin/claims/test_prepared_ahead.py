"""Claims that are prepared before the kubelet asks: the service over real files and fake hardware."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.claims import a_claim, a_ref, a_result, device_name
from support.prepared import DividedBench, prepare_one, unprepare_one

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.errors import HardwareError, InvalidInput, Unreachable
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.holds import Hold
from kubelet_plugin.prepare.journal import decode, encode
from kubelet_plugin.prepare.lifecycle import BindingStage
from kubelet_plugin.prepare.transitions import asked_for, begun, finished, with_entry

PART, OTHER_PART = f"{device_name(0)}-mig-1g10gb-0", f"{device_name(0)}-mig-1g10gb-3"


class Ahead(DividedBench):
    def stage(self, ref: ClaimRef) -> BindingStage:
        return self.journal.held[ref.uid].binding

    def claim(self, name: str = "train", device: str = PART, *, binds: bool = True) -> ClaimRef:
        conditions: dict[str, Any] = {
            "bindingConditions": [BINDING_READY],
            "bindingFailureConditions": [BINDING_FAILED],
        }
        return self.api.put(a_claim(a_ref(name), a_result(device, **(conditions if binds else {}))))

    def give_up(self, ref: ClaimRef) -> None:
        """As the scheduler does."""
        self.api.put(a_claim(ref))


@pytest.fixture
def bench(tmp_path: Path) -> Ahead:
    return Ahead(tmp_path)


async def test_the_kubelet_finds_prepared_what_was_prepared_ahead(bench: Ahead) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        assert bench.stage(ref) is BindingStage.AHEAD
        made, file = list(bench.hardware.acts), bench.cdi.read(ref.uid)
        assert await service.prepare_ahead(ref) is None
        assert bench.stage(ref) is BindingStage.AHEAD
        (device,) = await prepare_one(service, ref)
        assert device.device == PART
        assert (bench.hardware.acts, bench.cdi.read(ref.uid)) == (made, file)
        assert bench.stage(ref) is BindingStage.ASKED
        await unprepare_one(service, ref)
    assert bench.is_clean


async def test_what_the_scheduler_gave_up_is_released_at_once(bench: Ahead) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        assert await service.release_given_up() is True
        assert ref.uid in bench.journal.held
        bench.give_up(ref)
        assert await service.release_given_up() is True
        assert bench.is_clean
        assert await service.release_given_up() is False


@pytest.mark.parametrize("how", ["allocated again", "deleted", "created again"])
async def test_any_other_end_of_the_allocation_releases_it_too(bench: Ahead, how: str) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        if how == "allocated again":
            bench.claim(device=OTHER_PART)
        else:
            bench.api.remove(ref)
        if how == "created again":
            bench.api.put(a_claim(replace(ref, uid="uid-of-another"), a_result(PART)))
        await service.release_given_up()
    assert bench.is_clean


async def test_what_the_kubelet_has_asked_for_is_the_kubelets_to_release(bench: Ahead) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        await prepare_one(service, ref)
        bench.give_up(ref)
        assert await service.release_given_up() is False
        assert ref.uid in bench.journal.held


async def test_while_the_api_server_is_away_nobody_gets_what_the_scheduler_may_have_given_up(bench: Ahead) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        bench.claim(device=OTHER_PART)
        bench.api.away = Unreachable("away")
        for answer in ((await service.prepare([ref]))[ref.uid], await service.prepare_ahead(ref)):
            assert isinstance(answer, Unreachable)
        assert bench.stage(ref) is BindingStage.AHEAD
        bench.api.away = None
        (device,) = await prepare_one(service, ref)
        assert device.device == OTHER_PART
        bench.api.away = Unreachable("away")
        assert await prepare_one(service, ref) == (device,), "what the kubelet has does not change"


async def test_a_claim_that_cannot_be_prepared_leaves_nothing_and_can_be_tried_again(bench: Ahead) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        bench.hardware.failures.append(HardwareError("no room"))
        assert isinstance(await service.prepare_ahead(ref), HardwareError)
        assert bench.is_clean
        assert await service.prepare_ahead(ref) is None
    assert bench.stage(ref) is BindingStage.AHEAD


async def test_another_allocation_of_the_claim_is_another_preparation(bench: Ahead) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        bench.claim(device=OTHER_PART)
        assert await service.prepare_ahead(ref) is None
        (device,) = bench.journal.held[ref.uid].devices
        assert device.device == OTHER_PART
        assert bench.stage(ref) is BindingStage.AHEAD
        (answer,) = await prepare_one(service, ref)
        assert answer.device == OTHER_PART


async def test_a_claim_without_binding_conditions_is_never_released_early(bench: Ahead) -> None:
    ref = bench.claim(binds=False)
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        assert bench.stage(ref) is BindingStage.NONE
        bench.give_up(ref)
        assert await service.release_given_up() is False
        assert ref.uid in bench.journal.held


async def test_a_claim_that_the_kubelet_prepared_first_stays_its_own(bench: Ahead) -> None:
    """Also one whose file was damaged, so that it is prepared once more."""
    ref = bench.claim()
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        assert bench.stage(ref) is BindingStage.ASKED
        bench.cdi.path(ref.uid).unlink()
        assert await service.prepare_ahead(ref) is None
        assert bench.stage(ref) is BindingStage.ASKED


async def test_another_claim_gets_the_device_of_one_that_was_given_up(bench: Ahead) -> None:
    first = bench.claim("first")
    async with bench.plugin() as service:
        assert await service.prepare_ahead(first) is None
        bench.give_up(first)
        second = bench.claim("second")
        assert await service.prepare_ahead(second) is None
        assert list(bench.journal.held) == [second.uid]


async def test_the_next_start_releases_what_was_given_up_meanwhile(bench: Ahead) -> None:
    ref, later = bench.claim(), bench.claim("kept", OTHER_PART)
    async with bench.plugin() as service:
        assert await service.prepare_ahead(ref) is None
        assert await service.prepare_ahead(later) is None
    bench.give_up(ref)
    async with bench.plugin() as service:
        assert list(bench.journal.held) == [later.uid]
        assert bench.stage(later) is BindingStage.AHEAD
        bench.give_up(later)
        await service.release_given_up()
    assert bench.is_clean


class Dead(BaseException):
    """The process."""


@pytest.mark.parametrize("given_up", [True, False])
async def test_a_plugin_that_dies_at_any_change_leaves_nothing_of_a_claim_that_was_given_up(
    tmp_path: Path, given_up: bool
) -> None:
    """And a claim that still waits is prepared by the next one; until the kubelet asks, it can be given up again."""
    for deaths in range(6):
        bench = Ahead(tmp_path / str(deaths))
        ref = bench.claim()
        left = iter(range(deaths))

        def die(hold: Hold, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Dead

        async with bench.plugin() as service:
            bench.hardware.on_act = die
            with suppress(Dead):
                await service.prepare_ahead(ref)
                if given_up:
                    bench.give_up(ref)
                    await service.release_given_up()
        bench.hardware.on_act = lambda hold: None
        if given_up:
            bench.give_up(ref)
        async with bench.plugin() as service:
            assert given_up or await service.prepare_ahead(ref) is None
            await service.release_given_up()
            assert bench.is_clean is given_up
            assert given_up or bench.stage(ref) is BindingStage.AHEAD
            bench.give_up(ref)
            await service.release_given_up()
            assert bench.is_clean and not bench.hardware.there


async def test_the_kubelet_may_ask_in_the_middle(bench: Ahead) -> None:
    ref = bench.claim()
    async with bench.plugin() as service:
        ahead, asked = await asyncio.gather(service.prepare_ahead(ref), prepare_one(service, ref))
        assert ahead is None and [device.device for device in asked] == [PART]
        assert bench.stage(ref) is BindingStage.ASKED


async def test_a_claim_that_is_gone_is_no_failure_of_the_node(bench: Ahead) -> None:
    ref = bench.claim()
    bench.api.remove(ref)
    async with bench.plugin() as service:
        assert isinstance(await service.prepare_ahead(ref), InvalidInput)


class TestTheJournal:
    """Two instances of the plugin share it."""

    async def test_what_one_instance_prepares_ahead_stays_asked_for_at_another(self, bench: Ahead) -> None:
        ref = bench.claim()
        async with bench.plugin() as service:
            assert await service.prepare_ahead(ref) is None
        ahead, before = bench.journal.held[ref.uid], bench.journal
        asked = asked_for(ahead)(before)
        assert asked.held[ref.uid].binding is BindingStage.ASKED
        for transition in (begun(ahead, {}), finished(ahead), with_entry(ahead)):
            assert transition(asked).held[ref.uid].binding is BindingStage.ASKED
            assert transition(before).held[ref.uid].binding is BindingStage.AHEAD
        assert decode(encode(before)).held == before.held
        assert decode(encode(asked)).held == asked.held
