"""`dractl gpus`: release the GPUs of this node for a reset, take them back, and say who has them open.

Runs on the node, as root: in the plugin's pod (`kubectl exec`) or on the host itself. It asks the plugin by a file in
the plugin's folder, which is at the same path in both; see `kubelet_plugin.facts.release`. The command line finds it
through the entry point group `gpu_dra.commands`.
"""

import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import InvalidInput, NodeNotReady, UnreadableFile
from dra_driver.runtime.files import read_if_present, remove, write_durably
from dra_driver.terminal import HostRootOption, Status, print_message
from kubelet_plugin.facts.release import REQUEST, STATE, ReleaseRequest, ReleaseState
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.hardware.vfio import users

_FOR = re.compile(r"(?P<number>[1-9]\d{0,4})(?P<unit>[smh])")
_UNITS = {"s": 1, "m": 60, "h": 3600}
_GPU_NODE = re.compile(r"nvidia\d+")
_POLL_S = 0.2
_HERE = NodePlaces()

KubeletRootOption = Annotated[
    Path,
    typer.Option(
        "--kubelet-root", readable=False, help="The kubelet's folder, the same on the host and in the plugin's pod."
    ),
]
DriverOption = Annotated[
    str, typer.Option("--driver-name", help="Driver name, as in the plugin's setting `--driver-name`.")
]
PatienceOption = Annotated[
    float, typer.Option("--patience", metavar="SECONDS", min=0.0, help="How long to wait for the plugin.")
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def gpus() -> None:
    """Close the GPUs of this node for a reset, a MIG tool or a new driver, and open them again.

    \b
    Examples:
      dractl gpus release --for 10m
      dractl gpus resume
    """


@app.command()
def release(
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="When the plugin opens the GPUs again by itself: after 90s, 30m, 2h.",
            show_default="30m",
        ),
    ] = None,
    until_resumed: Annotated[
        bool,
        typer.Option(
            "--until-resumed", help="Keep them closed until `dractl gpus resume`, even across restarts and reboots."
        ),
    ] = False,
    host_root: HostRootOption = _HERE.host_root,
    kubelet_root: KubeletRootOption = _HERE.kubelet_root,
    driver_name: DriverOption = _HERE.driver,
    patience_s: PatienceOption = 60.0,
) -> None:
    """Make the plugin close all GPUs of this node, and wait until it has.

    No claim is prepared until they are opened again.

    \b
    Examples:
      dractl gpus release --for 2h
    """
    if until_resumed and for_ is not None:
        raise InvalidInput("use one of them: with --until-resumed no time ends the release", about="--for")
    folder = _folder(kubelet_root, driver_name)
    until = None if until_resumed else datetime.now(UTC).replace(microsecond=0) + _duration(for_ or "30m")
    request = ReleaseRequest(until=until)
    write_durably(folder / REQUEST, request.model_dump_json(exclude_none=True).encode() + b"\n", mode=0o600)
    deadline = time.monotonic() + patience_s
    while (state := _state(folder)) is None or (state.source == "file" and state.until != until):
        if time.monotonic() >= deadline:
            _print_users(host_root)
            raise NodeNotReady(
                f"has not confirmed for {patience_s:g} s that it closed the GPUs. If it runs, see its log; if it does"
                " not, it has none of them open. The request stays in force; `dractl gpus resume` withdraws it",
                about="the node plugin",
            )
        time.sleep(_POLL_S)
    print_message(state.release.message)
    _print_users(host_root)


@app.command()
def resume(
    kubelet_root: KubeletRootOption = _HERE.kubelet_root,
    driver_name: DriverOption = _HERE.driver,
    patience_s: PatienceOption = 60.0,
) -> None:
    """Take the GPUs back; claims are prepared again.

    \b
    Examples:
      dractl gpus resume
    """
    folder = _folder(kubelet_root, driver_name)
    remove(folder / REQUEST)
    deadline = time.monotonic() + patience_s
    while (state := _state(folder)) is not None and state.source == "file":
        if time.monotonic() >= deadline:
            raise NodeNotReady(
                f"has not opened the GPUs again for {patience_s:g} s; it does so as soon as it runs",
                about="the node plugin",
            )
        time.sleep(_POLL_S)
    print_message("The plugin uses the GPUs again." if state is None else state.release.message)
    if state is not None:
        raise SystemExit(Status.NO)


@app.command()
def status(
    host_root: HostRootOption = _HERE.host_root,
    kubelet_root: KubeletRootOption = _HERE.kubelet_root,
    driver_name: DriverOption = _HERE.driver,
) -> None:
    """Whether the GPUs are released, and who has them open. The exit status is 1 while they are not released.

    \b
    Examples:
      dractl gpus status
    """
    state = _state(_folder(kubelet_root, driver_name))
    print_message("The GPUs are not released." if state is None else state.release.message)
    _print_users(host_root)
    if state is None:
        raise SystemExit(Status.NO)


def _folder(kubelet_root: Path, driver_name: str) -> Path:
    folder = NodePlaces(kubelet_root=kubelet_root, driver=driver_name).state_dir
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise UnreadableFile(
            "does not exist or is not writable; run this on the node, as root, with the plugin's --kubelet-root",
            about=str(folder),
        )
    return folder


def _duration(text: str) -> timedelta:
    match = _FOR.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text!r} is not a time such as 90s, 30m or 2h", about="--for")
    return timedelta(seconds=int(match["number"]) * _UNITS[match["unit"]])


def _state(folder: Path) -> ReleaseState | None:
    content = read_if_present(folder / STATE)
    try:
        state = None if content is None else ReleaseState.model_validate_json(content)
    except ValidationError as error:
        raise NodeNotReady("is not what the plugin writes; restart it", about=f"file {folder / STATE}") from error
    return None if state is None or state.release.is_over(datetime.now(UTC)) else state


def _print_users(host_root: Path) -> None:
    """Programs that may be in the way: what the kernel shows of who has a GPU open."""
    host = HostFiles(host_root)
    nodes = [name for name in host.names("/dev") if _GPU_NODE.fullmatch(name)]
    listed = ", ".join(str(user) for user in users(host, nodes))
    print_message(
        f"Open by: {listed}. nvidia-persistenced closes a GPU when nvidia-smi resets it; the others must end first."
        if listed
        else "No process has a GPU open."
    )
