"""What a node has for sharing GPU memory with other machines: IMEX channels, and the daemons that manage the fabric.

With their numbers in the CDI spec the host need not have the device nodes themselves, and
it does not matter that they vanish at a reboot. Source: NVIDIA's IMEX guide; the kernel module's files in /proc.
"""

import re
from collections.abc import Iterable

from dra_driver.api.inventory import IMEX_READY, IMEX_SUBJECT, ImexFacts, Problem
from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.capabilities import numbered_node
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.layouts import program_below
from kubelet_plugin.hardware.sysfs import HostFiles

_PROGRAM = "nvidia-imex"
_OURS = "GPU_DRA_POD_IP"
_CHANNELS = "nvidia-caps-imex-channels"
_PARAMS = "/proc/driver/nvidia/params"
_WORLD = 0o666


def imex_facts(host: HostFiles, driver_root: str) -> ImexFacts | None:
    """None where the kernel module knows no channels. `driver_root` is the host's folder of the driver."""
    if _CHANNELS not in host.device_majors():
        return None
    program = program_below(host, driver_root, _PROGRAM)
    return ImexFacts(channels=_channel_count(host), program=program is not None)


def foreign_daemons(host: HostFiles) -> tuple[str, ...]:
    """IMEX daemons of the node that are not in pods of this driver: `nvidia-imex (1234, nvidia-imex.service)` each.

    Only one daemon of a node can have the management of its fabric; a second ends with NV_ERR_IN_USE.
    """
    pids = sorted(int(name) for name in host.names("/proc") if name.isdecimal())
    foreign = (pid for pid in pids if host.read_text(f"/proc/{pid}/comm") == _PROGRAM and not _is_ours(host, pid))
    return tuple(f"{_PROGRAM} ({pid}, {_runs_in(host, pid)})" for pid in foreign)


def foreign_daemon_problem(host: HostFiles) -> Problem | None:
    """What foreign daemons mean for ComputeDomains whose daemons are in pods; None if there are none."""
    daemons = foreign_daemons(host)
    if not daemons:
        return None
    return Problem(
        subject=IMEX_SUBJECT,
        reason="ForeignDaemon",
        message=f"{', '.join(daemons)} manages the node's fabric, and an IMEX daemon of a ComputeDomain cannot start"
        " beside it (NV_ERR_IN_USE); stop it (`systemctl disable --now nvidia-imex`; in a pod: remove the other driver)"
        " or let domains use it (feature gate HostManagedIMEXDaemon)",
    )


def _is_ours(host: HostFiles, pid: int) -> bool:
    """By the environment of the supervisor that starts it."""
    return f"\0{_OURS}=" in f"\0{host.read_text(f'/proc/{pid}/environ') or ''}"


def _runs_in(host: HostFiles, pid: int) -> str:
    """The unit of systemd, or that it is in a pod. Source: cgroups(7), /proc/[pid]/cgroup."""
    cgroup = host.read_text(f"/proc/{pid}/cgroup") or ""
    if "kubepods" in cgroup:
        return "in a pod"
    units = re.findall(r"[^/\s]+\.service(?=/|$)", cgroup, re.MULTILINE)
    return units[-1] if units else "of no unit"


def channel_nodes(host: HostFiles, numbers: Iterable[int]) -> tuple[DeviceNode, ...]:
    """The device nodes of these channels. Raises NodeNotReady when the kernel has no such class."""
    major = host.device_majors().get(_CHANNELS)
    if major is None:
        raise NodeNotReady(
            f"the kernel has no device class {_CHANNELS} in /proc/devices: the driver here has no IMEX channels",
            about="IMEX",
        )
    return tuple(numbered_node(f"/dev/{_CHANNELS}/channel{number}", major, number, _WORLD) for number in numbers)


def all_channels(host: HostFiles) -> range:
    """The numbers of all channels that the driver has."""
    return range(_channel_count(host))


_LONGEST_STATE = 253
"""Characters that `ImexFacts.state` may have: the API server refuses an inventory with more."""


class HostDaemon:
    """The IMEX daemon that a node runs by itself. `socket` is its IMEX_CMD_UNIX_DOMAIN_PATH, a path on the host."""

    def __init__(self, host: HostFiles, programs: DriverPrograms, socket: str) -> None:
        self._host = host
        self._programs = programs
        self._socket = socket

    def state(self) -> str:
        """Its own word, `READY` for instance, or why it does not answer. Blocks."""
        socket = self._host.path(self._socket)
        try:
            return self._programs.run("nvidia-imex-ctl", ("-q", f"--u={socket}"), about="IMEX", timeout_s=10.0).strip()
        except NodeNotReady as error:
            return f"it does not answer ({error.message})"[:_LONGEST_STATE]

    def problem(self) -> str | None:
        """Why it cannot be used now; None when it can."""
        state = self.state()
        return None if state == IMEX_READY else f"the node's own IMEX daemon is not ready: {state}"


def _channel_count(host: HostFiles) -> int:
    count = host.fields(_PARAMS).get("ImexChannelCount", "")
    return int(count) if count.isdigit() else 0
