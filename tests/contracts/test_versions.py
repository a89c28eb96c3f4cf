"""Objects that are served in several shapes: the two kinds of events; and versions that are not served."""

from typing import Any

import pytest
from support.api import Api


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_beta_versions_are_off_by_default(api: Api, version: str) -> None:
    assert (await api.refused("GET", f"/apis/resource.k8s.io/{version}/resourceslices")).status == 404


async def test_an_event_is_the_same_object_in_both_groups(api: Api, namespace: str) -> None:
    path = f"namespaces/{namespace}/events"
    about = {"kind": "Pod", "name": "p", "namespace": namespace}
    new: dict[str, Any] = {
        "metadata": {"name": "a"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "x.example/y",
        "reportingInstance": "i",
        "action": "Prepare",
        "reason": "Failed",
        "regarding": about,
        "note": "text",
        "type": "Warning",
    }
    created = await api.post(f"/apis/events.k8s.io/v1/{path}", new)
    old = await api.get(f"/api/v1/{path}/a")
    assert old["metadata"]["uid"] == created["metadata"]["uid"]
    assert (old["involvedObject"], old["message"], old["reportingComponent"]) == (about, "text", "x.example/y")
    listed = await api.get(f"/api/v1/{path}", fieldSelector="involvedObject.name=p,type=Warning")
    assert [event_["metadata"]["name"] for event_ in listed["items"]] == ["a"]


async def test_an_event_lives_in_the_namespace_of_what_it_is_about(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    body = {"metadata": {"name": "a"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"}}
    assert ("involvedObject.namespace", "FieldValueInvalid") in (await api.refused("POST", path, body)).causes
