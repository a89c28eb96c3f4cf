"""The cluster that pages show, followed as long as pages are open.

Watches begin with the first viewer and end some minutes after the last, so that a forgotten server costs nothing. What
only a single page shows, such as Events of a node and why a pod waits, is read while that page is open.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dra_driver.allocation.world import World, claims_of
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Event, Pod
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import COMPUTE_DOMAINS, EVENTS, NODE_INVENTORIES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.cel.functions import Server
from dra_driver.cli.reading.files import deadline
from dra_driver.cli.reading.live import live_world
from dra_driver.cli.tables.following import Following
from dra_driver.cli.tables.seen import FOLLOWED, READ_AS, Board, KnownGpus
from dra_driver.cli.ui.history import GpuHistory
from dra_driver.cli.ui.pages import (
    MOST_EXPLAINED,
    NodeDetail,
    PageAddress,
    PageData,
    Place,
    WaitingReasons,
    gpu_named,
    node_of,
)
from dra_driver.errors import ClusterError, DriverError, NotFound
from dra_driver.explain.explain import Scope, explain_pod
from dra_driver.explain.wording import sentences, summary
from dra_driver.kube.client import Kube
from dra_driver.runtime.tasks import until

_TOGETHER_S = 0.3
"""Changes that come within this time are shown together."""
_LOOK_S = 0.1
_FIRST_S = 3.0
"""How long the first page waits for a cluster that is still read; then it shows what there is."""
_LINGER_S = 300.0
"""How long the cluster is followed after the last viewer: longer than it takes to open the page again."""
_DETAIL_S = 5.0
"""How old the detail of a node may be."""
_EXPLAINED_S = 30.0
"""How old an explanation may be: for each, all objects are read again, and every node is tried."""
_SUGGESTIONS_S = 2.0
_MOST_STEPS = 50_000_000
"""Of the selectors of a pod's claims, by CEL's estimate: some seconds. Usual ones take 5 to 50 on a device. Kubernetes
allows a million on each, so one user's pod could keep all others from being explained for hours."""
_TOO_COMPLEX = "Its selectors are too complex to be evaluated on all devices here."
_WIDTH = 110

_KINDS = {**FOLLOWED, COMPUTE_DOMAINS: READ_AS[COMPUTE_DOMAINS]}
_REQUIRED = (RESOURCE_SLICES, RESOURCE_CLAIMS)


@dataclass(slots=True)
class _Asked[T]:
    """Something that is read when a page needs it. Times are those of the event loop."""

    value: T
    read_at: float
    wanted_at: float = field(default=0.0)


class WatchedCluster:
    """`driver` is that of the GPUs. Used from one event loop."""

    def __init__(self, kube: Kube, driver: str, *, linger_s: float = _LINGER_S) -> None:
        self._kube = kube
        self._driver = driver
        self._linger_s = linger_s
        self._viewers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._end: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self.version = 0
        """Grows with each change that may be seen."""
        self._history = GpuHistory()
        self._forget()

    def _forget(self) -> None:
        self._read = asyncio.Event()
        self._known = KnownGpus({}, {}, {}, notes=("reading the cluster",))
        self._domains: Sequence[ComputeDomain] = ()
        self._details: dict[str, _Asked[NodeDetail]] = {}
        self._explained: dict[str, _Asked[WaitingReasons]] = {}

    @property
    def following(self) -> bool:
        return bool(self._tasks)

    @asynccontextmanager
    async def viewed(self) -> AsyncIterator[None]:
        """While the block runs, and for some minutes after it, the cluster is followed."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        self._viewers += 1
        if any(task.done() for task in self._tasks):
            self._stop()  # an unexpected error; the page that met it reports it
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._explain())]
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._end = asyncio.get_running_loop().call_later(self._linger_s, self._stop)

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks, self._end = [], None
        self._history.pause()
        self._forget()

    async def close(self) -> None:
        tasks = self._tasks
        if self._end is not None:
            self._end.cancel()
        self._stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def after(self, version: int, within_s: float) -> None:
        """Until something changed after this version, or the time is over."""
        if self.version == version:
            await until(self._news, within_s)

    def _changed(self) -> None:
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    # -- the board

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_board()
            except ClusterError as error:
                self._known = KnownGpus({}, {}, {}, notes=(f"The cluster cannot be read: {error}",))
                self._read.set()
                self._changed()
                await asyncio.sleep(_DETAIL_S)

    async def _follow_board(self) -> None:
        _, minor = await self._kube.server_version()
        board = Board(self._driver, minor)

        def learn(kind: Resource, *change: Any) -> None:
            if kind in FOLLOWED:
                board.learn(kind, *change)

        following = Following(self._kube, _KINDS, on_change=learn)
        async with following.running():
            while following.reading():
                self._show(board, following)
                await asyncio.sleep(_LOOK_S)
            gc.enable()  # as `Following.until_read`, but what is followed now is forgotten with the last viewer
            while True:
                following.changed.clear()
                await self._decide(board, following)
                await until(following.changed, _DETAIL_S)  # failures of watches come without a change
                await asyncio.sleep(_TOGETHER_S)

    async def _decide(self, board: Board, following: Following) -> None:
        """About all nodes that changed; many of them are shown as they are decided."""
        clock = asyncio.get_running_loop().time
        shown = clock()
        while board.stale:
            board.refresh()
            if clock() - shown > 2 * _TOGETHER_S:
                self._show(board, following)
                shown = clock()
            await asyncio.sleep(0)
        # A kind that could not be listed yet is not one without objects.
        if all(following.mirrors[kind].synced.is_set() for kind in _REQUIRED):
            self._history.saw(board.nodes, datetime.now(UTC))
        self._show(board, following)
        self._read.set()

    def _show(self, board: Board, following: Following) -> None:
        self._known = board.known({}, (*following.notes(_REQUIRED), *board.notes))
        self._domains = following.of(COMPUTE_DOMAINS)
        self._changed()

    # -- what a page shows

    async def seen(self, address: PageAddress) -> PageData:
        await until(self._read, _FIRST_S)
        for task in self._tasks:
            if task.done():
                task.result()
        node = node_of(address, self._known)
        detail = await self._detail(node) if node is not None else NodeDetail()
        if address.place is Place.POD:
            self._want([address.name])
        elif address.place is Place.WAITING:
            self._want(sorted(self._known.waiting)[:MOST_EXPLAINED])
        explained = {name: asked.value for name, asked in self._explained.items()}
        _, gpu = gpu_named(address.name, self._known) if address.place is Place.GPU else (None, None)
        changes = self._history.of(node, None if gpu is None else gpu.uuid) if node is not None else ()
        return PageData(self._known, self._domains, detail, explained, changes, self._history.since)

    async def _detail(self, node: str) -> NodeDetail:
        now = asyncio.get_running_loop().time()
        known = self._details.get(node)
        if known is not None and now - known.read_at < _DETAIL_S:
            return known.value
        if node not in self._known.nodes:
            return NodeDetail()
        detail = await read_detail(self._kube, node)
        self._details = {name: asked for name, asked in self._details.items() if now - asked.read_at < _LINGER_S}
        self._details[node] = _Asked(detail, now)
        return detail

    # -- why pods wait

    def _want(self, pods: Iterable[str]) -> None:
        now = asyncio.get_running_loop().time()
        for name in pods:
            self._explained.setdefault(name, _Asked(WaitingReasons(""), float("-inf"))).wanted_at = now

    async def _explain(self) -> None:
        """In a thread: to try each node of a large cluster takes seconds."""
        while True:
            await asyncio.sleep(_LOOK_S)
            now = asyncio.get_running_loop().time()
            self._explained = {
                name: asked for name, asked in self._explained.items() if now - asked.wanted_at < _EXPLAINED_S
            }
            due = sorted(name for name, asked in self._explained.items() if now - asked.read_at > _EXPLAINED_S)
            if due:
                namespace = due[0].partition("/")[0]
                await self._explain_in(namespace, [name for name in due if name.partition("/")[0] == namespace])

    async def _explain_in(self, namespace: str, pods: Sequence[str]) -> None:
        reasons: Mapping[str, WaitingReasons]
        try:
            world = await live_world(self._kube, namespace)
        except DriverError as error:
            reasons = dict.fromkeys(pods, WaitingReasons(f"It cannot be explained: {error}"))
        else:
            reasons = await asyncio.to_thread(
                lambda: {pod: _reasons(world, namespace, pod.partition("/")[2]) for pod in pods}
            )
        now = asyncio.get_running_loop().time()
        for pod, value in reasons.items():
            if pod in self._explained:
                self._explained[pod] = _Asked(value, now, self._explained[pod].wanted_at)
        self._changed()


def steps_of_selectors(world: World, pod: Pod) -> int:
    """The most that its claims' own selectors may take on all devices. Those of classes are an administrator's."""
    claims = [entry.claim for entry in claims_of(world, pod) if entry.claim is not None]
    ways = [way for claim in claims for request in claim.spec.devices.requests for _, way in request.ways]
    expressions = [selector.cel.expression for way in ways for selector in way.selectors if selector.cel is not None]
    devices = sum(len(slice_.spec.devices or ()) for slice_ in world.slices)
    return devices * sum(_steps(expression, world.behavior.server) for expression in expressions)


def _steps(expression: str, server: Server) -> int:
    """A selector that does not compile is not evaluated."""
    try:
        return compile_selector(expression, server).cost
    except CelError:
        return 0


def _reasons(world: World, namespace: str, name: str) -> WaitingReasons:
    pod = world.pods.get((namespace, name))
    if pod is not None and steps_of_selectors(world, pod) > _MOST_STEPS:
        advice = f"dractl explain pod {name} -n {namespace} evaluates them on your machine."
        return WaitingReasons(_TOO_COMPLEX, (f"Pod {namespace}/{name} waits. {_TOO_COMPLEX}", f"  {advice}"))
    try:
        explanation = explain_pod(world, (namespace, name), Scope(enough=deadline(_SUGGESTIONS_S)))
    except DriverError as error:
        return WaitingReasons(f"It cannot be explained: {error}", (str(error),))
    return WaitingReasons(summary(explanation), sentences(explanation, _WIDTH))


async def read_detail(kube: Kube, node: str) -> NodeDetail:
    """What cannot be read is left out, with a note."""
    selector = f"involvedObject.kind=Node,involvedObject.name={node}"
    answers = await asyncio.gather(
        kube.get(NODE_INVENTORIES, node), kube.list(EVENTS, field_selector=selector), return_exceptions=True
    )
    notes = []
    for answer in answers:
        if isinstance(answer, ClusterError) and not isinstance(answer, NotFound):
            notes.append(f"Not shown: {answer}")
        elif isinstance(answer, BaseException) and not isinstance(answer, ClusterError):
            raise answer
    inventory, events = answers
    return NodeDetail(
        None if isinstance(inventory, BaseException) else NodeInventory.of(inventory),
        () if isinstance(events, BaseException) else [Event.of(item) for item in events.items],
        notes,
    )
