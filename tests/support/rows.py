"""A table of cases as one test, which reports all rows that fail: thousands of tests cost more than what they try."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from _pytest.mark import ParameterSet


def rows[**P, R](names: str, table: Iterable[Any]) -> Callable[[Callable[P, R]], Callable[..., R]]:
    """Like `pytest.mark.parametrize(names, table)`; fixtures are shared by all rows, so a row must not change them."""
    parameters = [name.strip() for name in names.split(",")]
    cases = [dict(zip(parameters, row if len(parameters) > 1 else (row,), strict=True)) for row in table]
    assert cases, f"no rows for {names}"

    def of_all_rows(test: Callable[P, R]) -> Callable[..., R]:
        async def run_async(*instance: Any, **fixtures: Any) -> None:
            failures = []
            for case in cases:
                try:
                    await cast(Any, test)(*instance, **fixtures, **case)
                except Exception as error:
                    failures.append(_noted(error, case))
            _report(failures, len(cases))

        def run(*instance: Any, **fixtures: Any) -> None:
            failures = []
            for case in cases:
                try:
                    cast(Any, test)(*instance, **fixtures, **case)
                except Exception as error:
                    failures.append(_noted(error, case))
            _report(failures, len(cases))

        wrapper = functools.wraps(test)(run_async if inspect.iscoroutinefunction(test) else run)
        del cast(Any, wrapper).__wrapped__
        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in parameters]
        cast(Any, wrapper).__signature__ = signature.replace(parameters=fixtures)
        return cast(Callable[..., R], wrapper)

    return of_all_rows


def _noted(error: Exception, case: dict[str, Any]) -> Exception:
    error.add_note("row: " + ", ".join(f"{name}={value!r}" for name, value in case.items()))
    return error


def _report(failures: list[Exception], total: int) -> None:
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {total} rows fail", failures)


def slow_but(table: Iterable[Any], *quick: Any) -> list[Any]:
    """Rows for `parametrize`, of which only `quick` are tried by `make test`, and all by `make test-all`."""
    cases = list(table)
    assert all(case in cases for case in quick), quick
    return [case if case in quick else _slow(case) for case in cases]


def _slow(case: Any) -> ParameterSet:
    values, known = (case.values, case.id) if isinstance(case, ParameterSet) else (case, None)
    return pytest.param(*(values if isinstance(values, tuple) else (values,)), marks=pytest.mark.slow, id=known)


def examples(count: int) -> int:
    """For `max_examples`: as many in `make test-all`, two fifths of them in `make test`."""
    return count if "HYPOTHESIS_PROFILE" in os.environ else count * 2 // 5
