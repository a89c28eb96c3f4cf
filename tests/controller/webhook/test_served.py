"""A certificate is served when the API server trusts it, and the one before until then."""

from datetime import UTC, datetime

from controller.webhook.certificates import Lifetimes, Served, new_certificate

NOW = datetime(2026, 5, 1, tzinfo=UTC)
FIRST, SECOND = (new_certificate(("x",), NOW, Lifetimes()) for _ in range(2))
SETTLE_S = 5.0


def test_before_anybody_is_asked_the_first_one_is_served_at_once() -> None:
    assert Served().problem() == "there is no certificate yet"
    served = Served().seen(FIRST, None, 0.0, SETTLE_S)
    assert served.current == FIRST and served.problem() is None


def test_a_replica_that_comes_while_the_api_server_asks_waits_until_its_certificate_is_trusted() -> None:
    trust = SECOND.authority
    served = Served().seen(FIRST, trust, 0.0, SETTLE_S)
    assert served.current is None and served.problem() == "the API server does not trust the certificate yet"
    assert served.wait_s(0.0, SETTLE_S) is None, "only news can help"


def test_a_new_one_is_served_some_seconds_after_the_api_server_was_told_of_it() -> None:
    served = Served(FIRST)
    served = served.seen(SECOND, FIRST.authority, 100.0, SETTLE_S)
    assert served.current == FIRST and served.problem() is None
    both = (*FIRST.authority, *SECOND.authority)
    served = served.seen(SECOND, both, 200.0, SETTLE_S)
    assert served.current == FIRST and served.wait_s(201.0, SETTLE_S) == 4.0
    served = served.seen(SECOND, both, 204.9, SETTLE_S)
    assert served.current == FIRST
    served = served.seen(SECOND, both, 205.0, SETTLE_S)
    assert served.current == SECOND and served.wait_s(205.0, SETTLE_S) is None


def test_a_third_one_waits_for_its_own_time() -> None:
    third = new_certificate(("x",), NOW, Lifetimes())
    all_of_them = (*FIRST.authority, *SECOND.authority, *third.authority)
    served = Served(FIRST).seen(SECOND, all_of_them, 0.0, SETTLE_S).seen(third, all_of_them, 4.0, SETTLE_S)
    assert served.seen(third, all_of_them, 6.0, SETTLE_S).current == FIRST
    assert served.seen(third, all_of_them, 9.0, SETTLE_S).current == third


def test_trust_that_goes_away_again_begins_the_wait_anew() -> None:
    both, single = (*FIRST.authority, *SECOND.authority), FIRST.authority
    served = Served(FIRST).seen(SECOND, both, 0.0, SETTLE_S).seen(SECOND, single, 3.0, SETTLE_S)
    assert served.seen(SECOND, both, 6.0, SETTLE_S).current == FIRST


def test_a_secret_that_was_emptied_takes_nothing_away() -> None:
    assert Served(FIRST).seen(None, None, 0.0, SETTLE_S) == Served(FIRST)
