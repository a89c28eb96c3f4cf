"""The webhook configuration: which requests the API server sends, to which endpoint, and what it does without an
answer. Pure. The chart creates a ValidatingWebhookConfiguration without webhooks, which has no effect. The leader fills
it in two stages. First it registers only one object, which is never stored: `probe`. If the API server refuses that
object with this webhook's message, it has reached a replica through the Service and trusts its authority; only then the
leader registers all kinds. Therefore no request waits for a webhook that does not answer yet, and a cluster whose API
server cannot reach pods is not affected. Deleting the object, as Helm does, switches the webhook off; the controller
does not create it again.

Two webhooks for each kind: `refuse` for objects with a config for this driver, with the configured failure policy;
`advise` for objects that only select this driver's devices. These get only warnings, so they must not wait.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from controller.settings import WebhookSettings
from controller.webhook.certificates import Lifetimes, ServingCertificate, has_expired, pem_blocks
from controller.webhook.kinds import KINDS, ReviewedKind, condition
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.api.untyped import lacking, list_in, value_at
from dra_driver.features import Feature, Gates
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION

CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False
)
PATH = "/review"
MARK = "dra.gpu/webhook-authority"
"""Annotation: a digest of the authority that is trusted now, and its start time."""
OVERLAP = timedelta(hours=1)
"""How long the previous authority stays trusted. Replicas serve its certificate for some more seconds, and replicas of
an earlier release until they are replaced."""
_MOST_TRUSTED = 16
_ADVICE_TIMEOUT_S = 2
_PROBE = "webhook-probe"


@dataclass(frozen=True, slots=True)
class WebhookPlan:
    """The webhook's settings, and what follows from them. `namespace` is that of the Service and the Secret.
    `settle_s`: how long API servers' own watches take to receive a change."""

    settings: WebhookSettings
    namespace: str
    driver: str
    gates: Gates = Gates.DEFAULT
    settle_s: float = 5.0
    times: Lifetimes = field(default_factory=Lifetimes)

    @property
    def keeps_domains(self) -> bool:
        """Whether this controller manages ComputeDomains; otherwise another driver may, and its objects must not depend
        on this webhook."""
        return Feature.COMPUTE_DOMAINS in self.gates

    @property
    def drivers(self) -> tuple[str, ...]:
        """Objects with these driver names are reviewed. The driver name of domains is part of the API and no setting.
        With the gate off, that name and its configs belong to another driver."""
        return (self.driver, COMPUTE_DOMAIN_DRIVER) if self.keeps_domains else (self.driver,)

    @property
    def names(self) -> tuple[str, ...]:
        """The host names that the API server uses."""
        url = self.settings.url or f"https://{self.settings.service}.{self.namespace}.svc"
        return (urlsplit(url).hostname or "",)


@dataclass(frozen=True, slots=True)
class Trust:
    """What the API server trusts: PEM texts, current authority first, and when that became current."""

    authorities: tuple[str, ...]
    digest: str
    since: datetime


def trusted_in(configuration: Mapping[str, object] | None) -> tuple[str, ...]:
    """The authorities in the server's configuration; none if it has no webhooks."""
    authorities: dict[str, None] = {}
    for webhook in webhooks_in(configuration):
        bundle = (webhook.get("clientConfig") or {}).get("caBundle")
        try:
            text = base64.b64decode(bundle or "", validate=True).decode("ascii")
        except ValueError:
            continue
        authorities |= dict.fromkeys(pem_blocks(text))
    return tuple(authorities)


def webhooks_in(configuration: Mapping[str, object] | None) -> Sequence[JsonObject]:
    return list_in(value_at(configuration, ("webhooks",)))


def next_trust(certificate: ServingCertificate, configuration: Mapping[str, object] | None, now: datetime) -> Trust:
    """The certificate's authority and, for `OVERLAP` after a change, the previous ones."""
    digest = hashlib.sha256("\n".join(certificate.authority).encode()).hexdigest()[:16]
    marked, since = _mark_in(configuration)
    trusted = trusted_in(configuration)
    if marked != digest or not set(certificate.authority) <= set(trusted):
        since = now
    if now - since >= OVERLAP:
        return Trust(certificate.authority, digest, since)
    before = [text for text in trusted if text not in certificate.authority and not has_expired(text, now)]
    return Trust((*certificate.authority, *before[:_MOST_TRUSTED]), digest, since)


def _mark_in(configuration: Mapping[str, object] | None) -> tuple[str, datetime]:
    digest, _, since = str(value_at(configuration, ("metadata", "annotations", MARK))).partition(" ")
    try:
        return digest, datetime.fromisoformat(since)
    except ValueError:
        return "", datetime.min.replace(tzinfo=UTC)


def is_armed(configuration: Mapping[str, object] | None) -> bool:
    """Whether the configuration contains more than the probe."""
    names = {str(webhook.get("name")) for webhook in webhooks_in(configuration)}
    return bool(names - {name for name in names if name.startswith(f"{_PROBE}.")})


def change(
    observed: Mapping[str, object], plan: WebhookPlan, certificate: ServingCertificate, now: datetime, *, proven: bool
) -> JsonObject | None:
    """What to write, as a merge patch of exactly the `observed` configuration; None if it is up to date. `proven`: this
    webhook refused the probe. An armed configuration stays armed.
    """
    trust = next_trust(certificate, observed, now)
    full = proven or is_armed(observed)
    webhooks = wanted_webhooks(plan, trust.authorities) if full else [_probing(plan, trust.authorities)]
    mark = f"{trust.digest} {trust.since.isoformat()}"
    metadata = observed["metadata"]
    assert isinstance(metadata, dict)
    same = not list(lacking(webhooks_in(observed), webhooks))
    if same and (metadata.get("annotations") or {}).get(MARK) == mark:
        return None
    guard = {"resourceVersion": metadata["resourceVersion"], "annotations": {MARK: mark}}
    return {"metadata": guard, "webhooks": webhooks}


def wanted_webhooks(plan: WebhookPlan, authorities: Sequence[str]) -> list[JsonObject]:
    """The webhooks of an armed configuration. Names end with the driver's name, which appears in every refusal that
    users see."""
    webhooks: list[JsonObject] = []
    for kind in KINDS:
        refusing = condition(kind.refusing, plan.drivers)
        named = {"name": "config-of-ours", "expression": refusing}
        is_advice = kind.own and not plan.keeps_domains
        webhooks.append(_webhook(f"refuse.{kind.plural}", kind, plan, authorities, [named], is_advice=is_advice))
        if kind.advising is not None:
            selects = {"name": "selects-ours", "expression": condition(kind.advising, plan.drivers)}
            other = {"name": "no-config-of-ours", "expression": f"!({refusing})"}
            webhooks.append(_webhook(f"advise.{kind.plural}", kind, plan, authorities, [selects, other]))
    return webhooks


_CHANGED = {
    "name": "spec-changed",
    # Labels, finalizers and deletion of admitted objects are never refused, even if the object is invalid now.
    "expression": "request.operation != 'UPDATE' || !has(oldObject.spec) || !has(object.spec)"
    " || object.spec != oldObject.spec",
}


def _probing(plan: WebhookPlan, authorities: Sequence[str]) -> JsonObject:
    (kind,) = [row for row in KINDS if row.kind == "DeviceClass"]
    expression = f"object.?metadata.?name.orValue('') == '{probe(plan)['metadata']['name']}'"
    return _webhook(_PROBE, kind, plan, authorities, [{"name": "probe", "expression": expression}])


def _webhook(
    name: str,
    kind: ReviewedKind,
    plan: WebhookPlan,
    authorities: Sequence[str],
    conditions: Sequence[JsonObject],
    *,
    is_advice: bool = True,
) -> JsonObject:
    """Requests must not wait for advice."""
    settings, text = plan.settings, "\n".join(authorities) + "\n"
    service = {"namespace": plan.namespace, "name": settings.service, "port": 443, "path": PATH}
    client: JsonObject = {"url": f"{settings.url}{PATH}"} if settings.url else {"service": service}
    exempt = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(settings.exempt_namespaces)}
    return {
        "name": f"{name}.{plan.drivers[0]}",
        "clientConfig": {**client, "caBundle": base64.b64encode(text.encode()).decode()},
        "rules": [
            {
                "apiGroups": [kind.group],
                "apiVersions": list(kind.versions),
                "resources": [kind.plural],
                "operations": ["CREATE", "UPDATE"],
                "scope": "Namespaced" if kind.namespaced else "Cluster",
            }
        ],
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": [exempt]} if settings.exempt_namespaces else {},
        "matchConditions": [_CHANGED, *conditions],
        "failurePolicy": "Ignore" if is_advice else settings.failure_policy,
        "sideEffects": "None",
        "timeoutSeconds": min(settings.timeout_s, _ADVICE_TIMEOUT_S) if is_advice else settings.timeout_s,
        "admissionReviewVersions": ["v1"],
    }


def probe(plan: WebhookPlan) -> JsonObject:
    """A DeviceClass with an invalid config, for a dry run: the API server's answer shows which webhook it called."""
    parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "probe"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"{_PROBE}.{plan.settings.configuration}"[:253]},
        "spec": {"config": [{"opaque": {"driver": plan.drivers[0], "parameters": parameters}}]},
    }


def is_refused_by_us(message: str, plan: WebhookPlan) -> bool:
    """Whether this webhook refused the probe: the message names it. Other admission checks may refuse the probe,
    too."""
    return f'admission webhook "{_PROBE}.{plan.drivers[0]}" denied the request' in message
