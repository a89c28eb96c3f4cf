"""Extended resources to requests, as kube-scheduler does it."""

from typing import Any

from dra_driver.allocation.placement import class_by_resource, extended_claim, extended_requests, extended_resources
from dra_driver.api.core import Pod
from dra_driver.api.resource import DeviceClass

GPU = "nvidia.com/gpu"


def container(name: str, amount: int = 0, **more: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", GPU: str(amount)}} if amount else {}
    return {"name": name, "image": "x", "resources": resources, **more}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> Pod:
    spec = {"containers": list(containers), "initContainers": list(init)}
    return Pod.of({"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": spec})


def asked(pod: Pod) -> tuple[list[tuple[str, int | None]], list[tuple[str, str]]]:
    extended = extended_requests(pod.spec, {GPU: "gpu"})
    return (
        [(request.name, request.exactly.count if request.exactly else None) for request in extended.requests],
        [(mapping.container, mapping.request) for mapping in extended.mappings],
    )


def of_class(name: str, created: str, resource: str | None = GPU) -> DeviceClass:
    spec = {"extendedResourceName": resource} if resource else {}
    return DeviceClass.of({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec})


def test_every_container_gets_a_request_named_after_its_place_and_the_resource_s() -> None:
    requests, mappings = asked(pod(container("a", 2), container("plain"), container("b", 1)))
    assert requests == [("container-0-request-1", 2), ("container-2-request-1", 1)]
    assert mappings == [("a", "container-0-request-1"), ("b", "container-2-request-1")]


def test_limits_count_where_requests_were_not_filled_in() -> None:
    obj = pod({"name": "a", "image": "x", "resources": {"limits": {GPU: 1}}})
    assert asked(obj)[0] == [("container-0-request-0", 1)]


def test_an_init_container_uses_the_devices_of_the_containers_after_it() -> None:
    requests, mappings = asked(pod(container("main", 2), init=(container("setup", 1),)))
    assert requests == [("container-1-request-1", 2)]
    assert mappings == [("main", "container-1-request-1"), ("setup", "container-1-request-1")]


def test_init_containers_that_need_more_share_one_request_of_the_largest_amount() -> None:
    requests, mappings = asked(
        pod(container("main", 1), init=(container("first", 2), container("second", 4), container("third", 1)))
    )
    assert requests == [("container-1-request-1", 3), ("container-3-request-1", 1)]
    assert mappings == [
        ("main", "container-3-request-1"),
        ("first", "container-3-request-1"),
        ("first", "container-1-request-1"),
        ("second", "container-3-request-1"),
        ("second", "container-1-request-1"),
        ("third", "container-3-request-1"),
    ]


def test_a_sidecar_lasts_and_its_devices_are_not_those_of_others() -> None:
    sidecar = container("sidecar", 1, restartPolicy="Always")
    requests, _ = asked(pod(container("main", 1), init=(sidecar, container("setup", 2))))
    assert requests == [("container-0-request-1", 1), ("container-1-request-1", 1), ("container-2-request-1", 1)]


def test_what_a_pod_needs_at_any_time_is_the_larger_of_its_phases() -> None:
    assert extended_resources(pod(container("a", 1), container("b", 2)).spec) == {GPU: 3}
    assert extended_resources(pod(container("a", 1), init=(container("setup", 4),)).spec) == {GPU: 4}
    sidecar = container("sidecar", 1, restartPolicy="Always")
    assert extended_resources(pod(container("a", 1), init=(sidecar, container("setup", 2))).spec) == {GPU: 3}
    assert extended_resources(pod(container("a")).spec) == {}


def test_kubernetes_own_resources_are_not_extended() -> None:
    amounts = {"cpu": "1", "hugepages-2Mi": "1Gi", "kubernetes.io/x": "1", "requests.example.com/y": "1"}
    amounts |= {"deviceclass.resource.kubernetes.io/gpu": "1", "example.com/z": "2"}
    obj = pod({"name": "a", "image": "x", "resources": {"requests": amounts}})
    assert extended_resources(obj.spec) == {"deviceclass.resource.kubernetes.io/gpu": 1, "example.com/z": 2}


def test_the_newest_class_answers_to_a_resource_and_of_equal_ones_the_smaller_name() -> None:
    classes = [of_class("b", "2026-01-02"), of_class("a", "2026-01-02"), of_class("c", "2026-01-01")]
    assert class_by_resource(classes)[GPU] == "a"
    assert class_by_resource(reversed(classes))[GPU] == "a"


def test_every_class_answers_to_its_implicit_name() -> None:
    assert class_by_resource([of_class("gpu.nvidia.com", "2026-01-01", None)]) == {
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "gpu.nvidia.com"
    }


def test_the_claim_belongs_to_the_pod() -> None:
    obj = pod(container("a", 1))
    claim = extended_claim(obj, extended_requests(obj.spec, {GPU: "gpu"}).requests)
    assert claim["metadata"]["generateName"] == "p-extended-resources-"
    assert claim["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert claim["spec"]["devices"]["requests"] == [
        {
            "name": "container-0-request-1",
            "exactly": {
                "deviceClassName": "gpu",
                "selectors": [],
                "allocationMode": "ExactCount",
                "count": 1,
                "tolerations": [],
            },
        }
    ]


def test_in_1_34_an_init_container_has_devices_of_its_own() -> None:
    asks = {"resources": {"requests": {"example.com/gpu": "1"}}}
    both = pod({"name": "main", **asks}, init=({"name": "setup", **asks},))
    apart = extended_requests(both.spec, {"example.com/gpu": "gpu"}, reuse=False)
    assert [request.name for request in apart.requests] == ["container-0-request-0", "container-1-request-0"]
    assert [(mapping.container, mapping.request) for mapping in apart.mappings] == [
        ("setup", "container-0-request-0"),
        ("main", "container-1-request-0"),
    ]
    assert len(extended_requests(both.spec, {"example.com/gpu": "gpu"}).requests) == 1
    (owner,) = extended_claim(both, apart.requests, minor=34)["metadata"]["ownerReferences"]
    assert owner["blockOwnerDeletion"] is True
