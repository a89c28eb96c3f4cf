"""Labels of nodes by which autoscalers know GPUs. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from dra_driver.api.documents import Document
from dra_driver.migration.codes import AUTOSCALER
from dra_driver.migration.model import Finding, finding, value_at

_GPU = "nvidia.com/gpu"
_GPU_LABELS: Mapping[str, str] = {
    "k8s.amazonaws.com/accelerator": "AWS",
    "kubernetes.azure.com/accelerator": "Azure",
    "accelerator": "Azure",
    "cluster-api/accelerator": "Cluster API",
    "cloud.google.com/gke-accelerator": "Google Cloud",
}
"""By which the autoscaler knows nodes with GPUs, by cloud."""
_GOOGLE_DRIVER = "cloud.google.com/gke-gpu-dra-driver"


def labels_of_nodes(nodes: Iterable[Document]) -> Iterator[Finding]:
    """One for each label. The autoscaler takes a node with it for unready while `nvidia.com/gpu` is not there."""
    seen: set[str] = set()
    for document in nodes:
        labels = value_at(document.obj, ("metadata", "labels"))
        capacity = value_at(document.obj, ("status", "capacity"))
        if not any(key.startswith("nvidia.com/") for one in (labels, capacity) for key in _keys(one)):
            continue
        for label in sorted(_GPU_LABELS.keys() & labels.keys()) if isinstance(labels, dict) else ():
            if label in seen or labels.get(_GOOGLE_DRIVER) == "true":
                continue
            seen.add(label)
            message = (
                f"the Cluster Autoscaler ({_GPU_LABELS[label]}) knows nodes with GPUs by this label, and takes one "
                f"that has no {_GPU} for unready, which those of the driver are"
            )
            advice = (
                f"Label the nodes of the driver `{_GOOGLE_DRIVER}: \"true\"`, which autoscalers from 1.35 on heed."
                if label.startswith("cloud.google.com")
                else "Where it manages these nodes, leave the label off the groups of the driver's nodes."
            )  # fmt: skip
            yield finding(AUTOSCALER, document, ("metadata", "labels", label), message, advice=advice)


def _keys(value: object) -> Iterator[str]:
    yield from map(str, value if isinstance(value, dict) else ())
