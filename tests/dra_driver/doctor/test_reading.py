"""A cluster is read once, and what may not be read keeps nothing else from being read."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from support.installation import NODES, NOW, RELEASE, FakeKube, Installation, account
from support.rows import rows

from dra_driver.api.meta import RESOURCE_SLICES, JsonObject, Resource
from dra_driver.cli.doctor import progress, shipped_checks
from dra_driver.doctor.cluster import ClusterView, KubeletSeen, ReleaseSeen, facts_from
from dra_driver.doctor.findings import Verdict, examined
from dra_driver.doctor.kinds import LISTED_KINDS, ObservedKind
from dra_driver.doctor.reading import Reader
from dra_driver.errors import InvalidInput, Unreachable
from dra_driver.names import GPU_DRIVER


def reader(kube: FakeKube, **options: Any) -> Reader:
    def now() -> datetime:
        return NOW

    return Reader(kube, release=RELEASE, now=now, **options)


async def read(kube: FakeKube) -> ClusterView:
    cluster, _ = await reader(kube).read()
    return cluster


def verdicts(cluster: ClusterView) -> dict[str, Verdict]:
    return {finding.check: finding.verdict for finding in examined(shipped_checks(), cluster)}


async def test_what_is_read_is_what_there_is() -> None:
    installation = Installation()
    cluster = await read(FakeKube(installation))
    expected = installation.cluster
    for source in LISTED_KINDS:
        if source.field is not None:
            assert getattr(cluster, source.field) == getattr(expected, source.field), source.field
    for field in ("namespaces", "config_maps", "leases", "events"):
        assert getattr(cluster, field) == getattr(expected, field), field
    assert set(verdicts(cluster).values()) == {Verdict.OK}


async def test_only_where_domains_are_kept_accounts_need_permissions_for_them() -> None:
    kube = FakeKube(Installation())
    both = {access.who for access in (await read(kube)).account_access.items if access.resource == "computedomains"}
    assert both == {account("plugin"), account("controller")}
    kube.installation.container("deployments")["args"].append("--feature-gates=ComputeDomains=false")
    accounts = {access.who for access in (await read(kube)).account_access.items if access.resource == "computedomains"}
    assert accounts == {account("plugin")}


async def test_secrets_are_never_asked_for_and_nothing_is_changed() -> None:
    kube = FakeKube(Installation())
    await read(kube)
    assert not [request for request in kube.asked if "secret" in request]
    assert {request.split()[0] for request in kube.asked} <= {"list", "get", "create", "GET", "POST"}
    assert {request for request in kube.asked if request.startswith("create")} == {"create resourceslices"}


@rows("source", [kind for kind in LISTED_KINDS if kind.field is not None])
async def test_a_kind_that_may_not_be_listed_is_unknown_and_the_rest_is_known(source: ObservedKind) -> None:
    kube = FakeKube(Installation())
    plural, field = source.resource.plural, source.field
    assert field is not None
    kube.refuse = {plural}
    cluster = await read(kube)
    unread = cluster.unread(field)
    assert unread is not None
    assert (unread.permission or "").startswith(f"list {plural}")
    by_check = verdicts(cluster)
    assert Verdict.UNKNOWN in by_check.values()
    assert by_check["server-version"] is Verdict.OK
    for check in shipped_checks():
        if field in check.reads:
            assert by_check[check.name] is Verdict.UNKNOWN


async def test_a_server_that_fails_for_one_kind_is_not_a_missing_permission() -> None:
    kube = FakeKube(Installation())
    kube.fail = {"deviceclasses": Unreachable("etcd is slow", status=503)}
    unread = (await read(kube)).unread("classes")
    assert unread is not None
    assert (unread.why, unread.permission) == ("etcd is slow", None)


async def test_a_server_that_does_not_answer_ends_it() -> None:
    kube = FakeKube(Installation())
    kube.fail = {"/version": Unreachable("no route to host")}
    with pytest.raises(Unreachable):
        await read(kube)


async def test_a_probe_that_is_answered_with_something_else_leaves_only_its_check_unknown() -> None:
    class Odd(FakeKube):
        async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool = False) -> JsonObject:
            answer = await super().create(resource, obj, dry_run=dry_run)
            return {"kind": "Status"} if resource == RESOURCE_SLICES else answer

    unknown = [
        check for check, verdict in verdicts(await read(Odd(Installation()))).items() if verdict is Verdict.UNKNOWN
    ]
    assert unknown == ["features"]


async def test_a_probe_that_may_not_be_made_leaves_gates_to_the_servers_metrics() -> None:
    kube = FakeKube(Installation())
    kube.refuse = {"create resourceslices"}
    assert verdicts(await read(kube))["features"] is Verdict.UNKNOWN
    gates = ("DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceTaints")
    kube.texts["/metrics"] = "# HELP x\n" + "\n".join(
        f'kubernetes_feature_enabled{{name="{gate}",stage="BETA"}} 1' for gate in gates
    )
    assert verdicts(await read(kube))["features"] is Verdict.OK
    kube.texts["/metrics"] = kube.texts["/metrics"].replace("} 1", "} 0")
    assert verdicts(await read(kube))["features"] is Verdict.WARNING


CONFIGZ = "/api/v1/nodes/{}/proxy/configz"


async def test_kubelets_of_nodes_with_gpus_tell_their_gates() -> None:
    kube = FakeKube(Installation())
    first, *others = NODES
    kube.answers[CONFIGZ.format(first)] = {"kubeletconfig": {"featureGates": {"DRAExtendedResource": False}}}
    for node in others:
        kube.fail[CONFIGZ.format(node)] = Unreachable("no answer", status=502)
    cluster = await read(kube)
    assert cluster.kubelets.items == (KubeletSeen(first, {"DRAExtendedResource": False}),)
    assert verdicts(cluster)["kubelet-gates"] is Verdict.WARNING


async def test_who_may_not_use_the_proxy_is_refused_once() -> None:
    kube = FakeKube(Installation())
    kube.refuse = {CONFIGZ.format(node) for node in NODES}
    unread = (await read(kube)).kubelets.unread
    assert unread is not None and unread.permission == "get nodes/proxy"
    assert len([request for request in kube.asked if "configz" in request]) == 1


@pytest.mark.parametrize("name", ["@sha256:0123", ":main"])
async def test_a_pod_tells_the_release_that_its_image_does_not(name: str) -> None:
    installation = Installation()
    kube = FakeKube(installation)
    await read(kube)
    assert not [request for request in kube.asked if "/pods/" in request], "images with tags tell"
    installation.container("deployments")["image"] = f"registry.example/gpu-dra-driver{name}"
    metrics = f'gpu_dra_build_info{{component="controller",version="{RELEASE}"}} 1.0'
    path = "/api/v1/namespaces/gpu-dra/pods/controller-0:8080/proxy/metrics"
    kube.texts[path] = f"# HELP x\n{metrics}\n"
    cluster = await read(kube)
    assert cluster.releases.items == (ReleaseSeen("gpu-dra-controller", RELEASE),)
    assert verdicts(cluster)["versions"] is Verdict.OK


async def test_a_kind_that_is_not_served_is_not_asked_for() -> None:
    """A user without rights would be told that they lack that to list it."""
    kube = FakeKube(Installation())
    kube.unserved = {"nvidia.com"}
    kube.refuse = {"clusterpolicies", "gpuclusters"}
    assert verdicts(await read(kube))["gpu-operator"] is Verdict.OK
    kube.unserved = set()
    assert verdicts(await read(kube))["gpu-operator"] is Verdict.UNKNOWN


async def test_the_webhook_is_asked_only_where_there_is_one() -> None:
    installation = Installation()
    kube = FakeKube(installation)
    service = {"namespace": "gpu-dra", "name": "webhook"}
    webhook = {"name": "refuse", "clientConfig": {"service": service, "caBundle": "Q0E="}}
    installation.add("validatingwebhookconfigurations", {"metadata": {"name": "gpu-dra-driver"}, "webhooks": [webhook]})
    kube.accepts = False
    assert verdicts(await read(kube))["webhook"] is Verdict.OK
    kube.accepts = True
    assert verdicts(await read(kube))["webhook"] is Verdict.PROBLEM
    kube.fail = {"create resourceclaims": Unreachable('failed calling webhook "refuse": timeout', status=500)}
    assert verdicts(await read(kube))["webhook"] is Verdict.PROBLEM
    kube.fail, kube.refuse = {}, {"create resourceclaims"}
    assert verdicts(await read(kube))["webhook"] is Verdict.UNKNOWN


async def test_of_pods_that_are_not_ours_only_who_uses_which_claim_is_kept() -> None:
    installation = Installation()
    installation.pod("train")["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    stranger = {"metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}
    installation.add("pods", stranger)
    pods = {obj["metadata"]["name"]: obj for source, obj in installation.kept_objects() if source.field == "pods"}
    assert "web" not in pods
    assert pods["train"]["spec"] == {
        "containers": [],
        "nodeName": "gpu-1",
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}],
    }


async def test_an_object_that_makes_no_sense_is_left_out_with_a_note() -> None:
    installation = Installation()
    installation.inventory("gpu-2")["spec"] = {"nodeName": 3}
    cluster_reader = reader(FakeKube(installation))
    cluster, _ = await cluster_reader.read()
    assert [inventory.spec.node_name for inventory in cluster.inventories.items] == ["gpu-1"]
    assert "NodeInventory gpu-2 is left out" in cluster_reader.objects.notes[0]


async def test_facts_survive_being_written() -> None:
    installation = Installation()
    kube = FakeKube(installation)
    kube.refuse = {"pods", "create resourceslices"}
    _, facts = await reader(kube, driver=GPU_DRIVER).read()
    assert facts_from(facts.to_wire()) == facts
    assert facts_from(installation.facts.to_wire()) == installation.facts
    with pytest.raises(InvalidInput, match=r"cluster/facts.json"):
        facts_from({"time": "yesterday"})


async def test_whoever_waits_is_told_for_what() -> None:
    cluster_reader = reader(FakeKube(Installation()))
    assert progress(cluster_reader) == "reading on; 0 answers so far"
    cluster_reader.waiting += ["pods", "nodes", "pods"]
    assert progress(cluster_reader) == "reading nodes, pods; 0 answers so far"


def test_a_claims_test_of_time_does_not_depend_on_when_it_is_run() -> None:
    """All that checks know of time is in what was observed."""
    installation = Installation()
    later = replace(installation.facts, time=NOW.replace(year=2027))
    installation.facts = later
    by_check = verdicts(installation.cluster)
    assert by_check["leader"] is Verdict.PROBLEM
