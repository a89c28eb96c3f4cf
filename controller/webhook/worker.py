"""Entry point of the webhook's process, which `process` starts: it answers reviews, under a memory limit.

Its arguments are the controller's. The controller takes precedence: this process has a lower priority, and the kernel
kills it first if memory is short. It writes reports to standard output; when standard input closes, the controller has
ended.
"""

# isort: off
import dra_driver.runtime.lean_service  # before anything else imports libraries
import dra_driver.runtime.lean_http  # noqa: F401 - before anything imports aiohttp

# isort: on
import asyncio
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from prometheus_client import CollectorRegistry, generate_latest

from controller.settings import ControllerSettings, WebhookSettings, read_settings
from controller.webhook.configuration import WebhookPlan
from controller.webhook.service import WebhookMetrics, WebhookReplica
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.publish.policy_file import read_policy
from dra_driver.runtime import memory
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.tasks import Stopped, forever, run_service, until_signal

MEMORY_BYTES = 320 * 1024 * 1024
"""Limit of data memory. The process needs 80 MiB, and 250 MiB with the maximum of connections and large bodies."""
_NICE = 5
_REPORT_EVERY_S = 0.5


def main() -> None:
    memory.limit()
    settings = read_settings(sys.argv[1:], os.environ)
    configure_logging(settings.log_level, settings.log_format)
    if settings.webhook is None:
        sys.exit("the controller has no webhook: set --webhook-endpoint")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(_NICE)
    # Some container runtimes forbid this; the limit above works without it.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    sys.exit(run_service(run(settings, settings.webhook)))


async def run(settings: ControllerSettings, webhook_settings: WebhookSettings) -> None:
    """Ends with Stopped after a signal, or when the controller has ended."""
    policy = read_policy(settings.policy, settings.feature_gates)
    metrics = CollectorRegistry()
    async with Kube(endpoint_from(settings.kubeconfig), user_agent="gpu-dra-controller") as kube:
        webhook = WebhookReplica(
            kube,
            WebhookPlan(webhook_settings, settings.lease_namespace, settings.driver_name, settings.feature_gates),
            policy=policy,
            metrics=WebhookMetrics(metrics),
        )
        async with webhook.serving(), asyncio.TaskGroup() as tasks:
            tasks.create_task(forever("the webhook", webhook.run))
            tasks.create_task(forever("reports", lambda: _report(webhook, metrics)))
            tasks.create_task(_while_the_controller_lives())
            memory.settle()
            await until_signal()


async def _report(webhook: WebhookReplica, metrics: CollectorRegistry) -> NoReturn:
    """Ends this process if a review never ends, because a thread cannot be stopped."""
    while (stuck := webhook.stuck()) is None:
        report = {"problem": webhook.problem(), "metrics": generate_latest(metrics).decode()}
        sys.stdout.buffer.write(json.dumps(report).encode() + b"\n")
        sys.stdout.buffer.flush()
        await asyncio.sleep(_REPORT_EVERY_S)
    raise RuntimeError(stuck)


async def _while_the_controller_lives() -> NoReturn:
    reader = asyncio.StreamReader()
    pipe: BinaryIO = sys.stdin.buffer
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    await reader.read()
    raise Stopped


if __name__ == "__main__":
    main()
