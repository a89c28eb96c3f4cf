"""A driver's sockets with scripted claims behind them, for tests of what kubelet sees of a driver."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from support.places import SHORT

from dra_driver.errors import DriverError
from dra_driver.names import GPU_DRIVER, ClaimRef
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.rpc.messages import DeviceHealth
from kubelet_plugin.rpc.servers import DraServer, RegistrationServer, Sockets, plugin_sockets


class ScriptedClaims:
    """Answers prepare and unprepare as told; remembers every call as (method, claim UIDs)."""

    def __init__(self, devices: Sequence[PreparedDevice] = ()) -> None:
        self.devices = tuple(devices)
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.failures: dict[str, list[Exception]] = {"prepare": [], "unprepare": []}
        """What the next calls of a method run into, one each; a DriverError is answered, another one raised."""
        self.hold = asyncio.Event()
        """Cleared, calls wait for it."""
        self.hold.set()

    def called(self, method: str) -> list[tuple[str, ...]]:
        return [uids for name, uids in self.calls if name == method]

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | DriverError]:
        error = await self._called("prepare", claims)
        return {claim.uid: error or self.devices for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, DriverError | None]:
        error = await self._called("unprepare", claims)
        return {claim.uid: error for claim in claims}

    async def _called(self, method: str, claims: Sequence[ClaimRef]) -> DriverError | None:
        self.calls.append((method, tuple(claim.uid for claim in claims)))
        await self.hold.wait()
        if not self.failures[method]:
            return None
        error = self.failures[method].pop(0)
        if isinstance(error, DriverError):
            return error
        raise error


class ScriptedHealth:
    """The health of devices, as a test sets it."""

    def __init__(self, devices: Sequence[DeviceHealth] = ()) -> None:
        self._devices = tuple(devices)
        self._changes: list[asyncio.Future[None]] = []

    def device_health(self) -> tuple[DeviceHealth, ...]:
        return self._devices

    def health_changed(self) -> asyncio.Future[None]:
        self._changes.append(asyncio.get_running_loop().create_future())
        return self._changes[-1]

    def set(self, *devices: DeviceHealth) -> None:
        self._devices = devices
        for change in self._changes:
            if not change.done():
                change.set_result(None)
        self._changes.clear()


class RunningPlugin:
    """One instance of a driver on its sockets. `registrations` counts kubelet's good news."""

    def __init__(self, sockets: Sockets, driver: str, claims: ScriptedClaims, health: ScriptedHealth) -> None:
        self.sockets = sockets
        self.claims = claims
        self.health = health
        self.registrations = 0
        self.dra = DraServer(sockets.dra, claims, health)
        self.failures: list[Exception] = []
        """What the next registrations run into, one each."""
        self.registration = RegistrationServer(sockets, driver, self._registered)

    def _registered(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.registrations += 1

    async def start(self) -> None:
        await self.dra.start()
        await self.registration.start()

    async def stop(self) -> None:
        await self.registration.stop()
        await self.dra.stop()


@asynccontextmanager
async def running_plugin(
    kubelet_root: Path,
    claims: ScriptedClaims | None = None,
    *,
    driver: str = GPU_DRIVER,
    pod_uid: str | None = None,
    health: ScriptedHealth | None = None,
    failures: Sequence[Exception] = (),
) -> AsyncIterator[RunningPlugin]:
    """A driver instance that serves while the block runs; its first registrations run into `failures`."""
    sockets = plugin_sockets(kubelet_root, driver, pod_uid)
    plugin = RunningPlugin(sockets, driver, claims or ScriptedClaims(), health or ScriptedHealth())
    plugin.failures += failures
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.stop()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="k", dir=SHORT) as folder:
        yield Path(folder)


async def eventually(condition: object) -> None:
    """Wait until `condition()`, plain or async, is true; fails the test after 30 s."""
    async with asyncio.timeout(30.0):
        while True:
            result = condition()  # type: ignore[operator]
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.01)
