"""Which GPUs change their MIG mode by a reset: dra_driver/publish/decisions.py."""

from typing import Any

import pytest
from support.inventories import gpu, gpu_policy, inventory_spec, mig

from dra_driver.api.gpu_settings import NodePolicy, WaitingGpu
from dra_driver.api.gpupolicy import combined
from dra_driver.api.inventory import GpuFacts, ModeObstacle
from dra_driver.errors import InvalidInput
from dra_driver.features import Feature, Gates
from dra_driver.publish.decisions import after_mode_changes, decided, with_mode_changes

WHEN_IDLE = {"mode": "Dynamic", "modeChange": "WhenIdle"}
A100 = gpu(mig=mig().model_copy(update={"switchable": False}))
FULL, PART = A100.name, f"{A100.name}-mig-1g10gb-0"


def a100(**facts: Any) -> GpuFacts:
    assert A100.mig is not None
    return A100.model_copy(update={"mig": A100.mig.model_copy(update=facts)})


def decide(chosen: GpuFacts, spec: dict[str, Any], *used: str) -> NodePolicy:
    policies = [gpu_policy(**spec)] if spec else []
    inventory = inventory_spec("node-a", [chosen])
    decision = decided(combined(policies), policies, inventory, {})
    return with_mode_changes(decision, inventory, {name: ["team/a"] for name in used})


def change(chosen: GpuFacts, spec: dict[str, Any], *used: str) -> tuple[str | None, list[str]] | None:
    waiting = decide(chosen, spec, *used).waiting
    return (waiting[0].mig_mode, waiting[0].claims) if waiting else None


ON, OFF = {"enabled": True, "pending": True}, {"enabled": False, "pending": False}
OURS = {**ON, "switched": True}


@pytest.mark.parametrize(
    ("facts", "spec", "used", "expected"),
    [
        pytest.param(OFF, {"mig": WHEN_IDLE}, [], ("On", []), id="idle"),
        pytest.param(OFF, {"mig": WHEN_IDLE}, [FULL], ("On", ["team/a"]), id="in use"),
        pytest.param(OFF, {"mig": WHEN_IDLE}, ["other-gpu", f"{FULL}9"], ("On", []), id="another GPU in use"),
        pytest.param(OFF, {"mig": WHEN_IDLE}, [PART], ("On", []), id="a claim that only the other mode serves"),
        pytest.param(ON, {"mig": WHEN_IDLE}, [], None, id="on already"),
        pytest.param(OFF, {"mig": {"mode": "Dynamic"}}, [], None, id="not allowed"),
        pytest.param(OFF, {"mig": WHEN_IDLE, "publish": False}, [], None, id="not published"),
        pytest.param(OFF, {}, [], None, id="no policy"),
        pytest.param(ON, {}, [], None, id="an administrator's"),
        pytest.param(ON, {}, [FULL], None, id="an administrator's, and a claim that it does not serve"),
        pytest.param(OURS, {}, [], ("Off", []), id="ours"),
        pytest.param(OURS, {"mig": {"mode": "Static"}}, [], ("Off", []), id="ours, and offered as it is"),
        pytest.param(OURS, {}, [PART], ("Off", ["team/a"]), id="ours, in use"),
        pytest.param(OURS, {"mig": {"mode": "Dynamic"}}, [], None, id="ours, and still wanted"),
        pytest.param(OURS, {"mig": WHEN_IDLE}, [FULL], ("Off", []), id="ours, and a claim that came too late"),
        pytest.param(OURS, {"mig": WHEN_IDLE}, [FULL, PART], None, id="ours, and one claim is served"),
        pytest.param({**OFF, "switchable": True}, {"mig": WHEN_IDLE}, [], None, id="no reset needed"),
        pytest.param({**OFF, "profiles": []}, {"mig": WHEN_IDLE}, [], None, id="no profiles"),
        pytest.param(
            {**OFF, "obstacle": ModeObstacle(reason="InUse", message="m", fix="f")}, {"mig": WHEN_IDLE}, [], None,
            id="something in the way",
        ),
    ],
)  # fmt: skip
def test_the_mode_that_a_gpu_should_have(
    facts: dict[str, Any], spec: dict[str, Any], used: list[str], expected: tuple[str, list[str]] | None
) -> None:
    assert change(a100(**facts), spec, *used) == expected


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(
    ("spec", "switched", "wanted"), [({}, True, False), ({}, False, None), ({"mig": WHEN_IDLE}, True, True)]
)
def test_no_claim_gets_a_gpu_whose_change_is_stuck(
    enabled: bool, spec: dict[str, Any], switched: bool, wanted: bool | None
) -> None:
    """A mode that nobody asked for is that which the GPU has."""
    stuck = ModeObstacle(reason="Stuck", message="m", fix="f")
    facts = a100(enabled=enabled, pending=not enabled, switched=switched, obstacle=stuck)
    mode = enabled if wanted is None else wanted
    assert change(facts, spec) == ("On" if mode else "Off", [])


def test_the_first_of_many_claims_are_named_in_order() -> None:
    claims = [f"team/{number:02}" for number in range(20)]
    inventory = inventory_spec("node-a", [a100(**OFF)])
    policies = [gpu_policy(mig=WHEN_IDLE)]
    decision = decided(combined(policies), policies, inventory, {})
    (waiting,) = with_mode_changes(decision, inventory, {FULL: claims[::-1]}).waiting
    assert waiting.claims == claims[:8]


def test_a_switch_changes_no_other_gpu() -> None:
    switching, other = a100(**OFF), a100(**OFF).model_copy(update={"uuid": "GPU-other"})
    inventory = inventory_spec("node-a", [switching, other])
    waiting = WaitingGpu(gpu=A100.name, uuid=A100.uuid, claims=[], policies=["ml"], mig_mode="On")
    after = after_mode_changes(inventory, NodePolicy(waiting=[waiting]))
    assert after.gpus == [a100(**ON, switched=True), other]


@pytest.mark.parametrize("kind", ["Passthrough", "VGPUGuest", "HostVGPU"])
def test_no_gpu_of_a_virtual_machine_is_reset(kind: str) -> None:
    assert change(a100(**OFF).model_copy(update={"virtualization": kind}), {"mig": WHEN_IDLE}) is None


def test_a_gpu_without_mig_is_left_alone() -> None:
    assert change(gpu(), {"mig": WHEN_IDLE}) is None


def test_a_gpu_that_waits_for_another_reason_is_named_once() -> None:
    decision = decide(a100(**OFF), {"mig": WHEN_IDLE})
    other = WaitingGpu(gpu=A100.name, uuid=A100.uuid, claims=["team/b"], policies=["ml"])
    waiting = decision.model_copy(update={"waiting": [other]})
    assert with_mode_changes(waiting, inventory_spec("node-a", [a100(**OFF)]), {}).waiting == [other]


def test_what_a_gpu_waits_for_is_said_in_words() -> None:
    (idle,) = decide(a100(**OFF), {"mig": WHEN_IDLE}).waiting
    assert str(idle) == f"GPU {FULL} changes because of GpuPolicy ml when a reset has switched its MIG mode on"
    (used,) = decide(a100(**OFF), {"mig": WHEN_IDLE}, FULL).waiting
    assert str(used).endswith("when claims team/a are gone and a reset has switched its MIG mode on")


def test_a_policy_may_ask_for_it_only_with_partitions_on_demand_and_the_gate() -> None:
    with pytest.raises(InvalidInput, match="modeChange are for mode Dynamic"):
        gpu_policy(mig={"mode": "Static", "modeChange": "WhenIdle"})
    with pytest.raises(InvalidInput, match="modeChange"):
        gpu_policy(mig={"mode": "Dynamic", "modeChange": "Always"})
    assert gpu_policy(mig={"mode": "Static", "modeChange": "Never"}).spec.mig is not None
    spec = gpu_policy(mig=WHEN_IDLE).spec
    accepted, off = spec.without(Gates.DEFAULT)
    assert (accepted.mig, off) == (None, (("mig", Feature.MIG_MODE_CHANGE),))
    assert spec.without(Gates.parse("MigModeChange=true")) == (spec, ())
    with pytest.raises(InvalidInput, match="MigModeChange needs DynamicMIG"):
        Gates.parse("MigModeChange=true,DynamicMIG=false")
