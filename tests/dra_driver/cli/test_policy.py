"""`dractl policy preview|convert` and `dractl get policies`, as a user sees them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.dractl import dractl
from support.inventories import inventory_object, inventory_spec
from support.mig import MODELS, gpu_of
from support.objects import allocate, claim, result
from support.shipped import create_definitions
from typer.testing import CliRunner

from dra_driver.api.gpupolicy import GpuPolicy, combined
from dra_driver.api.meta import GPU_POLICIES, NODE_INVENTORIES, NODES, RESOURCE_CLAIMS
from dra_driver.bundled import FEATURES_FOLDER
from dra_driver.cli.main import app
from dra_driver.errors import InvalidInput, NoSuchObject
from dra_driver.kube.client import Kube
from dra_driver.publish.policy_file import decode_policy
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Status

KIND = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuPolicy"}
TIME = "2026-01-01T00:00:00Z"
FILE = """\
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
mig: [{mode: Dynamic, gpus: {products: ["NVIDIA H100*"]}}]
withhold: [{nodes: {names: ["build-*"]}}]
"""


def _written(tmp_path: Path, text: str, name: str = "My policy.yaml") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_converted_policies_apply_and_say_what_the_file_says(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["policy", "convert", _written(tmp_path, FILE)])
    policies = [GpuPolicy.read(obj) for obj in yaml.safe_load_all(printed.stdout)]
    assert [policy.name for policy in policies] == ["my-policy-withhold-0", "my-policy-mig-0"]
    assert not combined(policies).publishes_node("build-1", {})
    assert decode_policy(printed.stdout, about="printed").mig[0].mode == "Dynamic"
    values = _written(tmp_path, "policy: {passthrough: [{}]}\n", "values.yaml")
    (made,) = yaml.safe_load_all(CliRunner().invoke(app, ["policy", "convert", values, "--prefix", "vm"]).stdout)
    assert (made["kind"], made["metadata"]["name"]) == ("GpuPolicy", "vm-passthrough-0")
    nothing = CliRunner().invoke(app, ["policy", "convert", _written(tmp_path, "a: 1\n")])
    assert isinstance(nothing.exception, InvalidInput)


def test_a_preview_says_how_many_gpus_are_reset_first(tmp_path: Path) -> None:
    spec = {"mig": {"mode": "Dynamic", "modeChange": "WhenIdle"}}
    file = _written(tmp_path, yaml.safe_dump({**KIND, "metadata": {"name": "parts"}, "spec": spec}))
    shown = CliRunner().invoke(app, ["policy", "preview", "-f", file, "--nodes", "a100-pcie-80:2,t4"]).stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["a100-pcie-80-1,", "a100-pcie-80-2", "100", "mig", "4", "gpu", "-", "4", "GPUs"] in lines
    text = " ".join(shown.split())
    assert text.endswith(
        "a100-pcie-80-1, a100-pcie-80-2: 8 GPUs are reset first, to switch MIG mode on because of GpuPolicy parts"
    )
    assert shown.count("reset first") == 1


def test_a_preview_of_models_counts_equal_nodes_once() -> None:
    policy = str(FEATURES_FOLDER / "mig-on-demand" / "policy.yaml")
    command = ["policy", "preview", "-f", policy, "--nodes", "dgx-h100:3,t4"]
    printed = CliRunner().invoke(app, [*command, "--label", "example.com/mig=on-demand"]).stdout
    lines = printed.splitlines()
    assert lines[1].split("  ")[0] == "dgx-h100-1, dgx-h100-2 and 1 more" and " 248 mig " in lines[1]
    assert "t4-1: mig of GpuPolicy mig-on-demand cannot be followed" in " ".join(printed.split())
    unlabeled = CliRunner().invoke(app, command).stdout
    advice = "compare its nodes and gpus with the labels of the nodes and the products of the GPUs"
    assert " ".join(unlabeled.split()) == (
        "Nothing changes: the devices of 4 nodes stay as they are. GpuPolicy mig-on-demand selects no GPU of the 4"
        f" nodes: {advice}; simulated nodes have only the labels of --label"
    )
    assert isinstance(CliRunner().invoke(app, [*command, "--label", "a"]).exception, InvalidInput)


@pytest.fixture
async def cluster(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> str:
    """One node with two GPUs, of which a claim has one; a policy that withholds both is not applied yet."""
    await create_definitions(kube)
    gpus = [gpu_of(MODELS[0], index) for index in (0, 1)]
    node = await kube.create(NODES, {"metadata": {"name": "node-a", "labels": {"pool": "ml"}}})
    await kube.create(NODE_INVENTORIES, inventory_object(inventory_spec("node-a", gpus), node["metadata"]["uid"]))
    await allocate(kube, await kube.create(RESOURCE_CLAIMS, claim("a")), result(gpus[0].name, pool="node-a"))
    return str(api_server.kubeconfig(tmp_path / "kubeconfig"))


def _policy(name: str, **spec: Any) -> dict[str, Any]:
    return {**KIND, "metadata": {"name": name}, "spec": spec}


async def test_a_preview_of_a_cluster_applies_the_files_over_its_policies(
    cluster: str, kube: Kube, tmp_path: Path
) -> None:
    nodes = {"labelSelector": {"matchLabels": {"pool": "ml"}}}
    file = _written(tmp_path, yaml.safe_dump(_policy("no", nodes=nodes, publish=False)))
    command = ("policy", "preview", "-f", file, "--kubeconfig", cluster)
    code, text = await dractl(*command)
    assert code == Status.DONE
    assert text.splitlines()[1].split() == ["node-a", "-", "2", "gpu", "-", gpu_of(MODELS[0]).name]
    assert "changes because of GpuPolicy no when claims default/a are gone" in " ".join(text.split())
    await kube.create(GPU_POLICIES, _policy("yes", priority=1, publish=True))
    _, text = await dractl(*command, "-o", "json")
    (node,) = json.loads(text)
    assert (node["node"], node["vanish"], node["waiting"]) == ("node-a", [], [])
    _, text = await dractl(*command, "--delete", "yes", "-o", "json")
    (node,) = json.loads(text)
    assert [gpu["gpu"] for gpu in node["waiting"]] == [gpu_of(MODELS[0]).name]
    with pytest.raises(NoSuchObject, match="has no GpuPolicy nope"):
        await dractl(*command, "--delete", "nope")
    with pytest.raises(InvalidInput, match="name policies with --file, or with --delete"):
        await dractl("policy", "preview")


async def test_policies_are_listed_with_what_waits_and_fails_in_words(cluster: str, kube: Kube) -> None:
    for name, priority in (("low", -1), ("high", 7)):
        await kube.create(GPU_POLICIES, _policy(name, priority=priority, publish=True))
    fix = {"message": "no", "fix": "buy"}
    status = {
        "observedGeneration": 1, "nodes": 2, "gpus": 9, "offered": "9 gpu", "waitingGPUs": 3,
        "waiting": [{"node": "n", "gpu": "gpu-1", "claims": ["team/a"]}],
        "problems": [{"rule": "mig of GpuPolicy high", "reason": "NoMig", "nodes": 2, "examples": ["n"], **fix}],
        "conditions": [{"type": "Followed", "status": "False", "reason": "NoMig", "lastTransitionTime": TIME}],
    }  # fmt: skip
    await kube.merge_patch(GPU_POLICIES, "high", {"status": status}, subresource="status")
    code, text = await dractl("get", "policies", "--kubeconfig", cluster)
    high, low = text.splitlines()[1:]
    assert code == Status.DONE
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "lastTransitionTime": TIME}
    await kube.merge_patch(GPU_POLICIES, "low", {"status": {"conditions": [accepted]}}, subresource="status")
    _, text = await dractl("get", "policies", "--kubeconfig", cluster)
    assert text.splitlines()[-1].endswith("selects no GPU of any node")
    assert high.split()[:5] == ["high", "7", "2", "9", "9"] and low.split()[0] == "low"
    assert "mig of GpuPolicy high on 2 nodes (n): no; fix: buy" in high
    assert "GPU gpu-1 of node n changes when claims team/a are gone; 2 more GPUs wait" in high


async def test_a_cluster_without_the_driver_has_no_inventories(api_server: SimulatedApiServer, tmp_path: Path) -> None:
    file = _written(tmp_path, yaml.safe_dump(_policy("no", publish=False)))
    with pytest.raises(InvalidInput, match="NodeInventories: the cluster has none; install the driver, or preview"):
        await dractl("policy", "preview", "-f", file, "--kubeconfig", str(api_server.kubeconfig(tmp_path / "config")))
