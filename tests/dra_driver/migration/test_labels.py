"""Labels of nodes and conditions on devices say the same."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.label_worlds import LabelWorld, label_values, requirements, worlds
from support.rows import examples, rows

from dra_driver.cel.cost import LIMIT
from dra_driver.cel.device import compile_selector
from dra_driver.migration.codes import CLOUD_LABEL, NODE_ONLY_LABEL, OPERATOR_LABEL, ROUNDED, FindingCode
from dra_driver.migration.demands.node_labels import ROWS, is_gpu_label, verdict_on
from dra_driver.migration.model import DeviceShare, Want, What
from dra_driver.migration.understand.labels import (
    Fate,
    Hints,
    LabelVerdict,
    RequestedDevices,
    Requirement,
    hints_of,
    restored_profile,
)
from dra_driver.names import GPU_DRIVER

A = "device.attributes['gpu.nvidia.com']"
C = "device.capacity['gpu.nvidia.com']"
GPU = Want(What.GPU)
SHARED = Want(What.GPU, share=DeviceShare())


def _mig(profile: str) -> Want:
    return Want(What.MIG, profile=profile)


def _verdict(
    key: str, operator: str, *values: str, want: Want = GPU, total: int = 1, single: bool = False
) -> LabelVerdict:
    verdict = verdict_on(Requirement(key, operator, values), RequestedDevices(want, GPU_DRIVER, total, single))
    assert verdict is not None
    return verdict


ON_DEVICE = [
    ("gpu.product", "In", ["NVIDIA-A100-SXM4-80GB"], f"{A}.productName.replace(' ', '-') == 'NVIDIA-A100-SXM4-80GB'"),
    ("gpu.product", "In", ["Tesla-T4", "NVIDIA-L4"], f"{A}.productName.replace(' ', '-') in ['Tesla-T4', 'NVIDIA-L4']"),
    ("gpu.product", "NotIn", ["Tesla-T4"], f"!({A}.productName.replace(' ', '-') == 'Tesla-T4')"),
    (
        "gpu.product", "In", ["Tesla-T4-SHARED"],
        f"{A}.productName.replace(' ', '-') == 'Tesla-T4' && {A}.sharing != 'exclusive'",
    ),
    ("gpu.family", "In", ["ampere"], f"{A}.architecture == 'Ampere'"),
    ("gpu.family", "In", ["ada-lovelace", "hopper"], f"{A}.architecture in ['Ada Lovelace', 'Hopper']"),
    ("gpu.family", "NotIn", ["turing"], f"!({A}.architecture == 'Turing')"),
    ("gpu.memory", "Gt", ["40000"], f"has({C}.memory) && {C}.memory.isGreaterThan(quantity('40000Mi'))"),
    ("gpu.memory", "Lt", ["40960"], f"has({C}.memory) && {C}.memory.isLessThan(quantity('40Gi'))"),
    ("gpu.memory", "In", ["81559"], f"has({C}.memory) && {C}.memory.compareTo(quantity('79928Mi')) >= 0"),
    ("gpu.memory", "Exists", [], f"has({C}.memory)"),
    ("gpu.compute.major", "In", ["8"], f"{A}.cudaComputeCapability.major() == 8"),
    ("gpu.compute.major", "Gt", ["7"], f"{A}.cudaComputeCapability.major() > 7"),
    ("gpu.compute.minor", "NotIn", ["5"], f"!({A}.cudaComputeCapability.minor() == 5)"),
    ("cuda.driver.major", "In", ["550"], f"has({A}.driverVersion) && {A}.driverVersion.major() == 550"),
    ("cuda.driver.rev", "In", ["09"], f"has({A}.driverVersion) && {A}.driverVersion.patch() == 9"),
    ("cuda.driver-version.revision", "Gt", ["1"], f"has({A}.driverVersion) && {A}.driverVersion.patch() > 1"),
    ("cuda.runtime.major", "Gt", ["11"], f"has({A}.cudaDriverVersion) && {A}.cudaDriverVersion.major() > 11"),
    ("gpu.sharing-strategy", "In", ["time-slicing", "mps"], f"{A}.sharing in ['time-slicing', 'mps']"),
    ("gpu.sharing-strategy", "In", ["none"], f"{A}.sharing == 'exclusive'"),
    ("gpu.clique", "In", ["a.1"], f"has({A}.clique) && {A}.clique == 'a.1'"),
    ("gpu.clique", "Exists", [], f"has({A}.clique)"),
    ("mig.capable", "In", ["true"], f"has({A}.migCapable) && {A}.migCapable"),
    ("mig.capable", "NotIn", ["true"], f"!(has({A}.migCapable) && {A}.migCapable)"),
    ("mps.capable", "In", ["true"], f"{A}.sharing == 'mps'"),
]  # fmt: skip


@rows("key, operator, values, expression", ON_DEVICE)
def test_what_devices_say_becomes_a_condition_on_them(
    key: str, operator: str, values: list[str], expression: str
) -> None:
    assert _verdict(f"nvidia.com/{key}", operator, *values).expression == expression


OF_MIG = [
    ("nvidia.com/gpu.product", "In", ["NVIDIA-A30-MIG-1g.6gb"], "1g.6gb", True, "productName.replace(' ', '-')"),
    ("nvidia.com/gpu.product", "In", ["NVIDIA-A30-MIG-1g.6gb"], "2g.12gb", True, f"{A}.profile == '1g.6gb'"),
    ("nvidia.com/gpu.memory", "Gt", ["5000"], "1g.6gb", True, "isGreaterThan(quantity('5000Mi'))"),
    ("nvidia.com/mig-1g.6gb.memory", "Gt", ["5000"], "1g.6gb", False, "isGreaterThan(quantity('5000Mi'))"),
]


@pytest.mark.parametrize(("key", "operator", "values", "profile", "single", "part"), OF_MIG)
def test_labels_of_mig_devices_are_about_the_mig_devices_of_the_claim(
    key: str, operator: str, values: list[str], profile: str, single: bool, part: str
) -> None:
    verdict = _verdict(key, operator, *values, want=_mig(profile), single=single)
    assert verdict.fate is Fate.ON_DEVICE
    assert part in verdict.expression


@rows(
    "key, operator, values, want, total",
    [
        ("nvidia.com/gpu.present", "In", ["true"], GPU, 1),
        ("nvidia.com/gpu.present", "Exists", [], GPU, 1),
        ("nvidia.com/gpu.product", "Exists", [], GPU, 1),
        ("feature.node.kubernetes.io/pci-10de.present", "In", ["true"], GPU, 1),
        ("feature.node.kubernetes.io/pci-0302_10de.present", "In", ["true"], GPU, 1),
        ("nvidia.com/gpu.count", "In", ["8"], GPU, 8),
        ("nvidia.com/gpu.count", "Gt", ["3"], GPU, 4),
        ("nvidia.com/mig.capable", "In", ["true"], _mig("1g.5gb"), 1),
        ("nvidia.com/mig.strategy", "In", ["mixed"], _mig("1g.5gb"), 1),
        ("nvidia.com/mig.config", "In", ["all-1g.5gb"], _mig("1g.5gb"), 1),
        ("nvidia.com/mig.config", "In", ["all-disabled"], GPU, 1),
    ],
)
def test_what_the_claim_implies_is_taken_out(
    key: str, operator: str, values: list[str], want: Want, total: int
) -> None:
    verdict = _verdict(key, operator, *values, want=want, total=total)
    assert verdict.fate is Fate.IMPLIED
    assert verdict.message


@rows(
    "key, operator, values, want, code",
    [
        ("nvidia.com/gpu.machine", "In", ["DGX"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.mode", "In", ["compute"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.count", "In", ["8"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.imex-domain", "Exists", [], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/vgpu.present", "In", ["true"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/vgpu.host-driver-branch", "In", ["r550"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gfd.timestamp", "Exists", [], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/mig.config.state", "In", ["success"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/mig.config", "In", ["all-balanced"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.memory", "Gt", ["40000"], _mig("1g.5gb"), NODE_ONLY_LABEL),
        ("nvidia.com/gpu.multiprocessors", "Gt", ["100"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.replicas", "Gt", ["1"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/cuda.driver-version.full", "In", ["580.126.09"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.sharing-strategy", "In", ["mps"], _mig("1g.5gb"), NODE_ONLY_LABEL),
        ("nvidia.com/gpu.product", "In", ["NVIDIA-A30-SHARED"], _mig("1g.6gb"), NODE_ONLY_LABEL),
        ("nvidia.com/mig-1g.5gb.count", "Gt", ["6"], _mig("1g.5gb"), NODE_ONLY_LABEL),
        ("nvidia.com/mig-1g.5gb.memory", "Gt", ["1"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.family", "In", ["feynman"], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/something.new", "Exists", [], GPU, NODE_ONLY_LABEL),
        ("nvidia.com/gpu.deploy.driver", "In", ["true"], GPU, OPERATOR_LABEL),
        ("nvidia.com/device-plugin.config", "In", ["a100"], GPU, OPERATOR_LABEL),
        ("nvidia.com/gpu.workload.config", "In", ["container"], GPU, OPERATOR_LABEL),
        ("cloud.google.com/gke-accelerator", "In", ["nvidia-l4"], GPU, CLOUD_LABEL),
        ("karpenter.k8s.aws/instance-gpu-name", "In", ["t4"], GPU, CLOUD_LABEL),
        ("kubernetes.azure.com/accelerator", "In", ["nvidia"], GPU, CLOUD_LABEL),
    ],
)
def test_what_no_device_has_stays_a_label(
    key: str, operator: str, values: list[str], want: Want, code: FindingCode
) -> None:
    verdict = _verdict(key, operator, *values, want=want)
    assert (verdict.fate, verdict.code) == (Fate.KEPT, code)
    assert key.split("/")[1] in verdict.message


@pytest.mark.parametrize(
    ("key", "operator", "values"),
    [
        ("nvidia.com/gpu.present", "In", ["false"]),
        ("nvidia.com/gpu.present", "DoesNotExist", []),
        ("nvidia.com/gpu.product", "DoesNotExist", []),
        ("nvidia.com/gpu.product", "In", ["NVIDIA-A30-MIG-1g.6gb.me"]),
        ("nvidia.com/gpu.compute.major", "In", ["eight"]),
    ],
)
def test_what_no_node_with_gpus_fulfils_is_called_so(key: str, operator: str, values: list[str]) -> None:
    assert _verdict(key, operator, *values).fate is Fate.NEVER


def test_other_labels_are_none_of_its_business() -> None:
    for key in ("kubernetes.io/hostname", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "pool"):
        assert verdict_on(Requirement(key, "In", ("a",)), RequestedDevices(GPU, GPU_DRIVER)) is None
        assert not is_gpu_label(key)
    assert is_gpu_label("nvidia.com/gpu.product")


@rows(
    "written, profile",
    [
        ("1g.5gb", "1g.5gb"),
        ("1g.10gb.me", "1g.10gb+me"),
        ("1g.24gb.me.all", "1g.24gb+me.all"),
        ("2g.48gb.gfx", "2g.48gb+gfx"),
        ("1g.24gb-me", "1g.24gb-me"),
        ("1c.3g.20gb", "1c.3g.20gb"),
        ("gpu", None),
        ("9g.5gb", None),
    ],
)
def test_profiles_get_their_plus_back(written: str, profile: str | None) -> None:
    assert restored_profile(written) == profile


@rows(
    "requirement, hints",
    [
        (Requirement("nvidia.com/gpu.product", "In", ("A-MIG-1g.5gb",)), Hints(mig_profile="1g.5gb")),
        (Requirement("nvidia.com/gpu.product", "In", ("A-SHARED", "B-SHARED")), Hints(shared=True)),
        (Requirement("nvidia.com/gpu.product", "In", ("A-SHARED", "B")), Hints()),
        (Requirement("nvidia.com/mig.strategy", "In", ("single",)), Hints(mig_strategy="single")),
        (Requirement("nvidia.com/mig.config", "In", ("all-1g.10gb.me",)), Hints(mig_profile="1g.10gb+me")),
        (Requirement("nvidia.com/gpu.sharing-strategy", "In", ("none",)), Hints(shared=False)),
        (Requirement("nvidia.com/gpu.sharing-strategy", "In", ("mps",)), Hints(shared=True, mps=True)),
        (Requirement("nvidia.com/gpu.replicas", "Gt", ("1",)), Hints(shared=True)),
        (Requirement("nvidia.com/gpu.product", "NotIn", ("A-SHARED",)), Hints()),
    ],
)
def test_labels_tell_what_resources_mean(requirement: Requirement, hints: Hints) -> None:
    assert hints_of([requirement]) == hints


# -- the law: a node is selected by its labels if and only if its devices are selected by the condition


def _comparable(requirement: Requirement, world: LabelWorld) -> bool:
    """What the law leaves out, since the label and the device say different things there by nature.

    A product's suffix tells shared devices from others only where resources are not renamed. A version of a driver is
    compared as a number, so that other spellings of one number are the same.
    """
    if requirement.key.endswith("product"):
        suffixed = {value.endswith("-SHARED") for value in requirement.values}
        of_these = world.mode.mig != "mixed" or "mig-" in requirement.key
        return suffixed == {of_these and world.mode.replicas > 1 and not world.mode.renamed} or not requirement.values
    return not requirement.key.endswith(("count", ".rev", ".revision")) or requirement.operator not in ("In", "NotIn")


@settings(max_examples=100)
@given(requirements())
def test_labels_and_conditions_select_the_same(requirement: Requirement) -> None:
    _the_same(requirement, worlds())


@pytest.mark.slow
@rows("key", [key for key in label_values() if "mig-" not in key])
def test_each_value_of_a_label_selects_the_same(key: str) -> None:
    for value in label_values()[key]:
        _the_same(Requirement(key, "In", (value,)), worlds())


def test_what_nodes_say_of_their_mig_devices_is_true_of_them() -> None:
    for world in worlds():
        for key, value in world.labels.items():
            if "mig-" in key:
                _the_same(Requirement(key, "In", (value,)), [world])


def _the_same(requirement: Requirement, those: Sequence[LabelWorld]) -> None:
    for world in those:
        of_another_profile = "mig-" in requirement.key and requirement.key not in world.labels
        if of_another_profile or not _comparable(requirement, world):
            continue
        verdict = verdict_on(requirement, RequestedDevices(world.want, GPU_DRIVER, 1, world.mode.mig == "single"))
        assert verdict is not None
        selected = requirement.holds(world.labels)
        if verdict.fate is Fate.ON_DEVICE:
            assert verdict.expression
            for matches in _matches(verdict.expression, world):
                if verdict.code is ROUNDED and requirement.operator == "In":
                    assert matches or not selected
                elif verdict.code is ROUNDED:
                    assert selected or not matches
                else:
                    assert matches == selected, (requirement, verdict, world.model, world.mode)
        elif verdict.fate is Fate.IMPLIED and not requirement.key.endswith(("mig.strategy", "mig.config")):
            assert selected, (requirement, verdict, world.model, world.mode)
        elif verdict.fate is Fate.NEVER:
            assert not selected, (requirement, verdict, world.model, world.mode)


def _matches(expression: str, world: LabelWorld) -> Iterator[bool]:
    selector = compile_selector(expression)
    assert selector.cost < LIMIT // 100
    return (selector.matches(device) for device in world.devices)


@settings(max_examples=examples(30))
@given(st.sampled_from(sorted({world.labels.get("nvidia.com/gpu.memory", "1") for world in worlds()})))
def test_a_floor_of_memory_is_two_percent_below_the_label_at_most(value: str) -> None:
    verdict = _verdict("nvidia.com/gpu.memory", "In", value)
    for world in worlds():
        if world.want.what is What.GPU and (own := world.labels.get("nvidia.com/gpu.memory")) is not None:
            for matches in _matches(verdict.expression, world):
                assert matches == (int(own) >= int(value) - int(value) // 50)


def test_every_label_of_the_table_is_tried() -> None:
    """Each row by a label that the model of GPU Feature Discovery makes, or by the tables above."""
    tried = {*label_values(), *(f"nvidia.com/{row[0]}" for row in ON_DEVICE)}
    rows = [row for row in ROWS if not any(row.pattern.fullmatch(key) for key in tried)]
    assert {row.key.split(",")[0] for row in rows} == {
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
        "feature.node.kubernetes.io/pci-*10de*.present",
        "nvidia.com/gpu.{machine",
        "nvidia.com/gpu.deploy.*",
        "cloud.google.com/gke-accelerator",
    }
