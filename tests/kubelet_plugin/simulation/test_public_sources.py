"""The simulated models against what others publish of them, number by number; what differs on purpose has its reason.

The tables here are facts of those sources (`kubelet_plugin/simulation/sources.yaml` says where each is). Where
GPU_DRA_TEST_SOURCES names clones of them (`tests/support/public_sources.py`), the tables are compared with these, too.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support import public_sources
from support.public_sources import Board

import kubelet_plugin.hardware
from docs.from_code.hardware import confirmed
from kubelet_plugin.simulation.profiles import Profile, load_profile, profile_names

CAPTURES = {
    # nvidia-smi of real nodes, in NVIDIA/k8s-test-infra
    "a100": Board("NVIDIA A100-SXM4-40GB", 14, 7, None, None, 40960, 0x20B0, 0x134F, 400000, 4, 1, True, "92.00.45.00.03", (7,)),
    "b200": Board("NVIDIA B200", 14, 10, None, None, 183359, 0x2901, 0x1999, 1000000, 5, 0, True, "97.00.FA.00.09", (6, 8, 7, 5, 2, 4, 3, 1), None, (0, 1, 0x080)),
    "gb200": Board("NVIDIA GB200", 14, 10, None, None, 189471, 0x2941, 0x2046, 1200000, 5, 2, True, "97.00.B9.00.69", (2, 1, 4, 3), None, (2, 1, 0x0AA)),
    "gb300": Board("NVIDIA GB300", 14, 10, None, None, 284208, 0x31C2, 0x21F1, 1400000, 6, 2, True, "97.10.4A.00.1A", (2, 1, 4, 3), None, (32766, 1, 0x1AA)),
    "h100": Board("NVIDIA H100 80GB HBM3", 14, 9, None, None, 81559, 0x2330, 0x16C1, 700000, 5, 1, True, "96.00.99.00.01", (7, 5, 6, 8, 1, 3, 4, 2), None, (0, 0, 0)),
    "l40s": Board("NVIDIA L40S", 14, 8, None, None, 46068, 0x26B9, 0x1851, 350000, 4, 1, True, "95.02.66.00.15", (1,)),
    "t4": Board("Tesla T4", 14, 6, None, None, 15360, 0x1EB8, 0x12A2, 70000, 3, 1, True, "90.04.96.00.02", (1,)),
}  # fmt: skip
GLS = {
    "A10": Board("NVIDIA A10", 14, 7, (8, 6), 9216, 23028, 0x2236, 0x1482, 150000, 4, 0, True, "94.02.5C.00.04", (1,)),
    "L4": Board("NVIDIA L4", 14, 8, (8, 9), 7424, 23034, 0x27B8, 0x16CA, 72000, 4, 0, True, "95.04.29.00.06", (1,)),
    "V100_x8": Board("Tesla V100-SXM2-16GB", 2, 5, (7, 0), 5120, 16384, 0x1DB1, 0x1212, 300000, 3, None, True, "88.00.4F.00.09", (4, 3, 4, 3, 4, 3, 4, 3)),
    "RTX6000Ada_x8": Board("NVIDIA RTX 6000 Ada Generation", 13, 8, (8, 9), 18176, 49140, 0x26B1, 0x16A1, 300000, 4, 0, False, "95.02.59.00.09", (1,) * 8),
    "A100SXMx4": Board("NVIDIA A100-SXM4-80GB", 14, 7, (8, 0), 6912, 81920, 0x20B2, 0x147F, 500000, 4, 0, True, "92.00.9E.00.02", (3, 7, 5, 6)),
    "H100NVLx2": Board("NVIDIA H100 NVL", 14, 9, (9, 0), 16896, 95830, 0x2321, 0x1839, 310000, 5, 0, True, "96.00.74.00.11", (4, 4)),
    "H100SXMx8": Board("NVIDIA H100 80GB HBM3", 14, 9, (9, 0), 16896, 81559, 0x2330, 0x16C1, 700000, 5, 0, True, "96.00.74.00.01"),
    "H200": Board("NVIDIA H200", 14, 9, (9, 0), 16896, 143771, 0x2335, 0x18BE, 700000, 5, 0, True, "96.00.A5.00.03", (3,)),
    "GH200": Board("NVIDIA GH200 480GB", 14, 9, (9, 0), 16896, 97871, 0x2342, 0x1809, 900000, 4, 2, True, "96.00.8D.00.03", (1,)),
    "L40S": Board("NVIDIA L40S", 14, 8, (8, 9), 18176, 46068, 0x26B9, 0x1851, 350000, 4, 0, True, "95.02.66.00.02", (1,)),
}  # fmt: skip
MOCK = {
    # What NVIDIA made up for the mock NVML
    "a100": Board("NVIDIA A100-SXM4-40GB", 14, 7, (8, 0), 6912, 40960, 0x20B0, 0x1347, 400000, 4, None, True, "92.00.45.00.03", None, 12),
    "b200": Board("NVIDIA B200", 14, 10, (10, 0), 18432, 196608, 0x2340, 0x1818, 1000000, 6, None, True, "96.00.A0.00.01", None, 18),
    "gb200": Board("NVIDIA GB200", 14, 10, (10, 0), 18432, 196608, 0x2341, 0x1817, 1000000, 6, None, True, "96.00.9E.00.01", None, 18),
    "gb300": Board("NVIDIA GB300 NVL", 14, 10, (10, 0), 21632, 294912, 0x2941, 0x1830, 1400000, 6, None, True, "97.00.41.00.01", None, 18),
    "h100": Board("NVIDIA H100 80GB HBM3", 14, 9, (9, 0), 16896, 81920, 0x2330, 0x1658, 700000, 5, None, True, "96.00.74.00.09", None, 18),
    "l40s": Board("NVIDIA L40S", 14, 8, (8, 9), 18176, 49152, 0x26B5, 0x1697, 350000, 4, None, True, "95.02.5C.00.03"),
    "t4": Board("NVIDIA T4", 14, 6, (7, 5), 2560, 16384, 0x1EB8, 0x12A2, 70000, 3, None, True, "90.04.84.00.06"),
}  # fmt: skip
LISTINGS = {
    # nvidia-smi tables in several public places
    "a100-pcie-40": Board("NVIDIA A100-PCIE-40GB", cores=6912, memory_mib=40960, power_limit_mw=250000),
    "a100-pcie-80": Board("NVIDIA A100 80GB PCIe", cores=6912, memory_mib=81920, power_limit_mw=300000),
    "a30": Board("NVIDIA A30", memory_mib=24576, power_limit_mw=165000),
    "h200-nvl": Board("NVIDIA H200 NVL", cores=16896, memory_mib=143771, power_limit_mw=600000),
    "hgx-b300": Board("NVIDIA B300 SXM6 AC", compute_capability=(10, 3), cores=18944, memory_mib=275040, power_limit_mw=1100000),
    "dgx-b200": Board("NVIDIA B200", cores=18944, memory_mib=183359, power_limit_mw=1000000),
    "gb300": Board("NVIDIA GB300", compute_capability=(10, 3), memory_mib=284208, power_limit_mw=1400000),
    "rtx-pro-6000": Board(memory_mib=97887, power_limit_mw=600000, ecc=True),
}  # fmt: skip
NAMES = {
    # PCI device and subsystem in NVIDIA's kernel modules; 0 is any other subsystem
    (0x1EB8, 0x12A2): "Tesla T4", (0x20B0, 0): "NVIDIA A100-SXM4-40GB", (0x20B2, 0x1463): "NVIDIA A100-SXM4-80GB",
    (0x20B5, 0x1533): "NVIDIA A100 80GB PCIe", (0x20B7, 0x1532): "NVIDIA A30", (0x20F1, 0x145F): "NVIDIA A100-PCIE-40GB",
    (0x2236, 0x1482): "NVIDIA A10", (0x2321, 0x1839): "NVIDIA H100 NVL", (0x2330, 0x16C1): "NVIDIA H100 80GB HBM3",
    (0x2335, 0x18BE): "NVIDIA H200", (0x233B, 0x1996): "NVIDIA H200 NVL", (0x2342, 0x1809): "NVIDIA GH200 480GB",
    (0x26B1, 0x16A1): "NVIDIA RTX 6000 Ada Generation", (0x26B9, 0x1851): "NVIDIA L40S", (0x27B8, 0x16CA): "NVIDIA L4",
    (0x2901, 0x1999): "NVIDIA B200", (0x2941, 0x2046): "NVIDIA GB200", (0x2E12, 0x21EC): "NVIDIA GB10",
    (0x2BB5, 0x204E): "NVIDIA RTX PRO 6000 Blackwell Server Edition", (0x3182, 0x20E6): "NVIDIA B300 SXM6 AC",
    (0x31C2, 0x21F1): "NVIDIA GB300",
}  # fmt: skip

PROFILE_OF = {
    "A10": "a10", "L4": "l4", "V100_x8": "v100", "RTX6000Ada_x8": "rtx-6000-ada", "A100SXMx4": "dgx-a100-80",
    "H100NVLx2": "h100-nvl", "H100SXMx8": "dgx-h100", "H200": "hgx-h200", "GH200": "gh200", "L40S": "l40s",
    "a100": "dgx-a100-40", "b200": "dgx-b200", "h100": "dgx-h100",
}  # fmt: skip
"""Where the names differ."""

_KERNEL = "it depends on the node's kernel and driver, whether the GPU reaches the host's memory"
_BOARD = "boards and firmware of one model differ; the profile has another board's"
_MADE_UP = "the mock's number is made up; that of real boards is known"
DIFFERENCES: Mapping[tuple[str, str, str], str] = {
    ("smi", "dgx-a100-40", "modules"): "the capture has one GPU of a virtual machine; the profile counts from 1",
    ("smi", "gb200", "fabric"): "racks are partitioned differently; the profile has GB300's whole rack",
    ("gls", "dgx-a100-80", "modules"): "the machine is no DGX; the profile counts from 1",
    ("gls", "dgx-a100-80", "pci_subsystem"): _BOARD,
    ("gls", "dgx-a100-80", "power_limit_mw"): "a board of 500 W; those of a DGX A100 have 400 W",
    ("gls", "dgx-a100-80", "vbios"): _BOARD,
    ("gls", "dgx-h100", "addressing_mode"): _KERNEL,
    ("gls", "dgx-h100", "vbios"): _BOARD,
    ("gls", "h100-nvl", "addressing_mode"): _KERNEL,
    ("gls", "hgx-h200", "addressing_mode"): _KERNEL,
    ("gls", "hgx-h200", "modules"): "the machine has one GPU of a base board; the profile counts from 1",
    ("gls", "l40s", "addressing_mode"): _KERNEL,
    ("gls", "l40s", "vbios"): _BOARD,
    **{
        ("mock", profile, field): _MADE_UP
        for profile, fields in {
            "dgx-a100-40": "pci_subsystem",
            "dgx-b200": "cores memory_mib pci_device pci_subsystem pcie_generation vbios",
            "dgx-h100": "memory_mib pci_subsystem vbios",
            "gb200": "cores memory_mib pci_device pci_subsystem power_limit_mw pcie_generation vbios",
            "gb300": "name compute_capability cores memory_mib pci_device pci_subsystem vbios",
            "l40s": "memory_mib pci_device pci_subsystem vbios",
            "t4": "name memory_mib vbios",
        }.items()
        for field in fields.split()
    },
}
SOURCES = {"smi": CAPTURES, "gls": GLS, "mock": MOCK, "listings": LISTINGS}


def ours(profile: Profile, modules: int) -> Board:
    """The profile in the words of a source; as many module ids as the source has."""
    model, fabric = profile.gpu, profile.fabric
    asked = "nvmlDeviceGetAddressingMode" not in profile.driver.missing
    return Board(
        model.name, model.brand, model.architecture, model.compute_capability, model.cores, model.memory_mib,
        model.pci_device, model.pci_subsystem, model.power_limit_mw, model.pcie_generation,
        model.addressing_mode if asked else None, model.ecc, model.vbios,
        tuple(place.module or 0 for place in profile.gpus[:modules]),
        model.nvlink.links if model.nvlink else None, (fabric.clique, fabric.summary, fabric.mask) if fabric else None,
    )  # fmt: skip


def different(source: str, boards: Mapping[str, Board]) -> set[tuple[str, str, str]]:
    """The fields of profiles that are not what the source says. An addressing mode that no call reads is left out."""
    differing = set()
    for board, theirs in boards.items():
        name = PROFILE_OF.get(board, board)
        mine = ours(load_profile(name), len(theirs.modules or ()))
        for field in Board._fields:
            published, own = getattr(theirs, field), getattr(mine, field)
            if published is not None and published != own and (field != "addressing_mode" or own is not None):
                differing.add((source, name, field))
    return differing


class TestProfiles:
    @pytest.mark.parametrize("source", SOURCES)
    def test_each_number_is_that_of_the_source_but_for_known_differences(self, source: str) -> None:
        assert different(source, SOURCES[source]) == {key for key in DIFFERENCES if key[0] == source}

    def test_no_profile_names_a_source_for_a_number_that_differs_from_it(self) -> None:
        """`smi-h100` is of the captures, `mock-nvml` of the mock: what it is said to confirm, it has."""
        words = {"smi": "smi-", "gls": "gls", "mock": "mock-nvml", "listings": "listings"}
        for source, name, field in DIFFERENCES:
            named = confirmed(load_profile(name).sources, {"nvlinks": "nvlink"}.get(field, field))
            of = name.removeprefix("dgx-").removesuffix("-40")
            wanted = f"smi-{of}" if source == "smi" else words[source]
            assert wanted not in named, (source, name, field)

    def test_names_belong_to_the_pci_ids(self) -> None:
        profiles = {name: load_profile(name).gpu for name in profile_names()}
        own = {name: gpu for name, gpu in profiles.items() if name != "v100"}
        for gpu in own.values():
            key = (gpu.pci_device, gpu.pci_subsystem)
            assert gpu.name == NAMES.get(key, NAMES.get((gpu.pci_device, 0)))
        assert len(NAMES) == len({(gpu.pci_device, gpu.name) for gpu in own.values()})

    @pytest.mark.parametrize("name", profile_names())
    def test_a_driver_lacks_what_came_after_it_and_has_the_cuda_of_its_line(self, name: str) -> None:
        driver = load_profile(name).driver
        line = int(driver.version.partition(".")[0])
        assert driver.cuda == {550: 12040, 570: 12080, 580: 13000}[line]
        assert driver.missing == (["nvmlDeviceGetAddressingMode", "nvmlDeviceGetRepairStatus"] if line < 580 else [])


class TestClones:
    """The tables above are what the sources have."""

    def test_captures(self) -> None:
        captures = dict(public_sources.captures())
        assert {name: captures[name] for name in CAPTURES} == CAPTURES

    def test_mock(self) -> None:
        boards = dict(public_sources.mock_boards())
        assert {name: boards[name] for name in MOCK} == MOCK

    @pytest.mark.parametrize("name", GLS)
    def test_gls(self, name: str) -> None:
        assert public_sources.gls_board(name) == GLS[name]

    def test_names(self) -> None:
        names = public_sources.driver_names()
        assert {key: names.get(key) for key in NAMES} == NAMES

    @pytest.mark.parametrize(("line", "tag"), [(550, "v0.12.4-1"), (570, "v0.12.8-0"), (580, "v0.13.0-0")])
    def test_functions_that_a_driver_lacks(self, line: int, tag: str) -> None:
        """Of those that the node plugin calls by their names in the code; the header names some with a version."""
        header = public_sources.nvml_header(tag)
        folder = Path(kubelet_plugin.hardware.__file__).parent
        code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
        called = {
            name for name in public_sources.NVML_FUNCTION.findall(code) if name != "nvmlDeviceGpuRecoveryAction_t"
        }
        lacking = sorted(name for name in called if name not in header)
        assert len(called) > 40
        profiles = [load_profile(name).driver for name in profile_names()]
        assert all(driver.missing == lacking for driver in profiles if driver.version.startswith(f"{line}."))
