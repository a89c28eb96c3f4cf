"""The leader's part of the webhook: the certificate and the webhook configuration."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NoReturn

import structlog

from controller.webhook.plan import WebhookPlan
from controller.webhook.trust import (
    CertificateKeeper,
    ConfigurationKeeper,
    Issuing,
    watched_configuration,
    watched_secret,
)
from dra_driver.errors import ClusterError
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff

_log = structlog.get_logger(__name__)

LOOK_S = 60.0
"""Interval of checks whether to renew the certificate or to drop an old authority."""


async def lead(
    kube: Kube,
    plan: WebhookPlan,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    look_s: float = LOOK_S,
) -> NoReturn:
    """Keeps the configuration up to date until cancelled."""
    news = asyncio.Event()
    secret = watched_secret(kube, plan.secret_namespace, plan.secret_name, news.set)
    configuration = watched_configuration(kube, plan.wish.name, news.set)
    certificates = CertificateKeeper(kube, secret, Issuing(plan.names, plan.times) if plan.issued_here else None, now)
    keeper = ConfigurationKeeper(kube, configuration, plan.wish, now)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(secret.run())
        tasks.create_task(configuration.run())
        retry = Backoff(first_s=0.2, longest_s=30.0)
        while True:
            news.clear()
            again = False
            try:
                # Replicas serve the certificate of the Secret soon: the API server must trust it before that.
                again = await keeper.settle(await certificates.certificate() if configuration.synced else None)
                retry.reset()
            except ClusterError as error:
                _log.warning("the webhook configuration cannot be updated", error=str(error))
                await asyncio.sleep(retry.next_s(error.retry_after_s or 0.0))
                continue
            if not again:
                await until(news, look_s)
    raise AssertionError


async def until(news: asyncio.Event, at_most_s: float) -> None:
    """Waits until something changed, or for that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await news.wait()
