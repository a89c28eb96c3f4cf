"""A real API server stores the selectors that we compile and refuses those that we refuse."""

import os
from collections.abc import Callable

import pytest
from support import real_api_server
from support.api import Api, Refused
from support.dra_objects import CLASSES
from support.real_api_server import RealApiServer
from support.selectors import ACCEPTED, REFUSED

pytestmark = pytest.mark.skipif(
    real_api_server.ASSETS not in os.environ, reason=f"{real_api_server.ASSETS} is not set: nothing to compare with"
)


async def stored(server: RealApiServer, expressions: list[str]) -> dict[str, bool]:
    """By expression: whether the server would store a class with it."""
    found: dict[str, bool] = {}
    async with Api(server.url, token=server.token, ssl=server.ssl_context()) as api:
        for expression in expressions:
            obj = {"metadata": {"name": "probe"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
            try:
                await api.post(CLASSES, obj, dryRun="All")
            except Refused as refusal:
                assert "spec.selectors[0].cel.expression" in refusal.message, refusal
                found[expression] = False
            else:
                found[expression] = True
    return found


async def test_selectors_that_we_compile_are_stored(real_server: Callable[..., RealApiServer]) -> None:
    answers = await stored(real_server({}), ACCEPTED)
    assert [one for one, accepted in answers.items() if not accepted] == []


async def test_selectors_that_we_refuse_are_not_stored(real_server: Callable[..., RealApiServer]) -> None:
    answers = await stored(real_server({}), [expression for expression, _, _ in REFUSED])
    assert [one for one, accepted in answers.items() if accepted] == []
