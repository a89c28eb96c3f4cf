"""A test of many rows fails for each row that fails, and names them."""

import pytest
from support.rows import rows


@rows("a", [1, 2, 3])
@rows("b, c", [(0, 0), (1, 1)])
def of_six_rows(a: int, b: int, c: int, limit: int) -> None:
    assert a + b + c < limit


@rows("number", [1, 2])
async def of_two_rows(number: int) -> None:
    assert number == 1


def test_all_rows_are_tried_and_those_that_fail_are_named() -> None:
    of_six_rows(limit=6)
    with pytest.raises(ExceptionGroup, match="2 of 3 rows fail") as raised:
        of_six_rows(limit=4)
    notes = [(row.__notes__[0], row.exceptions[0].__notes__[0]) for row in raised.value.exceptions]
    assert notes == [("row: a=2", "row: b=1, c=1"), ("row: a=3", "row: b=1, c=1")]


async def test_rows_of_a_coroutine_are_waited_for() -> None:
    with pytest.raises(ExceptionGroup, match="1 of 2 rows fail"):
        await of_two_rows()
