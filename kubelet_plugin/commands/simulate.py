"""`dractl simulate`: injects a fault into a simulated node, or does what an administrator does.

For nodes of `dractl cluster`, whose hosts are folders; running plugins notice it like on a real host. A node's name
leads to its folder because the cluster's kubeconfig lies beside its nodes. The command line finds the command through
the entry point group `gpu_dra.commands`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pynvml
import typer

from dra_driver.devices.health import xid_severity
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.kube.endpoint import default_kubeconfigs
from dra_driver.names import gpu_device_names
from dra_driver.terminal import print_message
from kubelet_plugin.simulation.host import SimulatedHost, open_simulated
from kubelet_plugin.simulation.partitions import PartitionRefused

_OFF_THE_BUS = 79
_GPU_RESET, _NODE_REBOOT = 1, 2
"""Source: nvmlDeviceGpuRecoveryAction_t."""

type _Do = Callable[[SimulatedHost, Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class _Action:
    """`arguments` as the help shows them; those in brackets may be left out."""

    arguments: str
    help: str
    do: _Do

    @property
    def wanted(self) -> tuple[int, int]:
        """How many arguments at least and at most."""
        names = self.arguments.split()
        return sum(not name.startswith("[") for name in names), len(names)


def _xid(host: SimulatedHost, given: Sequence[str]) -> str:
    """The Xid, and what the driver then asks for: what NVIDIA's catalog names as the immediate action."""
    index, number = _gpu(host, given[0]), _number(given[1], "an Xid")
    action = (_NODE_REBOOT if number == _OFF_THE_BUS else _GPU_RESET) if xid_severity(number) == "Critical" else 0
    if action and host.state.recorded is None:
        host.set_health(index, recovery_action=action)
    host.inject_event(index, number)
    fix = "reboot" if action == _NODE_REBOOT else f"reset {given[0]}"
    way_out = f". To make it healthy: dractl simulate NODE {fix}" if action and host.state.recorded is None else "."
    return f"Injected Xid {number} on GPU {given[0]}{way_out}"


def _lose(host: SimulatedHost, given: Sequence[str]) -> str:
    host.lose_gpu(_gpu(host, given[0]))
    return f"GPU {given[0]} is lost"


def _return(host: SimulatedHost, given: Sequence[str]) -> str:
    host.lose_gpu(_gpu(host, given[0]), 0)
    return f"GPU {given[0]} answers again"


def _health(host: SimulatedHost, given: Sequence[str]) -> str:
    name, number = given[1].replace("-", "_"), _number(given[2], "a number")
    if name not in _HEALTH:
        raise InvalidInput(f"there are {', '.join(_HEALTH)}", about=f"fact {given[1]!r}")
    host.set_health(_gpu(host, given[0]), **{name: bool(number) if name in _FLAGS else number})
    return f"GPU {given[0]} now reports {given[1]} {number}"


def _mig_mode(host: SimulatedHost, given: Sequence[str]) -> str:
    if given[1] not in ("on", "off"):
        raise InvalidInput("wants on or off", about=f"MIG mode {given[1]!r}")
    index, wanted = _gpu(host, given[0]), int(given[1] == "on")
    if len(given) == 2:
        host.set_mig(index, wanted)
        return f"MIG mode of GPU {given[0]} is {given[1]}"
    if given[2] != "pending":
        raise InvalidInput("takes `pending` or nothing", about=f"MIG mode {given[1]} {given[2]!r}")
    now = host.state.gpus[index].mig
    host.set_mig(index, now.current if now is not None else 0, wanted)
    return f"MIG mode of GPU {given[0]} will be {given[1]} after its reset, or a reboot"


def _reset(host: SimulatedHost, given: Sequence[str]) -> str:
    host.reset_gpu(_gpu(host, given[0]))
    return f"GPU {given[0]} was reset"


def _open(host: SimulatedHost, given: Sequence[str]) -> str:
    name = given[1] if len(given) > 1 else "dcgm-exporter"
    pid = host.attach_client(_gpu(host, given[0]), name=name, kind="monitor")
    return f"{name} ({pid}) has GPU {given[0]} open; close-gpu {pid} ends it"


def _close(host: SimulatedHost, given: Sequence[str]) -> str:
    host.detach_client(_number(given[0], "a process"))
    return f"Process {given[0]} has no GPU open."


def _resets(host: SimulatedHost, given: Sequence[str]) -> str:
    if given[0] not in ("alone", "together"):
        raise InvalidInput("wants alone or together", about=f"resets {given[0]!r}")
    host.set_resets("nvml" if given[0] == "alone" else "together")
    return f"GPUs of this node are reset {given[0]}"


def _make_mig(host: SimulatedHost, given: Sequence[str]) -> str:
    start = _number(given[2], "a memory slice") if len(given) > 2 else None
    uuids = host.make_instance(_gpu(host, given[0]), given[1], start)
    return f"GPU {given[0]} has {', '.join(uuids)}"


def _destroy_mig(host: SimulatedHost, given: Sequence[str]) -> str:
    index, start = _gpu(host, given[0]), _number(given[1], "a memory slice")
    if all(instance.start != start for instance in host.state.gpus[index].instances):
        raise InvalidInput(f"has no GPU instance at memory slice {start}", about=f"GPU {given[0]}")
    host.destroy_instance(index, start)
    return f"the GPU instance at memory slice {start} of GPU {given[0]} is gone"


def _reboot(host: SimulatedHost, given: Sequence[str]) -> str:
    host.reboot()
    return "Simulated reboot done. (The plugin process was not restarted; on a real node it would be.)"


_FLAGS = ("remap_pending", "remap_failed")
_HEALTH = ("uncorrected_errors", "recovery_action", *_FLAGS)

ACTIONS: dict[str, _Action] = {
    "xid": _Action("GPU NUMBER", "the GPU reports an Xid", _xid),
    "lose-gpu": _Action("GPU", "the GPU falls off the bus", _lose),
    "return-gpu": _Action("GPU", "a lost GPU answers again", _return),
    "health": _Action(
        "GPU FACT NUMBER", "what the GPU reports: uncorrected-errors, remap-failed, …; 0 is healthy", _health
    ),
    "mig-mode": _Action(
        "GPU on|off [pending]", "set MIG mode as an administrator; pending: at the next reset", _mig_mode
    ),
    "reset": _Action("GPU", "reset the GPU as an administrator", _reset),
    "open-gpu": _Action("GPU [NAME]", "a program without a claim opens the GPU, as a monitor does", _open),
    "close-gpu": _Action("PID", "that program ends", _close),
    "resets": _Action("alone|together", "whether the board can reset one GPU without all others", _resets),
    "make-mig": _Action("GPU PROFILE [START]", "create a MIG device as an administrator", _make_mig),
    "destroy-mig": _Action("GPU START", "delete a MIG device as an administrator", _destroy_mig),
    "reboot": _Action("", "reboot the node", _reboot),
}

_OF_ANY_NODE = ("xid", "lose-gpu", "return-gpu")
"""Actions on nodes that were made from a record, too."""

_HELP = "\n\n".join(f"{name} {action.arguments}".rstrip() + f": {action.help}" for name, action in ACTIONS.items())


def _hosts() -> dict[str, Path]:
    """Folders of hosts by node, of clusters whose kubeconfigs are in use."""
    nodes = [path for config in default_kubeconfigs() for path in sorted(config.parent.glob("nodes/*/host"))]
    return {path.parent.name: path for path in nodes}


def _proposed(context: typer.Context, incomplete: str) -> list[str]:
    """GPUs of the node, for the first argument of an action that has one."""
    host, action = _hosts().get(context.params.get("host", "")), ACTIONS.get(context.params.get("action", ""))
    if host is None or action is None or not action.arguments.startswith("GPU") or context.params.get("arguments"):
        return []
    names = gpu_device_names(gpu.uuid for gpu in SimulatedHost(host).state.gpus)
    return [name for name in names.values() if name.startswith(incomplete)]


def simulate(
    host: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            help="Node of the simulated cluster that $KUBECONFIG names, or the folder of a simulated node.",
            autocompletion=lambda incomplete: [name for name in _hosts() if name.startswith(incomplete)],
        ),
    ],
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION",
            help="What to do; see above.",
            autocompletion=lambda incomplete: [name for name in ACTIONS if name.startswith(incomplete)],
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", show_default=False, autocompletion=_proposed)
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="PROFILE|FILE[:N]", help="Create the simulated node first, if it does not exist."
        ),
    ] = None,
) -> None:
    done = act(_hosts().get(host, Path(host)), action, arguments or [], profile)
    # Only here is it known how the user names the node.
    print_message(done.replace("dractl simulate NODE", f"dractl simulate {host}"))


simulate.__doc__ = (
    "Inject a fault into a simulated node.\n\nA GPU is its name (gpu-69a54c71), its UUID, or its number from 0.\n\n"
    f"{_HELP}\n\n\b\nExamples:\n  dractl simulate dgx-h100-1 xid gpu-69a54c71 79\n  dractl simulate dgx-h100-1 reboot"
)


def act(root: Path, name: str, given: Sequence[str], profile: str | None) -> str:
    """Do it; says what happened. Raises InvalidInput for an invalid request, NodeNotReady when hardware refuses."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidInput(f"no such action; there are {', '.join(ACTIONS)}", about=f"action {name}")
    least, most = action.wanted
    if not least <= len(given) <= most:
        raise InvalidInput(f"takes {action.arguments or 'no arguments'}", about=f"action {name}")
    simulated = _host(root, profile)
    if simulated.state.recorded is not None and name not in _OF_ANY_NODE:
        raise InvalidInput(
            f"the node was recorded and does not change; it takes {', '.join(_OF_ANY_NODE)}. For others, make the host"
            " from a profile",
            about=f"action {name}",
        )
    try:
        return action.do(simulated, given)
    except PartitionRefused as refusal:
        raise NodeNotReady(
            f"the hardware refuses: {pynvml.NVMLError(refusal.code)}", about=f"{name} {' '.join(given)}"
        ) from refusal


def standing(root: Path) -> dict[str, str]:
    """How each GPU of the host stands, by UUID: equal before claims came and after all are gone."""
    return {uuid: str(snapshot) for uuid, snapshot in SimulatedHost(root).snapshots().items()}


def _host(root: Path, profile: str | None) -> SimulatedHost:
    if profile is not None:
        return open_simulated(root, profile)
    host = SimulatedHost(root)
    if not host.exists:
        known = f"; the cluster of $KUBECONFIG has {', '.join(_hosts())}" if _hosts() else ""
        raise InvalidInput(
            f"is not a node of a simulated cluster, and not the folder of a simulated node{known}", about=str(root)
        )
    return host


def _gpu(host: SimulatedHost, text: str) -> int:
    """The index of a GPU by its name, UUID or number."""
    uuids = [gpu.uuid for gpu in host.state.gpus]
    names = gpu_device_names(uuids)
    for uuid, name in names.items():
        if text in (name, uuid):
            return uuids.index(uuid)
    if not text.isdecimal():
        raise InvalidInput(f"the node has {', '.join(names.values())}", about=f"GPU {text!r}")
    if int(text) >= len(uuids):
        raise InvalidInput(f"the node has {len(uuids)} GPUs, numbered from 0", about=f"GPU {text}")
    return int(text)


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"is not {what}", about=repr(text))
    return int(text)
