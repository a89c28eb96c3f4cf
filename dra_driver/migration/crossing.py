"""Workloads of several namespaces that shared one GPU, which a ResourceClaim of one namespace cannot say. Pure."""

from collections.abc import Iterator, Sequence

from dra_driver.migration.codes import CROSS_NAMESPACE
from dra_driver.migration.model import Finding, Path, PodSpecAt, Workload, finding
from dra_driver.migration.pod_settings import uuids_of
from dra_driver.migration.variables import variables

_GROUP_LABELS = ("runai-gpu-group",)
_UUID_ANNOTATIONS = ("nvidia.com/use-gpuuuid", "volcano.sh/vgpu-use-gpuuuid")


def crossings(workloads: Sequence[Workload]) -> tuple[Finding, ...]:
    """One for each place that names a GPU which a workload of another namespace names, too."""
    users: dict[str, list[tuple[PodSpecAt, Path]]] = {}
    for workload in workloads:
        for gpu, path in _named(workload.pod):
            users.setdefault(gpu, []).append((workload.pod, path))
    return tuple(
        finding(CROSS_NAMESPACE, pod.document, path, f"{gpu} is named in {', '.join(namespaces)}")
        for gpu, places in users.items()
        if len(namespaces := sorted({_namespace(pod) for pod, _ in places})) > 1
        for pod, path in places
    )


def _namespace(pod: PodSpecAt) -> str:
    return pod.document.namespace or "default"


def _named(pod: PodSpecAt) -> Iterator[tuple[str, Path]]:
    """UUIDs of GPUs, and names of groups that share one."""
    for container in pod.containers:
        given = variables(container)
        for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            if name in given:
                yield from ((uuid, given[name].path) for uuid in uuids_of(given[name].value or ""))
    for kind, keys in (("annotations", _UUID_ANNOTATIONS), ("labels", _GROUP_LABELS)):
        values = pod.metadata.get(kind)
        for key in keys:
            value = values.get(key) if isinstance(values, dict) else None
            if isinstance(value, str) and value:
                named = uuids_of(value) if kind == "annotations" else [value]
                yield from ((one, (*pod.metadata_path, kind, key)) for one in named)
