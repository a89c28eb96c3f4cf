"""What the API server keeps is found by asking it, whatever its version and gates; no answer is no feature."""

from typing import Any, cast

import pytest

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import ClusterError, Rejected, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.observed import server_features
from dra_driver.slices.features import ServerFeatures


class OldServer:
    """Kubernetes 1.34 with its alpha gates on: counter sets are in the slice of their devices, or the slice is refused.

    `drops` are the fields of devices, and of the slice, whose gates are off.
    """

    def __init__(self, *drops: str, refusal: ClusterError | None = None) -> None:
        self._drops = drops
        self._refusal = refusal
        self.asked = 0

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool) -> JsonObject:
        assert dry_run
        self.asked += 1
        if self._refusal is not None:
            raise self._refusal
        spec: dict[str, Any] = {key: value for key, value in obj["spec"].items() if key not in self._drops}
        spec["devices"] = [{k: v for k, v in device.items() if k not in self._drops} for device in spec["devices"]]
        if "consumesCounters" in spec["devices"][0] and "sharedCounters" not in spec:
            raise Rejected("counterSet: not found in sharedCounters", about="slice", status=422)
        if any(taint["effect"] == "None" for taint in spec["devices"][0].get("taints", ())):
            raise Rejected("effect: unsupported", about="slice", status=422)
        return {**obj, "spec": spec}


async def asked(server: OldServer, *, lists: bool = False) -> ServerFeatures:
    return await server_features(cast(Kube, server), GPU_DRIVER, None, lists=lists)


async def test_a_server_that_wants_counters_beside_their_devices_is_asked_again() -> None:
    server = OldServer("taints")
    assert await asked(server) == ServerFeatures(
        partitionable=True, consumable=True, taints=False, counters_apart=False
    )
    assert server.asked == 2


async def test_a_server_that_knows_no_taints_without_effect_is_asked_again() -> None:
    server = OldServer("consumesCounters", "sharedCounters", "allowMultipleAllocations")
    assert await asked(server) == ServerFeatures(taints=True, counters_apart=False)


async def test_a_server_without_any_of_it_answers_at_once() -> None:
    server = OldServer("taints", "consumesCounters", "sharedCounters", "allowMultipleAllocations")
    assert await asked(server) == ServerFeatures()
    assert server.asked == 1


class Lists(OldServer):
    """Kubernetes 1.36: with `lists`, attributes can be lists."""

    def __init__(self, *, lists: bool) -> None:
        super().__init__("taints", "consumesCounters", "sharedCounters", "allowMultipleAllocations")
        self._lists = lists

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool) -> JsonObject:
        answer = await super().create(resource, obj, dry_run=dry_run)
        if "attributes" in obj["spec"]["devices"][0] and not self._lists:
            raise Rejected("attributes[probe]: exactly one value must be specified", about="slice", status=422)
        return answer


@pytest.mark.parametrize("lists", [False, True])
async def test_a_server_is_asked_for_lists_only_if_they_are_wanted(lists: bool) -> None:
    server = Lists(lists=lists)
    assert (await asked(server), server.asked) == (ServerFeatures(), 1)
    assert await asked(server, lists=True) == ServerFeatures(list_attributes=lists)
    assert server.asked == 3


@pytest.mark.parametrize(
    "refusal", [Rejected("no webhook for dry runs", about="slice", status=400), Unreachable("gone", about="slice")]
)
async def test_no_answer_is_an_error(refusal: ClusterError) -> None:
    with pytest.raises(ClusterError, match=refusal.message):
        await asked(OldServer(refusal=refusal))


@pytest.mark.parametrize("spec", [None, "no", {"devices": "no"}, {"devices": [7]}, {"devices": {"a": 1}}])
async def test_an_answer_that_is_no_slice_is_an_error_of_the_server(spec: Any) -> None:
    class Nonsense:
        async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool) -> JsonObject:
            return {"metadata": {"name": "x"}, "spec": spec}

    with pytest.raises(Unreachable, match="not a ResourceSlice"):
        await server_features(cast(Kube, Nonsense()), GPU_DRIVER, None)


async def test_binding_conditions_are_used_if_both_the_server_and_the_driver_want_them() -> None:
    for server, binding, used in (
        (OldServer(), True, True),
        (OldServer(), False, False),
        (OldServer("bindingConditions", "bindingFailureConditions"), True, False),
    ):
        features = await server_features(cast(Kube, server), GPU_DRIVER, None, binding=binding)
        assert features.binding is used
