"""Watches: order, selectors, positions, bookmarks, and what happens when a position is too old."""

import asyncio

from support.api import Api, Refused
from support.dra_objects import SLICES, claim, claims, crd, device, pod, resource_slice


async def test_a_watch_continues_where_a_list_ended(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("before"))
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]
    await api.post(claims(namespace), claim("a"))
    await api.patch(f"{claims(namespace)}/a", {"metadata": {"labels": {"a": "b"}}})
    async with api.watch(claims(namespace), resourceVersion=position) as watch:
        await api.delete(f"{claims(namespace)}/a")
        assert await watch.names(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_events_carry_whole_objects_with_kind(api: Api, namespace: str) -> None:
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]
    created = await api.post(claims(namespace), claim("a"))
    async with api.watch(claims(namespace), resourceVersion=position) as watch:
        assert await watch.next() == ("ADDED", created)


async def test_a_deletion_has_a_version_of_its_own(api: Api, namespace: str) -> None:
    created = await api.post(claims(namespace), claim("a"))
    version = created["metadata"]["resourceVersion"]
    await api.delete(f"{claims(namespace)}/a")
    async with api.watch(claims(namespace), resourceVersion=version) as watch:
        event, obj = await watch.next()
    assert event == "DELETED"
    assert int(obj["metadata"]["resourceVersion"]) > int(version)


async def test_the_removal_of_the_last_finalizer_is_seen_as_the_deletion_of_the_state_before(
    api: Api, namespace: str
) -> None:
    path = f"{claims(namespace)}/a"
    await api.post(claims(namespace), claim("a", finalizers=["x.example/a"], labels={"l": "1"}))
    position = (await api.delete(path))["metadata"]["resourceVersion"]
    await api.patch(path, {"metadata": {"finalizers": None, "labels": {"l": "2"}}})
    async with api.watch(claims(namespace), resourceVersion=position) as watch:
        event, obj = await watch.next()
    assert event == "DELETED"
    assert (obj["metadata"]["finalizers"], obj["metadata"]["labels"]) == (["x.example/a"], {"l": "1"})


async def test_the_deletion_of_a_pod_is_announced_before_it_happens(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    position = (await api.post(path, pod("a")))["metadata"]["resourceVersion"]
    await api.delete(f"{path}/a")
    async with api.watch(path, resourceVersion=position) as watch:
        events = [await watch.next() for _ in range(2)]
    assert [event for event, _ in events] == ["MODIFIED", "DELETED"]
    for _, obj in events:
        assert obj["metadata"]["deletionTimestamp"]
        assert (obj["metadata"]["deletionGracePeriodSeconds"], obj["metadata"]["generation"]) == (0, 2)


async def test_without_a_position_a_watch_begins_with_what_is_there(api: Api, namespace: str) -> None:
    for name in ("a", "b"):
        await api.post(claims(namespace), claim(name))
    for query in ({}, {"resourceVersion": "0"}):
        async with api.watch(claims(namespace), **query) as watch:
            assert sorted(await watch.names(2)) == [("ADDED", "a"), ("ADDED", "b")]


async def test_initial_events_end_with_a_marked_bookmark(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with api.watch(claims(namespace), **query) as watch:
        assert (await watch.next())[0] == "ADDED"
        event, obj = await watch.next()
        assert event == "BOOKMARK"
        assert obj["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await api.post(claims(namespace), claim("b"))
        assert await watch.names(1) == [("ADDED", "b")]


async def test_objects_enter_and_leave_a_label_selector(api: Api, namespace: str) -> None:
    path = f"{claims(namespace)}/a"
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]
    query = {"resourceVersion": position, "labelSelector": "on=yes"}
    async with api.watch(claims(namespace), **query) as watch:
        await api.post(claims(namespace), claim("a"))
        await api.patch(path, {"metadata": {"labels": {"on": "yes"}}})
        await api.patch(path, {"metadata": {"labels": {"more": "1"}}})
        left = await api.patch(path, {"metadata": {"labels": {"on": "no"}}})
        assert await watch.names(2) == [("ADDED", "a"), ("MODIFIED", "a")]
        event, obj = await watch.next()
    assert event == "DELETED"
    assert obj["metadata"]["labels"] == {"on": "yes", "more": "1"}
    assert obj["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


async def test_a_kubelet_sees_the_pods_of_its_node(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    position = (await api.get(path))["metadata"]["resourceVersion"]
    async with api.watch(path, resourceVersion=position, fieldSelector="spec.nodeName=n1") as watch:
        await api.post(path, pod("other", nodeName="n2"))
        await api.post(path, pod("a"))
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "a"},
            "target": {"kind": "Node", "name": "n1"},
        }
        await api.post(f"{path}/a/binding", binding)
        assert await watch.names(1) == [("ADDED", "a")]


async def test_a_driver_sees_its_slices(api: Api, unique: str) -> None:
    driver = f"{unique}.example.com"
    position = (await api.get(SLICES))["metadata"]["resourceVersion"]
    async with api.watch(SLICES, resourceVersion=position, fieldSelector=f"spec.driver={driver}") as watch:
        await api.post(SLICES, resource_slice(f"{unique}-other", device()))
        await api.post(SLICES, resource_slice(f"{unique}-own", device(), driver=driver))
        assert await watch.names(1) == [("ADDED", f"{unique}-own")]


async def test_one_object_is_watched_by_name(api: Api, namespace: str) -> None:
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]
    async with api.watch(claims(namespace), resourceVersion=position, fieldSelector="metadata.name=b") as watch:
        await api.post(claims(namespace), claim("a"))
        await api.post(claims(namespace), claim("b"))
        assert await watch.names(1) == [("ADDED", "b")]


async def test_a_position_before_the_history_is_gone(api: Api, unique: str) -> None:
    definition = crd(f"{unique}s")
    await api.define(definition)
    if api.simulated is not None:
        api.simulated.store.compact()
    async with api.watch(f"/apis/contract.dra.gpu/v1/{unique}s", resourceVersion="1") as watch:
        event, status = await watch.next()
    assert event == "ERROR"
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")


async def test_a_watch_ends_after_the_time_asked_for(api: Api, namespace: str) -> None:
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]
    async with api.watch(claims(namespace), resourceVersion=position, timeoutSeconds="1") as watch:
        assert await watch.rest() == []


async def test_a_bookmark_has_only_a_version(api: Api, namespace: str) -> None:
    """A server sends one before it ends a watch whose client takes bookmarks, when there is something newer."""
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]
    query = {"resourceVersion": position, "allowWatchBookmarks": "true", "timeoutSeconds": "5"}
    async with api.watch(claims(namespace), **query) as watch:
        await api.post(claims("default"), claim(namespace))
        event, bookmark = await watch.next()
    assert event == "BOOKMARK"
    assert bookmark["kind"] == "ResourceClaim"
    assert int(bookmark["metadata"]["resourceVersion"]) >= int(position)
    assert set(bookmark["metadata"]) <= {"resourceVersion", "creationTimestamp"}


async def test_many_watches_see_the_same_events_in_the_same_order(api: Api, namespace: str) -> None:
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]

    async def follow() -> list[tuple[str, str]]:
        async with api.watch(claims(namespace), resourceVersion=position) as watch:
            return await watch.names(20)

    watchers = [asyncio.create_task(follow()) for _ in range(10)]
    for number in range(20):
        await api.post(claims(namespace), claim(f"c{number}"))
    seen = await asyncio.gather(*watchers)
    assert all(events == [("ADDED", f"c{number}") for number in range(20)] for events in seen)


async def test_a_table_watch_has_a_table_for_each_event(api: Api, namespace: str) -> None:
    position = (await api.get(claims(namespace)))["metadata"]["resourceVersion"]
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with api.watch(claims(namespace), headers=accept, resourceVersion=position) as watch:
        for name in ("a", "b"):
            await api.post(claims(namespace), claim(name))
        (_, first), (_, second) = await watch.next(), await watch.next()
    assert [column["name"] for column in first["columnDefinitions"]] == ["Name", "State", "Age"]
    assert [table["rows"][0]["cells"][0] for table in (first, second)] == ["a", "b"]


async def test_a_position_that_is_no_number_is_refused(api: Api, namespace: str) -> None:
    try:
        async with api.watch(claims(namespace), resourceVersion="nonsense"):
            raise AssertionError("the watch was accepted")
    except Refused as refusal:
        assert refusal.status == 500
