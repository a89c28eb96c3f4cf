"""What configurations, nodes and devices say about the meaning of resources, and the policy that follows."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.rows import rows

from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.migration.claims.publishing import PublishingAdvice, publishing
from dra_driver.migration.codes import (
    ALREADY_DRA,
    DOUBLE_ALLOCATION,
    IGNORED_BY_PLUGIN,
    INVALID_AMOUNT,
    MIG_LAYOUT,
    NO_COUNTERPART,
    PLUGIN_SETTING,
    UNREADABLE,
    VIRTUAL_MACHINE,
    FindingCode,
)
from dra_driver.migration.model import Demand, DeviceShare, Options, Want, What
from dra_driver.migration.understand.labels import Hints, Requirement
from dra_driver.migration.understand.meaning import Meaning, Stands
from dra_driver.migration.understand.plugin_config import PluginSharing
from dra_driver.migration.understand.surroundings import read
from dra_driver.quantity import Quantity

GPU = "nvidia.com/gpu"
FOUR = PluginSharing("TimeSlicing", 4)
SCHEMA = json.loads((Path(__file__).parents[3] / "charts/gpu-dra-driver/values.schema.json").read_text("utf-8"))


def meaning_of(*texts: str, **options: Any) -> Meaning:
    documents = [
        document
        for number, text in enumerate(texts)
        for document in read_documents(text, f"f{number}.yaml").raise_problems()
    ]
    meaning = read(documents, Options(**options))
    if offered(meaning).policy is not None:
        PublishingPolicy.of(offered(meaning).policy, about="the policy made")
    if offered(meaning).values is not None:
        jsonschema.Draft7Validator(SCHEMA).validate(offered(meaning).values)
    return meaning


def offered(meaning: Meaning, **options: Any) -> PublishingAdvice:
    return publishing(meaning, (), Options(**options))


def codes(meaning: Meaning) -> set[FindingCode]:
    return {finding.code for finding in meaning.findings}


def stands(meaning: Meaning, resource: str = GPU, *requirements: Requirement) -> list[Stands]:
    return list(meaning.meanings(resource, requirements, Hints()))


def plugin(sharing: str = "", flags: str = "") -> str:
    parts = ["version: v1", f"flags: {flags}" if flags else "", f"sharing: {sharing}" if sharing else ""]
    return "\n".join(part for part in parts if part) + "\n"


def config_map(name: str = "plugin", **texts: str) -> str:
    data = {key.replace("_", "-"): text for key, text in texts.items()}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def policy(name: str, default: str | None = None, strategy: str = "mixed", **more: Any) -> str:
    config = {"name": name, **({"default": default} if default else {})}
    spec = {"devicePlugin": {"config": config}, "mig": {"strategy": strategy}, **more}
    return yaml.safe_dump(
        {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "policy"}, "spec": spec}
    )


def node(name: str, labels: dict[str, str], **allocatable: str) -> str:
    labels = {f"nvidia.com/{key}": value for key, value in labels.items()}
    amounts = {f"nvidia.com/{key}": value for key, value in allocatable.items()}
    metadata = {"name": name, "labels": labels}
    return yaml.safe_dump(
        {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": {"cpu": "8", **amounts}}}
    )


SLICED = "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
RENAMED = "{timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
MPS = "{mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}"


def test_nothing_known_means_nothing() -> None:
    meaning = meaning_of("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: 'version: two'}\n")
    assert meaning == Meaning()


@rows("text, resource, what",
    [
        (plugin(SLICED), GPU, [Stands(What.GPU, None, FOUR)]),
        (plugin(SLICED), f"{GPU}.shared", []),
        (plugin(RENAMED), GPU, []),
        (plugin(RENAMED), f"{GPU}.shared", [Stands(What.GPU, None, PluginSharing("TimeSlicing", 4, renamed=True))]),
        (plugin(MPS), GPU, [Stands(What.GPU, None, PluginSharing("MPS", 10, one_only=True))]),
        (plugin(flags="{migStrategy: none}"), GPU, [Stands(What.GPU)]),
        (plugin(flags="{migStrategy: single}"), GPU, [Stands(What.MIG)]),
        (plugin(flags="{migStrategy: mixed}"), "nvidia.com/mig-1g.10gb.me", [Stands(What.MIG, "1g.10gb+me")]),
        (
            plugin("{timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 2}]}}"),
            GPU,
            [Stands(What.GPU, None, PluginSharing("TimeSlicing", 2, one_only=True))],
        ),
        (
            plugin("{timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 3, rename: mig-1g.5gb.shared}]}}"),
            "nvidia.com/mig-1g.5gb",
            [Stands(What.MIG, "1g.5gb", PluginSharing("TimeSlicing", 3))],
        ),
        (plugin("{mps: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 3}]}}"), "nvidia.com/mig-1g.5gb",
         [Stands(What.MIG, "1g.5gb")]),
        (f"config:\n  map:\n    a: |\n      {plugin(SLICED).replace(chr(10), chr(10) + '      ')}\n", GPU,
         [Stands(What.GPU, None, FOUR)]),
        ("migStrategy: single\ntolerations: []\n", GPU, [Stands(What.MIG)]),
        ("devicePlugin: {enabled: true}\nmig: {strategy: mixed}\n", GPU, [Stands(What.GPU)]),
        (policy("none", strategy="single"), GPU, [Stands(What.GPU)]),
    ],
)  # fmt: skip
def test_a_configuration_says_what_a_resource_is(text: str, resource: str, what: list[Stands]) -> None:
    assert stands(meaning_of(text), resource) == what


def test_of_several_configurations_nodes_choose_one_by_a_label() -> None:
    maps = config_map(a100=plugin(SLICED), t4=plugin(MPS), whole=plugin(flags="{migStrategy: none}"))
    meaning = meaning_of(maps, policy("plugin", "whole"))
    label = "nvidia.com/device-plugin.config"
    assert stands(meaning, GPU, Requirement(label, "In", ("a100",))) == [Stands(What.GPU, None, FOUR)]
    assert stands(meaning, GPU, Requirement(label, "DoesNotExist")) == [Stands(What.GPU)]
    assert len(stands(meaning)) == 3
    assert offered(meaning).policy["sharing"] == [
        {"nodes": {"labelSelector": {"matchLabels": {label: "a100"}}}, "strategy": "TimeSlicing", "replicas": 4},
        {"nodes": {"labelSelector": {"matchLabels": {label: "t4"}}}, "strategy": "MPS", "replicas": 10},
    ]


def test_the_default_configuration_is_for_nodes_that_name_none() -> None:
    meaning = meaning_of(config_map(default=plugin(SLICED), whole=plugin(flags="{migStrategy: none}")))
    assert meaning.default_config == "default"
    assert offered(meaning).policy is not None
    selector = {
        "matchExpressions": [{"key": "nvidia.com/device-plugin.config", "operator": "NotIn", "values": ["whole"]}]
    }
    assert offered(meaning).policy["sharing"][0]["nodes"] == {"labelSelector": selector}


def test_the_operator_says_which_config_map_is_in_force() -> None:
    texts = [config_map("old", any=plugin(MPS)), config_map("plugin", any=plugin(SLICED)), policy("plugin", "any")]
    assert stands(meaning_of(*texts)) == [Stands(What.GPU, None, FOUR)]


def test_nodes_say_more_than_configurations() -> None:
    single = {"gpu.product": "NVIDIA-A30-MIG-1g.6gb", "mig.strategy": "single", "gpu.memory": "5836"}
    sliced = {"gpu.product": "Tesla-T4-SHARED", "gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing",
              "gpu.memory": "15360", "mig.strategy": "single"}  # fmt: skip
    mixed = {"gpu.product": "NVIDIA-A100-SXM4-40GB", "mig.strategy": "mixed", "gpu.sharing-strategy": "none"}
    meaning = meaning_of(
        node("a", single, gpu="4"), node("b", sliced, gpu="16"), node("c", mixed, **{"mig-1g.5gb": "7"}), node("d", {})
    )
    assert [view.title for view in meaning.views] == ["node a", "node b", "node c"]
    assert stands(meaning) == [Stands(What.MIG, "1g.6gb"), Stands(What.GPU, None, FOUR)]
    assert stands(meaning, "nvidia.com/mig-1g.5gb") == [Stands(What.MIG, "1g.5gb")]
    t4 = Requirement("nvidia.com/gpu.product", "In", ("Tesla-T4-SHARED",))
    assert stands(meaning, GPU, t4) == [Stands(What.GPU, None, FOUR)]
    assert meaning.gpu_memory([t4]) == Quantity.parse("15Gi")
    assert meaning.gpu_memory([]) is None


def test_nodes_of_one_kind_get_one_rule() -> None:
    sliced = {"gpu.product": "Tesla-T4", "gpu.replicas": "4", "gpu.sharing-strategy": "mps", "mig.strategy": "none"}
    meaning = meaning_of(*(node(name, sliced, **{"gpu.shared": "16"}) for name in ("b", "a")), replicas=1)
    assert offered(meaning).policy["sharing"] == [{"nodes": {"names": ["a", "b"]}, "strategy": "MPS", "replicas": 4}]
    assert offered(meaning).values is not None
    classes = offered(meaning).values["deviceClasses"]
    assert classes == {"extendedResources": {"shared.gpu.nvidia.com": "nvidia.com/gpu.shared"}}


def test_what_a_person_says_fills_in_what_nobody_else_said() -> None:
    meaning = meaning_of(replicas=5, sharing_strategy="mps", gpu_memory=Quantity.parse("40Gi"))
    assert stands(meaning) == [Stands(What.GPU, None, PluginSharing("MPS", 5))]
    assert meaning.gpu_memory([]) == Quantity.parse("40Gi")
    assert offered(meaning).policy["sharing"] == [{"strategy": "MPS", "replicas": 5}]
    assert stands(meaning_of(replicas=1)) == [Stands(What.GPU)]
    assert stands(meaning_of(mig_strategy="single", mig_profile="1g.5gb")) == [Stands(What.MIG, "1g.5gb")]
    assert stands(meaning_of(plugin(SLICED), replicas=9)) == [Stands(What.GPU, None, FOUR)]


def daemon_set(image: str, **container: Any) -> str:
    inner = {"containers": [{"name": "other", "image": "x"}, {"name": "c", "image": image, **container}]}
    obj = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": inner}},
    }
    return yaml.safe_dump(obj)


PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"


@rows(
    "container, what",
    [
        ({}, None),
        ({"args": ["--mig-strategy=single"]}, What.MIG),
        ({"command": ["nvidia-device-plugin", "--mig-strategy", "mixed"]}, What.GPU),
        ({"env": [{"name": "MIG_STRATEGY", "value": "single"}]}, What.MIG),
        ({"env": [{"name": "MIG_STRATEGY", "value": "single"}], "args": ["--mig-strategy=none"]}, What.GPU),
        ({"args": ["--mig-strategy"], "env": [{"name": "MIG_STRATEGY"}, 5]}, None),
    ],
)
def test_flags_and_variables_of_the_device_plugin_are_read(container: JsonObject, what: What | None) -> None:
    meaning = meaning_of(daemon_set(PLUGIN, **container))
    assert [counterpart.what for counterpart in stands(meaning)] == ([what] if what is not None else [])
    assert [(finding.code, finding.place.path) for finding in meaning.findings] == [
        (DOUBLE_ALLOCATION, "spec.template.spec.containers[1]")
    ]


def test_flags_go_before_the_configuration() -> None:
    file = plugin(flags="{migStrategy: mixed}")
    assert stands(meaning_of(file, daemon_set(PLUGIN, args=["--mig-strategy=single"]))) == [Stands(What.MIG)]


@pytest.mark.parametrize("image", ["nvidia/dcgm-exporter:4", "registry.example.com/app:device", ""])
def test_other_daemon_sets_say_nothing(image: str) -> None:
    assert meaning_of(daemon_set(image)) == Meaning()


def test_slices_say_how_much_memory_gpus_have() -> None:
    device = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}}
    part = {"name": "mig", "attributes": {"type": {"string": "mig"}}, "capacity": {"memory": {"value": "5Gi"}}}
    spec = {"driver": "gpu.nvidia.com", "devices": [device, part]}
    slice_ = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"}, "spec": spec}
    assert meaning_of(yaml.safe_dump(slice_), plugin(SLICED)).gpu_memory([]) == Quantity.parse("80Gi")


LAYOUTS = """\
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-1g.5gb:
  - devices: all
    mig-enabled: true
    mig-devices: {1g.5gb: 7}
  custom:
  - device-filter: ["0x20B010DE"]
    devices: [0, 1]
    mig-enabled: true
    mig-devices: {3g.20gb: 2}
  - devices: [2]
    mig-enabled: true
    mig-devices: {"1g.10gb+me": 1, 2g.10gb: 2}
"""


def test_layouts_are_told_and_become_rules_on_request() -> None:
    messages = [finding.message for finding in meaning_of(LAYOUTS).findings]
    assert messages == [
        "layout all-1g.5gb has MIG devices: 1g.5gb",
        "layout custom has MIG devices: 1g.10gb+me, 2g.10gb, 3g.20gb",
    ]
    meaning = meaning_of(config_map("layouts", config_yaml=LAYOUTS), policy("none"), dynamic_mig=True)
    assert offered(meaning, dynamic_mig=True).policy is not None
    label = "nvidia.com/mig.config"
    assert offered(meaning, dynamic_mig=True).policy["mig"] == [
        {"nodes": {"labelSelector": {"matchLabels": {label: "all-1g.5gb"}}}, "mode": "Dynamic", "profiles": ["1g.5gb"]},
        {
            "nodes": {"labelSelector": {"matchLabels": {label: "custom"}}},
            "mode": "Dynamic",
            "profiles": ["1g.10gb+me", "2g.10gb", "3g.20gb"],
        },
    ]
    assert offered(meaning_of(LAYOUTS, policy("none"))).policy is None


SINGLE = policy("c", strategy="single", migManager={"config": {"default": "all-1g.5gb"}})


@rows(
    "texts, profile",
    [
        ([SINGLE], "1g.5gb"),
        ([SINGLE.replace("all-1g.5gb", "custom"), LAYOUTS], None),
        ([SINGLE.replace("all-1g.5gb", "own")], None),
        ([SINGLE, LAYOUTS.replace("all-1g.5gb:", "all-1g.5gb:\n  - {devices: [8], mig-enabled: false}")], None),
        ([SINGLE.replace("all-1g.5gb", "own"), LAYOUTS.replace("all-1g.5gb", "own")], "1g.5gb"),
        ([SINGLE.replace("single", "mixed")], None),
        (["migManager: {config: {default: all-1g.10gb.me}}\nmig: {strategy: single}\n"], "1g.10gb+me"),
    ],
)
def test_the_layout_of_nodes_that_name_none_says_what_a_mig_device_is(texts: list[str], profile: str | None) -> None:
    meaning = meaning_of(*texts)
    (counterpart,) = stands(meaning)
    assert counterpart.profile == profile
    messages = [finding.message for finding in meaning.findings if "are assumed to have the layout" in finding.message]
    assert len(messages) == (profile is not None)


BY_DEFAULT = policy("c", strategy="single")


@rows("texts, what, message",
    [
        ([BY_DEFAULT], What.GPU, "single is the GPU Operator's default"),
        (["devicePlugin: {enabled: true}\nmig: {strategy: single}\n"], What.GPU, "is the GPU Operator's default"),
        ([SINGLE.replace("all-1g.5gb", "all-disabled"), LAYOUTS], What.GPU, "have the layout all-disabled, so"),
        ([SINGLE.replace("all-1g.5gb", "w"), LAYOUTS.replace("all-disabled", "w")], What.GPU, "the layout w, so"),
        ([BY_DEFAULT, LAYOUTS], What.MIG, None),
        ([SINGLE.replace("all-1g.5gb", "own")], What.MIG, None),
        ([BY_DEFAULT, plugin(flags="{migStrategy: single}")], What.MIG, None),
        ([BY_DEFAULT, daemon_set(PLUGIN, args=["--mig-strategy=single"])], What.MIG, None),
        (["migStrategy: single\ntolerations: []\n"], What.MIG, None),
    ],
)  # fmt: skip
def test_the_operators_default_strategy_alone_makes_no_mig_devices(
    texts: list[str], what: What, message: str | None
) -> None:
    meaning = meaning_of(*texts)
    assert {counterpart.what for counterpart in stands(meaning)} == {what}
    messages = [finding.message for finding in meaning.findings if "assumed to be a whole GPU" in finding.message]
    assert (len(messages) == 1 and message in messages[0]) if message is not None else not messages


def test_a_person_who_says_it_goes_before_the_operators_default() -> None:
    assert stands(meaning_of(BY_DEFAULT, mig_profile="1g.5gb")) == [Stands(What.MIG, "1g.5gb")]
    assert stands(meaning_of(BY_DEFAULT, mig_strategy="single")) == [Stands(What.MIG)]


def test_the_layout_of_a_node_says_what_a_mig_device_is() -> None:
    labels = {"mig.strategy": "single", "mig.config": "own", "gpu.product": "NVIDIA-A30"}
    meaning = meaning_of(SINGLE, LAYOUTS.replace("all-1g.5gb", "own"), node("a", labels, gpu="4"))
    assert stands(meaning) == [Stands(What.MIG, "1g.5gb")]
    assert "are assumed to have" not in str(meaning.findings)


@rows("text, code, words",
    [
        (policy("c"), DOUBLE_ALLOCATION, "device plugin on all GPU nodes"),
        (policy("c", migManager={"config": {"name": "x"}}), MIG_LAYOUT, "MIG manager keeps layouts"),
        (policy("c", migManager={"gpuClientsConfig": {"name": "x"}}), NO_COUNTERPART, "stops clients"),
        (policy("c", cdi={"enabled": False}), PLUGIN_SETTING, "CDI is off"),
        (policy("c", gfd={"enabled": False}), PLUGIN_SETTING, "GPU Feature Discovery is off"),
        (policy("c", sandboxWorkloads={"enabled": True}), VIRTUAL_MACHINE, "virtual machines"),
        (policy("c"), PLUGIN_SETTING, "dcgm-exporter"),
        (policy("c", strategy="double"), UNREADABLE, "none of none, single, mixed"),
        ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: c}\n", UNREADABLE, "no spec"),
        ("apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nmetadata: {name: a}\n", ALREADY_DRA, "DRA stack"),
        (plugin(flags="{gdrcopyEnabled: true}"), PLUGIN_SETTING, "/dev/gdrdrv"),
        (plugin(flags="{gdsEnabled: true}"), PLUGIN_SETTING, "/dev/nvidia-fs*"),
        (plugin(flags="{mofedEnabled: true}"), PLUGIN_SETTING, "/dev/infiniband"),
        (plugin(flags="{deviceDiscoveryStrategy: tegra}"), PLUGIN_SETTING, "integrated GPUs"),
        (plugin(flags="{migStrategy: twice}"), UNREADABLE, "'twice'"),
        (plugin(flags="[]"), UNREADABLE, "not a mapping"),
        (plugin(flags="{plugin: {sharedDevicesAllocationPolicy: packed}}"), NO_COUNTERPART, "packed"),
        ("version: v1\nimex: {channelIDs: [0]}\n", PLUGIN_SETTING, "IMEX channel"),
        ("version: v1\nresources: {gpus: [{pattern: 'A100*', name: big}]}\n", IGNORED_BY_PLUGIN, "'A100*'"),
        (plugin("{timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 1}]}}"), IGNORED_BY_PLUGIN, "all"),
        (plugin("{timeSlicing: {resources: [{name: gpu, replicas: 2, rename: x}]}}"), IGNORED_BY_PLUGIN, "'x'"),
        (plugin("{timeSlicing: {resources: [{name: gpu, replicas: 1}]}}"), INVALID_AMOUNT, "above 1"),
        (plugin("{timeSlicing: {resources: [{replicas: 2}]}}"), UNREADABLE, "with a name"),
        (plugin("{mps: {resources: [{name: mig-1g.5gb, replicas: 2}]}}"), PLUGIN_SETTING, "by MPS"),
        (plugin("{timeSlicing: {resources: [{name: gpu, replicas: 2}]}, mps: {resources: [{name: gpu, replicas: 2}]}}"),
         UNREADABLE, "exclude each other"),
        (config_map(a="version: v1\nflags: [\n"), UNREADABLE, "is not YAML"),
        ("mig-configs: {a: [{devices: 5, mig-enabled: true, mig-devices: {1g.5gb: 7, 5: 1}}]}\n", MIG_LAYOUT,
         "MIG devices: 1g.5gb, 5"),
        ("version: v1\nmig-configs: [1]\n", UNREADABLE, "not a mapping of layouts"),
        ("version: v1\nmig-configs: {a: 1}\n", UNREADABLE, "layout a is not a list"),
        (config_map(device_config_yaml="nvidia: {deviceMemoryScaling: 1.5}\n"), NO_COUNTERPART, "deviceMemoryScaling"),
    ],
)  # fmt: skip
def test_what_is_not_carried_over_is_said(text: str, code: FindingCode, words: str) -> None:
    findings = [finding for finding in meaning_of(text).findings if finding.code is code and words in finding.message]
    assert len(findings) == 1
    assert findings[0].place.line >= 1
    assert findings[0].advice


def test_hami_has_names_of_its_own_and_offers_parts_of_gpus() -> None:
    text = (
        "nvidia:\n  resourceCountName: example.com/gpu\n  resourceMemoryName: example.com/mem\n  deviceSplitCount: 10\n"
    )
    meaning = meaning_of(config_map("hami-scheduler-device", device_config_yaml=text))
    hami = meaning.hami
    assert (hami.count, hami.memory, hami.installed) == ("example.com/gpu", "example.com/mem", True)
    assert offered(meaning).policy is not None
    nodes = {"labelSelector": {"matchLabels": {"gpu": "on"}}}
    assert offered(meaning).policy["sharing"] == [{"nodes": nodes, "strategy": "MPS", "capacity": ["memory"]}]
    with_cores = meaning_of(config_map("c", a_yaml="nvidia: {resourceCountName: x/y, defaultCores: 20}\n"))
    assert offered(with_cores).policy is not None
    assert offered(with_cores).policy["sharing"][0]["capacity"] == ["memory", "cores"]


EIGHT = Quantity.parse("8Gi")


@pytest.mark.parametrize(
    ("shares", "capacity"),
    [
        ([DeviceShare(memory=EIGHT)], ["memory"]),
        ([DeviceShare(memory_percent=5)], ["memory"]),
        ([DeviceShare(cores=5)], ["cores"]),
        ([DeviceShare(memory=EIGHT), DeviceShare(memory=EIGHT, cores=5)], ["memory", "cores"]),
    ],
)
def test_gpus_are_offered_in_the_amounts_that_workloads_ask_for(shares: list[DeviceShare], capacity: list[str]) -> None:
    published = publishing(Meaning(), [Demand((), Want(What.GPU, share=share)) for share in shares], Options())
    assert published.policy is not None
    assert published.policy["sharing"] == [{"strategy": "MPS", "capacity": capacity}]
    assert published.reasons
    PublishingPolicy.of(published.policy, about="the policy made")


def test_shares_by_number_and_mig_devices_need_no_amounts() -> None:
    demands = [
        Demand((), Want(What.GPU, share=DeviceShare(1))),
        Demand((), Want(What.MIG, share=DeviceShare(memory=EIGHT))),
    ]
    assert publishing(Meaning(), demands, Options()).policy is None


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ([plugin(flags="{migStrategy: mixed, nvidiaDriverRoot: /run/nvidia/driver}")],
         {"featureGates": {"MigExtendedResources": True}, "kubeletPlugin": {"driverRoot": "/run/nvidia/driver"}}),
        ([plugin(flags="{migStrategy: single}")],
         {"deviceClasses": {"extendedResources": {"gpu.nvidia.com": "", "mig.nvidia.com": GPU}}}),
        ([plugin(SLICED)], {"policy": {"sharing": [{"strategy": "TimeSlicing", "replicas": 4}]}}),
        ([plugin(flags="{nvidiaDriverRoot: /}")], {}),
        ([plugin(flags="{nvidiaDriverRoot: /a}"), policy("x", strategy="none")], {}),
    ],
)  # fmt: skip
def test_the_chart_gets_values_that_its_schema_accepts(texts: list[str], values: dict[str, Any]) -> None:
    assert offered(meaning_of(*texts)).values == values


def test_more_replicas_than_a_device_can_have_are_said() -> None:
    many = plugin("{timeSlicing: {resources: [{name: gpu, replicas: 500}]}}")
    meaning = meaning_of(many)
    assert offered(meaning).policy["sharing"][0]["replicas"] == 128
    assert any("500 replicas" in finding.message for finding in meaning.findings)


def test_a_node_that_offers_network_cards_only_is_no_node_with_gpus() -> None:
    """NVIDIA's Network Operator gives its cards names of the same prefix."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {"nvidia.com/hostdev": "4", "rdma/hca": "1"}},
    }
    (document,) = read_documents(json.dumps(node), "n.json").documents
    assert read([document], Options()).views == ()
    node["status"] = {"allocatable": {"nvidia.com/hostdev": "4", "nvidia.com/gpu": "1"}}
    (document,) = read_documents(json.dumps(node), "n.json").documents
    assert [view.title for view in read([document], Options()).views] == ["node n"]
