"""What a bar shows of a GPU."""

from io import StringIO
from itertools import pairwise
from string import ascii_letters

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dra_driver.cli.tables.bars import Holding, Mark, bar, color, drawn, letters

FREE = [Mark.FREE] * 8


def text(*holdings: Holding, rest: list[Mark] = FREE) -> str:
    cells = bar(len(rest), holdings, rest)
    return drawn(cells, letters(holding.claim for holding in holdings)).plain


def test_a_gpu_that_nobody_has_is_all_free() -> None:
    assert text() == "[········]"


def test_partitions_lie_where_they_are() -> None:
    assert text(Holding("a", 0, 4), Holding("b", 6, 2)) == "[AAAA··BB]"


def test_a_claim_with_two_partitions_has_one_letter() -> None:
    assert text(Holding("a", 0, 1), Holding("b", 1, 1), Holding("a", 2, 1)) == "[ABA·····]"


@pytest.mark.parametrize(
    ("parts", "shown"),
    [((0.5,), "[AAAA····]"), ((0.25, 0.5), "[AABBBB··]"), ((0.01,), "[A·······]"), ((1.0,), "[AAAAAAAA]")],
)
def test_shares_are_as_wide_as_what_they_have(parts: tuple[float, ...], shown: str) -> None:
    assert text(*(Holding(str(index), 0, 8, part) for index, part in enumerate(parts))) == shown


def test_more_shares_than_cells_are_several() -> None:
    assert text(*(Holding(str(index), 0, 8, 0.1) for index in range(9))) == "[++++++++]"
    assert text(Holding("a", 2, 1, 0.5), Holding("b", 2, 1, 0.5)) == "[··+·····]"


def test_what_is_not_held_says_why_it_is_not_free() -> None:
    rest = [Mark.FREE] * 3 + [Mark.CLOSED] * 5
    assert text(Holding("a", 4, 4), rest=rest) == "[···-AAAA]"
    assert text(rest=[Mark.TAINTED] * 4) == "[!!!!]"


@given(st.lists(st.floats(0.0, 1.0), max_size=12), st.integers(1, 16))
def test_a_bar_has_its_cells_and_shows_every_holder_as_long_as_there_is_room(parts: list[float], cells: int) -> None:
    holdings = [Holding(str(index), 0, cells, part) for index, part in enumerate(parts)]
    drawn_cells = bar(cells, holdings, [Mark.FREE] * cells)
    assert len(drawn_cells) == cells
    if len(parts) <= cells:
        assert set(drawn_cells) >= {holding.claim for holding in holdings}
    else:
        assert set(drawn_cells) == {Mark.SEVERAL}


def test_without_colours_the_letters_are_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    cells = bar(8, [Holding("a", 0, 8)], FREE)
    written = StringIO()
    Console(file=written).print(drawn(cells, {"a": "A"}))
    assert written.getvalue() == "[AAAAAAAA]\n"


def test_on_a_terminal_holders_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    cells = bar(8, [Holding("a", 0, 4), Holding("b", 4, 4)], FREE)
    written = StringIO()
    Console(file=written, force_terminal=True, color_system="standard").print(drawn(cells, {"a": "A", "b": "B"}))
    assert written.getvalue().count("\x1b[1;") == 2


def test_no_claim_is_red_which_is_for_what_is_unhealthy() -> None:
    letter_of = {str(number): letter for number, letter in enumerate(ascii_letters)}
    colors = [color(claim, letter_of) for claim in letter_of]
    assert not [name for name in colors if "red" in name]
    assert all(left != right for left, right in pairwise(colors))
