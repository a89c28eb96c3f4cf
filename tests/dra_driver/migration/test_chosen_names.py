"""GPUs that the device plugin's configuration names by their product, shared each in its way: workloads get shares of
these GPUs, and the policy shares these GPUs and no others.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.dractl import run
from support.inventories import compute_instance, gpu, gpu_instance, inventory_spec, mig
from support.migration import GPU, codes, documents_of, limits, meaning_of, pod, read

from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy, decode_policy
from dra_driver.api.resource import Attribute, Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cli.output import Status
from dra_driver.migration.codes import IGNORED_BY_PLUGIN, NO_COUNTERPART, PLUGIN_SETTING, UNREADABLE
from dra_driver.migration.meaning import Meaning
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Options, Share, Source, Target, What
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.describe import described_devices
from dra_driver.slices.features import ALL_FEATURES

H100, A100, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4"
MIXED = [gpu(0), gpu(1), gpu(2, product_name=A100), gpu(3, product_name=A100)]


def config(*patterns: tuple[str, str], way: str = "timeSlicing", strategy: str = "none", **sharing: Any) -> JsonObject:
    """`sharing` are fields of it, `resources` as (name, replicas) or as they are written."""
    entries = [
        one if isinstance(one, dict) else {"name": one[0], "replicas": one[1]} for one in sharing.pop("resources", ())
    ]
    gpus = [{"pattern": pattern, "name": name} for pattern, name in patterns]
    shared = {"sharing": {way: {**sharing, "resources": entries}}} if entries else {}
    return {"version": "v1", "flags": {"migStrategy": strategy}, "resources": {"gpus": gpus}, **shared}


def asking(*resources: str) -> list[JsonObject]:
    """Pods, of which one asks for each."""
    return [
        {**one, "metadata": {**one["metadata"], "name": f"p{number}"}}
        for number, one in enumerate(pod(limits({resource: 1})) for resource in resources)
    ]


def shares(policy: JsonObject | None, gpus: Sequence[GpuFacts]) -> dict[str, str | None]:
    """What the publisher makes of a node with these GPUs: by device, into how many shares; None: it is not shared."""
    typed = PublishingPolicy.of(policy or {"kind": "PublishingPolicy"}, about="policy")
    found = described_devices(inventory_spec("n", gpus), typed, {}, GPU_DRIVER, ALL_FEATURES)
    return {one.name: one.capacity["shares"].value if one.allow_multiple_allocations else None for one in found.devices}


def rules(meaning: Meaning) -> list[JsonObject]:
    return (meaning.policy or {}).get("sharing", [])


def test_of_a_mixed_node_exactly_the_named_gpus_are_shared(tmp_path: Path) -> None:
    """From files to the devices that the publisher makes of them."""
    given = config(("*H100*", "gpu-h100"), resources=[("nvidia.com/gpu-h100", 4)], renameByDefault=True)
    (tmp_path / "plugin.yaml").write_text(yaml.safe_dump(given))
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(asking("nvidia.com/gpu-h100.shared", GPU)))
    out = tmp_path / "out"
    outcome = run("migrate", str(tmp_path), "-o", str(out), "--nodes", "dgx-h100:1,dgx-a100-80:1", "--report", "json")
    assert outcome.exit_code == Status.DONE, outcome.output
    report = json.loads((out / "report.json").read_text()) if not outcome.stdout else json.loads(outcome.stdout)
    tried = {one["object"]["name"]: (one["verdict"], one["node"]) for one in report["verification"]["workloads"]}
    assert tried == {"p0": ("same", "dgx-h100"), "p1": ("same", "dgx-a100-80")}
    values = yaml.safe_load((out / "values.yaml").read_text())
    policy = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **values["policy"]}
    assert shares(decode_policy(yaml.safe_dump(policy), about="policy").to_wire(), MIXED) == {
        "gpu-00000000": "4", "gpu-00000001": "4", "gpu-00000002": None, "gpu-00000003": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "of_h100", "of_a100"),
    [
        (config(("*H100*", "h"), resources=[("h", 4)]), "4", None),
        (config(("*H100*", "h"), ("*A100*", "a"), resources=[("h", 4), ("a", 2)]), "4", "2"),
        (config(("*H100*", "h"), resources=[(GPU, 3)]), None, "3"),
        (config(("*H100*", "h"), resources=[(GPU, 3), ("h", 2)]), "2", "3"),
        (config(("*H100*", "h"), ("NVIDIA*", "h"), resources=[("h", 4)]), "4", "4"),
        (config(("*A100*", "gpu"), ("*", "h"), resources=[(GPU, 3)]), None, "3"),
        (config(("*A100*", "a"), ("NVIDIA*", "h"), resources=[("h", 3)]), "3", None),
        (config(("*H100*", "h"), way="mps", resources=[("h", 8)]), "8", None),
        (config(("*H100*", "h")), None, None),
    ],
)
def test_gpus_are_shared_as_the_configuration_says_of_their_product(
    given: JsonObject, of_h100: str | None, of_a100: str | None
) -> None:
    meaning = meaning_of(given, *asking("nvidia.com/h", "nvidia.com/a"))
    found = shares(meaning.policy, MIXED)
    assert found == {
        "gpu-00000000": of_h100, "gpu-00000001": of_h100, "gpu-00000002": of_a100, "gpu-00000003": of_a100
    }  # fmt: skip


def by_the_plugin(given: JsonObject, product: str) -> tuple[str, int | None]:
    """The name of such a GPU's resource, and its replicas. Source: internal/rm/device_map.go."""
    patterns = [*((one["pattern"], one["name"]) for one in given["resources"]["gpus"]), ("*", "gpu")]

    def fits(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return any(fits(pattern[1:], text[start:]) for start in range(len(text) + 1))
        return bool(text) and text[0] == pattern[0] and fits(pattern[1:], text[1:])

    name = next(name for pattern, name in patterns if fits(pattern, product))
    entries = given.get("sharing", {}).get("timeSlicing", {}).get("resources", ())
    return f"nvidia.com/{name}", next((one["replicas"] for one in entries if one["name"] == f"nvidia.com/{name}"), None)


PIECES = st.lists(
    st.sampled_from(["*", "NVIDIA ", "A", "H", "100", "[4]", "?", "-SXM4-80GB"]), min_size=1, max_size=3
).map("".join)
NAMES = st.sampled_from(["a", "b", "gpu"])


@given(
    patterns=st.lists(st.tuples(PIECES, NAMES), min_size=1, max_size=4),
    replicas=st.dictionaries(NAMES, st.integers(2, 5), max_size=3),
    products=st.lists(st.sampled_from([H100, A100, T4, "A", "H[4]", "?", "A100"]), min_size=1, unique=True),
)
def test_policy_and_claims_say_of_each_gpu_what_the_device_plugin_says(
    patterns: list[tuple[str, str]], replicas: Mapping[str, int], products: list[str]
) -> None:
    """Patterns are tried in order, the first that fits gives the name, and the name says how often it is shared."""
    given_ = config(*patterns, resources=[(f"nvidia.com/{name}", number) for name, number in replicas.items()])
    meaning = meaning_of(given_, *asking("nvidia.com/a", "nvidia.com/b", GPU))
    if not any(name != "gpu" for _, name in patterns):
        return
    policy = PublishingPolicy.of(meaning.policy or {"kind": "PublishingPolicy"}, about="policy")
    for number, product in enumerate(products):
        name, expected = by_the_plugin(given_, product)
        rule = policy.sharing_rule("n", {}, gpu(number, product_name=product))
        assert (rule.replicas if rule is not None else None) == expected
        for resource in ("nvidia.com/a", "nvidia.com/b", GPU):
            if resource != GPU and resource.removeprefix("nvidia.com/") not in [one for _, one in patterns]:
                continue
            (demand,) = read(asking(resource)[0], meaning).demands
            assert fits(demand.want.selectors, product) == (resource == name)
            if resource == name:
                assert (demand.want.share is not None) == (expected is not None)


def fits(selectors: Iterable[str], product: str) -> bool:
    """Whether those of the product do; whether it is shared is another question."""
    device = Device(name="d", attributes={"productName": Attribute(string=product)})
    own = [one for one in selectors if ".sharing" not in one]
    return all(compile_selector(one).matches(CelDevice(GPU_DRIVER, device)) for one in own)


def test_shares_of_named_mig_devices_are_those_of_their_profiles() -> None:
    given = config(strategy="mixed", resources=[("small", 3), ("mig-2g.20gb", 2)])
    given["resources"] = {"mig": [{"pattern": "1g.*", "name": "small"}]}
    meaning = meaning_of(given, *asking("nvidia.com/small"))
    (demand,) = read(asking("nvidia.com/small")[0], meaning).demands
    assert (demand.want.what, demand.want.share) == (What.MIG, Share(number=1))
    instances = [
        gpu_instance(name, start, size, compute_instance(name, size))
        for name, start, size in (("1g.10gb", 0, 1), ("2g.20gb", 2, 2), ("3g.40gb", 4, 4))
    ]
    node = [gpu(0, mig=mig(enabled=True, instances=instances)), gpu(1)]
    found = shares(meaning.policy, node)
    assert {name.partition("-mig-")[2]: number for name, number in found.items()} == {
        "1g10gb-0": "3", "2g20gb-2": "2", "3g40gb-4": None, "": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "number", "shared"),
    [
        ("nvidia.com/gpu-h100", 1, None),
        ("nvidia.com/slice", 2, Share(number=2)),
        ("nvidia.com/gpu-h100.shared", 1, None),
    ],
)
def test_shares_have_the_name_that_is_chosen_for_them(asked: str, number: int, shared: Share | None) -> None:
    entry = {"name": "nvidia.com/gpu-h100", "replicas": 4, "rename": "slice"}
    given = config(("*H100*", "gpu-h100"), resources=[entry], renameByDefault=True)
    found = read(pod(limits({asked: number})), meaning_of(given, *asking("nvidia.com/slice")))
    assert [one.want.share for one in found.demands] == ([shared] if shared else [None] * len(found.demands))
    assert asked == "nvidia.com/slice" or codes(found.findings)[0] in ("M002", "M019")


def test_more_shares_than_a_gpu_has_are_of_several() -> None:
    given = config(("*H100*", "h"), resources=[("h", 2)])
    (first, second, third) = read(pod(limits({"nvidia.com/h": 3})), meaning_of(given, *asking("nvidia.com/h"))).demands
    assert (first.want, first.want.distinct) == (second.want, True)
    assert third.want.share == Share(number=1)
    assert fits(third.want.selectors, H100)
    assert not fits(third.want.selectors, A100)


def node(name: str, **allocatable: str) -> JsonObject:
    amounts = {f"nvidia.com/{key.replace('_', '-')}": amount for key, amount in allocatable.items()}
    labels = {"nvidia.com/gpu.product": H100.replace(" ", "-"), "nvidia.com/gpu.present": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts},
    }


SLICED = config(("*H100*", "gpu-h100"), resources=[("nvidia.com/gpu-h100", 4)])


def test_nodes_show_that_chosen_names_are_heeded() -> None:
    meaning = meaning_of(SLICED, node("n1", gpu_h100="8"))
    assert rules(meaning) == [{"gpus": {"products": ["*H100*"]}, "strategy": "TimeSlicing", "replicas": 4}]
    (said,) = [one for one in meaning.findings if one.code is PLUGIN_SETTING]
    assert "this one does: Node n1 has nvidia.com/gpu-h100" in said.message


def test_where_nodes_have_the_plugins_own_names_nothing_is_shared_by_chosen_ones() -> None:
    """Released device plugins do not heed `resources`, so that nobody shares anything by this configuration."""
    meaning = meaning_of(SLICED, node("n1", gpu="8"), *asking("nvidia.com/gpu-h100"))
    assert rules(meaning) == []
    ignored = [one.message for one in meaning.findings if one.code is IGNORED_BY_PLUGIN]
    assert len(ignored) == 2
    assert "no device is called nvidia.com/gpu-h100, so the device plugin passes it over" in ignored[1]
    found = read(asking("nvidia.com/gpu-h100")[0], meaning)
    assert codes(found.findings) == ["M002"]


def test_a_configuration_that_nobody_uses_by_its_names_shares_nothing_by_them() -> None:
    meaning = meaning_of(SLICED, *asking(GPU))
    assert rules(meaning) == []
    assert [one.code for one in meaning.findings] == [IGNORED_BY_PLUGIN, IGNORED_BY_PLUGIN]


def test_a_last_pattern_that_says_what_is_so_anyway_changes_nothing() -> None:
    """Many end their patterns with the one that the device plugin adds itself."""
    shared = [("nvidia.com/a100", 4), (GPU, 2)]
    given = config(("*A100*", "a100"), resources=shared)
    written = config(("*A100*", "a100"), ("*", "gpu"), resources=shared)
    pods = asking("nvidia.com/a100", GPU)
    assert rules(meaning_of(written, *pods)) == rules(meaning_of(given, *pods))
    (one,) = asking(GPU)
    wants = [[found.want for found in read(one, meaning_of(text, *pods)).demands] for text in (written, given)]
    assert wants[0] == wants[1]


def test_what_no_pattern_makes_is_said_and_not_shared() -> None:
    """The device plugin passes over an entry without devices. Source: updateDeviceMapWithReplicas."""
    given = config(("*H100*", "h"), resources=[("h", 4), ("b200", 2)])
    meaning = meaning_of(given, *asking("nvidia.com/h"))
    assert [rule["replicas"] for rule in rules(meaning)] == [4]
    (said,) = [one for one in meaning.findings if one.code is IGNORED_BY_PLUGIN]
    assert "no device is called nvidia.com/b200" in said.message


def test_a_pattern_without_a_name_is_said() -> None:
    given = config(("*H100*", "h"))
    given["resources"]["gpus"].append({"pattern": "*A100*"})
    meaning = meaning_of(given)
    assert UNREADABLE in [one.code for one in meaning.findings]


def test_some_gpus_of_a_name_are_shared_by_uuid() -> None:
    entry = {"name": "h", "replicas": 4, "devices": [gpu(1).uuid]}
    meaning = meaning_of(config(("*H100*", "h"), resources=[entry, (GPU, 2)]), *asking("nvidia.com/h"))
    assert shares(meaning.policy, MIXED[:3]) == {"gpu-00000000": None, "gpu-00000001": "4", "gpu-00000002": "2"}


@pytest.mark.parametrize("devices", [2, [0, 1], ["0:1"]])
def test_gpus_that_a_policy_cannot_name_are_said_and_not_shared(devices: object) -> None:
    entry = {"name": "h", "replicas": 4, "devices": devices}
    meaning = meaning_of(config(("*H100*", "h"), resources=[entry]), *asking("nvidia.com/h"))
    assert rules(meaning) == []
    (said,) = [one for one in meaning.findings if one.code is NO_COUNTERPART]
    assert "gpus: {uuids: [...]}" in said.advice


def test_a_class_that_answers_to_a_shared_name_is_the_class_of_the_shares() -> None:
    answering: JsonObject = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "h100.example.com"},
        "spec": {
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
            "extendedResourceName": "nvidia.com/gpu-h100",
        },
    }
    found = read(asking("nvidia.com/gpu-h100")[0], meaning_of(SLICED, answering))
    (demand,) = found.demands
    assert (demand.want.device_class, demand.want.share) == ("h100.example.com", Share(number=1))
    assert found.needs_claims == "extended resources do not tell shares from whole devices"


def test_quotas_and_queues_of_chosen_names_count_claims() -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"},
        "spec": {"hard": {"requests.nvidia.com/small": "8"}},
    }  # fmt: skip
    flavors = [{"name": "f", "resources": [{"name": "nvidia.com/small", "nominalQuota": 8}]}]
    group = {"coveredResources": ["nvidia.com/small"], "flavors": flavors}
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "c"},
        "spec": {"resourceGroups": [group]},
    }  # fmt: skip
    texts = [yaml.safe_dump(one) for one in (config(("*H100*", "small"), resources=[("small", 4)]), quota, queue)]
    sources = [
        Source(f"f{number}.yaml", text)
        for number, text in enumerate((*texts, yaml.safe_dump(asking("nvidia.com/small")[0])))
    ]
    result = migrate(sources, Options())
    after = {one.file: yaml.safe_load_all(one.after) for one in result.files}
    (changed,) = after["f1.yaml"]
    assert changed["spec"]["hard"] == {"shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "8"}
    (paste,) = [one.paste for one in result.findings if one.object.kind == "ClusterQueue"]
    assert "coveredResources: [nvidia.com/small, dra.gpu/shared]" in paste
    assert [one.choice.target for one in result.workloads] == [Target.CLAIMS]


def test_a_second_run_says_the_same_of_the_policy() -> None:
    """What was migrated asks for the names no more; it remembers that it did."""
    texts = [yaml.safe_dump(SLICED), yaml.safe_dump(asking("nvidia.com/gpu-h100")[0])]
    first = migrate([Source(f"f{n}.yaml", text) for n, text in enumerate(texts)], Options())
    assert first.changed
    second = migrate([Source(one.file, one.after) for one in first.files], Options())
    assert not second.changed
    assert second.policy == first.policy
    assert second.policy is not None
    assert "sharing" in second.policy
    assert documents_of(first.files[1].after)
