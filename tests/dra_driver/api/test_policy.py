"""A policy says what is published; a mistake in it is named with its field and changes nothing."""

import pytest
from support.inventories import gpu
from support.rows import rows

from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute
from dra_driver.errors import InvalidInput
from dra_driver.publish.policy_file import decode_policy

HEAD = "apiVersion: dra.gpu/v1alpha1\nkind: PublishingPolicy\n"


def policy(text: str) -> PublishingPolicy:
    return decode_policy(HEAD + text, about="policy p.yaml")


def test_without_rules_everything_is_published() -> None:
    everything = policy("")
    assert everything == PublishingPolicy.EVERYTHING
    assert everything.publishes("n", {}, gpu(0))
    assert everything.publishes_node("n", {})
    assert everything.extra_attributes("n", {}, gpu(0)) == {}
    assert not everything.asks_for_labels


def test_gpus_are_chosen_by_uuid_product_and_name() -> None:
    rules = policy("""
publish:
- gpus: {products: ["NVIDIA H*"], names: ["gpu-0000*"]}
- gpus: {uuids: ["GPU-000000ff-*"]}
""")
    assert rules.publishes("n", {}, gpu(1))
    assert not rules.publishes("n", {}, gpu(1, product_name="Tesla T4"))
    assert rules.publishes("n", {}, gpu(255, product_name="Tesla T4"))


def test_withholding_wins() -> None:
    rules = policy("""
publish: [{nodes: {names: ["gpu-*"]}}]
withhold: [{nodes: {names: ["gpu-1"]}, gpus: {uuids: ["GPU-00000000-*"]}}]
""")
    assert not rules.publishes("gpu-1", {}, gpu(0))
    assert rules.publishes("gpu-1", {}, gpu(1))
    assert rules.publishes("gpu-2", {}, gpu(0))
    assert not rules.publishes("cpu-1", {}, gpu(1))


def test_a_node_without_a_pool_is_one_that_rules_leave_out_as_a_whole() -> None:
    rules = policy("""
publish: [{nodes: {names: ["gpu-*"]}, gpus: {products: [Tesla*]}}]
withhold: [{nodes: {names: ["gpu-9"]}}, {gpus: {products: ["*"]}}]
""")
    assert rules.publishes_node("gpu-1", {})
    assert not rules.publishes_node("gpu-9", {})
    assert not rules.publishes_node("cpu-1", {})


@rows(
    "selector, labels, matches",
    [
        ("matchLabels: {a: x}", {"a": "x", "b": "y"}, True),
        ("matchLabels: {a: x}", {"a": "z"}, False),
        ("matchExpressions: [{key: a, operator: In, values: [x, z]}]", {"a": "z"}, True),
        ("matchExpressions: [{key: a, operator: In, values: [x, z]}]", {}, False),
        ("matchExpressions: [{key: a, operator: NotIn, values: [x]}]", {}, True),
        ("matchExpressions: [{key: a, operator: NotIn, values: [x]}]", {"a": "x"}, False),
        ("matchExpressions: [{key: a, operator: Exists}]", {"a": ""}, True),
        ("matchExpressions: [{key: a, operator: DoesNotExist}]", {"a": ""}, False),
    ],
)
def test_nodes_are_chosen_by_label(selector: str, labels: dict[str, str], matches: bool) -> None:
    rules = policy(f"publish: [{{nodes: {{labelSelector: {{{selector}}}}}}}]")
    assert rules.asks_for_labels
    assert rules.publishes_node("n", labels) is matches
    assert rules.publishes("n", labels, gpu(0)) is matches


def test_attributes_are_added_and_the_last_rule_wins() -> None:
    rules = policy("""
attributes:
- values: {rack: r1, tier: 1, spot: false, example.com/firmware: {version: 1.4.0}}
- nodes: {names: [n2]}
  values: {tier: 2}
""")
    assert rules.extra_attributes("n1", {}, gpu(0)) == {
        "rack": Attribute(string="r1"),
        "tier": Attribute(int_=1),
        "spot": Attribute(bool_=False),
        "example.com/firmware": Attribute(version="1.4.0"),
    }
    assert rules.extra_attributes("n2", {}, gpu(0))["tier"] == Attribute(int_=2)


@rows(
    "text, problem",
    [
        ("publish: []", "publish: List should have at least 1 item"),
        ("publsh: [{}]", "publsh: unknown field; did you mean `publish`?"),
        ("publish: [{gpu: {}}]", "publish[0].gpu: unknown field; did you mean `gpus`?"),
        ("publish: [{gpus: {uuids: []}}]", "publish[0].gpus.uuids: List should have at least 1 item"),
        ("publish: [{gpus: {uuids: GPU-1}}]", "publish[0].gpus.uuids: is 'GPU-1'; must be a valid list"),
        (
            "withhold: [{}, {nodes: {labelSelector: {matchExpressions: [{key: a, operator: Is}]}}}]",
            "withhold[1].nodes.labelSelector.matchExpressions[0].operator: is 'Is'; must be one of `In`",
        ),
        (
            "withhold: [{nodes: {labelSelector: {matchExpressions: [{key: a, operator: In}]}}}]",
            "withhold[0].nodes.labelSelector.matchExpressions[0]: In takes values",
        ),
        ("sharing: [{strategy: Exclusive, replicas: 2}]", "sharing[0]: strategy Exclusive shares nothing"),
        ("sharing: [{strategy: Exclusive, interval: Long}]", "strategy Exclusive shares nothing"),
        ("sharing: [{strategy: MPS, replicas: 2, interval: Long}]", "interval is for strategy TimeSlicing"),
        ("sharing: [{strategy: TimeSlicing, replicas: 2, multiUser: true}]", "multiUser is for strategy MPS"),
        ("sharing: [{devices: mig, strategy: TimeSlicing, replicas: 2, interval: Long}]", "remove interval"),
        ("sharing: [{strategy: MPS, replicas: 2, profiles: [1g.10gb]}]", "profiles are for devices: mig"),
        ("attributes: [{}]", "attributes[0].values: is missing"),
        ("attributes: [{values: {}}]", "attributes[0].values: must be a map"),
        ("attributes: [{values: {uuid: x}}]", "attributes[0].values: uuid: is published by the driver"),
        ("attributes: [{values: {a-b: x}}]", "attributes[0].values: a-b: not `identifier`"),
        ("attributes: [{values: {a/b/c: x}}]", "attributes[0].values: a/b/c: not `identifier`"),
        (f"attributes: [{{values: {{a{'b' * 32}: x}}}}]", "at most 32"),
        ("attributes: [{values: {resource.kubernetes.io/x: x}}]", "is reserved for standard attributes"),
        ("attributes: [{values: {a: 1.5}}]", "a: must be a string, an integer, true, false, or {version: <semver>}"),
        ("attributes: [{values: {a: {version: 1.4}}}]", "a: must be a string"),
        ("attributes: [{values: {a: {version: v1}}}]", "not a semantic version"),
        (f"attributes: [{{values: {{a: {'é' * 33}}}}}]", "a: longer than 64 bytes"),
        (f"attributes: [{{values: {{a: {2**63}}}}}]", "does not fit 64 bits"),
        ("attributes: [{values: {a: x, a: y}}]", "`a` is given twice"),
    ],
)
def test_mistakes_are_named_with_their_field(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        policy(text)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("policy p.yaml:")


@rows(
    "text, problem",
    [
        ("", "must have apiVersion dra.gpu/v1alpha1 and kind GpuPolicy or PublishingPolicy"),
        ("- a", "not an object"),
        ("{", "not YAML"),
        ("publish: [{}]", "must have apiVersion"),
        ("apiVersion: v1\nkind: PublishingPolicy", "must have apiVersion dra.gpu/v1alpha1"),
        ("apiVersion: dra.gpu/v1alpha1\nkind: Policy", "and kind GpuPolicy or PublishingPolicy"),
        ("!!python/object/apply:os.system [true]", "is a list, not an object"),
    ],
)
def test_another_document_is_not_a_policy(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_policy(text, about="policy p.yaml")
    assert problem in str(caught.value)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(InvalidInput) as caught:
        policy("publish: [{gpu: {}}]\nwithhold: 3")
    assert len(caught.value.problems) == 2


def test_what_is_not_shared_needs_no_gate() -> None:
    assert not list(policy("sharing: [{strategy: Exclusive}]").features)
