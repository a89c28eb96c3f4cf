"""MPS daemons of a simulated node: real processes, killed and found again."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.mps import QUICK, Client, effect_for, identity, no_daemons_left, processes_below, record, until

from dra_driver.errors import DriverError, HardwareError, InvalidInput, NodeNotReady
from kubelet_plugin.effects.mps import MARK, MpsDaemons, devices_of, half_of, tmpfs_options
from kubelet_plugin.effects.mps_process import MOST_BYTES
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.hardware.host_programs import MarkedProcess, Processes
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MpsDaemon,
    UnknownHold,
)
from kubelet_plugin.simulation.host import SimulatedHost, create_host

_NOTHING = Made()


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return create_host(tmp_path / "host", "l40s")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "state").mkdir()
    folder = tmp_path / "state" / "mps"
    with no_daemons_left(folder):
        yield folder


@pytest.fixture
def effect(host: SimulatedHost, folder: Path) -> MpsDaemons:
    return effect_for(host, folder)


@pytest.fixture
def hold(host: SimulatedHost) -> MpsDaemon:
    return MpsDaemon("claim-a", (identity(host, 1),))


def _undone(effect: MpsDaemons, hold: MpsDaemon, made: Made) -> None:
    effect.undo(hold, {hold: record(made, HoldState.UNDOING)}, "boot-1")


def _pid(made: Made) -> int:
    return int(made["pid"])


def test_the_logs_of_a_daemon_that_lives_long_are_cut_while_it_writes_on(effect: MpsDaemons, hold: MpsDaemon) -> None:
    made = effect.make(hold, {})
    log = Path(str(made.get("log"))) / "control.log"
    with log.open("a") as daemon:
        daemon.write("a line of the daemon\n" * 100_000)
    assert effect.look(hold).answers
    assert log.stat().st_size < MOST_BYTES
    assert (log.parent / "control.log.1").stat().st_size <= MOST_BYTES
    _undone(effect, hold, made)


def test_what_was_never_started_does_not_stand(effect: MpsDaemons) -> None:
    assert not effect.stands(Made())
    assert not effect.stands(Made((("pid", str(os.getpid())),)))


def test_a_daemon_serves_its_claims_and_leaves_nothing(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    assert effect.before(hold, {}) == Made()
    assert not folder.exists()
    assert effect.sweep(list) == () and effect.left(hold) == ()
    made = effect.make(hold, {})
    assert effect.left(hold) == (f"process {made['pid']}", f"folder {folder}/claim-a")
    client = Client(host, made["pipe"])
    assert client.granted["devices"] == [hold.gpus[0].uuid]
    assert (made["launcher"], made["pipe"], made["shm"]) == ("plain", f"{folder}/claim-a/pipe", f"{folder}/claim-a/shm")
    assert client.end() == 0
    _undone(effect, hold, made)
    assert processes_below(folder) == ()
    assert list(folder.iterdir()) == []
    _undone(effect, hold, made)


def test_clients_get_the_limits_of_the_hold_and_may_take_less(
    host: SimulatedHost, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    uuid = hold.gpus[0].uuid
    hold = replace(hold, thread_percentage=40, memory_limits=((uuid, (8 << 30) - 1),))
    made = effect.make(hold, {})
    client = Client(host, made["pipe"])
    assert (client.granted["threads"], client.granted["memory"]) == (40.0, {uuid: 8 << 30})
    less = Client(
        host,
        made["pipe"],
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M"},
    )
    assert (less.granted["threads"], less.granted["memory"]) == (10.0, {uuid: 1 << 30})
    assert (client.end(), less.end()) == (0, 0)


def test_folders_are_open_to_the_users_of_all_clients(effect: MpsDaemons, hold: MpsDaemon) -> None:
    before = os.umask(0o077)
    try:
        made = effect.make(hold, {})
    finally:
        os.umask(before)
    assert Path(made["pipe"]).parent.stat().st_mode & 0o7777 == 0o755
    assert [Path(made[name]).stat().st_mode & 0o7777 for name in ("pipe", "log")] == [0o1777, 0o1777]


def test_a_restarted_plugin_finds_the_daemon_and_starts_no_second(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    client = Client(host, made["pipe"])
    again = effect_for(host, folder)
    assert again.make(hold, {hold: record(made)}) == made
    # Killed before the journal had it: all that is known is the intent.
    remade = effect_for(host, folder).make(hold, {hold: record(_NOTHING, HoldState.INTENT)})
    assert (remade["pid"], remade["started"], remade["pipe"]) == (made["pid"], made["started"], made["pipe"])
    assert client.process.poll() is None and client.end() == 0


def test_a_dead_daemon_is_started_anew_in_the_folders_that_containers_have(
    host: SimulatedHost, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    inode = Path(made["pipe"]).stat().st_ino
    os.kill(_pid(made), signal.SIGKILL)
    until(lambda: not effect.look(hold).processes)
    assert Path(made["pipe"], "control").exists(), "a stale socket is what a killed daemon leaves"
    again = effect.make(hold, {hold: record(made)})
    assert again["pid"] != made["pid"]
    assert Path(made["pipe"]).stat().st_ino == inode
    assert Client(host, made["pipe"]).end() == 0


def test_while_clients_compute_without_their_daemon_nothing_is_touched(
    host: SimulatedHost, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    client = Client(host, made["pipe"])
    os.kill(_pid(made), signal.SIGKILL)
    until(lambda: not effect.look(hold).answers)
    with pytest.raises(NodeNotReady, match=rf"process {client.granted['server']} still runs"):
        effect.make(hold, {hold: record(made)})
    assert client.process.poll() is None
    assert client.end() == 0
    until(lambda: not effect.look(hold).processes)
    again = effect.make(hold, {hold: record(made)})
    assert Client(host, again["pipe"]).end() == 0


def test_releasing_ends_servers_that_outlived_their_daemon(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    client = Client(host, made["pipe"])
    os.kill(_pid(made), signal.SIGKILL)
    _undone(effect, hold, made)
    assert "server died" in client.died()
    assert processes_below(folder) == () and list(folder.iterdir()) == []


def test_a_daemon_that_does_not_end_is_killed(folder: Path, host: SimulatedHost, hold: MpsDaemon) -> None:
    made = effect_for(host, folder).make(hold, {})
    os.kill(_pid(made), signal.SIGSTOP)
    _undone(effect_for(host, folder, replace(QUICK, answer_s=0.3, quit_s=0.1)), hold, made)
    assert processes_below(folder) == () and list(folder.iterdir()) == []


class _Deaf(OnHost):
    """Signals reach nothing, as a process that waits in the kernel."""

    def signal(self, process: MarkedProcess, number: int) -> None:
        pass


def test_while_a_process_cannot_be_killed_nothing_is_given_back(
    folder: Path, host: SimulatedHost, hold: MpsDaemon
) -> None:
    impatient = replace(QUICK, answer_s=0.1, quit_s=0.05, signal_s=0.05)
    effect = effect_for(host, folder)
    made = effect.make(hold, {})
    os.kill(_pid(made), signal.SIGSTOP)
    deaf = effect_for(host, folder, impatient, _Deaf(HostFiles(host.root), Processes(Path("/proc")), None))
    with pytest.raises(NodeNotReady, match=f"process {made['pid']} does not end although it was killed"):
        _undone(deaf, hold, made)
    assert Path(made["pipe"]).exists()


def test_a_daemon_that_is_asked_often_costs_no_descriptors(effect: MpsDaemons, hold: MpsDaemon) -> None:
    effect.make(hold, {})
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert effect.look(hold).answers
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_daemon_without_a_pipe_folder_does_not_answer(effect: MpsDaemons, hold: MpsDaemon) -> None:
    with pytest.raises(HardwareError, match="it has no pipe folder: No such file"):
        effect.asked(hold, "get_server_list")


def test_a_daemon_that_does_not_listen_yet_has_refused_nothing(
    host: SimulatedHost, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    program = host.root / "usr/bin/nvidia-cuda-mps-control"
    real = program.with_suffix(".real")
    program.rename(real)
    socket = '"$CUDA_MPS_PIPE_DIRECTORY/control"'
    slow = f'if [ "$1" = -f ]; then touch {socket}; sleep 0.3; rm {socket}; fi'
    program.write_text(f'#!/bin/sh\n{slow}\nexec {real} "$@"\n')
    program.chmod(0o755)
    assert "pid" in dict(effect.make(replace(hold, thread_percentage=40), {}).facts)


class _Mounts(OnHost):
    """Remembers what was unmounted while it was there."""

    unmounted: tuple[tuple[str, bool], ...] = ()

    def unmount(self, path: Path) -> None:
        self.unmounted += ((str(path), path.exists()),)


def test_what_was_mounted_is_unmounted_before_its_folder_goes(
    host: SimulatedHost, folder: Path, hold: MpsDaemon
) -> None:
    on_host = _Mounts(HostFiles(host.root), Processes(Path("/proc")), None)
    effect = effect_for(host, folder, QUICK, on_host)
    made = effect.make(hold, {})
    _undone(effect, hold, made)
    assert on_host.unmounted == ((made["pipe"], True), (made["shm"], True))


def test_what_containers_leave_in_the_pipe_folder_keeps_no_daemon_from_starting(
    folder: Path, effect: MpsDaemons, hold: MpsDaemon, tmp_path: Path
) -> None:
    made = effect.make(hold, {})
    os.kill(_pid(made), signal.SIGKILL)
    until(lambda: not processes_below(folder))
    precious = tmp_path / "precious"
    precious.write_text("of the node")
    pipe = Path(made["pipe"])
    (pipe / "control").unlink(missing_ok=True)
    (pipe / "control/deep").mkdir(parents=True)
    (pipe / "link").symlink_to(precious.parent)
    again = effect.make(hold, {hold: record(made)})
    assert effect.look(hold).answers and not (pipe / "link").is_symlink()
    assert precious.read_text() == "of the node"
    _undone(effect, hold, again)


class _Confined(OnHost):
    """SELinux is on."""

    @property
    def confined(self) -> bool:
        return True


@pytest.mark.parametrize("labels", [True, False], ids=["labels", "no labels"])
def test_under_selinux_containers_may_use_the_folders(
    host: SimulatedHost, folder: Path, hold: MpsDaemon, labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, str, bytes]] = []

    def setxattr(path: Path, name: str, value: bytes) -> None:
        given.append((path.name, name, value))
        if not labels:
            raise OSError(errno.ENOTSUP, "Not supported")

    monkeypatch.setattr(os, "setxattr", setxattr)
    on_host = _Confined(HostFiles(host.root), Processes(Path("/proc")), None)
    effect_for(host, folder, QUICK, on_host).make(hold, {})
    label = b"system_u:object_r:container_file_t:s0\0"
    assert given == [(name, "security.selinux", label) for name in ("pipe", "log")]


def test_folders_that_cannot_be_removed_are_an_error(
    effect: MpsDaemons, hold: MpsDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = effect.make(hold, {})

    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patched:
        patched.setattr("kubelet_plugin.effects.mps.shutil.rmtree", busy)
        with pytest.raises(NodeNotReady, match="claim-a: cannot be removed: Device or resource busy"):
            _undone(effect, hold, made)
    _undone(effect, hold, made)


def test_after_a_reboot_the_daemon_is_started_again_in_clean_folders(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    host.reboot()
    until(lambda: not processes_below(folder))
    Path(made["pipe"], "control").touch()
    Path(made["pipe"], "stale").touch()
    again = effect_for(host, folder).make(hold, {hold: record(made)})
    assert Client(host, again["pipe"]).end() == 0
    assert not Path(made["pipe"], "stale").exists()


def test_after_a_reboot_a_claim_that_is_gone_leaves_nothing(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    host.reboot()
    until(lambda: not processes_below(folder))
    effect_for(host, folder).undo(hold, {hold: record(made)}, "boot-2")
    assert list(folder.iterdir()) == []


def test_a_daemon_for_other_devices_makes_way_for_the_one_that_is_wanted(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    other = replace(hold, gpus=(identity(host, 2),))
    again = effect.make(other, {other: record(made)})
    assert again["pid"] != made["pid"]
    client = Client(host, again["pipe"])
    assert client.granted["devices"] == [identity(host, 2).uuid]
    assert client.end() == 0


def test_multi_user_reaches_the_daemon(folder: Path, effect: MpsDaemons, hold: MpsDaemon) -> None:
    effect.make(replace(hold, multi_user=True), {})
    (process,) = processes_below(folder)
    assert b"-M" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")


def test_a_daemon_serves_a_mig_device_that_was_made_for_the_claim(host: SimulatedHost) -> None:
    gpu = identity(host)
    mig = ComputeInstance(GpuInstance(gpu, "1g.10gb", 19, 0, 1))
    hold = MpsDaemon("claim-a", (gpu,), mig=mig)
    records = {mig: HoldRecord(HoldState.MADE, "boot-1", Made((("uuid", "MIG-1"),)))}
    assert devices_of(hold, records) == ("MIG-1",)
    assert devices_of(replace(hold, mig="MIG-2"), {}) == ("MIG-2",)
    with pytest.raises(NodeNotReady, match="has not been made"):
        devices_of(hold, {})


def test_clients_of_a_mig_device_get_that_and_its_limit(tmp_path: Path, folder: Path) -> None:
    host = create_host(tmp_path / "divided", "dgx-h100")
    host.set_mig(0, 1)
    (uuid,) = host.make_instance(0, "1g.10gb", 0)
    hold = MpsDaemon("claim-a", (identity(host),), mig=uuid, memory_limits=(("mig", 2 << 30),))
    made = effect_for(host, folder).make(hold, {})
    client = Client(host, made["pipe"])
    assert (client.granted["devices"], client.granted["memory"]) == ([uuid], {uuid: 2 << 30})
    assert client.end() == 0


def test_a_daemon_that_ends_at_once_says_why_and_leaves_nothing(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    program = host.root / "usr/bin/nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\necho 'Cannot bind a socket: no space' >&2\nexit 1\n")
    with pytest.raises(NodeNotReady, match=r"MPS daemon claim-a: ended at once; its log ends: Cannot bind a socket"):
        effect.make(hold, {})
    assert list(folder.iterdir()) == []


class _Late(Processes):
    """Shows nothing of new processes for a second, as Linux on a busy machine while execve(2) makes them."""

    def __init__(self) -> None:
        super().__init__(Path("/proc"))
        self._until = time.monotonic() + 1.0

    def marked(self, variable: str) -> tuple[MarkedProcess, ...]:
        return super().marked(variable) if time.monotonic() > self._until else ()


def test_a_daemon_that_does_not_show_its_environment_yet_has_not_ended(
    host: SimulatedHost, folder: Path, hold: MpsDaemon
) -> None:
    program = host.root / "usr/bin/nvidia-cuda-mps-control"
    real = program.with_name("real")
    program.rename(real)
    program.write_text(f'#!/bin/sh\n[ "$1" = -f ] && sleep 0.3\nexec {real} "$@"\n')
    program.chmod(0o755)
    effect = effect_for(host, folder, on_host=OnHost(HostFiles(host.root), _Late(), None))
    made = effect.make(hold, {})
    assert effect_for(host, folder).look(hold).answers
    assert Path(made["shm"]).is_dir()


def test_one_that_never_shows_it_and_fails_is_stopped_all_the_same(
    host: SimulatedHost, folder: Path, hold: MpsDaemon, tmp_path: Path
) -> None:
    program = host.root / "usr/bin/nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    on_host = OnHost(HostFiles(host.root), _Late(), None)
    effect = effect_for(host, folder, replace(QUICK, start_s=0.5, signal_s=0.5), on_host)
    with pytest.raises(NodeNotReady, match="does not answer"):
        effect.make(hold, {})
    assert processes_below(folder) == () and list(folder.iterdir()) == []


def test_a_daemon_whose_folders_are_not_all_there_is_not_taken_for_the_claims(
    folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    """One of an attempt that was given up, and that made its folders by itself."""
    first = effect.make(hold, {})
    Path(first["shm"]).rmdir()
    second = effect.make(hold, {})
    assert _pid(second) != _pid(first)
    assert Path(second["shm"]).is_dir()
    assert [process.pid for process in processes_below(folder)] == [_pid(second)]


def test_a_daemon_that_never_answers_is_stopped(host: SimulatedHost, folder: Path, hold: MpsDaemon) -> None:
    program = host.root / "usr/bin/nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    effect = effect_for(host, folder, replace(QUICK, start_s=0.2, signal_s=0.5))
    with pytest.raises(NodeNotReady, match=r"does not answer 0.2 s after its start"):
        effect.make(hold, {})
    assert processes_below(folder) == () and list(folder.iterdir()) == []


def test_a_daemon_that_refuses_its_limits_is_stopped(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    wrong = replace(hold, memory_limits=((identity(host, 2).uuid, 1 << 30),))
    with pytest.raises(NodeNotReady, match=r"refuses its limits: .* no such device"):
        effect.make(wrong, {})
    assert processes_below(folder) == () and list(folder.iterdir()) == []


def _quiet(host: SimulatedHost, answer: str = "") -> None:
    """A control program whose status is always good; `answer` instead of what the daemon says of its threads."""
    program = host.root / "usr/bin/nvidia-cuda-mps-control"
    real = program.with_suffix(".real")
    program.rename(real)
    command = f"echo {answer}" if answer else f'{real} "$@"'
    program.write_text(f'#!/bin/sh\nif [ "$1" = -f ]; then exec {real} "$@"; fi\n{command}\nexit 0\n')
    program.chmod(0o755)


def test_a_refusal_is_heard_whatever_the_programs_status(host: SimulatedHost, folder: Path, hold: MpsDaemon) -> None:
    _quiet(host)
    wrong = replace(hold, memory_limits=((identity(host, 2).uuid, 1 << 30),))
    with pytest.raises(NodeNotReady, match=r"refuses its limits: Failed: .* no such device"):
        effect_for(host, folder).make(wrong, {})
    assert processes_below(folder) == ()


def test_a_daemon_that_does_not_have_the_percentage_it_was_told_is_stopped(
    host: SimulatedHost, folder: Path, hold: MpsDaemon
) -> None:
    _quiet(host, "100.0")
    with pytest.raises(NodeNotReady, match=r"was set to 40 percent of threads, but reports 100\.0"):
        effect_for(host, folder).make(replace(hold, thread_percentage=40), {})
    assert processes_below(folder) == ()


@pytest.mark.parametrize(
    "wrong", [{"key": "../claim"}, {"key": ""}, {"thread_percentage": 0}, {"memory_limits": (("GPU-1", 0),)}]
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    effect: MpsDaemons, folder: Path, hold: MpsDaemon, wrong: dict[str, object]
) -> None:
    for refused in (effect.before, effect.make):
        with pytest.raises(InvalidInput):
            refused(replace(hold, **wrong), {})
    assert not folder.exists()


def test_a_driver_without_mps_says_so(host: SimulatedHost, effect: MpsDaemons, hold: MpsDaemon) -> None:
    (host.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    with pytest.raises(NodeNotReady, match="nvidia-cuda-mps-control is in none of"):
        effect.before(hold, {})


def test_a_folder_that_cannot_be_made_says_whose_move_it_is(host: SimulatedHost, folder: Path, hold: MpsDaemon) -> None:
    folder.write_text("")
    with pytest.raises(NodeNotReady, match="needs its state folder writable"):
        effect_for(host, folder).make(hold, {})


def test_daemons_of_several_claims_do_not_know_each_other(
    host: SimulatedHost, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    other = MpsDaemon("claim-b", (identity(host, 2),))
    made = {daemon: effect.make(daemon, {}) for daemon in (hold, other)}
    _undone(effect, hold, made[hold])
    assert Client(host, made[other]["pipe"]).end() == 0


def test_what_no_record_speaks_of_is_swept_away(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    made = effect.make(hold, {})
    effect.make(MpsDaemon("claim-b", (identity(host, 2),)), {})
    (folder / "claim-c" / "log").mkdir(parents=True)
    done = effect_for(host, folder).sweep(lambda: [hold])
    assert [line.split()[2] for line in done] == ["claim-b", "claim-c"]
    assert [entry.name for entry in folder.iterdir()] == ["claim-a"]
    assert [process.pid for process in processes_below(folder)] == [_pid(made)]
    assert effect_for(host, folder).sweep(lambda: [hold]) == ()


@pytest.mark.parametrize("key", ["..", ".", "../../precious", "claim-a/..", ""])
def test_a_process_that_pretends_to_be_a_daemon_leads_the_sweep_nowhere(
    folder: Path, effect: MpsDaemons, key: str
) -> None:
    """A pod sets the variables of its containers, and the sweep removes folders with the rights of root."""
    folder.mkdir(parents=True, exist_ok=True)
    precious = folder.parent / "claims.journal"
    precious.write_text("of all claims")
    with subprocess.Popen(["/bin/sleep", "60"], env={MARK: f"{folder}/{key}#0"}) as process:
        try:
            assert effect.sweep(list) == ()
            assert process.poll() is None
        finally:
            process.kill()
    assert precious.read_text() == "of all claims"


def test_a_daemon_that_cannot_be_swept_away_keeps_no_other(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("claim-b", "claim-c"):
        effect.make(MpsDaemon(key, (identity(host, 2),)), {})
    sweeping, clear = effect_for(host, folder), MpsDaemons._clear

    def refusing(self: MpsDaemons, place: Any) -> None:
        if place.folder.name == "claim-b":
            raise NodeNotReady("cannot be unmounted", about="folder claim-b")
        clear(self, place)

    monkeypatch.setattr(MpsDaemons, "_clear", refusing)
    with pytest.raises(NodeNotReady, match="folder claim-b: cannot be unmounted"):
        sweeping.sweep(list)
    assert [entry.name for entry in folder.iterdir()] == ["claim-b"]
    assert processes_below(folder) == ()


def test_what_cannot_be_told_to_be_nobodys_is_not_swept_away(folder: Path, effect: MpsDaemons, hold: MpsDaemon) -> None:
    effect.make(hold, {})

    def unreadable() -> list[Hold]:
        raise NodeNotReady("claims may be missing")

    with pytest.raises(NodeNotReady):
        effect.sweep(unreadable)
    newer = UnknownHold("mps-daemon", '{"kind":"mps-daemon","key":"claim-a","colour":"green"}')
    assert effect.sweep(lambda: [newer]) == ()
    assert len(processes_below(folder)) == 1
    assert len(effect.sweep(list)) == 1


def test_a_daemon_whose_folder_was_removed_is_swept_away(
    host: SimulatedHost, tmp_path: Path, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    effect.make(hold, {})
    (folder / "claim-a").rename(tmp_path / "elsewhere")
    assert len(effect.sweep(list)) == 1
    assert processes_below(folder) == ()


def test_the_shared_memory_may_be_half_of_the_machines() -> None:
    assert half_of("MemTotal:       16384 kB\nMemFree: 1 kB") == 8 << 20
    assert half_of(None) == 64 << 20
    assert tmpfs_options(8 << 20, confined=False) == f"mode=1777,size={8 << 20}"
    assert 'context="system_u:object_r:container_file_t:s0"' in tmpfs_options(8 << 20, confined=True)


def test_errors_name_the_daemon() -> None:
    with pytest.raises(DriverError) as caught:
        devices_of(MpsDaemon("k", (), mig=ComputeInstance(GpuInstance(GpuIdentity("GPU", "0"), "p", 0, 0, 1))), {})
    assert str(caught.value).startswith("MPS daemon k: ")


def test_a_daemon_is_stopped_while_the_drivers_programs_are_gone(
    host: SimulatedHost, folder: Path, effect: MpsDaemons, hold: MpsDaemon
) -> None:
    """As while a driver is replaced: a claim must be released without it."""
    made = effect.make(hold, {})
    (host.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    sight = effect.look(hold)
    assert not sight.answers and sight.processes
    _undone(effect, hold, made)
    assert processes_below(folder) == ()
    assert list(folder.iterdir()) == []


def test_a_daemon_has_its_own_memory_and_is_asked_to_quit_before_it_is_ended(
    effect: MpsDaemons, hold: MpsDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted: list[Path] = []
    monkeypatch.setattr(effect._host, "mount_tmpfs", lambda path, options: mounted.append(path))
    made = effect.make(hold, {})
    assert [path.name for path in mounted] == ["pipe", "shm"]
    asked: list[str] = []
    ask = effect._ask

    def noting(place: Any, about: str, *commands: str) -> Any:
        asked.extend(commands)
        return ask(place, about, *commands)

    monkeypatch.setattr(effect, "_ask", noting)
    _undone(effect, hold, made)
    assert asked == [f"quit -t {QUICK.quit_s:g}"]
