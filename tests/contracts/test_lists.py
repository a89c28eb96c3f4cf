"""Lists: selectors, pages, other forms, positions."""

import pytest
from support.api import MERGE, Api
from support.dra_objects import SLICES, allocation, claim, claims, consumer, pod, resource_slice

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def names(listed: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [obj["metadata"]["name"] for obj in listed["items"]]


async def test_a_list_is_sorted_by_name_and_has_a_position(api: Api, namespace: str) -> None:
    for name in ("b", "c", "a"):
        await api.post(claims(namespace), claim(name))
    listed = await api.get(claims(namespace))
    assert names(listed) == ["a", "b", "c"]
    assert (listed["kind"], listed["apiVersion"]) == ("ResourceClaimList", "resource.k8s.io/v1")
    assert int(listed["metadata"]["resourceVersion"]) >= int(listed["items"][1]["metadata"]["resourceVersion"])


async def test_items_of_built_in_types_carry_no_version_and_kind(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    (item,) = (await api.get(claims(namespace)))["items"]
    assert "kind" not in item and "apiVersion" not in item


async def test_an_empty_list_has_an_empty_list_of_items(api: Api, namespace: str) -> None:
    assert (await api.get(claims(namespace)))["items"] == []


async def test_a_list_of_a_namespace_that_is_not_there_is_empty(api: Api) -> None:
    assert (await api.get(claims("no-such-namespace")))["items"] == []


async def test_all_namespaces_are_listed_together_in_the_order_of_their_keys(api: Api, namespace: str) -> None:
    """The key is `<namespace>/<name>`, so namespace a-b comes before namespace a."""
    other = f"{namespace}-b"
    await api.post("/api/v1/namespaces", {"metadata": {"name": other}})
    for place in (other, namespace):
        await api.post(claims(place), claim("a", labels={"contract": namespace}))
    listed = await api.get("/apis/resource.k8s.io/v1/resourceclaims", labelSelector=f"contract={namespace}")
    assert [claim_["metadata"]["namespace"] for claim_ in listed["items"]] == [other, namespace]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("env=prod", ["a"]),
        ("env==prod", ["a"]),
        ("env!=prod", ["b", "c"]),
        ("env in (prod, dev)", ["a", "b"]),
        ("env notin (prod)", ["b", "c"]),
        ("env", ["a", "b"]),
        ("!env", ["c"]),
        ("env,tier=1", ["b"]),
        ("", ["a", "b", "c"]),
    ],
)
async def test_label_selectors(api: Api, namespace: str, selector: str, expected: list[str]) -> None:
    for name, labels in {"a": {"env": "prod", "tier": "0"}, "b": {"env": "dev", "tier": "1"}, "c": {}}.items():
        await api.post(claims(namespace), claim(name, labels=labels))
    assert names(await api.get(claims(namespace), labelSelector=selector)) == expected


@pytest.mark.parametrize("selector", ["env=a=b", "env in prod", "a b"])
async def test_what_is_no_label_selector_is_a_bad_request(api: Api, namespace: str, selector: str) -> None:
    refusal = await api.refused("GET", claims(namespace), labelSelector=selector)
    assert (refusal.status, refusal.reason) == (400, "BadRequest")


async def test_every_type_is_selected_by_name(api: Api, namespace: str) -> None:
    for name in ("a", "b"):
        await api.post(claims(namespace), claim(name))
    assert names(await api.get(claims(namespace), fieldSelector="metadata.name=b")) == ["b"]
    assert names(await api.get(claims(namespace), fieldSelector="metadata.name!=b")) == ["a"]
    assert names(await api.get(claims(namespace), fieldSelector=f"metadata.namespace={namespace}")) == ["a", "b"]


async def test_slices_are_selected_by_node_and_driver(api: Api, unique: str) -> None:
    driver = f"{unique}.example.com"
    await api.post(SLICES, resource_slice(f"{unique}-a", driver=driver, nodeName="n1"))
    await api.post(SLICES, resource_slice(f"{unique}-b", driver=driver, nodeName=None, allNodes=True))
    assert names(await api.get(SLICES, fieldSelector=f"spec.driver={driver}")) == [f"{unique}-a", f"{unique}-b"]
    selector = f"spec.driver={driver},spec.nodeName="
    assert names(await api.get(SLICES, fieldSelector=selector)) == [f"{unique}-b"]


async def test_pods_are_selected_by_node_and_phase(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    await api.post(path, pod("a", nodeName="n1"))
    await api.post(path, pod("b"))
    assert names(await api.get(path, fieldSelector="spec.nodeName=n1")) == ["a"]
    assert names(await api.get(path, fieldSelector="spec.nodeName=")) == ["b"]
    assert names(await api.get(path, fieldSelector="status.phase!=Running")) == ["a", "b"]


async def test_fields_that_cannot_be_selected_are_a_bad_request(api: Api, namespace: str) -> None:
    refusal = await api.refused("GET", claims(namespace), fieldSelector="spec.nonsense=a")
    assert (refusal.status, refusal.reason) == (400, "BadRequest")


async def test_pages_show_one_state_whatever_happens_between_them(api: Api, namespace: str) -> None:
    for name in "abcde":
        await api.post(claims(namespace), claim(name))
    first = await api.get(claims(namespace), limit="2")
    assert names(first) == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await api.delete(f"{claims(namespace)}/d")
    await api.post(claims(namespace), claim("bb"))
    second = await api.get(claims(namespace), **{"limit": "2", "continue": first["metadata"]["continue"]})
    third = await api.get(claims(namespace), **{"limit": "2", "continue": second["metadata"]["continue"]})
    assert names(second) + names(third) == ["c", "d", "e"]
    assert not third["metadata"].get("continue")
    versions = {page["metadata"]["resourceVersion"] for page in (first, second, third)}
    assert len(versions) == 1


async def test_pages_go_through_selectors(api: Api, namespace: str) -> None:
    for name in "abcd":
        await api.post(claims(namespace), claim(name, labels={"odd": str(name in "ac")}))
    first = await api.get(claims(namespace), limit="1", labelSelector="odd=True")
    assert names(first) == ["a"] and "remainingItemCount" not in first["metadata"]
    following = {"limit": "1", "labelSelector": "odd=True", "continue": first["metadata"]["continue"]}
    assert names(await api.get(claims(namespace), **following)) == ["c"]


async def test_a_continue_token_that_is_none_is_a_bad_request(api: Api, namespace: str) -> None:
    assert (await api.refused("GET", claims(namespace), **{"continue": "nonsense"})).status == 400


async def test_a_list_is_not_older_than_the_version_asked_for(api: Api, namespace: str) -> None:
    created = await api.post(claims(namespace), claim("a"))
    version = created["metadata"]["resourceVersion"]
    for query in ({"resourceVersion": version, "resourceVersionMatch": "NotOlderThan"}, {"resourceVersion": version}):
        listed = await api.get(claims(namespace), **query)
        assert names(listed) == ["a"] and int(listed["metadata"]["resourceVersion"]) >= int(version)
    assert names(await api.get(claims(namespace), resourceVersion="0")) is not None


async def test_a_version_that_is_no_number_is_refused(api: Api, namespace: str) -> None:
    assert (await api.refused("GET", claims(namespace), resourceVersion="nonsense")).status == 400


async def test_claims_as_a_table(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    table = await api.request("GET", claims(namespace), headers=TABLE)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "State", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:2] == ["a", "pending"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "a"


async def test_rows_carry_whole_objects_or_none_as_asked(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    whole = await api.request("GET", claims(namespace), headers=TABLE, includeObject="Object")
    assert whole["rows"][0]["object"]["spec"]["devices"]
    none = await api.request("GET", f"{claims(namespace)}/a", headers=TABLE, includeObject="None")
    assert none["rows"][0]["object"] is None


@pytest.mark.parametrize(
    ("path", "columns"),
    [
        ("/api/v1/nodes", "Name Status Roles Age Version"),
        ("/api/v1/pods", "Name Ready Status Restarts Age"),
        ("/api/v1/namespaces", "Name Status Age"),
        ("/api/v1/configmaps", "Name Data Age"),
        ("/api/v1/secrets", "Name Type Data Age"),
        ("/api/v1/events", "Last_Seen Type Reason Object Message"),
        ("/apis/apps/v1/daemonsets", "Name Desired Current Ready Up-to-date Available Node_Selector Age"),
        ("/apis/coordination.k8s.io/v1/leases", "Name Holder Age"),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "Name Created_At"),
        ("/apis/resource.k8s.io/v1/resourceslices", "Name Node Driver Pool Age"),
        ("/apis/resource.k8s.io/v1/resourceclaims", "Name State Age"),
        ("/apis/resource.k8s.io/v1/resourceclaimtemplates", "Name Age"),
        ("/apis/resource.k8s.io/v1/deviceclasses", "Name Age"),
    ],
)
async def test_tables_have_the_columns_that_kubectl_shows(api: Api, path: str, columns: str) -> None:
    table = await api.request("GET", path, headers=TABLE)
    shown = [column for column in table["columnDefinitions"] if not column["priority"]]
    assert [column["name"].replace(" ", "_") for column in shown] == columns.split()


async def test_the_state_of_a_claim_in_its_table(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a", finalizers=["x.example/a"]))
    status = {"allocation": allocation(), "reservedFor": [consumer()]}
    await api.patch(f"{claims(namespace)}/a/status", {"status": status})
    await api.delete(f"{claims(namespace)}/a")
    table = await api.request("GET", f"{claims(namespace)}/a", headers=TABLE)
    assert table["rows"][0]["cells"][1] == "deleted,allocated,reserved"


async def test_only_metadata_when_asked(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    listed = await api.request("GET", claims(namespace), headers=accept)
    assert listed["kind"] == "PartialObjectMetadataList"
    assert set(listed["items"][0]) <= {"kind", "apiVersion", "metadata"}
    accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    obj = await api.request("GET", f"{claims(namespace)}/a", headers=accept)
    assert (obj["kind"], obj["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert "spec" not in obj


@pytest.mark.parametrize("part", ["", "/status"])
async def test_a_write_is_answered_with_metadata_when_asked(api: Api, namespace: str, part: str) -> None:
    before = await api.post(claims(namespace), claim("a"))
    patch = {"metadata": {"labels": {"a": "b"}}} if not part else {"status": {"allocation": allocation()}}
    headers = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "Content-Type": MERGE}
    answer = await api.request("PATCH", f"{claims(namespace)}/a{part}", patch, headers=headers)
    assert set(answer) == {"kind", "apiVersion", "metadata"}
    assert answer["kind"] == "PartialObjectMetadata"
    assert answer["metadata"]["uid"] == before["metadata"]["uid"]
    now = await api.get(f"{claims(namespace)}/a")
    version = answer["metadata"]["resourceVersion"]
    assert version == now["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
