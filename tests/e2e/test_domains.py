"""A ComputeDomain on a simulated rack: real controller, plugins and daemons, with nvidia-imex simulated.

One cluster for one story, since it costs some ten seconds: a domain comes up, survives what befalls its daemons and the
API server, follows a daemon that gets another address, and leaves nothing.
"""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.places import SHORT

from dra_driver import bundled
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    JsonObject,
)
from dra_driver.cli.simulated.scenario import apply, leftovers, read_scenario, remove
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.simulation.cluster import DRIVER_NAMESPACE, SimulatedCluster, parse_nodes

EXAMPLE = "compute-domain-two-trays"
TRAYS = ("gb200-1", "gb200-2")


@asynccontextmanager
async def rack() -> AsyncIterator[SimulatedCluster]:
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        async with SimulatedCluster.running(Path(folder), parse_nodes("gb200:2")) as cluster:
            yield cluster


class Story:
    """The domain of the example, and its daemons by node."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await self.cluster.wait(condition, what, 90)

    async def domain(self) -> JsonObject:
        return await self.cluster.kube.get(COMPUTE_DOMAINS, "two-trays", "default")

    async def is_ready(self) -> bool:
        status = (await self.domain()).get("status") or {}
        return bool(status.get("status") == "Ready" and status["readyNodes"] == "2/2")

    async def daemons(self) -> dict[str, JsonObject]:
        """Those that are not on their way out."""
        pods = (await self.cluster.kube.list(PODS, namespace=DRIVER_NAMESPACE)).items
        return {
            pod["spec"]["nodeName"]: pod
            for pod in pods
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        }

    async def connections(self, node: str) -> list[str]:
        """To each node of the list, as the newest daemon of this node says itself."""
        places = (self.cluster.node_folder(node) / "containers").glob("*/imex-daemon")
        folder = max(places, key=lambda place: place.stat().st_mtime_ns)
        process = await asyncio.create_subprocess_exec(
            *(folder / "bin" / "nvidia-imex-ctl", "-c", folder / "imexd" / "config.cfg", "-N", "-j"),
            stdout=asyncio.subprocess.PIPE,
            env={"GPU_DRA_HOSTS_FILE": str(folder / "etc-hosts")},
        )
        answer, _ = await process.communicate()
        if process.returncode != 0:
            return []
        (own,) = [node_status for node_status in json.loads(answer)["nodes"].values() if node_status["local"]]
        return [connection["status"] for connection in own["connections"].values()]

    async def are_connected(self) -> bool:
        return all([(await self.connections(tray))[:2] == ["CONNECTED", "CONNECTED"] for tray in TRAYS])

    def log_of(self, node: str, pod: JsonObject) -> str:
        return self.cluster.containers[node].log(pod["metadata"]["uid"], "imex-daemon")

    def supervisor(self, node: str, pod: JsonObject) -> int:
        (pid,) = self.cluster.containers[node].pids(pod["metadata"]["uid"])
        return pid


async def container_states(cluster: SimulatedCluster, pod: JsonObject) -> Any:
    current = await cluster.kube.get(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
    (container,) = current["status"]["containerStatuses"]
    return container


@pytest.mark.slow
async def test_a_domain_lives_through_everything_and_leaves_nothing() -> None:
    async with rack() as cluster:
        story, scenario, before = Story(cluster), read_scenario(bundled.FEATURES_FOLDER / EXAMPLE), cluster.hardware()
        await apply(cluster.kube, scenario)
        await it_comes_up(story)
        await a_killed_supervisor_is_started_again(story)
        await a_daemon_that_is_back_within_a_second_is_noticed(story)
        await a_daemon_that_moves_is_found_again(story)
        await without_an_api_server_daemons_go_on(story)
        last = await story.daemons()
        await remove(cluster, scenario, 60, before)
        assert not leftovers(cluster, before)
        assert not (await cluster.kube.list(DAEMON_SETS)).items
        assert not (await cluster.kube.list(RESOURCE_CLAIM_TEMPLATES)).items
        assert not (await cluster.kube.list(RESOURCE_CLAIMS)).items
        assert not any(DOMAIN_LABEL in node["metadata"]["labels"] for node in (await cluster.kube.list(NODES)).items)
        assert not any(cluster.containers[tray].pids(pod["metadata"]["uid"]) for tray, pod in last.items())


async def it_comes_up(story: Story) -> None:
    await story.until(story.is_ready, "the domain does not become ready")
    await story.until(story.are_connected, "the daemons do not find each other")
    await story.until(lambda: _are_bound(story), "the pods are not bound to the nodes that are ready")
    nodes = (await story.domain())["status"]["nodes"]
    daemons = await story.daemons()
    assert {node["name"]: node["ipAddress"] for node in nodes} == {
        tray: daemons[tray]["status"]["podIP"] for tray in TRAYS
    }
    (daemon_set,) = (await story.cluster.kube.list(DAEMON_SETS)).items
    await story.until(lambda: _is_counted(story, daemon_set["metadata"]["name"]), "the DaemonSet does not count them")
    await story.until(lambda: _all_say_that_they_are_ready(story), "claims do not say how they stand in the domain")


async def _are_bound(story: Story) -> bool:
    pods = (await story.cluster.kube.list(PODS, namespace="default")).items
    return {pod["spec"].get("nodeName") for pod in pods} == set(TRAYS)


async def _all_say_that_they_are_ready(story: Story) -> bool:
    true_by_kind = []
    for claim in (await story.cluster.kube.list(RESOURCE_CLAIMS)).items:
        for device in claim["status"].get("devices") or ():
            if device["driver"] == COMPUTE_DOMAIN_DRIVER:
                kind = device["device"].partition("-")[0]
                true_by_kind.append(
                    (
                        kind,
                        *sorted(
                            condition["type"] for condition in device["conditions"] if condition["status"] == "True"
                        ),
                    )
                )
    return sorted(true_by_kind) == [("channel", "BindingReady", "PeersReady", "Ready")] * 2 + [("daemon", "Ready")] * 2


async def _is_counted(story: Story, name: str) -> bool:
    status = (await story.cluster.kube.get(DAEMON_SETS, name, DRIVER_NAMESPACE))["status"]
    return bool((status["desiredNumberScheduled"], status["numberReady"]) == (2, 2))


async def a_daemon_that_is_back_within_a_second_is_noticed(story: Story) -> None:
    pod = (await story.daemons())["gb200-1"]
    pid = story.supervisor("gb200-1", pod)
    (imex,) = _children(pid)
    os.kill(imex, signal.SIGKILL)
    await story.until(lambda: _child_is_not(pid, imex), "the daemon is not started again")

    async def noticed() -> bool:
        nodes = (await story.domain())["status"]["nodes"]
        return any(node["status"] != "Ready" for node in nodes if node["name"] == "gb200-1")

    await story.until(noticed, "the domain does not say that the daemon was away")
    await story.until(story.is_ready, "the domain is not ready again")


async def a_killed_supervisor_is_started_again(story: Story) -> None:
    pod = (await story.daemons())["gb200-1"]
    os.kill(story.supervisor("gb200-1", pod), signal.SIGKILL)

    async def again() -> bool:
        state = await container_states(story.cluster, pod)
        return bool(state["restartCount"] == 1 and state["ready"])

    await story.until(again, "the supervisor is not started again")
    await story.until(story.is_ready, "the domain does not become ready again")
    await story.until(story.are_connected, "the daemons do not find each other again")


async def a_daemon_that_moves_is_found_again(story: Story) -> None:
    """Its pod is deleted; the next one has another address, and the other daemon is told, not restarted."""
    before = await story.daemons()
    other = before["gb200-1"]
    restarts = (await container_states(story.cluster, other))["restartCount"]
    starts = story.log_of("gb200-1", other).count('"event": "started"')
    await story.cluster.kube.delete(PODS, before["gb200-2"]["metadata"]["name"], namespace=DRIVER_NAMESPACE)

    async def moved() -> bool:
        pod = (await story.daemons()).get("gb200-2")
        address = ((pod or {}).get("status") or {}).get("podIP")
        return bool(address) and address != before["gb200-2"]["status"]["podIP"] and await story.is_ready()

    await story.until(moved, "no other daemon takes its place")
    await story.until(story.are_connected, "the new daemon is not found")
    assert (await container_states(story.cluster, other))["restartCount"] == restarts
    assert story.log_of("gb200-1", other).count('"event": "started"') == starts
    index = {node["name"]: node["index"] for node in (await story.domain())["status"]["nodes"]}
    assert sorted(index.values()) == [0, 1]


async def without_an_api_server_daemons_go_on(story: Story) -> None:
    """Nothing is read or written for a while; whoever was connected stays so, and a daemon that dies comes back."""
    await story.cluster.controller.stop(kill=True)
    pod = (await story.daemons())["gb200-1"]
    pid = story.supervisor("gb200-1", pod)
    (imex,) = _children(pid)
    await story.cluster.server.stop()
    os.kill(imex, signal.SIGKILL)
    await story.until(lambda: _child_is_not(pid, imex), "without the API server a daemon is not started again")
    await story.until(story.are_connected, "without the API server daemons do not find each other")
    await story.cluster.server.start()
    await story.cluster.controller.start()
    await story.until(story.is_ready, "the domain is not ready")


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _child_is_not(pid: int, child: int) -> bool:
    children = _children(pid)
    return bool(children) and child not in children
