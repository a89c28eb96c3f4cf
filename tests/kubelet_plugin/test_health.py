"""What kubelet is told of the devices' health."""

import asyncio
from collections.abc import Callable

from support.claims import a_gpu, node_facts

from dra_driver.api.inventory import HealthFacts
from dra_driver.errors import NodeNotReady
from kubelet_plugin.discovery import NodeFacts
from kubelet_plugin.health import NodeHealth


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


def test_every_readable_gpu_is_listed_by_its_published_name() -> None:
    health = NodeHealth(Facts(node_facts(2)), "node-a", lambda: 100.7)
    assert [(one.pool, one.device, one.healthy, one.since) for one in health.device_health()] == [
        ("node-a", "gpu-00000000", True, 100),
        ("node-a", "gpu-00000001", True, 100),
    ]


def test_nothing_is_claimed_before_the_hardware_was_seen() -> None:
    assert list(NodeHealth(Facts(None), "node-a").device_health()) == []


def test_a_gpu_that_is_not_readable_any_more_is_not_listed() -> None:
    facts = Facts(node_facts(2))
    health = NodeHealth(facts, "node-a")
    facts.become(node_facts([a_gpu(0)]))
    assert [one.device for one in health.device_health()] == ["gpu-00000000"]


def test_a_sick_gpu_is_unhealthy_since_it_was_first_seen_so_and_says_why() -> None:
    facts, now = Facts(node_facts(1)), iter([100.0, 200.0, 300.0])
    health = NodeHealth(facts, "node-a", lambda: next(now))
    health.device_health()
    facts.become(node_facts([a_gpu(0, health=HealthFacts(healthy=False, reason="GpuIsLost", message="off the bus"))]))
    health.device_health()
    (sick,) = health.device_health()
    assert (sick.healthy, sick.since, sick.message) == (False, 200, "GpuIsLost: off the bus")


async def test_everybody_who_waits_hears_of_a_change_and_nobody_of_one_before() -> None:
    facts = Facts(node_facts(2))
    health = NodeHealth(facts, "node-a")
    facts.become(node_facts(1))
    first, second = (asyncio.ensure_future(health.health_changed()) for _ in range(2))
    await asyncio.sleep(0)
    assert not first.done()
    first.cancel()
    facts.become(node_facts(2))
    await asyncio.wait_for(second, 1.0)
