"""docs/compared.md and docs/kubernetes-features.md leave out no gate, and name what is there."""

import re

from support.pages import DOCS, ROOT

from dra_driver import features, kubernetes
from dra_driver.features import Feature

COMPARED = (DOCS / "compared.md").read_text(encoding="utf-8")
OFFERED = (DOCS / "kubernetes-features.md").read_text(encoding="utf-8")
OF_THIS_DRIVER = {
    Feature.BINDING_CONDITIONS,
    Feature.MIG_BINDING_CONDITIONS,
    Feature.DEVICE_STATUS,
    Feature.MIG_CLASSES,
    Feature.MIG_EXTENDED_RESOURCES,
    Feature.MIG_MODE_CHANGE,
    Feature.COMPUTE_DOMAINS,
}
"""Gates that NVIDIA's own driver does not have."""


def first_cells(page: str, heading: str) -> set[str]:
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_gate_of_the_other_driver_is_in_the_table() -> None:
    assert first_cells(COMPARED, "Feature gates") == {*features._OF_NVIDIA, *Feature} - OF_THIS_DRIVER


def test_every_row_has_a_verdict() -> None:
    compared, _, after = COMPARED.partition("## Speed and memory\n")
    words = compared + after.partition("\n## ")[2]
    verdicts = [line.split(" | ")[1] for line in words.splitlines() if line.startswith("| ") and "---" not in line]
    assert set(verdicts) - {"Here"} == {"same", "better", "not needed", "missing"}


def test_every_test_that_is_named_is_there() -> None:
    named = {ROOT / path for path in re.findall(r"`(tests/[^`]+)`", COMPARED)}
    named |= {ROOT / "tests" / path for path in re.findall(r"`((?:contracts|e2e|charts)/[^`]+)`", OFFERED)}
    assert len(named) > 20
    assert [str(path) for path in named if not path.exists()] == []


def test_defaults_of_features_are_those_of_their_gates() -> None:
    """By words of the row that occur in one gate's name or meaning alone."""
    gates = {
        "Admin access": "DRAAdminAccess",
        "Prioritized lists": "DRAPrioritizedList",
        "Device status": "DRAResourceClaimDeviceStatus",
        "Partitionable devices": "DRAPartitionableDevices",
        "Consumable capacity": "DRAConsumableCapacity",
        "Device taints": "DRADeviceTaints",
        "Device taint rules": "DRADeviceTaintRules",
        "Extended resources": "DRAExtendedResource",
        "Health of devices": "ResourceHealthStatus",
        "Separate RBAC": "DRAResourceClaimGranularStatusAuthorization",
        "Claims in the kubelet": "KubeletPodResourcesDynamicResources",
        "List attributes": "DRAListTypeAttributes",
        "ResourcePoolStatusRequest": "DRAResourcePoolStatus",
        "Binding conditions": "DRADeviceBindingConditions",
        "CPU and memory": "DRANodeAllocatableResources",
    }
    assert {*kubernetes.GATES} - {*gates.values()} == {"DynamicResourceAllocation"}
    rows = [line.strip("| ").split(" | ") for line in OFFERED.splitlines() if line.startswith("| ")]
    for words, name in gates.items():
        (row,) = [row for row in rows if row[0].startswith(words) and len(row) > 4]
        gate = kubernetes.GATES[name]
        wanted = ["-" if minor < gate.alpha else "on" if gate.default(minor) else "off" for minor in (34, 35, 36)]
        assert row[1:4] == wanted, words
