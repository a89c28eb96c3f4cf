"""Entry point of the controller, `gpu-dra-controller`: settings, policy, leader election, publishing, orderly stop."""

# isort: off
import dra_driver.runtime.lean  # noqa: F401 - before structlog is imported by anything

# isort: on
import asyncio
import sys
from functools import partial

from prometheus_client import CollectorRegistry

from controller.classes import ProfileClasses
from controller.settings import Settings, from_process
from controller.slices import PublishedSlices
from dra_driver.features import Feature
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.leader import LeaderElection
from dra_driver.kube.metrics import ApiCalls
from dra_driver.publish.policy_file import read_policy
from dra_driver.runtime import memory
from dra_driver.runtime.tasks import forever, run_service, until_signal
from dra_driver.runtime.telemetry import configure_logging, status_server, tell_build
from dra_driver.runtime.tracing import Tracer, open_tracer


def main() -> None:
    memory.limit_allocator()
    settings = from_process()
    configure_logging(settings.log_level, settings.log_format)
    sys.exit(run_service(run(settings)))


async def run(settings: Settings) -> None:
    """The controller's whole life. Ends with Stopped after a signal, or with the error of the part that failed."""
    policy = read_policy(settings.policy, settings.feature_gates)
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
        slices = PublishedSlices(
            kube,
            settings.driver_name,
            policy,
            workers=settings.workers,
            registry=metrics,
            classes=_classes(kube, settings, tracer),
            tracer=tracer,
        )
        election = _election(kube, settings)
        work = slices.run if election is None else partial(election.lead, slices.run)
        async with (
            status_server(
                settings.http_endpoint,
                metrics,
                live={},
                ready={"slices": slices.problem},
                debug={"pools": slices.described} if settings.debug_pages else None,
            ),
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(forever("publishing", work))
            memory.settle()
            await until_signal()


def _classes(kube: Kube, settings: Settings, tracer: Tracer) -> ProfileClasses | None:
    if Feature.MIG_CLASSES not in settings.feature_gates:
        return None
    extended_resources = Feature.MIG_EXTENDED_RESOURCES in settings.feature_gates
    return ProfileClasses(kube, settings.driver_name, extended_resources=extended_resources, tracer=tracer)


def _election(kube: Kube, settings: Settings) -> LeaderElection | None:
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
