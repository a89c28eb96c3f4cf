"""The same random requests to both servers get the same answers: merge and strategic patches.

What no table of cases would think of. A difference is printed with the request that showed it; its seed repeats it.
"""

import os
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from support.api import MERGE, STRATEGIC, Api, Refused
from support.dra_objects import crd
from support.real_api_server import ASSETS, RealApiServer, assets_folder
from support.versions import gates_on, real_minor

from dra_driver.kubernetes import SEEN
from dra_driver.simulation.apiserver.server import SimulatedApiServer

REQUESTS = 60
_VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "time", "deletionTimestamp", "continue", "managedFields")


@pytest_asyncio.fixture
async def twins(real_server: Callable[..., RealApiServer]) -> AsyncIterator[tuple[Api, Api]]:
    """A real and a simulated server."""
    real = real_server({})
    minor = real_minor(assets_folder())
    simulated = SimulatedApiServer(version=SEEN[minor], feature_gates=gates_on(minor, {}))
    await simulated.start()
    async with Api(real.url, token=real.token, ssl=real.ssl_context()) as first, Api(simulated.url) as second:
        yield first, second
    await simulated.stop()


def comparable(value: Any) -> Any:
    """Without what differs by nature, and without the record of managers, which the simulated server does not keep."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: comparable(item) for key, item in value.items() if key not in _VOLATILE}


async def answer(api: Api, method: str, path: str, body: Any, kind: str) -> Any:
    try:
        return comparable(await api.request(method, path, body, headers={"Content-Type": kind}))
    except Refused as refusal:
        return refusal.status, refusal.reason, sorted(refusal.causes)


async def compare(
    twins: tuple[Api, Api], requests: list[tuple[str, str, Any, str]], *, only_spec: bool = False
) -> None:
    for method, path, body, kind in requests:
        real, simulated = [await answer(api, method, path, body, kind) for api in twins]
        if only_spec:
            real, simulated = [answer["spec"] if isinstance(answer, dict) else answer for answer in (real, simulated)]
        assert simulated == real, f"{method} {path} {body}"


class Dice:
    """Random parts of objects."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def word(self) -> str:
        return self.random.choice("abc")

    def some(self, words: str, least: int = 0) -> list[str]:
        return self.random.sample(words, self.random.randint(least, len(words)))

    def words(self) -> dict[str, str]:
        return {self.word(): self.word() for _ in range(self.random.randint(0, 3))}

    def pick(self, **parts: Callable[[], Any]) -> dict[str, Any]:
        """About half of the parts."""
        return {name: make() for name, make in parts.items() if self.chance(0.45)}

    def spec(self) -> dict[str, Any]:
        """Of the custom type below."""
        return self.pick(
            keyed=lambda: [
                {"k": key, **self.pick(v=self.word, inner=lambda: self.pick(e=self.word))} for key in self.some("abc")
            ],
            set=lambda: self.some("abcd"),
            atomic=lambda: self.some("abcd"),
            atomicMap=self.words,
            map=self.words,
            nest=lambda: self.pick(a=self.word, b=lambda: self.pick(c=lambda: self.random.randint(0, 2))),
            free=lambda: {self.word(): self.random.choice([1, {"z": "y"}, ["x"], {}]) for _ in range(2)},
            number=lambda: self.random.randint(0, 3),
        )

    def container(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "image": self.word(),
            **self.pick(
                env=lambda: [{"name": name_, "value": self.word()} for name_ in self.some("ABC", 1)],
                args=lambda: self.some("abc", 1),
                resources=lambda: {"limits": {"cpu": self.random.choice(["1", "0.5", "1000m"])}},
            ),
        }

    def pod_patch(self) -> dict[str, Any]:
        spec = self.pick(
            tolerations=lambda: [{"key": self.word(), "operator": "Exists"}],
            imagePullSecrets=lambda: [{"name": self.word()}],
            nodeSelector=lambda: {self.word(): self.random.choice([self.word(), None])},
            resourceClaims=lambda: [{"name": name_, "resourceClaimName": "x"} for name_ in self.some("abc", 1)],
        )
        names = self.some("abc", 1)
        spec["containers"] = [self.container(name) for name in names]
        if self.chance(0.3):
            spec["$setElementOrder/containers"] = [{"name": name} for name in names]
        elif self.chance(0.2) and len(names) < 3:
            spec["containers"].append(
                {"$patch": "delete", "name": next(name_ for name_ in "abc" if name_ not in names)}
            )
        return spec


_TEXT = {"type": "string"}
_INNER = {"type": "object", "properties": {"d": {"type": "integer", "default": 4}, "e": _TEXT}}
_NEST = {"a": _TEXT, "b": {"type": "object", "properties": {"c": {"type": "integer"}}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "keyed": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                    "items": {
                        "type": "object",
                        "required": ["k"],
                        "properties": {"k": _TEXT, "v": _TEXT, "inner": _INNER},
                    },
                },
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": _TEXT},
                "atomic": {"type": "array", "items": _TEXT},
                "atomicMap": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": _TEXT},
                "map": {"type": "object", "additionalProperties": _TEXT},
                "nest": {"type": "object", "properties": _NEST},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "number": {"type": "integer", "default": 5},
            },
        },
        "status": {"type": "object", "properties": {"x": _TEXT}},
    },
}


SEEDS = range(3) if ASSETS in os.environ else range(1)


@pytest.mark.parametrize("seed", SEEDS)
async def test_merges_of_a_custom_type(twins: tuple[Api, Api], unique: str, seed: int) -> None:
    plural, dice = f"{unique}s", Dice(seed)
    for api in twins:
        await api.define(crd(plural, {"subresources": {"status": {}}, "schema": {"openAPIV3Schema": SCHEMA}}))
    path = f"/apis/contract.dra.gpu/v1/{plural}/a"
    base = {"apiVersion": "contract.dra.gpu/v1", "kind": unique.capitalize(), "metadata": {"name": "a"}}
    create = {**base, "spec": {}}
    requests: list[tuple[str, str, Any, str]] = [("POST", path.rpartition("/")[0], create, "application/json")]
    for _ in range(REQUESTS):
        place = f"{path}{'/status' if dice.chance(0.2) else ''}"
        content = dice.pick(spec=dice.spec, status=lambda: {"x": dice.word()})
        metadata = dice.pick(labels=dice.words, finalizers=lambda: [f"x.example/{name_}" for name_ in dice.some("abc")])
        requests.append(("PATCH", place, {**content, "metadata": metadata}, MERGE))
    await compare(twins, requests)


@pytest.mark.parametrize("seed", SEEDS)
async def test_strategic_merges_of_a_daemon_set(twins: tuple[Api, Api], unique: str, seed: int) -> None:
    dice = Dice(seed)
    for api in twins:
        await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    path = f"/apis/apps/v1/namespaces/{unique}/daemonsets"
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
    create = {"metadata": {"name": "d"}, "spec": spec}
    requests: list[tuple[str, str, Any, str]] = [("POST", f"{path}?fieldManager=post", create, "application/json")]
    for _ in range(REQUESTS):
        patch: dict[str, Any] = {"spec": {"template": {"spec": dice.pod_patch()}}}
        patch["spec"].update(dice.pick(minReadySeconds=lambda: dice.random.choice([1, 2, None])))
        requests.append(("PATCH", f"{path}/d?fieldManager={dice.word()}", patch, STRATEGIC))
    await compare(twins, requests, only_spec=True)


def test_what_is_compared_leaves_out_only_what_differs_by_nature() -> None:
    obj = {"metadata": {"uid": "x", "name": "n"}, "spec": [{"time": "t", "k": 1}]}
    assert comparable(obj) == {"metadata": {"name": "n"}, "spec": [{"k": 1}]}
