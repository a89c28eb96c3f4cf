"""Entry point of the controller, `gpu-dra-controller`: settings, policy, leader election, publishing, orderly stop."""

# isort: off
import dra_driver.runtime.lean_service  # noqa: F401 - before anything else imports libraries

# isort: on
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from controller.binding import BindingClaims
from controller.classes import ProfileClasses
from controller.computedomains.keeper import DomainCollector, DomainKeeper
from controller.policies import PolicyKeeper
from controller.replica import Replica, alone
from controller.settings import ControllerSettings, WebhookSettings, read_settings
from controller.slices import PublishedSlices
from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.api.gpupolicy import GpuPolicy
from dra_driver.features import Feature
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.leader import LeaderElection
from dra_driver.kube.metrics import ApiCalls, DroppedEvents
from dra_driver.kube.watch import Key, Watches
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish.live import DecidedPolicies, LivePolicies
from dra_driver.publish.metrics import PublishedPools
from dra_driver.publish.narrator import Narrator
from dra_driver.publish.policy_file import read_policies
from dra_driver.publish.pools import PoolPublisher, Publication, PublishingListeners
from dra_driver.runtime import memory
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.tasks import forever, run_service, until_signal
from dra_driver.runtime.telemetry import status_server, tell_build
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
        _connections(settings, metrics, tracer) as (kube, own, election),
    ):
        events = EventRecorder(own, controller=f"{settings.driver_name}/controller", instance=settings.identity)
        metrics.register(DroppedEvents(events.dropped))
        narrator = Narrator(metrics)
        replica = Replica(lambda: _Parts(kube, settings, installed, events, tracer, narrator))
        metrics.register(PublishedPools(lambda: replica.parts.publishers()))
        if Feature.COMPUTE_DOMAINS in settings.feature_gates:
            metrics.register(DomainCollector(lambda: replica.parts.statuses()))
        webhook = None if settings.webhook is None else _webhook_process(settings.webhook, metrics)
        async with (
            nullcontext() if webhook is None else webhook.serving(),
            status_server(
                settings.http_endpoint,
                metrics,
                live={},
                ready={
                    "slices": lambda: replica.parts.slices.problem(),
                    # A replica that cannot reach the API server is not ready, even while another one leads.
                    **({} if election is None else {"lease": election.problem}),
                    **({} if webhook is None else {"webhook": webhook.problem}),
                },
                debug={
                    "pools": lambda: replica.parts.slices.described(),
                    "domains": lambda: replica.parts.described_domains(),
                }
                if settings.debug_pages
                else None,
            ),
            asyncio.TaskGroup() as tasks,
        ):
            lead = alone if election is None else election.lead
            tasks.create_task(forever("the replica", partial(replica.run, lead)))
            tasks.create_task(forever("news", events.run))
            memory.settle()
            await until_signal()


@asynccontextmanager
async def _connections(
    settings: ControllerSettings, metrics: CollectorRegistry, tracer: Tracer
) -> AsyncIterator[tuple[Kube, Kube, LeaderElection | None]]:
    """The leader's, another one for what every replica may write, and the election by the latter."""
    endpoint, answered = endpoint_from(settings.kubeconfig), ApiCalls(metrics).answered
    connect = partial(Kube, endpoint, user_agent="gpu-dra-controller", answered=answered, traced=tracer.request)
    async with connect() as own:
        election = _election(own, settings)
        async with connect() if election is None else connect(may_write=election.check_term) as kube:
            yield kube, own, election


class _Parts:
    """The controller's parts. All follow the cluster with the same `watches`, and write only while `run` runs. `slices`
    are of GPUs; channels of ComputeDomains are published under a driver name of their own."""

    def __init__(
        self,
        kube: Kube,
        settings: ControllerSettings,
        installed: Sequence[GpuPolicy],
        events: EventRecorder,
        tracer: Tracer,
        narrator: Narrator,
    ) -> None:
        gates, driver = settings.feature_gates, settings.driver_name
        self.watches = watches = Watches(kube)
        listeners = PublishingListeners(narrator=narrator, tracer=tracer, tell=events.tell)
        self.slices = PublishedSlices(
            watches,
            _gpus(settings, installed),
            listeners,
            workers=settings.workers,
            classes=_classes(kube, settings, tracer),
            binding=BindingClaims(watches, {driver, COMPUTE_DOMAIN_DRIVER}, workers=settings.workers)
            if Feature.BINDING_CONDITIONS in gates
            else None,
        )
        self._policies = PolicyKeeper(watches, gates, installed, events.tell)
        self._webhook = None if settings.webhook is None else _webhook_lead(kube, settings, settings.webhook)
        self._domains: DomainKeeper | None = None
        self._channels: PublishedSlices | None = None
        if Feature.COMPUTE_DOMAINS in gates:
            self._domains = DomainKeeper(
                watches,
                settings.daemons,
                several_channels=self._policies.several_channels,
                host_imex=Feature.HOST_IMEX in gates,
                events=events,
                tracer=tracer,
            )
            self._channels = PublishedSlices(watches, _channels(settings), listeners, workers=settings.workers)

    def publishers(self) -> list[PoolPublisher]:
        parts = (self.slices, self._channels)
        return [part.publisher for part in parts if part is not None and part.publisher is not None]

    def statuses(self) -> Mapping[Key, ComputeDomainStatus]:
        return {} if self._domains is None else self._domains.statuses()

    def described_domains(self) -> Iterable[str]:
        return () if self._domains is None else self._domains.described()

    async def run(self) -> None:
        jobs: dict[str, Job] = {"publishing": self.slices.run, "policies": self._policies.run}
        if self._domains is not None and self._channels is not None:
            jobs |= {"domains": self._domains.run, "devices of domains": self._channels.run}
        if self._webhook is not None:
            jobs["the webhook's configuration"] = self._webhook
        async with asyncio.TaskGroup() as tasks:
            for name, job in jobs.items():
                tasks.create_task(forever(name, job))


def _gpus(settings: ControllerSettings, installed: Sequence[GpuPolicy]) -> Publication:
    driver, gates = settings.driver_name, settings.feature_gates
    return Publication(
        driver=driver,
        policies=lambda watches, changed: LivePolicies(watches, driver, gates, changed, installed=installed),
        # Each driver writes its own limitations in the status of inventories.
        beside=[COMPUTE_DOMAIN_DRIVER] * (Feature.COMPUTE_DOMAINS in gates),
        list_attributes=Feature.LIST_ATTRIBUTES in gates,
        binding_conditions=Feature.MIG_BINDING_CONDITIONS in gates,
    )


def _channels(settings: ControllerSettings) -> Publication:
    """Channels and daemon devices of all nodes."""
    return Publication(
        driver=COMPUTE_DOMAIN_DRIVER,
        policies=lambda watches, changed: DecidedPolicies(),
        describe=domain_devices,
        labels_matter=True,
        beside=[settings.driver_name],
        binding_conditions=Feature.BINDING_CONDITIONS in settings.feature_gates,
    )


def _classes(kube: Kube, settings: ControllerSettings, tracer: Tracer) -> ProfileClasses | None:
    if Feature.MIG_CLASSES not in settings.feature_gates:
        return None
    extended_resources = Feature.MIG_EXTENDED_RESOURCES in settings.feature_gates
    return ProfileClasses(kube, settings.driver_name, extended_resources=extended_resources, tracer=tracer)


def _webhook_process(settings: WebhookSettings, metrics: CollectorRegistry) -> "WebhookProcess":
    from controller.webhook.process import WebhookProcess

    process = WebhookProcess(sys.argv[1:], drain_s=settings.drain_s)
    metrics.register(process)
    return process


def _webhook_lead(kube: Kube, settings: ControllerSettings, webhook: WebhookSettings) -> Job:
    # Without a webhook the code for certificates is not needed.
    from controller.webhook.configuration import WebhookPlan
    from controller.webhook.trust import lead

    plan = WebhookPlan(webhook, settings.lease_namespace, settings.driver_name, settings.feature_gates)
    return partial(lead, kube, plan)


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
