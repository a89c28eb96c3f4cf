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
from support.inventories import compute_instance, gpu_instance, mig
from support.prepared import DRIVER_FILES, given_nodes, no_host_node, no_mig_nodes
from support.rows import rows

from dra_driver.api.inventory import GpuFacts, HealthCondition, HealthFacts, Problem
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.model import DeviceNode
from dra_driver.devices.model import DeviceKind, Offer, Partition
from dra_driver.errors import InvalidConfig, InvalidInput, NodeNotReady, UnknownDevice
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER, ClaimRef
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    MpsDaemon,
    UnknownHold,
    VfioBinding,
)
from kubelet_plugin.prepare.known_node import ContainerFiles, KnownNode
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice, SharedUse, digest_of
from kubelet_plugin.prepare.ours import KEPT
from kubelet_plugin.prepare.plan import Plan, check_releasable, finished_plan, plan_for
from kubelet_plugin.prepare.wanted import WantedClaim, wanted_of


def a_node(*gpus: GpuFacts) -> KnownNode:
    offers = {gpu.name: Offer(gpu.name, DeviceKind.GPU, gpu) for gpu in gpus}
    return KnownNode(GPU_DRIVER, NODE, BOOT, offers, {gpu.uuid: gpu for gpu in gpus})


A_NODE = a_node(*(a_gpu(index) for index in range(4)))
FILES = ContainerFiles(
    DRIVER_FILES,
    given_nodes(
        {uuid_of(index): (DeviceNode(f"/dev/nvidia{index}", type="c", major=195, minor=index),) for index in range(4)}
    ),
    no_mig_nodes,
    no_host_node,
)


def claim(*results: dict[str, Any], **more: Any) -> ResourceClaim:
    return ResourceClaim.of(a_claim(a_ref(), *results, **more))


def plan(*numbers: int, node: KnownNode = A_NODE, files: ContainerFiles = FILES) -> Plan:
    return plan_for(a_ref(), WantedClaim(tuple(a_held_device(number) for number in numbers)), node, files)


def test_a_gpu_that_is_gone_is_named_before_a_hold_is_made_for_it_and_after() -> None:
    mode: Hold = ComputeMode(GpuIdentity(uuid_of(0), a_gpu(0).pci_bus_id), 3)
    wanted, without = WantedClaim((a_held_device(0),), (mode,)), a_node(a_gpu(1))
    with pytest.raises(NodeNotReady, match="does not answer now"):
        plan_for(a_ref(), wanted, without, FILES)
    entry = plan_for(a_ref(), wanted, A_NODE, FILES).entry
    with pytest.raises(NodeNotReady, match="does not answer now"):
        finished_plan(entry, {mode: HoldRecord(HoldState.MADE, BOOT)}, without, FILES)


def wanted_devices(claim_object: ResourceClaim, ref: ClaimRef, node: KnownNode) -> tuple[HeldDevice, ...]:
    return wanted_of(claim_object, ref, node).devices


def spec_of(made: Plan) -> dict[str, Any]:
    assert made.content is not None
    spec: dict[str, Any] = json.loads(made.content)
    return spec


def test_the_table_of_names_and_nothing_else_leads_from_device_to_hardware() -> None:
    node = a_node(a_gpu(3, name="gpu-any-name"))

    (device,) = wanted_devices(claim(a_result("gpu-any-name")), a_ref(), node)

    assert (device.device, device.gpu_uuid, device.pci_bus_id) == ("gpu-any-name", uuid_of(3), a_gpu(3).pci_bus_id)


def test_each_result_is_a_device_with_its_top_level_request() -> None:
    claim_object = claim(a_result(1, "big/first", shareID="a-share"), a_result(0, "small", adminAccess=True))

    first, second = wanted_devices(claim_object, a_ref(), A_NODE)

    assert (first.request_names, first.admin_access, first.share_id) == (("big",), False, "a-share")
    assert (second.request_names, second.admin_access, second.share_id) == (("small",), True, None)
    assert first.cdi_ids == (f"k8s.gpu.nvidia.com/claim={a_ref().uid}-{device_name(1)}-a-share",)
    assert second.cdi_ids == (f"k8s.gpu.nvidia.com/claim={a_ref().uid}-{device_name(0)}",)


def test_a_gpu_may_be_in_a_claim_twice_when_one_of_the_two_only_looks() -> None:
    claim_object = claim(a_result(0, "use"), a_result(0, "watch", adminAccess=True))

    wanted = wanted_of(claim_object, a_ref(), A_NODE)
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


@pytest.mark.parametrize("kind", [DeviceKind.GPU, DeviceKind.VFIO])
def test_a_gpu_in_another_drivers_claim_is_not_given_to_a_second_one(kind: DeviceKind) -> None:
    """Who only looks sees it all the same."""
    taken = replace(FILES, taken={uuid_of(1): "is in claim UID 1 of another driver"})
    device = replace(a_held_device(1), kind=kind)
    with pytest.raises(NodeNotReady, match="is in claim UID 1 of another driver") as refused:
        plan_for(a_ref(), WantedClaim((a_held_device(0), device)), A_NODE, taken)
    assert refused.value.retry_after_s is not None
    looks = replace(a_held_device(1), admin_access=True)
    assert plan_for(a_ref(), WantedClaim((a_held_device(0), looks)), A_NODE, taken)


def test_a_device_that_nobody_knows_is_final_unless_something_may_hide_it() -> None:
    asked = claim(a_result("gpu-99999999"))
    fabric = Problem(subject="fabric", reason="MixedCliques", message="two cliques")
    lost = Problem(subject="GPU at index 3", reason="GpuIsLost", message="fell off the bus")

    with pytest.raises(UnknownDevice) as unknown:
        wanted_devices(asked, a_ref(), replace(A_NODE, problems=(fabric,)))
    with pytest.raises(NodeNotReady) as hidden:
        wanted_devices(asked, a_ref(), replace(A_NODE, problems=(fabric, lost)))
    with pytest.raises(NodeNotReady, match="driver: it is being replaced"):
        driver = Problem(subject="driver", reason="NotLoaded", message="it is being replaced")
        wanted_devices(asked, a_ref(), replace(A_NODE, problems=(driver,)))

    assert unknown.value.retry_after_s is None
    assert hidden.value.retry_after_s is not None
    assert "fell off the bus" in str(hidden.value)
    assert "two cliques" not in str(hidden.value)


def test_another_uid_is_another_claim() -> None:
    with pytest.raises(InvalidInput, match="created again") as refused:
        wanted_devices(claim(a_result(0)), a_ref("train", "older-uid"), A_NODE)

    assert refused.value.field == "metadata.uid"


def test_a_plan_is_the_entry_and_its_file() -> None:
    made = plan(0, 2)
    assert made.content is not None
    assert made.entry == Entry(a_ref(), BOOT, (a_held_device(0), a_held_device(2)), digest_of(made.content))


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
        (A_NODE, replace(FILES, gpu_nodes=given_nodes({})), "no device node"),
        (A_NODE, replace(FILES, gpu_nodes=given_nodes({}, "lost /dev/nvidia0")), "lost /dev/nvidia0"),
    ],
)
def test_no_plan_is_made_of_hardware_that_is_not_there(node: KnownNode, files: ContainerFiles, words: str) -> None:
    with pytest.raises(NodeNotReady, match=words) as refused:
        plan(0, node=node, files=files)

    assert refused.value.about == "claim team-a/train"
    assert device_name(0) in str(refused.value)


# Holds

GPU = GpuIdentity(uuid_of(0), a_gpu(0).pci_bus_id)
INSTANCE = GpuInstance(GPU, "1g.10gb", 19, 3, 1)
PART = ComputeInstance(INSTANCE)
PLACE = Partition("1g.10gb", 3, 1)
DAEMON = MpsDaemon("one", (GPU,))
FOLDERS = Made((("pipe", "/mps/one/pipe"), ("shm", "/mps/one/shm")))


def mig_nodes(gpu_uuid: str, minor: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
    return (DeviceNode(f"/dev/nvidia{minor}"), DeviceNode(f"/dev/cap-{gi}"), DeviceNode(f"/dev/cap-{gi}-{ci}"))


WITH_PARTS = replace(FILES, mig_nodes=mig_nodes, host_node=lambda path: DeviceNode(path, type="c", major=511, minor=3))


def recorded(*made: tuple[Hold, Made]) -> dict[Hold, HoldRecord]:
    return {hold: HoldRecord(HoldState.MADE, BOOT, facts) for hold, facts in made}


def finished_spec(device: HeldDevice, records: dict[Hold, HoldRecord], node: KnownNode = A_NODE) -> dict[str, Any]:
    made = plan_for(a_ref(), WantedClaim((device,), tuple(records)), node, WITH_PARTS)
    return spec_of(finished_plan(made.entry, records, node, WITH_PARTS))


def nodes_in(spec: dict[str, Any]) -> list[str]:
    return [node["path"] for node in spec["devices"][0]["containerEdits"].get("deviceNodes", [])]


def env_in(spec: dict[str, Any]) -> list[str]:
    env: list[str] = spec["devices"][0]["containerEdits"]["env"]
    return env


def test_what_must_be_made_first_has_no_file_yet_and_remembers_what_will_not_be_seen() -> None:
    made = plan_for(a_ref(), WantedClaim((a_held_device(0),), (MigMode(GPU), INSTANCE)), A_NODE, FILES)

    assert (made.content, made.entry.cdi_digest) == (None, None)
    assert [hold for hold, _ in made.remembered] == [MigMode(GPU)]
    assert uuid_of(0) in made.remembered[0][1][KEPT]
    assert "MIG mode of GPU" in str(made)


def test_a_part_that_was_made_is_what_the_journal_says_came_of_it() -> None:
    device = a_held_device(0, device="part", kind=DeviceKind.MIG, partition=PLACE)
    came = Made((("ci", "0"), ("gi", "9"), ("minor", "5"), ("uuid", "MIG-made")))

    spec = finished_spec(device, recorded((MigMode(GPU), Made()), (INSTANCE, Made()), (PART, came)))

    assert nodes_in(spec) == ["/dev/nvidia5", "/dev/cap-9", "/dev/cap-9-0"]
    assert env_in(spec) == ["NVIDIA_DRA_DEVICE_PART=MIG-made"]


def test_a_claim_whose_part_the_journal_lost_is_given_no_container() -> None:
    device = a_held_device(0, device="part", kind=DeviceKind.MIG, partition=PLACE)
    entry = plan_for(a_ref(), WantedClaim((device,), (MigMode(GPU), INSTANCE, PART)), A_NODE, WITH_PARTS).entry

    with pytest.raises(NodeNotReady, match="which is not made"):
        finished_plan(entry, recorded((MigMode(GPU), Made()), (INSTANCE, Made())), A_NODE, WITH_PARTS)


def test_a_part_that_exists_is_looked_up_by_its_uuid() -> None:
    instances = [gpu_instance("1g.10gb", 3, 1, compute_instance("1g.10gb", 1, number=7))]
    node = a_node(a_gpu(0, mig=mig(enabled=True, instances=instances)))
    uuid = instances[0].compute_instances[0].uuid
    device = a_held_device(0, device="part", kind=DeviceKind.MIG, partition=PLACE, mig_uuid=uuid)

    assert nodes_in(finished_spec(device, {}, node)) == ["/dev/nvidia0", "/dev/cap-4", "/dev/cap-4-0"]
    with pytest.raises(NodeNotReady, match="no longer exists"):
        finished_spec(replace(device, mig_uuid="MIG-gone"), {}, node)


@rows("made_on_demand", [True, False])
@rows("profile, graphics", [("1g.24gb+gfx", True), ("1g.24gb", False), ("1g.24gb+me", False)])
def test_a_part_for_graphics_has_the_drm_nodes_of_its_gpu_too(
    profile: str, graphics: bool, made_on_demand: bool
) -> None:
    drm = (DeviceNode("/dev/dri/card1"), DeviceNode("/dev/dri/renderD128"))
    files = replace(WITH_PARTS, gpu_nodes=given_nodes({uuid_of(0): (DeviceNode("/dev/nvidia0"), *drm)}))
    instance = GpuInstance(GPU, profile, 47, 3, 1)
    instances = [gpu_instance(profile, 3, 1, compute_instance(profile, 1, number=7))]
    node = a_node(a_gpu(0, mig=mig(enabled=True, instances=[] if made_on_demand else instances)))
    uuid = None if made_on_demand else instances[0].compute_instances[0].uuid
    device = a_held_device(0, device="part", kind=DeviceKind.MIG, partition=Partition(profile, 3, 1), mig_uuid=uuid)
    came = Made((("ci", "0"), ("gi", "4"), ("uuid", "MIG-made")))
    made = ((MigMode(GPU), Made()), (instance, Made()), (ComputeInstance(instance), came))
    records = recorded(*made) if made_on_demand else {}
    entry = plan_for(a_ref(), WantedClaim((device,), tuple(records)), node, files).entry

    spec = spec_of(finished_plan(entry, records, node, files))

    expected = ["/dev/nvidia0", "/dev/cap-4", "/dev/cap-4-0"]
    by_path = [path for path in nodes_in(spec) if path.startswith("/dev/dri/by-path/")]
    assert [path for path in nodes_in(spec) if path not in by_path] == expected + [
        node.path for node in drm if graphics
    ]
    assert len(by_path) == (2 if graphics else 0)


@pytest.mark.parametrize("made_on_demand", [True, False])
def test_a_part_that_was_destroyed_under_its_claim_is_given_to_no_container(made_on_demand: bool) -> None:
    """Somebody may have made another in its place, with the same device nodes."""
    instances = [gpu_instance("1g.10gb", 3, 1, compute_instance("1g.10gb", 1, number=7))]
    uuid = instances[0].compute_instances[0].uuid
    node = replace(a_node(a_gpu(0, mig=mig(enabled=True, instances=instances))), lost=frozenset({uuid}))
    device = a_held_device(
        0, device="part", kind=DeviceKind.MIG, partition=PLACE, mig_uuid=None if made_on_demand else uuid
    )
    came = Made((("ci", "0"), ("gi", "9"), ("minor", "5"), ("uuid", uuid)))
    records = recorded((MigMode(GPU), Made()), (INSTANCE, Made()), (PART, came)) if made_on_demand else {}

    with pytest.raises(NodeNotReady, match="was deleted while the claim held it"):
        finished_spec(device, records, node)


@pytest.mark.parametrize("order", [1, -1])
def test_a_gpu_that_a_claim_uses_and_also_looks_at_is_one_device_that_it_uses(order: int) -> None:
    uses, looks = a_held_device(0), replace(a_held_device(0), admin_access=True)
    made = plan_for(a_ref(), WantedClaim((uses, looks)[::order]), A_NODE, FILES)

    (variable,) = env_in(spec_of(made))
    assert "ADMIN" not in variable


def test_who_only_looks_at_a_part_that_is_made_on_demand_sees_its_gpu() -> None:
    device = a_held_device(0, device="part", kind=DeviceKind.MIG, partition=PLACE, admin_access=True)

    spec = finished_spec(device, {})

    assert nodes_in(spec) == ["/dev/nvidia0"]
    assert env_in(spec) == [f"NVIDIA_DRA_ADMIN_DEVICE_PART={uuid_of(0)}"]


def test_a_share_is_served_by_the_daemon_of_its_device() -> None:
    sharing = SharedUse("MPS", True, thread_percentage=25, memory_bytes=1 << 30)
    part = a_held_device(0, device="part", kind=DeviceKind.MIG, partition=PLACE, mig_uuid="MIG-1", sharing=sharing)
    other = MpsDaemon("other", (GPU,), "MIG-2")
    instances = [gpu_instance("1g.10gb", 3, 1, compute_instance("1g.10gb", 1).model_copy(update={"uuid": "MIG-1"}))]
    node = a_node(a_gpu(0, mig=mig(enabled=True, instances=instances)))
    elsewhere = Made((("pipe", "/mps/other/pipe"), ("shm", "/mps/other/shm")))

    served = finished_spec(part, recorded((other, elsewhere), (MpsDaemon("one", (GPU,), "MIG-1"), FOLDERS)), node)
    unserved = finished_spec(part, recorded((other, elsewhere)), node)

    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in env_in(served)
    assert [variable for variable in env_in(served) if "MEM_LIMIT" in variable] == [
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M"
    ]
    mounts = served["devices"][0]["containerEdits"]["mounts"]
    assert [mount["hostPath"] for mount in mounts] == ["/mps/one/pipe", "/mps/one/shm"]
    assert "mounts" not in unserved["devices"][0]["containerEdits"]


def test_a_claim_with_mps_leaves_the_limits_to_its_daemon() -> None:
    device = a_held_device(0, sharing=SharedUse("MPS"))

    spec = finished_spec(device, recorded((ComputeMode(GPU, 3), Made()), (DAEMON, FOLDERS)))

    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in env_in(spec)
    assert not [variable for variable in env_in(spec) if "PERCENTAGE" in variable or "MEM_LIMIT" in variable]
    assert finished_spec(replace(device, sharing=None), recorded((DAEMON, FOLDERS))) == spec


def test_two_parts_of_one_claim_are_two_mig_devices() -> None:
    holds, devices, came = [], [], []
    for start in (3, 4):
        parent = replace(INSTANCE, start=start)
        place = Partition("1g.10gb", start, 1)
        name = f"part-{start}"
        devices.append(a_held_device(0, device=name, kind=DeviceKind.MIG, partition=place, cdi_ids=(f"x/y={name}",)))
        came.append((parent, Made((("gi", str(start)),))))
        holds.append(ComputeInstance(parent))
        came.append((holds[-1], Made((("ci", "0"), ("gi", str(start)), ("uuid", f"MIG-{start}")))))
    records = recorded((MigMode(GPU), Made()), *came)
    entry = plan_for(a_ref(), WantedClaim(tuple(devices), tuple(records)), A_NODE, WITH_PARTS).entry

    spec = spec_of(finished_plan(entry, records, A_NODE, WITH_PARTS))

    assert [device["containerEdits"]["env"] for device in spec["devices"]] == [
        ["NVIDIA_DRA_DEVICE_PART_3=MIG-3"],
        ["NVIDIA_DRA_DEVICE_PART_4=MIG-4"],
    ]


@pytest.mark.parametrize(("api", "paths"), [(False, ["/dev/vfio/7"]), (True, ["/dev/vfio/7", "/dev/vfio/vfio"])])
def test_a_gpu_for_a_virtual_machine_needs_nothing_that_nvml_says(api: bool, paths: list[str]) -> None:
    device = a_held_device(0, device="vfio", kind=DeviceKind.VFIO, vfio_api=api)
    came = Made((("api", "/dev/vfio/vfio"), ("node", "/dev/vfio/7")))

    spec = finished_spec(device, recorded((VfioBinding(GPU, False), came)), a_node())

    assert nodes_in(spec) == paths
    assert "containerEdits" not in spec

    entry = plan_for(a_ref(), WantedClaim((device,), (VfioBinding(GPU, False),)), a_node(), FILES).entry
    with pytest.raises(NodeNotReady, match="has no device node /dev/vfio/7 now"):
        finished_plan(entry, recorded((VfioBinding(GPU, False), came)), a_node(), FILES)


def test_a_hold_of_a_newer_release_is_not_undone_by_guessing() -> None:
    newer = replace(plan(0).entry, holds=(UnknownHold("power-cap", "{}"),))

    with pytest.raises(NodeNotReady, match="power-cap"):
        check_releasable(newer)


def test_a_gpu_that_is_lost_is_given_to_nobody_and_looked_at_by_everybody() -> None:
    condition = HealthCondition(type="GpuLost", severity="Critical", message="it fell off the bus", since="")
    lost = a_gpu(1).model_copy(update={"health": HealthFacts(healthy=False, conditions=[condition])})
    node = a_node(a_gpu(0), lost)

    with pytest.raises(NodeNotReady, match="is lost: it fell off the bus"):
        plan(1, node=node)

    assert plan(0, node=node).content
    looking = tuple(replace(a_held_device(number), admin_access=True) for number in range(2))
    assert plan_for(a_ref(), WantedClaim(looking), node, FILES).content


def test_a_runtime_that_does_not_read_groups_is_told_of_none() -> None:
    """It would refuse the file, and no container of the claim would start."""
    closed = DeviceNode("/dev/nvidia0", type="c", major=195, minor=0, file_mode=0o660, gid=44)
    files = replace(FILES, gpu_nodes=given_nodes({uuid_of(0): (closed,)}))
    whole = spec_of(plan(0, files=replace(files, readable="0.7.0")))
    assert whole["cdiVersion"] == "0.7.0"
    assert whole["devices"][0]["containerEdits"]["additionalGids"] == [44]
    fitted = spec_of(plan(0, files=replace(files, readable="0.6.0")))
    assert fitted["cdiVersion"] in ("0.3.0", "0.5.0")
    del whole["devices"][0]["containerEdits"]["additionalGids"]
    assert fitted == {**whole, "cdiVersion": fitted["cdiVersion"]}
