"""Checks of what administrators configure: DeviceClasses, the policy, the webhook, admission policies. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta

from dra_driver.api.core import AppsWorkload
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.doctor.cluster import POLICY_FILE, ClusterView
from dra_driver.doctor.findings import Judgment, Wrong, wrong
from dra_driver.errors import InvalidInput
from dra_driver.features import Feature
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.policy_file import decode_policy

type JudgeClass = Callable[[str, JsonObject, str], Iterable[str]]
"""From the name and spec of a class and the driver's name to what is wrong with the class."""


def device_classes(cluster: ClusterView, shipped: tuple[JsonObject, ...], errors: JudgeClass) -> Judgment:
    """`shipped` are the DeviceClasses of this release; `errors` judges all that are for our devices."""
    existing = {device_class.metadata.name: device_class for device_class in cluster.classes.items}
    expected = [DeviceClass.of(item) for item in shipped]
    if not _domains_on(cluster):
        expected = [item for item in expected if not item.metadata.name.startswith("compute-domain-")]
    for wanted in expected:
        name = wanted.metadata.name
        device_class = existing.get(name)
        if device_class is None:
            yield wrong("missing", name=name)
        elif _expressions(device_class) != _expressions(wanted, driver=cluster.driver):
            theirs = " && ".join(_expressions(device_class)) or "everything"
            yield wrong("differs", f"DeviceClass {name}", release=cluster.release, theirs=theirs)
    for name, device_class in existing.items():
        for why in errors(name, device_class.spec.to_wire(), cluster.driver):
            yield wrong("wrong", f"DeviceClass {name}", why=why)
    return f"{len(expected)} DeviceClasses match this release"


def _domains_on(cluster: ClusterView) -> bool:
    """Also true if no program of this driver is seen. With the gate off, or without a controller, these classes are
    another driver's, or do not exist."""
    programs = (*cluster.plugins, *cluster.controllers)
    if not cluster.controllers and cluster.plugin_setting("--publisher") == "node":
        return False
    return not programs or any(Feature.COMPUTE_DOMAINS in program.feature_gates for program in programs)


def _expressions(device_class: DeviceClass, driver: str = GPU_DRIVER) -> list[str]:
    """Its selectors on one line each, with `driver` in place of the default name."""
    expressions = [selector.cel.expression for selector in device_class.spec.selectors if selector.cel is not None]
    return [" ".join(text.split()).replace(f"'{GPU_DRIVER}'", f"'{driver}'") for text in expressions]


def policy(cluster: ClusterView) -> Judgment:
    names = ["/".join(key) for key in cluster.policy_maps()]
    for namespace, name in cluster.policy_maps():
        text = cluster.policy_text(namespace, name)
        if text is None:
            yield wrong("missing", name=f"{namespace}/{name}")
            continue
        try:
            decode_policy(text, about=POLICY_FILE)
        except InvalidInput as error:
            yield wrong("invalid", f"ConfigMap {namespace}/{name}", why=str(error))
    return f"ConfigMap {', '.join(names)} has a valid policy" if names else "no policy ConfigMap of this driver"


_SOON = timedelta(days=7)
CALL_FAILED = "failed calling webhook"
"""Source: k8s.io/apiserver, admission/plugin/webhook/errors."""


def webhook(cluster: ClusterView) -> Judgment:
    if not cluster.webhooks.items:
        return "the webhook is not installed: claim configs are first validated when claims are prepared"
    for configuration in cluster.webhooks.items:
        about = f"ValidatingWebhookConfiguration {configuration.metadata.name}"
        for entry in configuration.webhooks:
            client = entry.client_config
            until = client.trusted_until
            if not client.ca_bundle:
                yield wrong("no-ca", about, webhook=entry.name)
            elif until is not None and until - cluster.time < _SOON:
                namespace = client.service.namespace if client.service is not None else cluster.namespace
                facts = {"webhook": entry.name, "until": f"{until:%Y-%m-%d %H:%M}", "namespace": namespace}
                yield wrong("certificate-expires", about, **facts)
    configuration = cluster.webhooks.items[0]
    about = f"ValidatingWebhookConfiguration {configuration.metadata.name}"
    if not configuration.webhooks:
        yield wrong("asks-nothing", about, namespace=cluster.namespace)
        return ""
    services = [entry.client_config.service for entry in configuration.webhooks]
    namespace = next((service.namespace for service in services if service is not None), cluster.namespace)
    if cluster.webhook_answer.unread is not None:
        yield cluster.webhook_answer.unread
    for answer in cluster.webhook_answer.items:
        if CALL_FAILED in answer.message:
            yield wrong("unreachable", about, message=answer.message, namespace=namespace)
        elif not answer.refused:
            policies = ", ".join(sorted({entry.failure_policy for entry in configuration.webhooks}))
            yield wrong("not-asked", about, policy=policies, namespace=namespace)
    return "the API server calls the webhook, and the webhook rejects invalid claims"


_INVENTORIES = ("inventories", ("dra.gpu", "nodeinventories"))
_GUARDED = (
    _INVENTORIES,
    ("claim status", ("resource.k8s.io", "resourceclaims/status")),
    ("slices", ("resource.k8s.io", "resourceslices")),
)


def admission_policies(cluster: ClusterView) -> Judgment:
    plugins, controllers = _accounts(cluster.plugins), _accounts(cluster.controllers)
    for account in plugins:
        risk = "the plugin of one node could write objects of another node"
        yield from _unguarded(cluster, account, _GUARDED, risk)
    for account in controllers:
        risk = "a stolen token of the controller could write inventories"
        yield from _unguarded(cluster, account, (_INVENTORIES,), risk)
    restricted = " and ".join([*["plugin"] * bool(plugins), *["controller"] * bool(controllers)])
    if not restricted:
        return "no plugin DaemonSet and no controller Deployment, so no account to check"
    return f"admission policies restrict the service accounts of {restricted}"


def _accounts(workloads: Sequence[AppsWorkload]) -> list[str]:
    return sorted({workload.account for workload in workloads})


def _unguarded(
    cluster: ClusterView, account: str, guarded: Sequence[tuple[str, tuple[str, str]]], risk: str
) -> Iterator[Wrong]:
    policies = [item for item in cluster.admission_policies.items if f"'{account}'" in str(item.spec)]
    for what, resource in guarded:
        if not any(resource in item.resources for item in policies):
            yield wrong("missing", f"ServiceAccount {account}", what=what, risk=risk)
    bindings = [binding.spec for binding in cluster.policy_bindings.items]
    denying = {binding.policy_name for binding in bindings if "Deny" in binding.validation_actions}
    for item in policies:
        about = f"ValidatingAdmissionPolicy {item.metadata.name}"
        warnings = (item.status.type_checking or {}).get("expressionWarnings") or ()
        if item.metadata.name not in denying:
            yield wrong("not-bound", about)
        elif warnings:
            yield wrong("type-errors", about, warnings=str(warnings[0].get("warning", "")).strip())
