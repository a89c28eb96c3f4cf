"""Checks manifests: documents are sorted by kind, cleaned, related to each other, and then each is judged."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter

from dra_driver.allocation.serving import SERVING_GROUP, SERVING_MODE, mode_without_claims
from dra_driver.api.documents import Document, ReadDocuments, read_documents
from dra_driver.api.gpupolicy import FILE_KIND, GpuPolicy, is_policy, policies_among, rules_among
from dra_driver.api.meta import GPU_POLICIES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import DeviceClass, ExactRequest, ResourceClaimSpec
from dra_driver.api.untyped import map_in, maps_in, value_at
from dra_driver.apirules.dra_slices import SliceLimits, problems_of_slice, problems_of_taint_rule
from dra_driver.apirules.metadata import problems_of_metadata, template_problems
from dra_driver.apirules.schema import Schema, builtin_schema, definition_name, definitions
from dra_driver.checking import codes
from dra_driver.checking.claim_checks import (
    DOMAIN,
    check_claim,
    check_class,
    check_domain,
    check_templates,
    report_problems,
)
from dra_driver.checking.codes import Severity
from dra_driver.checking.configs import check_configs, check_configs_of_claim
from dra_driver.checking.fields import Cleaner
from dra_driver.checking.findings import CheckReport, Finding, sentence, unreadable
from dra_driver.checking.fit import check_claim_fit, check_class_fit, check_partitions
from dra_driver.checking.knowledge import Knowledge, inventory_of_model, model_names
from dra_driver.checking.manifests import ClaimPart, ClassPart, Manifests, PodPart, key_of
from dra_driver.checking.pods import KINDS, check_pod, pod_spec, pod_specs_inside, report_missing
from dra_driver.checking.selectors import KnownNames, fix_of
from dra_driver.errors import InvalidInput
from dra_driver.features import Gates
from dra_driver.names import ADMIN_ACCESS_LABEL, COMPUTE_DOMAIN_DRIVER
from dra_driver.phrases import is_misspelled, meant, shown

_GROUP = "resource.k8s.io"
_COMPUTE_INSTANCE = re.compile(r"\b[1-8]c\.[1-8]g\.[0-9]+gb(?:[+-][a-z.]+)?")
_POD_SPEC = "io.k8s.api.core.v1.PodSpec"

# Kind: API version, the minor versions of Kubernetes that serve it, the last one None while there is no end.
_COMMON = {"v1": (34, None), "v1beta2": (33, 38), "v1beta1": (32, 37)}
_SERVED: Mapping[str, Mapping[str, tuple[int, int | None]]] = {
    "ResourceClaim": _COMMON,
    "ResourceClaimTemplate": _COMMON,
    "DeviceClass": _COMMON,
    "ResourceSlice": _COMMON,
    "DeviceTaintRule": {"v1": (37, None), "v1beta2": (36, 38), "v1alpha3": (33, 38)},
}
_MOVED = {
    "ResourceClaim": "put deviceClassName, selectors, allocationMode, count, adminAccess, tolerations and capacity of "
    "each request under `exactly`",
    "ResourceSlice": "move what is under `basic` of each device one level up",
}
_MOVED["ResourceClaimTemplate"] = _MOVED["ResourceClaim"]


def check(reading: ReadDocuments, knowledge: Knowledge) -> tuple[Finding, ...]:
    """Everything that there is to say, by file and line. Never raises."""
    judged = _Judged(knowledge, _names(reading.documents, knowledge))
    for document in reading.documents:
        judged.take(document)
    judged.judge()
    findings = [finding for report in judged.reports for finding in report.findings]
    findings += map(unreadable, reading.problems)
    order = attrgetter("file", "line", "column", "code", "message")
    return tuple(sorted(findings, key=order))


def policies_for(documents: Sequence[Document]) -> tuple[PublishingPolicy, ...]:
    """How devices must be published for these documents: as the policies among them say, those that are right; and
    with the compute instances that are asked for by name, which are too many to offer all at once."""
    text = " ".join(str(document.obj) for document in documents if document.kind in _SERVED)
    named = sorted(set(_COMPUTE_INSTANCE.findall(text)))
    rules = [{"mode": "Dynamic", "computeInstances": [name]} for name in named]
    return (*policies_in(documents), *(PublishingPolicy.of({"mig": [rule]}) for rule in rules))


def policies_in(documents: Iterable[Document]) -> tuple[PublishingPolicy, ...]:
    """What those among the documents that are right say together, in one entry; none if there are none."""
    valid = [document.obj for document in documents if is_policy(document.obj) and not _policy_problems(document.obj)]
    return (rules_among(valid),) if valid else ()


def _names(documents: Iterable[Document], knowledge: Knowledge) -> KnownNames:
    policies = (*knowledge.policies, *policies_in(documents))
    names = {name for policy in policies for rule in policy.attributes for name in rule.values}
    if knowledge.certain:
        # Of a cluster, or of chosen models, the devices themselves tell; names of our driver stay known.
        for site in knowledge.sites.broad:
            names |= {
                name if "/" in name else f"{pool.driver}/{name}"
                for pool in site.catalog.pools(site.node)
                for candidate in pool.candidates
                for name in candidate.device.attributes
            }
    return KnownNames.of_driver(names, knowledge.driver)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A document of a kind that we look into, with fields of the right types, in the shape of v1."""

    document: Document
    report: CheckReport
    obj: JsonObject

    @property
    def spec(self) -> JsonObject:
        return map_in(self.obj.get("spec"))


class _Judged:
    def __init__(self, knowledge: Knowledge, names: KnownNames) -> None:
        self.reports: list[CheckReport] = []
        self._knowledge = knowledge
        self._manifests = Manifests(knowledge, names)
        self._claims: list[tuple[str, ClaimPart]] = []
        """With their namespaces; of claims that are defined twice, both."""
        self._classes: list[_Taken] = []
        self._others: list[_Taken] = []
        self._templates_to_be: list[ClaimPart] = []
        """Of ComputeDomains."""
        self._defined: dict[tuple[str, str, str, str], Document] = {}

    # -- reading

    def take(self, document: Document) -> None:
        """Sort a document in. Those of no kind are not for Kubernetes, and nothing is said about them."""
        report = CheckReport(document, _written_as(document))
        self.reports.append(report)
        if not document.kind:
            return
        if is_policy(document.obj):
            _check_policy(document, report, self._knowledge.gates)
        elif document.kind == GPU_POLICIES.kind and document.api_version.partition("/")[0] in ("", GPU_POLICIES.group):
            _unknown_version(document, report, [GPU_POLICIES.api_version])
        elif document.kind in _SERVED or document.api_version.startswith(f"{_GROUP}/"):
            if _check_version(document, report, self._knowledge.minor):
                self._take_dra(document, report)
        elif (document.api_version, document.kind) == DOMAIN:
            part = check_domain(document, report, self._knowledge.minor)
            if part is not None:
                self.reports.append(part.report)
                self._templates_to_be.append(part)
        elif document.kind in KINDS and not _is_of_others(document):
            self._take_pod(document, report)
        elif document.kind == "Namespace":
            labels = map_in(value_at(document.obj, ("metadata", "labels")))
            self._manifests.namespaces[document.name] = labels
        else:
            self._take_unknown(document, report)
        self._note_twice(document, report)

    def _take_dra(self, document: Document, report: CheckReport) -> None:
        group, _, version = document.api_version.partition("/")
        schema = builtin_schema(group, "v1beta2" if version == "v1alpha3" else version, document.kind)
        cleaned = Cleaner(report, self._knowledge.minor).clean(document.obj, schema)
        taken = _Taken(document, report, _as_v1(cleaned))
        _check_metadata(taken)
        key = key_of(document)
        if document.kind == "ResourceClaim":
            part = ClaimPart(report, "spec", taken.spec, ResourceClaimSpec.or_none(taken.spec))
            self._manifests.claims[key] = part
            self._claims.append((key[0], part))
        elif document.kind == "ResourceClaimTemplate":
            spec = map_in(taken.spec.get("spec"))
            part = ClaimPart(report, "spec.spec", spec, ResourceClaimSpec.or_none(spec))
            self._manifests.templates[key] = part
            self._claims.append((key[0], part))
            report_problems(template_problems(taken.spec.get("metadata") or {}), report)
        elif document.kind == "DeviceClass":
            self._classes.append(taken)
        elif document.kind in ("ResourceSlice", "DeviceTaintRule"):
            self._others.append(taken)

    def _take_pod(self, document: Document, report: CheckReport) -> None:
        group, version = _group_and_version(document.api_version)
        if definition_name(group, version, document.kind) is None:
            known = ("v1", "apps/v1", "batch/v1")
            served = [text for text in known if definition_name(*_group_and_version(text), document.kind) is not None]
            _unknown_version(document, report, served)
            return
        schema = builtin_schema(group, version, document.kind)
        cleaned = Cleaner(report, self._knowledge.minor).clean(document.obj, schema)
        _check_metadata(_Taken(document, report, cleaned))
        located = pod_spec(document.kind, cleaned)
        if located is None and not _has_errors(report):
            report.find(codes.MISSING_FIELD, "spec", "it contains no pod")
        if located is not None:
            path, spec = located
            self._manifests.pods.append(PodPart(report, path, spec, document.namespace or ""))

    def _take_unknown(self, document: Document, report: CheckReport) -> None:
        """Kinds of others can have pods inside: jobs of operators, for instance."""
        schema = Schema({"$ref": _POD_SPEC}, definitions())
        for path, spec in pod_specs_inside(document.obj):
            inner = CheckReport(document, _prefixed(path))
            self.reports.append(inner)
            cleaner = Cleaner(inner, self._knowledge.minor)
            own = _own_fields(document, spec, schema)
            of_pod = {name: item for name, item in spec.items() if name not in own}
            cleaned = cleaner.clean({"containers": [], **of_pod}, schema)  # a machine has none
            beside = (*_made_containers(own), *_machine_containers(own))
            pod = PodPart(inner, "spec", cleaned, document.namespace or "", whole=False, beside=beside)
            self._manifests.pods.append(pod)
            mode = mode_without_claims(document.obj)
            if mode is not None and spec.get("resourceClaims"):
                inner.find(
                    codes.CLAIMS_DROPPED,
                    "spec.resourceClaims",
                    f"KServe's {f'mode {mode}' if mode else 'default mode'} uses Knative, which drops claims of pods",
                    fix=f"add the annotation {SERVING_MODE}: Standard",
                    severity=Severity.ERROR if mode else None,
                )

    def _note_twice(self, document: Document, report: CheckReport) -> None:
        if not document.name:
            return
        group = document.api_version.rpartition("/")[0]
        key = (group, document.kind, document.namespace or "", document.name)
        first = self._defined.setdefault(key, document)
        if first is not document:
            report.find(codes.TWICE, "metadata.name", f"{document.title} is defined in {first.file}:{first.line}, too")

    # -- judging

    def judge(self) -> None:
        """Classes first, since claims stand on them; then claims, then pods."""
        for taken in self._classes:
            self._judge_class(taken)
        for namespace, part in self._claims:
            self._judge_claim(namespace, part)
        check_templates(self._templates_to_be, self._manifests)
        for pod in self._manifests.pods:
            check_pod(pod, self._manifests)
        minor = self._knowledge.minor
        for taken in self._others:
            if _has_errors(taken.report):
                continue
            if taken.document.kind == "ResourceSlice":
                problems = problems_of_slice(taken.spec, None, SliceLimits.of(minor))
                report_problems([problem.on(minor) for problem in problems], taken.report)
            else:
                report_problems(problems_of_taint_rule(taken.spec, None), taken.report)

    def _judge_class(self, taken: _Taken) -> None:
        check_class(taken.spec, taken.report, self._manifests)
        check_configs(taken.spec.get("config") or (), "spec.config", taken.report, self._knowledge)
        name = taken.document.name
        obj = {"metadata": {"name": name}, "spec": taken.spec}
        part = ClassPart(taken.report, None if _has_errors(taken.report) else DeviceClass.or_none(obj))
        self._manifests.classes[name] = part
        check_class_fit(part, self._manifests)

    def _judge_claim(self, namespace: str, part: ClaimPart) -> None:
        check_claim(part, self._manifests)
        self._check_classes(part)
        self._check_admin_access(namespace, part)
        sound = not _has_errors(part.report)
        check_configs_of_claim(part, self._manifests)
        if sound:
            check_claim_fit(part, self._manifests)
            check_partitions(part, self._manifests)

    def _check_classes(self, part: ClaimPart) -> None:
        classes = {*self._manifests.classes, *self._knowledge.classes}
        for _, path, request in part.alternatives():
            name = request.get("deviceClassName")
            if isinstance(name, str) and name and name not in classes:
                where = f"{path}.deviceClassName"
                report_missing(part.report, where, "DeviceClass", name, classes, "", self._manifests)

    def _check_admin_access(self, namespace: str, part: ClaimPart) -> None:
        labels = self._manifests.namespaces.get(namespace)
        if labels is None or labels.get(ADMIN_ACCESS_LABEL) == "true":
            return
        for _, path, request in part.alternatives():
            if request.get("adminAccess"):
                message = f"namespace {namespace} does not allow admin access"
                fix = f'label the namespace `{ADMIN_ACCESS_LABEL}: "true"`'
                part.report.find(codes.ADMIN_ACCESS, f"{path}.adminAccess", message, fix=fix)


def _has_errors(report: CheckReport) -> bool:
    return any(finding.severity is Severity.ERROR for finding in report.findings)


def _check_metadata(taken: _Taken) -> None:
    metadata = dict(taken.obj.get("metadata") or {})
    if metadata.get("generateName"):
        metadata.setdefault("name", "generated")
    report_problems(problems_of_metadata(("", ""), metadata), taken.report)


def _check_policy(document: Document, report: CheckReport, gates: Gates) -> None:
    if document.kind == FILE_KIND and not document.is_part:
        message = f"kubectl apply knows no {FILE_KIND}; it is a file of the chart and of dractl"
        fix = f"`dractl policy convert {document.file}` prints {GPU_POLICIES.kind} objects that say the same"
        report.find(codes.POLICY_FILE, "kind", message, fix=fix)
    problems = _policy_problems(document.obj)
    for problem in problems:
        field, colon, message = problem.partition(": ")
        report.find(codes.POLICY, field if colon else "", message if colon else problem)
    if document.kind == GPU_POLICIES.kind and not problems:
        report_problems(problems_of_metadata(("", ""), document.obj["metadata"]), report)
        spec = GpuPolicy.read(document.obj).spec
        for field, feature in spec.without(gates)[1]:
            message = f"feature gate {feature} is off, so the driver ignores this"
            report.find(codes.POLICY, f"spec.{field}", message, severity=Severity.WARNING)
        if spec.gpus is not None:
            _check_products(spec.gpus.products or (), report)


def _check_products(patterns: Sequence[str], report: CheckReport) -> None:
    """Patterns that match no known GPU, although a part of a name or a slip in it was probably meant."""
    products = sorted({inventory_of_model(name).gpus[0].product_name for name in model_names()})
    for index, pattern in enumerate(patterns):
        if any(fnmatchcase(product, pattern) for product in products):
            continue
        # There are GPUs that this version does not know: NVIDIA A40 is no misspelled A30, and H20 is no part of H200.
        words = re.compile(rf"(?<![a-z0-9]){re.escape(pattern.strip('*').lower())}(?![a-z0-9])")
        alike = [name for name in products if words.search(name.lower()) or is_misspelled(pattern, name)]
        if alike and pattern.strip("*"):
            message = f"is {shown(pattern)}; no known GPU has this product name, and a pattern is for the whole name"
            message += f"; did you mean `{alike[0]}`?"
            report.find(codes.POLICY, f"spec.gpus.products[{index}]", message, severity=Severity.WARNING)


def _policy_problems(policy: JsonObject) -> Sequence[str]:
    try:
        policies_among([policy])
    except InvalidInput as error:
        return error.problems or (error.message,)
    return ()


# -- versions


def _check_version(document: Document, report: CheckReport, minor: int) -> bool:
    """Whether the kind exists in this version, so that its fields are known."""
    kind, (group, _, version) = document.kind, document.api_version.partition("/")
    if kind not in _SERVED:
        guess = meant(kind, _SERVED)
        if guess:
            message = f"{_GROUP} has no kind {shown(kind)}{guess}"
            report.find(codes.API_VERSION, "kind", message, fix=fix_of(guess))
        return False
    served = _SERVED[kind]
    if group != _GROUP or version not in served:
        _unknown_version(document, report, [f"{_GROUP}/{text}" for text in served])
        return False
    first, last = served[version]
    best = next((text for text, (since, _) in served.items() if since <= minor), "v1")
    if minor < first or (last is not None and minor > last):
        when = f"came with Kubernetes 1.{first}" if minor < first else f"was removed in Kubernetes 1.{(last or 0) + 1}"
        message = f"{document.api_version} {when}; this is for 1.{minor}"
        report.find(codes.API_VERSION, "apiVersion", message, fix=_rewrite(kind, version, best))
    elif version != best:
        end = f" and removed in Kubernetes 1.{last + 1}" if last is not None else ""
        message = f"{document.api_version} is an old version: off by default{end}"
        report.find(codes.DEPRECATED, "apiVersion", message, fix=_rewrite(kind, version, best))
    return True


def _rewrite(kind: str, version: str, best: str) -> str:
    moved = f", and {_MOVED[kind]}" if version == "v1beta1" and best != version and kind in _MOVED else ""
    return f"write `apiVersion: {_GROUP}/{best}`{moved}"


def _is_of_others(document: Document) -> bool:
    """Whether its group is that of some operator, which may have a Job of its own as Volcano does."""
    group = document.api_version.rpartition("/")[0]
    return "." in group and not group.endswith(".k8s.io")


def _unknown_version(document: Document, report: CheckReport, known: Sequence[str]) -> None:
    written = shown(document.api_version or None)
    message = f"{document.kind} is not served as apiVersion {written}" if document.api_version else "is missing"
    fix = f"write `apiVersion: {known[0]}`" if known else None
    report.find(codes.API_VERSION, "apiVersion", message, fix=fix)


def _group_and_version(api_version: str) -> tuple[str, str]:
    group, _, version = api_version.rpartition("/")
    return group, version


# -- places


def _written_as(document: Document) -> Callable[[str], str]:
    """From paths of v1 to those of the version that the document is in."""
    if document.api_version != f"{_GROUP}/v1beta1":
        return lambda path: path
    if document.kind == "ResourceSlice":
        return lambda path: re.sub(r"(\.devices\[[0-9]+\])\.(?!name|basic)", r"\1.basic.", path)
    return lambda path: re.sub(r"(\.requests\[[0-9]+\])\.exactly", r"\1", path)


_ADDING = f"{SERVING_GROUP}/"
"""KServe's objects have fields of their own beside those of a pod: `model`, `minReplicas`."""
_MACHINES = "kubevirt.io/"
"""Its machines have fields of a pod that mean something else, such as `volumes`. Their claims are those of a pod."""


def _own_fields(document: Document, spec: JsonObject, schema: Schema) -> JsonObject:
    if document.api_version.startswith(_MACHINES):
        return {name: item for name, item in spec.items() if name != "resourceClaims"}
    if not document.api_version.startswith(_ADDING):
        return {}
    return {name: item for name, item in spec.items() if schema.child(name) is None}


def _made_containers(own: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Those of their fields that name claims as containers do."""
    for name, item in own.items():
        claims = value_at(item, ("resources", "claims"))
        if isinstance(claims, list):
            uses = [claim for claim in claims if isinstance(claim, dict)]
            yield f"spec.{name}", {"name": "kserve-container", "resources": {"claims": uses}}


def _machine_containers(own: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """The devices of a machine of KubeVirt that are in claims, each as a container that uses one."""
    for field in ("gpus", "hostDevices"):
        for index, device in enumerate(maps_in(value_at(own, ("domain", "devices", field)))):
            if "claimName" in device:
                use = {"name": device["claimName"], "request": device.get("requestName") or ""}
                name = f"{field.lower()}-{index}"
                yield f"spec.domain.devices.{field}[{index}]", {"name": name, "resources": {"claims": [use]}}


def _prefixed(prefix: str) -> Callable[[str], str]:
    """A pod's spec inside something else, which the checks call `spec`, and cleaning calls nothing."""

    def written(path: str) -> str:
        inner = path.removeprefix("spec.") if path != "spec" else ""
        if inner.startswith("domain.devices."):  # a device of a machine is no container
            inner = inner.replace(".resources.claims[0].name", ".claimName")
            inner = inner.replace(".resources.claims[0].request", ".requestName")
        return f"{prefix}.{inner}" if prefix and inner else prefix or inner

    return written


def class_errors(name: str, spec: JsonObject, driver: str) -> tuple[str, ...]:
    """Of a class for devices of `driver`, or of this project for ComputeDomains; none for others. Which devices there
    are does not matter."""
    if not any(f"{quote}{ours}" in json.dumps(spec) for ours in (driver, COMPUTE_DOMAIN_DRIVER) for quote in "\"'"):
        return ()
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
    findings = check(read_documents(json.dumps(obj), name), Knowledge(driver=driver))
    return tuple(sentence(finding) for finding in findings if finding.severity is Severity.ERROR)


_EXACT_FIELDS = frozenset(field.alias for field in ExactRequest.model_fields.values())


def _as_v1(obj: JsonObject) -> JsonObject:
    """An object of resource.k8s.io/v1beta1 in the form of v1, where devices and exact requests have their fields
    elsewhere; other objects unchanged. May share parts with `obj`; version and kind stay."""
    if obj.get("apiVersion") != "resource.k8s.io/v1beta1" or not isinstance(spec := obj.get("spec"), dict):
        return obj
    if obj.get("kind") == "ResourceSlice" and spec.get("devices"):
        devices = [{"name": item.get("name", ""), **(item.get("basic") or {})} for item in spec["devices"]]
        return {**obj, "spec": {**spec, "devices": devices}}
    if obj.get("kind") == "ResourceClaim":
        return {**obj, "spec": _claim_spec(spec)}
    if obj.get("kind") == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        return {**obj, "spec": {**spec, "spec": _claim_spec(spec["spec"])}}
    return obj


def _claim_spec(spec: JsonObject) -> JsonObject:
    devices = spec.get("devices") or {}
    if not devices.get("requests"):
        return spec
    return {**spec, "devices": {**devices, "requests": [_request(request) for request in devices["requests"]]}}


def _request(request: JsonObject) -> JsonObject:
    """Empty fields of an exact request belong to a request of alternatives."""
    exact = {name: value for name, value in request.items() if name in _EXACT_FIELDS and value}
    rest = {name: value for name, value in request.items() if name not in _EXACT_FIELDS}
    return {**rest, "exactly": exact} if exact else rest
