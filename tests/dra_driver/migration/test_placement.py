"""What a pod asks of its nodes: what goes into its claim, what stays."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.label_worlds import LabelWorld, requirements, worlds
from support.migration import GPU, all_codes, codes, limits, meaning_of, pod, read, removed, there
from support.rows import examples, rows

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import path_text
from dra_driver.cel.device import compile_selector
from dra_driver.migration.model import PodReading, Remove, Want, What
from dra_driver.migration.understand.labels import Requirement

A = "device.attributes['gpu.nvidia.com']"
PLAIN = meaning_of("version: v1\nflags: {migStrategy: mixed}\n")
REQUIRED = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PREFERRED = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"


def entry(key: str, *values: str, operator: str = "In") -> JsonObject:
    key = key if "/" in key else f"nvidia.com/{key}"
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def required(*terms: list[JsonObject]) -> JsonObject:
    listed = [{"matchExpressions": expressions} for expressions in terms]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}}


def preferred(*terms: tuple[int, list[JsonObject]]) -> JsonObject:
    listed = [{"weight": weight, "preference": {"matchExpressions": expressions}} for weight, expressions in terms]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": listed}}


def placed(amounts: JsonObject | None = None, **spec: object) -> PodReading:
    obj = pod(limits(amounts or {GPU: 1}), **spec)
    reading = read(obj, PLAIN)
    assert there(obj, reading)
    return reading


AMPERE, HOPPER = f"{A}.architecture == 'Ampere'", f"{A}.architecture == 'Hopper'"


def test_entries_of_a_node_selector_are_decided_one_by_one() -> None:
    selector = {"nvidia.com/gpu.family": "ampere", "pool": "gpu", "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.machine": "DGX", "cloud.google.com/gke-accelerator": "nvidia-l4"}  # fmt: skip
    reading = placed(nodeSelector=selector)
    assert reading.demands[0].want.selectors == (AMPERE,)
    assert removed(reading.edits) == [
        "spec.nodeSelector[nvidia.com/gpu.family]",
        "spec.nodeSelector[nvidia.com/gpu.present]",
    ]
    assert codes(reading.findings) == ["M009", "M044"]
    assert "M029" in codes(reading.claim_findings)
    assert (reading.needs_claims, reading.prefers_claims is None) == (None, False)


def test_labels_that_the_claim_only_implies_need_no_claim() -> None:
    reading = placed(nodeSelector={"nvidia.com/gpu.present": "true"})
    assert (reading.needs_claims, reading.prefers_claims) == (None, None)
    assert removed(reading.edits) == ["spec.nodeSelector[nvidia.com/gpu.present]"]
    assert [(finding.code.name, finding.place.path) for finding in reading.extended_findings] == [
        ("M051", "spec.nodeSelector[nvidia.com/gpu.present]")
    ]


def test_values_without_quotes_are_labels_all_the_same() -> None:
    reading = placed(nodeSelector={"nvidia.com/gpu.compute.major": 8, "nvidia.com/gpu.present": True})
    assert reading.demands[0].want.selectors == (f"{A}.cudaComputeCapability.major() == 8",)
    assert len(removed(reading.edits)) == 2


def test_entries_of_one_term_are_decided_one_by_one() -> None:
    term = [
        entry("topology.kubernetes.io/zone", "a"),
        entry("gpu.family", "ampere"),
        entry("gpu.family", operator="Exists"),
    ]
    reading = placed(affinity=required(term))
    assert reading.demands[0].want.selectors == (AMPERE,)
    assert removed(reading.edits) == [f"{REQUIRED}[0].matchExpressions[1]", f"{REQUIRED}[0].matchExpressions[2]"]


@pytest.mark.parametrize(
    "terms",
    [
        [[entry("gpu.family", "ampere"), entry("zone.x/y", "a")], [entry("gpu.family", "hopper")]],
        [[entry("gpu.family", "ampere")], [entry("zone.x/y", "a")]],
        [[entry("gpu.family", "ampere")], [entry("gpu.machine", "a")]],
    ],
)
def test_alternatives_of_mixed_kind_stay(terms: list[list[JsonObject]]) -> None:
    reading = placed(affinity=required(*terms))
    assert (reading.demands[0].want.selectors, removed(reading.edits)) == ((), [])
    assert codes(reading.findings) == ["M007"]


def test_alternatives_that_are_not_of_gpus_are_let_alone() -> None:
    reading = placed(affinity=required([entry("zone.x/y", "a")], [entry("zone.x/y", "b")]))
    assert (removed(reading.edits), reading.findings) == ([], ())


def test_preferences_stay_and_those_for_gpus_are_said() -> None:
    terms = [(1, [entry("gpu.family", "ampere"), entry("zone.x/y", "a")]), (2, [entry("zone.x/y", "b")])]
    reading = placed(affinity=preferred(*terms))
    assert (reading.demands[0].want, removed(reading.edits), reading.prefers_claims) == (Want(What.GPU), [], None)
    assert [(finding.code.name, finding.severity, finding.place.path) for finding in reading.findings] == [
        ("M008", "info", f"{PREFERRED}[0]")
    ]


def test_each_kind_of_device_gets_its_own_conditions() -> None:
    amounts = {GPU: 1, "nvidia.com/mig-1g.5gb": 1}
    reading = placed(amounts, nodeSelector={"nvidia.com/gpu.family": "ampere", "nvidia.com/mig.capable": "true"})
    whole, part = (demand.want for demand in reading.demands)
    assert whole.selectors == (AMPERE, f"has({A}.migCapable) && {A}.migCapable")
    assert part.selectors == (AMPERE,)


def test_what_one_kind_of_device_cannot_say_stays_for_all() -> None:
    reading = placed({GPU: 1, "nvidia.com/mig-1g.5gb": 1}, nodeSelector={"nvidia.com/gpu.memory": "40960"})
    assert all(demand.want.selectors == () for demand in reading.demands)
    assert removed(reading.edits) == []
    assert codes(reading.findings) == ["M009"]


def test_as_many_gpus_as_the_node_has_need_no_label() -> None:
    reading = placed({GPU: 8}, nodeSelector={"nvidia.com/gpu.count": "8"})
    assert (removed(reading.edits), codes(reading.findings)) == (["spec.nodeSelector[nvidia.com/gpu.count]"], [])
    assert codes(placed({GPU: 4}, nodeSelector={"nvidia.com/gpu.count": "8"}).findings) == ["M009"]


def test_conditions_that_nothing_fulfils_are_said_and_stay() -> None:
    reading = placed(nodeSelector={"nvidia.com/gpu.present": "false"})
    assert (removed(reading.edits), codes(reading.findings)) == ([], ["M030"])


def test_topology_keys_stay() -> None:
    term = {"topologyKey": "nvidia.com/gpu.clique", "labelSelector": {}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spread = [
        {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1},
        {"topologyKey": "nvidia.com/gpu.product", "maxSkew": 1},
    ]
    reading = placed(affinity=affinity, topologySpreadConstraints=spread)
    assert [finding.place.path for finding in reading.findings] == [
        "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
        "spec.topologySpreadConstraints[1].topologyKey",
    ]
    assert removed(reading.edits) == []


def test_pods_without_gpus_keep_labels_of_gpus() -> None:
    reading = read(pod(limits(None), nodeSelector={"nvidia.com/gpu.present": "true"}))
    assert (reading.demands, all_codes(reading)) == ((), ["M047"])


@rows("affinity",
    [
        None, 5, {"nodeAffinity": 5}, required(), required([{"key": 5}]), preferred((1, [])),
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [5, {}]}}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [5]}},
    ],
)  # fmt: skip
def test_affinities_of_any_shape_are_no_error(affinity: object) -> None:
    reading = placed(affinity=affinity)
    assert removed(reading.edits) == []
    assert len(reading.demands) == 1


# -- the law: a pod can be on the same nodes as before, as far as a node's GPUs decide it

_LABELS = requirements().filter(
    lambda requirement: (
        not any(word in requirement.key for word in ("mig", "product", "memory", "count", "rev", "replicas"))
    )
)
"""Whose conditions say exactly the same; the others have rules of their own, for which there are tests of their own."""
_ELSEWHERE = st.sampled_from([Requirement("zone", "In", ("a",)), Requirement("nvidia.com/gpu.machine", "In", ("DGX",))])
_TERMS = st.lists(st.lists(st.one_of(_LABELS, _LABELS, _LABELS, _ELSEWHERE), min_size=1, max_size=3), max_size=3)


def _written(requirement: Requirement) -> JsonObject:
    return {
        "key": requirement.key,
        "operator": requirement.operator,
        **({"values": list(requirement.values)} if requirement.values else {}),
    }


def _holds(terms: Sequence[Sequence[Requirement]], labels: dict[str, str]) -> bool:
    return not terms or any(all(requirement.holds(labels) for requirement in term) for term in terms)


def _left(reading: PodReading, terms: Sequence[Sequence[Requirement]]) -> list[list[Requirement]]:
    """What of the terms stays with the pod."""
    gone = {path_text(edit.path) for edit in reading.edits if isinstance(edit, Remove)}
    if REQUIRED in gone:
        return []
    left = [
        [
            requirement
            for position, requirement in enumerate(term)
            if f"{REQUIRED}[{index}].matchExpressions[{position}]" not in gone
        ]
        for index, term in enumerate(terms)
    ]
    return [] if len(left) == 1 and not left[0] else left


@settings(max_examples=examples(120))
@given(_TERMS, st.sampled_from(["a", "b"]), st.sampled_from(["DGX", "PC"]))
def test_a_pod_can_be_on_the_same_nodes_as_before(terms: list[list[Requirement]], zone: str, machine: str) -> None:
    affinity = required(*([_written(requirement) for requirement in term] for term in terms)) if terms else None
    reading = read(pod(limits({GPU: 1}), affinity=affinity), PLAIN)
    (demand,) = reading.demands
    selectors = [compile_selector(expression) for expression in demand.want.selectors]
    left = _left(reading, terms)
    never = "M030" in codes(reading.findings)
    for world in filter(_plain, worlds()):
        labels = {**world.labels, "zone": zone, "nvidia.com/gpu.machine": machine}
        now = _holds(left, labels) and all(
            selector.matches(device) for selector in selectors for device in world.devices
        )
        assert now == _holds(terms, labels) or (never and not now)


def _plain(world: LabelWorld) -> bool:
    return world.want == Want(What.GPU) and world.mode.replicas == 1
