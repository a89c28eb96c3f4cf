"""What a claim can be on a node: kubelet_plugin/prepare/lifecycle.py."""

from typing import Any

import pytest
from support.claims import BOOT, DIGEST, NODE, a_claim, a_held_device, a_ref, a_result, an_entry, device_name, uuid_of

from dra_driver.api.resource import ResourceClaim
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.prepare.answer import PreparedDevice
from kubelet_plugin.prepare.lifecycle import (
    HeldByOther,
    Standing,
    State,
    admitted,
    released,
    standing_of,
    state_of,
)


def test_a_claim_with_a_free_gpu_is_admitted() -> None:
    first, second = an_entry(a_ref("one")), an_entry(a_ref("two"), a_held_device(1))

    assert admitted({"uid-of-one": first}, second) == {"uid-of-one": first, "uid-of-two": second}


def test_a_second_claim_for_the_same_hardware_is_refused_and_told_who_holds_it() -> None:
    holder = an_entry(a_ref("one"))
    held = {"uid-of-one": holder}

    with pytest.raises(HeldByOther, match=r"team-a/one .*uid-of-one") as refused:
        admitted(held, an_entry(a_ref("two"), a_held_device(0, device="another-name")))

    assert refused.value.holder == holder
    assert refused.value.about == "claim team-a/two"
    assert held == {"uid-of-one": holder}


def test_hardware_is_compared_by_uuid_and_not_by_name() -> None:
    held = {"uid-of-one": an_entry(a_ref("one"), a_held_device(0))}

    namesake = a_held_device(1, device=device_name(0))

    assert len(admitted(held, an_entry(a_ref("two"), namesake))) == 2


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (True, True)])
def test_admin_access_neither_holds_nor_is_refused(first: bool, second: bool) -> None:
    held = {"uid-of-one": an_entry(a_ref("one"), a_held_device(0, admin_access=first))}

    assert len(admitted(held, an_entry(a_ref("two"), a_held_device(0, admin_access=second)))) == 2


def test_a_claim_replaces_its_own_entry() -> None:
    before = an_entry(a_ref("one"), a_held_device(0))
    after = an_entry(a_ref("one"), a_held_device(0), a_held_device(1))

    assert admitted({"uid-of-one": before}, after) == {"uid-of-one": after}


def test_a_released_claim_holds_nothing() -> None:
    held = {"uid-of-one": an_entry(a_ref("one"))}

    assert released(held, "uid-of-one") == {}
    assert released(held, "uid-of-two") == held


@pytest.mark.parametrize(
    ("has_entry", "digest", "state"),
    [
        (False, None, State.ABSENT),
        (False, DIGEST, State.ORPHANED),
        (True, DIGEST, State.PREPARED),
        (True, None, State.UNFINISHED),
        (True, "e" * 64, State.UNFINISHED),
    ],
)
def test_the_state_is_read_from_entry_and_file(has_entry: bool, digest: str | None, state: State) -> None:
    assert state_of(an_entry() if has_entry else None, digest) is state


def claim(*results: dict[str, Any], uid: str = "uid-of-train", reserved: bool = True) -> ResourceClaim:
    return ResourceClaim.of(a_claim(a_ref("train", uid), *results, reserved=reserved))


OTHER_DRIVER = a_result("channel-0", driver="compute-domain.nvidia.com")


@pytest.mark.parametrize(
    ("found", "standing"),
    [
        (claim(a_result(0)), Standing.STANDS),
        (claim(OTHER_DRIVER, a_result(0)), Standing.STANDS),
        (None, Standing.GONE),
        (claim(a_result(0), uid="another"), Standing.RECREATED),
        (claim(), Standing.DEALLOCATED),
        (claim(a_result(1)), Standing.MOVED),
        (claim(a_result(0), a_result(1)), Standing.MOVED),
        (claim(a_result(0, pool="node-b")), Standing.MOVED),
        (claim(OTHER_DRIVER), Standing.MOVED),
        (claim(a_result(0), reserved=False), Standing.STANDS),
    ],
)
def test_a_claim_stands_while_the_api_says_what_the_journal_says(
    found: ResourceClaim | None, standing: Standing
) -> None:
    assert standing_of(an_entry(), found, GPU_DRIVER, BOOT) is standing


def test_after_a_boot_a_claim_that_no_pod_uses_has_no_right_any_more() -> None:
    assert standing_of(an_entry(), claim(a_result(0), reserved=False), GPU_DRIVER, "boot-2") is Standing.UNUSED
    assert standing_of(an_entry(), claim(a_result(0)), GPU_DRIVER, "boot-2") is Standing.STANDS


def test_only_what_the_api_said_makes_a_claim_stale() -> None:
    assert [standing for standing in Standing if not standing.is_stale] == [Standing.STANDS, Standing.UNKNOWN]


def test_the_answer_is_what_kubelet_needs_and_no_more() -> None:
    device = a_held_device(2, request_names=("train",), share_id="share")

    assert an_entry(a_ref(), device).answer == (
        PreparedDevice(("train",), NODE, device_name(2), device.cdi_ids, "share"),
    )
    assert uuid_of(2) not in repr(device.answer)
