"""Checks of what administrators configure: DeviceClasses, the policy, the webhook, admission policies. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta

from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import decode_policy
from dra_driver.api.resource import DeviceClass
from dra_driver.doctor.cluster import POLICY_FILE, ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, ok, unknown
from dra_driver.doctor.objects import WorkloadObject
from dra_driver.errors import InvalidInput
from dra_driver.features import Feature
from dra_driver.names import GPU_DRIVER

_CLASS_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    "DeviceClass {name} does not exist: claims that name it stay pending",
    "helm upgrade with `deviceClasses.install=true`, or run `kubectl apply -f deviceclasses`",
)
_CLASS_DIFFERS = Trouble(
    "differs",
    Verdict.WARNING,
    "selects other devices than the class of release {release}: {theirs}",
    "run `kubectl apply -f deviceclasses`, or helm upgrade; put your own selector in a class with another name"
    " (`deviceClasses.extra`)",
)


_CLASS_WRONG = Trouble(
    "wrong",
    Verdict.PROBLEM,
    "{why}: claims of this class, or their pods, stay pending",
    "fix the class where it is defined (`deviceClasses.extra` in the chart's values); to check values and"
    " manifests, run `dractl check FILE`",
)
type JudgeClass = Callable[[str, JsonObject, str], Iterable[str]]
"""What is wrong with a class, of its name, its spec and the driver's name."""


def classes_check(wanted: tuple[JsonObject, ...], errors: JudgeClass) -> Check[ClusterView]:
    """`wanted` are the DeviceClasses that ship with this release; `errors` judges all that are for our devices."""
    shipped = tuple(DeviceClass.of(item) for item in wanted)

    def judge(cluster: ClusterView) -> Iterator[Diagnosis]:
        there = {class_.metadata.name: class_ for class_ in cluster.classes.items}
        fine = True
        expected = shipped if _domains_on(cluster) else tuple(item for item in shipped if not _of_domains(item))
        for one in expected:
            name, device_class = one.metadata.name, there.get(one.metadata.name)
            if device_class is None:
                fine = False
                yield _CLASS_MISSING.at(name=name)
            elif _expressions(device_class) != _expressions(one, driver=cluster.driver):
                fine = False
                theirs = " && ".join(_expressions(device_class)) or "everything"
                yield _CLASS_DIFFERS.at(f"DeviceClass {name}", release=cluster.release, theirs=theirs)
        for one in cluster.classes.items:
            for why in errors(one.metadata.name, one.spec.to_wire(), cluster.driver):
                fine = False
                yield _CLASS_WRONG.at(f"DeviceClass {one.metadata.name}", why=why)
        if fine:
            yield ok(f"{len(expected)} DeviceClasses match this release")

    return Check(
        "device-classes",
        "whether the DeviceClasses of this release exist unchanged, and whether other classes are valid.",
        judge,
        (_CLASS_MISSING, _CLASS_DIFFERS, _CLASS_WRONG),
        ("classes", "daemon_sets"),
    )


def _of_domains(device_class: DeviceClass) -> bool:
    return device_class.metadata.name.startswith("compute-domain-")


def _domains_on(cluster: ClusterView) -> bool:
    """True also where nothing of ours is seen. With the gate off, or without a controller, the classes are those of
    another driver, or none."""
    programs = (*cluster.plugins, *cluster.controllers)
    if not cluster.controllers and cluster.plugin_setting("--publisher") == "node":
        return False
    return not programs or any(Feature.COMPUTE_DOMAINS in program.feature_gates for program in programs)


def _expressions(device_class: DeviceClass, driver: str = GPU_DRIVER) -> list[str]:
    """Its selectors without line ends, with `driver` in place of ours."""
    results = [
        " ".join(selector.cel.expression.split())
        for selector in device_class.spec.selectors
        if selector.cel is not None
    ]
    return [expression.replace(f"'{GPU_DRIVER}'", f"'{driver}'") for expression in results]


_POLICY_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    f"ConfigMap {{name}} with {POLICY_FILE}, which the plugin or the controller mounts, does not exist: their pods"
    " do not start",
    "restore it with helm upgrade of the release",
)
_POLICY_INVALID = Trouble(
    "invalid",
    Verdict.PROBLEM,
    "the policy is invalid: {why}",
    "correct `policy` in the chart's values (to check it, run `dractl check FILE`), then helm upgrade",
)


def _policy(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine, names = True, []
    for namespace, name in cluster.policy_maps():
        names.append(f"{namespace}/{name}")
        text = cluster.policy_text(namespace, name)
        if text is None:
            fine = False
            yield _POLICY_MISSING.at(name=f"{namespace}/{name}")
            continue
        try:
            decode_policy(text, about=POLICY_FILE)
        except InvalidInput as error:
            fine = False
            yield _POLICY_INVALID.at(f"ConfigMap {namespace}/{name}", why=str(error))
    if fine:
        yield ok(f"ConfigMap {', '.join(names)} has a valid policy" if names else "no policy ConfigMap of this driver")


_EMPTY = Trouble(
    "asks-nothing",
    Verdict.WARNING,
    "has no webhooks: the leading controller could not verify yet that the API server reaches it",
    "read the answer of the API server in the log: kubectl -n {namespace} logs of the controller pods; if you use"
    " a NetworkPolicy, allow the control plane to reach the controller's pods",
)
_NO_AUTHORITY = Trouble(
    "no-ca",
    Verdict.PROBLEM,
    "webhook {webhook} has no caBundle: the API server does not trust it",
    "read the log of the webhook, or of cert-manager's cainjector if it manages the certificate",
)
_EXPIRES = Trouble(
    "certificate-expires",
    Verdict.PROBLEM,
    "the certificates for webhook {webhook} expire at {until} UTC; they should have been renewed weeks earlier",
    "read the logs of the controllers in namespace {namespace}, or of cert-manager if it manages the certificate",
)
_SOON = timedelta(days=7)
_NOT_ASKED = Trouble(
    "not-asked",
    Verdict.PROBLEM,
    "the API server accepted an invalid claim config in a dry run: it did not call the webhook, or the webhook did"
    " not answer (failurePolicy {policy})",
    "check that the webhook's pods are ready, its Service has endpoints, and the control plane can reach them:"
    " kubectl -n {namespace} get pods,endpointslices",
)
_FAILED = Trouble(
    "unreachable",
    Verdict.PROBLEM,
    "the API server cannot call it, so it rejects claims: {message}",
    "check that the webhook's pods are ready, its Service has endpoints, and the control plane can reach them:"
    " kubectl -n {namespace} get pods,endpointslices",
)
_CALL_FAILED = "failed calling webhook"
"""Source: k8s.io/apiserver, admission/plugin/webhook/errors."""


def _webhook(cluster: ClusterView) -> Iterator[Diagnosis]:
    if not cluster.webhooks.items:
        yield ok("the webhook is not installed: claim configs are first validated when claims are prepared")
        return
    fine = True
    for finding in (*_authorities(cluster), *_answer(cluster)):
        fine = False
        yield finding
    if fine:
        yield ok("the API server calls the webhook, and the webhook rejects invalid claims")


def _authorities(cluster: ClusterView) -> Iterator[Diagnosis]:
    for webhook_configuration in cluster.webhooks.items:
        about = f"ValidatingWebhookConfiguration {webhook_configuration.metadata.name}"
        for webhook in webhook_configuration.webhooks:
            client = webhook.client_config
            until = client.trusted_until
            if not client.ca_bundle:
                yield _NO_AUTHORITY.at(about, webhook=webhook.name)
            elif until is not None and until - cluster.time < _SOON:
                namespace = client.service.namespace if client.service is not None else cluster.namespace
                yield _EXPIRES.at(about, webhook=webhook.name, until=f"{until:%Y-%m-%d %H:%M}", namespace=namespace)


def _answer(cluster: ClusterView) -> Iterator[Diagnosis]:
    webhook_configuration = cluster.webhooks.items[0]
    about = f"ValidatingWebhookConfiguration {webhook_configuration.metadata.name}"
    if not webhook_configuration.webhooks:
        yield _EMPTY.at(about, namespace=cluster.namespace)
        return
    services = [webhook.client_config.service for webhook in webhook_configuration.webhooks]
    namespace = next((service.namespace for service in services if service is not None), cluster.namespace)
    if cluster.webhook_answer.unread is not None:
        yield unknown([cluster.webhook_answer.unread])
    for answer in cluster.webhook_answer.items:
        if _CALL_FAILED in answer.message:
            yield _FAILED.at(about, message=answer.message, namespace=namespace)
        elif not answer.refused:
            policies = ", ".join(sorted({webhook.failure_policy for webhook in webhook_configuration.webhooks}))
            yield _NOT_ASKED.at(about, policy=policies, namespace=namespace)


_UNGUARDED = Trouble(
    "missing",
    Verdict.WARNING,
    "no ValidatingAdmissionPolicy for {what} restricts this account: {risk}",
    "helm upgrade with `admissionPolicies.install=true`",
)
_UNBOUND = Trouble(
    "not-bound",
    Verdict.WARNING,
    "has no binding with action Deny: it rejects nothing",
    "helm upgrade with `admissionPolicies.install=true`",
)
_NOT_UNDERSTOOD = Trouble(
    "type-errors",
    Verdict.WARNING,
    "the API server reports type errors in it: {warnings}",
    "restore the policy with helm upgrade of the release; if the error stays, report a bug",
)
_INVENTORIES = ("inventories", ("dra.gpu", "nodeinventories"))
_GUARDED = (
    _INVENTORIES,
    ("claim status", ("resource.k8s.io", "resourceclaims/status")),
    ("slices", ("resource.k8s.io", "resourceslices")),
)
_PLUGIN_COULD = "the plugin of one node could write objects of another node"
_CONTROLLER_COULD = "a stolen token of the controller could write inventories"


def _admission(cluster: ClusterView) -> Iterator[Diagnosis]:
    plugins, controllers = _accounts(cluster.plugins), _accounts(cluster.controllers)
    if not plugins | controllers:
        yield ok("no plugin DaemonSet and no controller Deployment, so no account to check")
        return
    findings = [
        finding for account in sorted(plugins) for finding in _unguarded(cluster, account, _GUARDED, _PLUGIN_COULD)
    ]
    for account in sorted(controllers):
        findings += _unguarded(cluster, account, (_INVENTORIES,), _CONTROLLER_COULD)
    restricted = " and ".join([*["plugin"] * bool(plugins), *["controller"] * bool(controllers)])
    yield from findings or [ok(f"admission policies restrict the service accounts of {restricted}")]


def _accounts(workloads: Sequence[WorkloadObject]) -> set[str]:
    return {
        f"system:serviceaccount:{workload.metadata.namespace}:{workload.spec.template.pod.service_account_name}"
        for workload in workloads
    }


def _unguarded(
    cluster: ClusterView, account: str, guarded: Sequence[tuple[str, tuple[str, str]]], risk: str
) -> Iterator[Diagnosis]:
    policies = [
        admission_policy
        for admission_policy in cluster.admission_policies.items
        if f"'{account}'" in str(admission_policy.spec)
    ]
    for what, resource in guarded:
        if not any(resource in admission_policy.resources for admission_policy in policies):
            yield _UNGUARDED.at(f"ServiceAccount {account}", what=what, risk=risk)
    denied = {
        policy_binding.spec.policy_name
        for policy_binding in cluster.policy_bindings.items
        if "Deny" in policy_binding.spec.validation_actions
    }
    for policy in policies:
        about = f"ValidatingAdmissionPolicy {policy.metadata.name}"
        warnings = (policy.status.type_checking or {}).get("expressionWarnings") or ()
        if policy.metadata.name not in denied:
            yield _UNBOUND.at(about)
        elif warnings:
            yield _NOT_UNDERSTOOD.at(about, warnings=str(warnings[0].get("warning", "")).strip())


POLICY = Check(
    "policy",
    "whether the PublishingPolicy that plugin and controller mount exists and is valid.",
    _policy,
    (_POLICY_MISSING, _POLICY_INVALID),
    ("config_maps", "daemon_sets", "deployments"),
)
WEBHOOK = Check(
    "webhook",
    "whether the API server calls the webhook: a dry run creates a claim that the webhook must reject.",
    _webhook,
    (_EMPTY, _NO_AUTHORITY, _EXPIRES, _NOT_ASKED, _FAILED),
    ("webhooks",),
)
ADMISSION = Check(
    "admission-policies",
    "whether ValidatingAdmissionPolicies restrict each plugin to its own node, and the controller to its own objects.",
    _admission,
    (_UNGUARDED, _UNBOUND, _NOT_UNDERSTOOD),
    ("admission_policies", "policy_bindings", "daemon_sets", "deployments"),
)
