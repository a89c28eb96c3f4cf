"""The simulated MIG profiles against what others list and publish; what differs on purpose has its reason.

The tables here are facts of those sources. Where GPU_DRA_TEST_SOURCES names clones (`tests/support/public_sources.py`),
the whole tables of these are compared, too.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from support import public_sources

from kubelet_plugin.simulation.partitions import compute_profiles
from kubelet_plugin.simulation.profiles import MigProfile, load_mig_table, load_profile, mig_table_names, profile_names


class Line(NamedTuple):
    """Of `nvidia-smi mig -lgip`: memory as it prints it, in GiB; engines are CE, DEC, ENC, JPEG and OFA."""

    name: str
    id: int
    max: int
    memory: str
    sm: int
    engines: tuple[int, int, int, int, int]


LISTED = {
    # The lines that NVIDIA/mig-parted #120, #187, #227, NVIDIA/gpu-operator #900 and the pull request 564 of
    # GoogleCloudPlatform/container-engine-accelerators quote from hardware
    "h200": [
        Line("1g.18gb", 19, 7, "16.00", 16, (1, 1, 0, 1, 0)), Line("1g.18gb+me", 20, 1, "16.00", 16, (1, 1, 0, 1, 1)),
        Line("1g.35gb", 15, 4, "32.25", 26, (1, 1, 0, 1, 0)), Line("2g.35gb", 14, 3, "32.25", 32, (2, 2, 0, 2, 0)),
        Line("3g.71gb", 9, 2, "69.50", 60, (3, 3, 0, 3, 0)), Line("4g.71gb", 5, 1, "69.50", 64, (4, 4, 0, 4, 0)),
    ],
    "b200": [
        Line("1g.23gb", 19, 7, "20.50", 18, (2, 1, 0, 1, 0)), Line("1g.23gb+me", 20, 1, "20.50", 18, (2, 1, 0, 1, 1)),
        Line("1g.45gb", 15, 4, "44.25", 30, (2, 1, 0, 1, 0)), Line("2g.45gb", 14, 3, "44.25", 36, (4, 2, 0, 2, 0)),
    ],
    "gb200": [
        Line("1g.23gb", 19, 7, "22.00", 18, (2, 1, 0, 1, 0)), Line("1g.23gb+me", 20, 1, "22.00", 18, (2, 1, 0, 1, 1)),
        Line("1g.47gb", 15, 4, "45.50", 32, (2, 1, 0, 1, 0)), Line("2g.47gb", 14, 3, "45.50", 38, (4, 2, 0, 2, 0)),
    ],
    "h100-94": [
        Line("1g.12gb", 19, 7, "10.75", 16, (1, 1, 0, 1, 0)), Line("1g.12gb+me", 20, 1, "10.75", 16, (1, 1, 0, 1, 1)),
        Line("1g.24gb", 15, 4, "21.62", 26, (1, 1, 0, 1, 0)),
    ],
    "rtx-pro-6000": [
        Line("1g.24gb", 14, 4, "23.62", 46, (1, 1, 1, 1, 0)), Line("1g.24gb+me", 21, 1, "23.62", 46, (1, 1, 1, 1, 1)),
    ],
}  # fmt: skip
OLDER_MEMORY = {
    # Newer drivers give these profiles of an H200 more memory
    ("h200", "1g.35gb"): 33280, ("h200", "2g.35gb"): 33280, ("h200", "3g.71gb"): 71424, ("h200", "4g.71gb"): 71424,
}  # fmt: skip

_A100 = (
    (7, 1, 0, 0, 0),
    (1, 1, 1, 1, 1),
    (4, 1, 1, 0, 0),
    (3, 2, 1, 0, 0),
    (2, 3, 2, 0, 0),
    (1, 4, 2, 0, 0),
    (1, 7, 5, 1, 1),
)
_H100 = (
    (7, 1, 1, 1, 0),
    (1, 1, 1, 1, 1),
    (4, 1, 1, 1, 0),
    (3, 2, 2, 2, 0),
    (2, 3, 3, 3, 0),
    (1, 4, 4, 4, 0),
    (1, 8, 7, 7, 1),
)
_B200 = (
    (7, 2, 1, 1, 0),
    (1, 2, 1, 1, 1),
    (4, 2, 1, 1, 0),
    (3, 3, 1, 1, 0),
    (2, 6, 1, 1, 0),
    (1, 8, 1, 1, 0),
    (1, 16, 1, 1, 1),
)
GUIDE = {
    # How many fit, copy engines, NVDEC, JPEG and OFA in NVIDIA's MIG guide for r580, in the order of the tables
    "a30": ((4, 1, 0, 0, 0), (1, 1, 1, 1, 1), (2, 2, 2, 0, 0), (1, 2, 2, 1, 1), (1, 4, 4, 1, 1)),
    "a100-40": _A100, "a100-80": _A100, "h100-80": _H100, "h100-94": _H100, "h100-96": _H100, "h200": _H100, "b200": _B200,
    "rtx-pro-6000": (
        (4, 1, 1, 1, 0), (1, 1, 1, 1, 1), (4, 1, 1, 1, 0), (1, 1, 4, 4, 1), (4, 1, 0, 0, 0), (2, 2, 2, 2, 0), (2, 2, 2, 2, 0),
        (1, 2, 4, 4, 1), (2, 2, 0, 0, 0), (1, 4, 4, 4, 1), (1, 4, 4, 4, 1),
    ),
}  # fmt: skip
GUIDE_DIFFERS = {
    ("b200", "2g.45gb"): "hardware lists 4 copy engines, and 2 decoders and JPEG engines",
    ("b200", "3g.90gb"): "the guide has 1 decoder and JPEG engine for every profile; 7 x 1g would not fit",
    ("b200", "4g.90gb"): "the guide has 1 decoder and JPEG engine for every profile; 7 x 1g would not fit",
    ("b200", "7g.180gb"): "the guide has 1 decoder and JPEG engine for every profile; 7 x 1g would not fit",
}

BALANCED = {
    # NVIDIA/mig-parted: names of the configuration `all-balanced` by PCI device
    0x20B0: ("1g.5gb", "2g.10gb", "3g.20gb"), 0x20F1: ("1g.5gb", "2g.10gb", "3g.20gb"),
    0x20B2: ("1g.10gb", "2g.20gb", "3g.40gb"), 0x20B5: ("1g.10gb", "2g.20gb", "3g.40gb"), 0x20B7: ("1g.6gb", "2g.12gb"),
    0x2330: ("1g.10gb", "2g.20gb", "3g.40gb"), 0x2321: ("1g.12gb", "2g.24gb", "3g.47gb"),
    0x2342: ("1g.12gb", "2g.24gb", "3g.48gb"), 0x2335: ("1g.18gb", "2g.35gb", "3g.71gb"),
    0x233B: ("1g.18gb", "2g.35gb", "3g.71gb"), 0x2901: ("1g.23gb", "2g.45gb", "3g.90gb"),
    0x2941: ("1g.23gb", "2g.47gb", "3g.93gb"), 0x3182: ("1g.34gb", "2g.67gb", "3g.135gb"),
    0x31C2: ("1g.35gb", "2g.70gb", "3g.139gb"), 0x2BB5: ("1g.24gb", "2g.48gb"),
}  # fmt: skip

GO_BOARDS = {
    "a100_40gb": "a100-40", "a100_80gb": "a100-80", "a30_24gb": "a30", "h100_80gb": "h100-80", "h200_141gb": "h200",
    "b200_180gb": "b200",
}  # fmt: skip
_ENUMERATION = "the mock gives the enumeration as the id; hardware has ids of its own"
_NOMINAL = "the mock divides the nominal memory; hardware keeps some for itself"
_OTHER_HARDWARE = "the mock's number contradicts NVIDIA's guide and what hardware lists"
GO_DIFFERS: Mapping[tuple[str, str], str] = {
    **{(table, "id"): _ENUMERATION for table in GO_BOARDS.values()},
    ("a100-80", "mib"): "drivers differ: the mock has another one's",
    ("a100-80", "engines"): _OTHER_HARDWARE,
    **{(table, "mib"): _NOMINAL for table in ("h100-80", "h200", "b200")},
    **{(table, column): _OTHER_HARDWARE for table in ("h100-80", "h200", "b200") for column in ("sm", "engines", "placements")},
}  # fmt: skip


def engines(profile: MigProfile) -> tuple[int, int, int, int, int]:
    return (
        profile.copy_engines, profile.decoders, profile.encoders, profile.jpeg_engines, profile.ofa_engines,
    )  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_what_hardware_lists_is_what_the_table_has(name: str) -> None:
    table = load_mig_table(name)
    for line in LISTED[name]:
        profile = table.named(line.name)
        shown = f"{profile.memory_mib / 1024:.2f}"
        if (name, line.name) in OLDER_MEMORY:
            assert profile.memory_mib == OLDER_MEMORY[name, line.name] and shown != line.memory
            shown = line.memory
        assert (
            Line(profile.name, profile.id, profile.max_instances, shown, profile.multiprocessors, engines(profile))
            == line
        )


@pytest.mark.parametrize("name", GUIDE)
def test_engines_are_those_of_nvidias_guide(name: str) -> None:
    differs = set()
    for profile, (most, copy, decoders, jpeg, ofa) in zip(load_mig_table(name).profiles, GUIDE[name], strict=True):
        assert profile.max_instances == most
        if (profile.copy_engines, profile.decoders, profile.jpeg_engines, profile.ofa_engines) != (
            copy,
            decoders,
            jpeg,
            ofa,
        ):
            differs.add((name, profile.name))
    assert differs == {key for key in GUIDE_DIFFERS if key[0] == name}


def test_every_model_has_the_table_that_the_mig_manager_expects_of_it() -> None:
    models = [load_profile(name).gpu for name in profile_names()]
    tables = {model.pci_device: load_mig_table(model.mig) for model in models if model.mig}
    assert set(tables) == set(BALANCED)
    for device, names in BALANCED.items():
        profiles = [tables[device].named(name) for name in names]
        assert [profile.slices for profile in profiles] == [1, 2, 3][: len(names)]


def test_compute_instances_are_those_that_nvidias_guide_lists() -> None:
    """`nvidia-smi mig -lcip` of a 3g.20gb on an A100: three of 14, one of 28, one of 42 multiprocessors."""
    table = load_mig_table("a100-40")
    listed = [
        (compute.kind, len(compute.starts), compute.multiprocessors)
        for compute in compute_profiles(table, table.named("3g.20gb"))
    ]
    assert listed == [(0, 3, 14), (1, 1, 28), (2, 1, 42)]


class TestClones:
    def test_balanced(self) -> None:
        entries = public_sources.mig_parted()["all-balanced"]
        layouts = {}
        for entry in entries:
            devices = entry["device-filter"]
            for device in [devices] if isinstance(devices, str) else devices:
                layouts[int(device, 16) >> 16] = tuple(entry["mig-devices"])
        assert {device: layouts.get(device) for device in BALANCED} == BALANCED

    @pytest.mark.parametrize("name", mig_table_names())
    def test_as_many_fit_as_the_mig_manager_makes(self, name: str) -> None:
        """`all-1g.10gb` makes seven on H100 and four on A100: a count for some devices only is theirs."""
        configs = public_sources.mig_parted()
        devices = {load_profile(node).gpu.pci_device for node in profile_names() if load_profile(node).gpu.mig == name}
        compared = 0
        for profile in load_mig_table(name).profiles:
            for entry in configs.get(f"all-{profile.name.replace('+', '.')}", ()):
                filters = entry.get("device-filter")
                named = {
                    int(device_id, 16) >> 16 for device_id in ([filters] if isinstance(filters, str) else filters or ())
                }
                if not named or devices & named:
                    assert entry["mig-devices"] == {profile.name: profile.max_instances}
                    compared += 1
        assert compared >= 5

    @pytest.mark.parametrize(("family", "name"), [("a30", "a30"), ("a100", "a100-40")])
    def test_compute_instances_of_go_nvml(self, family: str, name: str) -> None:
        """The mock's A100 has the profile with media beside each of one slice, which hardware does not list."""
        words = {0: "1_SLICE", 1: "2_SLICE", 2: "3_SLICE", 3: "4_SLICE", 4: "7_SLICE"}
        parents = words | {7: "1_SLICE_REV1", 8: "2_SLICE_REV1", 9: "1_SLICE_REV2"}
        table = load_mig_table(name)
        mine = {
            parents[profile.kind]: {
                words[compute.kind]: (len(compute.starts), compute.multiprocessors)
                for compute in compute_profiles(table, profile)
            }
            for profile in table.profiles
        }
        theirs = {
            parent: {word: numbers for word, numbers in profiles.items() if not word.endswith("REV1")}
            for parent, profiles in public_sources.go_compute_instances(family).items()
        }
        assert mine == theirs

    @pytest.mark.parametrize("board", GO_BOARDS)
    def test_go_nvml(self, board: str) -> None:
        table = load_mig_table(GO_BOARDS[board])
        theirs = public_sources.go_instances(board)
        assert set(theirs) == {profile.kind for profile in table.profiles}
        differs = set()
        for profile in table.profiles:
            mine = public_sources.Instance(
                profile.max_instances, profile.memory_mib, profile.multiprocessors, engines(profile),
                tuple((start, profile.size) for start in profile.starts), profile.id,
            )  # fmt: skip
            other = theirs[profile.kind]
            differs |= {
                (GO_BOARDS[board], field) for field in mine._fields if getattr(mine, field) != getattr(other, field)
            }
        assert differs == {key for key in GO_DIFFERS if key[0] == GO_BOARDS[board]}
