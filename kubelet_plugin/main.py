"""Entry point of the node plugin, `gpu-dra-kubelet-plugin`: settings, hardware, services, sockets, run, orderly stop.

Without a driver or NVML the plugin still registers and serves: it reports what is missing, refuses to prepare devices
with that reason, and can release existing claims.
"""

# isort: off
import dra_driver.runtime.lean_service  # noqa: F401 - before anything else imports libraries

# isort: on
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from dra_driver.api.meta import NODE_INVENTORIES
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cdi.model import Mount
from dra_driver.errors import DriverError, NodeNotReady
from dra_driver.features import Feature
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.metrics import ApiCalls, DroppedEvents
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.runtime import memory
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.tasks import exit_after, forever, run_service, until_signal
from dra_driver.runtime.telemetry import DebugSection, status_server, tell_build
from dra_driver.runtime.tracing import OFF, Tracer, open_tracer
from kubelet_plugin.claims.mode_changes import ModeChanges
from kubelet_plugin.claims.node_effects import (
    CurrentFootprint,
    NodeMachine,
    effects_of,
    machine_of,
    mode_resets,
)
from kubelet_plugin.claims.service import ClaimService, NodeSources, ServicePatience
from kubelet_plugin.effects.device_nodes import DeviceNodes
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.facts.container_files import container_files_of, incomplete, known_container_files, lacking
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.fabric_answers import FabricAnswer, answer_of
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, OpenNvml, installed_nvml, simulated_nvml
from kubelet_plugin.facts.monitor import MonitoredFacts
from kubelet_plugin.facts.node_watch import NodeWatch
from kubelet_plugin.facts.offers import NodeOffers, NodeRules
from kubelet_plugin.facts.own_node import OwnNode
from kubelet_plugin.facts.release import GpuRelease
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.hook_program import ShippedHook
from kubelet_plugin.hardware.imex import HostDaemon, foreign_daemon_problem
from kubelet_plugin.hardware.nvfm import FabricManager
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.borrowed import FOLDER, Borrowed
from kubelet_plugin.prepare.cdi_files import METADATA_FOLDER, CdiFiles, OtherClaims
from kubelet_plugin.prepare.claim_reads import ClaimReader, PodsOfClaims
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.listener import ClaimListener, Listeners
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.reporting.binding import binding_of_domains, binding_of_gpus
from kubelet_plugin.reporting.debug import ClaimSpans, LastErrors, sections
from kubelet_plugin.reporting.device_status import DeviceStatusWriter, GpuClaims
from kubelet_plugin.reporting.events import ClaimEvents, NodeEvents, mode_switched, release_refused
from kubelet_plugin.reporting.health import PublishedHealth
from kubelet_plugin.reporting.metrics import CallMetrics, ClaimTimes, MeasuredClaims, NodeCollector
from kubelet_plugin.reporting.pod_events import ClaimPods, GpuTroubles, Observers, PodEvents
from kubelet_plugin.reporting.reported import Reported
from kubelet_plugin.reporting.reporter import Reporter
from kubelet_plugin.rpc.pod_resources import LOGS, SOCKET, PodsOfNode
from kubelet_plugin.rpc.servers import DraServer, RegistrationServer, plugin_sockets, serving
from kubelet_plugin.settings import NodePluginSettings, read_settings

if TYPE_CHECKING:
    from dra_driver.publish.pools import PoolPublisher
    from kubelet_plugin.domains.serving import MakeBinding
    from kubelet_plugin.simulation.host import SimulatedHost


_LONGEST_END_S = 20.0
"""How long a stopping plugin continues its operations. Longer operations hang in NVML; the next start repairs them."""


def main() -> None:
    memory.limit()
    settings = read_settings(sys.argv[1:], os.environ)
    configure_logging(settings.log_level, settings.log_format)
    sys.exit(run_service(run(settings)))


async def run(settings: NodePluginSettings) -> None:
    """The plugin's whole life. Ends with Stopped after a signal, or with the error of the part that failed."""
    metrics = CollectorRegistry()
    tell_build(metrics, "kubelet-plugin")
    async with (
        open_tracer(settings.otlp_endpoint, "gpu-dra-kubelet-plugin", settings.node_name) as tracer,
        Kube(
            endpoint_from(settings.kubeconfig),
            user_agent="gpu-dra-kubelet-plugin",
            answered=ApiCalls(metrics).answered,
            traced=tracer.request,
        ) as kube,
    ):
        events = EventRecorder(kube, controller=f"{settings.driver_name}/kubelet-plugin", instance=settings.node_name)
        metrics.register(DroppedEvents(events.dropped))
        own = OwnNode(settings.node_name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forever("the own node", partial(own.follow, kube)))
            await own.first_read()
            tasks.create_task(forever("the kept connection", kube.keep_connected))
            cluster, node = _Cluster(kube, tracer, metrics, events), _node(settings, own)
            try:
                await _live(settings, _composed(settings, cluster, node))
            finally:
                await node.journal.close()


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The plugin's connections outside its node."""

    kube: Kube
    tracer: Tracer
    metrics: CollectorRegistry
    events: EventRecorder


@dataclass(frozen=True, slots=True)
class _Node:
    """What the plugin reads and changes on its node, and its stored state."""

    own: OwnNode
    host: HostFiles
    driver: DriverInstallation
    open_nvml: OpenNvml
    programs: DriverPrograms
    host_imex: HostDaemon | None
    """None if no gate allows its use."""
    fabric: FabricManager
    hardware: Hardware
    machine: NodeMachine
    daemons: MpsDaemons
    journal: JournalStore
    ours: CurrentFootprint


@dataclass(frozen=True, slots=True)
class _Plugin:
    """The running parts, wired together."""

    release: GpuRelease
    watch: NodeWatch
    borrowed: Borrowed
    rules: NodeRules
    claims: ClaimService
    dra: DraServer
    registration: RegistrationServer
    loops: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
    """Tasks by name that run as long as the plugin; a failed one is restarted."""
    metrics: CollectorRegistry
    debug: Mapping[str, DebugSection] | None
    ends: Callable[[], None]
    """Called when a signal stops the plugin, before it completes running operations."""


def _node(settings: NodePluginSettings, own: OwnNode) -> _Node:
    # A simulated host is a folder of the real one, so its files can be mounted.
    host = HostFiles(settings.host_root, runtime_root=str(settings.host_root.resolve()) if settings.simulate else "/")
    simulated = _simulated(settings)
    driver = DriverInstallation(
        host,
        configured_root=settings.driver_root or (simulated.configured_root if simulated is not None else None),
        configured_hook=settings.cdi_hook,
        shipped_hook=None if settings.simulate else ShippedHook(settings.state_dir),
    )
    journal = JournalStore(settings.state_dir)
    open_nvml = installed_nvml(driver) if simulated is None else simulated_nvml(simulated)
    programs = DriverPrograms(host, driver.root)
    own_imex = Feature.HOST_IMEX in settings.feature_gates
    host_imex = HostDaemon(host, programs, settings.imex_socket) if own_imex else None
    imex_state = (lambda: None) if host_imex is None else host_imex.state
    machine = machine_of(host, settings.host_root if settings.simulate else None)
    fabric = _fabric_manager(settings, host, driver, simulated)
    ours = CurrentFootprint(journal, host)
    return _Node(
        own=own,
        host=host,
        driver=driver,
        open_nvml=open_nvml,
        programs=programs,
        host_imex=host_imex,
        fabric=fabric,
        hardware=Hardware(
            host,
            open_nvml,
            ours,
            imex_state=imex_state,
            imex_problem=partial(foreign_daemon_problem, host) if _makes_daemons(settings) else lambda: None,
            make_nodes=DeviceNodes(machine.on_host, driver, programs),
            incomplete=partial(incomplete, driver),
            # Containers of a simulated node run no hooks.
            warnings=own.runtime_warnings if settings.simulate else partial(lacking, driver, own),
            fabric=partial(answer_of, fabric) if Feature.FABRIC_PARTITIONS in settings.feature_gates else FabricAnswer,
        ),
        machine=machine,
        daemons=MpsDaemons(settings.state_dir / "mps", machine.on_host, programs),
        journal=journal,
        ours=ours,
    )


def _fabric_manager(
    settings: NodePluginSettings, host: HostFiles, driver: DriverInstallation, simulated: "SimulatedHost | None"
) -> FabricManager:
    if simulated is None:
        return FabricManager(host, driver.root, settings.fabric_manager)

    # Imported here, because a real node does not need profiles.
    from kubelet_plugin.simulation.nvfm import SimulatedFabricLibrary

    library = SimulatedFabricLibrary(simulated.root)
    return FabricManager(host, driver.root, settings.fabric_manager, lambda _: library)


def _makes_daemons(settings: NodePluginSettings) -> bool:
    """Whether IMEX daemons run in pods of ComputeDomains rather than on the node itself."""
    return settings.compute_domains and Feature.HOST_IMEX not in settings.feature_gates


def _composed(settings: NodePluginSettings, cluster: _Cluster, node: _Node) -> _Plugin:
    kube, metrics, journal = cluster.kube, cluster.metrics, node.journal
    rules = NodeRules(
        read=partial(kube.get, NODE_INVENTORIES, settings.node_name),
        installed=_installed(settings),
    )
    discovery = Discovery(node.hardware, interval_s=settings.discovery_interval_s)
    watch = NodeWatch(settings, rules.health, node.host, discovery, node.open_nvml, journal)
    reporter = Reporter(kube, settings.node_name, watch.facts, prepares_for_binding=settings.prepares_for_binding)
    reporter.follow(rules.saw)
    offers = NodeOffers(rules, settings.node_name)
    # Conditions of GPUs are judged again by what holds now.
    rules.subscribe(discovery.poke)
    reported, users = Reported(settings.state_dir), PodsOfClaims()
    status = _device_status(cluster, settings, watch, journal, rules, reported)
    reader = ClaimReader(kube, saw=users.saw)
    claim_pods = ClaimPods(reader, users, _members(settings, node.host))
    pods = PodEvents(GpuTroubles(watch.facts, journal, rules.health), claim_pods, cluster.events, reported)
    watch.facts.subscribe(lambda _: pods.changed())
    errors = LastErrors()
    heard = _heard(cluster, errors)
    listener = Listeners([*heard, pods, *([status] if status is not None else [])])
    effects = effects_of(node.machine, node.hardware, node.programs, node.daemons, watch.events.paused, node.fabric)
    cdi_files = CdiFiles(settings.cdi_root, settings.driver_name, settings.state_dir / METADATA_FOLDER)
    executor = Executor(journal, cdi_files, effects, listener)
    claims = _claims(settings, reader, node, watch, executor, offers, listener)
    node.hardware.when_reopened(_in_loop(claims.settings_may_be_lost))
    release = GpuRelease(
        settings.state_dir,
        node.hardware,
        watch.events,
        discovery,
        node.own,
        lambda mistake: cluster.events.tell(release_refused(settings.node_name, mistake)),
    )
    watch.watch_mps(node.daemons, claims.reassert_hold)
    NodeEvents(watch.facts, settings.node_name, cluster.events.tell)
    publisher = _publisher(cluster, settings)
    calls = CallMetrics(metrics)
    collector = NodeCollector(watch.facts, journal, node=settings.node_name, driver=settings.driver_name, pods=users)
    metrics.register(collector)
    sockets = plugin_sockets(settings.kubelet_root, settings.driver_name, settings.pod_uid)
    observers = Observers(calls, collector, heard, cluster.events, claim_pods, reported)
    loops: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "reporter": reporter.run,
        "news": cluster.events.run,
        "news of pods": pods.run,
        "claims": claims.run,
        "MIG modes": _mode_changes(settings, cluster, node, watch, executor, rules).run,
        "release of GPUs": release.run,
    }
    if settings.compute_domains or _has_domain_claims(settings, journal):
        of_domains = partial(binding_of_domains, settings.node_name, reader, watch, reporter.follow)
        loops["ComputeDomains"] = partial(
            _domains,
            kube,
            settings,
            node,
            watch.facts,
            reporter.registered,
            observers,
            of_domains if settings.prepares_for_binding else None,
        )
    if status is not None:
        loops["device status"] = status.run
        if settings.prepares_for_binding:
            binding = binding_of_gpus(settings, reader, claims, status, watch, offers)
            reporter.follow(binding.saw)
            loops["claims that wait for binding"] = binding.run
    if publisher is not None:
        loops["publisher"] = publisher.run
    return _Plugin(
        release=release,
        watch=watch,
        borrowed=Borrowed(settings.state_dir / FOLDER, effects, node.hardware.boot_id),
        rules=rules,
        claims=claims,
        dra=DraServer(
            sockets.dra,
            MeasuredClaims(claims, calls, settings.driver_name),
            PublishedHealth(watch.facts, offers, settings.node_name, rules.health, watch.instance_of),
            part_of=None if cluster.tracer is OFF else cluster.tracer.adopt,
        ),
        registration=RegistrationServer(
            sockets, settings.driver_name, lambda: reporter.registered(settings.driver_name)
        ),
        loops=loops,
        metrics=metrics,
        debug=sections(watch.facts, journal, errors) if settings.debug_pages else None,
        ends=partial(_end, node.hardware),
    )


def _in_loop(call: Callable[[], None]) -> Callable[[], None]:
    """For a call from another thread."""
    loop = asyncio.get_running_loop()

    def called() -> None:
        with suppress(RuntimeError):  # the loop is closed and prepares nothing
            loop.call_soon_threadsafe(call)

    return called


def _mode_changes(
    settings: NodePluginSettings,
    cluster: _Cluster,
    node: _Node,
    watch: NodeWatch,
    executor: Executor,
    rules: NodeRules,
) -> ModeChanges:
    return ModeChanges(
        settings.node_name,
        executor,
        mode_resets(node.machine, node.hardware, node.programs, watch.events.paused),
        rules,
        watch.facts,
        node.ours.report,
        lambda gpu, on: cluster.events.tell(mode_switched(settings.node_name, gpu, on=on)),
        allowed=Feature.MIG_MODE_CHANGE in settings.feature_gates,
    )


def _end(hardware: Hardware) -> None:
    hardware.end()
    exit_after(_LONGEST_END_S)


def _heard(cluster: _Cluster, errors: LastErrors) -> list[ClaimListener]:
    """Observers of operations on claims of both drivers."""
    spans = [] if cluster.tracer is OFF else [ClaimSpans(cluster.tracer)]
    return [*spans, ClaimTimes(cluster.metrics), ClaimEvents(cluster.events.tell), errors]


def _claims(
    settings: NodePluginSettings,
    reader: ClaimReader,
    node: _Node,
    watch: NodeWatch,
    executor: Executor,
    offers: NodeOffers,
    listener: ClaimListener,
) -> ClaimService:
    others = OtherClaims(settings.cdi_root, [settings.driver_name])
    look = partial(container_files_of, node.driver, others=others, readable=node.own.readable_cdi)
    known = partial(known_container_files, node.driver, others=others, readable=node.own.readable_cdi)
    metadata, gates = settings.state_dir / METADATA_FOLDER, settings.feature_gates
    return ClaimService(
        reader,
        NodeSources(settings.driver_name, settings.node_name, watch.facts, look, offers, gates, metadata, known),
        executor,
        listener,
        ServicePatience(sweep_s=settings.cleanup_interval_s),
    )


async def _live(settings: NodePluginSettings, plugin: _Plugin) -> None:
    """Registers with the kubelet after everything is ready to serve."""
    await asyncio.to_thread(plugin.release.restore)
    await plugin.borrowed.settle()
    await plugin.rules.refresh()
    await plugin.claims.start()
    await plugin.watch.start()
    async with (
        status_server(
            settings.http_endpoint,
            plugin.metrics,
            live={},
            ready={"registration": plugin.registration.problem},
            debug=plugin.debug,
        ),
        asyncio.TaskGroup() as tasks,
    ):
        plugin.watch.run_in(tasks)
        for name, loop in plugin.loops.items():
            tasks.create_task(forever(name, loop))
        async with serving(plugin.dra, plugin.registration, plugin.claims):
            tasks.create_task(forever("registration", plugin.registration.watch))
            memory.settle()
            tasks.create_task(memory.settle_later())
            await until_signal(plugin.ends)


async def _domains(
    kube: Kube,
    settings: NodePluginSettings,
    node: _Node,
    facts: MonitoredFacts,
    registered: Callable[[str], None],
    observers: Observers,
    binding: "MakeBinding | None",
) -> None:
    """Starts the driver of ComputeDomains when the node supports them; the NVIDIA driver may appear after the plugin.
    Starts at once if claims hold devices of domains, because their pods cannot end until the plugin releases them.
    """
    there = asyncio.Event()
    if _has_domain_claims(settings, node.journal):
        there.set()

    def look(seen: NodeFacts) -> None:
        if seen.imex is not None and seen.imex.usable:
            there.set()

    unsubscribe = facts.subscribe(look)
    with suppress(NodeNotReady):
        look(facts.facts)
    await there.wait()
    unsubscribe()
    # Imported here, because most nodes never need it in memory.
    from kubelet_plugin.domains.service import DomainHost
    from kubelet_plugin.domains.serving import serve_domains

    domain_node = DomainHost(
        name=settings.node_name,
        namespace=settings.namespace,
        host=node.host,
        facts=facts,
        container_files=partial(container_files_of, node.driver),
        readable=node.own.readable_cdi,
        host_imex=None if node.host_imex is None else node.host_imex.problem,
        daemon_mounts=_simulated_hardware(settings),
    )
    await serve_domains(kube, settings, domain_node, node.journal, observers, registered, binding)


def _has_domain_claims(settings: NodePluginSettings, journal: JournalStore) -> bool:
    """True also if unknown: the plugin must release them, or their pods cannot end."""
    try:
        return bool(journal.current.domains or CdiFiles(settings.cdi_root, COMPUTE_DOMAIN_DRIVER).claims())
    except DriverError:
        return True


def _simulated_hardware(settings: NodePluginSettings) -> tuple[Mount, ...]:
    """What containers of a simulated node have in place of hardware."""
    if settings.simulate is None:
        return ()
    folder = str(settings.host_root.absolute() / "sim")
    return (Mount(folder, folder, ("ro", "nosuid", "nodev", "rbind", "rprivate")),)


def _device_status(
    cluster: _Cluster,
    settings: NodePluginSettings,
    watch: NodeWatch,
    journal: JournalStore,
    rules: NodeRules,
    reported: Reported,
) -> DeviceStatusWriter | None:
    if Feature.DEVICE_STATUS not in settings.feature_gates:
        return None
    claims = GpuClaims(watch.facts, journal, rules.health)
    writer = DeviceStatusWriter(cluster.kube, settings.driver_name, claims, reported)
    watch.facts.subscribe(lambda _: writer.changed())
    return writer


def _members(settings: NodePluginSettings, host: HostFiles) -> PodsOfNode:
    """The kubelet's folder and the logs are below the host's root; simulated hardware has its own root."""
    kubelet, host_kubelet = settings.kubelet_root, host.path(str(settings.kubelet_root))
    return PodsOfNode([path / SOCKET for path in (kubelet, host_kubelet)], [host.path(LOGS), Path(LOGS)])


def _installed(settings: NodePluginSettings) -> PublishingPolicy:
    """Raises InvalidInput, which ends the plugin."""
    if settings.policy is None:
        return PublishingPolicy.EVERYTHING

    # Imported here, because it brings the publisher with it, which most plugins do not need in memory.
    from dra_driver.publish.policy_file import read_policy

    return read_policy(settings.policy, settings.feature_gates)


def _publisher(cluster: _Cluster, settings: NodePluginSettings) -> "PoolPublisher | None":
    """Publishes for this node as the controller does for all; None if the controller publishes."""
    if settings.publisher != "node":
        return None

    # Imported here, because plugins do not need it in memory if a controller publishes.
    from dra_driver.kube.watch import Watches
    from dra_driver.publish.live import LivePolicies
    from dra_driver.publish.metrics import PublishedPools
    from dra_driver.publish.narrator import Narrator
    from dra_driver.publish.policy_file import read_policies
    from dra_driver.publish.pools import PoolPublisher, Publication, PublishingListeners

    installed = read_policies(settings.policy, settings.feature_gates)
    publisher = PoolPublisher(
        Watches(cluster.kube),
        Publication(
            driver=settings.driver_name,
            policies=lambda watches, changed: LivePolicies(
                watches, settings.driver_name, settings.feature_gates, changed, settings.node_name, installed
            ),
            node_name=settings.node_name,
            list_attributes=Feature.LIST_ATTRIBUTES in settings.feature_gates,
        ),
        PublishingListeners(
            narrator=Narrator(cluster.metrics),
            tracer=cluster.tracer,
            tell=cluster.events.tell,
        ),
    )
    cluster.metrics.register(PublishedPools(lambda: [publisher]))
    return publisher


def _simulated(settings: NodePluginSettings) -> "SimulatedHost | None":
    """The simulated node of a profile or a record, existing or new; None on a real node."""
    if settings.simulate is None:
        return None

    # Imported here, because a real node does not need profiles.
    from kubelet_plugin.simulation.host import open_simulated

    # Without a number, all nodes of a DaemonSet have the same setting but different GPUs.
    simulated = open_simulated(settings.host_root, settings.simulate, settings.node_name)
    simulated.adopt_programs()
    if Feature.FABRIC_PARTITIONS in settings.feature_gates:
        simulated.share_switches()
    return simulated


if __name__ == "__main__":
    main()
