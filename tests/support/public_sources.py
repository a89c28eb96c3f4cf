"""Numbers of GPU models in other projects' files, read as they are there.

GPU_DRA_TEST_SOURCES   a folder with clones of NVIDIA's `k8s-test-infra`, `go-nvml`, `open-gpu-kernel-modules` and
                       `mig-parted`, and of thamada's `gls`, each called so; those that lack are not compared

A clone that GPU_DRA_TEST_MOCK_NVML names stands for `k8s-test-infra`, too.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pynvml
import pytest
import yaml

_FOLDER = os.environ.get("GPU_DRA_TEST_SOURCES", "")
_MOCK = os.environ.get("GPU_DRA_TEST_MOCK_NVML", "")
_HARDWARE = "tests/e2e/go/assertions/nvidiasmi/testdata/hardware"
_MOCK_PROFILES = "deployments/nvml-mock/helm/nvml-mock/profiles"

_BRANDS = {
    "NVIDIA": pynvml.NVML_BRAND_NVIDIA,
    "NVIDIA RTX": pynvml.NVML_BRAND_NVIDIA_RTX,
    "Tesla": pynvml.NVML_BRAND_TESLA,
}
_ARCHITECTURES = {
    "Volta": pynvml.NVML_DEVICE_ARCH_VOLTA, "Turing": pynvml.NVML_DEVICE_ARCH_TURING,
    "Ampere": pynvml.NVML_DEVICE_ARCH_AMPERE, "Ada Lovelace": pynvml.NVML_DEVICE_ARCH_ADA,
    "Hopper": pynvml.NVML_DEVICE_ARCH_HOPPER, "Blackwell": pynvml.NVML_DEVICE_ARCH_BLACKWELL,
}  # fmt: skip
NVML_FUNCTION = re.compile(r"\bnvml(?:Device|System|Init|Shutdown|EventSet|GpuInstance|ComputeInstance)\w*")
"""Names of C functions in code."""

_ADDRESSING = {"None": 0, "HMM": 1, "ATS": 2}


class Board(NamedTuple):
    """What a source says of a model; None where it says nothing. Numbers as in a profile; `modules` by NVML's index.

    `fabric`: clique, and the health of the fabric as NVML has it, summary and mask.
    """

    name: str | None = None
    brand: int | None = None
    architecture: int | None = None
    compute_capability: tuple[int, int] | None = None
    cores: int | None = None
    memory_mib: int | None = None
    pci_device: int | None = None
    pci_subsystem: int | None = None
    power_limit_mw: int | None = None
    pcie_generation: int | None = None
    addressing_mode: int | None = None
    ecc: bool | None = None
    vbios: str | None = None
    modules: tuple[int, ...] | None = None
    nvlinks: int | None = None
    fabric: tuple[int, int, int] | None = None


class Instance(NamedTuple):
    """A kind of GPU instance, as go-nvml has it."""

    max: int
    mib: int
    sm: int
    engines: tuple[int, ...]
    placements: tuple[tuple[int, int], ...]
    id: int


def clone(name: str) -> Path:
    """Skips the test when there is no such clone."""
    for place in (
        Path(_FOLDER, name) if _FOLDER else None,
        Path(_MOCK) if name == "k8s-test-infra" and _MOCK else None,
    ):
        if place is not None and place.is_dir():
            return place
    pytest.skip(f"no clone of {name}: set GPU_DRA_TEST_SOURCES to a folder that has one")


def board_of_capture(path: Path) -> Board:
    """Of `nvidia-smi -q -x`."""
    root = ElementTree.parse(path).getroot()
    gpus = root.findall("gpu")
    first = gpus[0]

    def text(name: str) -> str:
        return (first.findtext(name) or "").strip()

    return Board(
        name=text("product_name"),
        brand=_BRANDS[text("product_brand")],
        architecture=_ARCHITECTURES[text("product_architecture")],
        memory_mib=int(text("fb_memory_usage/total").split()[0]),
        pci_device=int(text("pci/pci_device_id")[:4], 16),
        pci_subsystem=int(text("pci/pci_sub_system_id")[:4], 16),
        power_limit_mw=round(float(text("gpu_power_readings/default_power_limit").split()[0]) * 1000),
        pcie_generation=int(text("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
        addressing_mode=_ADDRESSING[text("addressing_mode")],
        ecc=text("ecc_mode/current_ecc") == "Enabled",
        vbios=text("vbios_version"),
        modules=tuple(int(gpu.findtext("platformInfo/module_id") or "") for gpu in gpus),
        fabric=_fabric(first),
    )


def _fabric(gpu: ElementTree.Element) -> tuple[int, int, int] | None:
    if not (clique := gpu.findtext("fabric/cliqueId") or "").isdigit():
        return None

    def bits(name: str, words: Mapping[str, int], shift: int) -> int:
        return words.get(gpu.findtext(f"fabric/health/{name}") or "", 0) << shift

    truth = {"True": 1, "False": 2}
    mask = (
        bits("bandwidth", {"Degraded": 1, "Full": 2}, pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW)
        | bits("route_recovery_in_progress", truth, pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY)
        | bits("route_unhealthy", truth, pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY)
        | bits("access_timeout_recovery", truth, pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY)
        | bits("incorrect_configuration", {"None": 1}, pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION)
    )
    return int(clique), bits("summary", {"Healthy": 1, "Unhealthy": 2, "Limited Capacity": 3}, 0), mask


def captures() -> Iterator[tuple[str, Board]]:
    for path in sorted((clone("k8s-test-infra") / _HARDWARE).glob("qx-*.xml")):
        yield path.stem.removeprefix("qx-"), board_of_capture(path)


def mock_boards() -> Iterator[tuple[str, Board]]:
    """Of the mock NVML's profiles."""
    for path in sorted((clone("k8s-test-infra") / _MOCK_PROFILES).glob("*.yaml")):
        document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        gpu = document["device_defaults"]
        words = {name.replace(" ", "_").lower(): number for name, number in _ARCHITECTURES.items()}
        if gpu["architecture"] not in words:
            continue
        yield (
            path.stem,
            Board(
                name=gpu["name"],
                brand=_BRANDS[gpu["brand"].upper()],
                architecture=words[gpu["architecture"]],
                compute_capability=(gpu["compute_capability"]["major"], gpu["compute_capability"]["minor"]),
                cores=gpu["num_gpu_cores"],
                memory_mib=gpu["memory"]["total_bytes"] >> 20,
                pci_device=gpu["pci"]["device_id"] >> 16,
                pci_subsystem=gpu["pci"]["subsystem_id"] >> 16,
                power_limit_mw=gpu["power"]["default_limit_mw"],
                pcie_generation=gpu["pcie"]["max_link_gen"],
                ecc=gpu["ecc"]["mode_current"] == "enabled",
                vbios=gpu["vbios_version"],
                nvlinks=document.get("nvlink", {}).get("links_per_gpu"),
            ),
        )


def gls_board(name: str) -> Board:
    """Of `nvidia-smi -q` and `deviceQuery`, both kept as text in a module."""
    text = (clone("gls") / "gls" / f"{name}_smi.py").read_text(encoding="utf-8")
    query = (clone("gls") / "gls" / f"{name}_deviceQuery.py").read_text(encoding="utf-8")
    text = text[text.index("Attached GPUs") :]

    def value(pattern: str, where: str = text) -> str:
        match = re.search(pattern, where)
        return match[1].strip() if match else ""

    addressing, link = value(r"Addressing Mode +: (.+)"), value(r"PCIe Generation\n +Max +: (\d+)")
    major, minor = value(r"Capability Major/Minor version number: +(\S+)", query).split(".")
    return Board(
        name=value(r"Product Name +: (.+)"),
        brand=_BRANDS[value(r"Product Brand +: (.+)")],
        architecture=_ARCHITECTURES[value(r"Product Architecture +: (.+)")],
        compute_capability=(int(major), int(minor)),
        cores=int(value(r"(\d+) CUDA Cores\n", query)),
        memory_mib=int(value(r"FB Memory Usage\n +Total +: (\d+)")),
        pci_device=int(value(r"Device Id +: 0x(\w{4})"), 16),
        pci_subsystem=int(value(r"Sub System Id +: 0x(\w{4})"), 16),
        power_limit_mw=round(float(value(r"Default Power Limit +: (\S+) W")) * 1000),
        pcie_generation=int(link),
        addressing_mode=_ADDRESSING.get(addressing),
        ecc=value(r"ECC Mode\n +Current +: (\w+)") == "Enabled",
        vbios=value(r"VBIOS Version +: (\S+)"),
        modules=tuple(int(module) for module in re.findall(r"Module ID +: (\d+)", text)) or None,
    )


def driver_names() -> dict[tuple[int, int], str]:
    """Product names of NVIDIA's kernel modules, by PCI device and subsystem (0: any other), without vGPUs."""
    path = clone("open-gpu-kernel-modules") / "src/nvidia/generated/g_nv_name_released.h"
    part = path.read_text(encoding="utf-8").partition("sChipsReleased[]")[2].partition("};")[0]
    rows = re.findall(r'\{ 0x(\w{4}), 0x(\w{4}), 0x(\w{4}), "([^"]+)" \}', part)
    return {
        (int(device, 16), int(subsystem, 16)): name
        for device, subsystem, vendor, name in rows
        if vendor in ("10de", "0000")
    }


def go_instances(board: str) -> dict[int, Instance]:
    """What the mock GPUs of go-nvml have for `board` (`a100_40gb`), by NVML's enumeration of profiles."""
    folder = clone("go-nvml") / "pkg/nvml"
    numbers = {
        name: int(number)
        for name, number in re.findall(
            r"(GPU_INSTANCE_PROFILE_\w+) += (\d+)", (folder / "const.go").read_text(encoding="utf-8")
        )
    }
    text = (folder / "mock/gpus" / f"{board.partition('_')[0]}.go").read_text(encoding="utf-8")
    infos = _block(text, rf"{board}_GpuInstanceProfiles += ")
    placements = _block(text, rf"{board.partition('_')[0]}_GpuInstancePlacements += ")
    starts = {
        name: tuple((int(start), int(size)) for start, size in re.findall(r"Start: (\d+), Size: (\d+)", body))
        for name, body in re.findall(r"nvml\.(\w+): \{\n(.*?)\n\t+\},\n", placements, re.DOTALL)
    }
    instances = {}
    for name, body in re.findall(r"nvml\.(GPU_INSTANCE_PROFILE_\w+): \{\n(.*?)\n\t+\},\n", infos, re.DOTALL):
        count = {key: int(value) for key, value in re.findall(r"(\w+): +(\d+),", body)}
        engines = tuple(
            count[key] for key in ("CopyEngineCount", "DecoderCount", "EncoderCount", "JpegCount", "OfaCount")
        )
        number = re.search(r"Id: +nvml\.(\w+)", body)
        assert number is not None
        instances[numbers[name]] = Instance(
            count["InstanceCount"], count["MemorySizeMB"], count["MultiprocessorCount"], engines, starts[name],
            numbers[number[1]],
        )  # fmt: skip
    return instances


def go_compute_instances(family: str) -> dict[str, dict[str, tuple[int, int]]]:
    """What compute instances go-nvml's mock GPUs of a family (`a30`) can have: how many of how many multiprocessors.

    By the words of the enumerations: `1_SLICE_REV1` for the GPU instance, `2_SLICE` for the compute instance.
    """
    text = (clone("go-nvml") / "pkg/nvml/mock/gpus" / f"{family}.go").read_text(encoding="utf-8")
    instances: dict[str, dict[str, tuple[int, int]]] = {}
    for line in _block(text, rf"{family}_ComputeInstanceProfiles += ").splitlines():
        if outer := re.search(r"nvml\.GPU_INSTANCE_PROFILE_(\w+): \{", line):
            instance = instances.setdefault(outer[1], {})
        elif inner := re.search(r"nvml\.COMPUTE_INSTANCE_PROFILE_(\w+): \{", line):
            kind = inner[1]
        elif count := re.search(r"InstanceCount: +(\d+)", line):
            instance[kind] = (int(count[1]), 0)
        elif processors := re.search(r"MultiprocessorCount: +(\d+)", line):
            instance[kind] = (instance[kind][0], int(processors[1]))
    return instances


def _block(text: str, begin: str) -> str:
    """A literal of Go from its name to the brace that closes it at the same indentation."""
    match = re.search(rf"^(\t*)(?:var )?{begin}", text, re.MULTILINE)
    assert match is not None, begin
    return text[match.end() :].partition(f"\n{match[1]}}}")[0] + "\n"


def mig_parted() -> dict[str, Any]:
    path = clone("mig-parted") / "deployments/systemd/config-default.yaml"
    configs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["mig-configs"]
    return configs


def nvml_header(tag: str) -> str:
    """`nvml.h` of a tag of go-nvml. Skips the test when the clone has no such tag."""
    command = ["git", "-C", str(clone("go-nvml")), "show", f"{tag}:gen/nvml/nvml.h"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip(f"the clone of go-nvml has no tag {tag}: run `git fetch --tags` there")
    return result.stdout
