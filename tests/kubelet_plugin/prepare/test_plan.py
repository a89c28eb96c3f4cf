"""From a claim and a node to a plan: kubelet_plugin/prepare/plan.py. Values in, values out."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.claims import (
    BOOT,
    NODE,
    a_claim,
    a_config,
    a_gpu,
    a_held_device,
    a_ref,
    a_result,
    device_name,
    uuid_of,
)
from support.prepared import DRIVER_FILES

from dra_driver.api.inventory import GpuFacts, Problem
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.model import DeviceNode
from dra_driver.devices.model import Kind, Offer
from dra_driver.errors import InvalidConfig, InvalidInput, NodeNotReady, UnknownDevice
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER, ClaimRef
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice
from kubelet_plugin.prepare.node import ContainerFiles, Node
from kubelet_plugin.prepare.plan import Plan, plan_for, undo_of
from kubelet_plugin.prepare.steps import CdiFileRecord, RemoveCdiFile, UnknownRecord, WriteCdiFile, digest_of
from kubelet_plugin.prepare.wanted import Wanted, wanted_of


def a_node(*gpus: GpuFacts) -> Node:
    offers = {gpu.name: Offer(gpu.name, Kind.GPU, gpu) for gpu in gpus}
    return Node(GPU_DRIVER, NODE, BOOT, offers, {gpu.uuid: gpu for gpu in gpus})


A_NODE = a_node(*(a_gpu(index) for index in range(4)))
FILES = ContainerFiles(
    DRIVER_FILES,
    {uuid_of(index): (DeviceNode(f"/dev/nvidia{index}", type="c", major=195, minor=index),) for index in range(4)},
)


def claim(*results: dict[str, Any], **more: Any) -> ResourceClaim:
    return ResourceClaim.of(a_claim(a_ref(), *results, **more))


def plan(*numbers: int, node: Node = A_NODE, files: ContainerFiles = FILES) -> Plan:
    return plan_for(a_ref(), Wanted(tuple(a_held_device(number) for number in numbers)), node, files)


def wanted_devices(found: ResourceClaim, ref: ClaimRef, node: Node) -> tuple[HeldDevice, ...]:
    return wanted_of(found, ref, node).devices


def spec_of(made: Plan) -> dict[str, Any]:
    (step,) = made.steps
    spec: dict[str, Any] = json.loads(step.content)
    return spec


def test_the_table_of_names_and_nothing_else_leads_from_device_to_hardware() -> None:
    node = a_node(a_gpu(3, name="gpu-any-name"))

    (device,) = wanted_devices(claim(a_result("gpu-any-name")), a_ref(), node)

    assert (device.device, device.gpu_uuid, device.pci_bus_id) == ("gpu-any-name", uuid_of(3), a_gpu(3).pci_bus_id)


def test_each_result_is_a_device_with_its_top_level_request() -> None:
    found = claim(a_result(1, "big/first", shareID="a-share"), a_result(0, "small", adminAccess=True))

    one, other = wanted_devices(found, a_ref(), A_NODE)

    assert (one.request_names, one.admin_access, one.share_id) == (("big",), False, "a-share")
    assert (other.request_names, other.admin_access, other.share_id) == (("small",), True, None)
    assert one.cdi_ids == (f"k8s.gpu.nvidia.com/claim={a_ref().uid}-{device_name(1)}-a-share",)
    assert other.cdi_ids == (f"k8s.gpu.nvidia.com/claim={a_ref().uid}-{device_name(0)}",)


def test_a_gpu_may_be_in_a_claim_twice_when_one_of_the_two_only_looks() -> None:
    found = claim(a_result(0, "use"), a_result(0, "watch", adminAccess=True))

    wanted = wanted_of(found, a_ref(), A_NODE)
    made = plan_for(a_ref(), wanted, A_NODE, FILES)

    assert len(wanted.devices) == 2
    assert [device["name"] for device in spec_of(made)["devices"]] == [f"{a_ref().uid}-{device_name(0)}"]
    assert f"NVIDIA_DRA_DEVICE_{device_name(0).upper().replace('-', '_')}={uuid_of(0)}" in str(spec_of(made))


def test_a_config_of_an_alternative_that_was_not_chosen_does_not_matter() -> None:
    broken = a_config({"apiVersion": CONFIG_API_VERSION, "kind": "MigDeviceConfig"}, "gpu/partition")

    assert wanted_devices(claim(a_result(0, "gpu/whole"), configs=[broken]), a_ref(), A_NODE)


def test_an_error_of_a_config_names_the_claim_and_the_field() -> None:
    wrong = a_config({"apiVersion": "v1", "kind": "GpuConfig"})

    with pytest.raises(InvalidConfig) as refused:
        wanted_devices(claim(a_result(0), configs=[wrong]), a_ref(), A_NODE)

    assert refused.value.about == "claim team-a/train"
    assert refused.value.field == "status.allocation.devices.config[0].opaque.parameters.apiVersion"


def test_a_device_that_nobody_knows_is_final_unless_something_may_hide_it() -> None:
    asked = claim(a_result("gpu-99999999"))
    fabric = Problem(subject="fabric", reason="MixedCliques", message="two cliques")
    lost = Problem(subject="GPU at index 3", reason="GpuIsLost", message="fell off the bus")

    with pytest.raises(UnknownDevice) as unknown:
        wanted_devices(asked, a_ref(), replace(A_NODE, problems=(fabric,)))
    with pytest.raises(NodeNotReady) as hidden:
        wanted_devices(asked, a_ref(), replace(A_NODE, problems=(fabric, lost)))

    assert unknown.value.retry_after_s is None
    assert hidden.value.retry_after_s is not None
    assert "fell off the bus" in str(hidden.value)
    assert "two cliques" not in str(hidden.value)


def test_another_uid_is_another_claim() -> None:
    with pytest.raises(InvalidInput, match="created again") as refused:
        wanted_devices(claim(a_result(0)), a_ref("train", "older-uid"), A_NODE)

    assert refused.value.field == "metadata.uid"


def test_a_plan_is_the_entry_and_the_steps_with_their_way_back() -> None:
    made = plan(0, 2)
    (step,) = made.steps

    assert made.entry == Entry(
        a_ref(), BOOT, (a_held_device(0), a_held_device(2)), (CdiFileRecord(digest_of(step.content)),)
    )
    assert made.undo == (RemoveCdiFile(a_ref().uid),)
    assert undo_of(made.entry) == made.undo


def test_the_same_observations_give_the_same_plan() -> None:
    assert plan(0, 2) == plan(0, 2)
    assert plan(0) != plan(2)


def test_a_plan_can_be_read() -> None:
    text = str(plan(1))

    assert "claim team-a/train" in text
    assert uuid_of(1) in text
    assert "write the CDI file" in text
    assert "containerEdits" not in repr(plan(1))


@pytest.mark.parametrize(
    ("node", "files", "words"),
    [
        (replace(A_NODE, gpus={}), FILES, "does not answer"),
        (A_NODE, replace(FILES, nodes={}), "no device node"),
        (A_NODE, replace(FILES, nodes={}, missing={uuid_of(0): "lost /dev/nvidia0"}), "lost /dev/nvidia0"),
    ],
)
def test_no_plan_is_made_of_hardware_that_is_not_there(node: Node, files: ContainerFiles, words: str) -> None:
    with pytest.raises(NodeNotReady, match=words) as refused:
        plan(0, node=node, files=files)

    assert refused.value.about == "claim team-a/train"
    assert device_name(0) in str(refused.value)


def test_what_a_newer_release_did_is_not_undone_by_guessing() -> None:
    newer = replace(plan(0).entry, steps=(UnknownRecord("mig-instance", "{}"), CdiFileRecord("d" * 64)))

    with pytest.raises(NodeNotReady, match="mig-instance"):
        undo_of(newer)


def test_steps_are_undone_in_reverse() -> None:
    steps = (WriteCdiFile("one", b"1"), WriteCdiFile("two", b"2"))

    assert Plan(plan(0).entry, steps).undo == (RemoveCdiFile("two"), RemoveCdiFile("one"))
