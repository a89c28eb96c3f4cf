"""A program of its own that does on the host what the plugin's container cannot: mount, start, run.

`kubelet_plugin.effects.on_host` starts it, for one order each, which is a JSON object as its only argument. A process
with one thread can go over to the host's namespaces (setns) where the plugin, which has many, cannot; and what it
starts there belongs to the host: it has left the container's namespaces and cgroups, so it outlives the container.
No program of the host is needed for that, not even a shell. Standard library only, so that it starts at once.
"""

import contextlib
import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

_NAMESPACES = ("cgroup", "ipc", "uts", "net", "mnt")
"""Not the PID namespace: a process can only join one that is below its own."""

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_MNT_DETACH = 2
_RELATIME = 1 << 21
_NO_OOM = -900
"""Clients die with their server, so it should not be among the first."""

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: Sequence[str]) -> int:
    order: dict[str, Any] = json.loads(arguments[0])
    doers: Mapping[str, Callable[[dict[str, Any]], object]] = {
        "mount": _mount_tmpfs,
        "unmount": lambda order: unmount(order["path"]),
        "start": _start,
        "run": _run,
    }
    try:
        if "output" in order:  # its path here, which is another one in the namespaces
            order["output"] = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        _enter(order.get("namespaces"))
        answer = doers[order["do"]](order)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}: {error.filename}\n" if error.filename else f"{error.strerror or error}\n")
        return 1
    if answer is not None:
        sys.stdout.write(f"{json.dumps(answer)}\n")
    return 0


def _enter(folder: str | None) -> None:
    """Go over to the namespaces of the process whose /proc/<pid>/ns `folder` is, to its root; stay if that is None."""
    if folder is None:
        return
    opened = [os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _NAMESPACES]
    for fd in opened:
        os.setns(fd)


def _mount_tmpfs(order: dict[str, Any]) -> None:
    """A tmpfs at `path`; one that is mounted there already is emptied: containers may have it."""
    path = order["path"]
    if os.path.ismount(path):
        for entry in os.scandir(path):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
        return
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _RELATIME
    _mount("tmpfs", path, "tmpfs", flags, order["options"])


def unmount(path: str) -> None:
    """Everything that is mounted at `path`, one over the other; a path that is gone has nothing. Raises OSError."""
    while not _libc.umount2(os.fsencode(path), _MNT_DETACH):
        pass
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOENT):
        raise OSError(code, os.strerror(code), path)


def _run(order: dict[str, Any]) -> NoReturn:
    """A program of the host, or of the system below `root`, in place of this one."""
    _go_below(order["root"])
    os.execve(order["words"][0], order["words"], order["environment"])


def _start(order: dict[str, Any]) -> dict[str, int]:
    """Start a detached process; answers once it runs the program. Raises OSError when it could not."""
    answers, answer = os.pipe()
    if os.fork() == 0:
        _become(order, answer)
    os.close(answer)
    with os.fdopen(answers, encoding="utf-8") as stream:
        pid, ended, failure = stream.read().partition("\n")
    if failure or not ended:
        raise OSError(failure or pid or "the process ended before it ran the program")
    return {"pid": int(pid)}


def _become(order: dict[str, Any], answer: int) -> NoReturn:
    """Become the program. Answers with a line that has the PID, and after a failure with its reason.

    The program inherits no other descriptors of this process.
    """
    try:
        os.setsid()
        if order["cgroup"]:
            _leave_cgroup(order["cgroup"])
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(str(_NO_OOM))
        # Of /proc as it is here: the number that the host knows this process by.
        os.write(answer, f"{os.readlink('/proc/self')}\n".encode())
        _arrange(order)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, wanted in ((nothing, 0), (order["output"], 1), (order["output"], 2)):
            os.dup2(fd, wanted)
        os.umask(0)
        os.execve(order["words"][0], order["words"], order["environment"])
    except OSError as error:
        os.write(answer, f"{error.strerror}: {error.filename}".encode())
    os._exit(1)


def _leave_cgroup(folder: str) -> None:
    """To the root of every cgroup hierarchy below `folder`, or of the only one.

    A runtime that ends a container kills what is in the container's cgroup.
    """
    unified = os.path.exists(f"{folder}/cgroup.procs")
    hierarchies = [folder] if unified else [entry.path for entry in os.scandir(folder) if entry.is_dir()]
    for path in hierarchies:
        with contextlib.suppress(FileNotFoundError), open(f"{path}/cgroup.procs", "w", encoding="utf-8") as file:
            file.write("0")


def _arrange(order: dict[str, Any]) -> None:
    """Mounts that this process alone sees, and its root."""
    root: str = order["root"]
    if order["binds"]:
        os.unshare(os.CLONE_NEWNS)
        _mount("none", "/", None, _MS_REC | _MS_SLAVE, None)
        # Opened before anything is mounted over them.
        sources = [(os.open(source, os.O_PATH | os.O_DIRECTORY), target) for source, target in order["binds"]]
        for folder in order["tmpfs"]:
            _mount("tmpfs", root + folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777,size=16m")
        for source, target in sources:
            os.makedirs(root + target, exist_ok=True)
            _mount(f"/proc/self/fd/{source}", root + target, None, _MS_BIND, None)
    _go_below(root)


def _go_below(root: str) -> None:
    """Into the system that lies at `root`; stay when that is empty."""
    if root:
        os.chroot(root)
        os.chdir("/")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    def text(value: str | None) -> bytes | None:
        return value.encode() if value is not None else None

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
