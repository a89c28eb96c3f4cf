"""The webhook of one replica: it answers reviews. The leader also runs `trust.lead`. `worker` calls `serving` for the
life of the process, and `run` concurrently.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.webhook.certificates import Served
from controller.webhook.configuration import CONFIGURATIONS, WebhookPlan, is_armed, trusted_in
from controller.webhook.review import NotAReview, Reviewer, answered, is_quick, read_review
from controller.webhook.review_server import ReviewServer
from controller.webhook.trust import LOOK_S, CertificateKeeper, Watched
from dra_driver.allocation.selection import reads_of
from dra_driver.api.meta import DEVICE_CLASSES, SECRETS, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import DeviceClass
from dra_driver.cel.device import compile_selector
from dra_driver.cel.library.texts import compiled_pattern
from dra_driver.checking.knowledge import Knowledge, Sites, sites_of_kinds
from dra_driver.errors import ClusterError
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff, Mirror, MirrorChange
from dra_driver.kubernetes import KNOWN
from dra_driver.quantity import Quantity
from dra_driver.runtime.tasks import until

_log = structlog.get_logger(__name__)

_VERSION_S = 600.0
_REMEMBERED_KIB = 1_500
"""KiB of bodies after which caches are cleared. Compiled selectors and their results are cached, so that repeated
claims are fast; a selector takes eighty times the memory of its text."""


class WebhookMetrics:
    """What is measured."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            "gpu_dra_webhook_reviews_total",
            "Reviews by the kind of the object (empty: another kind) and by result: admitted, refused, malformed,"
            " failed.",
            ["kind", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            "gpu_dra_webhook_review_seconds",
            "Seconds from the complete body to its answer.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
            registry=registry,
        )
        self.armed = Gauge(
            "gpu_dra_webhook_armed",
            "1 while the API server sends all objects for review, otherwise 0.",
            registry=registry,
        )
        self.expires = Gauge(
            "gpu_dra_webhook_certificate_expiry_timestamp_seconds",
            "Expiry of the served certificate, in seconds since 1970; 0 if there is none.",
            registry=registry,
        )


class WebhookReplica:
    """One replica's part. `now` is the wall clock, for tests."""

    def __init__(
        self,
        kube: Kube,
        plan: WebhookPlan,
        *,
        policy: PublishingPolicy,
        metrics: WebhookMetrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        look_s: float = LOOK_S,
    ) -> None:
        self._kube = kube
        self._plan = plan
        self._metrics = metrics
        self._now = now
        self._look_s = look_s
        self._news = asyncio.Event()
        self._secret = Watched(kube, SECRETS, plan.settings.secret, self._changed, plan.namespace)
        self._configuration = Watched(kube, CONFIGURATIONS, plan.settings.configuration, self._changed)
        self._classes: Mirror[DeviceClass | None] = Mirror(
            kube, DEVICE_CLASSES, keep=DeviceClass.or_none, on_change=self._class_changed
        )
        self._certificates = CertificateKeeper(kube, self._secret, plan, now)
        self._served = Served()
        knowledge = Knowledge(driver=plan.driver, policies=(policy,), gates=plan.gates)
        self._judge = Reviewer(knowledge, knows_server=False)
        self._judged_kib = 0
        self._tired = asyncio.Event()
        """Set when the caches must be cleared."""
        self._loop = asyncio.get_running_loop()
        self._version_known = False
        endpoint, timeout_s = plan.settings.endpoint, plan.settings.timeout_s
        self._server = ReviewServer(endpoint, self.respond, drain_s=plan.settings.drain_s, deadline_s=timeout_s)

    def serving(self) -> AbstractAsyncContextManager[int]:
        """Answers reviews; ends some seconds after the block, when no API server calls this replica any longer. Yields
        the port."""
        return self._server.running()

    async def run(self) -> NoReturn:
        """Keeps certificate and knowledge up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._secret.run())
            tasks.create_task(self._configuration.run())
            tasks.create_task(self._classes.run())
            tasks.create_task(self._follow_version())
            await self._follow_certificate()
        raise AssertionError

    def stuck(self) -> str | None:
        """A message that a review takes far too long, or None."""
        return self._server.stuck()

    def problem(self) -> str | None:
        """Why this replica cannot answer reviews, or None; for the readiness probe."""
        if not self._configuration.synced.is_set():
            return f"{self._configuration.about} has not been read yet"
        if not (self._classes.synced.is_set() and self._version_known):
            return "classes and version of the cluster have not been read yet"
        current = self._served.current
        if current is not None:
            return current.problem(self._plan.names, self._now())
        return self._certificates.problem or self._served.problem()

    def respond(self, body: bytes) -> JsonObject:
        """The answer to a review. Raises NotAReview, a ValueError, for other bodies."""
        started, kind, result = time.perf_counter(), "", "failed"
        try:
            review = read_review(body)
            kind = review.kind.kind if review.kind is not None else ""
            answer = self._judge.answer(review)
            result = "admitted" if answer.allowed else "refused"
            if not answer.allowed:
                _log.info("refused", kind=kind, uid=review.uid, reason="; ".join(answer.refusals)[:2000])
            return answered(answer)
        except NotAReview as error:
            result = "malformed"
            raise ValueError(str(error)) from error
        finally:
            self._metrics.reviews.labels(kind, result).inc()
            self._metrics.seconds.observe(time.perf_counter() - started)
            self._judged_kib += 1 + len(body) // 1024
            if self._judged_kib >= _REMEMBERED_KIB:
                self._loop.call_soon_threadsafe(self._tired.set)

    # -- certificate

    def _changed(self) -> None:
        self._news.set()
        self._metrics.armed.set(is_armed(self._configuration.object))

    async def _follow_certificate(self) -> NoReturn:
        retry = Backoff(first_s=0.2, longest_s=30.0)
        while True:
            self._news.clear()
            wait_s = self._look_s
            try:
                if self._configuration.synced.is_set():
                    offered = await self._certificates.certificate()
                    configuration = self._configuration.object
                    trusted = trusted_in(configuration) if is_armed(configuration) else None
                    wait_s = self._serve(self._served.seen(offered, trusted, time.monotonic(), self._plan.settle_s))
                    retry.reset()
            except ClusterError as error:
                wait_s = retry.next_s(error.retry_after_s or 0.0)
                _log.warning("the certificate cannot be renewed", error=str(error), retry_s=wait_s)
            await until(self._news, wait_s)

    def _serve(self, served: Served) -> float:
        """Seconds to wait before the next check."""
        current = served.current
        if current is not None and current != self._served.current:
            self._server.use(current)
            self._metrics.expires.set(current.until.timestamp())
            _log.info("serving a certificate", until=current.until.isoformat())
        self._served = served
        wait_s = served.wait_s(time.monotonic(), self._plan.settle_s)
        return self._look_s if wait_s is None else min(wait_s, self._look_s)

    # -- knowledge

    def _class_changed(self, change: MirrorChange[DeviceClass | None]) -> None:
        knowledge = self._judge.knowledge
        classes = {name: class_ for (_, name), class_ in self._classes.objects.items() if class_ is not None}
        # A selector that takes too long is not evaluated.
        quick = {name: class_ for name, class_ in classes.items() if is_quick(class_.spec.expressions, knowledge)}
        self._judge = replace(self._judge, knowledge=replace(knowledge, classes=quick))

    async def _follow_version(self) -> NoReturn:
        """Reads the server's version periodically, and rebuilds the devices on which selectors are evaluated."""
        retry = Backoff(first_s=0.2, longest_s=30.0)
        while True:
            try:
                _, minor = await self._kube.server_version()
            except ClusterError as error:
                _log.warning("the API server does not report its version", error=str(error))
                await asyncio.sleep(retry.next_s(error.retry_after_s or 0.0))
                continue
            retry.reset()
            await self._know(minor)
            await until(self._tired, _VERSION_S)

    async def _know(self, minor: int) -> None:
        known = min(max(minor, KNOWN[0]), KNOWN[-1])
        driver = self._judge.knowledge.driver
        sites = await self._server.in_thread(lambda: _asked_once(sites_of_kinds(known, driver)))
        self._tired.clear()
        self._judged_kib = 0
        for remembered in (compile_selector, compiled_pattern, reads_of, Quantity.parse):
            remembered.cache_clear()
        knowledge = replace(self._judge.knowledge, minor=known, sites=sites)
        self._judge = Reviewer(knowledge, knows_server=minor in KNOWN)
        self._version_known = True


def _asked_once(sites: Sites) -> Sites:
    """With all sites built, so that no review waits for them and threads do not build them concurrently."""
    assert sites.broad
    return sites
