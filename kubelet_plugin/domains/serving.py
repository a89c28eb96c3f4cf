"""The second driver of the plugin's process: begins when the node turns out to have IMEX, and serves until the end.

Most nodes never get here, so `main` imports this only when it is needed.
"""

import asyncio
import random
from collections.abc import Callable, Iterable

import structlog

from dra_driver.domains.peers import knows_names
from dra_driver.features import Feature
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.runtime.tasks import forever
from kubelet_plugin.domains.readiness import DomainReader, DomainWatch
from kubelet_plugin.domains.service import DomainClaims, DomainHost
from kubelet_plugin.hardware.driver_root import kernel_module_version
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.listener import Listeners
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.reporting.binding import NodeBinding
from kubelet_plugin.reporting.device_status import DeviceStatusWriter
from kubelet_plugin.reporting.events import Reason
from kubelet_plugin.reporting.metrics import MeasuredClaims
from kubelet_plugin.reporting.pod_events import Observers, PodEvents
from kubelet_plugin.rpc.messages import DeviceHealth
from kubelet_plugin.rpc.servers import DraServer, RegistrationServer, plugin_sockets, serving
from kubelet_plugin.settings import NodePluginSettings

_log = structlog.get_logger(__name__)

_TOGETHER_S = (1.0, 5.0)
"""Each node waits a random time: when one daemon ends, claims on all nodes of the domain change."""


type MakeBinding = Callable[[DomainClaims, DeviceStatusWriter], NodeBinding]


class _NoHealth:
    """Channels and daemons have no health of their own: a broken fabric is a taint, and a pod that runs keeps it."""

    def device_health(self) -> Iterable[DeviceHealth]:
        return ()

    def health_changed(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


async def serve_domains(
    kube: Kube,
    settings: NodePluginSettings,
    node: DomainHost,
    journal: JournalStore,
    observers: Observers,
    registered: Callable[[str], None],
    binding: MakeBinding | None,
) -> None:
    """Until cancelled. With ComputeDomains switched off, it only releases what claims have, because the plugin may then
    neither read domains nor write a claim's status. `registered` gets the driver's name when the kubelet registers it.
    `binding` makes what prepares channels before pods are bound; None: nothing does.
    """
    watch = DomainWatch(kube, journal, settings.node_name)
    status = _device_status(kube, settings, watch, observers)
    pods = PodEvents(
        watch,
        observers.pods,
        observers.events,
        observers.reported,
        driver=COMPUTE_DOMAIN_DRIVER,
        over=Reason.POD_IMEX_DAEMON_READY,
    )
    watch.subscribe(pods.changed)
    observers.collector.add(COMPUTE_DOMAIN_DRIVER, watch.devices)
    claims = DomainClaims(
        observers.pods.claims,
        DomainReader(kube, settings.node_name, lambda: knows_names(kernel_module_version(node.host))),
        journal,
        CdiFiles(settings.cdi_root, COMPUTE_DOMAIN_DRIVER),
        node,
        Listeners([*observers.listeners, watch, pods, *([status] if status is not None else [])]),
        sweep_interval_s=settings.cleanup_interval_s,
    )
    sockets = plugin_sockets(settings.kubelet_root, COMPUTE_DOMAIN_DRIVER, settings.pod_uid)
    dra = DraServer(sockets.dra, MeasuredClaims(claims, observers.calls, COMPUTE_DOMAIN_DRIVER), _NoHealth())
    registration = RegistrationServer(sockets, COMPUTE_DOMAIN_DRIVER, lambda: registered(COMPUTE_DOMAIN_DRIVER))
    await claims.start()
    async with serving(dra, registration, claims), asyncio.TaskGroup() as tasks:
        _log.info("ComputeDomains are served", driver=COMPUTE_DOMAIN_DRIVER)
        tasks.create_task(forever("claims of ComputeDomains", claims.run))
        tasks.create_task(forever("registration for ComputeDomains", registration.watch))
        if not settings.compute_domains:
            _log.warning("ComputeDomains are switched off; claims that use them are released when their pods end")
            return
        tasks.create_task(forever("the ComputeDomain of this node", watch.run))
        tasks.create_task(forever("Events of pods of ComputeDomains", pods.run))
        if status is not None:
            tasks.create_task(forever("device status of ComputeDomains", status.run))
            if binding is not None:
                tasks.create_task(forever("channels that pods wait for", binding(claims, status).run))


def _device_status(
    kube: Kube, settings: NodePluginSettings, watch: DomainWatch, observers: Observers
) -> DeviceStatusWriter | None:
    if Feature.DEVICE_STATUS not in settings.feature_gates:
        return None
    together_s = random.uniform(*_TOGETHER_S)
    writer = DeviceStatusWriter(kube, COMPUTE_DOMAIN_DRIVER, watch, observers.reported, together_s=together_s)
    watch.subscribe(writer.changed)
    return writer
