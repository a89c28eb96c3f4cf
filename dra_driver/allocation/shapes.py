"""What pods and nodes must look like to be asked about. They are checked against this and travel as they are. Pure."""

from dra_driver.api.meta import Model
from dra_driver.api.resource import Taint, Toleration

type _Amounts = dict[str, str | int | float] | None


class _Named(Model):
    name: str


class _Metadata(Model):
    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None


class _Resources(Model):
    requests: _Amounts = None
    limits: _Amounts = None


class _Container(Model):
    name: str
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Entry(Model):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _Requirement(Model):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(Model):
    match_expressions: list[_Requirement] | None = None
    match_fields: list[_Requirement] | None = None


class _NodeSelector(Model):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(Model):
    required_during_scheduling_ignored_during_execution: _NodeSelector | None = None


class _Affinity(Model):
    node_affinity: _NodeAffinity | None = None


class _PodSpec(Model):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    resource_claims: list[_Entry] | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[Toleration] | None = None
    scheduling_gates: list[_Named] | None = None
    overhead: _Amounts = None


class _ClaimStatus(Model):
    name: str
    resource_claim_name: str | None = None


class _Condition(Model):
    type: str | None = None
    status: str | None = None
    message: str | None = None


class _PodStatus(Model):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    resource_claim_statuses: list[_ClaimStatus] | None = None


class PodShape(Model):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _NodeSpec(Model):
    taints: list[Taint] | None = None
    unschedulable: bool | None = None


class _NodeStatus(Model):
    allocatable: _Amounts = None


class NodeShape(Model):
    metadata: _Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None
