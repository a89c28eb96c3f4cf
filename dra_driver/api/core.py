"""Kubernetes' own kinds, typed as far as the driver and its tools read them. The kinds of resource.k8s.io are in
`dra_driver.api.resource`.
"""

import re
import ssl
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Self

from pydantic import Field

from dra_driver.api.meta import CoreModel, JsonObject, ObjectMeta
from dra_driver.api.resource import Taint, Toleration
from dra_driver.errors import InvalidInput
from dra_driver.features import Gates

KUBELET_PLUGIN, CONTROLLER = "gpu-dra-kubelet-plugin", "gpu-dra-controller"
_PROGRAMS = "gpu-dra-"
_RELEASE = re.compile(r"v?[0-9]+[.][0-9]+[.][0-9]+")

EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
CLAIM_FINALIZER = "resource.kubernetes.io/delete-protection"
DEFAULT_NAMESPACE = "default"

type Key = tuple[str, str]
"""Namespace and name."""
type Amounts = dict[str, str | int | float]
"""Quantities by resource name."""


class ObjectCondition(CoreModel):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


# -- nodes


class NodeInfo(CoreModel):
    boot_id: str = Field(default="", alias="bootID")
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeAddress(CoreModel):
    type: str = ""
    address: str = ""


class NodeStatus(CoreModel):
    addresses: list[NodeAddress] = Field(default_factory=list)
    allocatable: Amounts = Field(default_factory=dict)
    conditions: list[ObjectCondition] = Field(default_factory=list)
    node_info: NodeInfo = Field(default_factory=NodeInfo)


class NodeSpec(CoreModel):
    taints: list[Taint] = Field(default_factory=list)
    unschedulable: bool = False


class Node(CoreModel):
    metadata: ObjectMeta
    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus = Field(default_factory=NodeStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def internal_ip(self) -> str:
        """Empty if it has none."""
        return next((item.address for item in self.status.addresses if item.type == "InternalIP"), "")

    @property
    def ready_since(self) -> datetime | None:
        """None if it is not ready, or the time is unknown."""
        ready = (item for item in self.status.conditions if (item.type, item.status) == ("Ready", "True"))
        return moment(next((item.last_transition_time for item in ready), None))


# -- pods and what makes them


class ClaimUse(CoreModel):
    """`request` is the only request of the claim that the container uses; None: it uses all."""

    name: str
    request: str | None = None


class ContainerResources(CoreModel):
    requests: Amounts = Field(default_factory=dict)
    limits: Amounts = Field(default_factory=dict)
    claims: list[ClaimUse] = Field(default_factory=list)

    @property
    def wanted(self) -> Amounts:
        """The requests. The API server adds missing ones from the limits; manifests in files may not have them."""
        return self.limits | self.requests


class Container(CoreModel):
    name: str
    image: str = ""
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)
    resources: ContainerResources = Field(default_factory=ContainerResources)
    restart_policy: str = ""

    @property
    def program(self) -> str | None:
        """The program of this driver that runs in it; None for other containers."""
        words = [*self.command, *self.args]
        name = PurePosixPath(words[0]).name if words else ""
        return name if name.startswith(_PROGRAMS) else None

    def setting(self, flag: str) -> str | None:
        """The value of `--flag=value`; None if the flag is missing."""
        values = [word.partition("=")[2] for word in [*self.command, *self.args] if word.startswith(f"{flag}=")]
        return values[-1] if values else None

    @property
    def version(self) -> str | None:
        """From the tag of its image; None for a digest, and for a tag that is not a release (`main`, a commit)."""
        name, at, _ = self.image.partition("@")
        tag = name.rpartition("/")[2].partition(":")[2]
        return tag if not at and _RELEASE.fullmatch(tag) else None


class Named(CoreModel):
    name: str = ""


class Volume(CoreModel):
    name: str = ""
    config_map: Named | None = None


class PodResourceClaim(CoreModel):
    """An entry of `spec.resourceClaims`: the name of a claim, or of a template for a claim. In the status, the claim
    that was created for an entry; without a name if none was needed."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SelectorRequirement(CoreModel):
    key: str
    operator: str
    values: list[str] | None = None


class SelectorTerm(CoreModel):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(CoreModel):
    node_selector_terms: list[SelectorTerm] = Field(default_factory=list)


class NodeAffinity(CoreModel):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(CoreModel):
    node_affinity: NodeAffinity = Field(default_factory=NodeAffinity)


class PodSpec(CoreModel):
    containers: list[Container]
    init_containers: list[Container] = Field(default_factory=list)
    resource_claims: list[PodResourceClaim] = Field(default_factory=list)
    volumes: list[Volume] = Field(default_factory=list)
    node_name: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: Affinity = Field(default_factory=Affinity)
    tolerations: list[Toleration] = Field(default_factory=list)
    scheduling_gates: list[Named] = Field(default_factory=list)
    overhead: Amounts = Field(default_factory=dict)
    service_account_name: str = ""
    image_pull_secrets: list[Named] = Field(default_factory=list)

    @property
    def ours(self) -> Container | None:
        """The container with a program of this driver."""
        return next((container for container in self.containers if container.program is not None), None)


class Waiting(CoreModel):
    reason: str = ""
    message: str = ""


class Terminated(Waiting):
    exit_code: int = 0


class ContainerState(CoreModel):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(CoreModel):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = Field(default_factory=ContainerState)
    last_state: ContainerState = Field(default_factory=ContainerState)


class ExtendedUse(CoreModel):
    container_name: str
    request_name: str


class ExtendedClaim(CoreModel):
    """The claim that the scheduler created for the pod's extended resources."""

    resource_claim_name: str
    request_mappings: list[ExtendedUse] = Field(default_factory=list)


class PodStatus(CoreModel):
    phase: str = ""
    conditions: list[ObjectCondition] = Field(default_factory=list)
    container_statuses: list[ContainerStatus] = Field(default_factory=list)
    pod_ip: str = Field(default="", alias="podIP")
    resource_claim_statuses: list[PodResourceClaim] = Field(default_factory=list)
    extended_resource_claim_status: ExtendedClaim | None = None


class Pod(CoreModel):
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = Field(default_factory=PodStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or DEFAULT_NAMESPACE

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def node(self) -> str | None:
        """Where it runs or will run; None if no scheduler has found a node for it."""
        return self.spec.node_name or None

    @property
    def waits(self) -> bool:
        """Whether it waits for a scheduler to find a node for it."""
        return not (self.node or self.is_done)

    def on(self, node: str) -> Self:
        """The pod once it is bound to the node."""
        return self.with_spec(node_name=node)

    def with_spec(self, **fields: object) -> Self:
        return self.model_copy(update={"spec": self.spec.model_copy(update=fields)})

    def owner_reference(self, minor: int) -> JsonObject:
        """The owner reference of an object that is deleted with the pod, as Kubernetes 1.`minor` writes it."""
        reference = {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid, "controller": True}
        return {**reference, **({"blockOwnerDeletion": True} if minor < 35 else {})}

    @property
    def program(self) -> str | None:
        """The program of this driver that runs in it; None for other pods."""
        ours = self.spec.ours
        return ours.program if ours is not None else None

    @property
    def is_done(self) -> bool:
        """Whether all its containers have ended permanently."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ready(self) -> bool:
        return any((condition.type, condition.status) == ("Ready", "True") for condition in self.status.conditions)

    @property
    def restarts(self) -> int:
        return sum(status.restart_count for status in self.status.container_statuses)

    def why_not_ready(self) -> str:
        """The reason that its status gives."""
        for status in self.status.container_statuses:
            for state in (status.state.waiting, status.state.terminated, status.last_state.terminated):
                if state is not None and not status.ready and state.reason:
                    return f"{state.reason}{f': {state.message}' if state.message else ''}"
        unmet = [condition for condition in self.status.conditions if condition.status == "False" and condition.message]
        return unmet[0].message if unmet else f"its phase is {self.status.phase or 'unknown'}"


class PodTemplate(CoreModel):
    spec: PodSpec


class WorkloadSpec(CoreModel):
    replicas: int = 1
    template: PodTemplate


class WorkloadStatus(CoreModel):
    ready_replicas: int = 0


class AppsWorkload(CoreModel):
    """A DaemonSet or a Deployment."""

    metadata: ObjectMeta
    spec: WorkloadSpec
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def pod(self) -> PodSpec:
        return self.spec.template.spec

    @property
    def ours(self) -> Container | None:
        return self.pod.ours

    @property
    def program(self) -> str | None:
        return self.ours.program if self.ours is not None else None

    @property
    def account(self) -> str:
        """Its service account, as RBAC names it."""
        return f"system:serviceaccount:{self.metadata.namespace}:{self.pod.service_account_name or 'default'}"

    @property
    def feature_gates(self) -> Gates:
        """As its flag sets them. The defaults of this release if the flag is missing or invalid."""
        try:
            return Gates.parse((self.ours.setting("--feature-gates") if self.ours is not None else None) or "")
        except InvalidInput:
            return Gates.DEFAULT


# -- configuration and coordination


class CustomResource(CoreModel):
    """A CustomResourceDefinition; `spec` is not typed, because it is only compared."""

    metadata: ObjectMeta
    spec: JsonObject = Field(default_factory=dict)
    status: JsonObject = Field(default_factory=dict)

    @property
    def why_not_established(self) -> str | None:
        """None if it is served."""
        conditions = [ObjectCondition.of(item) for item in self.status.get("conditions") or ()]
        if any((condition.type, condition.status) == ("Established", "True") for condition in conditions):
            return None
        messages = [condition.message for condition in conditions if condition.status == "False" and condition.message]
        return messages[0] if messages else "the API server has not said that it serves it"


class ConfigMap(CoreModel):
    metadata: ObjectMeta
    data: dict[str, str] = Field(default_factory=dict)


class Namespace(CoreModel):
    metadata: ObjectMeta


class LeaseSpec(CoreModel):
    holder_identity: str = ""
    lease_duration_seconds: int = 15
    renew_time: str | None = None


class Lease(CoreModel):
    metadata: ObjectMeta
    spec: LeaseSpec = Field(default_factory=LeaseSpec)


class ServiceReference(CoreModel):
    namespace: str = ""
    name: str = ""


class ClientConfig(CoreModel):
    service: ServiceReference | None = None
    ca_bundle: str = ""

    @property
    def trusted_until(self) -> datetime | None:
        """When the last of its certificate authorities expires; None if none can be read."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=b64decode(self.ca_bundle).decode("ascii"))
        except (ValueError, ssl.SSLError):
            return None
        ends = [ssl.cert_time_to_seconds(str(certificate["notAfter"])) for certificate in context.get_ca_certs()]
        return datetime.fromtimestamp(max(ends), UTC) if ends else None


class WebhookEntry(CoreModel):
    name: str = ""
    client_config: ClientConfig = Field(default_factory=ClientConfig)
    failure_policy: str = "Fail"


class WebhookConfiguration(CoreModel):
    metadata: ObjectMeta
    webhooks: list[WebhookEntry] = Field(default_factory=list)


class AdmissionPolicyStatus(CoreModel):
    type_checking: JsonObject = Field(default_factory=dict)


class AdmissionPolicy(CoreModel):
    """A ValidatingAdmissionPolicy; `spec` is not typed."""

    metadata: ObjectMeta
    spec: JsonObject = Field(default_factory=dict)
    status: AdmissionPolicyStatus = Field(default_factory=AdmissionPolicyStatus)

    @property
    def resources(self) -> frozenset[tuple[str, str]]:
        """Group and resource of what it judges."""
        rules = (self.spec.get("matchConstraints") or {}).get("resourceRules") or ()
        return frozenset(
            (str(group), str(resource))
            for rule in rules
            for group in rule.get("apiGroups") or ()
            for resource in rule.get("resources") or ()
        )


class BindingSpec(CoreModel):
    policy_name: str = ""
    validation_actions: list[str] = Field(default_factory=list)


class PolicyBinding(CoreModel):
    metadata: ObjectMeta
    spec: BindingSpec = Field(default_factory=BindingSpec)


class InvolvedObject(CoreModel):
    kind: str = ""
    name: str = ""
    namespace: str | None = None


class EventSeries(CoreModel):
    count: int = 0
    last_observed_time: str | None = None


class Event(CoreModel):
    """Of the core API, which can select Events by their reporter."""

    metadata: ObjectMeta
    involved_object: InvolvedObject = Field(default_factory=InvolvedObject)
    type: str = ""
    reason: str = ""
    message: str = ""
    event_time: str | None = None
    last_timestamp: str | None = None
    series: EventSeries | None = None
    reporting_component: str = ""

    @property
    def last(self) -> datetime | None:
        observed = self.series.last_observed_time if self.series is not None else None
        return moment(observed or self.event_time or self.last_timestamp)


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it; None if the text is missing or not a time."""
    try:
        time = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
