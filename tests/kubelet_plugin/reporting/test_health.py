"""What kubelet is told of the devices' health."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from support.claims import a_gpu, node_facts

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import ComputeInstanceFacts, HealthCondition, HealthFacts
from dra_driver.devices.model import DeviceKind, Offer, Partition
from dra_driver.errors import NodeNotReady
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.node_watch import instance_of
from kubelet_plugin.reporting.health import PublishedHealth


class Facts:
    """Facts that a test sets."""

    def __init__(self, facts: NodeFacts | None) -> None:
        self._facts = facts
        self._listeners: list[Callable[[NodeFacts], None]] = []

    @property
    def facts(self) -> NodeFacts:
        if self._facts is None:
            raise NodeNotReady("not looked at yet")
        return self._facts

    def subscribe(self, listener: Callable[[NodeFacts], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: None

    def become(self, facts: NodeFacts) -> None:
        self._facts = facts
        for listener in self._listeners:
            listener(facts)


class Offers:
    """Every GPU by its name, and what else a test says."""

    def __init__(self, *more: Offer) -> None:
        self._more = more

    def of(self, facts: NodeFacts) -> Mapping[str, Offer]:
        whole = [Offer(gpu.name, DeviceKind.GPU, gpu) for gpu in facts.gpus]
        gpus = {gpu.uuid: gpu for gpu in facts.gpus}
        more = [replace(offer, gpu=gpus[offer.gpu.uuid]) for offer in self._more]
        return {offer.name: offer for offer in (*whole, *more)}


def health_of(
    facts: Facts, *more: Offer, policy: HealthPolicy | None = None, now: Callable[[], float] = lambda: 100.7
) -> PublishedHealth:
    instance = partial(instance_of, records={})
    return PublishedHealth(facts, Offers(*more), "node-a", lambda: policy or HealthPolicy(), instance, now=now)


def sick(*conditions: HealthCondition) -> HealthFacts:
    return HealthFacts(healthy=False, conditions=list(conditions))


LOST = HealthCondition(type="GpuLost", severity="Critical", message="off the bus", since="2026-01-01T00:00:00Z")


def test_every_readable_gpu_is_listed_by_its_published_name() -> None:
    health = health_of(Facts(node_facts(2)))
    assert [(state.pool, state.device, state.healthy, state.since) for state in health.device_health()] == [
        ("node-a", "gpu-00000000", True, 100),
        ("node-a", "gpu-00000001", True, 100),
    ]


def test_nothing_is_claimed_before_the_hardware_was_seen() -> None:
    assert list(health_of(Facts(None)).device_health()) == []


def test_a_gpu_that_is_not_readable_any_more_is_not_listed() -> None:
    facts = Facts(node_facts(2))
    health = health_of(facts)
    facts.become(node_facts([a_gpu(0)]))
    assert [state.device for state in health.device_health()] == ["gpu-00000000"]


def test_a_sick_gpu_is_unhealthy_since_it_was_first_seen_so_and_says_why() -> None:
    facts, now = Facts(node_facts(1)), iter([100.0, 200.0, 300.0])
    health = health_of(facts, now=lambda: next(now))
    health.device_health()
    facts.become(node_facts([a_gpu(0, health=sick(LOST))]))
    health.device_health()
    (state,) = health.device_health()
    assert (state.healthy, state.since, state.message) == (False, 200, "GpuLost: off the bus")


def test_partitions_inherit_what_befalls_their_gpu_and_keep_what_befalls_one_of_them_to_themselves() -> None:
    mine = LOST.model_copy(update={"type": "InstanceLost", "instance": "MIG-a"})
    part = ComputeInstanceFacts(id=0, uuid="MIG-a", profile="1g.10gb", slices=1)
    other = part.model_copy(update={"uuid": "MIG-b"})
    gpu = a_gpu(0)
    offers = [
        Offer(
            f"gpu-00000000-mig-1g10gb-{start}", DeviceKind.MIG, gpu, Partition("1g.10gb", start, 1), existing=instance
        )
        for start, instance in ((0, part), (1, other))
    ]
    facts = Facts(node_facts([a_gpu(0, health=sick(mine))]))
    assert [state.healthy for state in health_of(facts, *offers).device_health()] == [False, False, True]
    facts.become(node_facts([a_gpu(0, health=sick(LOST))]))
    assert [state.healthy for state in health_of(facts, *offers).device_health()] == [False, False, False]


def test_what_an_administrator_ignores_makes_no_device_unhealthy() -> None:
    xid = LOST.model_copy(update={"type": "Xid", "value": "79"})
    facts = Facts(node_facts([a_gpu(0, health=sick(xid))]))
    (state,) = health_of(facts, policy=HealthPolicy(ignore_xids=[79])).device_health()
    assert state.healthy


async def test_everybody_who_waits_hears_of_a_change_and_nobody_of_one_before() -> None:
    facts = Facts(node_facts(2))
    health = health_of(facts)
    facts.become(node_facts(1))
    first, second = (asyncio.ensure_future(health.health_changed()) for _ in range(2))
    await asyncio.sleep(0)
    assert not first.done()
    first.cancel()
    facts.become(node_facts(2))
    await asyncio.wait_for(second, 1.0)
