"""Derives from the settings what the controller and the webhook's process need. Pure."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from controller.settings import WebhookSettings
from controller.webhook.certificates import Lifetimes
from controller.webhook.configuration import ServiceAddress, WantedWebhook
from dra_driver.features import Feature, Gates
from dra_driver.names import COMPUTE_DOMAIN_DRIVER


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookPlan:
    """The webhook's settings. `issued_here`: the controller issues the certificate; otherwise another program fills the
    Secret. `names` are the host names that the API server uses."""

    endpoint: str
    wish: WantedWebhook
    secret_namespace: str
    secret_name: str
    issued_here: bool
    names: tuple[str, ...]
    drain_s: float
    settle_s: float = 5.0
    times: Lifetimes = field(default_factory=Lifetimes)


def plan_of(settings: WebhookSettings, namespace: str, driver: str, gates: Gates) -> WebhookPlan:
    """From the settings. The driver name of domains is part of the API and no setting. With the gate off, that name and
    its configs belong to another driver."""
    domains = Feature.COMPUTE_DOMAINS in gates
    address: ServiceAddress | str = settings.url or ServiceAddress(namespace, settings.service)
    host = urlsplit(settings.url).hostname if settings.url else f"{settings.service}.{namespace}.svc"
    return WebhookPlan(
        endpoint=settings.endpoint,
        wish=WantedWebhook(
            name=settings.configuration,
            drivers=(driver, COMPUTE_DOMAIN_DRIVER) if domains else (driver,),
            address=address,
            failure_policy=settings.failure_policy,
            timeout_s=settings.timeout_s,
            exempt=settings.exempt_namespaces,
            keeps_domains=domains,
        ),
        secret_namespace=namespace,
        secret_name=settings.secret,
        issued_here=settings.issued_here,
        names=(host or "",),
        drain_s=settings.drain_s,
    )
