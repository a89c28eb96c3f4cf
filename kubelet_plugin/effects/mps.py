"""MPS control daemons: one for each set of claims that share GPUs or a MIG device, with folders of its own.

Prepare enters here through the port of `kubelet_plugin.prepare.holds`, the watch (`kubelet_plugin.effects.mps_watch`)
and start-up (`sweep`) beside it. A daemon belongs to the node, not to the plugin's process: it keeps running when that
process ends, and is found again by the mark in its environment. Its files on the disk, below `<folder>/<key>`:

    pipe   sockets of daemon and servers, in a small tmpfs: containers see it as /tmp/nvidia-mps, and what they write on
           the node's disk would count for no pod
    shm    a tmpfs that clients and servers share; containers see it as /dev/shm
    log    what daemon and servers log, bounded (`kubelet_plugin.effects.mps_process`)

Clients depend on their server: when it dies, so do they. A dead daemon is restarted only when none of its servers is
left, so that claims that still compute are not disturbed. Calls block; starting takes a fraction of a second.
"""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dra_driver.devices.mps import PIPE_VARIABLE, default_commands
from dra_driver.errors import HardwareError, InvalidInput, NodeNotReady
from kubelet_plugin.effects.mps_process import DaemonProcess, bound_logs, launch
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.hardware.driver_programs import DriverPrograms, run_program, said_by
from kubelet_plugin.hardware.host_programs import MarkedProcess
from kubelet_plugin.prepare.holds import Hold, HoldState, Made, MpsDaemon, Records, UnknownHold

CONTROL = "nvidia-cuda-mps-control"

MARK = "GPU_DRA_MPS"
"""Variable in the environment of a daemon and its servers: the daemon's folder, and a digest of its configuration."""

_KEY = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_COMPLAINT = re.compile(r"\b(invalid|illegal|fail|error|cannot|unable|unknown|denied|not|out of)", re.IGNORECASE)
"""Words in the daemon's output when it refuses a command; its exit status does not show that. If it accepts the
command, it prints nothing, or repeats the value."""

_NUMBER = re.compile(r"\d+(\.\d+)?")

_LABEL = "system_u:object_r:container_file_t:s0"
"""What containers may use under SELinux."""
_SHM_IF_UNKNOWN = 64 << 20
_PIPE_BYTES, _PIPE_FILES = 16 << 20, 4096
"""Limits of a pipe folder: it has some sockets and small files, and each container that has it can write there."""
_TAIL_LINES = 5
_SOCKET_S = 1.0
"""How long a daemon takes to make its socket, at most. After that it is asked whether there is one or not."""


@dataclass(frozen=True, slots=True)
class MpsPatience:
    """Seconds: for a daemon to answer after its start, to a question, to let its servers end, and for a signal."""

    start_s: float = 20.0
    answer_s: float = 10.0
    quit_s: float = 5.0
    signal_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be seen of a daemon: whether it answers, and its processes and its servers', oldest first."""

    answers: bool
    processes: tuple[MarkedProcess, ...]


class MpsDaemons:
    """Starts and stops daemons. `folder` has the same path on the host, in this process, and in containers' mounts."""

    def __init__(
        self,
        folder: Path,
        host: OnHost,
        programs: DriverPrograms,
        patience: MpsPatience = MpsPatience(),
    ) -> None:
        self._folder = folder
        self._host = host
        self._programs = programs
        self._patience = patience

    def before(self, hold: MpsDaemon, records: Records) -> Made:
        """Nothing to remember. Raises NodeNotReady when the driver has no MPS, InvalidInput for impossible limits."""
        _checked(hold)
        self._programs.find(CONTROL)
        return Made()

    def make(self, hold: MpsDaemon, records: Records) -> Made:
        """A daemon that answers and has the hold's defaults: the one that runs, or a new one in clean folders.

        Raises NodeNotReady with what the daemon said last; then nothing of it is left. Of a daemon that was made and
        whose servers still run without it, nothing is touched, and that is said.
        """
        _checked(hold)
        place = _Place(self._folder / hold.key)
        devices = devices_of(hold, records)
        mark = f"{place.folder}#{_digest(hold, devices)}"
        processes, record = self._processes(place), records.get(hold)
        made = record is not None and record.state is HoldState.MADE
        if processes and all(process.mark == mark for process in processes) and (made or place.is_complete):
            try:
                self._tell(hold, place)
                return _made(place, processes, record.made if record is not None else Made())
            except _NoDaemon as error:
                if made:
                    raise NodeNotReady(left_alone(processes), about=_about(hold)) from error
        # What is there otherwise is of an attempt that was cut short, or was for other devices.
        self._end(processes, _about(hold))
        # Containers have the folders of a daemon that was made.
        return self._start(hold, place, devices, mark, keep=made)

    def undo(self, hold: MpsDaemon, records: Records, boot_id: str) -> None:
        """Stop the daemon and its servers, unmount, and remove its folders. Raises NodeNotReady when some stays."""
        place = _Place(self._folder / hold.key)
        processes = self._processes(place)
        if processes:
            with suppress(HardwareError):  # one that does not hear is ended below
                self._ask(place, _about(hold), f"quit -t {self._patience.quit_s:g}")
            self._end(self._waited(processes, self._patience.quit_s), _about(hold))
        self._clear(place)

    def processes(self) -> tuple[MarkedProcess, ...]:
        """Those of all daemons, for `look`. It reads the environment of each process of the node."""
        return self._host.processes.marked(MARK)

    def look(self, hold: MpsDaemon, seen: Sequence[MarkedProcess] = ()) -> Sight:
        """Whether its daemon answers now, and which processes there are. Its logs are cut if they have become long.

        `seen` is what `processes` returned a moment ago; if its daemon is among them and answers, it is not searched.
        """
        place = _Place(self._folder / hold.key)
        bound_logs(place.log)
        known = _of(place, seen)
        if known and self._answers(place, _about(hold)):
            return Sight(True, known)
        processes = self._processes(place)
        return Sight(bool(processes) and not known and self._answers(place, _about(hold)), processes)

    def asked(self, hold: MpsDaemon, command: str) -> str:
        """What its daemon answers to a control command. Raises HardwareError when it does not answer, or refuses."""
        return self._ask(_Place(self._folder / hold.key), _about(hold), command)

    def left(self, hold: MpsDaemon) -> tuple[str, ...]:
        """What there is of it: processes and its folder, in words; empty after `undo`."""
        place = _Place(self._folder / hold.key)
        processes = tuple(f"process {process.pid}" for process in self._processes(place))
        return (*processes, *((f"folder {place.folder}",) if place.folder.exists() else ()))

    def stands(self, made: Made) -> bool:
        """Whether the process that was made is still there; cheap, and no word on whether it answers."""
        pid, started = made.get("pid"), made.get("started")
        if pid is None or started is None:
            return False
        return self._host.processes.runs(MarkedProcess(int(started), int(pid), mark=""))

    def sweep(self, records: Callable[[], Iterable[Hold]]) -> tuple[str, ...]:
        """Remove daemons, and folders below the driver's folder, that no record names. Returns what it removed.

        Any process can have our variable, with any text, so a mark counts only if `make` could have written it.
        `records` is called after the folders were listed, because the intent is written before a daemon is made. If it
        raises, the error is passed on and nothing is removed. Raises NodeNotReady for the first daemon that cannot be
        removed, when all others are.
        """
        try:
            folders = {entry.name for entry in self._folder.iterdir()}
        except OSError:
            folders = set()
        marks = {Path(_folder_of(process)).name for process in self.processes() if self._is_one_of_ours(process)}
        done = []
        failure: NodeNotReady | None = None
        for key in unowned(folders | marks, tuple(records())):
            place = _Place(self._folder / key)
            try:
                self._end(self._processes(place), f"MPS daemon {key}")
                self._clear(place)
            except NodeNotReady as error:
                failure = failure or error
            else:
                done.append(f"MPS daemon {key} belonged to no claim; it was stopped, and its folders removed")
        if failure is not None:
            raise failure
        return tuple(done)

    def _start(self, hold: MpsDaemon, place: "_Place", devices: tuple[str, ...], mark: str, *, keep: bool) -> Made:
        about = _about(hold)
        program = self._programs.find(CONTROL)
        self._prepare(place)
        daemon = DaemonProcess(
            unit=f"gpu-dra-mps-{hold.key}",
            about=about,
            program=program,
            words=("-f", *(("-M",) if hold.multi_user else ())),
            environment={"CUDA_VISIBLE_DEVICES": ",".join(devices), MARK: mark},
            pipe=place.pipe,
            log=place.log,
            shm=place.shm,
        )
        launched: tuple[MarkedProcess, ...] = ()
        try:
            facts = launch(self._host, daemon)
            launched = self._launched(facts, mark)
            self._await(hold, place, launched)
        except (NodeNotReady, InvalidInput) as error:
            log_end = place.tail()
            self._end(tuple({*launched, *self._processes(place)}), about)
            if not keep:
                self._clear(place)
            message = f"{error.message}; its log ends: {log_end}" if log_end else error.message
            raise type(error)(message, about=about) from error
        return _made(place, self._processes(place), Made(tuple(facts.items())))

    def _launched(self, facts: Mapping[str, str], mark: str) -> tuple[MarkedProcess, ...]:
        """The process that a launcher names, unless it has ended. It may not show its environment yet."""
        pid = facts.get("pid")
        process = self._host.processes.known_by(int(pid), mark) if pid is not None else None
        return (process,) if process is not None else ()

    def _await(self, hold: MpsDaemon, place: "_Place", launched: tuple[MarkedProcess, ...]) -> None:
        """Until it has the defaults. A daemon that ends, or refuses them, is not waited for. Raises NodeNotReady."""
        begun = time.monotonic()
        deadline = begun + self._patience.start_s
        while True:
            # Asking starts a process, so wait for the daemon's socket first.
            if place.control.exists() or time.monotonic() > begun + _SOCKET_S:
                try:
                    return self._tell(hold, place)
                except _NoDaemon as error:
                    failure = error
            else:
                failure = _NoDaemon("it has made no socket", about=_about(hold))
            if time.monotonic() > deadline:
                raise NodeNotReady(
                    f"does not answer {self._patience.start_s:g} s after its start ({failure.message})",
                    about=_about(hold),
                ) from failure
            runs = any(self._host.processes.runs(process) for process in launched) or self._processes(place)
            if not place.control.exists() and not runs:
                raise NodeNotReady("ended at once", about=_about(hold)) from failure
            time.sleep(0.01 if time.monotonic() < begun + _SOCKET_S else 0.2)

    def _tell(self, hold: MpsDaemon, place: "_Place") -> None:
        """Give it its defaults, and see that it has them. Raises NodeNotReady when it refuses, or is not there."""
        limits = tuple((_NAMES.get(device, device), amount) for device, amount in hold.memory_limits)
        percent = hold.thread_percentage
        commands = default_commands(percent, limits)
        try:
            answer = self._ask(place, _about(hold), *commands, _PROBE)
        except _NoDaemon:
            # The program's exit status does not distinguish "no daemon" from "refused". A daemon that answers now may
            # have begun to listen since, so it gets the commands again.
            if not commands or not self._answers(place, _about(hold)):
                raise
            try:
                answer = self._ask(place, _about(hold), *commands, _PROBE)
            except _NoDaemon as error:
                raise NodeNotReady(f"refuses its limits: {error.message}", about=_about(hold)) from error
        lines = [line.strip() for line in answer.splitlines() if line.strip()]
        complaints = [line for line in lines if _COMPLAINT.search(line)]
        if complaints:
            raise NodeNotReady(f"refuses its limits: {' '.join(complaints)}", about=_about(hold))
        has = lines[-1] if lines else "nothing"
        if percent is not None and (not _NUMBER.fullmatch(has) or float(has) != percent):
            raise NodeNotReady(f"was set to {percent} percent of threads, but reports {has}", about=_about(hold))

    def _answers(self, place: "_Place", about: str) -> bool:
        try:
            self._ask(place, about, _PROBE)
        except _NoDaemon:
            return False
        return True

    def _ask(self, place: "_Place", about: str, *commands: str) -> str:
        """What the daemon answers. Raises _NoDaemon when there is none, or it refuses."""
        try:
            fd = os.open(place.pipe, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _NoDaemon(f"it has no pipe folder: {error.strerror}", about=about) from error
        try:
            # A socket's path may have 107 characters, and that of our folder takes most of them.
            environment = {PIPE_VARIABLE: f"/proc/self/fd/{fd}"}
            program = self._programs.find(CONTROL)
            text = "".join(f"{command}\n" for command in commands)
            return run_program(
                program,
                (),
                about=about,
                asked=text,
                environment=environment,
                passed=(fd,),
                timeout_s=self._patience.answer_s,
            )
        except NodeNotReady as error:
            # Also while the driver's programs are not there: it is being replaced below a daemon that still runs.
            raise _NoDaemon(error.message, about=about) from error
        finally:
            os.close(fd)

    def _end(self, processes: tuple[MarkedProcess, ...], about: str) -> None:
        """Terminate, then kill, and wait until none is left. Raises NodeNotReady when one stays."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                self._host.signal(process, number)
            processes = self._waited(processes, self._patience.signal_s)
        if processes:
            pids = ", ".join(str(process.pid) for process in processes)
            raise NodeNotReady(
                f"process {pids} does not end although it was killed: it waits in the kernel for the driver; see the"
                " kernel log, and reboot the node if it stays",
                about=about,
            )

    def _waited(self, processes: tuple[MarkedProcess, ...], seconds: float) -> tuple[MarkedProcess, ...]:
        """Those that still run after at most `seconds`."""
        deadline = time.monotonic() + seconds
        while (running := tuple(filter(self._host.processes.runs, processes))) and time.monotonic() < deadline:
            time.sleep(0.01)
        return running

    def _processes(self, place: "_Place") -> tuple[MarkedProcess, ...]:
        return _of(place, self.processes())

    def _is_one_of_ours(self, process: MarkedProcess) -> bool:
        folder = Path(_folder_of(process))
        # `..` is below the folder, too, and leads out of it.
        return folder.parent == self._folder and _KEY.fullmatch(folder.name) is not None

    def _prepare(self, place: "_Place") -> None:
        """Clean folders and an empty tmpfs. Keeps the old log for diagnosis. Raises NodeNotReady.

        The folders themselves stay when they are there: containers that have them mounted find the new daemon in them.
        """
        try:
            self._folder.mkdir(mode=0o755, exist_ok=True)
            for folder in (place.folder, place.pipe, place.log, place.shm):
                folder.mkdir(exist_ok=True)
            place.folder.chmod(0o755)
            # Servers run as the users of their clients.
            for folder in (place.pipe, place.log):
                folder.chmod(0o1777)
            self._mount_pipe(place)
            for left in place.pipe.iterdir():
                _remove(left)
        except OSError as error:
            raise NodeNotReady(
                f"cannot be made: {error.strerror}; the plugin needs its state folder writable, at the path that it"
                " has on the host",
                about=f"folder {place.folder}",
            ) from error
        confined = self._host.confined
        if confined:
            for folder in (place.pipe, place.log):
                with suppress(OSError):  # a file system that takes no labels
                    os.setxattr(folder, "security.selinux", _LABEL.encode() + b"\0")
        memory = self._host.files.read_text("/proc/meminfo")
        self._host.mount_tmpfs(place.shm, tmpfs_options(half_of(memory), confined=confined))

    def _mount_pipe(self, place: "_Place") -> None:
        """Containers whose daemon an earlier release started in this boot have the folder on the disk; it stays."""
        if place.shm.is_mount() and not place.pipe.is_mount():
            return
        options = tmpfs_options(_PIPE_BYTES, confined=self._host.confined)
        self._host.mount_tmpfs(place.pipe, f"{options},nr_inodes={_PIPE_FILES}")
        if self._host.isolates and not place.pipe.is_mount():
            # The host's mounts do not appear here (its root is a private mount), so the socket would not, either.
            self._host.unmount(place.pipe)

    def _clear(self, place: "_Place") -> None:
        self._host.unmount(place.pipe)
        self._host.unmount(place.shm)
        try:
            shutil.rmtree(place.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise NodeNotReady(f"cannot be removed: {error.strerror}", about=f"folder {place.folder}") from error


class _NoDaemon(HardwareError):
    """No daemon in the pipe folder answers and accepts the commands."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The folders of one daemon."""

    folder: Path

    @property
    def pipe(self) -> Path:
        return self.folder / "pipe"

    @property
    def shm(self) -> Path:
        return self.folder / "shm"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def control(self) -> Path:
        return self.pipe / "control"

    @property
    def is_complete(self) -> bool:
        """Whether all that containers mount is there."""
        return all(folder.is_dir() for folder in (self.pipe, self.shm, self.log))

    def tail(self) -> str:
        """The last words of the daemon."""
        lines: list[str] = []
        for name in ("daemon.log", "control.log"):
            with suppress(OSError):
                lines += (self.log / name).read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return said_by(*lines)


_PROBE = "get_default_active_thread_percentage"
_NAMES = {"mig": "0"}
"""The one device of a daemon for a MIG device, by its number."""


def devices_of(hold: MpsDaemon, records: Records) -> tuple[str, ...]:
    """The UUIDs that the daemon serves, in the order in which it numbers them.

    Raises NodeNotReady when its MIG device has not been made.
    """
    if hold.mig is None:
        return tuple(gpu.uuid for gpu in hold.gpus)
    if isinstance(hold.mig, str):
        return (hold.mig,)
    record = records.get(hold.mig)
    uuid = record.made.get("uuid") if record is not None else None
    if uuid is None:
        raise NodeNotReady("its MIG device has not been made", about=_about(hold))
    return (uuid,)


def half_of(meminfo: str | None) -> int:
    """Bytes of the tmpfs that clients share: half of the memory at most, as /dev/shm has it.

    `meminfo` is /proc/meminfo; None: as much as a container's /dev/shm has by default.
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo or "", re.MULTILINE)
    return int(match[1]) * 1024 // 2 if match is not None else _SHM_IF_UNKNOWN


def tmpfs_options(size_bytes: int, *, confined: bool) -> str:
    """Of a tmpfs in which all users may write."""
    return f"mode=1777,size={size_bytes}" + (f',context="{_LABEL}"' if confined else "")


def _remove(left: Path) -> None:
    """What a daemon or a container left in a folder; no link is followed."""
    if left.is_dir() and not left.is_symlink():
        shutil.rmtree(left)
    else:
        left.unlink()


def unowned(keys: Collection[str], holds: Collection[Hold]) -> list[str]:
    """The keys of daemons that no hold names, sorted. A hold of a newer release names all that its text has."""
    owned = {hold.key for hold in holds if isinstance(hold, MpsDaemon)}
    unknown = "\n".join(hold.text for hold in holds if isinstance(hold, UnknownHold))
    return sorted(key for key in keys if key not in owned and key not in unknown)


def _checked(hold: MpsDaemon) -> None:
    """Raises InvalidInput for a key that is no name of a folder, or limits that MPS does not have."""
    if not _KEY.fullmatch(hold.key):
        raise InvalidInput("is not a DNS label, so it cannot name folders", about=f"MPS daemon {hold.key!r}")
    default_commands(hold.thread_percentage, hold.memory_limits)


def _digest(hold: MpsDaemon, devices: tuple[str, ...]) -> str:
    """Digest of the settings that cannot be changed while the daemon runs."""
    return sha256(repr((devices, hold.multi_user)).encode()).hexdigest()[:16]


def _of(place: "_Place", processes: Iterable[MarkedProcess]) -> tuple[MarkedProcess, ...]:
    return tuple(process for process in processes if _folder_of(process) == str(place.folder))


def _folder_of(process: MarkedProcess) -> str:
    return process.mark.rpartition("#")[0]


def _about(hold: MpsDaemon) -> str:
    return f"MPS daemon {hold.key}"


def _made(place: _Place, processes: tuple[MarkedProcess, ...], launched: Made) -> Made:
    facts = {"pipe": str(place.pipe), "shm": str(place.shm), "log": str(place.log)}
    facts |= {name: value for name in ("launcher", "unit") if (value := launched.get(name)) is not None}
    if processes:
        facts |= {"pid": str(processes[0].pid), "started": str(processes[0].started)}
    return Made(tuple(sorted(facts.items())))


def left_alone(processes: tuple[MarkedProcess, ...]) -> str:
    """Why a daemon that does not answer is not restarted."""
    pids = ", ".join(str(process.pid) for process in processes)
    return (
        f"does not answer, and its process {pids} still runs: programs that compute continue, others cannot start. It"
        " is restarted when that process ends; delete the pods that use it, or end the process"
    )
