"""Entry point of the controller, `gpu-dra-controller`: settings, policy, leader election, publishing, orderly stop."""

# isort: off
import dra_driver.runtime.lean  # before anything imports structlog
import dra_driver.runtime.lean_http  # noqa: F401 - before anything imports aiohttp

# isort: on
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from controller.binding import BindingClaims
from controller.classes import ProfileClasses
from controller.computedomains.keeper import DomainCollector, DomainKeeper
from controller.policies import PolicyKeeper
from controller.settings import ControllerSettings, read_settings
from controller.slices import PublishedSlices
from dra_driver.api.gpupolicy import GpuPolicy
from dra_driver.features import Feature
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.leader import LeaderElection
from dra_driver.kube.metrics import ApiCalls, DroppedEvents
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish.live import Changed, DecidedPolicies, LivePolicies, PolicySource
from dra_driver.publish.metrics import PublishedPools, PublishingCounters
from dra_driver.publish.policy_file import read_policies
from dra_driver.publish.pools import Publication, PublishingListeners
from dra_driver.runtime import memory
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.tasks import forever, run_service, until_signal
from dra_driver.runtime.telemetry import DebugSection, status_server, tell_build
from dra_driver.runtime.tracing import Tracer, open_tracer
from dra_driver.slices.domains import domain_devices

if TYPE_CHECKING:
    from controller.webhook.process import WebhookProcess

type Job = Callable[[], Coroutine[Any, Any, Any]]
"""Runs until it is cancelled."""


def main() -> None:
    memory.limit()
    settings = read_settings(sys.argv[1:], os.environ)
    configure_logging(settings.log_level, settings.log_format)
    sys.exit(run_service(run(settings)))


async def run(settings: ControllerSettings) -> None:
    """The controller's whole life. Ends with Stopped after a signal, or with the error of the part that failed."""
    installed = read_policies(settings.policy, settings.feature_gates)
    metrics = CollectorRegistry()
    tell_build(metrics, "controller")
    async with (
        open_tracer(settings.otlp_endpoint, "gpu-dra-controller") as tracer,
        Kube(
            endpoint_from(settings.kubeconfig),
            user_agent="gpu-dra-controller",
            answered=ApiCalls(metrics).answered,
            traced=tracer.request,
        ) as kube,
    ):
        events = EventRecorder(kube, controller=f"{settings.driver_name}/controller", instance=settings.identity)
        metrics.register(DroppedEvents(events.dropped))
        parts = _parts(kube, settings, installed, events, tracer, metrics)
        webhook = _webhook_process(settings, metrics)
        election = _election(kube, settings)
        led = partial(_all_of, _of_leader(parts, _webhook_lead(kube, settings)))
        work = led if election is None else partial(election.lead, led)
        async with (
            nullcontext() if webhook is None else webhook.serving(),
            status_server(
                settings.http_endpoint,
                metrics,
                live={},
                ready={
                    "slices": parts.slices.problem,
                    # A replica that cannot reach the API server is not ready, even while another one leads.
                    **({} if election is None else {"lease": election.problem}),
                    **({} if webhook is None else {"webhook": webhook.problem}),
                },
                debug=_debug_pages(parts) if settings.debug_pages else None,
            ),
            asyncio.TaskGroup() as tasks,
        ):
            for slices in parts.followed():
                tasks.create_task(forever("following", slices.follow))
            tasks.create_task(forever("leading", work))
            tasks.create_task(forever("news", events.run))
            memory.settle()
            await until_signal()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the leader runs. `slices` are of GPUs, `channels` of ComputeDomains, under a driver name of their own."""

    slices: PublishedSlices
    policies: PolicyKeeper
    channels: PublishedSlices
    domains: DomainKeeper | None

    def followed(self) -> Sequence[PublishedSlices]:
        """What every replica follows; without ComputeDomains there are no channels."""
        return (self.slices,) if self.domains is None else (self.slices, self.channels)


def _parts(
    kube: Kube,
    settings: ControllerSettings,
    installed: Sequence[GpuPolicy],
    events: EventRecorder,
    tracer: Tracer,
    metrics: CollectorRegistry,
) -> _Parts:
    counters, listeners = PublishingCounters(metrics), PublishingListeners(tracer=tracer, tell=events.tell)
    binding = _binding(kube, settings)
    slices = PublishedSlices(
        kube,
        _gpus(settings, installed, binding),
        listeners,
        counters,
        workers=settings.workers,
        classes=_classes(kube, settings, tracer),
        binding=binding,
    )
    channels = PublishedSlices(kube, _channels(settings, binding), listeners, counters, workers=settings.workers)
    policies = PolicyKeeper(kube, settings.feature_gates, installed, events.tell)
    domains = _domains(kube, settings, policies, events, tracer)
    if domains is not None:
        metrics.register(DomainCollector(domains.statuses))
    metrics.register(PublishedPools(lambda: [part.publisher for part in (slices, channels) if part.publisher]))
    return _Parts(slices, policies, channels, domains)


def _gpus(settings: ControllerSettings, installed: Sequence[GpuPolicy], binding: BindingClaims | None) -> Publication:
    return Publication(
        driver=settings.driver_name,
        policies=_live(settings, installed, binding),
        # Each driver writes its own limitations in the status of inventories.
        beside=[COMPUTE_DOMAIN_DRIVER] * (Feature.COMPUTE_DOMAINS in settings.feature_gates),
        list_attributes=Feature.LIST_ATTRIBUTES in settings.feature_gates,
        binding_conditions=Feature.MIG_BINDING_CONDITIONS in settings.feature_gates,
    )


def _channels(settings: ControllerSettings, binding: BindingClaims | None) -> Publication:
    """Channels and daemon devices of all nodes."""
    return Publication(
        driver=COMPUTE_DOMAIN_DRIVER,
        policies=lambda kube, changed: DecidedPolicies(),
        describe=domain_devices,
        labels_matter=True,
        beside=[settings.driver_name],
        binding_conditions=binding is not None,
    )


def _of_leader(parts: _Parts, webhook: Job | None) -> Mapping[str, Job]:
    """The tasks of the leader."""
    jobs: dict[str, Job] = {"publishing": parts.slices.run, "policies": parts.policies.run}
    if parts.domains is not None:
        jobs |= {"domains": parts.domains.run, "devices of domains": parts.channels.run}
    if webhook is not None:
        jobs["the webhook's configuration"] = webhook
    return jobs


def _binding(kube: Kube, settings: ControllerSettings) -> BindingClaims | None:
    if Feature.BINDING_CONDITIONS not in settings.feature_gates:
        return None
    return BindingClaims(kube, {settings.driver_name, COMPUTE_DOMAIN_DRIVER}, workers=settings.workers)


def _live(
    settings: ControllerSettings, installed: Sequence[GpuPolicy], binding: BindingClaims | None
) -> Callable[[Kube, Changed], PolicySource]:
    return lambda kube, changed: LivePolicies(
        kube, settings.driver_name, settings.feature_gates, changed, installed=installed, beside=binding
    )


def _debug_pages(parts: _Parts) -> dict[str, DebugSection]:
    domains = {} if parts.domains is None else {"domains": parts.domains.described}
    return {"pools": parts.slices.described, **domains}


def _classes(kube: Kube, settings: ControllerSettings, tracer: Tracer) -> ProfileClasses | None:
    if Feature.MIG_CLASSES not in settings.feature_gates:
        return None
    extended_resources = Feature.MIG_EXTENDED_RESOURCES in settings.feature_gates
    return ProfileClasses(kube, settings.driver_name, extended_resources=extended_resources, tracer=tracer)


def _webhook_process(settings: ControllerSettings, metrics: CollectorRegistry) -> "WebhookProcess | None":
    if settings.webhook is None:
        return None
    from controller.webhook.process import WebhookProcess

    process = WebhookProcess(sys.argv[1:], drain_s=settings.webhook.drain_s)
    metrics.register(process)
    return process


def _webhook_lead(kube: Kube, settings: ControllerSettings) -> Job | None:
    if settings.webhook is None:
        return None
    # Without a webhook the code for certificates is not needed.
    from controller.webhook.configuration import WebhookPlan
    from controller.webhook.trust import lead

    plan = WebhookPlan(settings.webhook, settings.lease_namespace, settings.driver_name, settings.feature_gates)
    return partial(lead, kube, plan)


def _domains(
    kube: Kube, settings: ControllerSettings, policies: PolicyKeeper, events: EventRecorder, tracer: Tracer
) -> DomainKeeper | None:
    if Feature.COMPUTE_DOMAINS not in settings.feature_gates:
        return None
    return DomainKeeper(
        kube,
        settings.daemons,
        several_channels=policies.several_channels,
        host_imex=Feature.HOST_IMEX in settings.feature_gates,
        events=events,
        tracer=tracer,
    )


async def _all_of(jobs: Mapping[str, Job]) -> None:
    """The tasks of the leader, by name."""
    async with asyncio.TaskGroup() as tasks:
        for name, job in jobs.items():
            tasks.create_task(forever(name, job))


def _election(kube: Kube, settings: ControllerSettings) -> LeaderElection | None:
    if not settings.leader_election:
        return None
    return LeaderElection(
        kube,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=settings.identity,
        times=settings.lease_times,
    )


if __name__ == "__main__":
    main()
