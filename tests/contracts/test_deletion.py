"""How objects go: at once, after their finalizers, after their grace period; preconditions and collections."""

from support.api import MERGE, Api
from support.dra_objects import SLICES, claim, claims, device, pod, resource_slice


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


async def test_an_object_without_finalizers_goes_at_once(api: Api, namespace: str) -> None:
    created = await api.post(claims(namespace), claim("a"))
    answer = await api.delete(f"{claims(namespace)}/a")
    assert (answer["kind"], answer["metadata"]["uid"]) == ("ResourceClaim", created["metadata"]["uid"])
    assert (await api.refused("GET", f"{claims(namespace)}/a")).status == 404


async def test_config_maps_answer_a_status(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    created = await api.post(path, {"metadata": {"name": "a"}})
    answer = await api.delete(f"{path}/a")
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "a", "kind": "configmaps", "uid": created["metadata"]["uid"]}


async def test_finalizers_hold_an_object_until_the_last_is_removed(api: Api, namespace: str) -> None:
    path = f"{claims(namespace)}/a"
    await api.post(claims(namespace), claim("a", finalizers=["x.example/a", "x.example/b"]))
    deleting = await api.delete(path)
    assert deleting["metadata"]["deletionTimestamp"]
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 0
    again = await api.delete(path)
    assert again["metadata"]["deletionTimestamp"] == deleting["metadata"]["deletionTimestamp"]
    await api.patch(path, {"metadata": {"finalizers": ["x.example/b"]}})
    assert (await api.get(path))["metadata"]["finalizers"] == ["x.example/b"]
    gone = await api.patch(path, {"metadata": {"finalizers": None}})
    assert "finalizers" not in gone["metadata"]
    assert (await api.refused("GET", path)).status == 404


async def test_no_finalizer_is_added_to_what_is_being_deleted(api: Api, namespace: str) -> None:
    path = f"{claims(namespace)}/a"
    await api.post(claims(namespace), claim("a", finalizers=["x.example/a"]))
    await api.delete(path)
    refusal = await api.refused("PATCH", path, {"metadata": {"finalizers": ["x.example/a", "x.example/b"]}}, MERGE)
    assert refusal.status == 422
    assert refusal.causes == {("metadata.finalizers", "FieldValueForbidden")}


async def test_other_changes_of_what_is_being_deleted_are_possible(api: Api, namespace: str) -> None:
    path = f"{claims(namespace)}/a"
    await api.post(claims(namespace), claim("a", finalizers=["x.example/a"]))
    await api.delete(path)
    labelled = await api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["labels"] == {"a": "b"}


async def test_a_deletion_that_waits_counts_as_a_generation(api: Api, unique: str) -> None:
    body = resource_slice(unique, device())
    body["metadata"]["finalizers"] = ["x.example/a"]
    await api.post(SLICES, body)
    assert (await api.delete(f"{SLICES}/{unique}"))["metadata"]["generation"] == 2
    await api.patch(f"{SLICES}/{unique}", {"metadata": {"finalizers": None}})


async def test_preconditions_guard_a_deletion(api: Api, namespace: str) -> None:
    path = f"{claims(namespace)}/a"
    created = (await api.post(claims(namespace), claim("a")))["metadata"]
    changed = (await api.patch(path, {"metadata": {"labels": {"a": "b"}}}))["metadata"]
    wrong_uid = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    stale = {"preconditions": {"uid": created["uid"], "resourceVersion": created["resourceVersion"]}}
    for body in (wrong_uid, stale):
        refusal = await api.refused("DELETE", path, body)
        assert (refusal.status, refusal.reason) == (409, "Conflict")
    current = {"preconditions": {"uid": created["uid"], "resourceVersion": changed["resourceVersion"]}}
    await api.delete(path, current)
    assert (await api.refused("GET", path)).status == 404


async def test_a_pod_without_a_node_goes_at_once(api: Api, namespace: str) -> None:
    await api.post(pods(namespace), pod("a"))
    await api.delete(f"{pods(namespace)}/a")
    assert (await api.refused("GET", f"{pods(namespace)}/a")).status == 404


async def test_a_pod_on_a_node_stays_until_its_kubelet_deletes_it_with_no_grace(api: Api, namespace: str) -> None:
    path = f"{pods(namespace)}/a"
    await api.post(pods(namespace), pod("a", nodeName="node-1", terminationGracePeriodSeconds=20))
    deleting = (await api.delete(path))["metadata"]
    assert deleting["deletionGracePeriodSeconds"] == 20
    assert deleting["deletionTimestamp"] > deleting["creationTimestamp"]
    shortened = (await api.delete(path, {"gracePeriodSeconds": 5}))["metadata"]
    assert shortened["deletionGracePeriodSeconds"] == 5
    longer = (await api.delete(path, {"gracePeriodSeconds": 60}))["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 5
    await api.delete(path, {"gracePeriodSeconds": 0})
    assert (await api.refused("GET", path)).status == 404


async def test_a_finished_pod_on_a_node_goes_at_once(api: Api, namespace: str) -> None:
    path = f"{pods(namespace)}/a"
    await api.post(pods(namespace), pod("a", nodeName="node-1"))
    await api.patch(f"{path}/status", {"status": {"phase": "Succeeded"}})
    await api.delete(path)
    assert (await api.refused("GET", path)).status == 404


async def test_a_pod_with_a_finalizer_outlives_its_kubelet(api: Api, namespace: str) -> None:
    path, body = f"{pods(namespace)}/a", pod("a", nodeName="node-1")
    body["metadata"]["finalizers"] = ["x.example/a"]
    await api.post(pods(namespace), body)
    await api.delete(path)
    await api.delete(path, {"gracePeriodSeconds": 0})
    assert (await api.get(path))["metadata"]["deletionGracePeriodSeconds"] == 0
    await api.patch(path, {"metadata": {"finalizers": None}})
    assert (await api.refused("GET", path)).status == 404


async def test_an_eviction_deletes_a_pod(api: Api, namespace: str) -> None:
    await api.post(pods(namespace), pod("a"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": namespace}}
    assert (await api.post(f"{pods(namespace)}/a/eviction", eviction))["status"] == "Success"
    assert (await api.refused("GET", f"{pods(namespace)}/a")).status == 404


async def test_a_collection_is_deleted_by_selector(api: Api, namespace: str) -> None:
    for name in ("a", "b", "c"):
        await api.post(claims(namespace), claim(name, labels={"group": "x" if name == "c" else "y"}))
    await api.delete(claims(namespace), labelSelector="group=y")
    assert [remaining["metadata"]["name"] for remaining in (await api.get(claims(namespace)))["items"]] == ["c"]


async def test_slices_of_one_driver_on_one_node_are_deleted_as_kubelet_does_it(api: Api, unique: str) -> None:
    node, driver = f"node-{unique}", f"{unique}.example.com"
    other_node, other_driver = f"other-{unique}", f"other-{unique}.example.com"
    for index, (name, of) in enumerate([(node, driver), (other_node, driver), (node, other_driver)]):
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        await api.post(SLICES, resource_slice(f"{unique}-{index}", nodeName=name, driver=of, pool=pool))
    await api.delete(SLICES, fieldSelector=f"spec.nodeName={node},spec.driver={driver}")
    left = [slice_["metadata"]["name"] for slice_ in (await api.get(SLICES))["items"]]
    assert [name for name in left if name.startswith(unique)] == [f"{unique}-1", f"{unique}-2"]
    await api.delete(SLICES, fieldSelector=f"spec.nodeName={node}")
    left = [slice_["metadata"]["name"] for slice_ in (await api.get(SLICES))["items"]]
    assert [name for name in left if name.startswith(unique)] == [f"{unique}-1"]
