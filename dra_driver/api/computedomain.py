"""ComputeDomain (`resource.nvidia.com/v1beta1`, namespaced): pods on several nodes whose GPUs share memory over NVLink.

A user writes the spec, with NVIDIA's fields and meaning, so that manifests for its own driver work unchanged. The
status is the controller's alone: it is also what the daemons of the domain read their peers from, and what the
preparation of a channel waits for. The spec cannot be changed once it is written.
"""

from typing import Literal

from pydantic import Field

from dra_driver.api.conditions import Condition
from dra_driver.api.meta import Model, ObjectMeta


class TemplateName(Model):
    name: str
    """Of the ResourceClaimTemplate that the controller makes in the domain's namespace, for the workload's pods."""


class ChannelSpec(Model):
    resource_claim_template: TemplateName
    allocation_mode: Literal["Single", "All"] = "Single"
    """`Single`: each container gets the one IMEX channel of its domain; `All`: all that the driver has."""


class ComputeDomainSpec(Model):
    num_nodes: int = Field(default=0, ge=0)
    """Containers wait until so many nodes of the domain are ready; 0: each waits for its own node alone."""
    channel: ChannelSpec


class DomainNode(Model):
    """One node of the domain. `index` is its place among the domain's nodes of the same clique; it stays while the node
    is in the domain, and no two nodes of one clique have the same."""

    name: str
    ip_address: str = ""
    """Of the node's daemon; empty until its pod has one."""
    clique_id: str = Field(default="", alias="cliqueID")
    """`<cluster UUID>.<clique id>`; empty where NVLink does not leave the machine."""
    index: int
    status: Literal["Ready", "NotReady"]
    message: str | None = None
    """Why it is not ready."""


class ComputeDomainStatus(Model):
    status: Literal["Ready", "NotReady"] = "NotReady"
    ready_nodes: str = ""
    """`3/4`: of the nodes that pods of the domain are on, or that `numNodes` wants if they are more."""
    nodes: list[DomainNode] = Field(default_factory=list)
    """Sorted by clique and index."""
    conditions: list[Condition] = Field(default_factory=list)
    observed_generation: int | None = None


class ComputeDomain(Model):
    metadata: ObjectMeta
    spec: ComputeDomainSpec
    status: ComputeDomainStatus = Field(default_factory=ComputeDomainStatus)
