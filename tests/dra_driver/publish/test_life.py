"""Slices are created for a plugin that lives, and for no other."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import examples

from dra_driver.publish.inventories import FRESH, Life, LifeVerdict

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def verdict(life: Life, registration: str | None, asked: str | None = None, now_s: float = 0) -> LifeVerdict:
    return life.judged(registration, asked, NOON + timedelta(seconds=now_s))[1]


def after(life: Life, registration: str | None, asked: str | None = None, now_s: float = 0) -> Life:
    return life.judged(registration, asked, NOON + timedelta(seconds=now_s))[0]


def test_a_first_publication_needs_a_registration() -> None:
    assert verdict(Life(), None) is LifeVerdict.WAIT
    assert verdict(Life(), at(0), now_s=1) is LifeVerdict.CREATE


def test_an_old_registration_proves_nothing_and_is_asked_about_once() -> None:
    doubtful = after(Life(), at(-3600))
    assert verdict(Life(), at(-3600)) is LifeVerdict.ASK
    assert verdict(doubtful, at(-3600), asked=at(-3600)) is LifeVerdict.WAIT


def test_an_answer_proves_it_whatever_the_clocks_say() -> None:
    doubtful = after(Life(), at(-3600))
    assert verdict(doubtful, at(-3599), asked=at(-3600)) is LifeVerdict.CREATE
    assert verdict(doubtful, at(+99999), asked=at(-3600)) is LifeVerdict.CREATE


def test_another_old_registration_is_no_answer_to_a_question_that_was_not_asked() -> None:
    doubtful = after(Life(), at(-3600))
    assert verdict(doubtful, at(-1800)) is LifeVerdict.ASK
    assert verdict(doubtful, at(-1800), asked=at(-7200)) is LifeVerdict.ASK


def test_a_complete_pool_needs_no_proof() -> None:
    assert verdict(Life().found_complete(at(-3600)), at(-3600)) is LifeVerdict.CREATE
    assert verdict(Life().found_complete(None), None) is LifeVerdict.CREATE


def test_a_wipe_at_kubelets_start_is_made_good_by_the_registration_that_follows() -> None:
    """Order one: wiped, then registered again."""
    life = Life().found_complete(at(-3600)).lost_slices()
    assert verdict(life, at(-3600)) is LifeVerdict.ASK
    assert verdict(after(life, at(-3600)), at(2), now_s=2) is LifeVerdict.CREATE


def test_a_wipe_that_comes_after_the_registration_is_made_good_too() -> None:
    """Order two: kubelet registered the plugin again before it wiped."""
    life = Life().found_complete(at(-3600)).found_complete(at(0)).lost_slices()
    assert verdict(life, at(0), now_s=3) is LifeVerdict.CREATE


def test_a_wipe_long_after_the_registration_is_that_of_a_death_until_the_plugin_answers() -> None:
    life = Life().found_complete(at(0)).lost_slices()
    assert verdict(life, at(0), now_s=30) is LifeVerdict.ASK


def test_one_registration_restores_once() -> None:
    """Somebody who deletes slices again and again gets a question in between, not a fight."""
    life = after(Life(), at(0), now_s=1)
    assert life.granted
    assert verdict(life.lost_slices(), at(0), now_s=2) is LifeVerdict.ASK


@pytest.mark.parametrize("time", ["yesterday", "2026-11-21T12:00:00", ""])
def test_a_time_that_cannot_be_read_proves_nothing(time: str) -> None:
    assert verdict(Life(), time) is LifeVerdict.ASK


def test_a_wipe_after_a_death_comes_later_than_fresh() -> None:
    """kubelet wipes 30 s after the last connection went away, which is after the last registration."""
    assert timedelta(seconds=30) > FRESH


# Law: whatever happens in whatever order of news, a dead plugin's slices are not created. ----------------------------

DEATH_TO_WIPE_S = 30


@given(
    start_s=st.integers(-100_000, 0),
    restarts=st.lists(st.integers(1, 400), max_size=4),
    dies_after_s=st.integers(0, 400),
    news_late_s=st.integers(0, 100),
    skew_s=st.integers(-15, 15),
    leader_changes=st.booleans(),
)
@settings(max_examples=examples(500))
def test_what_a_dead_plugin_reported_is_never_restored(
    start_s: int, restarts: list[int], dies_after_s: int, news_late_s: int, skew_s: int, leader_changes: bool
) -> None:
    """A plugin registers, restarts some times, dies; kubelet wipes. The publisher hears of registrations late.

    Its questions stay unanswered. The two clocks differ by up to 15 s, either way.
    """
    time = start_s
    registrations = [time]
    for pause in restarts:
        time += pause
        registrations.append(time)
    wiped_at = registrations[-1] + dies_after_s + DEATH_TO_WIPE_S
    known = [when for when in registrations if when <= wiped_at - news_late_s] or registrations[:1]
    life = Life() if leader_changes else Life().found_complete(at(known[0])).lost_slices()
    asked: str | None = None
    for moment, registration in [(wiped_at, known[-1]), *[(wiped_at + news_late_s, registrations[-1])] * 3]:
        life, answer = life.judged(at(registration), asked, NOON + timedelta(seconds=moment + skew_s))
        assert answer is not LifeVerdict.CREATE
        # The question is guarded by the inventory's resourceVersion: it can only be about the latest registration.
        if answer is LifeVerdict.ASK and registration == registrations[-1]:
            asked = at(registration)
