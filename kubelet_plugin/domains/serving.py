"""The second driver of the plugin's process: begins when the node turns out to have IMEX, and serves until the end.

Most nodes never get here, so `main` imports this only when it is needed.
"""

import asyncio
import random
from collections.abc import Callable, Iterable

import structlog

from dra_driver.cdi.model import Mount
from dra_driver.features import Feature
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.runtime.tasks import forever
from kubelet_plugin.domains.records import Records
from kubelet_plugin.domains.service import DomainClaims
from kubelet_plugin.domains.standing import DomainReader, DomainStanding
from kubelet_plugin.effects.cdi_files import CdiFiles
from kubelet_plugin.facts.container_files import ContainerFilesOfNode
from kubelet_plugin.facts.monitor import SeenFacts
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.claims import ClaimReader
from kubelet_plugin.prepare.listener import Listeners
from kubelet_plugin.reporting.device_status import DeviceStatusWriter
from kubelet_plugin.reporting.events import Reason
from kubelet_plugin.reporting.metrics import MeasuredClaims, Observers
from kubelet_plugin.reporting.pod_events import PodEvents
from kubelet_plugin.reporting.told_claims import ToldClaims
from kubelet_plugin.rpc.messages import DeviceHealth
from kubelet_plugin.rpc.registration import RegistrationServer, serving
from kubelet_plugin.rpc.server import DraServer
from kubelet_plugin.rpc.sockets import plugin_sockets
from kubelet_plugin.settings import Settings

_log = structlog.get_logger(__name__)

_TOGETHER_S = (1.0, 5.0)
"""Each node waits another while: when one daemon ends, claims on all nodes of the domain say so."""


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
    facts: SeenFacts,
    registered: Callable[[str], None],
    readable: Callable[[], str | None],
    host_imex: Callable[[], str | None] | None,
    told: Observers,
) -> None:
    """Until cancelled. With ComputeDomains switched off, only that what claims have is released: nobody may look at
    domains then, nor write a claim's status. `registered` is told the driver's name whenever kubelet registers it."""
    reader, records = ClaimReader(kube, saw=told.collector.pods.saw), Records(settings.domain_records)
    standing = DomainStanding(kube, records, settings.node_name)
    status = _device_status(kube, settings, standing)
    pods = PodEvents(
        standing,
        reader,
        told.events,
        settings.state_dir / "domain-pod-events.json",
        pods=told.collector.pods,
        members=told.members,
        over=Reason.POD_IMEX_DAEMON_READY,
    )
    standing.subscribe(pods.changed)
    told.collector.add(COMPUTE_DOMAIN_DRIVER, standing.devices)
    claims = DomainClaims(
        claims=reader,
        domains=DomainReader(kube, settings.node_name),
        records=records,
        cdi=CdiFiles(settings.cdi_root, COMPUTE_DOMAIN_DRIVER),
        host=host,
        facts=facts,
        container_files=ContainerFilesOfNode(driver),
        driver=COMPUTE_DOMAIN_DRIVER,
        node_name=settings.node_name,
        readable=readable,
        host_imex=host_imex,
        daemon_mounts=_hardware(settings),
        sweep_interval_s=settings.cleanup_interval_s,
        listener=Listeners([*told.listeners, standing, pods, *([status] if status is not None else [])]),
    )
    sockets = plugin_sockets(settings.kubelet_root, COMPUTE_DOMAIN_DRIVER, settings.pod_uid)
    dra = DraServer(sockets.dra, MeasuredClaims(claims, told.calls, COMPUTE_DOMAIN_DRIVER), _NoHealth())
    registration = RegistrationServer(sockets, COMPUTE_DOMAIN_DRIVER, lambda: registered(COMPUTE_DOMAIN_DRIVER))
    await claims.start()
    async with serving(dra, registration, claims), asyncio.TaskGroup() as tasks:
        _log.info("ComputeDomains are served", driver=COMPUTE_DOMAIN_DRIVER)
        tasks.create_task(forever("claims of ComputeDomains", claims.run))
        tasks.create_task(forever("registration for ComputeDomains", registration.watch))
        if not settings.compute_domains:
            _log.warning("ComputeDomains are switched off; what claims have of them is released as their pods end")
            return
        tasks.create_task(forever("standing of ComputeDomains", standing.run))
        tasks.create_task(forever("news of pods of ComputeDomains", pods.run))
        if status is not None:
            tasks.create_task(forever("device status of ComputeDomains", status.run))


def _device_status(kube: Kube, settings: Settings, standing: DomainStanding) -> DeviceStatusWriter | None:
    if Feature.DEVICE_STATUS not in settings.feature_gates:
        return None
    together_s = random.uniform(*_TOGETHER_S)
    told = ToldClaims(settings.state_dir / "told-domain-claims.json")
    writer = DeviceStatusWriter(kube, COMPUTE_DOMAIN_DRIVER, standing, told, together_s=together_s)
    standing.subscribe(writer.changed)
    return writer


def _hardware(settings: Settings) -> tuple[Mount, ...]:
    """What the programs of a simulated node look at in place of the hardware, where they look for it."""
    if settings.simulate is None:
        return ()
    folder = str(settings.host_root.absolute() / "sim")
    return (Mount(folder, folder, ("ro", "nosuid", "nodev", "rbind", "rprivate")),)
