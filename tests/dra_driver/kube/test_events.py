"""Events: the same thing is one Event with a series, floods are cut short, refusals stay quiet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from support.background import background
from support.plugin import eventually

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import NotFound, Rejected, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.events import EVENTS_V1, EventRecorder, News, Regarding
from dra_driver.kube.metrics import DroppedEvents
from dra_driver.names import ClaimRef
from dra_driver.simulation.apiserver.server import SimulatedApiServer

NODE = Regarding.node("node-1")
CLAIM = Regarding.claim(ClaimRef("default", "train", "uid-of-train"))


def news(note: str = "GPU gpu-1: Xid: 79.", regarding: Regarding = NODE, reason: str = "GpuUnhealthy") -> News:
    return News(regarding, "Warning", reason, "Watch", note)


def recorder(kube: Any, **more: Any) -> EventRecorder:
    return EventRecorder(kube, controller="gpu.nvidia.com/kubelet-plugin", instance="node-1", **more)


@asynccontextmanager
async def running(events: EventRecorder) -> AsyncIterator[EventRecorder]:
    async with background(events.run()):
        yield events


class Writes:
    """Takes writes, or refuses them."""

    def __init__(self) -> None:
        self.created: list[JsonObject] = []
        self.patched: list[JsonObject] = []
        self.refusals: list[Exception] = []

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject:
        self._refuse()
        self.created.append(obj)
        return obj

    async def merge_patch(self, resource: Resource, name: str, patch: JsonObject, *, namespace: str) -> JsonObject:
        self._refuse()
        assert name in [event["metadata"]["name"] for event in self.created]
        self.patched.append(patch)
        return patch

    def _refuse(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)


async def events_of(kube: Kube, namespace: str = "default") -> list[JsonObject]:
    return (await kube.list(EVENTS_V1, namespace=namespace)).items


async def test_what_began_before_a_restart_is_not_told_anew_by_the_next_process(kube: Kube) -> None:
    began = replace(news(), since="2026-01-01T00:00:00Z")
    for _ in range(3):
        events = recorder(kube)
        events.tell(began)
        await events.write()
    assert len(await events_of(kube)) == 1
    events = recorder(kube)
    events.tell(replace(began, since="2026-01-02T00:00:00Z"))
    events.tell(began)
    events.tell(began)
    await events.write()
    assert sorted(event.get("series", {}).get("count", 1) for event in await events_of(kube)) == [1, 2]


async def test_what_is_told_again_is_the_series_of_one_event(api_server: SimulatedApiServer, kube: Kube) -> None:
    events = recorder(kube)
    events.tell(news())
    await events.write()
    (first,) = await events_of(kube)
    assert (first["regarding"]["kind"], first["regarding"]["name"], first["type"]) == ("Node", "node-1", "Warning")
    assert (first["reason"], first["note"]) == ("GpuUnhealthy", "GPU gpu-1: Xid: 79.")
    assert "series" not in first
    events.tell(news())
    await events.write()
    (second,) = await events_of(kube)
    assert second["series"]["count"] == 2
    for _ in range(10):
        events.tell(news())
    await events.write()
    assert (await events_of(kube))[0]["series"]["count"] == 2, "a series is written once a minute"


async def test_a_series_goes_on_at_its_interval_and_ends_with_its_window() -> None:
    writes, now = Writes(), [datetime(2026, 1, 1, tzinfo=UTC)]
    events = recorder(writes, series_every_s=0.05, now=lambda: now[0])
    async with running(events):
        for _ in range(4):
            events.tell(news())
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert len(writes.created) == 1
        assert writes.patched[-1]["series"] == {"count": 4, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}
        now[0] += timedelta(minutes=7)
        events.tell(news())
        await asyncio.sleep(0.05)
    assert len(writes.created) == 2


async def test_events_of_claims_live_in_their_namespace_and_long_notes_are_shortened(
    api_server: SimulatedApiServer, kube: Kube
) -> None:
    events = recorder(kube)
    events.tell(news("ä" * 2000, CLAIM, "PrepareFailed"))
    await events.write()
    (event,) = await events_of(kube)
    assert event["regarding"]["uid"] == "uid-of-train"
    assert len(event["note"].encode()) <= 1024


async def test_one_object_cannot_flood_for_one_reason() -> None:
    writes = Writes()
    events = recorder(writes)
    for number in range(50):
        events.tell(news(f"at {number}"))
    events.tell(news("another", reason="GpuHealthy"))
    await events.write()
    assert [event["note"] for event in writes.created] == ["at 0", "at 1", "at 2", "at 3", "at 4", "another"]
    assert events.dropped == {"object": 45}


async def test_one_object_cannot_flood_with_ever_other_reasons_nor_can_one_that_waits_for_each_write() -> None:
    writes = Writes()
    events = recorder(writes, burst=1000)
    for number in range(30):
        events.tell(news(reason=f"Reason{number}"))
    await events.write()
    assert (len(writes.created), events.dropped) == (25, {"object": 5})
    for number in range(30):
        await events.write_once(news(regarding=CLAIM), f"key {number}")
    assert (len(writes.created), events.dropped) == (50, {"object": 10})


async def test_all_writes_of_a_process_share_one_pace(monkeypatch: Any) -> None:
    """New Events, those that somebody waits for, and series."""
    clock = asyncio.get_running_loop().time()
    sleep = asyncio.sleep

    async def skipped(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        await sleep(0)

    monkeypatch.setattr("dra_driver.kube.events.asyncio.sleep", skipped)
    monkeypatch.setattr("dra_driver.kube.events._clock", lambda: clock)
    began, writes = clock, Writes()
    events = recorder(writes, burst=10)
    nodes = [news(regarding=Regarding.node(f"node-{number}")) for number in range(20)]
    for _ in range(2):
        for each in nodes:
            events.tell(each)
        await events.write()
    for number in range(10):
        await events.write_once(news(regarding=Regarding.node(f"other-{number}")), "key")
    assert (len(writes.created), len(writes.patched), clock - began) == (30, 20, 40.0)


def test_prometheus_counts_what_was_dropped() -> None:
    (family,) = DroppedEvents({"object": 3}).collect()
    counts = {(sample.name, sample.labels["limit"]): sample.value for sample in family.samples}
    limits = {"object": 3, "process": 0, "refused": 0}
    assert counts == {("gpu_dra_events_dropped_total", limit): number for limit, number in limits.items()}


async def test_after_a_burst_events_are_written_slowly_and_too_many_are_dropped() -> None:
    writes = Writes()
    events = recorder(writes, burst=3, pause_s=0.1)
    for number in range(120):
        events.tell(news(regarding=Regarding.node(f"node-{number}")))
    assert events.dropped == {"process": 20}
    async with running(events):
        await asyncio.sleep(0.05)
        assert len(writes.created) == 3
        await asyncio.sleep(0.1)
        assert len(writes.created) in (4, 5)


async def test_a_cluster_that_does_not_allow_events_is_left_alone() -> None:
    writes = Writes()
    writes.refusals = [Rejected("forbidden", status=403)]
    events = recorder(writes)
    events.tell(news())
    events.tell(news("other"))
    await events.write()
    events.tell(news("third"))
    await events.write()
    assert (writes.created, events.dropped) == ([], {"refused": 3})


async def test_an_api_server_that_is_away_gets_them_later() -> None:
    writes = Writes()
    writes.refusals = [Unreachable("away", retry_after_s=0.0)]
    events = recorder(writes)
    async with running(events):
        events.tell(news())
        await eventually(lambda: writes.created)
    assert len(writes.created) == 1


async def test_an_event_that_expired_is_told_by_a_new_one() -> None:
    writes = Writes()
    events = recorder(writes)
    events.tell(news())
    await events.write()
    writes.refusals = [NotFound("gone", status=404)]
    events.tell(news())
    await events.write()
    events.tell(news())
    await events.write()
    assert len(writes.created) == 2
