"""Maintains the two objects through which the API server trusts the webhook: the Secret with the certificate, and the
configuration. Every replica checks the Secret. The first that finds a renewal due writes it, guarded by the
resourceVersion that it read; if two try at once, one wins and the other uses its certificate. Only the leader writes
the configuration. This module creates neither object; the chart creates them empty, and deleting one switches the
webhook off.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NoReturn

import structlog

from controller.webhook.certificates import ServingCertificate, certificate_in, is_due, new_certificate, secret_data
from controller.webhook.configuration import CONFIGURATIONS, WebhookPlan, change, is_armed, is_refused_by_us, probe
from dra_driver.api.meta import DEVICE_CLASSES, SECRETS, JsonObject, Resource
from dra_driver.errors import ClusterError, Conflict, InvalidInput, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff, Reflector
from dra_driver.runtime.tasks import until

_log = structlog.get_logger(__name__)


class Watched(Reflector):
    """One object by its name, as on the server; `changed` is called at every change."""

    def __init__(
        self, kube: Kube, resource: Resource, name: str, changed: Callable[[], None], namespace: str | None = None
    ) -> None:
        selector = f"metadata.name={name}"
        super().__init__(kube, resource, namespace=namespace, field_selector=selector, on_change=lambda _: changed())
        self.about = f"{resource.kind} {f'{namespace}/' if namespace else ''}{name}"

    @property
    def object(self) -> JsonObject | None:
        return next(iter(self.objects.values()), None)


class CertificateKeeper:
    """Reads the Secret and renews its certificate, unless another program does that, such as cert-manager."""

    def __init__(self, kube: Kube, secret: Watched, plan: WebhookPlan, now: Callable[[], datetime]) -> None:
        self.problem: str | None = None
        """Why the Secret cannot be used."""
        self._kube = kube
        self._secret = secret
        self._plan = plan
        self._now = now

    async def certificate(self) -> ServingCertificate | None:
        """The certificate in the Secret, renewed if due. None if there is none, or if another replica wrote first: then
        the watch will report a change of the Secret. Raises ClusterError."""
        serving_certificate, self.problem = self._read()
        secret, plan = self._secret.object, self._plan
        due = plan.settings.issued_here and is_due(serving_certificate, plan.names, self._now(), plan.times)
        if secret is None or not due:
            return serving_certificate
        made = new_certificate(plan.names, self._now(), plan.times)
        # Items of a list have no kind.
        wanted = {**secret, "apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "data": secret_data(made)}
        try:
            await self._kube.replace(SECRETS, wanted)
        except (Conflict, NotFound):
            return serving_certificate
        _log.info("created a certificate", secret=self._secret.about, until=made.until.isoformat())
        self.problem = None
        return made

    def _read(self) -> tuple[ServingCertificate | None, str | None]:
        if not self._secret.synced.is_set():
            return None, f"{self._secret.about} has not been read yet"
        if self._secret.object is None:
            return None, f"{self._secret.about} does not exist"
        try:
            serving_certificate = certificate_in(self._secret.object, self._secret.about)
        except InvalidInput as error:
            return None, str(error)
        return serving_certificate, None if serving_certificate is not None else f"{self._secret.about} is empty"


class ConfigurationKeeper:
    """The webhook configuration, maintained while this replica leads."""

    def __init__(self, kube: Kube, configuration: Watched, plan: WebhookPlan, now: Callable[[], datetime]) -> None:
        self.problem: str | None = None
        """Why the API server does not call the webhook; None if it does, or if the webhook was switched off."""
        self._kube = kube
        self._configuration = configuration
        self._plan = plan
        self._now = now
        self._retry = Backoff(first_s=0.2, longest_s=30.0)
        self._proven = False

    async def settle(self, certificate: ServingCertificate | None) -> bool:
        """One step towards the wanted configuration; returns whether another step must follow at once. Raises
        ClusterError."""
        observed = self._configuration.object
        if certificate is None or observed is None:
            self._proven = False
            return False
        patch = change(observed, self._plan, certificate, self._now(), proven=self._proven)
        if patch is None and is_armed(observed):
            self._say(None)
        elif patch is None:
            await self._ask()
            return True
        else:
            await self._write(patch)
        return False

    async def _write(self, patch: JsonObject) -> None:
        try:
            await self._kube.merge_patch(CONFIGURATIONS, self._plan.settings.configuration, patch)
        except (Conflict, NotFound):
            return  # the watch will report the change
        _log.info("updated the webhook configuration", webhooks=len(patch["webhooks"]), asks_all=self._proven)

    async def _ask(self) -> None:
        """Makes the API server call the webhook for the probe."""
        try:
            await self._kube.create(DEVICE_CLASSES, probe(self._plan), dry_run=True)
        except Rejected as error:
            self._proven = is_refused_by_us(error.message, self._plan)
            why = None if self._proven else f"another admission check refused the probe: {error.message}"
        else:
            why = "the API server cannot reach the webhook; nothing is reviewed until it can"
        self._say(why)
        if not self._proven:
            await asyncio.sleep(self._retry.next_s())
        else:
            self._retry.reset()

    def _say(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            _log.warning("the API server does not call the webhook", reason=problem)
        elif problem is None and self.problem is not None:
            _log.info("the API server calls the webhook")
        self.problem = problem


# -- the leader's task

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
    secret = Watched(kube, SECRETS, plan.settings.secret, news.set, plan.namespace)
    configuration = Watched(kube, CONFIGURATIONS, plan.settings.configuration, news.set)
    certificates = CertificateKeeper(kube, secret, plan, now)
    keeper = ConfigurationKeeper(kube, configuration, plan, now)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(secret.run())
        tasks.create_task(configuration.run())
        retry = Backoff(first_s=0.2, longest_s=30.0)
        while True:
            news.clear()
            again = False
            try:
                # Replicas serve the certificate of the Secret soon: the API server must trust it before that.
                again = await keeper.settle(await certificates.certificate() if configuration.synced.is_set() else None)
                retry.reset()
            except ClusterError as error:
                _log.warning("the webhook configuration cannot be updated", error=str(error))
                await asyncio.sleep(retry.next_s(error.retry_after_s or 0.0))
                continue
            if not again:
                await until(news, look_s)
    raise AssertionError
