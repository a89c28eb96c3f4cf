"""The table of codes: each is told apart, explained, and used."""

import re
from pathlib import Path

from support.rows import rows

from dra_driver.migration import codes
from dra_driver.migration.codes import CODES, FindingCode

FOLDER = Path(codes.__file__).parent


def test_each_code_has_a_number_of_its_own() -> None:
    numbers = [int(code.name.removeprefix("M")) for code in CODES]
    assert numbers == sorted(set(numbers))


@rows("code", CODES)
def test_each_code_says_what_and_what_to_do(code: FindingCode) -> None:
    assert code.title == code.title.rstrip(".")
    for text in (code.means, code.advice):
        assert text.endswith(".")
        assert not re.search(r"  |\n", text)
    assert len({known.title for known in CODES}) == len(CODES)


@rows("code", CODES)
def test_each_code_is_used(code: FindingCode) -> None:
    name = next(name for name, value in vars(codes).items() if value is code)
    users = [path for path in FOLDER.rglob("*.py") if path.name != "codes.py" and name in path.read_text("utf-8")]
    assert users
