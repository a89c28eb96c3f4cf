"""What a node does about claims whose pods wait for it, and when it gives up: kubelet_plugin/reporting/binding.py."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from support.background import background
from support.claims import NODE, FakeClaims, a_claim, a_ref, a_result, device_name
from support.plugin import eventually

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.meta import JsonObject
from dra_driver.errors import (
    DomainLack,
    DomainNotReady,
    DriverError,
    HardwareError,
    InvalidConfig,
    NodeNotReady,
    Unreachable,
)
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER, ClaimRef
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.offers import NodeOffers, NodeRules
from kubelet_plugin.prepare.claim_reads import ClaimReader
from kubelet_plugin.prepare.listener import AllocatedTo
from kubelet_plugin.reporting.binding import NodeBinding, binding_of_gpus
from kubelet_plugin.reporting.device_status import BindingAnswer, DeviceStatusWriter, PrepareRefusal

BINDS: dict[str, Any] = {"bindingConditions": [BINDING_READY], "bindingFailureConditions": [BINDING_FAILED]}


class Scene:
    """A node's API server, claim service and device status."""

    def __init__(self) -> None:
        self.api = FakeClaims()
        self.error: DriverError | None = None
        """What preparations end with."""
        self.before_error: Callable[[], object] = lambda: None
        self.prepared: list[ClaimRef] = []
        self.refusals: list[PrepareRefusal] = []
        self.again: list[str] = []
        self.outcomes: list[tuple[list[str], DriverError | None]] = []
        self.answers_at_outcome: list[list[BindingAnswer | None]] = []
        self.looks = 0
        self.release: asyncio.Event | None = None
        """What a release waits for."""
        self.no_longer: list[tuple[str, int]] = []
        """With the number of looks until then."""

    async def prepare_ahead(self, claim: ClaimRef) -> DriverError | None:
        self.prepared.append(claim)
        self.before_error()
        return self.error

    async def release_given_up(self) -> bool:
        self.looks += 1
        if self.release is not None:
            await self.release.wait()
        return False

    def waits_for_binding(self, refusal: PrepareRefusal) -> None:
        self.refusals.append(refusal)

    def say_again(self, claim_uid: str) -> None:
        self.again.append(claim_uid)

    def waits_no_longer(self, claim_uid: str) -> None:
        self.no_longer.append((claim_uid, self.looks))

    def outcome(self, devices: Collection[str], error: DriverError | None) -> None:
        self.outcomes.append((list(devices), error))
        self.answers_at_outcome.append(self.answers)

    @property
    def answers(self) -> list[BindingAnswer | None]:
        return [refusal.binding for refusal in self.refusals]

    def claim(self, name: str = "train", *results: JsonObject) -> ClaimRef:
        return self.api.put(a_claim(a_ref(name), *(results or (a_result(0, **BINDS),))))

    @asynccontextmanager
    async def at_work(self, *, patience_s: float = 60.0) -> AsyncIterator[NodeBinding]:
        answers = cast(DeviceStatusWriter, self)
        binding = NodeBinding(
            GPU_DRIVER, NODE, ClaimReader(self.api), self, answers, self.outcome, patience_s=patience_s, again_s=0.01
        )
        async with background(binding.run()):
            yield binding


def inventory(*claims: ClaimRef, driver: str = GPU_DRIVER) -> JsonObject:
    named = [{"driver": driver, "namespace": claim.namespace, "name": claim.name, "uid": claim.uid} for claim in claims]
    return {"status": {"bindingClaims": named}}


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_claim_that_is_named_is_prepared_and_one_that_is_not_is_not(scene: Scene) -> None:
    ref, other = scene.claim(), scene.claim("other")
    async with scene.at_work() as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: scene.prepared)
        assert scene.outcomes[0] == ([device_name(0)], None)
        binding.saw({})
        await eventually(lambda: scene.no_longer)
        assert other not in scene.prepared and scene.refusals == []


async def test_an_answer_that_did_not_arrive_is_written_again(scene: Scene) -> None:
    """The API server drops it with the allocation, and the same devices may be allocated again."""
    ref = scene.claim()
    async with scene.at_work() as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: len(scene.again) > 1)
    assert {*scene.again} == {ref.uid}


async def test_another_allocation_is_answered_at_once_also_with_the_same_device(scene: Scene) -> None:
    ref = scene.claim()
    scene.error = HardwareError("the GPU is in use")
    async with scene.at_work() as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: len(scene.answers) > 2)
        assert scene.again == [ref.uid]
        body = a_claim(ref, a_result(0, **BINDS))
        body["status"]["allocation"]["allocationTimestamp"] = "2026-01-01T00:00:00Z"
        scene.api.put(body)
        await eventually(lambda: len(scene.again) == 2)


async def test_a_failure_is_tried_again(scene: Scene) -> None:
    scene.error = HardwareError("the GPU is in use")
    async with scene.at_work() as binding:
        binding.saw(inventory(scene.claim()))
        await eventually(lambda: len(scene.answers) > 2)
    assert {*scene.answers} == {BindingAnswer.WAIT} and scene.outcomes == []


async def test_what_was_given_up_is_not_tried_again(scene: Scene) -> None:
    ref = scene.claim()
    scene.error = HardwareError("the GPU is in use")
    async with scene.at_work(patience_s=0.0) as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: BindingAnswer.GIVE_UP in scene.answers)
        tries, reads = len(scene.prepared), scene.api.reads
        await eventually(lambda: scene.api.reads > reads + 2)
        assert len(scene.prepared) == tries
    assert scene.outcomes == [([device_name(0)], scene.error)]
    last = scene.refusals[-1]
    assert (last.claim, last.devices) == (ref, (AllocatedTo(NODE, device_name(0)),))
    assert (last.reason, last.message) == ("HardwareError", "the GPU is in use")


async def test_the_taint_comes_before_the_answer(scene: Scene) -> None:
    """The scheduler would choose the same device again."""
    ref = scene.claim()
    scene.error = HardwareError("the GPU is in use")
    async with scene.at_work(patience_s=0.0) as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: BindingAnswer.GIVE_UP in scene.answers)
    assert scene.answers_at_outcome == [[]]
    assert scene.answers == [BindingAnswer.WAIT, BindingAnswer.GIVE_UP]


async def test_the_next_allocation_of_a_claim_that_was_given_up_is_tried(scene: Scene) -> None:
    ref = scene.claim()
    scene.error = HardwareError("the GPU is in use")
    async with scene.at_work(patience_s=0.0) as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: scene.answers == [BindingAnswer.WAIT, BindingAnswer.GIVE_UP])
        scene.error = None
        scene.claim("train", a_result(1, **BINDS))
        await eventually(lambda: scene.outcomes[-1] == ([device_name(1)], None))


async def test_what_every_node_would_refuse_is_bound_and_no_device_is_blamed(scene: Scene) -> None:
    ref = scene.claim()
    scene.error = InvalidConfig("no such interval")
    async with scene.at_work(patience_s=0.0) as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: scene.answers)
    assert {*scene.answers} == {BindingAnswer.BIND}
    assert scene.outcomes == []


async def test_no_answer_is_given_about_an_allocation_that_went_meanwhile(scene: Scene) -> None:
    """The error is about the next allocation, which is another node's. Seed 45128296 of the campaign."""
    ref = scene.claim()
    scene.error = InvalidConfig("the device is in pool node-b")
    scene.before_error = lambda: scene.claim("train", a_result(0, pool="node-b", **BINDS))
    async with scene.at_work(patience_s=0.0) as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: scene.prepared)
        reads = scene.api.reads
        await eventually(lambda: scene.api.reads > reads + 1)
    assert scene.refusals == [] and scene.outcomes == []


async def test_an_api_server_that_does_not_answer_is_no_fault_of_the_node(scene: Scene) -> None:
    ref = scene.claim()
    scene.error = Unreachable("no answer")
    async with scene.at_work(patience_s=0.0) as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: len(scene.answers) > 2)
        assert {*scene.answers} == {BindingAnswer.WAIT}
        scene.api.away = Unreachable("no answer")
        await asyncio.sleep(0.05)
        scene.api.away, scene.error = None, None
        await eventually(lambda: scene.outcomes)


async def test_a_claim_that_makes_no_sense_is_reported_as_such(scene: Scene) -> None:
    ref = scene.claim()
    scene.api.put({**a_claim(ref), "status": []})
    with capture_logs() as logs:
        async with scene.at_work() as binding:
            binding.saw(inventory(ref))
            await eventually(lambda: logs)
    assert {line["event"] for line in logs} == {"a claim that waits for this node cannot be read"}


@pytest.mark.parametrize("result", [a_result(0), a_result(0, pool="node-b", **BINDS), None])
async def test_a_claim_that_does_not_wait_for_this_node_is_left_alone(scene: Scene, result: JsonObject | None) -> None:
    ref = scene.api.put(a_claim(a_ref(), *([] if result is None else [result])))
    async with scene.at_work() as binding:
        binding.saw(inventory(ref, a_ref("gone"), a_ref("train", uid="another")))
        await eventually(lambda: scene.api.reads > 3)
    assert scene.prepared == []


async def test_claims_of_the_other_driver_are_not_its_own(scene: Scene) -> None:
    ref = scene.claim()
    async with scene.at_work() as binding:
        binding.saw(inventory(ref, driver=COMPUTE_DOMAIN_DRIVER))
        await asyncio.sleep(0.05)
    assert scene.api.reads == 0


async def test_an_inventory_that_makes_no_sense_changes_nothing(scene: Scene) -> None:
    ref = scene.claim()
    async with scene.at_work() as binding:
        binding.saw(inventory(ref))
        binding.saw({"status": {"bindingClaims": [{"driver": 7}]}})
        await eventually(lambda: scene.prepared)


async def test_what_was_given_up_is_looked_for_when_the_names_change(scene: Scene) -> None:
    async with scene.at_work() as binding:
        await eventually(lambda: scene.looks == 1)
        binding.saw(inventory(scene.claim()))
        await eventually(lambda: scene.looks >= 2)
        looks = scene.looks
        binding.saw(inventory())
        await eventually(lambda: scene.looks > looks)


async def test_a_release_that_takes_long_keeps_no_claim_from_being_prepared(scene: Scene) -> None:
    scene.release = asyncio.Event()
    ref = scene.claim()
    async with scene.at_work() as binding:
        await eventually(lambda: scene.looks == 1)
        binding.saw(inventory(ref))
        await eventually(lambda: scene.prepared == [ref])
    assert scene.looks == 1


async def test_of_a_claim_that_is_named_no_more_nothing_is_said(scene: Scene) -> None:
    ref = scene.claim()
    async with scene.at_work() as binding:
        binding.saw(inventory(ref))
        await eventually(lambda: scene.prepared)
        assert scene.no_longer == []
        binding.saw(inventory())
        await eventually(lambda: scene.no_longer)
        ((uid, looks),) = scene.no_longer
        assert uid == ref.uid
        # It may have been prepared after the names changed.
        await eventually(lambda: scene.looks > looks)
        binding.saw(inventory(ref))
        count = len(scene.prepared)
        await eventually(lambda: len(scene.prepared) > count)


@pytest.mark.parametrize("lack", [DomainLack.READY_DAEMON, DomainLack.OTHER_NODES])
async def test_a_domain_is_given_up_only_for_what_is_wrong_with_this_node(scene: Scene, lack: DomainLack) -> None:
    of_node = lack is DomainLack.READY_DAEMON
    scene.error = DomainNotReady("not ready", lack=lack)
    async with scene.at_work(patience_s=0.0) as binding:
        binding.saw(inventory(scene.claim()))
        # The attempt before the last one only blames the devices.
        await eventually(lambda: BindingAnswer.GIVE_UP in scene.answers if of_node else len(scene.prepared) > 3)
    assert (BindingAnswer.GIVE_UP in scene.answers) is of_node


async def test_a_node_that_another_domain_has_is_given_up_at_once_and_its_channels_get_no_taint(scene: Scene) -> None:
    """They are those of the other domain's next pods, and nothing is wrong with them."""
    scene.error = DomainNotReady("not ready", lack=DomainLack.FREE_NODE)
    async with scene.at_work() as binding:
        binding.saw(inventory(scene.claim()))
        await eventually(lambda: len(scene.again) > 2)
    assert (scene.answers, scene.outcomes) == ([BindingAnswer.GIVE_UP], [])


async def test_a_node_that_has_seen_no_hardware_yet_can_give_up_too(scene: Scene) -> None:
    """The driver hangs since the plugin started: no GPU can be tainted, and the answer must come nevertheless."""

    class Unseen:
        @property
        def facts(self) -> NodeFacts:
            raise NodeNotReady("the hardware has not been read yet")

    settings: Any = SimpleNamespace(driver_name=GPU_DRIVER, node_name=NODE)
    watch: Any = SimpleNamespace(facts=Unseen())
    binding = binding_of_gpus(settings, ClaimReader(scene.api), scene, scene, watch, NodeOffers(NodeRules(), NODE))
    binding._outcome([device_name(0)], NodeNotReady("the hardware has not been read yet"))
