"""The labels that are known, each with what it says, what becomes of it, and who decides: a table, also for the docs.
Pure.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.migration.codes import CLOUD_LABEL, OPERATOR_LABEL
from dra_driver.migration.demands.label_judges import (
    JudgedRequirement,
    node_only,
    of_clique,
    of_compute,
    of_count,
    of_family,
    of_gpus,
    of_memory,
    of_mig_capable,
    of_mig_config,
    of_mig_strategy,
    of_mps_capable,
    of_present,
    of_product,
    of_profile,
    of_sharing,
    of_version,
)
from dra_driver.migration.understand.labels import PROFILE, LabelVerdict, Requirement, Subject


@dataclass(frozen=True, slots=True)
class Row:
    """One label, or a family of them; `key`, `means` and `becomes` are for the docs."""

    key: str
    means: str
    becomes: str
    pattern: re.Pattern[str]
    judge: Callable[[JudgedRequirement], LabelVerdict]


def _row(
    key: str, means: str, becomes: str, judge: Callable[[JudgedRequirement], LabelVerdict], pattern: str = ""
) -> Row:
    return Row(key, means, becomes, re.compile(pattern or re.escape(key)), judge)


_MIG_PARTS = r"count|product|memory|multiprocessors|slices\.[gc]i|engines\.[a-z]+|replicas|sharing-strategy"
_PARTS_OF_GPUS = r"nvidia\.com/gpu\.(multiprocessors|slices\.[gc]i|engines\.[a-z]+)"

ROWS: tuple[Row, ...] = (
    _row("nvidia.com/gpu.product", "product", "`productName`; `-MIG-…`: the profile; `-SHARED`: `sharing`", of_product),
    _row("nvidia.com/gpu.family", "architecture", "`architecture`", of_family),
    _row("nvidia.com/gpu.memory", "memory in MiB", "capacity `memory`; equality becomes `at least`", of_memory),
    _row(
        "nvidia.com/gpu.compute.{major,minor}", "compute capability", "`cudaComputeCapability`", of_compute,
        r"nvidia\.com/gpu\.compute\.(major|minor)",
    ),
    _row(
        "nvidia.com/cuda.driver-version.{major,minor,revision}, cuda.driver.{major,minor,rev}",
        "version of the driver", "`driverVersion`", of_version("driverVersion"),
        r"nvidia\.com/cuda\.(?:driver\.(?=major|minor|rev\Z)|driver-version\.(?!rev\Z))(major|minor|revision|rev)",
    ),
    _row(
        "nvidia.com/cuda.runtime-version.{major,minor}, cuda.runtime.{major,minor}",
        "newest CUDA of the driver", "`cudaDriverVersion`", of_version("cudaDriverVersion"),
        r"nvidia\.com/cuda\.runtime(?:-version)?\.(major|minor)",
    ),
    _row("nvidia.com/gpu.count", "GPUs of the node", "implied by as many devices, else a label of the node", of_count),
    _row(
        "nvidia.com/gpu.replicas, cuda.*-version.full", "shares of a GPU; versions", "stays",
        node_only("a claim asks for shares, and compares parts of versions"),
        r"nvidia\.com/(?:gpu\.replicas|cuda\.(?:driver|runtime)-version\.full)",
    ),
    _row("nvidia.com/gpu.sharing-strategy", "how GPUs are shared", "`sharing`", of_gpus(of_sharing)),
    _row("nvidia.com/gpu.clique", "NVLink clique", "`clique`; as a topology key it stays", of_clique),
    _row("nvidia.com/mig.capable", "can be partitioned", "`migCapable`; implied by MIG devices", of_mig_capable),
    _row("nvidia.com/mig.strategy", "how resources are named", "implied by the claim", of_mig_strategy),
    _row("nvidia.com/mig.config", "layout that was ordered", "implied by the profile, else a label", of_mig_config),
    _row(
        "nvidia.com/mig.config.state", "state of the MIG manager", "stays",
        node_only("the state of the MIG manager, which no device has"),
    ),
    _row(
        "nvidia.com/mig-<profile>.*", "MIG devices under `mixed`", "memory, product, sharing; else stays", of_profile,
        rf"nvidia\.com/mig-({PROFILE}?)\.({_MIG_PARTS})",
    ),
    _row(
        "nvidia.com/gpu.{multiprocessors,slices.*,engines.*}", "MIG devices under `single`", "stays",
        node_only("a claim asks for MIG devices by their profile"), _PARTS_OF_GPUS,
    ),
    _row("nvidia.com/mps.capable", "MPS daemon on the node", "`sharing == 'mps'`", of_gpus(of_mps_capable)),
    _row("nvidia.com/gpu.present", "has a GPU", "implied", of_present),
    _row(
        "feature.node.kubernetes.io/pci-*10de*.present", "has a PCI device of NVIDIA", "implied", of_present,
        r"feature\.node\.kubernetes\.io/pci-(?:[0-9a-f]{4}_)?10de(?:[_0-9a-f]*)\.present",
    ),
    _row(
        "nvidia.com/gpu.{machine,mode}, vgpu.*, gpu.imex-domain, gfd.timestamp", "the node", "stays",
        node_only("says something about the node that no device has"),
        r"nvidia\.com/(?:gpu\.(?:machine|mode|imex-domain)|vgpu\.(?:present|host-driver-.*)|gfd\.timestamp)",
    ),
    _row(
        "nvidia.com/gpu.deploy.*, gpu.workload.config, gpu-driver-upgrade-state, device-plugin.config, vgpu.config",
        "plumbing of the GPU Operator", "stays",
        node_only("steers the GPU Operator and is not meant for workloads", OPERATOR_LABEL),
        r"nvidia\.com/(?:gpu\.deploy\..*|gpu\.workload\.config|gpu-driver-upgrade-state|device-plugin\.config"
        r"|vgpu\.config(?:\..*)?)",
    ),
    _row(
        "nvidia.com/*", "anything else", "stays", node_only("is not known here"), r"nvidia\.com/.+",
    ),
    _row(
        "cloud.google.com/gke-accelerator, karpenter.k8s.aws/instance-gpu-*, …", "pools of an autoscaler", "stays",
        node_only("selects the nodes that an autoscaler creates", CLOUD_LABEL),
        r"cloud\.google\.com/gke-(?:accelerator|gpu-).*|karpenter\.k8s\.aws/instance-gpu-.*"
        r"|eks\.amazonaws\.com/instance-gpu-.*|k8s\.amazonaws\.com/accelerator|kubernetes\.azure\.com/accelerator",
    ),
)  # fmt: skip
"""The first one whose pattern fits the key decides."""


def verdict_on(requirement: Requirement, subject: Subject) -> LabelVerdict | None:
    """None: the label has nothing to do with GPUs, and stays."""
    for row in ROWS:
        match = row.pattern.fullmatch(requirement.key)
        if match is not None:
            return row.judge(JudgedRequirement(requirement, subject, match))
    return None


def is_gpu_label(key: str) -> bool:
    return any(row.pattern.fullmatch(key) for row in ROWS)
