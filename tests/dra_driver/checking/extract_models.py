"""Writes `dra_driver/checking/models.json`: what the node plugin finds on a node of each simulated profile.

Run it after a profile or NodeInventory changed: `python -m tests.dra_driver.checking.extract_models`, or as a script.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import dra_driver.checking
from dra_driver.api.inventory import NodeInventorySpec
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.reporting.reporter import wanted_spec
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.profiles import profile_names

FILE = Path(dra_driver.checking.__file__).parent / "models.json"


def inventory(profile: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        host = create_host(Path(folder), profile, 0)
        source = NvmlSource(SimulatedNvml(host.root), str(host.driver_root))
        hardware = Hardware(HostFiles(host.root), lambda: source)
        spec = wanted_spec(profile, hardware.look(), {})
        hardware.close()
    # On the wire, MIG profiles of equal GPUs are not repeated; here nothing of equal GPUs is.
    return {**spec, "gpus": [gpu.to_wire() for gpu in NodeInventorySpec.of(spec).gpus]}


def shortened(spec: dict[str, Any]) -> dict[str, Any]:
    """GPUs after the first as what differs from it; without what no device shows."""
    first, *others = spec["gpus"]
    gpus = [first, *(_difference(gpu, first) for gpu in others)]
    return {name: value for name, value in spec.items() if name != "registrations"} | {"gpus": gpus}


def _difference(gpu: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """Null where the first has something and this one has not."""
    names = [*gpu, *(name for name in first if name not in gpu)]
    return {name: gpu.get(name) for name in names if gpu.get(name) != first.get(name)}


def models() -> str:
    """One line a GPU, so that a change can be read."""
    parts = []
    for name in profile_names():
        spec = shortened(inventory(name))
        gpus = ",\n  ".join(json.dumps(gpu) for gpu in spec.pop("gpus"))
        parts.append(f'{json.dumps(name)}: {json.dumps(spec)[:-1]}, "gpus": [\n  {gpus}\n]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(models())
