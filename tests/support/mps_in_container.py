"""A plugin in a container of its own, for tests: namespaces, a /proc and a cgroup that are not the host's.

Run as a program: `mps_in_container.py <order as JSON>`; prints the facts of what was made. `host_pid` is the process
whose namespaces are the host's.
"""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from support.mps import QUICK

from kubelet_plugin.effects import mps_process
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.effects.vfio_driver import HostSmi
from kubelet_plugin.hardware.driver_programs import DriverProgram, DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.host_programs import Processes
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import GpuIdentity, Hold, HoldRecord, HoldState, Made, MpsDaemon


@dataclass
class _Programs(DriverPrograms):
    """The simulated node's programs, where the host has them; `root` is a driver root that is a whole system."""

    node: Path
    root: str

    def find(self, name: str) -> DriverProgram:
        files = HostFiles(self.node)
        program = DriverPrograms(files, lambda: find_driver_root(files)).find(name)
        path = f"{self.root}{program.file}"
        folder = f"{self.root}{program.nvml_library.parent}"
        return replace(program, path=path, root=self.root or "/", library_folder=folder, whole_system=bool(self.root))


def main() -> None:
    order = json.loads(sys.argv[1])
    host_root = Path(order["hostRoot"])
    files = HostFiles(host_root)
    host = OnHost(files, Processes(host_root / "proc"), host_root / "proc" / str(order["hostPid"]) / "ns")
    mps_process._SYSTEMD_RUN = ()  # of this machine: what it starts would be outside the test's containers
    programs = _Programs(Path(order["node"]), order["driverRoot"])
    daemons = MpsDaemons(Path(order["folder"]), host, programs, QUICK)
    hold = MpsDaemon("claim-a", (GpuIdentity(order["gpu"], "0000:00:00.0"),), thread_percentage=50)
    made = Made(tuple(tuple(fact) for fact in order.get("made", ())))
    if order["do"] == "persistence off":
        gpu = GpuIdentity(order["gpu"], order["gpu"])
        HostSmi(programs, host).set_persistence(gpu, on=False)
        made = Made((("persistent", str(HostSmi(programs, host).persistence(gpu))),))
    elif order["do"] == "undo":
        daemons.undo(hold, {hold: HoldRecord(HoldState.UNDOING, "boot", made)}, "boot")
    else:
        records: dict[Hold, HoldRecord] = {hold: HoldRecord(HoldState.MADE, "boot", made)} if made.facts else {}
        made = daemons.make(hold, records)
    sys.stdout.write(json.dumps(made.facts) + "\n")
    sys.stdout.flush()
    if order["do"] == "make and stay":
        os.read(0, 1)


if __name__ == "__main__":
    main()
