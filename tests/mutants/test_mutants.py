"""`make mutants` takes an hour; that it could run is known at once."""

from pathlib import Path

from mutants.mutations import mutants_of
from mutants.run import CORE, _harmless

ROOT = Path(__file__).parents[2]


def test_the_tests_and_files_that_it_names_exist() -> None:
    assert [test for tests in CORE.values() for test in tests if not (ROOT / test).exists()] == []
    assert [pattern for pattern in CORE if not list(ROOT.glob(pattern))] == []


def test_each_harmless_change_is_still_a_mutant() -> None:
    files = {file for file, *_ in _harmless()}
    mutants = {
        (file, *mutant.key) for file in files for mutant in mutants_of((ROOT / file).read_text(encoding="utf-8"))
    }
    assert sorted(set(_harmless()) - mutants) == []
