"""Which rules that cannot be followed are named to a pod or claim that waits: those that would help it."""

from typing import Any

from support.allocation import Obj, gpu, published
from support.objects import allocation, claim, pod, result
from support.rows import rows

from dra_driver.allocation.loading import world_of
from dra_driver.api.meta import JsonObject
from dra_driver.cli.reading.files import shipped_classes
from dra_driver.explain.explain import explain_claim, explain_pod

ATTRIBUTES = "device.attributes['gpu.nvidia.com']"


def limited(node: str, rule: str | None, reason: str = "R", **fields: Any) -> JsonObject:
    limitation = {"driver": "gpu.nvidia.com", "reason": reason, "message": "it cannot", "fix": f"fix {node}", **fields}
    if rule is not None:
        limitation["rule"] = rule
    return {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "NodeInventory",
        "metadata": {"name": node},
        "spec": {"nodeName": node},
        "status": {"limitations": [{"gpus": ["gpu-0"], **limitation}]},
    }


def wanting(device_class: str = "gpu.nvidia.com", *selectors: str) -> JsonObject:
    wanted = claim()
    exactly = wanted["spec"]["devices"]["requests"][0]["exactly"]
    exactly["deviceClassName"] = device_class
    exactly["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    return wanted


def slices(node: str = "node-1", *devices: Obj) -> JsonObject:
    plain = gpu("gpu-0", sharing="exclusive", isolation="hardware", memory="80Gi")
    spec = published(*(devices or (plain,)), node=node).spec.to_wire()
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def findings(*objects: JsonObject) -> list[tuple[str, str, str]]:
    """About, text and fix of those about the policy."""
    loaded = world_of([*(shipped.obj for shipped in shipped_classes()), *objects])
    assert loaded.problems == ()
    reported = explain_claim(loaded.world, ("default", "gpu")).findings
    return [(finding.about, finding.text, finding.fix) for finding in reported if finding.code == "policy-not-followed"]


def test_a_gpu_that_changes_when_claims_are_gone_is_named_with_its_policy_and_the_claims() -> None:
    waiting = [{"gpu": "gpu-0", "uuid": "GPU-0", "claims": ["team/a", "team/b"], "policies": ["ml"]}]
    inventory = limited("node-1", None)
    inventory["status"] = {"policy": {"waiting": waiting}}
    for wanted, texts in (
        (PROFILE, ["GPU gpu-0 changes because of GpuPolicy ml when claims team/a, team/b are gone"]),
        (wanting(), []),
    ):
        loaded = world_of([*(shipped.obj for shipped in shipped_classes()), wanted, slices(), inventory])
        reported = explain_claim(loaded.world, ("default", "gpu")).findings
        assert [(finding.about, finding.text) for finding in reported if finding.code == "policy-waits"] == [
            ("node node-1", text) for text in texts
        ]


MIG, VFIO, SHARED = wanting("mig.nvidia.com"), wanting("vfio.gpu.nvidia.com"), wanting("shared.gpu.nvidia.com")
PROFILE = wanting("gpu.nvidia.com", f"{ATTRIBUTES}.profile == '1g.10gb'")
GUARDED = wanting("gpu.nvidia.com", f"has({ATTRIBUTES}.profile) && {ATTRIBUTES}.profile == '1g.10gb'")
BY_NAME = wanting("1g.10gb.mig.nvidia.com")
LARGE = wanting("gpu.nvidia.com", "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('100Gi')) >= 0")


@rows(
    "wanted, rules",
    [
        (MIG, ["mig[0]", None]),
        (PROFILE, ["mig[0]", None]),
        (GUARDED, ["mig[0]", None]),
        (BY_NAME, ["mig[0]", None]),
        (VFIO, ["passthrough[0]"]),
        (SHARED, ["sharing[0]"]),
        (LARGE, []),
    ],
)
@rows("rule", ["mig[0]", "passthrough[0]", "sharing[0]", "attributes[0]", None])
def test_a_rule_is_named_to_those_whom_it_would_help(
    wanted: JsonObject, rules: list[str | None], rule: str | None
) -> None:
    advice = findings(wanted, slices(), limited("node-1", rule))
    assert bool(advice) == (rule in rules)


def test_a_rule_for_shares_is_named_when_the_device_is_in_use() -> None:
    holder = {**claim("other"), "status": {"allocation": allocation(result("gpu-0"))}}
    assert findings(claim(), holder, slices(), limited("node-1", "sharing[1]")) == [
        ("node node-1", "rule sharing[1] of the policy cannot be followed on GPU gpu-0: it cannot", "Fix node-1.")
    ]


def test_nodes_with_the_same_limitation_are_named_together() -> None:
    nodes = [f"node-{number}" for number in range(1, 7)]
    objects = [obj for node in nodes for obj in (slices(node), limited(node, "mig[0]", gpus=["gpu-0", "gpu-1"]))]
    assert findings(MIG, *objects) == [
        (
            "node node-1, node-2, node-3 and 3 more",
            "rule mig[0] of the policy cannot be followed on 12 GPUs: it cannot",
            "Fix node-1. This is for node-1; do the same on node-2, node-3, node-4 and 2 more.",
        )
    ]


def test_who_fits_hears_of_no_rule() -> None:
    assert findings(claim(), slices(), limited("node-1", "sharing[0]"), limited("node-2", "mig[0]")) == []


def test_an_extended_resource_of_a_mig_profile_is_one_that_mig_would_serve() -> None:
    waits = pod("waits", [], node_name=None)
    waits["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    world = world_of(
        [*(shipped.obj for shipped in shipped_classes()), waits, slices(), limited("node-1", "mig[0]")]
    ).world
    codes = [finding.code for finding in explain_pod(world, ("default", "waits")).findings]
    assert codes == ["unknown-resource", "policy-not-followed"]


@rows(
    "device_class, offered_by",
    [
        ("mig.nvidia.com", "`spec: {mig: {mode: Dynamic}}`"),
        ("shared.gpu.nvidia.com", "`spec: {sharing: [{strategy: MPS, capacity: [memory, cores]}]}`"),
        ("vfio.gpu.nvidia.com", "`spec: {passthrough: true}`"),
        ("gpu.nvidia.com", None),
    ],
)
def test_who_asks_for_what_no_policy_offers_learns_which_policy_would(
    device_class: str, offered_by: str | None
) -> None:
    loaded = world_of([*(shipped.obj for shipped in shipped_classes()), wanting(device_class), slices()])
    fixes = [
        item.fix for item in explain_claim(loaded.world, ("default", "gpu")).findings if item.code == "not-offered"
    ]
    assert len(fixes) == (offered_by is not None) and all(offered_by in fix for fix in fixes if offered_by is not None)


def test_a_policy_that_offers_it_elsewhere_is_not_asked_for() -> None:
    wanted = wanting("mig.nvidia.com", f"{ATTRIBUTES}.profile == '3g.40gb'")
    partition = gpu("gpu-0-mig", type="mig", profile="1g.10gb")
    loaded = world_of([*(shipped.obj for shipped in shipped_classes()), wanted, slices(), slices("node-2", partition)])
    assert all(item.code != "not-offered" for item in explain_claim(loaded.world, ("default", "gpu")).findings)


def test_a_missing_class_of_a_mig_profile_comes_with_a_policy() -> None:
    loaded = world_of([*(shipped.obj for shipped in shipped_classes()), wanting("1g.10gb.mig.nvidia.com"), slices()])
    (finding,) = explain_claim(loaded.world, ("default", "gpu")).findings
    assert finding.code == "missing-class" and "offers profiles with a GpuPolicy" in finding.fix
