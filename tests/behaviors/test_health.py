"""What a pod's status shows of the health of its devices."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from support.machine import Machine
from support.objects import result, running_setup
from support.plugin import ScriptedClaims, ScriptedHealth, eventually, running_plugin

from dra_driver.api.meta import PODS
from dra_driver.kube.client import Kube
from dra_driver.simulation.kubelet.pods import looks_like, status_of
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.rpc.messages import DeviceHealth

DEVICE = PreparedDevice(("gpu",), "node-1", "gpu-0", ("k8s.gpu.nvidia.com/claim=one",))
HEALTHY = DeviceHealth("node-1", "gpu-0", True, 0)
SICK = DeviceHealth("node-1", "gpu-0", False, 0, "fell off the bus")


@pytest_asyncio.fixture
async def machine(kube: Kube, folder: Path) -> AsyncIterator[Machine]:
    machine = Machine(kube, folder)
    machine.cdi("one")
    async with machine.running():
        yield machine


async def shows(machine: Machine, health: str, **more: str) -> None:
    """Until the pod shows this health for its device."""
    wanted = [
        {"name": "claim:gpu", "resources": [{"resourceID": "k8s.gpu.nvidia.com/claim=one", "health": health, **more}]}
    ]

    async def shown() -> bool:
        status = (await machine.kube.get(PODS, "pod", "default")).get("status") or {}
        return [container.get("allocatedResourcesStatus") for container in status.get("containerStatuses") or ()] == [
            wanted
        ]

    await eventually(shown)


async def test_health_follows_the_driver_is_unknown_without_it_and_recovers_with_it(machine: Machine) -> None:
    kubelet_root = machine.root / "kubelet"
    health = ScriptedHealth([HEALTHY])
    async with running_plugin(kubelet_root, ScriptedClaims([DEVICE]), health=health):
        await running_setup(machine.kube, result("gpu-0"))
        await machine.runs()
        await shows(machine, "Healthy")
        health.set(SICK)
        await shows(machine, "Unhealthy", message="fell off the bus")
        health.set(HEALTHY)
        await shows(machine, "Healthy")
    await shows(machine, "Unknown")
    async with running_plugin(kubelet_root, ScriptedClaims([DEVICE]), health=health):
        await shows(machine, "Healthy")


async def test_a_status_that_is_as_before_is_not_written_and_keeps_its_times(machine: Machine) -> None:
    health = ScriptedHealth([HEALTHY])
    async with running_plugin(machine.root / "kubelet", ScriptedClaims([DEVICE]), health=health):
        await running_setup(machine.kube, result("gpu-0"))
        await machine.runs()
        await shows(machine, "Healthy")
        pod = await machine.kube.get(PODS, "pod", "default")
        (shown,) = pod["status"]["containerStatuses"]
        assert looks_like(pod, status_of(pod, [shown["allocatedResourcesStatus"]], "later", {}))
        status = status_of(pod, [[]], "later", {})
        assert not looks_like(pod, status) and "later" not in str(status)
        assert status["containerStatuses"][0]["state"]["running"]


async def test_a_device_that_the_driver_does_not_mention_is_unknown(machine: Machine) -> None:
    async with running_plugin(machine.root / "kubelet", ScriptedClaims([DEVICE]), health=ScriptedHealth()):
        await running_setup(machine.kube, result("gpu-0"))
        await machine.runs()
        await shows(machine, "Unknown")
