"""`dractl tour`: what GPUs on Kubernetes look like, in five minutes on a simulated cluster.

Each step shows a command, runs it as it would be typed, waits for what follows from it, and says what there is to see.
The steps are data below; nothing else here knows what the tour is about.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dra_driver import bundled
from dra_driver.api.meta import PODS, RESOURCE_SLICES, JsonObject
from dra_driver.cli.simulated import scenario as scenarios
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.tasks import cancel_on_sigterm
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode
from dra_driver.terminal import Status, messages, print_message

type ClusterCondition = Callable[[SimulatedCluster], Awaitable[bool]]

_LONGEST_WAIT_S = 60.0
_GPU = "gpu-69a54c71"
"""The GPU that the first pod gets: that of the first node that comes first."""
_IMAGE = "vllm/vllm-openai:v0.29.0"
_NODES = (
    SimulatedNode("dgx-h100-1", "dgx-h100", 0, (("example.com/mig", "on-demand"),)),
    SimulatedNode("l40s-1", "l40s", 0, (("example.com/sharing", "mps"),)),
    SimulatedNode("t4-1", "t4", 0),
)


@dataclass(frozen=True, slots=True)
class TourCommand:
    """A line for the shell, what must be true of the cluster before the next one, and its exit status."""

    line: str
    until: ClusterCondition | None = None
    status: Status = Status.DONE


@dataclass(frozen=True, slots=True)
class TourStep:
    """`before` and `seen` are what the tour says before its commands and after them."""

    title: str
    before: str
    commands: tuple[TourCommand, ...]
    seen: str


def _pods(are: Callable[[Sequence[JsonObject]], bool], *names: str) -> ClusterCondition:
    """True of each of `names`, which are of pods, or what the names of a workload's pods begin with."""

    async def condition(cluster: SimulatedCluster) -> bool:
        pods = (await cluster.kube.list(PODS)).items
        return all(are([pod for pod in pods if pod["metadata"]["name"].startswith(name)]) for name in names)

    return condition


def _running(pods: Sequence[JsonObject]) -> bool:
    return bool(pods) and all(pod["status"].get("phase") == "Running" for pod in pods)


def _waiting(pods: Sequence[JsonObject]) -> bool:
    conditions = [item for pod in pods for item in pod["status"].get("conditions") or ()]
    return any(item.get("reason") == "Unschedulable" for item in conditions)


def _gone(pods: Sequence[JsonObject]) -> bool:
    return not pods


async def _a_node_needs_a_reboot(cluster: SimulatedCluster) -> bool:
    slices = (await cluster.kube.list(RESOURCE_SLICES)).items
    devices = [device for item in slices for device in item["spec"].get("devices") or ()]
    return any(taint.get("value") == "NodeReboot" for device in devices for taint in device.get("taints") or ())


_SHARES = ("half", "quarter-1", "quarter-2")
_PARTITIONS = ("large", "part-1", "part-2", "small-1", "small-2")
STEPS = (
    TourStep(
        "A cluster with GPUs",
        "Three simulated nodes run the real node plugin, and the real controller publishes their GPUs.",
        (TourCommand("dractl get nodes"),),
        "20 GPUs of three models, all healthy and free.",
    ),
    TourStep(
        "A pod with a GPU",
        "A pod names a template of a claim. The claim asks for one GPU, of any model.",
        (
            TourCommand("kubectl apply -f examples/features/one-gpu", _pods(_running, "one-gpu")),
            TourCommand("dractl get claims"),
            TourCommand("kubectl logs one-gpu"),
        ),
        "The scheduler chose an H100, and the container has its device files and nothing of the other seven.",
    ),
    TourStep(
        "A share of a GPU",
        "An administrator's GpuPolicy shares the GPUs of one node. Each of three pods claims memory and compute.",
        (
            TourCommand("kubectl apply -f examples/features/shares-memory-and-cores", _pods(_running, *_SHARES)),
            TourCommand("dractl get claims"),
            TourCommand("kubectl delete -f examples/features/shares-memory-and-cores", _pods(_gone, *_SHARES)),
        ),
        "Three pods had one L40S together, and MPS limited what each of them could use.",
    ),
    TourStep(
        "MIG on demand",
        "Another policy lets the driver divide H100s. Five pods claim MIG devices, which do not exist yet.",
        (
            TourCommand("kubectl apply -f examples/features/mig-on-demand", _pods(_running, *_PARTITIONS)),
            TourCommand("dractl get devices"),
            TourCommand("kubectl delete -f examples/features/mig-on-demand", _pods(_gone, *_PARTITIONS)),
        ),
        "Each letter in a bar is a claim. The driver makes the MIG devices for the pods, and removes them afterwards.",
    ),
    TourStep(
        "A GPU breaks",
        "The GPU of the first pod reports Xid 79: it fell off the bus.",
        (
            TourCommand(f"dractl simulate dgx-h100-1 xid {_GPU} 79", _a_node_needs_a_reboot),
            TourCommand("dractl explain pod one-gpu", status=Status.NO),
        ),
        "The GPU is tainted, so no new claim gets it. The pod keeps it; its status and an Event say what is wrong.",
    ),
    TourStep(
        "Why does my pod wait?",
        "The first pod is deleted. A model server needs all eight H100s, and one of them is broken.",
        (
            TourCommand("kubectl delete -f examples/features/one-gpu", _pods(_gone, "one-gpu")),
            TourCommand(
                f"dractl new deployment all-gpus --gpu h100 --count 8 --image {_IMAGE} > all-gpus/all-gpus.yaml"
            ),
            TourCommand("kubectl apply -f all-gpus", _pods(_waiting, "all-gpus-")),
            TourCommand("dractl explain deploy/all-gpus", status=Status.NO),
        ),
        "For each node the reason, and the smallest changes with which the pod would fit.",
    ),
    TourStep(
        "The GPU is repaired",
        "Xid 79 needs a reboot of the node.",
        (
            TourCommand("dractl simulate dgx-h100-1 reboot", _pods(_running, "all-gpus-")),
            TourCommand("dractl get nodes"),
        ),
        "The taint went with the fault. The server runs, and has all eight GPUs of the node: 0 of 8 are free.",
    ),
)
_NEXT = """That was the tour. The cluster is stopped, and its files are removed.

What next:
  dractl cluster    the same kind of cluster, for kubectl in another terminal
  dractl demo       all examples at once
  docs/guides       from the first pod to a rack of GPUs"""


def tour(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not wait for Enter between steps.")] = False,
) -> None:
    """Five minutes with GPUs on a simulated cluster: a pod, a share, MIG, a broken GPU, and a pod that waits.

    Each step shows a command and runs it. Enter continues, Ctrl-C ends the tour. Nothing outside a temporary folder is
    touched. Without kubectl, the tour applies the manifests itself.

    \b
    Examples:
      dractl tour
    """
    screen = Console(highlight=False, emoji=False, markup=False)
    with tempfile.TemporaryDirectory(prefix="dractl-") as place, (Path(place) / "tour.log").open("w") as log:
        configure_logging("info", "console", log)
        try:
            ended = asyncio.run(_lead(Path(place), screen, wait=not yes and sys.stdin.isatty()))
        except (KeyboardInterrupt, asyncio.CancelledError):
            ended = False
    screen.print(
        f"\n{_NEXT}" if ended else "\nThe tour ended early. The cluster is stopped, and its files are removed."
    )


async def _lead(place: Path, screen: Console, *, wait: bool) -> bool:
    """Whether all steps were taken."""
    (place / "examples").symlink_to(bundled.FEATURES_FOLDER.parent.resolve())
    (place / "all-gpus").mkdir()
    cancel_on_sigterm()
    async with AsyncExitStack() as stack:
        with messages.status("starting a simulated cluster") as status:
            running = SimulatedCluster.running(place, _NODES, progress=status.update)
            cluster = await stack.enter_async_context(running)
        if wait:
            screen.print("Press Enter to run each command. Ctrl-C ends the tour.")
        for number, step in enumerate(STEPS, 1):
            screen.print(f"\n{number} of {len(STEPS)}: {step.title}", style="bold")
            screen.print(step.before)
            for command in step.commands:
                screen.print(f"\n$ {command.line}", style="cyan", soft_wrap=True)
                if wait and not await _enter():
                    return False
                await _carry_out(command, cluster)
            screen.print(f"\n{step.seen}")
    return True


async def _enter() -> bool:
    """Wait for Enter, without a thread, which Ctrl-C would not end. False at the end of input."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return bool(sys.stdin.readline())


async def _carry_out(command: TourCommand, cluster: SimulatedCluster) -> None:
    """Raises NodeNotReady when what should follow from it does not."""
    if command.line.startswith("kubectl ") and shutil.which("kubectl") is None:
        await _instead_of_kubectl(command.line.split()[1:], cluster)
    else:
        status = await _run(command.line, cluster)
        if status != command.status:
            raise NodeNotReady(f"`{command.line}` ended with exit status {status}")
    if command.until is not None:
        condition = command.until
        await cluster.wait(lambda: condition(cluster), f"nothing came of `{command.line}`", _LONGEST_WAIT_S)


async def _run(line: str, cluster: SimulatedCluster) -> int:
    """The exit status. The command ends with the tour."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": programs}
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", line), cwd=cluster.folder, env=environment, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _instead_of_kubectl(words: Sequence[str], cluster: SimulatedCluster) -> None:
    match words:
        case ["apply", "-f", folder]:
            await scenarios.apply(cluster.kube, scenarios.read_scenario(cluster.folder / folder))
            print_message("kubectl is not installed here: the tour has applied the files.")
        case ["delete", "-f", folder]:
            await scenarios.delete(cluster.kube, scenarios.read_scenario(cluster.folder / folder))
            print_message("kubectl is not installed here: the tour has deleted what is in the files.")
        case _:
            print_message("kubectl is not installed here: the tour leaves this command out.")
