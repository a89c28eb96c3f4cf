"""Events of the GPUs: heard as long as they can be heard, and never at the price of a core."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest
from support.background import background
from support.mishaps import fail_call
from support.plugin import eventually
from support.replaced_nvml import Library

from kubelet_plugin.facts import watcher as watcher_module
from kubelet_plugin.facts.hardware import NvmlSource
from kubelet_plugin.facts.watcher import Coverage, EventWatcher, GpuEvent
from kubelet_plugin.simulation.host import SimulatedHost, create_host

WAIT = "nvmlEventSetWait_v2"
FOR_EVER_S = 3600.0
"""Whoever sleeps as long does nothing more in a test."""
LOST, TIMEOUT = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_TIMEOUT


class Listener:
    """A watcher of a simulated node, with what it heard and how often it called the library."""

    def __init__(self, folder: Path) -> None:
        self.host: SimulatedHost = create_host(folder, "dgx-h100")
        self.uuids = [gpu.uuid for gpu in self.host.state.gpus]
        self.answers: dict[str, Callable[..., Any]] = {}
        self.libraries: list[Library] = []
        self.events: list[GpuEvent] = []
        self.coverage: list[Coverage] = []

    def open_nvml(self) -> NvmlSource:
        library = Library(self.host.root)
        library.answers = self.answers
        self.libraries.append(library)
        return NvmlSource(library, "/")

    @property
    def waits(self) -> int:
        return sum(library.calls.count(WAIT) for library in self.libraries)

    @property
    def monitored(self) -> frozenset[str]:
        return self.coverage[-1].monitored if self.coverage else frozenset()

    @asynccontextmanager
    async def listening(
        self, *, wait_s: float = 0.05, retry_s: tuple[float, ...] = (0.0,), again_s: float = FOR_EVER_S
    ) -> AsyncIterator[EventWatcher]:
        watcher = EventWatcher(
            self.open_nvml, self.events.append, self.coverage.append, wait_s=wait_s, retry_s=retry_s, again_s=again_s
        )
        async with background(watcher.run()):
            yield watcher


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    return Listener(tmp_path)


async def at_rest(count: Callable[[], int]) -> int:
    """The count once it stays as it is for a while. Fails when it never does."""
    async with asyncio.timeout(20):
        while True:
            before = count()
            await asyncio.sleep(0.2)
            if count() == before:
                return before


@pytest.mark.parametrize("answers_otherwise", [True, False])
async def test_a_lost_gpu_is_left_out_and_the_others_are_heard(listener: Listener, answers_otherwise: bool) -> None:
    """Also one whose loss shows in nothing but the wait, so that it can be registered again and again."""
    async with listener.listening():
        await eventually(lambda: len(listener.monitored) == 8)
        if answers_otherwise:
            fail_call(listener.host, 2, WAIT, LOST)
        else:
            listener.host.lose_gpu(2)
        await eventually(lambda: listener.monitored == frozenset(listener.uuids) - {listener.uuids[2]})
        assert await at_rest(lambda: len(listener.libraries)) == 2
        listener.host.inject_event(5, 79)
        await eventually(lambda: any(event.xid is not None for event in listener.events))
    assert (listener.events[-1].gpu, listener.events[-1].xid) == (listener.uuids[5], 79)
    if answers_otherwise:
        assert [uuid for uuid, _ in listener.coverage[-1].unmonitored] == [listener.uuids[2]]


async def test_a_gpu_that_is_back_is_heard_again(listener: Listener) -> None:
    async with listener.listening() as watcher:
        await eventually(lambda: len(listener.monitored) == 8)
        fail_call(listener.host, 2, WAIT, LOST)
        await eventually(lambda: len(listener.monitored) == 7)
        fail_call(listener.host, 2, WAIT, 0)
        watcher.renew()
        await eventually(lambda: len(listener.monitored) == 8)


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceRegisterEvents"])
@pytest.mark.parametrize("failing", [1, 8])
async def test_a_gpu_that_could_not_be_registered_is_tried_again(
    listener: Listener, function: str, failing: int
) -> None:
    for index in range(failing):
        fail_call(listener.host, index, function, pynvml.NVML_ERROR_UNKNOWN, times=1)
    async with listener.listening(again_s=0.1):
        await eventually(lambda: bool(listener.coverage))
        assert len(listener.coverage[0].monitored) == 8 - failing
        await eventually(lambda: len(listener.monitored) == 8)
        assert await at_rest(lambda: len(listener.libraries)) == 2


async def test_gpus_without_events_are_not_tried_again(listener: Listener) -> None:
    fail_call(listener.host, 0, "nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED)
    async with listener.listening(again_s=0.1):
        await eventually(lambda: len(listener.monitored) == 7)
        assert await at_rest(lambda: len(listener.libraries)) == 1


async def test_a_gpu_whose_uuid_is_no_text_is_left_out_and_the_others_are_heard(listener: Listener) -> None:
    first: list[Any] = []

    def uuid(handle: Any) -> Any:
        if not first:
            first.append(handle)
            return b"\xff".decode()
        return listener.libraries[-1].real("nvmlDeviceGetUUID")(handle)

    listener.answers["nvmlDeviceGetUUID"] = uuid
    async with listener.listening():
        await eventually(lambda: len(listener.monitored) == 7)


async def test_a_defect_ends_the_watcher_with_its_reason(listener: Listener) -> None:
    def broken() -> Any:
        raise AttributeError("defect")

    listener.answers["nvmlEventSetCreate"] = broken
    async with asyncio.timeout(20):
        with pytest.raises(AttributeError, match="defect"):
            await EventWatcher(listener.open_nvml, listener.events.append, listener.coverage.append).run()


async def test_where_every_wait_fails_sessions_become_rare_and_the_gpus_are_named(listener: Listener) -> None:
    for index in range(8):
        fail_call(listener.host, index, WAIT, LOST)
    async with listener.listening(retry_s=(0.0, 0.0, FOR_EVER_S)):
        await eventually(lambda: len(listener.libraries) == 3)
        assert await at_rest(lambda: len(listener.libraries)) == 3
        await eventually(lambda: not listener.monitored)
        assert [uuid for uuid, _ in listener.coverage[-1].unmonitored] == sorted(listener.uuids)


async def test_a_wait_that_succeeds_ends_the_failures(listener: Listener) -> None:
    fail_call(listener.host, 0, WAIT, pynvml.NVML_ERROR_UNKNOWN, times=2)
    async with listener.listening(retry_s=(0.0, 0.0, FOR_EVER_S)):
        await eventually(lambda: len(listener.libraries) == 3 and listener.waits > 4)
        assert len(listener.monitored) == 8
        fail_call(listener.host, 0, WAIT, pynvml.NVML_ERROR_UNKNOWN, times=1)
        await eventually(lambda: len(listener.libraries) == 4)


async def test_the_rest_of_an_early_timeout_is_slept(listener: Listener) -> None:
    fail_call(listener.host, 0, WAIT, TIMEOUT)
    async with listener.listening(wait_s=FOR_EVER_S):
        await eventually(lambda: listener.waits > 0)
        assert await at_rest(lambda: listener.waits) == 1


async def test_an_empty_event_set_is_not_waited_on(listener: Listener) -> None:
    def none(*_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    listener.answers["nvmlDeviceGetSupportedEventTypes"] = none
    async with listener.listening() as watcher:
        await eventually(lambda: bool(listener.coverage))
        assert (await at_rest(lambda: len(listener.libraries)), listener.waits) == (1, 0)
        listener.answers.clear()
        watcher.renew()
        await eventually(lambda: len(listener.monitored) == 8)


async def test_a_flood_of_events_is_taken_in_portions(listener: Listener) -> None:
    def flood(*_: object) -> Any:
        handle = listener.libraries[0].gpu_handle(listener.uuids[1])
        return pynvml.c_nvmlEventData_t(handle, pynvml.nvmlEventTypeXidCriticalError, 13, 0xFFFFFFFF, 0xFFFFFFFF)

    listener.answers[WAIT] = flood
    async with listener.listening(wait_s=FOR_EVER_S):
        await eventually(lambda: listener.waits > 0)
        assert await at_rest(lambda: listener.waits) == 100


async def test_an_xid_of_a_gpu_that_no_longer_has_a_name_is_that_gpus(listener: Listener) -> None:
    def nameless(*_: object) -> str:
        raise pynvml.NVMLError(LOST)

    async with listener.listening():
        await eventually(lambda: len(listener.monitored) == 8)
        listener.answers["nvmlDeviceGetUUID"] = nameless
        listener.host.inject_event(3, 79)
        await eventually(lambda: bool(listener.events))
    assert (listener.events[0].xid, listener.events[0].gpu) == (79, listener.uuids[3])


async def test_a_session_that_a_hanging_call_kept_is_given_back_when_it_returns(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise NVML of this process would never find a GPU that comes back from a virtual machine."""
    monkeypatch.setattr(watcher_module, "READ_S", 0.1)
    returns, hung = threading.Event(), list[int]()

    def register(handle: Any, types: int, events: Any) -> None:
        if not hung:
            hung.append(types)
            returns.wait(20)
        listener.libraries[-1].real("nvmlDeviceRegisterEvents")(handle, types, events)

    def given_back() -> list[int]:
        return [library.calls.count("nvmlShutdown") for library in listener.libraries]

    listener.answers["nvmlDeviceRegisterEvents"] = register
    async with listener.listening() as watcher:
        await eventually(lambda: len(listener.monitored) == len(listener.uuids) - 1)

        def pause() -> bool:
            with watcher.paused():
                return watcher.is_open

        monkeypatch.setattr(watcher_module, "_PAUSE_PATIENCE_S", 0.3)
        assert await asyncio.to_thread(pause), "the call that hangs may use it"
        assert 0 in given_back()
        monkeypatch.setattr(watcher_module, "_PAUSE_PATIENCE_S", 20.0)
        returns.set()
        assert not await asyncio.to_thread(pause)
        assert all(given_back()[:-1])


async def test_when_all_gpus_hang_they_are_heard_once_they_answer(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "READ_S", 0.05)
    returns = threading.Event()

    def register(handle: Any, types: int, events: Any) -> None:
        returns.wait(20)
        listener.libraries[-1].real("nvmlDeviceRegisterEvents")(handle, types, events)

    listener.answers["nvmlDeviceRegisterEvents"] = register
    async with listener.listening():
        await eventually(lambda: bool(listener.coverage))
        assert listener.monitored == frozenset()
        returns.set()
        await eventually(lambda: listener.monitored == frozenset(listener.uuids))
