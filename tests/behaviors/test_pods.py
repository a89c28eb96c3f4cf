"""What Kubernetes' own tests expect of a driver while pods come and go, kubelet restarts, and calls fail."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from support.machine import QUICK, Machine
from support.objects import allocate, claim, node, pod, result, running_setup
from support.plugin import RunningPlugin, ScriptedClaims, eventually, running_plugin, short_folder

from dra_driver.api.meta import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from dra_driver.errors import NodeNotReady
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.prepare.lifecycle import PreparedDevice

DEVICE = PreparedDevice(("gpu",), "node-1", "gpu-0", ("k8s.gpu.nvidia.com/claim=one",))


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest_asyncio.fixture
async def machine(kube: Kube, folder: Path) -> AsyncIterator[Machine]:
    machine = Machine(kube, folder)
    machine.cdi("one")
    await machine.start()
    yield machine
    await machine.stop()


@pytest_asyncio.fixture
async def plugin(machine: Machine) -> AsyncIterator[RunningPlugin]:
    async with running_plugin(machine.root / "kubelet", ScriptedClaims([DEVICE])) as plugin:
        yield plugin


def uid_of(obj: JsonObject) -> str:
    return str(obj["metadata"]["uid"])


async def test_a_pod_runs_once_its_claim_is_prepared_and_gets_its_devices(
    machine: Machine, plugin: RunningPlugin
) -> None:
    the_claim, the_pod = await running_setup(machine.kube)
    await machine.runs()
    assert plugin.claims.calls == [("prepare", (uid_of(the_claim),))]
    container = machine.kubelet.containers(uid_of(the_pod))[0]
    assert container["cdiDevices"] == ["k8s.gpu.nvidia.com/claim=one"]
    assert container["env"] == ["ONE=1"]


async def test_deleting_the_pod_releases_the_claim(machine: Machine, plugin: RunningPlugin) -> None:
    the_claim, _ = await running_setup(machine.kube)
    await machine.runs()
    await machine.kube.delete(PODS, "pod", namespace="default")
    await machine.gone()
    assert plugin.claims.called("unprepare") == [(uid_of(the_claim),)]
    assert machine.kubelet.claims.records() == ()


async def test_a_pod_that_was_created_while_kubelet_was_down_runs_later(
    machine: Machine, plugin: RunningPlugin
) -> None:
    await machine.stop()
    await running_setup(machine.kube)
    await machine.start()
    await machine.runs()


async def test_a_prepare_call_that_times_out_keeps_the_pod_pending_and_is_repeated(kube: Kube, folder: Path) -> None:
    machine = Machine(kube, folder, replace(QUICK, call_s=0.1))
    machine.cdi("one")
    await machine.start()
    claims = ScriptedClaims([DEVICE])
    claims.hold.clear()
    async with running_plugin(folder / "kubelet", claims):
        await running_setup(kube)
        await eventually(lambda: len(claims.called("prepare")) >= 2)
        assert await machine.phase() == "Pending"
        claims.hold.set()
        await machine.runs()
    await machine.stop()


async def test_a_prepare_error_is_shown_on_the_pod_and_tried_again_until_it_works(
    machine: Machine, plugin: RunningPlugin
) -> None:
    plugin.claims.failures["prepare"] += [NodeNotReady("libcuda.so.1 is missing", about="claim default/gpu")]
    await running_setup(machine.kube)
    await machine.runs()
    await machine.says("claim default/gpu: libcuda.so.1 is missing")


async def test_an_unexpected_exception_is_an_error_of_that_call_and_not_the_end(
    machine: Machine, plugin: RunningPlugin
) -> None:
    plugin.claims.failures["prepare"] += [ZeroDivisionError("a defect")]
    await running_setup(machine.kube)
    await machine.runs()
    await machine.says("internal error: ZeroDivisionError: a defect")


async def test_an_unprepare_error_is_tried_again_until_it_works(machine: Machine, plugin: RunningPlugin) -> None:
    plugin.claims.failures["unprepare"] += [NodeNotReady("read-only"), RuntimeError("a defect")]
    await running_setup(machine.kube)
    await machine.runs()
    await machine.kube.delete(PODS, "pod", namespace="default")
    await machine.gone()
    assert len(plugin.claims.called("unprepare")) == 3


async def test_prepare_is_repeated_after_a_kubelet_restart_and_unprepare_still_comes(
    machine: Machine, plugin: RunningPlugin
) -> None:
    the_claim, _ = await running_setup(machine.kube)
    await machine.runs()
    await machine.stop()
    await machine.start()
    await eventually(lambda: len(plugin.claims.called("prepare")) == 2)
    await machine.kube.delete(PODS, "pod", namespace="default")
    await machine.gone()
    assert plugin.claims.called("unprepare") == [(uid_of(the_claim),)]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_force_deleted_pod_is_released_also_when_kubelet_was_down(
    machine: Machine, plugin: RunningPlugin, restart: bool
) -> None:
    the_claim, _ = await running_setup(machine.kube)
    await machine.runs()
    if restart:
        await machine.stop()
    await machine.kube.delete(PODS, "pod", namespace="default", grace_period_s=0)
    if restart:
        await machine.start()
    await eventually(lambda: plugin.claims.called("unprepare") == [(uid_of(the_claim),)])


async def test_prepare_is_not_called_for_a_pod_that_was_deleted_while_kubelet_was_down(
    machine: Machine, plugin: RunningPlugin
) -> None:
    await machine.stop()
    await running_setup(machine.kube)
    await machine.kube.delete(PODS, "pod", namespace="default", grace_period_s=0)
    await machine.start()
    await machine.kube.create(RESOURCE_CLAIMS, claim("other"))
    other = await machine.kube.create(PODS, pod("other", ["other"]))
    await allocate(
        machine.kube, await machine.kube.get(RESOURCE_CLAIMS, "other", "default"), result("gpu-1"), pods=[other]
    )
    await machine.runs("other")
    other_uid = uid_of(await machine.kube.get(RESOURCE_CLAIMS, "other", "default"))
    assert plugin.claims.called("prepare") == [(other_uid,)]


async def test_two_drivers_in_one_pod_and_one_of_them_fails_at_first(machine: Machine, plugin: RunningPlugin) -> None:
    """Kubelet calls the driver that had succeeded again; both are released in the end."""
    nic = ScriptedClaims([PreparedDevice(("nic",), "node-1", "nic-0", ())])
    nic.failures["prepare"] += [NodeNotReady("link is down")] * 3
    nic.failures["unprepare"] += [NodeNotReady("busy")]
    async with running_plugin(machine.root / "kubelet", nic, driver="dra.net"):
        await eventually(lambda: machine.kubelet.registry.connected_drivers() == {GPU_DRIVER, "dra.net"})
        await running_setup(machine.kube, result("gpu-0"), result("nic-0", driver="dra.net"))
        await machine.runs()
        await machine.kube.delete(PODS, "pod", namespace="default")
        await machine.gone()
        assert len(nic.called("prepare")) == 4
        assert nic.called("unprepare")
        assert plugin.claims.called("unprepare")


async def test_a_kubelet_restart_while_a_call_is_in_progress_loses_nothing(
    machine: Machine, plugin: RunningPlugin
) -> None:
    plugin.claims.hold.clear()
    await running_setup(machine.kube)
    await eventually(lambda: plugin.claims.called("prepare"))
    await machine.stop()
    plugin.claims.hold.set()
    await machine.start()
    await machine.runs()


async def test_a_pod_waits_for_allocation_and_reservation(machine: Machine, plugin: RunningPlugin) -> None:
    await machine.kube.create(NODES, node())
    created = await machine.kube.create(RESOURCE_CLAIMS, claim())
    the_pod = await machine.kube.create(PODS, pod())
    await eventually(lambda: machine.kubelet._reported)
    assert plugin.claims.calls == []
    await allocate(machine.kube, created, result("gpu-0"))
    assert plugin.claims.calls == []
    await allocate(machine.kube, created, result("gpu-0"), pods=[the_pod])
    await machine.runs()


async def test_a_finished_pod_releases_its_claim_before_it_is_deleted(machine: Machine, plugin: RunningPlugin) -> None:
    await running_setup(machine.kube)
    await machine.runs()
    done = {"metadata": {"annotations": {"simulation.dra.gpu/complete": "true"}}}
    await machine.kube.merge_patch(PODS, "pod", done, namespace="default")
    await eventually(lambda: plugin.claims.called("unprepare"))
    assert await machine.phase() == "Succeeded"


async def test_the_log_of_a_pod_that_has_ended_shows_the_devices_that_it_had(
    machine: Machine, plugin: RunningPlugin
) -> None:
    texts = {"type": "gpu", "productName": "T4", "uuid": "GPU-1"}
    devices = [{"name": "gpu-0", "attributes": {name: {"string": text} for name, text in texts.items()}}]
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": GPU_DRIVER, "nodeName": "node-1", "pool": pool, "devices": devices}
    kind = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind}
    await machine.kube.create(RESOURCE_SLICES, {**kind, "metadata": {"name": "gpus"}, "spec": spec})
    shows = pod()
    shows["spec"]["restartPolicy"] = "Never"
    shows["spec"]["containers"][0]["command"] = ["nvidia-smi", "-L"]
    await running_setup(machine.kube, pod_object=shows)
    await eventually(lambda: plugin.claims.called("unprepare"))
    ended = await machine.kube.get(PODS, "pod", namespace="default")
    assert await machine.kubelet.log(ended, "main") == "GPU 0: T4 (UUID: GPU-1)\n"


async def test_a_pod_whose_driver_is_not_registered_waits_and_can_be_deleted(machine: Machine) -> None:
    await running_setup(machine.kube)
    await machine.says(f"DRA driver {GPU_DRIVER} is not registered")
    await machine.kube.delete(PODS, "pod", namespace="default")
    await machine.gone()
