"""For whom a claim is reserved, as it was when the claim was read last."""

import pytest
from support.objects import claim

from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import ResourceClaim
from kubelet_plugin.prepare.claim_reads import PodsOfClaims, is_of_group


def pod(name: str) -> JsonObject:
    return {"resource": "pods", "name": name, "uid": name}


def reserved(name: str, *consumers: JsonObject, owner: str | None = None) -> ResourceClaim:
    obj = claim(name)
    obj["metadata"]["uid"] = name
    if owner is not None:
        obj["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "o"}]
    return ResourceClaim.of({**obj, "status": {"reservedFor": list(consumers)}})


GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> PodsOfClaims:
    monkeypatch.setattr("kubelet_plugin.prepare.claim_reads._REMEMBERED", 2)
    return PodsOfClaims()


def test_the_claim_that_was_read_longest_ago_is_forgotten(pods: PodsOfClaims) -> None:
    for name in ("a", "b", "a", "c"):
        pods.saw(reserved(name, pod(f"pod-{name}")))
    assert pods.of(["a", "b", "c"]) == {"a": ("pod-a",), "b": (), "c": ("pod-c",)}
    assert (pods.shared("a"), pods.shared("b")) == (True, False)


def test_pods_of_a_group_are_forgotten_with_their_claim(pods: PodsOfClaims) -> None:
    pods.saw(reserved("a", GROUP))
    pods.joined("a", ["member"])
    assert pods.of(["a"]) == {"a": ("member",)}
    for name in ("b", "c", "a"):
        pods.saw(reserved(name, GROUP))
    assert pods.of(["a"]) == {"a": ()}


def test_a_claim_that_a_pod_owns_is_not_shared(pods: PodsOfClaims) -> None:
    pods.saw(reserved("a"))
    assert pods.shared("a")
    pods.saw(reserved("a", owner="Pod"))
    assert not pods.shared("a")


def test_a_group_is_known_by_type_and_api() -> None:
    assert is_of_group(reserved("a", GROUP))
    assert not is_of_group(reserved("a", {**GROUP, "apiGroup": "example.com"}))
    assert not is_of_group(reserved("a", {**GROUP, "resource": "workloads"}))


def test_only_pods_of_the_core_api_are_pods() -> None:
    others = [{**pod("a"), "apiGroup": "example.com"}, {"resource": "nodes", "name": "b", "uid": "b"}]
    assert [item.name for item in reserved("c", *others, pod("d")).pods] == ["d"]
