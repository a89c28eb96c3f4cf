"""Releases the GPUs of this node: until they are taken back this plugin has none open, and no claim gets one.

`nvidia-smi --gpu-reset`, a MIG mode that needs a reset and a driver that is replaced all fail while a process has a GPU
open. The plugin's sessions last as long as it runs, so there are three ways to ask for a release:

* a file beside the journal, which `dractl gpus release` writes, in the plugin's pod or on the host;
* a label or annotation of the Node, for scripts that drain it: `dra.gpu/release-gpus`, `true` or the time when it ends;
* the MIG manager of the GPU Operator, by its label `nvidia.com/mig.config.state`, for a bounded time.

While GPUs are released the inventory keeps them as they were last seen, with a problem and with a condition that taints
each; prepare, and each change of hardware, is refused and tried again. A second file says that both sessions are
closed and all of that is in force: who asks waits for it, and a plugin that starts begins so. Deciding is in functions
without effects.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import structlog
from pydantic import AwareDatetime, Field, ValidationError

from dra_driver.api.inventory import DriverFacts, GpuFacts, ImexFacts
from dra_driver.api.meta import JsonObject, Model, wire_time
from dra_driver.errors import DriverError, HardwareError, InvalidInput
from dra_driver.names import RELEASE_GPUS as KEY
from dra_driver.runtime.files import read_if_present, remove, write_durably
from dra_driver.runtime.inotify import replacements
from dra_driver.runtime.tasks import to_next, until
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import Hardware, NodeFacts
from kubelet_plugin.facts.own_node import OwnNode
from kubelet_plugin.facts.watcher import EventWatcher

_log = structlog.get_logger(__name__)

REQUEST = "gpu-release.json"
"""In the plugin's folder: what `dractl gpus release` asks for."""
STATE = "gpus-released.json"
"""Beside it: what is in force."""
MIG_STATE = "nvidia.com/mig.config.state"
_MIG_WORKS = ("pending", "rebooting")
_MIG_LIMIT = timedelta(minutes=30)
"""It waits up to 5 minutes for each of its four clients of GPUs. Source: mig-parted, reconfigure-mig.sh."""
_TICK_S = 1.0
"""How soon a failed attempt is repeated, and how often the file is looked for if the kernel gives no notices."""
_LOOK_S = 10.0
"""How often the file is looked for otherwise, in case it was written in place or the clock was set."""

type Source = Literal["file", "node", "mig-manager"]

type Refused = Callable[[str], None]
"""Gets each invalid request once."""


@dataclass(frozen=True, slots=True)
class Release:
    """`by` whom; `until` None: until it is taken back, by what `back` says."""

    source: Source
    by: str
    until: datetime | None
    back: str

    def is_over(self, now: datetime) -> bool:
        return self.until is not None and now >= self.until

    @property
    def message(self) -> str:
        until = "" if self.until is None else f" until {wire_time(self.until)}"
        return f"{self.by} released the GPUs of this node{until}; no claim is prepared meanwhile. {self.back}"


class ReleaseRequest(Model):
    """The file that asks."""

    until: AwareDatetime | None = None


class ReleaseState(Model):
    """The file that confirms; with the facts as they were, for a plugin that starts meanwhile."""

    source: Source
    by: str
    until: AwareDatetime | None = None
    back: str
    boot_id: str = Field(alias="bootID")
    driver: DriverFacts | None = None
    imex: ImexFacts | None = None
    gpus: list[GpuFacts] = Field(default_factory=list)

    @property
    def release(self) -> Release:
        return Release(self.source, self.by, self.until, self.back)


def asked_by_file(content: bytes | None) -> Release | None:
    """What `dractl gpus release` asks for. Raises InvalidInput."""
    if content is None:
        return None
    try:
        request = ReleaseRequest.model_validate_json(content)
    except ValidationError as error:
        raise InvalidInput(
            "is not what `dractl gpus release` writes; remove it, or run `dractl gpus resume`", about=f"file {REQUEST}"
        ) from error
    return Release("file", "`dractl gpus release`", request.until, "`dractl gpus resume` takes them back.")


def asked_by_node(metadata: JsonObject) -> Release | None:
    """What a label or annotation of the Node asks for. Raises InvalidInput."""
    labels: Mapping[str, str] = metadata.get("labels") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    for kind, verb, value in (("annotation", "annotate", annotations.get(KEY)), ("label", "label", labels.get(KEY))):
        if value is not None:
            back = f"They are taken back by `kubectl {verb} node {metadata['name']} {KEY}-`."
            return Release("node", f"The node's {kind} {KEY}", _until(kind, value), back)
    return None


def asked_by_mig_manager(metadata: JsonObject, since: datetime) -> Release | None:
    """`since` is when it was first seen at work."""
    state = (metadata.get("labels") or {}).get(MIG_STATE)
    if state not in _MIG_WORKS:
        return None
    by = f"The MIG manager (the node's label {MIG_STATE}: {state})"
    return Release("mig-manager", by, since + _MIG_LIMIT, "They are taken back when it is done.")


def _until(kind: str, text: str) -> datetime | None:
    if text == "true":
        return None
    with suppress(ValueError, OverflowError):
        when = datetime.fromisoformat(text)
        if when.tzinfo is not None:
            return when.astimezone(UTC)
    raise InvalidInput(
        f"is {text!r} and must be `true`, or in an annotation a time with its zone, such as 2026-01-31T12:00:00Z;"
        " the GPUs are not released",
        about=f"the node's {kind} {KEY}",
    )


class GpuRelease:
    """Releases and takes back; lives in one event loop. `restore`, then `run` until cancelled."""

    def __init__(
        self,
        folder: Path,
        hardware: Hardware,
        watcher: EventWatcher,
        discovery: Discovery,
        node: OwnNode,
        refused: Refused,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._request, self._state = folder / REQUEST, folder / STATE
        self._hardware = hardware
        self._watcher = watcher
        self._discovery = discovery
        self._node = node
        self._refused = refused
        self._now = now
        self._current: Release | None = None
        self._pause = ExitStack()
        self._mig_since: datetime | None = None
        self._mistakes: dict[str, str] = {}
        self.wake = asyncio.Event()
        node.subscribe(self.wake.set)

    def restore(self) -> None:
        """Begin as the last process ended; before anything looks at the hardware. Never raises."""
        try:
            content = read_if_present(self._state)
            state = None if content is None else ReleaseState.model_validate_json(content)
        except (DriverError, ValidationError) as error:
            _log.warning("what was released before cannot be read", file=str(self._state), error=str(error))
            return
        if state is None or state.release.is_over(self._now()):
            return
        facts = NodeFacts(state.boot_id, state.driver, tuple(state.gpus), (), imex=state.imex)
        self._pause.enter_context(self._watcher.paused())
        self._hardware.release(state.release.message, facts)
        self._current = state.release
        if state.source == "mig-manager" and state.until is not None:
            self._mig_since = state.until - _MIG_LIMIT
        _log.info("the GPUs are still released", why=state.release.message)

    async def run(self) -> None:
        with replacements(self._request, self.wake.set) as are_noticed:
            while True:
                settled = await self.settle()
                await until(self.wake, self._pause_s() if settled and are_noticed else _TICK_S)
                self.wake.clear()

    async def settle(self) -> bool:
        """Do what is asked for now; whether it is in force. What fails is tried again at the next call."""
        try:
            wanted = self._wanted()
            if wanted == self._current:
                return True
            if wanted is None:
                await self._take_back()
            else:
                await self._let_go(wanted)
        except DriverError as error:
            _log.warning("the GPUs cannot be released or taken back now", error=str(error))
            return False
        return True

    def _pause_s(self) -> float:
        """Until the next look; a release ends at its time."""
        if self._current is None or self._current.until is None:
            return to_next(_LOOK_S)
        return min(_LOOK_S, (self._current.until - self._now()).total_seconds())

    def _wanted(self) -> Release | None:
        now = self._now()
        content = read_if_present(self._request)  # a small file, and rarely there: a thread would cost more
        releases = [self._checked("file", lambda: asked_by_file(content)), *self._of_node(now)]
        return next((release for release in releases if release is not None and not release.is_over(now)), None)

    def _of_node(self, now: datetime) -> list[Release | None]:
        metadata = self._node.metadata
        if metadata is None:
            # Until the Node says otherwise.
            return [self._current] if self._current is not None and self._current.source != "file" else []
        if (metadata.get("labels") or {}).get(MIG_STATE) not in _MIG_WORKS:
            self._mig_since = None
        elif self._mig_since is None:
            self._mig_since = now
        return [
            self._checked("node", lambda: asked_by_node(metadata)),
            asked_by_mig_manager(metadata, self._mig_since or now),
        ]

    def _checked(self, source: str, ask: Callable[[], Release | None]) -> Release | None:
        try:
            release = ask()
        except InvalidInput as error:
            if self._mistakes.get(source) != str(error):
                self._mistakes[source] = str(error)
                _log.warning("a request to release the GPUs is invalid", error=str(error))
                self._refused(str(error))
            return None
        self._mistakes.pop(source, None)
        return release

    async def _let_go(self, release: Release) -> None:
        if self._current is None:
            await asyncio.to_thread(self._pause.enter_context, self._watcher.paused())
        try:
            if self._watcher.is_open:
                raise HardwareError("a wait for events does not end; search the kernel log for NVRM", about="NVML")
            await asyncio.to_thread(self._hardware.release, release.message)
        except DriverError:
            if self._current is None:
                self._pause.close()
            raise
        self._current = release
        facts = await self._discovery.observe()
        state = ReleaseState(
            **asdict(release),
            boot_id=facts.boot_id,
            driver=facts.driver,
            imex=facts.imex,
            gpus=list(facts.gpus),
        )
        content = state.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
        await asyncio.to_thread(write_durably, self._state, content, mode=0o600)
        _log.info("the GPUs are released", why=release.message)

    async def _take_back(self) -> None:
        self._hardware.resume()
        self._pause.close()
        self._current = None
        await asyncio.to_thread(remove, self._state)
        _log.info("the GPUs are taken back")
        await self._discovery.observe()
