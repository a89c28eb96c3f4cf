"""The second driver of the plugin's process: begins when the node turns out to have IMEX, and serves until the end.

Most nodes never get here, so `main` imports this only when it is needed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import structlog

from dra_driver.cdi.model import Mount
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.runtime.tasks import forever
from kubelet_plugin.container_files import ContainerFilesOfNode
from kubelet_plugin.domains.readiness import DomainReader
from kubelet_plugin.domains.records import Records
from kubelet_plugin.domains.service import DomainClaims, Facts
from kubelet_plugin.effects.cdi_files import CdiFiles
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.metrics import ListenedCalls, MeasuredClaims
from kubelet_plugin.prepare.claims import ClaimReader
from kubelet_plugin.rpc.messages import DeviceHealth
from kubelet_plugin.rpc.registration import RegistrationServer
from kubelet_plugin.rpc.server import DraServer
from kubelet_plugin.rpc.sockets import plugin_sockets
from kubelet_plugin.settings import Settings

_log = structlog.get_logger(__name__)


class _NoHealth:
    """Channels and daemons have no health of their own: a broken fabric is a taint, and a pod that runs keeps it."""

    def device_health(self) -> Iterable[DeviceHealth]:
        return ()

    def health_changed(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


async def serve_domains(
    kube: Kube,
    settings: Settings,
    host: HostFiles,
    driver: DriverInstallation,
    facts: Facts,
    registered: Callable[[str], None],
    host_imex: Callable[[], str | None] | None,
    heard: ListenedCalls,
) -> None:
    """Until cancelled. `registered` is told the driver's name whenever kubelet registers it."""
    claims = DomainClaims(
        claims=ClaimReader(kube),
        domains=DomainReader(kube, settings.node_name),
        records=Records(settings.state_dir / "domains"),
        cdi=CdiFiles(settings.cdi_root, COMPUTE_DOMAIN_DRIVER),
        host=host,
        facts=facts,
        container_files=ContainerFilesOfNode(driver),
        driver=COMPUTE_DOMAIN_DRIVER,
        node_name=settings.node_name,
        host_imex=host_imex,
        daemon_mounts=_hardware(settings),
        sweep_interval_s=settings.cleanup_interval_s,
        listener=heard.listener,
    )
    sockets = plugin_sockets(settings.kubelet_root, COMPUTE_DOMAIN_DRIVER, settings.pod_uid)
    dra = DraServer(sockets.dra, MeasuredClaims(claims, heard.metrics, COMPUTE_DOMAIN_DRIVER), _NoHealth())
    registration = RegistrationServer(sockets, COMPUTE_DOMAIN_DRIVER, lambda: registered(COMPUTE_DOMAIN_DRIVER))
    await claims.start()
    async with _serving(dra, registration, claims), asyncio.TaskGroup() as tasks:
        _log.info("ComputeDomains are served", driver=COMPUTE_DOMAIN_DRIVER)
        tasks.create_task(forever("claims of ComputeDomains", claims.run))
        tasks.create_task(forever("registration for ComputeDomains", registration.watch))


def _hardware(settings: Settings) -> tuple[Mount, ...]:
    """What the programs of a simulated node look at in place of the hardware, where they look for it."""
    if settings.simulate is None:
        return ()
    folder = str(settings.host_root.absolute() / "sim")
    return (Mount(folder, folder, ("ro", "nosuid", "nodev", "rbind", "rprivate")),)


@asynccontextmanager
async def _serving(dra: DraServer, registration: RegistrationServer, claims: DomainClaims) -> AsyncIterator[None]:
    try:
        await dra.start()
        await registration.start()
        yield
    finally:
        await registration.stop()
        await dra.stop()
        await claims.close()
