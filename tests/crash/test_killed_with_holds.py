"""A plugin that is killed after any operation on a file or on the hardware leaves both as if it had not been.

As in `test_killed`, but the claims change hardware: they partition a GPU, set its time slice and compute mode, start
MPS daemons, bind it to VFIO. What is compared is what containers are told, and that everything is as it was at the
start: modes, instances, daemons, folders, bindings. Files are written beside their places first, which changes nothing
yet, so only what takes effect counts here.

Each kill is a node, two plugins and their daemons, so by default every so many operations are tried, others in each
story; GPU_DRA_TEST_CRASH_STRIDE=1 tries all of them, which takes some minutes.
"""

import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.objects import allocation, claim, result
from support.plugin_process import Died, NodeUnderTest, Plugin, PluginForks, plugin_on
from support.rows import slow_but
from support.world import NAMESPACE, World

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER, ClaimRef
from kubelet_plugin.effects.mps import MARK
from kubelet_plugin.hardware.host_programs import Processes
from kubelet_plugin.simulation.host import SimulatedHost, create_host

STRIDE = int(os.environ.get("GPU_DRA_TEST_CRASH_STRIDE", "17"))

PROFILE = "h100-nvl"
FULL = "gpu-cd9d459d"
"""The name of GPU 0."""
SWITCHED = "gpu-eafe5e04"
"""That of a node with NVSwitches."""
PART = f"{FULL}-mig-1g12gb-0"
OTHER_PART = f"{FULL}-mig-2g24gb-2"

SHARES = ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002")

DYNAMIC = {"mig": [{"mode": "Dynamic"}]}
MPS_SHARES = {"sharing": [{"strategy": "MPS", "replicas": 2}]}
TIME_SLICED_SHARES = {"sharing": [{"strategy": "TimeSlicing", "replicas": 2, "interval": "Long"}]}
PASSTHROUGH = {"passthrough": [{}]}

LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
LIMITED = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "2Gi"},
}


@dataclass(frozen=True)
class Story:
    """A policy, and two claims: device, share, and config of each."""

    policy: JsonObject
    first: tuple[str, str | None, JsonObject | None]
    second: tuple[str, str | None, JsonObject | None]
    profile: str = PROFILE
    gates: str = ""


STORIES = {
    "two parts of one GPU": Story(DYNAMIC, (PART, None, None), (OTHER_PART, None, None)),
    "two shares by MPS": Story(MPS_SHARES, (FULL, SHARES[0], None), (FULL, SHARES[1], None)),
    "two shares by time-slicing": Story(TIME_SLICED_SHARES, (FULL, SHARES[0], None), (FULL, SHARES[1], None)),
    "time slice, then MPS": Story(
        {},
        (FULL, None, {"kind": "GpuConfig", "sharing": LONG}),
        (FULL, None, {"kind": "GpuConfig", "sharing": LIMITED}),
    ),
    "a part with MPS, then the whole": Story(
        DYNAMIC, (PART, None, {"kind": "MigDeviceConfig", "sharing": LIMITED}), (FULL, None, None)
    ),
    "a virtual machine, then MPS": Story(
        PASSTHROUGH, (f"{FULL}-vfio", None, None), (FULL, None, {"kind": "GpuConfig", "sharing": LIMITED})
    ),
    "a partition of switches for a virtual machine, then for a container": Story(
        PASSTHROUGH,
        (f"{SWITCHED}-vfio", None, None),
        (SWITCHED, None, {"kind": "GpuConfig", "sharing": LONG}),
        profile="hgx-h200",
        gates="FabricManagerPartitioning=true",
    ),
}


@dataclass
class Ending:
    """What a story leaves: kubelet's answers, what containers were told, what is on the node afterwards."""

    answers: list[object]
    files_for_containers: list[dict[str, str]]
    files: dict[str, bytes]
    hardware: list[object]
    folders: list[str]


def hardware_of(host: SimulatedHost) -> list[object]:
    state = host.state
    fabric = state.fabric_manager
    return [
        *(
            (gpu.bound_to, gpu.mig, gpu.instances, gpu.compute_mode, gpu.time_slice, gpu.persistent, gpu.clients)
            for gpu in state.gpus
        ),
        fabric.partitions if fabric is not None else None,
    ]


@contextmanager
def daemons_end(folder: Path) -> Iterator[None]:
    """Whatever a test does, no process of it stays."""
    try:
        yield
    finally:
        for process in Processes(Path("/proc")).marked(MARK):
            if process.mark.startswith(f"{folder}/"):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)


def daemons_of(node: NodeUnderTest) -> list[int]:
    marked = Processes(Path("/proc")).marked(MARK)
    return [process.pid for process in marked if process.mark.startswith(f"{node.folder}/")]


async def allocated(world: World, name: str, device: str, share: str | None, config: JsonObject | None) -> ClaimRef:
    created = await world.kube.create(RESOURCE_CLAIMS, claim(name, NAMESPACE))
    extra: dict[str, Any] = {} if share is None else {"shareID": share}
    configs = []
    if config is not None:
        parameters = {"apiVersion": CONFIG_API_VERSION, **config}
        configs = [{"source": "FromClaim", "requests": [], "opaque": {"driver": GPU_DRIVER, "parameters": parameters}}]
    status = {
        "allocation": allocation({**result(device), **extra}, config=configs),
        "reservedFor": [{"resource": "pods", "name": f"pod-of-{name}", "uid": f"uid-of-{name}"}],
    }
    await world.kube.merge_patch(RESOURCE_CLAIMS, name, {"status": status}, namespace=NAMESPACE, subresource="status")
    return ClaimRef(NAMESPACE, name, created["metadata"]["uid"])


def a_node(world: World, chosen_story: Story) -> NodeUnderTest:
    """A machine of its own, with nothing prepared on it."""
    folder = world.folder / f"n{next(world.nodes)}"
    node = NodeUnderTest(folder, world.kubeconfig, create_host(folder / "host", chosen_story.profile, gpus=2))
    file = folder / "policy.yaml"
    file.write_text(
        yaml.safe_dump({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **chosen_story.policy})
    )
    node.options = (f"--policy={file}", f"--feature-gates={chosen_story.gates}")
    node.watched = (node.host.root / "sim",)
    return node


def files_for_containers(node: NodeUnderTest) -> dict[str, str]:
    """CDI files and device metadata, with what is another one each time, and each node's own folder, left out."""
    texts = {}
    for path in [*node.cdi.iterdir(), *(node.state / "dra-device-metadata").iterdir()]:
        text = path.read_text().replace(str(node.folder), "")
        texts[path.name] = re.sub(r"MIG-[0-9a-f-]{36}", "MIG-uuid", text)
    return texts


async def story(
    forks: PluginForks, node: NodeUnderTest, refs: Sequence[ClaimRef], log: Path, kill_after: int | None, *, pair: bool
) -> Ending:
    first, second = refs
    calls = [
        lambda plugin: plugin.prepare(first, second) if pair else plugin.prepare(first),
        lambda plugin: plugin.unprepare(first),
        lambda plugin: plugin.prepare(second),
        lambda plugin: plugin.unprepare(first, second),
    ]
    ending = Ending([], [], {}, [], [])

    async def go_on(plugin: Plugin) -> None:
        while len(ending.answers) < len(calls):
            ending.answers.append(await calls[len(ending.answers)](plugin))
            ending.files_for_containers.append(files_for_containers(node))

    with daemons_end(node.folder):
        async with plugin_on(forks, node, kill_after=kill_after, kill_log=log) as plugin:
            if await plugin.ready():
                with suppress(Died):
                    await go_on(plugin)
        async with plugin_on(forks, node) as plugin:
            await go_on(plugin)
        assert daemons_of(node) == [], node.log.read_text()
    ending.files = node.files()
    ending.hardware = hardware_of(node.host)
    ending.folders = sorted(str(path.relative_to(node.state)) for path in (node.state / "mps").glob("*"))
    return ending


@pytest.mark.parametrize("name", slow_but(STORIES, "two parts of one GPU", "time slice, then MPS"))
async def test_killed_anywhere_with(forks: PluginForks, world: World, name: str) -> None:
    chosen_story = STORIES[name]
    refs = [await allocated(world, "one", *chosen_story.first), await allocated(world, "two", *chosen_story.second)]
    pair = name.startswith("two ")
    log = world.folder / "operations"
    node = a_node(world, chosen_story)
    at_start = hardware_of(node.host)

    undisturbed = await story(forks, node, refs, log, None, pair=pair)

    assert not any(isinstance(error, str) and error for answer in undisturbed.answers for error in answer.values()), (
        str(undisturbed.answers)
    )
    assert undisturbed.hardware == at_start
    assert undisturbed.folders == []
    assert not [path for path in undisturbed.files if path.startswith("cdi/")]
    operations = log.read_text().splitlines()
    assert len(operations) > 20
    effective = [
        (number, operation)
        for number, operation in enumerate(operations, start=1)
        if not operation.startswith("write ")
    ]
    for number, operation in effective[list(STORIES).index(name) % STRIDE :: STRIDE]:
        node = a_node(world, chosen_story)
        disturbed = await story(forks, node, refs, log, number, pair=pair)
        assert disturbed == undisturbed, f"killed after {number}: {operation}\n{node.log.read_text()}"
        shutil.rmtree(node.folder)
