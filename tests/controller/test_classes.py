"""Every profile that is published has a class, and nobody else's class is touched."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from support.background import background
from support.spans import Recorder

from controller.classes import LABEL, OWNER, ProfileClasses, class_name, is_profile_class, profiles_of, wanted_class
from dra_driver.api.meta import DEVICE_CLASSES, JsonObject, Resource
from dra_driver.api.resource import Attribute, Device
from dra_driver.errors import NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.names import is_dns_subdomain
from dra_driver.runtime.tracing import OFF, Tracer

DRIVER = "gpu.nvidia.com"


def mig(name: str, profile: str) -> Device:
    return Device(name=name, attributes={"type": Attribute(string="mig"), "profile": Attribute(string=profile)})


@pytest.mark.parametrize("profile", ["1g.10gb", "1g.10gb+me", "1g.24gb-me", "1g.24gb+me.all", "1c.3g.40gb"])
def test_every_profile_has_a_name_of_its_own_that_an_object_can_have(profile: str) -> None:
    assert is_dns_subdomain(class_name(profile))
    others = {"1g.10gb", "1g.10gb+me", "1g.10gb-me", "1g.24gb-me", "1g.24gb+me", "1g.24gb+me.all", "1c.3g.40gb"}
    assert class_name(profile) not in {class_name(other) for other in others - {profile}}


def test_only_mig_devices_have_profiles_and_only_profiles_become_classes() -> None:
    gpu = Device(name="gpu-1", attributes={"type": Attribute(string="gpu"), "profile": Attribute(string="1g.10gb")})
    assert profiles_of([gpu, mig("a", "3g.40gb"), mig("b", "3g.40gb"), mig("c", "x' || true || '")]) == {"3g.40gb"}


class World:
    def __init__(self, kube: Kube, classes: ProfileClasses) -> None:
        self.kube = kube
        self.classes = classes

    async def get(self, name: str) -> JsonObject | None:
        try:
            return await self.kube.get(DEVICE_CLASSES, name)
        except NotFound:
            return None

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(20):
            while not await true():  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.02)

    async def has(self, name: str) -> None:
        async def there() -> bool:
            return await self.get(name) is not None

        await self.until(there)


@asynccontextmanager
async def keeping(kube: Kube, *, extended_resources: bool = False, tracer: Tracer = OFF) -> AsyncIterator[World]:
    classes = ProfileClasses(kube, DRIVER, extended_resources=extended_resources, tracer=tracer)
    async with background(classes.run()):
        yield World(kube, classes)


def test_only_what_was_made_here_for_a_driver_is_its_profile_class() -> None:
    own = wanted_class("1g.10gb", DRIVER, extended_resource=False)
    assert is_profile_class(own, DRIVER)
    assert not is_profile_class(own, "other.example.com")
    for labels in ({}, {LABEL: "somebody"}):
        assert not is_profile_class({**own, "metadata": {**own["metadata"], "labels": labels}}, DRIVER)


async def test_a_profile_that_appears_gets_its_class(kube: Kube) -> None:
    async with keeping(kube) as here:
        here.classes.published("node-a", [mig("a", "1g.10gb")])
        await here.has("1g.10gb.mig.nvidia.com")
        here.classes.published("node-b", [mig("b", "1g.10gb+me")])
        await here.has("1g.10gb-me.mig.nvidia.com")
        stored = await here.get("1g.10gb.mig.nvidia.com")
        assert stored is not None
        assert stored["spec"] == wanted_class("1g.10gb", DRIVER, extended_resource=False)["spec"]


async def test_a_class_stays_when_its_last_device_goes(kube: Kube) -> None:
    async with keeping(kube) as here:
        here.classes.published("node-a", [mig("a", "1g.10gb")])
        await here.has("1g.10gb.mig.nvidia.com")
        here.classes.published("node-a", [mig("a", "2g.20gb")])
        await here.has("2g.20gb.mig.nvidia.com")
        assert await here.get("1g.10gb.mig.nvidia.com") is not None


async def test_pods_of_the_old_way_get_partitions_where_that_is_wanted(kube: Kube) -> None:
    async with keeping(kube, extended_resources=True) as here:
        here.classes.published("node-a", [mig("a", "1g.10gb+me")])
        await here.has("1g.10gb-me.mig.nvidia.com")
        stored = await here.get("1g.10gb-me.mig.nvidia.com")
        assert stored is not None and stored["spec"]["extendedResourceName"] == "nvidia.com/mig-1g.10gb.me"


async def test_a_changed_class_of_ours_is_put_right_and_a_deleted_one_comes_back(kube: Kube) -> None:
    async with keeping(kube) as here:
        name = "1g.10gb.mig.nvidia.com"
        here.classes.published("node-a", [mig("a", "1g.10gb")])
        await here.has(name)
        await here.kube.merge_patch(DEVICE_CLASSES, name, {"spec": {"selectors": [{"cel": {"expression": "true"}}]}})

        async def is_right() -> bool:
            stored = await here.get(name)
            wanted = wanted_class("1g.10gb", DRIVER, extended_resource=False)
            return stored is not None and stored["spec"] == wanted["spec"]

        await here.until(is_right)
        await here.kube.delete(DEVICE_CLASSES, name)
        await here.has(name)


async def test_somebody_elses_class_of_that_name_is_left_alone(kube: Kube) -> None:
    async with keeping(kube) as here:
        name = "1g.10gb.mig.nvidia.com"
        own = wanted_class("1g.10gb", DRIVER, extended_resource=False)
        own["metadata"]["labels"] = {LABEL: "somebody"}
        own["spec"] = {"selectors": [{"cel": {"expression": "device.driver == 'x'"}}]}
        await here.kube.create(DEVICE_CLASSES, own)
        here.classes.published("node-a", [mig("a", "1g.10gb"), mig("b", "2g.20gb")])
        await here.has("2g.20gb.mig.nvidia.com")
        stored = await here.get(name)
        assert stored is not None
        assert stored["spec"] == own["spec"]
        assert stored["metadata"]["labels"] != {LABEL: OWNER}


async def test_each_pass_over_the_classes_is_a_span(kube: Kube) -> None:
    recorder = Recorder()
    async with keeping(kube, tracer=recorder.tracer) as here:
        here.classes.published("node-a", [mig("a", "1g.10gb")])
        await here.has("1g.10gb.mig.nvidia.com")
    spans = [span for span in recorder.spans if span.name == "keep classes"]
    assert {dict(span.attributes or {})["gpu_dra.outcome"] for span in spans} == {"ok"}


@pytest.mark.parametrize("profile", ["1g.0gb+a..b", "1g.0gb+a.", "1g.10gb+.", "1g.10gb+" + 52 * "a", "1g.1000000gb"])
def test_what_cannot_name_a_class_is_no_profile(profile: str) -> None:
    assert profiles_of([mig("a", profile)]) == frozenset()


def test_the_longest_profile_can_name_an_extended_resource() -> None:
    (profile,) = profiles_of([mig("a", "1g.10gb+" + 51 * "a")])
    name = wanted_class(profile, DRIVER, extended_resource=True)["spec"]["extendedResourceName"].partition("/")[2]
    assert len(name) == 63, "as long as an API server takes"


async def test_a_node_that_invents_profiles_cannot_fill_the_cluster_with_classes(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes stay when their devices go, so a node could add new ones for ever."""
    monkeypatch.setattr("controller.classes.MOST_CLASSES", 3)
    async with keeping(kube) as here:
        for first in (10, 20):
            here.classes.published("node-a", [mig("a", f"1g.{first + number}gb") for number in range(5)])
            await here.has("1g.12gb.mig.nvidia.com")
            await asyncio.sleep(0.2)
        classes = {item["metadata"]["name"] for item in (await here.kube.list(DEVICE_CLASSES)).items}
        assert classes == {f"1g.{number}gb.mig.nvidia.com" for number in (10, 11, 12)}
        await here.kube.delete(DEVICE_CLASSES, "1g.10gb.mig.nvidia.com")
        await here.has("1g.20gb.mig.nvidia.com")


async def test_a_class_that_is_refused_keeps_no_other_from_being_made(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = kube.create

    async def refusing(resource: Resource, wanted: JsonObject) -> JsonObject:
        if wanted["metadata"]["name"].startswith("1g"):
            raise Rejected("a policy refuses it", about="DeviceClass", status=422)
        return await create(resource, wanted)

    monkeypatch.setattr(kube, "create", refusing)
    async with keeping(kube) as here:
        here.classes.published("node-a", [mig("a", "1g.10gb"), mig("b", "2g.20gb")])
        await here.has("2g.20gb.mig.nvidia.com")
