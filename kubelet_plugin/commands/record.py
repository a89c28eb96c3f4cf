"""`dractl record`: one archive with everything read from this node, which anyone can replay with `--simulate FILE`.

The command line finds it through the entry point group `gpu_dra.commands`. It runs on the node, or in the plugin's pod
with the host's root mounted elsewhere, and changes nothing.
"""

import os
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import InvalidInput
from dra_driver.terminal import HostRootOption, print_message
from kubelet_plugin.recording.questions import Progress
from kubelet_plugin.recording.take import NodeRecorder
from kubelet_plugin.simulation.recorded.format import Record, write_record

_QUIET_S = 2.0
_SHOWN_NOTES = 10


def record(
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="Archive to write; default: gpu-dra-record-TIME.tar.gz in this folder.",
            show_default=False,
        ),
    ] = None,
    keep_names: Annotated[
        bool,
        typer.Option("--keep-names", help="Do not replace UUIDs, serial numbers, addresses and the machine's name."),
    ] = False,
    host_root: HostRootOption = Path("/"),
    driver_root: Annotated[
        str | None, typer.Option("--driver-root", help="Folder of the NVIDIA driver; default: search for it.")
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option("--simulate", metavar="PROFILE|FILE[:N]", help="Use simulated hardware below --host-root."),
    ] = None,
) -> None:
    """Record this node: every answer of NVML, sysfs, device nodes, names of the driver's files, versions.

    Must run as root. Changes nothing. Anyone can replay the file: dractl inventory --host FILE.

    \b
    Examples:
      dractl record --archive node.tar.gz
    """
    archive = archive or Path(f"gpu-dra-record-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    if os.path.lexists(archive):
        raise InvalidInput("exists already; name another one with --archive", about=f"file {archive}")
    if simulate is not None and host_root == Path("/"):
        raise InvalidInput("needs a folder for the simulated host: --host-root", about="--simulate")
    places = NodePlaces(host_root=host_root, driver_root=driver_root, simulate=simulate)
    made = NodeRecorder(places, patient()).record(release=version("gpu-dra-driver"), keep_names=keep_names)
    write_record(made, archive)
    for line in _summary(made, archive):
        print_message(line)


def patient() -> Progress:
    """Shows what is being done, from when it has taken longer than two seconds."""
    started = time.monotonic()

    def progress(text: str) -> None:
        if time.monotonic() - started > _QUIET_S:
            print_message(text)

    return progress


def _summary(made: Record, archive: Path) -> list[str]:
    hung = [call.function for call in made.calls if call.hung]
    notes, asked = made.about.notes, len(made.programs)
    return [
        f"{archive}: {len(made.calls)} answers of NVML, {len(made.files)} files, {asked} answers of programs",
        *(f"hung: {name}" for name in hung),
        *notes[:_SHOWN_NOTES],
        *([f"{len(notes) - _SHOWN_NOTES} more notes are in its record.json"] if len(notes) > _SHOWN_NOTES else []),
        f"names are {'kept' if made.about.names_kept else 'replaced'}; replay it: dractl inventory --host {archive}",
    ]
