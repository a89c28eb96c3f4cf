"""ComputeDomains in a world: a pod that names the template of one is placed, and told why it waits."""

from typing import Any

import pytest
from support.shipped import class_objects

from dra_driver.allocation.domains import domain_uid, with_uid
from dra_driver.allocation.loading import world_of
from dra_driver.allocation.offline import allocate_all
from dra_driver.allocation.world import World, claims_of
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import JsonObject
from dra_driver.domains.objects import workload_template
from dra_driver.explain.explain import Answer, Explanation, explain_pod

DRIVER = "compute-domain.nvidia.com"
UID, OTHER = "d0000000-0000-4000-8000-000000000001", "d0000000-0000-4000-8000-000000000002"
CLASSES = [class_ for class_ in class_objects() if class_["metadata"]["name"].startswith("compute-domain-")]


def slice_of(node: str, channels: int = 1, *, domain: str | None = None, fabric: str | None = None) -> JsonObject:
    common: JsonObject = {"domain": {"string": domain}} if domain is not None else {}
    taints = [{"key": f"{DRIVER}/fabric", "value": fabric, "effect": "NoSchedule"}] if fabric is not None else None
    devices = [
        {
            "name": f"{kind}-{number}",
            "attributes": {"type": {"string": kind}, "id": {"int": number}, **common},
            **({"taints": taints} if taints else {}),
        }
        for kind, number in [("daemon", 0), *(("channel", number) for number in range(channels))]
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}


def domain(name: str = "train", uid: str | None = None, ready: tuple[str, str] | None = None) -> JsonObject:
    """`ready` is reason and message of a condition that is false."""
    metadata = {"name": name, "namespace": "team", **({"uid": uid} if uid is not None else {})}
    spec = {"channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}}
    obj: JsonObject = {"kind": "ComputeDomain", "metadata": metadata, "spec": spec}
    if ready is not None:
        condition = {"type": "Ready", "status": "False", "reason": ready[0], "message": ready[1]}
        obj["status"] = {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    return obj


def pod(name: str, template: str = "train-channel", *, node: str | None = None) -> JsonObject:
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "channel"}]}}],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": template}],
        **({"nodeName": node} if node is not None else {}),
    }
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}"}, "spec": spec}


def world(*objects: JsonObject, live: bool = False) -> World:
    loaded = world_of([*CLASSES, *objects], live=live)
    assert not loaded.problems
    return loaded.world


def placed(files: World) -> list[str | None]:
    return [outcome.node for outcome in allocate_all(files)]


def codes(explanation: Explanation) -> dict[str, str]:
    return {finding.code: finding.text for finding in explanation.findings}


def test_in_files_a_domain_stands_for_the_template_that_will_be_made() -> None:
    files = world(domain(), pod("a"), pod("b"), pod("c"), slice_of("tray-1"), slice_of("tray-2"))
    assert placed(files) == ["tray-1", "tray-2", None]
    first = claims_of(files, files.pods["team", "a"])[0].claim
    assert first is not None
    uid = domain_uid(first)
    assert uid == with_uid(ComputeDomain.of(domain())).metadata.uid
    assert uid != with_uid(ComputeDomain.of(domain("serve"))).metadata.uid
    assert with_uid(ComputeDomain.of(domain(uid=UID))).metadata.uid == UID


def test_where_nodes_have_several_channels_pods_share_a_node() -> None:
    assert placed(world(domain(), pod("a"), pod("b"), slice_of("tray-1", 2))) == ["tray-1", "tray-1"]


def test_a_node_is_given_to_one_domain_however_many_channels_it_has() -> None:
    pods = pod("a"), pod("b", "serve-channel"), pod("c"), pod("d", "serve-channel"), pod("e", "third-channel")
    domains = domain(), domain("serve"), domain("third")
    files = world(*domains, *pods, slice_of("tray-1", 4), slice_of("tray-2", 4))
    by_name = {outcome.name: outcome for outcome in allocate_all(files)}
    assert [by_name[name].node for name in "abcde"] == ["tray-1", "tray-2", "tray-1", "tray-2", None]
    assert by_name["e"].reasons == {"in another ComputeDomain": 2}


def test_a_node_whose_channel_a_claim_holds_is_in_its_domain_before_its_devices_say_so() -> None:
    two = slice_of("tray-1", 2)
    files = world(domain(uid=UID), domain("serve", uid=OTHER), *bound("a"), pod("b", "serve-channel"), pod("c"), two)
    assert placed(files) == [None, "tray-1"]


def test_a_pod_of_two_domains_has_no_node() -> None:
    both = pod("both")
    both["spec"]["resourceClaims"].append({"name": "other", "resourceClaimTemplateName": "serve-channel"})
    files = world(domain(), domain("serve"), both, slice_of("tray-1", 4))
    assert [outcome.reasons for outcome in allocate_all(files)] == [{"in another ComputeDomain": 1}]


def test_a_template_that_is_there_is_not_replaced() -> None:
    own = workload_template(ComputeDomain.of(domain(uid=OTHER)))
    files = world(domain(uid=UID), own, slice_of("tray-1"))
    assert str(OTHER) in files.templates["team", "train-channel"].model_dump_json()


def test_in_a_cluster_a_template_that_is_not_there_is_missing_and_the_domain_says_why() -> None:
    condition = ("TemplateNameTaken", "ResourceClaimTemplate train-channel is not this domain's")
    cluster = world(domain(uid=UID, ready=condition), pod("a"), slice_of("tray-1"), live=True)
    explanation = explain_pod(cluster, ("team", "a"))
    assert explanation.answer is Answer.WAITS
    assert "missing-template" in codes(explanation)
    assert condition[1] in codes(explanation)["domain-template"]


def test_a_pod_of_another_namespace_is_not_told_of_a_domain_that_has_nothing_to_do_with_it() -> None:
    elsewhere = pod("a") | {"metadata": {"name": "a", "namespace": "other"}}
    explanation = explain_pod(world(domain(uid=UID), elsewhere, live=True), ("other", "a"))
    assert "domain-template" not in codes(explanation)


@pytest.mark.parametrize(
    ("node", "code", "reason"),
    [
        (slice_of("tray-1", domain=OTHER), "node-in-other-domain", "in ComputeDomain team/serve"),
        (slice_of("tray-1", fabric="InProgress"), "fabric-incomplete", "InProgress"),
    ],
)
def test_a_node_that_the_domain_cannot_have_says_why(node: JsonObject, code: str, reason: str) -> None:
    files = world(domain(uid=UID), domain("serve", uid=OTHER), pod("a"), node)
    explanation = explain_pod(files, ("team", "a"))
    assert explanation.answer is Answer.WAITS
    assert reason in codes(explanation)[code]
    assert "tray-1" in next(finding.about for finding in explanation.findings if finding.code == code)


def test_a_node_of_the_same_domain_is_no_news_and_one_that_nobody_knows_is_named_by_uid() -> None:
    ours = explain_pod(world(domain(uid=UID), pod("a"), slice_of("tray-1", domain=UID)), ("team", "a"))
    assert (ours.answer, codes(ours)) == (Answer.FITS, {})
    unknown = explain_pod(world(domain(uid=UID), pod("a"), slice_of("tray-1", domain=OTHER)), ("team", "a"))
    assert OTHER in codes(unknown)["node-in-other-domain"]


def bound(name: str) -> tuple[JsonObject, JsonObject]:
    """A pod on tray-1, and its claim."""
    template = workload_template(ComputeDomain.of(domain(uid=UID)))
    result = {"request": "channel", "driver": DRIVER, "pool": "tray-1", "device": "channel-0"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-of-{name}", "controller": True}
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": f"{name}-channel", "namespace": "team", "ownerReferences": [owner]},
        "spec": template["spec"]["spec"],
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    made = pod(name, node="tray-1")
    made["status"] = {"resourceClaimStatuses": [{"name": "channel", "resourceClaimName": f"{name}-channel"}]}
    return made, claim


def test_a_pod_that_has_its_node_hears_what_its_domain_waits_for() -> None:
    waits = domain(uid=UID, ready=("DaemonsNotReady", "1 of 2 nodes: tray-2 (it has no pod)"))
    explanation = explain_pod(world(waits, *bound("a"), slice_of("tray-1"), live=True), ("team", "a"))
    assert explanation.answer is Answer.SCHEDULED
    assert "1 of 2 nodes: tray-2" in codes(explanation)["domain-not-ready"]


def test_a_claim_of_a_domain_that_is_gone_is_told_so() -> None:
    explanation = explain_pod(world(*bound("a"), slice_of("tray-1"), live=True), ("team", "a"))
    assert UID in codes(explanation)["domain-gone"]
    files = explain_pod(world(*bound("a"), slice_of("tray-1")), ("team", "a"))
    assert "domain-gone" not in codes(files), "files need not have everything"
