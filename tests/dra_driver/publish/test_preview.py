"""What policies would change before they are applied: dra_driver/publish/preview.py."""

from support.inventories import gpu, gpu_policy, inventory_spec, mig
from support.mig import MODELS, gpu_of

from dra_driver.api.gpupolicy import GpuPolicy, combined
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.resource import ResourceClaim
from dra_driver.publish.decisions import Users, decided
from dra_driver.publish.preview import NodePreview, counted, preview, users_by_node
from dra_driver.slices.features import ALL_FEATURES

A, B = gpu_of(MODELS[0]), gpu_of(MODELS[0], 1)
NODE = NodeInventorySpec.of(inventory_spec("node-a", [A, B]))


DYNAMIC = gpu_policy("ml", gpus={"uuids": [A.uuid]}, mig={"mode": "Dynamic"})


def previewed(*after: GpuPolicy, before: tuple[GpuPolicy, ...] = (), users: Users | None = None) -> NodePreview:
    return preview(NODE, None, {}, before, after, users or {}, ALL_FEATURES)


def test_devices_that_appear_vanish_and_change_are_named_with_their_kind() -> None:
    changes = previewed(DYNAMIC, gpu_policy("no", gpus={"uuids": [B.uuid]}, publish=False))
    assert set(changes.appear.values()) == {"mig"} and all(name.startswith(A.name) for name in changes.appear)
    assert changes.vanish == {B.name: "gpu"}
    assert changes.change == {A.name: "gpu"}, "it has counters now"
    assert counted(["mig", "gpu", "mig"]) == "1 gpu, 2 mig"
    everything = gpu_policy("all", publish=False, computeDomains={"channels": 2}, health={"evict": True})
    assert previewed(everything).vanish.keys() >= {A.name, B.name}
    for each in (gpu_policy("no", publish=False), DYNAMIC):
        assert previewed(each).changes


def test_what_is_so_already_changes_nothing() -> None:
    assert not previewed().changes
    assert not previewed(DYNAMIC, before=(DYNAMIC,)).changes
    held = decided(combined([DYNAMIC]), [DYNAMIC], NODE, {})
    assert not preview(NODE, held, {}, (), [DYNAMIC], {}, ALL_FEATURES).changes, "what holds is what the node was told"


def test_a_gpu_that_a_claim_uses_waits_and_the_devices_are_those_of_afterwards() -> None:
    changes = previewed(gpu_policy("no", publish=False), users={A.name: ["team/a"]})
    assert changes.vanish.keys() == {A.name, B.name}
    (waiting,) = changes.waiting
    assert str(waiting) == f"GPU {A.name} changes because of GpuPolicy no when claims team/a are gone"
    assert previewed(gpu_policy("no", publish=False)).waiting == ()


def test_a_rule_that_the_node_cannot_follow_has_its_policy_and_the_fix() -> None:
    passed = previewed(gpu_policy("vm", passthrough=True))
    assert not passed.changes
    assert {(limit.rule, bool(limit.fix)) for limit in passed.not_followed} == {("passthrough of GpuPolicy vm", True)}


def test_claims_use_devices_of_their_nodes_unless_by_admin_access() -> None:
    result = {"request": "a", "driver": "gpu.nvidia.com", "pool": "node-a", "device": A.name}
    results = [
        result,
        {**result, "device": B.name, "adminAccess": True},
        {**result, "driver": "other", "device": B.name},
    ]
    claim = ResourceClaim.of(
        {
            "metadata": {"name": "a", "namespace": "team"},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}},
        }
    )
    assert users_by_node([claim]) == {"node-a": {A.name: ["team/a"]}}


def test_a_gpu_that_is_reset_first_is_shown_as_it_will_be_and_named() -> None:
    a100 = gpu(mig=mig().model_copy(update={"switchable": False}))
    node = inventory_spec("node-a", [a100])
    policies = [gpu_policy("ml", mig={"mode": "Dynamic", "modeChange": "WhenIdle"})]
    changes = preview(node, None, {}, (), policies, {}, ALL_FEATURES)
    assert set(changes.appear.values()) == {"mig"} and changes.vanish == {a100.name: "gpu"}
    assert changes.not_followed == ()
    assert [str(gpu).rpartition(" when ")[2] for gpu in changes.waiting] == ["a reset has switched its MIG mode on"]
    held = decided(combined(policies), policies, node, {})
    assert preview(node, held, {}, policies, policies, {}, ALL_FEATURES).appear == changes.appear, "not yet switched"
    used = preview(node, None, {}, (), policies, {a100.name: ["team/a"]}, ALL_FEATURES)
    assert used.appear == changes.appear and used.waiting[0].claims == ["team/a"]
    assert a100.mig is not None
    ours = a100.mig.model_copy(update={"enabled": True, "pending": True, "switched": True})
    back = inventory_spec("node-a", [a100.model_copy(update={"mig": ours})])
    assert preview(back, None, {}, policies, (), {}, ALL_FEATURES).appear == {a100.name: "gpu"}
