"""Feature gates: what is on when nobody says anything, and what is wrong with what somebody says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.errors import InvalidInput
from dra_driver.features import GATES, Feature, Gates
from dra_driver.publish.policy_file import decode_policy


def test_every_feature_has_one_row_and_alpha_is_off() -> None:
    assert set(GATES) == set(Feature)
    assert {feature for feature in Feature if feature not in Gates.DEFAULT} == {
        feature for feature, gate in GATES.items() if gate.stage == "alpha"
    }


def test_the_defaults_need_nothing_that_is_off() -> None:
    assert Gates.parse(str(Gates.DEFAULT)) == Gates.DEFAULT == Gates.parse("")


@given(st.dictionaries(st.sampled_from(Feature), st.booleans()))
def test_what_is_accepted_says_the_same_when_it_is_written_out(given_gates: dict[Feature, bool]) -> None:
    text = ", ".join(f"{feature}={str(on).title()}" for feature, on in given_gates.items())
    unmet = {
        feature
        for feature, gate in GATES.items()
        if given_gates.get(feature, gate.default)
        and not all(given_gates.get(needed, GATES[needed].default) for needed in gate.needs)
    }
    if unmet:
        with pytest.raises(InvalidInput) as caught:
            Gates.parse(text)
        assert len(caught.value.problems) == len(unmet)
        return
    gates = Gates.parse(text)
    assert Gates.parse(str(gates)) == gates
    assert all((feature in gates) == on for feature, on in given_gates.items())


@rows(
    "text, says",
    [
        ("DynamicMig=true", "there is no feature gate 'DynamicMig'; did you mean DynamicMIG?"),
        (
            "Blue=true",
            "there is no feature gate 'Blue'; there are BindingConditions, ComputeDomains, ConsumableShares,",
        ),
        ("MPSSupport", "'MPSSupport' is not MPSSupport=true or MPSSupport=false"),
        ("MPSSupport=1", "'MPSSupport=1' is not MPSSupport=true or MPSSupport=false"),
        ("MPSSupport=true,MPSSupport=false", "MPSSupport is given twice, as true and as false"),
        ("ComputeDomainCliques=true", "ComputeDomainCliques is a feature gate of NVIDIA's own driver"),
        ("MigExtendedResources=true,MigProfileClasses=false", "MigExtendedResources needs MigProfileClasses"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Gates.parse(text)
    assert says in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        Gates.parse("Blue=true,MPSSupport=maybe,DynamicMIG=true,DynamicMIG=false")
    assert len(caught.value.problems) == 3


@rows(
    "rules, features",
    [
        ("mig: [{mode: Static}]", set()),
        ("mig: [{mode: Static}, {mode: Dynamic}]", {("mig[1].mode", Feature.DYNAMIC_MIG)}),
        (
            "sharing: [{strategy: MPS, replicas: 2}]",
            {("sharing[0]", Feature.SHARES), ("sharing[0].strategy", Feature.MPS)},
        ),
        (
            "sharing: [{strategy: TimeSlicing, replicas: 2}]",
            {("sharing[0]", Feature.SHARES), ("sharing[0].strategy", Feature.TIME_SLICING)},
        ),
        ("passthrough: [{}]", {("passthrough", Feature.PASSTHROUGH)}),
        ("health: {evict: true}", {("health", Feature.HEALTH)}),
        ("withhold: [{nodes: {names: [a]}}]", set()),
    ],
)
def test_a_policy_knows_what_it_asks_for(rules: str, features: set[tuple[str, Feature]]) -> None:
    policy = decode_policy(f"apiVersion: dra.gpu/v1alpha1\nkind: PublishingPolicy\n{rules}\n", about="policy")
    assert set(policy.features) == features
