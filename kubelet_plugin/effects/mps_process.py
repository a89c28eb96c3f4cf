"""The process of an MPS daemon: how it is started on the host, as a unit of systemd or without, and its logs.

`kubelet_plugin.effects.mps` enters here: `launch` starts a daemon so that it outlives the plugin, and `bound_logs`
keeps the logs small whenever a daemon is checked. Nothing else rotates them, and a daemon keeps its files open while it
runs.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from dra_driver.devices.mps import LOG_VARIABLE, PIPE_IN_CONTAINER, PIPE_VARIABLE
from dra_driver.errors import NodeNotReady
from kubelet_plugin.effects.on_host import OnHost, Start
from kubelet_plugin.hardware.driver_programs import DriverProgram

_log = structlog.get_logger(__name__)

_PRIVATE = "/tmp"
_LOG = "/tmp/nvidia-mps-log"
_SHM = "/dev/shm"
_SYSTEMD_RUN: Sequence[str] = ("/usr/bin/systemd-run", "/bin/systemd-run", "/run/current-system/sw/bin/systemd-run")
_STOP_S = 10


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A daemon to be started. `environment` is what it needs besides its folders and the driver's libraries."""

    unit: str
    """Of systemd, without its ending: unique on the host."""
    about: str
    program: DriverProgram
    words: Sequence[str]
    environment: Mapping[str, str]
    pipe: Path
    log: Path
    shm: Path

    @property
    def output(self) -> Path:
        return self.log / "daemon.log"


def plain_start(daemon: DaemonProcess, *, isolated: bool) -> Start:
    """The process as `OnHost` starts it; on a simulated node (not isolated) with its folders where they are."""
    if not isolated:
        folders = {PIPE_VARIABLE: str(daemon.pipe), LOG_VARIABLE: str(daemon.log)}
        words = (str(daemon.program.file), *daemon.words)
        return Start(words, {**daemon.program.host_environment, **folders, **daemon.environment}, daemon.output)
    return Start(
        words=(daemon.program.path_inside, *daemon.words),
        environment=_environment(daemon),
        output=daemon.output,
        root=daemon.program.chroot,
        tmpfs=(_PRIVATE,),
        binds=_binds(daemon),
    )


def systemd_words(systemd_run: str, daemon: DaemonProcess) -> tuple[str, ...]:
    """`systemd-run` with all that the unit needs. Source: systemd.exec(5), systemd-run(1); properties of v240."""
    root = daemon.program.chroot
    properties = {
        "KillMode": "control-group",
        "TimeoutStopSec": str(_STOP_S),
        "OOMScoreAdjust": "-900",
        "StandardOutput": f"append:{daemon.output}",
        "StandardError": f"append:{daemon.output}",
        "TemporaryFileSystem": _PRIVATE,
        "BindPaths": " ".join(f"{source}:{target}" for source, target in _binds(daemon)),
        **({"RootDirectory": root} if root else {}),
    }
    return (
        systemd_run,
        f"--unit={daemon.unit}",
        f"--description={daemon.about}",
        "--service-type=exec",
        "--collect",
        "--quiet",
        "--no-ask-password",
        *(f"--property={name}={value}" for name, value in properties.items()),
        *(f"--setenv={name}={value}" for name, value in _environment(daemon).items()),
        daemon.program.path_inside,
        *daemon.words,
    )


def launch(host: OnHost, daemon: DaemonProcess) -> Mapping[str, str]:
    """Facts for the journal: `launcher`, and `unit` or `pid`. Raises NodeNotReady, and then nothing runs.

    A transient unit of systemd, which an administrator sees among the others. Where systemd does not run the host,
    where that fails, or where SELinux is on: a process in a session of its own, out of the container's namespaces and
    cgroups.

    With SELinux, containers may connect to a process of the host only if its type is `spc_t`. A process alone has the
    type of the plugin, which is that one for privileged containers. A unit has `unconfined_service_t`, and no property
    changes that: the policy lets systemd (`init_t`) start nothing as `spc_t`. Source: container.te and init.te of
    container-selinux and Fedora's selinux-policy.
    """
    systemd_run = _systemd_run(host)
    if systemd_run is not None:
        try:
            host.run(systemd_words(systemd_run, daemon), daemon.about)
        except NodeNotReady as error:
            _log.warning("systemd did not start it; it is started without", daemon=daemon.about, error=str(error))
        else:
            return {"launcher": "systemd", "unit": f"{daemon.unit}.service"}
    pid = host.start(plain_start(daemon, isolated=host.isolates), daemon.about)
    return {"launcher": "plain", "pid": str(pid)}


def _systemd_run(host: OnHost) -> str | None:
    """Its host path; None where systemd is not to be used. Source: sd_booted(3)."""
    if not host.isolates or host.confined or host.files.resolve("/run/systemd/system") is None:
        return None
    return next((path for path in _SYSTEMD_RUN if host.files.resolve(path) is not None), None)


def _environment(daemon: DaemonProcess) -> dict[str, str]:
    folders = {PIPE_VARIABLE: PIPE_IN_CONTAINER, LOG_VARIABLE: _LOG}
    return {**daemon.program.host_environment, **folders, **daemon.environment}


def _binds(daemon: DaemonProcess) -> tuple[tuple[str, str], ...]:
    return ((str(daemon.pipe), PIPE_IN_CONTAINER), (str(daemon.log), _LOG), (str(daemon.shm), _SHM))


MOST_BYTES = 1 << 20
"""Of one log, and as much again for what was before."""

_OLD = ".1"
_BLOCK_BYTES = 512


def bound_logs(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Empty each log of `folder` that takes more than `most_bytes` on the disk; its end goes to a file with `.1`.

    In place, because the daemon continues to write to its open file. If it does not append, the file then has a hole at
    the beginning, so blocks count and not the size. Servers run as the pods' users, so no link is followed.
    """
    with suppress(OSError):
        for path in folder.glob("*.log"):
            with suppress(OSError):
                _bound(path, most_bytes)


def _bound(path: Path, most_bytes: int) -> None:
    log = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(log)
        if not stat.S_ISREG(status.st_mode) or status.st_blocks * _BLOCK_BYTES <= most_bytes:
            return
        end = os.pread(log, most_bytes, max(status.st_size - most_bytes, 0))
        old = path.with_name(path.name + _OLD)
        old.unlink(missing_ok=True)
        copy = os.open(old, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(copy, end)
        finally:
            os.close(copy)
        os.ftruncate(log, 0)
    finally:
        os.close(log)
