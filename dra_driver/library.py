"""What other programs may use of this package (docs/library.md): checks, placements and explanations as values.

The functions here, the fields of results that the page names, and JSON from `to_data()` stay as they are within a major
version. Everything else in `dra_driver` may change in each release. What only one function needs is imported there.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from dra_driver.allocation.offline import Placed, allocate_all
from dra_driver.allocation.search import Limit
from dra_driver.allocation.world import World
from dra_driver.api.documents import ReadDocuments, read_documents, together
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import JsonObject
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import Finding
from dra_driver.cli.reading.files import CURRENT_VERSION, LONGEST_S, deadline, objects_of_models, world_of_documents
from dra_driver.errors import DriverError, InvalidInput
from dra_driver.explain.explain import Answer, Explanation, Scope
from dra_driver.explain.subjects import Explained, WorkloadExplanation, explained, owned_pods, subject_of
from dra_driver.explain.wording import sentences, workload_sentences
from dra_driver.kubernetes import KNOWN, named_minor

__all__ = [
    "Answer",
    "DriverError",
    "Explained",
    "Explanation",
    "Finding",
    "InvalidInput",
    "NodeInventorySpec",
    "Placed",
    "Severity",
    "WorkloadExplanation",
    "World",
    "allocate",
    "check",
    "explain",
    "from_kubeconfig",
    "inventory",
    "simulated_nodes",
    "text_of",
    "world",
]

type Manifests = str | Iterable[JsonObject]
"""YAML or JSON text, or objects as `yaml.safe_load_all` returns them."""


def check(
    manifests: Manifests, *, models: Sequence[str] = (), kubernetes: str = CURRENT_VERSION
) -> tuple[Finding, ...]:
    """What `dractl check` finds, by line. `models` are the GPU models that there are, as `dgx-h100`: what fits none of
    them is an error; without them, a warning about all known models. Each object is a file of its own, with its name.

    Raises InvalidInput for a model or a version of Kubernetes that is not known.
    """
    from dra_driver.checking.check import check as findings_in
    from dra_driver.cli.check import offline_knowledge

    reading = _read(manifests)
    minor = named_minor(kubernetes, KNOWN)
    return findings_in(reading, offline_knowledge(minor, ",".join(models), reading.documents))


def world(manifests: Manifests, *, nodes: str = "", kubernetes: str = CURRENT_VERSION) -> World:
    """A world of objects, for `allocate` and `explain`: claims, templates, pods, workloads with all their replicas,
    slices, nodes. Missing DeviceClasses are those of the driver. `nodes` adds simulated nodes, as `dgx-h100:2,t4`.

    Raises InvalidInput with all objects that are not valid.
    """
    documents = _read(manifests).raise_problems()
    return world_of_documents(documents, kubernetes, nodes or None)


def from_kubeconfig(kubeconfig: Path | None = None, *, context: str | None = None, namespace: str = "default") -> World:
    """The world of a cluster: all that an explanation in this namespace needs. `kubeconfig` None is $KUBECONFIG, then
    ~/.kube/config. Kinds that the user may not list are in `World.unread`.

    Raises ClusterError if the cluster cannot be reached, and InvalidInput for a wrong kubeconfig. Not for use in a
    running event loop.
    """
    from dra_driver.cli.reading.live import live_world
    from dra_driver.kube.client import Kube
    from dra_driver.kube.endpoint import default_kubeconfigs, endpoint_from

    async def read() -> World:
        async with Kube(endpoint_from(kubeconfig or default_kubeconfigs(), context)) as kube:
            return await live_world(kube, namespace)

    return asyncio.run(read())


def allocate(world: World, *, timeout_s: float = LONGEST_S) -> tuple[Placed, ...]:
    """All that waits, placed one after the other: pods in the order of the world, then claims that no pod uses. What
    fits nowhere has `node` None, and `reasons`. After `timeout_s` the rest is not decided."""
    return allocate_all(world, Limit(enough=deadline(timeout_s)))


def explain(
    world: World, subject: str | None = None, *, namespace: str | None = None, timeout_s: float = LONGEST_S
) -> tuple[Explained, ...]:
    """`subject` is `pod/NAME`, `claim/NAME`, `node/NAME`, `gpu/NAME`, or of files `job/NAME` and other workloads; None
    is all that waits, in all namespaces unless one is given. A workload has a WorkloadExplanation, all else an
    Explanation. `text_of` makes text of both.

    Raises InvalidInput for a subject that the world does not have.
    """
    named = subject_of(subject) if subject is not None else None
    end = deadline(timeout_s)
    workloads = () if world.live else owned_pods(world)
    return tuple(explained(world, workloads, named, namespace, Scope(enough=end, limit=Limit(enough=end))))


def text_of(answer: Explained, width: int = 100) -> str:
    """As `dractl explain` prints it."""
    if isinstance(answer, WorkloadExplanation):
        return "\n".join(workload_sentences(answer, width))
    return "\n".join(sentences(answer, width))


def simulated_nodes(nodes: str, policies: Manifests = ()) -> list[JsonObject]:
    """ResourceSlices and NodeInventories of simulated nodes, as `dgx-h100:2,t4` or files of `dractl record`, published
    as these GpuPolicies say. Raises InvalidInput for a model that is not known."""
    return objects_of_models(nodes, [document.obj for document in _read(policies).raise_problems()])


def inventory(host: str = "real") -> NodeInventorySpec:
    """The GPUs and the driver of this machine, or of a simulated one (`dgx-h100`, a file of `dractl record`), as a node
    reports them. `driver` is None without an NVIDIA driver; `problems` says why. Raises InvalidInput."""
    from dra_driver.simulation.cluster import inventory_of_model

    return NodeInventorySpec.of(inventory_of_model(host))


def _read(manifests: Manifests) -> ReadDocuments:
    if isinstance(manifests, str):
        return read_documents(manifests, "text")
    return together(read_documents(json.dumps(obj, default=str), _name(obj)) for obj in manifests)


def _name(obj: JsonObject) -> str:
    """Raises InvalidInput for what callers without a type checker pass."""
    if not isinstance(obj, dict):
        raise InvalidInput(f"{type(obj).__name__} is not a Kubernetes object; pass mappings or text", about="manifests")
    metadata = obj.get("metadata")
    return f"{obj.get('kind')}/{metadata.get('name') if isinstance(metadata, dict) else None}"
