"""ComputeDomain (`resource.nvidia.com/v1beta1`, namespaced): pods on several nodes whose GPUs share memory over NVLink.

A user writes the spec, with NVIDIA's fields and meaning, so that manifests for its own driver work unchanged. Only the
controller writes the status. The domain's daemons read their peers from it, and the preparation of a channel waits for
it. The spec is immutable.
"""

from typing import Literal, Self

from pydantic import Field

from dra_driver.api.meta import Condition, JsonObject, Model, ObjectMeta
from dra_driver.errors import InvalidInput


class TemplateName(Model):
    name: str
    """Name of the ResourceClaimTemplate that the controller creates in the domain's namespace for the workload's
    pods."""


class ChannelSpec(Model):
    resource_claim_template: TemplateName
    allocation_mode: Literal["Single", "All"] = "Single"
    """`Single`: each container gets the one IMEX channel of its domain; `All`: all channels of the NVIDIA driver."""


class ComputeDomainSpec(Model):
    num_nodes: int = Field(default=0, ge=0)
    """The domain is Ready only when this many nodes are. Containers wait for them only with an NVIDIA driver before
    570.158.01."""
    channel: ChannelSpec


class DomainNode(Model):
    """One node of the domain. `index` is unique among the domain's nodes of the same clique, and does not change while
    the node is in the domain."""

    name: str
    ip_address: str = ""
    """IP address of the node's daemon; empty until its pod has one."""
    clique_id: str = Field(default="", alias="cliqueID")
    """`<cluster UUID>.<clique id>`; empty if NVLink does not leave the machine."""
    index: int
    status: Literal["Ready", "NotReady"]
    message: str | None = None
    """Why the node is not ready."""


class ComputeDomainStatus(Model):
    status: Literal["Ready", "NotReady"] = "NotReady"
    ready_nodes: str = ""
    """Ready nodes, such as `3/4`. The total is the number of nodes with pods of the domain, or `numNodes` if that is
    larger."""
    nodes: list[DomainNode] = Field(default_factory=list)
    """Sorted by clique and index."""
    conditions: list[Condition] = Field(default_factory=list)
    observed_generation: int | None = None


class ComputeDomain(Model):
    metadata: ObjectMeta
    spec: ComputeDomainSpec
    status: ComputeDomainStatus = Field(default_factory=ComputeDomainStatus)

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @classmethod
    def or_why_not(cls, obj: JsonObject) -> Self | InvalidInput:
        """For a mirror, whose readers tell an invalid object from a missing one."""
        metadata = obj["metadata"]
        try:
            return cls.of(obj, about=f"ComputeDomain {metadata.get('namespace')}/{metadata['name']}")
        except InvalidInput as error:
            return error
