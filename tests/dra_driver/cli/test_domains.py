"""`dractl get domains`: what it says of ComputeDomains, as a user sees it."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from support.dractl import dractl, run
from support.shipped import create_definitions

from dra_driver.api.meta import COMPUTE_DOMAINS, JsonObject
from dra_driver.errors import InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Status

RACK = "11111111-2222-4333-8444-555555555555"
NODES = [
    {"name": "tray-1", "ipAddress": "10.1.0.1", "cliqueID": f"{RACK}.0", "index": 0, "status": "Ready"},
    {"name": "tray-2", "ipAddress": "", "cliqueID": "", "index": 1, "status": "NotReady", "message": "it has no pod"},
]
WAITS = {
    "status": "NotReady",
    "readyNodes": "1/2",
    "nodes": NODES,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "DaemonsNotReady",
            "message": "1 of 2 nodes: tray-2 (it has no pod)",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


async def add(kube: Kube, name: str, status: JsonObject | None = None) -> None:
    spec = {"channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}}
    made = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": name}}
    await kube.create(COMPUTE_DOMAINS, {**made, "spec": spec}, namespace="default")
    if status is not None:
        await kube.merge_patch(COMPUTE_DOMAINS, name, {"status": status}, namespace="default", subresource="status")


@pytest.fixture
async def kubeconfig(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> Path:
    await create_definitions(kube)
    await add(kube, "train", WAITS)
    return api_server.kubeconfig(tmp_path / "kubeconfig")


async def test_a_domain_says_why_it_is_not_ready_and_what_each_node_says(kubeconfig: Path) -> None:
    status, text = await dractl("get", "domains", "--kubeconfig", str(kubeconfig))
    assert status == Status.DONE
    domains, nodes = (part.splitlines() for part in text.split("\n\n"))
    assert domains[0].split() == [
        *("NAMESPACE", "DOMAIN", "STATUS", "NODES", "REASON", "TEMPLATE", "AGE", "MESSAGE"),
    ]
    assert domains[1].split()[:6] == ["default", "train", "NotReady", "1/2", "DaemonsNotReady", "train-channel"]
    assert domains[1].endswith("1 of 2 nodes: tray-2 (it has no pod)")
    assert [line.rstrip().split(None, 6) for line in nodes[1:]] == [
        ["default/train", "tray-1", f"{RACK}.0", "0", "10.1.0.1", "Ready", "-"],
        ["default/train", "tray-2", "-", "1", "-", "NotReady", "it has no pod"],
    ]


async def test_programs_get_each_domain_with_its_nodes(kubeconfig: Path) -> None:
    _, text = await dractl("get", "domains", "train", "-o", "json", "--kubeconfig", str(kubeconfig))
    (row,) = json.loads(text)
    assert (row["namespace"], row["name"], row["reason"]) == ("default", "train", "DaemonsNotReady")
    assert (row["template"], row["allocationMode"]) == ("train-channel", "Single")
    assert row["nodes"] == NODES
    _, as_yaml = await dractl("get", "domains", "-o", "yaml", "--kubeconfig", str(kubeconfig))
    assert yaml.safe_load(as_yaml) == [row]


async def test_a_domain_that_nobody_has_looked_at_is_said_to_be_one(kubeconfig: Path, kube: Kube) -> None:
    await add(kube, "new")
    _, text = await dractl("get", "domains", "new", "-n", "default", "-o", "json", "--kubeconfig", str(kubeconfig))
    (row,) = json.loads(text)
    assert (row["status"], row["reason"], row["nodes"]) == ("NotReady", None, [])
    table = await asyncio.to_thread(run, "get", "domains", "--kubeconfig", str(kubeconfig))
    assert [line.split()[1] for line in table.stdout.split("\n\n")[0].splitlines()[1:]] == ["new", "train"]
    assert "1 of them not yet processed by a controller" in table.stderr


async def test_a_cluster_without_the_definition_is_told_where_it_comes_from(
    api_server: SimulatedApiServer, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="comes with the driver's chart"):
        await dractl("get", "domains", "--kubeconfig", str(api_server.kubeconfig(tmp_path / "kubeconfig")))
