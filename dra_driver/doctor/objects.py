"""The parts of API objects that the checks look at, typed; what others have of these is in `dra_driver.api`. Pure."""

import re
import ssl
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field

from dra_driver.allocation.nodes import NodeView
from dra_driver.api.meta import JsonObject, Model, ObjectMeta
from dra_driver.api.resource import Taint
from dra_driver.errors import InvalidInput
from dra_driver.features import Gates
from dra_driver.slices.diff import MANAGED_BY, MANAGER

_PROGRAMS = "gpu-dra-"
_RELEASE = re.compile(r"v?[0-9]+[.][0-9]+[.][0-9]+")
KUBELET_PLUGIN, CONTROLLER = "gpu-dra-kubelet-plugin", "gpu-dra-controller"


# -- nodes


class NodeInfo(Model):
    boot_id: str = Field(default="", alias="bootID")
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeCondition(Model):
    type: str
    status: str
    last_transition_time: str | None = None


class NodeStatus(Model):
    allocatable: dict[str, Any] = Field(default_factory=dict)
    conditions: list[NodeCondition] = Field(default_factory=list)
    node_info: NodeInfo = Field(default_factory=NodeInfo)


class NodeSpec(Model):
    taints: list[Taint] = Field(default_factory=list)
    unschedulable: bool = False


class NodeObject(Model):
    metadata: ObjectMeta
    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus = Field(default_factory=NodeStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def ready_since(self) -> datetime | None:
        """None when it is not, or does not say since when."""
        ready = [
            condition for condition in self.status.conditions if (condition.type, condition.status) == ("Ready", "True")
        ]
        return moment(ready[0].last_transition_time) if ready else None

    @property
    def view(self) -> NodeView:
        allocatable = {name: str(amount) for name, amount in self.status.allocatable.items()}
        return NodeView(self.name, self.metadata.labels, tuple(self.spec.taints), self.spec.unschedulable, allocatable)


# -- pods and what makes them


class ContainerObject(Model):
    name: str = ""
    image: str = ""
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)

    @property
    def program(self) -> str | None:
        """Which of our programs runs in it; None when it is not ours."""
        words = [*self.command, *self.args]
        name = PurePosixPath(words[0]).name if words else ""
        return name if name.startswith(_PROGRAMS) else None

    def setting(self, flag: str) -> str | None:
        """The value of `--flag=value`; None when it is not given."""
        given = [word.partition("=")[2] for word in [*self.command, *self.args] if word.startswith(f"{flag}=")]
        return given[-1] if given else None

    @property
    def version(self) -> str | None:
        """By the tag of its image; None for one by digest, and for a tag that is no release (`main`, a commit)."""
        name, at, _ = self.image.partition("@")
        tag = name.rpartition("/")[2].partition(":")[2]
        return tag if not at and _RELEASE.fullmatch(tag) else None


class ConfigMapVolume(Model):
    name: str = ""


class Volume(Model):
    name: str = ""
    config_map: ConfigMapVolume | None = None


class PodSpec(Model):
    containers: list[ContainerObject] = Field(default_factory=list)
    volumes: list[Volume] = Field(default_factory=list)
    node_name: str | None = None
    service_account_name: str | None = None
    resource_claims: list[JsonObject] = Field(default_factory=list)

    @property
    def ours(self) -> ContainerObject | None:
        """The container with one of our programs."""
        return next((container for container in self.containers if container.program is not None), None)


class Waiting(Model):
    reason: str = ""
    message: str = ""


class Terminated(Model):
    reason: str = ""
    exit_code: int = 0
    message: str = ""


class ContainerState(Model):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Model):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = Field(default_factory=ContainerState)
    last_state: ContainerState = Field(default_factory=ContainerState)


class ObjectCondition(Model):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class PodStatus(Model):
    phase: str = ""
    conditions: list[ObjectCondition] = Field(default_factory=list)
    container_statuses: list[ContainerStatus] = Field(default_factory=list)


class PodObject(Model):
    metadata: ObjectMeta
    spec: PodSpec = Field(default_factory=PodSpec)
    status: PodStatus = Field(default_factory=PodStatus)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def program(self) -> str | None:
        ours = self.spec.ours
        return ours.program if ours is not None else None

    @property
    def ready(self) -> bool:
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)

    @property
    def restarts(self) -> int:
        return sum(container_status.restart_count for container_status in self.status.container_statuses)

    def why_not_ready(self) -> str:
        """What its status gives as the reason, as far as it does."""
        for container_status in self.status.container_statuses:
            for state in (
                container_status.state.waiting,
                container_status.state.terminated,
                container_status.last_state.terminated,
            ):
                if state is not None and not container_status.ready and state.reason:
                    return f"{state.reason}{f': {state.message}' if state.message else ''}"
        unmet = [condition for condition in self.status.conditions if condition.status == "False" and condition.message]
        return unmet[0].message if unmet else f"its phase is {self.status.phase or 'unknown'}"


class Template(Model):
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: JsonObject = Field(default_factory=dict)
    """As it is: node selection is decided by `dra_driver.allocation.nodes`."""

    @property
    def pod(self) -> PodSpec:
        return PodSpec.of(self.spec)


class WorkloadSpec(Model):
    replicas: int | None = None
    template: Template = Field(default_factory=Template)


class WorkloadStatus(Model):
    ready_replicas: int = 0


class WorkloadObject(Model):
    """A DaemonSet or a Deployment."""

    metadata: ObjectMeta
    spec: WorkloadSpec = Field(default_factory=WorkloadSpec)
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ours(self) -> ContainerObject | None:
        return self.spec.template.pod.ours

    @property
    def program(self) -> str | None:
        ours = self.ours
        return ours.program if ours is not None else None

    @property
    def account(self) -> str:
        """Its service account, as RBAC names it."""
        name = self.spec.template.pod.service_account_name or "default"
        return f"system:serviceaccount:{self.metadata.namespace}:{name}"

    @property
    def feature_gates(self) -> Gates:
        """What it was told, or the defaults of this release; those too where it would not start with what it was."""
        try:
            return Gates.parse((self.ours.setting("--feature-gates") if self.ours is not None else None) or "")
        except InvalidInput:
            return Gates.DEFAULT


# -- slices


@dataclass(frozen=True, slots=True)
class SliceSeen:
    """`devices` are names. `ours`: carries the label of our publisher."""

    name: str
    driver: str
    pool: str
    generation: int
    count: int
    node_name: str | None
    ours: bool
    devices: tuple[str, ...]

    @classmethod
    def of(cls, obj: JsonObject) -> "SliceSeen":
        spec, metadata = obj.get("spec") or {}, obj["metadata"]
        pool = spec.get("pool") or {}
        return cls(
            metadata["name"],
            str(spec.get("driver", "")),
            str(pool.get("name", "")),
            int(pool.get("generation", 0)),
            int(pool.get("resourceSliceCount", 0)),
            spec.get("nodeName"),
            (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER,
            tuple(str(item.get("name")) for item in spec.get("devices") or ()),
        )


# -- configuration


class CustomResource(Model):
    """A CustomResourceDefinition; `spec` as it is, to be compared."""

    metadata: ObjectMeta
    spec: JsonObject = Field(default_factory=dict)
    status: JsonObject = Field(default_factory=dict)

    @property
    def why_not_established(self) -> str | None:
        """None when it is served."""
        conditions = {item.get("type"): item for item in self.status.get("conditions") or ()}
        established = conditions.get("Established") or {}
        if established.get("status") == "True":
            return None
        unmet = [
            condition
            for condition in conditions.values()
            if condition.get("status") == "False" and condition.get("message")
        ]
        return str(unmet[0]["message"]) if unmet else "the API server has not said that it serves it"


class ConfigMap(Model):
    metadata: ObjectMeta
    data: dict[str, str] = Field(default_factory=dict)


class NamespaceSeen(Model):
    metadata: ObjectMeta


class LeaseSpec(Model):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(Model):
    metadata: ObjectMeta
    spec: LeaseSpec = Field(default_factory=LeaseSpec)


class ServiceReference(Model):
    namespace: str = ""
    name: str = ""


class ClientConfig(Model):
    service: ServiceReference | None = None
    ca_bundle: str = ""

    @property
    def trusted_until(self) -> datetime | None:
        """When the last of the authorities in it expires; None when there is none that can be read."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=b64decode(self.ca_bundle).decode("ascii"))
        except (ValueError, ssl.SSLError):
            return None
        ends = [ssl.cert_time_to_seconds(str(get_ca_cert["notAfter"])) for get_ca_cert in context.get_ca_certs()]
        return datetime.fromtimestamp(max(ends), UTC) if ends else None


class WebhookEntry(Model):
    name: str = ""
    client_config: ClientConfig = Field(default_factory=ClientConfig)
    failure_policy: str = "Fail"


class WebhookConfiguration(Model):
    metadata: ObjectMeta
    webhooks: list[WebhookEntry] = Field(default_factory=list)


class PolicyStatus(Model):
    type_checking: JsonObject | None = None


class AdmissionPolicy(Model):
    """A ValidatingAdmissionPolicy; `spec` as it is."""

    metadata: ObjectMeta
    spec: JsonObject = Field(default_factory=dict)
    status: PolicyStatus = Field(default_factory=PolicyStatus)

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


class BindingSpec(Model):
    policy_name: str = ""
    validation_actions: list[str] = Field(default_factory=list)


class PolicyBinding(Model):
    metadata: ObjectMeta
    spec: BindingSpec = Field(default_factory=BindingSpec)


class OperatorResource(Model):
    """A ClusterPolicy or GPUCluster of NVIDIA's GPU Operator; which of the two is in `kind`."""

    kind: str
    metadata: ObjectMeta
    spec: JsonObject = Field(default_factory=dict)

    def enabled(self, part: str) -> bool:
        """Whether it runs this part, which is the default."""
        value = (self.spec.get(part) or {}).get("enabled")
        return value is None or bool(value)


class Regarded(Model):
    kind: str = ""
    name: str = ""
    namespace: str | None = None


class EventSeries(Model):
    count: int = 0
    last_observed_time: str | None = None


class EventSeen(Model):
    """An Event as the core API has it: that one can be asked for by who told it."""

    metadata: ObjectMeta
    involved_object: Regarded = Field(default_factory=Regarded)
    type: str = ""
    reason: str = ""
    message: str = ""
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_component: str = ""

    @property
    def last(self) -> datetime | None:
        return moment((self.series.last_observed_time if self.series is not None else None) or self.event_time)


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it; None where there is none, or nothing that could be one."""
    try:
        time = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
