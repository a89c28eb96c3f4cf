"""`dractl explain`: of files and of a cluster, as a user sees it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from support.allocation import gpu
from support.dra_objects import resource_slice
from support.dractl import forbid
from support.objects import allocate, claim, node, pod, result
from support.shipped import create_classes
from typer.testing import CliRunner, Result

from dra_driver import bundled
from dra_driver.allocation.loading import world_of
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    CRDS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.cli.main import app
from dra_driver.cli.reading.live import _behavior, live_workload, live_world
from dra_driver.errors import InvalidInput, NoSuchObject, Rejected
from dra_driver.explain import driver_findings, findings, running, subjects
from dra_driver.explain.explain import Explanation, Scope
from dra_driver.explain.subjects import explained, subject_of
from dra_driver.explain.suggest import SuggestionKind
from dra_driver.explain.verdicts import ReasonCode
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Status

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "explain.md"


def _large(memory: str = "100Gi") -> JsonObject:
    """A claim."""
    large = claim("large")
    expression = f"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('{memory}')) >= 0"
    large["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    return large


def _files(tmp_path: Path, *objects: JsonObject) -> str:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


NODE_1 = resource_slice("node-1-gpus", gpu("gpu-0", memory="80Gi"), gpu("gpu-1", memory="80Gi"))


def test_a_claim_in_files_is_explained(tmp_path: Path) -> None:
    outcome = _run("-f", _files(tmp_path, _large(), NODE_1))
    assert outcome.exit_code == Status.NO
    assert outcome.stdout == (
        "Claim default/large waits: the only node does not fit.\n\n"
        "Claims\n"
        "  large, pending\n\n"
        "Nodes\n"
        '  1 node (node-1): no device matches request "gpu": memory 80Gi < 100Gi\n\n'
        "What would fit\n"
        '  1. It fits with memory 80Gi instead of 100Gi in request "gpu". (on node-1)\n'
        "     ResourceClaim default/large: spec.devices.requests[0].exactly.selectors:\n"
        "       device.capacity['gpu.nvidia.com'].memory.compareTo(quantity(\"80Gi\")) >= 0\n"
    )


def test_devices_are_told_on_demand_with_the_selector_that_does_not_hold(tmp_path: Path) -> None:
    outcome = _run("-f", _files(tmp_path, _large(), NODE_1), "--devices")
    lines = outcome.stdout.splitlines()
    assert lines[lines.index("Devices") + 2].startswith(
        "    gpu-0: memory 80Gi < 100Gi [selector 0 of claim default/large"
    )


def test_the_devices_of_one_node(tmp_path: Path) -> None:
    other = resource_slice("node-2-gpus", gpu("gpu-0", memory="40Gi"), node="node-2")
    outcome = _run("-f", _files(tmp_path, _large(), NODE_1, other), "--node", "node-2", "-o", "json")
    assert {device["node"] for device in json.loads(outcome.stdout)[0]["devices"]} == {"node-2"}


def test_slices_may_lie_in_files_of_their_own(tmp_path: Path) -> None:
    slices = tmp_path / "slices.json"
    slices.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE_1]}))
    outcome = _run("-f", _files(tmp_path, _large("40Gi")), "--slices", str(slices))
    assert outcome.exit_code == Status.DONE
    assert outcome.stdout.startswith("Claim default/large fits on node-1 of 1 node now.")


def _wants_mig(tmp_path: Path, **rule: Any) -> str:
    """A pod that wants a MIG device, and beside the files, policy.yaml."""
    asks = claim("small")
    asks["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "mig.nvidia.com"
    rules = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", "mig": [{"mode": "Dynamic", **rule}]}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(rules))
    return _files(tmp_path, asks, pod("trains", ["small"], node_name=None))


def test_a_rule_that_the_hardware_cannot_follow_is_named_offline(tmp_path: Path) -> None:
    files = _wants_mig(tmp_path, gpus={"products": ["Tesla T4"]})
    outcome = _run("-f", files, "-f", str(tmp_path / "policy.yaml"), "--nodes", "t4:2")
    assert outcome.exit_code == Status.NO
    text = " ".join(outcome.stdout.split())
    assert "rule mig[0] of the policy cannot be followed on 8 GPUs" in text and "has no MIG mode" in text
    assert "Limit mig[0] of the policy to GPUs with MIG" in text


def _policies(tmp_path: Path, **specs: Any) -> str:
    path = tmp_path / "policies.yaml"
    kind = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuPolicy"}
    path.write_text(
        yaml.safe_dump_all({**kind, "metadata": {"name": name}, "spec": spec} for name, spec in specs.items())
    )
    return str(path)


def test_gpu_policies_apply_to_nodes_by_name_and_label_and_by_priority(tmp_path: Path) -> None:
    """A model's node has the labels of its Node in the files; without that, all labels that policies select."""
    files = _wants_mig(tmp_path)
    mig = {"mode": "Dynamic", "profiles": ["1g.10gb"]}
    pool = {"labelSelector": {"matchLabels": {"pool": "ml"}}}
    by_label = _policies(tmp_path, ml={"nodes": pool, "mig": mig})
    run = ("-f", files, "-f", by_label, "--nodes", "dgx-h100")
    assert _run(*run, "pod", "trains").exit_code == Status.DONE
    labels = tmp_path / "node.yaml"
    for pool_of_node, status in (("ml", Status.DONE), ("web", Status.NO)):
        labeled = node("dgx-h100-1")
        labeled["metadata"]["labels"] = {"pool": pool_of_node}
        labels.write_text(yaml.safe_dump(labeled))
        assert _run(*run, "-f", str(labels), "pod", "trains").exit_code == status
    for name, priority, status in (
        ("dgx-h100-*", 0, Status.DONE),
        ("t4-*", 0, Status.NO),
        ("dgx-h100-*", -1, Status.NO),
    ):
        _policies(
            tmp_path,
            named={"nodes": {"names": [name]}, "mig": mig, "priority": priority},
            z={"mig": {"mode": "Static"}},
        )
        assert _run(*run, "pod", "trains").exit_code == status, (name, priority)


def test_what_dractl_inventory_prints_says_what_the_node_does_not_offer(tmp_path: Path) -> None:
    objects = _wants_mig(tmp_path)
    command = ["inventory", "--host", "dgx-a100-80", "--policy", str(tmp_path / "policy.yaml"), "-o", "yaml"]
    printed = CliRunner().invoke(app, command)
    (tmp_path / "inventory.yaml").write_text(printed.stdout)
    outcome = _run("-f", objects, "--slices", str(tmp_path / "inventory.yaml"), "-o", "json")
    (explained,) = json.loads(outcome.stdout)
    assert [finding["code"] for finding in explained["findings"]] == ["policy-not-followed"]


@pytest.mark.parametrize("status", [7, {"limitations": 7}, {"limitations": [{"rule": "mig[0]"}]}])
def test_an_inventory_whose_status_makes_no_sense_is_refused_in_a_line(tmp_path: Path, status: Any) -> None:
    inventory = {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "NodeInventory",
        "metadata": {"name": "node-1"},
        "spec": {"nodeName": "node-1"},
        "status": status,
    }
    outcome = _run("-f", _files(tmp_path, _large(), NODE_1, inventory))
    assert isinstance(outcome.exception, InvalidInput)


def test_everything_that_waits_in_the_files_is_explained_once(tmp_path: Path) -> None:
    waiting = pod("train", ["large"], node_name=None)
    outcome = _run("-f", _files(tmp_path, waiting, _large(), claim("alone"), NODE_1), "-o", "json")
    assert [
        (explained["kind"], explained["name"], explained["answer"]) for explained in json.loads(outcome.stdout)
    ] == [
        ("Pod", "train", "waits"),
        ("ResourceClaim", "alone", "fits"),
    ]


def test_nodes_may_be_of_a_model_that_the_driver_knows(tmp_path: Path) -> None:
    fits = _run("-f", _files(tmp_path, _large("80Gi")), "--nodes", "t4,gb200:2")
    assert fits.exit_code == Status.DONE
    assert fits.stdout.startswith("Claim default/large fits on gb200-1, gb200-2 of 3 nodes now.")
    unknown = _run("-f", _files(tmp_path, _large()), "--nodes", "gb2000")
    assert isinstance(unknown.exception, InvalidInput)
    assert "gb2000" in str(unknown.exception)
    assert isinstance(_run("claim", "large", "--nodes", "t4").exception, InvalidInput)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        (("pod/train",), ("pod", "train")),
        (("pods/train",), ("pod", "train")),
        (("Pod", "train"), ("pod", "train")),
        (("claim/large",), ("claim", "large")),
        (("resourceclaim/large",), ("claim", "large")),
        (("resourceclaims", "large"), ("claim", "large")),
    ],
)
def test_what_to_explain_may_be_written_as_for_kubectl(
    tmp_path: Path, written: tuple[str, ...], same: tuple[str, ...]
) -> None:
    files = _files(tmp_path, pod("train", ["large"], node_name=None), _large(), NODE_1)
    outcome, expected = _run(*written, "-f", files), _run(*same, "-f", files)
    assert outcome.stdout.startswith(f"{same[0].capitalize()} default/{same[1]} waits")
    assert (outcome.exit_code, outcome.stdout) == (expected.exit_code, expected.stdout)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ((), "say what to explain: pod, claim, node"),
        (("pod",), "say what to explain: pod, claim, node"),
        (("train", "-f"), "cannot explain 'train'; say what to explain: pod, claim, node"),
        (("pod/", "-f"), "say what to explain: pod, claim, node"),
        (("pod", "x", "-f"), "pod default/x: there is no such pod"),
        (("claim", "missing", "-f"), "claim default/missing: there is no such claim"),
        (("job/train", "-f"), "Job default/train: there is none in the files"),
        (("pod/train", "other", "-f"), "one at a time: pod/train or other"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_a_line_with_what_to_write(
    tmp_path: Path, written: tuple[str, ...], message: str
) -> None:
    outcome = _run(*written, *([_files(tmp_path, NODE_1)] if "-f" in written else []))
    assert isinstance(outcome.exception, InvalidInput)
    assert message in str(outcome.exception) and "\n" not in str(outcome.exception)


def _keys(data: Any, path: str = "") -> set[str]:
    if isinstance(data, list):
        return {key for item in data for key in _keys(item, path)}
    if isinstance(data, dict):
        return {f"{path}{name}" for name in data} | {
            key for name, value in data.items() for key in _keys(value, f"{path}{name}.")
        }
    return set()


def test_every_field_of_the_json_is_documented(tmp_path: Path) -> None:
    held = claim("held") | {"status": {"allocation": {"devices": {"results": [result("gpu-0")]}}}}
    waiting = pod("train", ["large"], node_name=None)
    outcome = _run("-f", _files(tmp_path, waiting, _large(), held, NODE_1), "--devices", "-o", "json")
    missing = _run("-f", _files(tmp_path, pod("other", ["none"], node_name=None), NODE_1), "-o", "json")
    keys = _keys(json.loads(outcome.stdout)) | _keys(json.loads(missing.stdout))
    text = DOCUMENTATION.read_text()
    documented = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert keys - documented == set()


def _deployment(replicas: int = 3) -> JsonObject:
    """Of pods that share a claim."""
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod(claims=["large"], node_name=None)["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def test_pods_of_a_workload_in_files_are_explained_together(tmp_path: Path) -> None:
    files = _files(tmp_path, _deployment(), _large(), NODE_1)
    for subject in ((), ("deploy/web",), ("deployments", "web")):
        outcome = _run(*subject, "-f", files)
        assert outcome.exit_code == Status.NO
        assert outcome.stdout.startswith("Deployment default/web has 3 pods: 3 wait.\n\nPod default/web-0 waits:")
        assert "The same is true of web-1, web-2." in outcome.stdout
    (data,) = json.loads(_run("-f", files, "-o", "json").stdout)
    assert (data["name"], data["alike"], data["workload"]) == ("web-0", ["web-1", "web-2"], "Deployment default/web")
    fits = _run("deploy/web", "-f", _files(tmp_path, _deployment(), _large("1Gi"), NODE_1))
    assert (fits.exit_code, fits.stdout) == (Status.DONE, "Deployment default/web has 3 pods: 3 fit now.\n")


# -- of a cluster


async def _dractl(*arguments: str) -> Result:
    # In a thread, with an event loop of its own, while the server's loop goes on here.
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def _fill(kube: Kube) -> None:
    await create_classes(kube)
    await kube.create(NODES, node())
    await kube.create(RESOURCE_SLICES, NODE_1)
    user = await kube.create(PODS, pod("train", ["held"]))
    held = await kube.create(RESOURCE_CLAIMS, claim("held", requests=["a", "b"]))
    await allocate(kube, held, result("gpu-0", "a"), result("gpu-1", "b"), pods=[user])
    await kube.create(RESOURCE_CLAIMS, claim("gpu"))
    await kube.create(PODS, pod("waiting", node_name=None))


@pytest.fixture
async def kubeconfig(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> str:
    await _fill(kube)
    return str(api_server.kubeconfig(tmp_path / "kubeconfig"))


async def test_a_pod_of_a_cluster(kubeconfig: str) -> None:
    outcome = await _dractl("explain", "pod", "waiting", "--kubeconfig", kubeconfig)
    assert outcome.exit_code == Status.NO, outcome
    assert "  1 node (node-1): 2 devices in use by default/held (pod train)" in outcome.stdout
    assert "  1. It fits when default/held (pod train) ends. (on node-1)" in outcome.stdout


async def test_the_namespace_of_the_context_is_used(kubeconfig: str) -> None:
    config = yaml.safe_load(Path(kubeconfig).read_text())
    config["contexts"][0]["context"]["namespace"] = "team-a"
    Path(kubeconfig).write_text(yaml.safe_dump(config))
    assert (
        await _dractl("explain", "pod", "waiting", "-n", "default", "--kubeconfig", kubeconfig)
    ).exit_code == Status.NO
    outcome = await _dractl("explain", "pod", "waiting", "--kubeconfig", kubeconfig)
    assert str(outcome.exception) == "pod team-a/waiting: there is no such pod; there is one in namespace default"


async def test_a_claim_of_a_cluster_and_the_pod_that_waits_for_it(kubeconfig: str) -> None:
    outcome = await _dractl("explain", "claim", "gpu", "--kubeconfig", kubeconfig, "-o", "json")
    (explained,) = json.loads(outcome.stdout)
    assert [finding["code"] for finding in explained["findings"]] == ["pod-waits"]
    assert explained["notRead"] == []


async def test_a_pod_that_runs_has_its_devices(kubeconfig: str) -> None:
    outcome = await _dractl("explain", "pod", "train", "--kubeconfig", kubeconfig)
    assert outcome.exit_code == Status.DONE
    assert outcome.stdout.startswith("Pod default/train is on node node-1, with all its devices.")


@pytest.mark.usefixtures("kubeconfig")
async def test_a_workload_whose_pods_cannot_be_known_says_so(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to list ReplicaSets, its pods look like those of others."""
    await kube.create(DEPLOYMENTS, _deployment(), namespace="default")
    forbid(monkeypatch, REPLICA_SETS)
    world, _ = await live_workload(kube, DEPLOYMENTS, ("default", "web"))
    why = "you may not list them, so it is not known which pods are those of Deployment web"
    assert [unread.why for unread in world.unread if unread.kind == "ReplicaSet"] == [why]


async def test_a_workload_of_a_cluster_has_the_pods_of_what_it_made(kubeconfig: str, kube: Kube) -> None:
    await kube.create(RESOURCE_CLAIMS, _large())
    made = await kube.create(DEPLOYMENTS, _deployment(), namespace="default")
    outcome = await _dractl("explain", "deploy/web", "--kubeconfig", kubeconfig)
    assert outcome.stdout.startswith("Deployment default/web has 3 pods: 3 wait."), "none exists, so all would be made"
    owned = _deployment() | {"kind": "ReplicaSet"}
    owned["metadata"] = {"name": "web-1", "ownerReferences": [_owner(made)]}
    replica_set = await kube.create(REPLICA_SETS, owned, namespace="default")
    for name in ("web-1-a", "web-1-b"):
        owned_pod = pod(name, ["held"])
        owned_pod["metadata"]["ownerReferences"] = [_owner(replica_set)]
        await kube.create(PODS, owned_pod)
    outcome = await _dractl("explain", "deploy", "web", "--kubeconfig", kubeconfig)
    assert outcome.stdout.startswith("Deployment default/web has 2 pods: 2 are starting.")
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    await kube.merge_patch(
        DEPLOYMENTS, "web", {"status": {"conditions": [failed]}}, namespace="default", subresource="status"
    )
    outcome = await _dractl("explain", "deploy", "web", "--kubeconfig", kubeconfig)
    assert "Deployment default/web: ReplicaFailure is True: exceeded quota" in outcome.stdout
    missing = await _dractl("explain", "job", "web", "--kubeconfig", kubeconfig)
    assert isinstance(missing.exception, NoSuchObject) and "Job default/web: does not exist" in str(missing.exception)


def _owner(obj: JsonObject) -> JsonObject:
    metadata = obj["metadata"]
    owner = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**owner, "controller": True}


async def test_a_node_and_a_gpu_of_a_cluster(kubeconfig: str) -> None:
    outcome = await _dractl("explain", "node/node-1", "--kubeconfig", kubeconfig)
    assert outcome.exit_code == Status.DONE
    assert outcome.stdout.startswith("Node node-1 publishes 2 devices; its NodeInventory is not known.")
    assert "  default/held, allocated: node-1/gpu-0, node-1/gpu-1, used by train" in outcome.stdout
    gone = await _dractl("explain", "gpu", "gpu-9", "--kubeconfig", kubeconfig)
    assert isinstance(gone.exception, InvalidInput) and "NodeInventories are not known" in str(gone.exception)


async def test_a_pod_that_has_its_node_hears_of_its_domain(kubeconfig: str, kube: Kube) -> None:
    await kube.create(CRDS, yaml.safe_load((bundled.CRDS_FOLDER / "computedomain.yaml").read_text()))
    spec = {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "channel"}}}
    made = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "rack"}}
    domain = await kube.create(COMPUTE_DOMAINS, {**made, "spec": spec}, namespace="default")
    condition = {"type": "Ready", "status": "False", "reason": "DaemonsNotReady", "message": "1 of 2 nodes: tray-2"}
    status = {"status": {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
    await kube.merge_patch(COMPUTE_DOMAINS, "rack", status, namespace="default", subresource="status")
    wanted = claim("channel")
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}
    parameters = {**config, "domainID": domain["metadata"]["uid"]}
    wanted["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "compute-domain.nvidia.com", "parameters": parameters}}
    ]
    await kube.create(RESOURCE_CLAIMS, wanted)
    await kube.create(PODS, pod("worker", ["channel"]))
    outcome = await _dractl("explain", "pod", "worker", "--kubeconfig", kubeconfig, "-o", "json")
    (explained,) = json.loads(outcome.stdout)
    (finding,) = explained["findings"]
    assert (explained["answer"], finding["code"]) == ("scheduled", "domain-not-ready")
    assert finding["about"] == "ComputeDomain default/rack"
    assert finding["text"] == (
        "is not ready (DaemonsNotReady): 1 of 2 nodes: tray-2; only 0 nodes of the cluster can be in a domain, so it"
        " cannot become ready"
    )


@pytest.mark.usefixtures("kubeconfig")
async def test_what_is_forbidden_is_left_out_and_said(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a user who may list claims and pods of one namespace only, and no nodes at all."""
    forbid(monkeypatch, NODES, RESOURCE_CLAIMS, PODS, but_in="default")
    world = await live_world(kube, "default")
    assert {unread.kind: unread.why for unread in world.unread} == {
        "Node": "you may not list them; the answer leaves them out",
        "Pod": "you may list those of namespace default only",
        "ResourceClaim": "you may list those of namespace default only",
    }
    assert ("default", "gpu") in world.claims
    assert set(world.nodes) == {"node-1"}, "slices name it"
    with pytest.raises(NoSuchObject, match="claim default/other: there is no such claim"):
        explained(world, (), subject_of("claim/other"), None, Scope())


@pytest.mark.parametrize(
    ("subject", "kind", "what"),
    [
        ("pod/train", PODS, "pod default/train: cannot be read: you may not list pods"),
        ("claim/gpu", RESOURCE_CLAIMS, "claim default/gpu: cannot be read: you may not list resourceclaims"),
        ("node/other", NODES, "node other: cannot be read: you may not list nodes"),
        ("gpu/gpu-0", NODE_INVENTORIES, "GPU gpu-0: cannot be read: you may not list nodeinventories"),
    ],
)
@pytest.mark.usefixtures("kubeconfig")
async def test_what_may_not_be_listed_is_not_said_to_be_missing(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, subject: str, kind: Resource, what: str
) -> None:
    forbid(monkeypatch, kind)
    world = await live_world(kube, "default")
    with pytest.raises(Rejected, match=what):
        explained(world, (), subject_of(subject), None, Scope())


@pytest.mark.parametrize(
    ("unread", "kinds"),
    [
        ((DEVICE_CLASSES,), "deviceclasses"),
        ((RESOURCE_SLICES, NODES), "resourceslices"),
        ((DEVICE_CLASSES, RESOURCE_SLICES, NODES), "deviceclasses and resourceslices"),
    ],
)
@pytest.mark.usefixtures("kubeconfig")
async def test_a_class_or_node_that_may_not_be_listed_is_not_said_to_be_missing(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, unread: tuple[Resource, ...], kinds: str
) -> None:
    """As for most users who may see the objects of their namespace only."""
    forbid(monkeypatch, *unread)
    world = await live_world(kube, "default")
    (answer,) = explained(world, (), subject_of("claim/gpu"), None, Scope())
    assert isinstance(answer, Explanation)
    stops = [finding for finding in answer.findings if finding.stops]
    assert [(finding.code, finding.text) for finding in stops] == [
        ("not-readable", f"you may not list {kinds}, so it is not known which devices there are for it")
    ]
    assert answer.suggestions == ()


_MODULES = (findings, driver_findings, running, subjects)


def test_every_code_is_documented() -> None:
    text = DOCUMENTATION.read_text()
    assert [code for code in ReasonCode if f"`{code}`" not in text] == []
    assert [kind for kind in get_args(SuggestionKind.__value__) if f"`{kind}`" not in text] == []
    source = "".join(Path(module.__file__).read_text() for module in _MODULES)
    codes = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source)) | {"missing-claim", "missing-template"}
    assert [code for code in sorted(codes) if code not in text] == []


def test_a_server_that_keeps_lists_has_a_scheduler_that_reads_them() -> None:
    listed = gpu("gpu-0")
    listed["attributes"] = {"models": {"strings": ["a", "b"]}}
    without, having = (world_of([resource_slice("a", device)], live=True).world for device in (gpu("gpu-0"), listed))
    assert not _behavior(36, without).server.list_values
    assert _behavior(36, having).server.list_values


def test_a_selector_of_another_user_does_not_command_the_terminal(tmp_path: Path) -> None:
    hostile = claim("hostile")
    expression = "device.attributes['gpu.nvidia.com'].productName == '\x1b]0;title\x07\x1b[2J'"
    hostile["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(hostile))
    shown = CliRunner().invoke(app, ["explain", "claim", "hostile", "-f", str(path), "--nodes", "t4"])
    assert r"\x1b]0;title\x07\x1b[2J" in shown.output
    assert "\x1b" not in shown.output and "\x07" not in shown.output
