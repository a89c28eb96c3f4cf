"""What the controller and its webhook's process know of the webhook, from the settings. Pure."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from controller.settings import WebhookSettings
from controller.webhook.certificates import Lifetimes
from controller.webhook.configuration import ServiceAddress, Wish
from dra_driver.features import Feature, Gates
from dra_driver.names import COMPUTE_DOMAIN_DRIVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `main` was told of the webhook. `issued_here`: we make the certificate; else somebody else fills the
    Secret. `names` are those under which the API server calls."""

    endpoint: str
    wish: Wish
    secret_namespace: str
    secret_name: str
    issued_here: bool
    names: tuple[str, ...]
    drain_s: float
    settle_s: float = 5.0
    times: Lifetimes = field(default_factory=Lifetimes)


def plan_of(settings: WebhookSettings, namespace: str, driver: str, gates: Gates) -> Plan:
    """From what the process was told. The driver of domains has no settings: its name is part of the API. With the gate
    off the name is somebody else's, and so are configs for it."""
    domains = Feature.COMPUTE_DOMAINS in gates
    address: ServiceAddress | str = settings.url or ServiceAddress(namespace, settings.service)
    host = urlsplit(settings.url).hostname if settings.url else f"{settings.service}.{namespace}.svc"
    return Plan(
        endpoint=settings.endpoint,
        wish=Wish(
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
