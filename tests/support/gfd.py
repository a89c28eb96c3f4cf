"""The labels that GPU Feature Discovery puts on a node, made of what its driver and GPUs say, not of what we publish.

It judges `migration.labels`, and is itself judged by the real one, of version 0.20: see test_real_gfd.
"""

import re
from dataclasses import dataclass
from typing import Literal

from dra_driver.api.inventory import GpuFacts, MigProfileFacts, NodeInventorySpec

_NVIDIA = "nvidia.com/"


@dataclass(frozen=True)
class Mode:
    """How a device plugin was set up on the node."""

    mig: Literal["none", "single", "mixed"] = "none"
    profile: str | None = None
    """Of all MIG devices of the node."""
    replicas: int = 1
    strategy: Literal["none", "time-slicing", "mps"] = "none"
    renamed: bool = False


def labels_of(node: NodeInventorySpec, mode: Mode) -> dict[str, str]:
    """Of a node whose GPUs are alike."""
    gpu, driver = node.gpus[0], node.driver
    assert driver is not None
    profile = _profile(gpu, mode)
    labels = {
        "gpu.present": "true",
        "gpu.count": str(len(node.gpus)),
        "gpu.product": _product(gpu.product_name) + ("" if mode.mig == "mixed" else _shared(mode)),
        "gpu.family": _family(*map(int, gpu.cuda_compute_capability.split("."))),
        "gpu.compute.major": gpu.cuda_compute_capability.split(".")[0],
        "gpu.compute.minor": gpu.cuda_compute_capability.split(".")[1],
        "gpu.replicas": "1" if mode.mig == "mixed" else str(mode.replicas),
        "gpu.sharing-strategy": "none" if mode.mig == "mixed" else mode.strategy,
        "mig.capable": str(gpu.mig is not None).lower(),
        "mps.capable": str(mode.strategy == "mps").lower(),
        **_versions("cuda.driver", "cuda.driver-version", driver.version, ("major", "minor", "rev", "revision")),
        **_versions("cuda.runtime", "cuda.runtime-version", driver.cuda_version, ("major", "minor")),
    }
    if mode.mig != "none":
        labels["mig.strategy"] = mode.mig
    if gpu.memory_bytes is not None:
        labels["gpu.memory"] = str(gpu.memory_bytes >> 20)
    if gpu.fabric is not None and gpu.fabric.clique is not None:
        labels["gpu.clique"] = gpu.fabric.clique
    if profile is not None and mode.mig == "single":
        labels |= {f"gpu.{name}": value for name, value in _mig_device(profile).items()}
        labels["gpu.product"] = f"{_product(gpu.product_name)}-MIG-{_written(profile.name)}{_shared(mode)}"
    if profile is not None and mode.mig == "mixed":
        name = f"mig-{_written(profile.name)}"
        of_profile = {
            **_mig_device(profile),
            "product": f"{_product(gpu.product_name)}-MIG-{_written(profile.name)}{_shared(mode)}",
            "replicas": str(mode.replicas),
            "sharing-strategy": mode.strategy,
        }
        labels |= {f"{name}.{part}": value for part, value in of_profile.items()}
    return {f"{_NVIDIA}{name}": value for name, value in labels.items()}


def _profile(gpu: GpuFacts, mode: Mode) -> MigProfileFacts | None:
    profiles = gpu.mig.profiles if gpu.mig is not None else []
    return next((candidate for candidate in profiles if candidate.name == mode.profile), None)


def _shared(mode: Mode) -> str:
    return "-SHARED" if mode.replicas > 1 and not mode.renamed else ""


def _product(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9\-_. ]", "", name).replace(" ", "-")


def _written(profile: str) -> str:
    return profile.replace("+", ".")


def _family(major: int, minor: int) -> str:
    match major:
        case 7:
            return "turing" if minor == 5 else "volta"
        case 8:
            return "ada-lovelace" if minor == 9 else "ampere"
        case 9:
            return "hopper"
        case 10 | 12:
            return "blackwell"
    return "undefined"


def _versions(old: str, new: str, version: str, names: tuple[str, ...]) -> dict[str, str]:
    parts = version.split(".")
    labels = {f"{new}.full": version}
    for name in names:
        part = parts[{"major": 0, "minor": 1}.get(name, 2)]
        if name != "revision":
            labels[f"{old}.{name}"] = part
        if name != "rev":
            labels[f"{new}.{name}"] = part
    return labels


def _mig_device(profile: MigProfileFacts) -> dict[str, str]:
    return {
        "memory": str(profile.memory_bytes >> 20),
        "multiprocessors": str(profile.multiprocessors),
        "slices.gi": str(profile.slices),
        "slices.ci": str(profile.slices),
        "engines.copy": str(profile.copy_engines),
        "engines.decoder": str(profile.decoders),
        "engines.encoder": str(profile.encoders),
        "engines.jpeg": str(profile.jpeg_engines),
        "engines.ofa": str(profile.ofa_engines),
    }
