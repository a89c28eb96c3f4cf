"""What a node cannot offer: said once for equal GPUs, with what ends it, within bounds, and as a status that rests."""

from collections.abc import Sequence
from typing import Any

from support.inventories import gpu, inventory_spec, mig, policy
from support.rows import rows

from dra_driver.api.inventory import GpuFacts, ImexFacts, Limitation, NodeInventoryStatus, PassthroughFacts
from dra_driver.devices.limitations import LimitationCause as Cause
from dra_driver.devices.limitations import Note, limitations_of, wanted_status
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.features import ALL_FEATURES as ALL
from dra_driver.slices.features import ServerFeatures
from dra_driver.slices.offline import published_offline

RESET = mig(switchable=False)
NOTHING = NodeInventoryStatus()
NOON, LATER = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"
PAIR = [gpu(0, mig=RESET), gpu(1, mig=RESET)]


def limited(
    gpus: Sequence[GpuFacts], features: ServerFeatures = ALL, **rules: Any
) -> list[tuple[str | None, str, list[str]]]:
    """Rule, reason and GPUs."""
    limitations = published_offline(inventory_spec("node-a", gpus), policy(**rules), {}, "uid", features)[0].limitations
    return [(limitation.rule, limitation.reason, limitation.gpus) for limitation in limitations]


DYNAMIC = {"mode": "Dynamic"}
TIMES = {"strategy": "TimeSlicing"}
NO_COUNTERS = ServerFeatures(consumable=True, taints=True)
NO_SHARES = ServerFeatures(partitionable=True, taints=True)


@rows(
    "facts, features, rules, rule, cause",
    [
        ({"mig": RESET}, ALL, {"mig": [DYNAMIC]}, "mig[0]", Cause.RESET_NEEDED),
        ({}, ALL, {"mig": [{**DYNAMIC, "gpus": {"names": ["*"]}}]}, "mig[0]", Cause.NO_MIG),
        ({"mig": mig(profiles=[])}, ALL, {"mig": [DYNAMIC]}, "mig[0]", Cause.NO_MIG_PROFILES),
        ({"mig": mig()}, ALL, {"mig": [{**DYNAMIC, "profiles": ["9g.*"]}]}, "mig[0]", Cause.NO_SUCH_PROFILE),
        ({"mig": mig(enabled=True)}, ALL, {}, None, Cause.NO_MIG_DEVICES),
        ({"mig": mig(enabled=True)}, ALL, {"mig": [{"mode": "Static"}]}, "mig[0]", Cause.NO_MIG_DEVICES),
        ({}, ALL, {"sharing": [{"strategy": "MPS", "replicas": 64}]}, "sharing[0]", Cause.NO_SHARING),
        ({}, ALL, {"passthrough": [{}]}, "passthrough[0]", Cause.NO_IOMMU),
        (
            {"mig": mig(enabled=True), "passthrough": PassthroughFacts(iommu_group=1)},
            ALL,
            {"passthrough": [{}], "mig": [DYNAMIC]},
            "passthrough[0]",
            Cause.NO_PASSTHROUGH,
        ),
        ({"mig": mig()}, NO_COUNTERS, {"mig": [DYNAMIC]}, "mig[0]", Cause.NO_PARTITIONABLE_DEVICES),
        (
            {"passthrough": PassthroughFacts(iommu_group=1)},
            NO_COUNTERS,
            {"passthrough": [{}]},
            "passthrough[0]",
            Cause.NO_PARTITIONABLE_DEVICES,
        ),
        ({}, NO_SHARES, {"sharing": [{**TIMES, "unlimited": True}]}, "sharing[0]", Cause.NO_CONSUMABLE_CAPACITY),
        (
            {},
            ALL,
            {"attributes": [{"values": {f"extra{number:02d}": number for number in range(40)}}]},
            "attributes[0]",
            Cause.NO_ROOM_FOR_ATTRIBUTE,
        ),
    ],
)
def test_a_rule_that_cannot_be_followed_is_named_with_the_reason(
    facts: dict[str, Any], features: ServerFeatures, rules: dict[str, Any], rule: str | None, cause: Cause
) -> None:
    facts_of = gpu(0, **facts)
    assert (rule, cause.reason, [facts_of.name]) in limited([facts_of], features, **rules)


def test_a_rule_for_all_gpus_that_can_be_partitioned_says_nothing_of_those_that_cannot() -> None:
    assert limited([gpu(0)], mig=[DYNAMIC]) == []


def test_equal_rules_are_told_apart() -> None:
    assert limited(PAIR, mig=[DYNAMIC, DYNAMIC]) == [("mig[1]", "ResetNeeded", [facts.name for facts in PAIR])]


def test_equal_gpus_are_one_limitation_with_commands_for_all_of_them() -> None:
    (limitation,) = published_offline(inventory_spec("node-a", PAIR), policy(mig=[DYNAMIC]), {}, "uid")[0].limitations
    assert "nvidia-smi -i 0000:10:00.0,0000:11:00.0 -mig 1" in limitation.fix and "drain node-a" in limitation.fix
    assert str(limitation).startswith("mig[0]: 2 GPUs: only the whole GPU is offered because MIG mode is off")
    assert PAIR[0].name not in limitation.message


def test_a_mode_that_waits_for_the_reset_is_said_so() -> None:
    pending = gpu(0, mig=mig(switchable=False, pending=True))
    published = published_offline(inventory_spec("node-a", [pending]), policy(mig=[DYNAMIC]), {}, "uid")
    (limitation,) = published[0].limitations
    assert (limitation.reason, limitation.subject) == ("ResetNeeded", f"GPU {pending.name}")
    assert "is set to on and waits for a reset" in limitation.message


def test_more_channels_than_the_driver_has_are_a_limitation_of_the_other_driver() -> None:
    spec = inventory_spec("node-a", []).model_copy(update={"imex": ImexFacts(channels=2, program=True)})
    (gpus, domains) = published_offline(spec, policy(computeDomains=[{"channels": 4}]), {}, "uid")
    assert gpus.limitations == ()
    (limitation,) = domains.limitations
    assert (limitation.rule, limitation.reason, limitation.gpus) == ("computeDomains[0]", "FewerChannels", [])
    assert "2 channels" in str(limitation) and "asks for 4" in str(limitation)


def test_texts_and_numbers_are_bounded() -> None:
    rules = policy()
    notes = [Note(Cause.NO_SHARING, f"{number} " + "x" * 3000, gpu(number)) for number in range(200)]
    limitations = limitations_of(notes, rules, GPU_DRIVER, "node-a")
    assert len(limitations) == 50 and max(len(limitation.message) for limitation in limitations) == 1024
    status = wanted_status(
        NOTHING, GPU_DRIVER, [limitation.model_copy(update={"rule": "mig[0]"}) for limitation in limitations], NOON
    )
    assert len(status.conditions[0].message) == 1024


@rows("cause", list(Cause))
def test_every_cause_says_what_ends_it(cause: Cause) -> None:
    (limitation,) = limitations_of([Note(cause, "text", gpu(0))], policy(), GPU_DRIVER, "node-a")
    assert limitation.fix and "{" not in limitation.fix and cause.meaning.endswith(".")


LIMITATION = Limitation(driver=GPU_DRIVER, rule="mig[0]", reason="ResetNeeded", gpus=["gpu-1"], message="m", fix="f")


def test_a_node_with_nothing_to_say_gets_no_status() -> None:
    assert wanted_status(NOTHING, GPU_DRIVER, [], NOON) is NOTHING


def test_a_status_that_says_the_same_is_not_written_again() -> None:
    first = wanted_status(NOTHING, GPU_DRIVER, [LIMITATION], NOON)
    (condition,) = first.conditions
    assert (condition.type, condition.status, condition.reason) == ("PolicyFollowed", "False", "ResetNeeded")
    assert condition.message == "mig[0]: GPU gpu-1: m"
    stored = NodeInventoryStatus.of(first.to_wire())
    assert wanted_status(stored, GPU_DRIVER, [LIMITATION], LATER) is stored


def test_the_condition_ends_when_all_is_followed_and_keeps_its_time_otherwise() -> None:
    first = wanted_status(NOTHING, GPU_DRIVER, [LIMITATION], NOON)
    other = LIMITATION.model_copy(update={"reason": "NoMig"})
    changed = wanted_status(first, GPU_DRIVER, [other], LATER)
    assert [(condition.reason, condition.last_transition_time) for condition in changed.conditions] == [("NoMig", NOON)]
    ended = wanted_status(changed, GPU_DRIVER, [], LATER)
    assert ended.limitations == []
    assert [(condition.status, condition.reason, condition.last_transition_time) for condition in ended.conditions] == [
        ("True", "Followed", LATER)
    ]
    assert wanted_status(ended, GPU_DRIVER, [], "2026-01-02T00:00:00Z") is ended


def test_what_another_driver_says_stays_while_somebody_publishes_it() -> None:
    other = "other.example"
    first = wanted_status(NOTHING, other, [LIMITATION.model_copy(update={"driver": other})], NOON)
    both = wanted_status(first, GPU_DRIVER, [LIMITATION], LATER, [other])
    assert [limitation.driver for limitation in both.limitations] == [GPU_DRIVER, other]
    assert wanted_status(both, GPU_DRIVER, [], LATER, [other]).conditions[0].status == "False"
    alone = wanted_status(both, GPU_DRIVER, [], LATER)
    assert (alone.limitations, alone.conditions[0].status) == ([], "True")


def test_what_no_rule_asks_for_breaks_no_rule() -> None:
    status = wanted_status(NOTHING, GPU_DRIVER, [LIMITATION.model_copy(update={"rule": None})], NOON)
    assert status.limitations and status.conditions[0].status == "True"
