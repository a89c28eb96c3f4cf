"""Checks of what administrators configure: DeviceClasses, the policy, the webhook, admission policies. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta

from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import decode_policy
from dra_driver.api.resource import DeviceClass
from dra_driver.doctor.cluster import POLICY_FILE, Cluster
from dra_driver.doctor.findings import Check, Finding, Trouble, Verdict, ok, unknown
from dra_driver.doctor.objects import Workload
from dra_driver.errors import InvalidInput
from dra_driver.features import Feature
from dra_driver.names import GPU_DRIVER

_CLASS_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    "there is no DeviceClass {name}: claims that name it wait for ever",
    "helm upgrade with `deviceClasses.install=true`, or `kubectl apply -f deviceclasses`",
)
_CLASS_DIFFERS = Trouble(
    "differs",
    Verdict.WARNING,
    "selects other devices than in release {release}: {theirs}",
    "`kubectl apply -f deviceclasses`, or helm upgrade; a change of your own belongs in a class of another name"
    " (`deviceClasses.extra`)",
)


_CLASS_WRONG = Trouble(
    "wrong",
    Verdict.PROBLEM,
    "{why}: claims of this class wait, or their pods do",
    "put it right where it comes from (`deviceClasses.extra` in the values of the chart; `dractl check FILE` judges"
    " values and manifests)",
)
type JudgeClass = Callable[[str, JsonObject, str], Iterable[str]]
"""What is wrong with a class, of its name, its spec and the driver's name."""


def classes_check(wanted: tuple[JsonObject, ...], errors: JudgeClass) -> Check[Cluster]:
    """`wanted` are the DeviceClasses that ship with this release; `errors` judges all that are for our devices."""
    shipped = tuple(DeviceClass.of(one) for one in wanted)

    def judge(cluster: Cluster) -> Iterator[Finding]:
        there = {one.metadata.name: one for one in cluster.classes.items}
        fine = True
        expected = shipped if _domains_on(cluster) else tuple(one for one in shipped if not _of_domains(one))
        for one in expected:
            name, found = one.metadata.name, there.get(one.metadata.name)
            if found is None:
                fine = False
                yield _CLASS_MISSING.at(name=name)
            elif _expressions(found) != _expressions(one, driver=cluster.driver):
                fine = False
                theirs = " && ".join(_expressions(found)) or "everything"
                yield _CLASS_DIFFERS.at(f"DeviceClass {name}", release=cluster.release, theirs=theirs)
        for one in cluster.classes.items:
            for why in errors(one.metadata.name, one.spec.to_wire(), cluster.driver):
                fine = False
                yield _CLASS_WRONG.at(f"DeviceClass {one.metadata.name}", why=why)
        if fine:
            yield ok(f"{len(expected)} DeviceClasses: as in this release")

    return Check(
        "device-classes",
        "whether our DeviceClasses are there and select what they select in this release, and others make sense.",
        judge,
        (_CLASS_MISSING, _CLASS_DIFFERS, _CLASS_WRONG),
        ("classes", "daemon_sets"),
    )


def _of_domains(one: DeviceClass) -> bool:
    return one.metadata.name.startswith("compute-domain-")


def _domains_on(cluster: Cluster) -> bool:
    """True also where nothing of ours is seen. With the gate off, or without a controller, the classes are those of
    another driver, or none."""
    programs = (*cluster.plugins, *cluster.controllers)
    if not cluster.controllers and cluster.plugin_setting("--publisher") == "node":
        return False
    return not programs or any(Feature.COMPUTE_DOMAINS in one.feature_gates for one in programs)


def _expressions(one: DeviceClass, driver: str = GPU_DRIVER) -> list[str]:
    """Its selectors without line ends, with `driver` in place of ours."""
    found = [" ".join(selector.cel.expression.split()) for selector in one.spec.selectors if selector.cel is not None]
    return [expression.replace(f"'{GPU_DRIVER}'", f"'{driver}'") for expression in found]


_POLICY_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    f"there is no ConfigMap {{name}} with {POLICY_FILE}, which plugin or controller mount: their pods do not start",
    "helm upgrade of the release puts it back",
)
_POLICY_INVALID = Trouble(
    "invalid",
    Verdict.PROBLEM,
    "cannot be used: {why}",
    "put `policy` in the values of the chart right (`dractl check FILE` judges one), and helm upgrade",
)


def _policy(cluster: Cluster) -> Iterator[Finding]:
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
        yield ok(f"ConfigMap {', '.join(names)} can be used" if names else "no policy in a ConfigMap of ours")


_EMPTY = Trouble(
    "asks-nothing",
    Verdict.WARNING,
    "has no webhooks: the leading controller has not seen yet that the API server reaches it",
    "kubectl -n {namespace} logs of the controllers: they say what the API server answered; with a NetworkPolicy, let"
    " the control plane reach the controller's pods",
)
_NO_AUTHORITY = Trouble(
    "no-ca",
    Verdict.PROBLEM,
    "webhook {webhook} has no caBundle: the API server cannot trust it",
    "see the log of the webhook, or of cert-manager's cainjector where that makes its certificates",
)
_EXPIRES = Trouble(
    "certificate-expires",
    Verdict.PROBLEM,
    "for webhook {webhook} no certificate is trusted after {until} UTC; it should have been renewed weeks before",
    "see the logs of the controllers in namespace {namespace}, or of cert-manager where that makes the certificate",
)
_SOON = timedelta(days=7)
_NOT_ASKED = Trouble(
    "not-asked",
    Verdict.PROBLEM,
    "a claim with a config that makes no sense was accepted in a dry run: the webhook was not asked, or did not answer"
    " (failurePolicy {policy})",
    "see that its pods are ready, that its Service has endpoints, and that the control plane reaches them: kubectl"
    " -n {namespace} get pods,endpointslices",
)
_FAILED = Trouble(
    "unreachable",
    Verdict.PROBLEM,
    "the API server cannot call it, so claims are refused: {message}",
    "see that its pods are ready, that its Service has endpoints, and that the control plane reaches them: kubectl"
    " -n {namespace} get pods,endpointslices",
)
_CALL_FAILED = "failed calling webhook"
"""Source: k8s.io/apiserver, admission/plugin/webhook/errors."""


def _webhook(cluster: Cluster) -> Iterator[Finding]:
    if not cluster.webhooks.items:
        yield ok("no webhook of ours: configs are first looked at when claims are prepared")
        return
    fine = True
    for finding in (*_authorities(cluster), *_answer(cluster)):
        fine = False
        yield finding
    if fine:
        yield ok("the webhook is asked, and refuses what it must")


def _authorities(cluster: Cluster) -> Iterator[Finding]:
    for one in cluster.webhooks.items:
        about = f"ValidatingWebhookConfiguration {one.metadata.name}"
        for webhook in one.webhooks:
            client = webhook.client_config
            until = client.trusted_until
            if not client.ca_bundle:
                yield _NO_AUTHORITY.at(about, webhook=webhook.name)
            elif until is not None and until - cluster.time < _SOON:
                namespace = client.service.namespace if client.service is not None else cluster.namespace
                yield _EXPIRES.at(about, webhook=webhook.name, until=f"{until:%Y-%m-%d %H:%M}", namespace=namespace)


def _answer(cluster: Cluster) -> Iterator[Finding]:
    one = cluster.webhooks.items[0]
    about = f"ValidatingWebhookConfiguration {one.metadata.name}"
    if not one.webhooks:
        yield _EMPTY.at(about, namespace=cluster.namespace)
        return
    services = [webhook.client_config.service for webhook in one.webhooks]
    namespace = next((service.namespace for service in services if service is not None), cluster.namespace)
    if cluster.webhook_answer.unread is not None:
        yield unknown([cluster.webhook_answer.unread])
    for answer in cluster.webhook_answer.items:
        if _CALL_FAILED in answer.message:
            yield _FAILED.at(about, message=answer.message, namespace=namespace)
        elif not answer.refused:
            policies = ", ".join(sorted({webhook.failure_policy for webhook in one.webhooks}))
            yield _NOT_ASKED.at(about, policy=policies, namespace=namespace)


_UNGUARDED = Trouble(
    "missing",
    Verdict.WARNING,
    "no ValidatingAdmissionPolicy for {what} names this account: {whoever}",
    "helm upgrade with `admissionPolicies.install=true`",
)
_UNBOUND = Trouble(
    "not-bound",
    Verdict.WARNING,
    "has no binding that denies: it refuses nothing",
    "helm upgrade with `admissionPolicies.install=true`",
)
_NOT_UNDERSTOOD = Trouble(
    "type-errors",
    Verdict.WARNING,
    "the API server finds mistakes in it: {warnings}",
    "helm upgrade of the release puts the policy back as it was; if it stays, report it",
)
_INVENTORIES = ("inventories", ("dra.gpu", "nodeinventories"))
_GUARDED = (
    _INVENTORIES,
    ("the status of claims", ("resource.k8s.io", "resourceclaims/status")),
    ("slices", ("resource.k8s.io", "resourceslices")),
)
_PLUGIN_COULD = "the plugin of one node could write for another"
_CONTROLLER_COULD = "whoever has a token of the controller could write what the controller never does"


def _admission(cluster: Cluster) -> Iterator[Finding]:
    plugins, controllers = _accounts(cluster.plugins), _accounts(cluster.controllers)
    if not plugins | controllers:
        yield ok("no DaemonSet of the plugin and no Deployment of the controller, so no account to be kept to its own")
        return
    findings = [one for account in sorted(plugins) for one in _unguarded(cluster, account, _GUARDED, _PLUGIN_COULD)]
    for account in sorted(controllers):
        findings += _unguarded(cluster, account, (_INVENTORIES,), _CONTROLLER_COULD)
    kept = " and ".join([*["the plugin's account"] * bool(plugins), *["the controller's"] * bool(controllers)])
    yield from findings or [ok(f"{kept}: each is kept to what is its own")]


def _accounts(workloads: Sequence[Workload]) -> set[str]:
    return {
        f"system:serviceaccount:{one.metadata.namespace}:{one.spec.template.pod.service_account_name}"
        for one in workloads
    }


def _unguarded(
    cluster: Cluster, account: str, guarded: Sequence[tuple[str, tuple[str, str]]], whoever: str
) -> Iterator[Finding]:
    policies = [one for one in cluster.admission_policies.items if f"'{account}'" in str(one.spec)]
    for what, resource in guarded:
        if not any(resource in one.resources for one in policies):
            yield _UNGUARDED.at(f"ServiceAccount {account}", what=what, whoever=whoever)
    denied = {one.spec.policy_name for one in cluster.policy_bindings.items if "Deny" in one.spec.validation_actions}
    for one in policies:
        about = f"ValidatingAdmissionPolicy {one.metadata.name}"
        warnings = (one.status.type_checking or {}).get("expressionWarnings") or ()
        if one.metadata.name not in denied:
            yield _UNBOUND.at(about)
        elif warnings:
            yield _NOT_UNDERSTOOD.at(about, warnings=str(warnings[0].get("warning", "")).strip())


POLICY = Check(
    "policy",
    "whether the PublishingPolicy that plugin and controller mount is there and makes sense.",
    _policy,
    (_POLICY_MISSING, _POLICY_INVALID),
    ("config_maps", "daemon_sets", "deployments"),
)
WEBHOOK = Check(
    "webhook",
    "whether our webhook is asked: a claim that it must refuse is created in a dry run.",
    _webhook,
    (_EMPTY, _NO_AUTHORITY, _EXPIRES, _NOT_ASKED, _FAILED),
    ("webhooks",),
)
ADMISSION = Check(
    "admission-policies",
    "whether ValidatingAdmissionPolicies keep the plugin of a node to that node, and the controller to its objects.",
    _admission,
    (_UNGUARDED, _UNBOUND, _NOT_UNDERSTOOD),
    ("admission_policies", "policy_bindings", "daemon_sets", "deployments"),
)
