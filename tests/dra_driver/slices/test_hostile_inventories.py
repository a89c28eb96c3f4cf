"""A node may be hostile: whatever is in its inventory is described, or refused by the model, and ends nothing."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from support.inventories import compute_instance, gpu, gpu_instance, inventory_spec, mig, mig_profiles

from controller.classes import profiles_of, wanted_class
from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import (
    FabricFacts,
    HealthCondition,
    HealthFacts,
    ImexFacts,
    NodeInventorySpec,
    NvlinkFacts,
    PassthroughFacts,
    Problem,
)
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import MigRule, PassthroughRule, PublishingPolicy, SharingRule
from dra_driver.devices.limitations import limitations_of
from dra_driver.errors import InvalidInput
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.slices.describe import described_devices
from dra_driver.slices.domains import domain_devices
from dra_driver.slices.features import ALL_FEATURES
from dra_driver.slices.layout import Places, slice_layout

TEXTS = ("", "²", "٣", "-", ".", "a" * 253, "9" * 253, "1.", "\x00", "0c.0g.0gb", "None")
NUMBERS = (-1, 0, 1, 64, 2**32 - 1, 2**53 - 1)
POLICIES = (
    PublishingPolicy(health=HealthPolicy(escalate_xids=[3])),
    PublishingPolicy(
        mig=[MigRule(mode="Dynamic", compute_instances=["1c.2g.20gb"])],
        sharing=[SharingRule(strategy="TimeSlicing", replicas=2)],
        passthrough=[PassthroughRule()],
    ),
)


def _base() -> JsonObject:
    condition = HealthCondition(type="Xid", value="79", severity="Critical", message="m", since="2026-01-01T00:00:00Z")
    facts = mig(
        enabled=True,
        profiles=mig_profiles(("2g.20gb", 2, 32, (0, 2)), ("1g.10gb", 1, 16, (0, 1, 2))),
        instances=[gpu_instance("1g.10gb", 0, 1, compute_instance("1g.10gb", 1))],
    )
    whole = gpu(
        1,
        health=HealthFacts(healthy=False, reason="Xid", message="m", conditions=[condition]),
        fabric=FabricFacts(state="Completed", clusterUUID="c", cliqueID=1, health="Healthy"),
        nvlink=NvlinkFacts(links=18, version="4.0", peers=["GPU-0"]),
        passthrough=PassthroughFacts(iommu_group=3),
        pcie_root="pci0000:15",
        numa_node=0,
    )
    spec = inventory_spec("n", [gpu(0, mig=facts), whole], registered="2026-01-01T00:00:00Z")
    more = {
        "imex": ImexFacts(channels=8, program=True, state="READY"),
        "problems": [Problem(subject="GPU 3", reason="Lost", message="m")],
    }
    return spec.model_copy(update=more).to_wire()


def _edits(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], object]]:
    """Each text and number replaced by each odd one, each list with an entry twice, and nothing where something is."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _edits(inner, (*path, key))
        yield path, type(value)()
        if isinstance(value, list) and value:
            yield path, [*value, value[0]]
            yield path, [value[0], *value[::-1]]
    elif isinstance(value, str):
        yield from ((path, text) for text in TEXTS)
    elif not isinstance(value, bool):
        yield from ((path, number) for number in NUMBERS)
    else:
        yield path, not value
    yield path, None


def _edited(obj: JsonObject, path: tuple[Any, ...], value: object) -> JsonObject:
    edited = inner = deepcopy(obj)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return edited


def _use(spec: NodeInventorySpec) -> None:
    """All that a publisher makes of it before it writes."""
    for policy in POLICIES:
        for driver, describe in ((GPU_DRIVER, described_devices), (COMPUTE_DOMAIN_DRIVER, domain_devices)):
            description = describe(spec, policy, {}, driver, ALL_FEATURES)
            slice_layout(description.gpus, Places(), ALL_FEATURES)
            limitations_of(description.notes, policy, driver, "n")
            for name in profiles_of(description.devices):
                wanted_class(name, driver, extended_resource=True)


def test_whatever_is_in_one_field_of_an_inventory_it_is_described_or_refused() -> None:
    base = _base()
    described = 0
    for path, value in _edits(base):
        if not path:
            continue
        try:
            spec = NodeInventorySpec.of(_edited(base, path, value))
        except InvalidInput:
            continue
        try:
            _use(spec)
        except Exception as error:
            error.add_note(f"{path}: {value!r}")
            raise
        described += 1
    assert described > 300, described


def test_of_two_gpus_with_one_uuid_the_first_is_published() -> None:
    spec = inventory_spec("n", [gpu(0), gpu(1, uuid=gpu(0).uuid, name="gpu-other")])
    description = described_devices(spec, PublishingPolicy(), {}, GPU_DRIVER, ALL_FEATURES)
    assert [device.name for device in description.devices] == [gpu(0).name]
    assert [str(note) for note in description.notes] == [
        "gpu-other: is not published because another GPU of the node has its UUID"
    ]
