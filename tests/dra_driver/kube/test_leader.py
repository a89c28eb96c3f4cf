"""One candidate works at a time; another takes over when it stops, dies or cannot renew."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.observed_api import ObservedApiServer

from dra_driver.api.meta import LEASES, JsonObject, Resource
from dra_driver.errors import NodeNotReady, Unreachable
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.leader import LeaderElection, LeaseTimes

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Time:
    """A clock that moves when everybody sleeps; requests take no time on it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.candidates: list[asyncio.Task[None]] = []
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def clock(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)

    async def sleep(self, seconds: float) -> None:
        due = (self.now_s + seconds, asyncio.Event())
        self._sleepers.append(due)
        try:
            await due[1].wait()
        finally:
            if due in self._sleepers:
                self._sleepers.remove(due)

    async def passes(self, seconds: float) -> None:
        """Wakes sleepers in order, and lets each do what it does before the next."""
        end = self.now_s + seconds
        while True:
            await self._everybody_sleeps()
            due = sorted((item for item in self._sleepers if item[0] <= end), key=lambda item: item[0])
            if not due:
                break
            self.now_s = max(self.now_s, due[0][0])
            self._sleepers.remove(due[0])
            due[0][1].set()
        self.now_s = end

    async def _everybody_sleeps(self) -> None:
        """Whatever requests were under way have been answered."""
        async with asyncio.timeout(10):
            while True:
                if len(self._sleepers) == sum(not task.done() for task in self.candidates):
                    return
                await asyncio.sleep(0.001)


class Candidate:
    def __init__(self, kube: Kube, time: Time, identity: str, times: LeaseTimes | None = None) -> None:
        self.time = time
        self.working = False
        self.terms = 0
        self.failure: Exception | None = None
        self.election = LeaderElection(
            kube,
            namespace="default",
            name="test",
            identity=identity,
            times=times,
            clock=time.clock,
            now=time.now,
            sleep=time.sleep,
        )

    async def work(self) -> None:
        self.working = True
        self.terms += 1
        try:
            if self.failure is not None:
                raise self.failure
            await asyncio.Event().wait()
        finally:
            self.working = False


@asynccontextmanager
async def running(candidate: Candidate) -> AsyncIterator["asyncio.Task[None]"]:
    async def terms() -> None:
        while True:
            await candidate.election.lead(candidate.work)

    task: asyncio.Task[None] = asyncio.create_task(terms())
    candidate.time.candidates.append(task)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def time() -> Time:
    return Time()


async def lease(kube: Kube) -> JsonObject:
    spec: JsonObject = (await kube.get(LEASES, "test", "default"))["spec"]
    return spec


async def test_the_first_candidate_leads_and_the_second_waits(kube: Kube, time: Time) -> None:
    first, second = Candidate(kube, time, "one"), Candidate(kube, time, "two")
    async with running(first):
        await time.passes(1)
        async with running(second):
            await time.passes(60)
            assert (first.working, second.working) == (True, False)
            spec = await lease(kube)
            assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", 15, 0)
            assert spec["acquireTime"].startswith("2026-11-21T12:00:00")
            assert spec["renewTime"] > "2026-11-21T12:00:55"


async def test_who_cannot_ask_for_the_lease_is_not_ready_and_who_waits_for_it_is(
    api_server: ObservedApiServer, kube: Kube, time: Time
) -> None:
    first, second = Candidate(kube, time, "one"), Candidate(kube, time, "two")
    assert first.election.problem() == "the lease has not been read yet"
    async with running(first):
        await time.passes(1)
        async with running(second):
            await time.passes(6)
            assert (first.election.problem(), second.election.problem()) == (None, None)
            api_server.fail_next("*", "/leases", 500, times=1000, message="away")
            await time.passes(6)
            assert "away" in str(first.election.problem()) and "away" in str(second.election.problem())
            api_server.clear_faults()
            await time.passes(6)
            assert (first.election.problem(), second.election.problem()) == (None, None)


async def test_at_rest_the_lease_is_all_that_is_written(api_server: ObservedApiServer, kube: Kube, time: Time) -> None:
    async with running(Candidate(kube, time, "one")):
        await time.passes(1)
        api_server.writes.clear()
        await time.passes(60)
    during = api_server.writes[:-1]
    assert {(write.verb, write.resource) for write in during} == {("update", "leases")}
    assert len(during) == 30


async def test_a_leader_that_stops_gives_the_lease_back_and_another_takes_over_without_waiting(
    kube: Kube, time: Time
) -> None:
    first, second = Candidate(kube, time, "one"), Candidate(kube, time, "two")
    async with running(second), running(first):
        await time.passes(20)
        assert first.working != second.working
    assert (await lease(kube))["holderIdentity"] == ""
    async with running(Candidate(kube, time, "three")) as _:
        await time.passes(3)
        assert (await lease(kube))["holderIdentity"] == "three"
    assert (await lease(kube))["leaseTransitions"] >= 1


async def test_a_lease_that_changed_while_it_was_given_back_is_given_back_again(
    api_server: ObservedApiServer, kube: Kube, time: Time
) -> None:
    candidate = Candidate(kube, time, "one")
    async with running(candidate) as task:
        await time.passes(1)
        api_server.writes.clear()
        api_server.fail_next("PUT", "/leases/", 409)
        task.cancel()
        async with asyncio.timeout(1):  # once given back, nothing more is tried
            await asyncio.gather(task, return_exceptions=True)
    assert (await lease(kube))["holderIdentity"] == ""
    assert [write.status for write in api_server.writes] == [409, 200]


async def test_a_leader_that_died_is_respected_for_the_duration_of_its_lease(kube: Kube, time: Time) -> None:
    dead = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "1999-01-01T00:00:00.000000Z"}
    obj = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "test"}, "spec": dead}
    await kube.create(LEASES, obj, namespace="default")
    second = Candidate(kube, time, "two")
    async with running(second):
        await time.passes(14)
        assert not second.working, "the time in the lease is another machine's and proves nothing"
        await time.passes(1)
        assert second.working, "who waits does not sleep past the end of the lease"
    assert (await lease(kube))["leaseTransitions"] == 1


async def test_a_leader_that_cannot_renew_stops_before_another_may_begin(
    api_server: ObservedApiServer, kube: Kube, time: Time
) -> None:
    candidate = Candidate(kube, time, "one")
    async with running(candidate):
        await time.passes(5)
        assert candidate.working
        api_server.fail_next("*", "/leases", 500, times=1000)
        await time.passes(8)
        assert candidate.working, "a server may be away for a moment"
        await time.passes(4)
        assert not candidate.working
        assert candidate.election.failure is not None
        api_server.clear_faults()
        await time.passes(5)
        assert candidate.working and candidate.terms == 2
        assert candidate.election.failure is None


async def test_a_leader_that_stood_still_past_the_end_of_its_term_may_not_write(kube: Kube, time: Time) -> None:
    candidate = Candidate(kube, time, "one")
    candidate.election.check_term()
    async with running(candidate):
        await time.passes(1)
        candidate.election.check_term()
        time.now_s += 11
        assert candidate.working, "it has not noticed yet"
        with pytest.raises(Unreachable, match="Lease default/test: this replica led, and its term ended"):
            candidate.election.check_term()


async def test_a_term_is_counted_from_before_the_request_for_others_see_it_before_its_answer(
    api_server: ObservedApiServer, time: Time
) -> None:
    class Slow(Kube):
        """The answer to the first renewal comes six seconds after the server has done it; the next fail."""

        answers: list[float] = []  # noqa: RUF012

        async def replace(self, resource: Resource, obj: JsonObject, **more: Any) -> JsonObject:
            answer = await super().replace(resource, obj, **more)
            self.answers.append(time.now_s)
            time.now_s += 6
            api_server.fail_next("*", "/leases", 500, times=1000)
            return answer

    async with Slow(Endpoint(api_server.url)) as kube:
        candidate = Candidate(kube, time, "one")
        async with running(candidate):
            while not kube.answers:
                await time.passes(1)
            written_s = kube.answers[0]
            await time.passes(written_s + 9.9 - time.now_s)
            assert candidate.working
            await time.passes(0.2)
            assert not candidate.working, (
                "others take over 15 s after the lease was written, whenever that was answered"
            )


async def test_an_api_server_that_does_not_answer_is_told_of_in_time(api_server: ObservedApiServer) -> None:
    class Silent(Kube):
        async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
            await asyncio.Event().wait()
            raise AssertionError

    async with Silent(Endpoint(api_server.url)) as kube:
        times = LeaseTimes(lease_s=0.3, renew_s=0.2, retry_s=0.1)
        election = LeaderElection(kube, namespace="default", name="test", identity="one", times=times)
        task = asyncio.create_task(election.lead(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0.3)
        assert election.problem() == "Lease default/test: no answer from the API server within 0.2 s"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("lease_s", "renew_s"), [(1.4, 1.3), (2.5, 2.4), (15.0, 10.0)])
async def test_others_respect_a_lease_for_longer_than_its_holder_works(
    kube: Kube, time: Time, lease_s: float, renew_s: float
) -> None:
    """Also where it is given in parts of a second, which leases do not have."""
    candidate = Candidate(kube, time, "one", LeaseTimes(lease_s=lease_s, renew_s=renew_s, retry_s=0.5))
    async with running(candidate):
        await time.passes(1)
        assert (await lease(kube))["leaseDurationSeconds"] > renew_s


async def test_a_leader_that_lost_its_lease_stops_at_the_next_renewal(kube: Kube, time: Time) -> None:
    candidate = Candidate(kube, time, "one")
    async with running(candidate):
        await time.passes(1)
        obj = await kube.get(LEASES, "test", "default")
        obj["spec"].update(holderIdentity="thief", leaseDurationSeconds=3600)
        await kube.replace(LEASES, obj)
        await time.passes(5)
        assert not candidate.working
        assert (await lease(kube))["holderIdentity"] == "thief"


async def test_somebody_elses_note_on_the_lease_costs_no_term(kube: Kube, time: Time) -> None:
    candidate = Candidate(kube, time, "one")
    async with running(candidate):
        await time.passes(1)
        await kube.merge_patch(LEASES, "test", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
        await time.passes(10)
        assert candidate.working and candidate.terms == 1
    assert (await kube.get(LEASES, "test", "default"))["metadata"]["labels"] == {"a": "b"}


async def test_work_that_fails_ends_the_candidacy_and_frees_the_lease(kube: Kube, time: Time) -> None:
    candidate = Candidate(kube, time, "one")
    candidate.failure = NodeNotReady("broken")
    async with running(candidate) as task:
        await time.passes(1)
        with pytest.raises(NodeNotReady):
            await task
    assert (await lease(kube))["holderIdentity"] == ""


async def test_work_that_ends_by_itself_is_an_error(kube: Kube, time: Time) -> None:
    election = Candidate(kube, time, "one").election
    with pytest.raises(RuntimeError, match="ended by itself"):
        await election.lead(lambda: asyncio.sleep(0))
    assert (await lease(kube))["holderIdentity"] == ""


async def test_the_lease_is_given_back_when_the_work_has_ended_and_not_before(kube: Kube, time: Time) -> None:
    candidate = Candidate(kube, time, "one")
    holders = []

    async def slow_to_end() -> None:
        try:
            await candidate.work()
        finally:
            await asyncio.sleep(0.01)
            holders.append((await lease(kube))["holderIdentity"])

    task = asyncio.create_task(candidate.election.lead(slow_to_end))
    time.candidates.append(task)
    await time.passes(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert holders == ["one"]
    assert (await lease(kube))["holderIdentity"] == ""
    assert not candidate.election.leading


@pytest.mark.parametrize("exists", [True, False])
async def test_of_two_that_write_the_lease_at_once_only_one_leads(
    api_server: ObservedApiServer, kube: Kube, time: Time, exists: bool
) -> None:
    class Outrun(Kube):
        """Whatever it reads, another candidate writes the lease before it does."""

        async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
            try:
                return await super().get(resource, name, namespace)
            finally:
                if not first.working:
                    leading.append(await leads.enter_async_context(running(first)))
                    await first.time.passes(0)

    first, leading = Candidate(kube, Time(), "first"), list[asyncio.Task[None]]()
    if exists:
        obj = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "test"}, "spec": {}}
        await kube.create(LEASES, obj, namespace="default")
    async with Outrun(Endpoint(api_server.url)) as outrun, AsyncExitStack() as leads:
        second = Candidate(outrun, time, "second")
        async with running(second):
            await time.passes(10)
            assert (first.terms, second.terms) == (1, 0)
            assert (await lease(kube))["holderIdentity"] == "first"
            assert second.election.problem() is None


async def test_who_takes_over_says_since_when(kube: Kube, time: Time) -> None:
    before = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "acquireTime": "1999-01-01T00:00:00.000000Z"}
    obj = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "test"}, "spec": before}
    await kube.create(LEASES, obj, namespace="default")
    async with running(Candidate(kube, time, "two")):
        await time.passes(10)
        assert (await lease(kube))["acquireTime"] > "2026-11-21T12:00:00"


async def test_a_defect_in_renewing_ends_the_candidacy(api_server: ObservedApiServer, kube: Kube, time: Time) -> None:
    class Defective(Kube):
        defects = iter([ZeroDivisionError()])

        async def replace(self, resource: Resource, obj: JsonObject, **more: Any) -> JsonObject:
            for defect in self.defects:
                raise defect
            return await super().replace(resource, obj, **more)

    async with Defective(Endpoint(api_server.url)) as defective:
        candidate = Candidate(defective, time, "one")
        async with running(candidate) as task:
            await time.passes(3)
            with pytest.raises(ZeroDivisionError):
                await task


async def test_a_lease_that_another_took_is_not_given_back_by_who_had_it(
    api_server: ObservedApiServer, kube: Kube, time: Time
) -> None:
    class Lost(Kube):
        """Another takes the lease when it has been read and is not yet given back."""

        async def replace(self, resource: Resource, obj: JsonObject, **more: Any) -> JsonObject:
            if obj["spec"]["holderIdentity"] == "":
                stolen = await kube.get(LEASES, "test", "default")
                stolen["spec"].update(holderIdentity="thief")
                await kube.replace(LEASES, stolen)
            return await super().replace(resource, obj, **more)

    async with Lost(Endpoint(api_server.url)) as lost:
        async with running(Candidate(lost, time, "one")):
            await time.passes(1)
        assert (await lease(kube))["holderIdentity"] == "thief"


async def test_a_server_that_is_away_keeps_nobody_from_ending(
    api_server: ObservedApiServer, kube: Kube, time: Time
) -> None:
    async with running(Candidate(kube, time, "one")) as task:
        await time.passes(1)
        api_server.fail_next("*", "/leases", 500, times=1000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    api_server.clear_faults()
    assert (await lease(kube))["holderIdentity"] == "one"


async def test_a_renewal_that_was_cut_short_does_not_keep_the_lease_from_being_given_back(
    api_server: ObservedApiServer, time: Time
) -> None:
    class CutShort(Kube):
        """The server does what it is asked to, and the answer never arrives."""

        sent = asyncio.Event()

        async def replace(self, resource: Resource, obj: JsonObject, **more: Any) -> JsonObject:
            answer = await super().replace(resource, obj, **more)
            if not self.sent.is_set():
                self.sent.set()
                await asyncio.Event().wait()
            return answer

    async with CutShort(Endpoint(api_server.url)) as kube:
        candidate = Candidate(kube, time, "one")
        async with running(candidate) as task:
            await time.passes(1)
            passing = asyncio.create_task(time.passes(2))
            await asyncio.wait_for(kube.sent.wait(), 10)
            passing.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await lease(kube))["holderIdentity"] == ""


async def test_a_server_that_is_away_at_the_start_is_waited_for(time: Time) -> None:
    server = ObservedApiServer()
    await server.start()
    await server.stop()
    async with Kube(Endpoint(server.url)) as kube:
        candidate = Candidate(kube, time, "one")
        async with running(candidate):
            await time.passes(30)
            assert not candidate.working
            await server.start()
            await time.passes(5)
            assert candidate.working
    await server.stop()
