"""Manifests as arguments: files, folders and `-`, turned into documents by `dra_driver.api.documents`; and a world that
is made of them, for commands that ask no cluster."""

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dra_driver import bundled
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.loading import objects_of_workload, world_of
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Limit
from dra_driver.allocation.world import World
from dra_driver.api.core import DEFAULT_NAMESPACE
from dra_driver.api.documents import Document, ReadDocuments, read_documents, together
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import NODE_INVENTORIES, NODES, PODS, RESOURCE_SLICES, JsonObject
from dra_driver.api.resource import DeviceClass, ResourceSlice
from dra_driver.errors import InvalidInput, UnreadableFile
from dra_driver.kubernetes import CURRENT, OLDEST, named_minor
from dra_driver.names import names_record
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures

if TYPE_CHECKING:
    from dra_driver.api.policy import NodeSelection, PublishingPolicy
    from dra_driver.simulation.cluster import SimulatedNode

STDIN = "-"
_ENDINGS = frozenset((".yaml", ".yml", ".json"))


def read_files(paths: Sequence[str]) -> ReadDocuments:
    """The documents of all `paths`, in their order; what is no YAML is among the problems.

    A folder stands for its YAML and JSON files, at any depth, in order of their names; hidden ones are passed over.
    Raises UnreadableFile for the first path that cannot be read.
    """
    return together(read_documents(read_bytes(name), name) for name in named_files(paths))


def shipped_classes() -> tuple[Document, ...]:
    """The DeviceClasses that come with the driver."""
    return read_files([str(bundled.DEVICE_CLASSES_FOLDER)]).raise_problems()


def known_classes() -> dict[str, DeviceClass]:
    """The same by name."""
    return {document.name: DeviceClass.of(document.obj) for document in shipped_classes()}


def named_files(paths: Iterable[str]) -> Iterator[str]:
    """Folders become their files. Raises InvalidInput for an empty name, as of a shell's variable that is not set: the
    files of the current folder are not meant."""
    for path in paths:
        if not path:
            raise InvalidInput("the name of a file or folder is empty; write . for the current folder")
        if path != STDIN and Path(path).is_dir():
            yield from sorted(_files_below(Path(path)))
        else:
            yield path


def _files_below(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in _ENDINGS and not hidden and path.is_file():
            yield str(path)


def read_bytes(name: str) -> bytes:
    """Raises UnreadableFile."""
    if name == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror}", about=name) from error


# -- a world

# Options are plain assignments: typer does not look through a `type` statement.
FilesOption = Annotated[
    list[str],
    typer.Option("--file", "-f", help="Manifests: a file, a folder, or - for standard input; can be repeated."),
]
SlicesOption = Annotated[
    list[str],
    typer.Option("--slices", help="Files with objects of the cluster: slices, classes, nodes, claims in use."),
]
ModelsOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        metavar="MODEL[:N],…",
        help="Add simulated nodes of these models to the nodes in files: gb200:2 or dgx-h100,t4.",
        show_default=False,
    ),
]
KubernetesOption = Annotated[
    str, typer.Option("--kubernetes", help="Kubernetes version whose scheduler to follow, such as 1.36.")
]
StepsOption = Annotated[
    int,
    typer.Option("--steps", min=1, help="Devices to try for each pod or claim on a node before the search gives up."),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.1, metavar="SECONDS", help="Give up after this time; the rest is reported as not decided."
    ),
]
LONGEST_S = 60.0
CURRENT_VERSION = f"1.{CURRENT}"


def limit_of(steps: int, timeout_s: float) -> Limit:
    """From now on."""
    return Limit(steps, deadline(timeout_s))


def deadline(after_s: float) -> Callable[[], bool]:
    """Whether so much time has gone by since this was called."""
    end = time.monotonic() + after_s
    return lambda: time.monotonic() > end


def world_in(files: Sequence[str], kubernetes: str, models: str | None) -> World:
    """All objects of the files. DeviceClasses that they lack are those that come with the driver.

    `kubernetes` is a version like `1.36`. `models` are nodes as of ModelsOption, published as the policies among the
    files say; the labels of a node are those of the Node of its name in the files, and without one it has all labels
    that policies select. Raises InvalidInput with all objects that are not valid, and UnreadableFile.
    """
    # As in `dra_driver.cli.reading.session`: what is read stays until the command ends.
    gc.disable()
    return world_of_documents(read_files(files).raise_problems(), kubernetes, models)


def world_of_documents(documents: Sequence[Document], kubernetes: str, models: str | None) -> World:
    """As `world_in`."""
    minor = named_minor(kubernetes)
    if minor < OLDEST:
        raise InvalidInput(f"claims of resource.k8s.io/v1 need Kubernetes 1.{OLDEST} or later", about="--kubernetes")
    objects = [obj for document in (*shipped_classes(), *documents) for obj in _expanded(document)]
    if models is not None:
        objects += objects_of_models(models, [document.obj for document in documents])
    loaded = world_of(objects, behavior=Behavior.of(minor))
    if loaded.problems:
        # Lines of JSON are known only when it is read once more, as YAML, which takes long.
        about = {id(document.obj): f"{document.file}:{document.line}" for document in documents}
        loaded = world_of(objects, behavior=Behavior.of(minor), about=about)
        raise InvalidInput("\n".join(map(str, loaded.problems)), problems=[str(problem) for problem in loaded.problems])
    return loaded.world


def _expanded(document: Document) -> list[JsonObject]:
    """The pods of a workload, what is in the output of `dractl inventory -o yaml`, or the object itself."""
    obj = document.obj
    if not document.kind and isinstance(obj.get("slices"), list):
        return [item for item in (obj.get("inventory"), *obj["slices"]) if isinstance(item, dict)]
    return list(objects_of_workload(obj)) or _objects_of_framework(obj) or [obj]


def _objects_of_framework(obj: JsonObject) -> list[JsonObject]:
    """The pods of a LeaderWorkerSet, PyTorchJob and others, as the simulated cluster makes them; none of other kinds,
    and of objects that are not valid, which is for `dractl check` to say."""
    group = str(obj.get("apiVersion")).partition("/")[0]
    if "." not in group or group in _PLAIN_GROUPS or not isinstance(obj.get("spec"), dict):
        return []
    # The simulated cluster takes longer to import than most files take to explain.
    from dra_driver.simulation.workloads.frameworks import FRAMEWORKS

    kind = (obj.get("apiVersion"), obj.get("kind"))
    framework = next((item for item in FRAMEWORKS if (item.resource.api_version, item.resource.kind) == kind), None)
    if framework is None:
        return []
    try:
        owner = {**obj, "metadata": {"namespace": DEFAULT_NAMESPACE, "uid": "made", **obj["metadata"]}}
        children = list(framework.children(owner, ()))
    except (KeyError, TypeError, AttributeError, ValueError):
        return []
    pods = [child for child in children if child["kind"] == PODS.kind]
    return pods + [made for child in children for made in objects_of_workload(child)]


_PLAIN_GROUPS = (RESOURCE_SLICES.group, NODE_INVENTORIES.group)
"""They have no frameworks, and most objects of a large cluster are theirs."""


def objects_of_models(models: str, objects: Sequence[JsonObject]) -> list[JsonObject]:
    """What nodes of these models publish, as the policies among the objects say. Raises InvalidInput."""
    # The simulated cluster behind these names takes longer to import than most files take to explain.
    from dra_driver.api.gpupolicy import rules_among
    from dra_driver.simulation.cluster import parse_nodes

    labels = {
        view.name: tuple(view.labels.items())
        for view in (NodeView.read(obj) for obj in objects if obj.get("kind") == NODES.kind)
    }
    rules = rules_among(objects)
    anyhow = rules.selecting(_with_any_labels)
    return [
        obj
        for node in parse_nodes(models)
        for obj in (
            objects_of_node(replace(node, labels=labels[node.name]), rules)
            if node.name in labels
            else objects_of_node(node, anyhow)
        )
    ]


def _with_any_labels(nodes: "NodeSelection | None") -> "NodeSelection | None":
    """Which labels a node has is not known if the files lack its Node object, so it has all that rules select."""
    return None if nodes is None else nodes.model_copy(update={"label_selector": None})


def objects_of_node(
    node: "SimulatedNode", policy: "PublishingPolicy", features: ServerFeatures = ALL_FEATURES
) -> list[JsonObject]:
    """What a simulated node publishes while no claim uses it."""
    from dra_driver.checking import knowledge

    if names_record(node.profile):
        from dra_driver.simulation.cluster import inventory_of_model

        inventory = NodeInventorySpec.of(inventory_of_model(f"{node.profile}:{node.index}"))
    else:
        inventory = knowledge.inventory_of_model(node.profile)
    objects = knowledge.objects_of_inventory(inventory, node.name, policy, dict(node.labels), features)
    if node.nics:
        from dra_driver.simulation.nics import nic_slice

        slices = [ResourceSlice.of(obj) for obj in objects if obj["kind"] == RESOURCE_SLICES.kind]
        objects.append(nic_slice(node.name, slices))
    return objects
