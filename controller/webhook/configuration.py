"""What the API server is told: which requests to ask about, where, and what follows when nobody answers. Pure.

The chart makes a ValidatingWebhookConfiguration without webhooks, which asks nothing. The replica that leads fills it
in two stages. First the API server is to ask about one object only, which nobody ever stores: `probe`. When it has
refused that one in our words, it has reached a replica, through the Service and with the authority that it was given;
only then it is told to ask about everything. So nobody's request ever waits for a webhook that does not answer yet, and
a cluster whose API server cannot reach pods is not worse off. To switch off is to delete the object, which Helm does;
nobody makes it again.

Two webhooks for each kind: `refuse` for objects with a config of ours, with the failure policy that is set; `advise`
for those that only select our devices, about which there are warnings at most, and no reason to hold them up.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from controller.webhook.certificates import ServingCertificate, has_expired, pem_blocks
from controller.webhook.kinds import KINDS, Kind, condition
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.names import CONFIG_API_VERSION

type FailurePolicy = Literal["Fail", "Ignore"]

CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False
)
PATH = "/review"
MARK = "dra.gpu/webhook-authority"
"""Annotation: a digest of the authority that is trusted now, and since when."""
OVERLAP = timedelta(hours=1)
"""How long the authority before is trusted, too. Replicas serve its certificate for some seconds more, and those of an
earlier release until they are replaced."""
_MOST_TRUSTED = 16
_ADVICE_TIMEOUT_S = 2
_PROBE = "webhook-probe"


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """A Service, on its port 443."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody has set. `address` is a Service, or a URL without path for an API server outside the cluster.

    `drivers` are the names in objects that concern us. `exempt` are namespaces whose objects are never reviewed.
    `keeps_domains`: our controller does. Else somebody else may, and nothing of theirs waits for us or fails with us.
    """

    name: str
    drivers: tuple[str, ...]
    address: ServiceAddress | str
    failure_policy: FailurePolicy
    timeout_s: int
    exempt: tuple[str, ...]
    keeps_domains: bool = True


@dataclass(frozen=True, slots=True)
class Trust:
    """What the API server trusts: PEM texts, and since when the first ones, which are of the current authority."""

    authorities: tuple[str, ...]
    digest: str
    since: datetime


def trusted_in(configuration: Mapping[str, object] | None) -> tuple[str, ...]:
    """The authorities in the configuration that the server has; none where nobody is asked."""
    found: dict[str, None] = {}
    for webhook in webhooks_in(configuration):
        bundle = (webhook.get("clientConfig") or {}).get("caBundle")
        try:
            text = base64.b64decode(bundle or "", validate=True).decode("ascii")
        except ValueError:
            continue
        found |= dict.fromkeys(pem_blocks(text))
    return tuple(found)


def webhooks_in(configuration: Mapping[str, object] | None) -> Sequence[JsonObject]:
    found = (configuration or {}).get("webhooks")
    return found if isinstance(found, list) else ()


def next_trust(certificate: ServingCertificate, configuration: Mapping[str, object] | None, now: datetime) -> Trust:
    """The authority of the certificate; and for `OVERLAP` after that came, those that were trusted before."""
    digest = hashlib.sha256("\n".join(certificate.authority).encode()).hexdigest()[:16]
    marked, since = _mark_in(configuration)
    trusted = trusted_in(configuration)
    if marked != digest or not set(certificate.authority) <= set(trusted):
        since = now
    if now - since >= OVERLAP:
        return Trust(certificate.authority, digest, since)
    before = [one for one in trusted if one not in certificate.authority and not has_expired(one, now)]
    return Trust((*certificate.authority, *before[:_MOST_TRUSTED]), digest, since)


def _mark_in(configuration: Mapping[str, object] | None) -> tuple[str, datetime]:
    metadata = (configuration or {}).get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    digest, _, since = str((annotations or {}).get(MARK, "")).partition(" ")
    try:
        return digest, datetime.fromisoformat(since)
    except ValueError:
        return "", datetime.min.replace(tzinfo=UTC)


def is_armed(configuration: Mapping[str, object] | None) -> bool:
    """Whether the server asks about more than the probe."""
    names = {str(webhook.get("name")) for webhook in webhooks_in(configuration)}
    return bool(names - {name for name in names if name.startswith(f"{_PROBE}.")})


def change(
    observed: Mapping[str, object], wish: Wish, certificate: ServingCertificate, now: datetime, *, proven: bool
) -> JsonObject | None:
    """What to write, as a merge patch of exactly the `observed` configuration; None where it is as it should be.

    `proven`: the probe was refused by us. Once armed, a configuration stays so.
    """
    trust = next_trust(certificate, observed, now)
    full = proven or is_armed(observed)
    webhooks = wanted_webhooks(wish, trust.authorities) if full else [_probing(wish, trust.authorities)]
    mark = f"{trust.digest} {trust.since.isoformat()}"
    metadata = observed["metadata"]
    assert isinstance(metadata, dict)
    same = len(webhooks_in(observed)) == len(webhooks) and _contains(list(webhooks_in(observed)), webhooks)
    if same and (metadata.get("annotations") or {}).get(MARK) == mark:
        return None
    guard = {"resourceVersion": metadata["resourceVersion"], "annotations": {MARK: mark}}
    return {"metadata": guard, "webhooks": webhooks}


def _contains(observed: object, wanted: object) -> bool:
    """Whether everything wanted is there; the server fills in fields, and later ones may fill in more."""
    if isinstance(wanted, dict):
        return isinstance(observed, dict) and all(_contains(observed.get(key), one) for key, one in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(observed, list) or len(observed) != len(wanted):
            return False
        return all(_contains(have, want) for have, want in zip(observed, wanted, strict=True))
    return observed == wanted


def wanted_webhooks(wish: Wish, authorities: Sequence[str]) -> list[JsonObject]:
    """Of an armed configuration. Names end with that of our driver, which is in every refusal that users see."""
    return [
        webhook
        for kind in KINDS
        for webhook in (_refusing(kind, wish, authorities), _advising(kind, wish, authorities))
        if webhook is not None
    ]


_CHANGED = {
    "name": "spec-changed",
    # Whatever was admitted can be labelled, finished and deleted, be it wrong by now.
    "expression": "request.operation != 'UPDATE' || !has(oldObject.spec) || !has(object.spec)"
    " || object.spec != oldObject.spec",
}


def _refusing(kind: Kind, wish: Wish, authorities: Sequence[str]) -> JsonObject:
    named = {"name": "config-of-ours", "expression": _applied(kind.refusing, wish)}
    name = f"refuse.{kind.plural}"
    if kind.ours and not wish.keeps_domains:
        return _webhook(name, kind, wish, authorities, "Ignore", _hurried_s(wish), [named])
    return _webhook(name, kind, wish, authorities, wish.failure_policy, wish.timeout_s, [named])


def _advising(kind: Kind, wish: Wish, authorities: Sequence[str]) -> JsonObject | None:
    if kind.advising is None:
        return None
    selects = {"name": "selects-ours", "expression": _applied(kind.advising, wish)}
    other = {"name": "no-config-of-ours", "expression": f"!({_applied(kind.refusing, wish)})"}
    return _webhook(f"advise.{kind.plural}", kind, wish, authorities, "Ignore", _hurried_s(wish), [selects, other])


def _hurried_s(wish: Wish) -> int:
    """For what nobody should wait for."""
    return min(wish.timeout_s, _ADVICE_TIMEOUT_S)


def _applied(expression: str | None, wish: Wish) -> str:
    return "true" if expression is None else condition(expression, wish.drivers)


def _probing(wish: Wish, authorities: Sequence[str]) -> JsonObject:
    (kind,) = [one for one in KINDS if one.kind == "DeviceClass"]
    named = {
        "name": "probe",
        "expression": f"object.?metadata.?name.orValue('') == '{probe(wish)['metadata']['name']}'",
    }
    return _webhook(_PROBE, kind, wish, authorities, "Ignore", _ADVICE_TIMEOUT_S, [named])


def _webhook(
    name: str,
    kind: Kind,
    wish: Wish,
    authorities: Sequence[str],
    failure_policy: FailurePolicy,
    timeout_s: int,
    conditions: Sequence[JsonObject],
) -> JsonObject:
    text = "\n".join(authorities) + "\n"
    return {
        "name": f"{name}.{wish.drivers[0]}",
        "clientConfig": {**_client(wish.address), "caBundle": base64.b64encode(text.encode()).decode()},
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
        "namespaceSelector": _not_in(wish.exempt),
        "matchConditions": [_CHANGED, *conditions],
        "failurePolicy": failure_policy,
        "sideEffects": "None",
        "timeoutSeconds": timeout_s,
        "admissionReviewVersions": ["v1"],
    }


def _client(address: ServiceAddress | str) -> JsonObject:
    if isinstance(address, str):
        return {"url": f"{address}{PATH}"}
    return {"service": {"namespace": address.namespace, "name": address.name, "port": 443, "path": PATH}}


def _not_in(namespaces: Sequence[str]) -> JsonObject:
    if not namespaces:
        return {}
    return {"matchExpressions": [{"key": _NAME, "operator": "NotIn", "values": list(namespaces)}]}


_NAME = "kubernetes.io/metadata.name"


def probe(wish: Wish) -> JsonObject:
    """A DeviceClass with a wrong config, for a dry run: what the API server says of it tells whom it asked."""
    parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "probe"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"{_PROBE}.{wish.name}"[:253]},
        "spec": {"config": [{"opaque": {"driver": wish.drivers[0], "parameters": parameters}}]},
    }


def is_refused_by_us(message: str, wish: Wish) -> bool:
    """Whether the API server's refusal of the probe is ours. It names the webhook; others may refuse it, too."""
    return f'admission webhook "{_PROBE}.{wish.drivers[0]}" denied the request' in message
