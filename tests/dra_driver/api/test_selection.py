"""The operators of selectors, of dra_driver/api/meta.py."""

from support.rows import rows

from dra_driver.api.meta import requirement_holds


@rows(
    "operator, value, wanted, holds",
    [
        ("In", "a", ["a", "b"], True),
        ("In", None, ["a"], False),
        ("NotIn", "a", ["a"], False),
        ("NotIn", None, ["a"], True),
        ("Exists", "", [], True),
        ("Exists", None, [], False),
        ("DoesNotExist", None, [], True),
        ("DoesNotExist", "", [], False),
        ("Gt", "5", ["4"], True),
        ("Gt", "5", ["5"], False),
        ("Gt", None, ["5"], False),
        ("Lt", "-5", ["4"], True),
        ("Lt", "5", ["5"], False),
        ("Lt", "6", ["5"], False),
        ("Lt", "5", ["6", "7"], False),
        ("Lt", "five", ["6"], False),
        ("Lt", "5", ["six"], False),
        ("Near", "5", ["5"], False),
    ],
)
def test_an_operator_selects_as_in_kubernetes(operator: str, value: str | None, wanted: list[str], holds: bool) -> None:
    assert requirement_holds(operator, value, wanted) is holds
