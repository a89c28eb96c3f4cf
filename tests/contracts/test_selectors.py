"""A real API server stores the selectors that we compile and refuses those that we refuse.

What expressions are worth is asked of a ValidatingAdmissionPolicy, which has the same functions as selectors have: its
warnings name the expressions that are false or fail. `SELECTOR_CASES` sets how many random expressions are tried
(default 1000), `SELECTOR_SEED` which ones.
"""

import asyncio
import os
import re
import secrets
from collections.abc import Callable
from itertools import batched

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from support import real_api_server
from support.api import Api, Refused
from support.cel_expressions import KUBERNETES_EXPRESSIONS, about_a_device
from support.cel_values import BIND_HOLD, COSTLY, FAIL, HOLD, NO_EXPRESSION, TOO_LONG
from support.dra_objects import CLASSES
from support.real_api_server import RealApiServer
from support.selectors import ACCEPTED, REFUSED

from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelCostError, CelError, CelNotJudged
from dra_driver.cel.functions import Server

pytestmark = pytest.mark.skipif(
    real_api_server.ASSETS not in os.environ, reason=f"{real_api_server.ASSETS} is not set: nothing to compare with"
)


_MOST_SELECTORS = 32
"""Of one class."""


async def stored(server: RealApiServer, expressions: list[str], *, at_any_cost: bool = False) -> dict[str, bool]:
    """By expression: whether the server would store a class with it; `at_any_cost` ignores refusals for cost."""
    answers = dict.fromkeys(expressions, True)
    async with Api(server.url, token=server.token, ssl=server.ssl_context()) as api:
        for batch in batched(expressions, _MOST_SELECTORS):
            selectors = [{"cel": {"expression": expression}} for expression in batch]
            try:
                await api.post(CLASSES, {"metadata": {"name": "probe"}, "spec": {"selectors": selectors}}, dryRun="All")
            except Refused as refusal:
                for cause in refusal.body["details"]["causes"]:
                    place = re.fullmatch(r"spec\.selectors\[(\d+)\]\.cel\.expression", cause["field"])
                    assert place is not None, cause
                    if not (at_any_cost and "exceeds cost limit" in cause["message"]):
                        answers[batch[int(place[1])]] = False
    return answers


async def test_selectors_that_we_compile_are_stored(real_server: Callable[..., RealApiServer]) -> None:
    answers = await stored(real_server({}), [*ACCEPTED, *HOLD, *BIND_HOLD, *(expression for expression, _ in FAIL)])
    assert [expression for expression, accepted in answers.items() if not accepted] == []


OF_LISTS = [
    "device.attributes['a'].x.exists(v, v == 'b')",
    "device.attributes['a'].x.all(v, v.startsWith('b')) || 'b' in device.attributes['a'].x",
    "device.attributes['a'].x.size() > 2 && device.attributes['a'].x[0] == 'b'",
    "device.attributes['a'].x.map(v, v + 1).sum() > 3",
    "device.attributes['a'].x == ['a', 'b']",
    "device.attributes['a'].x",
    "dyn(device.attributes['a'].x)",
    "dyn(true)",
    "true ? device.attributes['a'].x : dyn(true)",
    "device.attributes['a'].x.includes('a')",
    "device.driver.includes('a')",
    "[1, 2].includes(1)",
]


@pytest.mark.parametrize("lists", [False, True])
async def test_lists_are_for_servers_that_have_lists(real_server: Callable[..., RealApiServer], lists: bool) -> None:
    """With the gate attributes may be looped over, and any result may be a bool; `includes` needs the next version."""
    server = Server.of(36, stored=False, list_attributes=lists)
    answers = await stored(real_server({"DRAListTypeAttributes": lists}), OF_LISTS)
    assert answers == {expression: is_selector(expression, server) for expression in OF_LISTS}
    assert any(answers.values())


def is_selector(expression: str, server: Server) -> bool | None:
    """None: it is not judged. Whether it costs too much does not count."""
    try:
        compile_selector(expression, server)
    except CelCostError:
        return True
    except CelNotJudged:
        return None
    except CelError:
        return False
    return True


async def test_selectors_that_we_refuse_are_not_stored(real_server: Callable[..., RealApiServer]) -> None:
    answers = await stored(real_server({}), [*(expression for expression, _, _ in REFUSED), *NO_EXPRESSION, *TOO_LONG])
    assert [expression for expression, accepted in answers.items() if accepted] == []


KNOWN_DIFFERENCES = ("optional.none()",)
"""Parts of expressions that we may refuse where the server does not: what type an absent value would have had is
inferred there from all of the expression, and here only from what is around it."""


RANDOM_EXPRESSIONS = int(os.environ.get("SELECTOR_CASES", "1000"))
RANDOM_SEED = int(os.environ.get("SELECTOR_SEED", "4"))


def random_expressions(count: int) -> list[str]:
    """The same ones for each seed; half of them are sure to be bool, so that more of them are selectors."""
    expressions: set[str] = set()

    @seed(RANDOM_SEED)
    @settings(max_examples=count // 2, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(KUBERNETES_EXPRESSIONS)
    def collect(expression: str) -> None:
        device = about_a_device(expression)
        expressions.update([device, f"({device}) == ({device})"])

    collect()
    return sorted(expressions)


async def test_random_expressions_are_stored_or_not_as_we_say(
    real_server: Callable[..., RealApiServer],
) -> None:
    server, expressions = Server.of(36, stored=False), random_expressions(RANDOM_EXPRESSIONS)
    answers = await stored(real_server({}), expressions, at_any_cost=True)
    ours = {expression: is_selector(expression, server) for expression in expressions}
    differing = [expression for expression in expressions if ours[expression] not in (None, answers[expression])]
    not_judged = list(ours.values()).count(None)
    accepted = sum(answers.values())
    print(f"{len(expressions)} expressions, {accepted} stored; {not_judged} not judged, {len(differing)} differ:")
    print(*differing, sep="\n")
    assert [
        expression
        for expression in differing
        if ours[expression] or not any(part in expression for part in KNOWN_DIFFERENCES)
    ] == []
    assert len(differing) <= len(expressions) // 1000
    assert not_judged <= len(expressions) // 100


_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


async def warnings(server: RealApiServer, expressions: list[str]) -> list[str]:
    """What the server says about expressions that are not true; about the last one, `false`, it always does."""
    name = f"values-{secrets.token_hex(4)}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "own", "expression": f"object.metadata.name == '{name}'"}],
        "validations": [{"expression": expression} for expression in [*expressions, "false"]],
    }
    binding = {"policyName": name, "validationActions": ["Warn"]}
    async with Api(server.url, token=server.token, ssl=server.ssl_context()) as api:
        await api.post(_POLICIES, {"metadata": {"name": name}, "spec": policy})
        bindings = f"{_POLICIES.removesuffix('policies')}policybindings"
        await api.post(bindings, {"metadata": {"name": name}, "spec": binding})
        async with asyncio.timeout(60):
            while True:
                await api.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": name}}, dryRun="All")
                if api.warnings:
                    return api.warnings
                await asyncio.sleep(0.1)


async def test_values_are_those_that_the_api_server_computes(real_server: Callable[..., RealApiServer]) -> None:
    *untrue, heard = await warnings(real_server({}), [*HOLD, *COSTLY])
    assert untrue == []
    assert "failed expression: false" in heard
    # In small parts: the server cuts off long lists of warnings.
    for part in batched((expression for expression, _ in FAIL), 6):
        *failed, last = await warnings(real_server({}), list(part))
        assert ["resulted in error" in warning for warning in failed] == [True] * len(part)
        assert "failed expression: false" in last
