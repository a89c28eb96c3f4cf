"""The store: revisions, history, shared bytes."""

from typing import Any

import pytest

from dra_driver.apirules.status import ApiError
from dra_driver.simulation.apiserver.store import Store, StoreEvent, Subscription

THINGS = ("x.example", "things")


def thing(name: str, namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "x.example/v1", "kind": "Thing", "metadata": metadata}


def everything(_event: StoreEvent) -> bool:
    return True


async def drained(subscription: Subscription) -> list[tuple[str, str]]:
    return [(event.type, event.entry.key[1]) for event in await subscription.next_batch(0)]


def test_each_write_has_the_next_revision_as_its_version() -> None:
    store = Store()
    first, second = store.put(THINGS, thing("a")), store.put(("", "pods"), thing("b"))
    assert second.revision == first.revision + 1
    assert first.obj["metadata"]["resourceVersion"] == str(first.revision)


def test_a_removal_has_a_revision_and_leaves_the_stored_object_as_it_was() -> None:
    store = Store()
    stored = store.put(THINGS, thing("a"))
    removed = store.remove(THINGS, "", "a")
    assert removed.revision == stored.revision + 1
    assert stored.obj["metadata"]["resourceVersion"] == str(stored.revision)
    assert store.get(THINGS, "", "a") is None


def test_bytes_are_made_once() -> None:
    entry = Store().put(THINGS, thing("a"))
    assert entry.encoded("x.example/v1") is entry.encoded("x.example/v1")
    assert b"x.example/v2" in entry.encoded("x.example/v2")
    assert b"kind" not in entry.encoded("x.example/v1", bare=True)


async def test_subscribers_get_what_they_want_in_order() -> None:
    store = Store()
    all_, some = (
        store.subscribe(THINGS, everything),
        store.subscribe(THINGS, lambda event: event.entry.key[1] == "b"),
    )
    for name in ("a", "b"):
        store.put(THINGS, thing(name))
    store.remove(THINGS, "", "a")
    assert await drained(all_) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert await drained(some) == [("ADDED", "b")]
    store.unsubscribe(THINGS, all_)
    store.put(THINGS, thing("c"))
    assert await drained(all_) == []


def test_the_history_reaches_back_as_far_as_its_size() -> None:
    store = Store(history_size=3)
    revisions = [store.put(THINGS, thing(name)).revision for name in "abcde"]
    assert [event.entry.key[1] for event in store.since(THINGS, revisions[1])] == ["c", "d", "e"]
    with pytest.raises(ApiError) as gone:
        store.since(THINGS, revisions[0])
    assert gone.value.status == 410


def test_compaction_forgets_positions_and_pages_but_no_objects() -> None:
    store = Store()
    position = store.put(THINGS, thing("a")).revision
    store.put(THINGS, thing("b"))
    store.keep_page(THINGS, store.revision, store.entries(THINGS))
    store.compact()
    with pytest.raises(ApiError):
        store.since(THINGS, position)
    assert store.since(THINGS, store.revision) == []
    assert store.page(THINGS, store.revision) is None
    assert [entry.key[1] for entry in store.entries(THINGS)] == ["a", "b"]


def test_entries_of_one_namespace() -> None:
    store = Store()
    for namespace in ("n", "m"):
        store.put(THINGS, thing("a", namespace))
    assert [entry.key for entry in store.entries(THINGS, "n")] == [("n", "a")]
