"""nvidia-cuda-mps-control of a simulated node: the control daemon, its server, and the program that gives it commands.

With `-f` it is the daemon of its pipe directory: it holds a lock there, answers on a socket called `control`, and
starts a server when the first client comes. Without it, it reads commands from its standard input. The daemon ends when
its node reboots or its pipe directory is removed, as it would with the machine. A server is a process of its own, which
outlives the daemon while it has clients, and holds each client to its limits. A client is a connection: it ends with
the server. All processes of the simulation are one user, so `-M`, for several, changes nothing.
"""

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from kubelet_plugin.simulation.programs.node import RootedNode, connect, size_bytes, visible_devices

SOCKET = "control"
END = "\0"
_LOCK = "control_lock"
_PID_FILE = "nvidia-cuda-mps-control.pid"
_POLL_S = 0.2
_QUIT_S = 2.0
_SMALLEST_LIMIT = 1 << 20


class _Refused(Exception):
    pass


def main(arguments: Sequence[str]) -> int:
    root, *options = arguments
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if unknown := set(options) - {"-f", "-M"}:
        sys.stderr.write(f"Unknown option: {unknown.pop()}\n")
        return 1
    if "-f" not in options:
        return _commands(pipe)
    return _daemon(RootedNode(root), pipe, os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))


def _commands(pipe: str) -> int:
    status = 0
    try:
        with connected(pipe) as ask:
            for line in sys.stdin:
                if line.strip():
                    answer = ask(line.strip())
                    sys.stdout.write(answer)
                    status = 1 if answer.startswith("Failed") else status
    except OSError:
        sys.stderr.write(f"Cannot find MPS control daemon process in {pipe}\n")
        return 1
    return status


@contextmanager
def connected(pipe: str) -> Iterator[Callable[[str], str]]:
    """Ask the daemon of the directory `pipe`. Raises OSError when there is none."""
    with socket.socket(socket.AF_UNIX) as peer:
        connect(peer, f"{pipe}/{SOCKET}")
        stream = peer.makefile("rw", encoding="utf-8", newline="")

        def ask(line: str) -> str:
            stream.write(line + "\n")
            stream.flush()
            answer = ""
            while not answer.endswith(END):
                part = stream.read(1)
                if not part:
                    raise ConnectionResetError("the daemon went away")
                answer += part
            return answer[:-1]

        yield ask


def _daemon(node: RootedNode, pipe: str, log: str) -> int:
    os.umask(0)
    for folder in (pipe, log):
        os.makedirs(folder, exist_ok=True)
    os.chdir(pipe)
    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("An instance of this daemon is already running\n")
        return 1
    return _Daemon(node, pipe, log).run()


class _Limits(NamedTuple):
    """What a server is started with: percent of threads, bytes of memory by device, clients for each device."""

    threads: float
    memory: dict[str, int]
    most_clients: int


class _Daemon:
    def __init__(self, node: RootedNode, pipe: str, log: str) -> None:
        self._node = node
        self._pipe = pipe
        self._log_path = f"{log}/control.log"
        self._server_log = f"{log}/server.log"
        self._boots = node.boots()
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._server: int | None = None
        """Its process id, while it runs."""
        self._threads = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
        self._memory: dict[str, int] = {}
        self._commands: Mapping[str, Callable[..., str]] = {
            "get_server_list": lambda: f"{self._server}\n" if self._server is not None else "",
            "get_default_active_thread_percentage": lambda: f"{self._threads:.1f}\n",
            "set_default_active_thread_percentage": self._set_threads,
            "set_default_device_pinned_mem_limit": self._set_memory,
            "attach": self._attach,
        }

    def run(self) -> NoReturn:
        if os.path.exists(SOCKET):
            os.unlink(SOCKET)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(SOCKET)
        listener.listen(64)
        with open(_PID_FILE, "w", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        self._log(f"Starting control daemon using socket {self._pipe}/{SOCKET}")
        self._log("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" + self._pipe)
        peers: dict[socket.socket, str] = {}
        while self._stands():
            ready, _, _ = select.select([listener, *peers], [], [], _POLL_S)
            self._reap()
            for item in ready:
                if item is listener:
                    peers[listener.accept()[0]] = ""
                else:
                    self._read(item, peers)
        self._end(0.0)

    def _stands(self) -> bool:
        """The node runs, and this directory is still the one of that name."""
        try:
            here, there = os.stat("."), os.stat(self._pipe)
        except OSError:
            return False
        return here.st_ino == there.st_ino and self._node.boots() == self._boots

    def _read(self, peer: socket.socket, peers: dict[socket.socket, str]) -> None:
        try:
            data = peer.recv(65536).decode()
            *lines, peers[peer] = (peers[peer] + data).split("\n")
            for line in lines:
                peer.sendall((self._answer(line.split()) + END).encode())
                if line.startswith("quit"):
                    words = line.split()
                    self._end(float(words[2]) if words[1:2] == ["-t"] and len(words) > 2 else _QUIT_S)
        except OSError:
            data = ""
        if not data:
            del peers[peer]
            peer.close()

    def _answer(self, words: list[str]) -> str:
        if not words or words[0] == "quit":
            return ""
        command = self._commands.get(words[0])
        if command is None:
            return f"Failed: unknown command {words[0]}\n"
        try:
            return command(*words[1:])
        except (_Refused, TypeError, ValueError) as error:
            return f"Failed: {words[0]}: {error}\n"

    def _set_threads(self, percent: str) -> str:
        if not 0 < float(percent) <= 100:
            raise _Refused(f"{percent} is not a percentage above 0 and up to 100")
        self._threads = float(percent)
        return ""

    def _set_memory(self, device: str, size: str) -> str:
        amount = size_bytes(size)
        if amount is None or amount < _SMALLEST_LIMIT:
            raise _Refused(f"{size} is not a limit: at least 1M")
        self._memory[self._device(device)] = amount
        return ""

    def _device(self, word: str) -> str:
        devices = visible_devices(self._node.read(), self._visible)
        if word.isdecimal() and int(word) < len(devices):
            return devices[int(word)]
        if word not in devices:
            raise _Refused(f"no such device: {word}")
        return word

    def _has_clients(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                connect(peer, f"{self._pipe}/server-{self._server}")
                peer.sendall(b'{"list": true}\n')
                return bool(json.loads(peer.makefile().readline()))
        except (OSError, ValueError):
            return False

    def _attach(self) -> str:
        if self._server is None:
            try:
                self._start()
            except _Refused as error:
                self._log(f"Server failed to start: {error}")
                return json.dumps({"error": str(error)})
        return json.dumps({"socket": f"server-{self._server}", "server": self._server})

    def _start(self) -> None:
        """Its devices must be there: CUDA starts with none otherwise."""
        state = self._node.read()
        devices = visible_devices(state, self._visible)
        wanted = len([word for word in (self._visible or "").split(",") if word])
        if not state["driver"]["loaded"] or not devices or len(devices) < wanted:
            raise _Refused("MPS server failed to start: CUDA_ERROR_NO_DEVICE")
        limits = _Limits(threads=self._threads, memory=dict(self._memory), most_clients=_most_clients(state))
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _serve(self._node, self._pipe, self._server_log, devices, limits, self._boots, writer)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        self._server = pid
        self._log(f"Started server {pid}")

    def _reap(self) -> None:
        if self._server is not None and os.waitpid(self._server, os.WNOHANG)[0]:
            self._log(f"Server {self._server} exited")
            self._server = None

    def _end(self, patience_s: float) -> NoReturn:
        """The server is given `patience_s` to lose its clients, then it goes with them."""
        deadline = time.monotonic() + patience_s
        while self._server is not None and self._has_clients() and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._server is not None:
            os.kill(self._server, signal.SIGTERM)
            os.waitpid(self._server, 0)
        self._log("Exit")
        for name in (SOCKET, _PID_FILE):
            try:
                os.unlink(name)
            except OSError:
                continue
        os._exit(0)

    def _log(self, message: str) -> None:
        _append(self._log_path, "Control", message)


def _most_clients(state: dict[str, Any]) -> int:
    """For each device. Source: the MPS manual, "Client limits"; 60 since CUDA 13.1, and 16 before Volta."""
    if state["model"]["compute_capability"][0] < 7:
        return 16
    return 60 if state["driver"]["cuda"] >= 13010 else 48


def _serve(
    node: RootedNode, pipe: str, log: str, devices: list[str], limits: _Limits, boots: int, ready: int
) -> NoReturn:
    """Be the server, in a process that was forked for it. `ready` is written to when clients can come."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # The daemon's socket and lock must not outlive it in here.
    os.closerange(3, ready)
    os.closerange(ready + 1, 1024)
    daemon, name = os.getppid(), f"server-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(128)
    os.write(ready, b".")
    os.close(ready)
    _append(log, "Server", f"Creating server context on {len(devices)} devices")
    clients: dict[socket.socket, int] = {}
    while node.boots() == boots and os.path.exists(pipe) and (clients or os.getppid() == daemon):
        readable, _, _ = select.select([listener, *clients], [], [], _POLL_S)
        for item in readable:
            if item is listener:
                _admit(listener.accept()[0], clients, devices, limits, log)
            elif not item.recv(4096):
                _append(log, "Server", f"Client {clients.pop(item)} disconnected")
                item.close()
    os._exit(0)


def _admit(
    peer: socket.socket, clients: dict[socket.socket, int], devices: list[str], limits: _Limits, log: str
) -> None:
    peer.settimeout(1.0)
    try:
        asked = json.loads(peer.makefile().readline())
        if asked.get("list"):
            answer: Any = sorted(clients.values())
        elif len(clients) >= limits.most_clients:
            answer = {"error": f"the limit of {limits.most_clients} clients is reached"}
        else:
            answer = _granted(asked, devices, limits)
        peer.sendall(json.dumps(answer).encode() + b"\n")
    except (OSError, ValueError) as error:
        _append(log, "Server", f"Client refused: {error}")
        peer.close()
        return
    if isinstance(answer, list) or "error" in answer:
        peer.close()
        return
    peer.settimeout(None)
    clients[peer] = int(asked["pid"])
    _append(log, "Server", f"Client {asked['pid']} connected")


def _granted(asked: dict[str, Any], devices: list[str], limits: _Limits) -> dict[str, Any]:
    """A client may ask for less than the server's limits, never for more."""
    memory = dict(limits.memory)
    for part in filter(None, str(asked.get("memory") or "").split(",")):
        word, _, size = part.partition("=")
        device = devices[int(word)] if word.isdecimal() and int(word) < len(devices) else word
        amount = size_bytes(size)
        if device not in devices or amount is None:
            return {"error": f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: {part} is not <device>=<size>"}
        memory[device] = min(amount, memory.get(device, amount))
    threads = min(limits.threads, float(asked.get("threads") or 100.0))
    return {"server": os.getpid(), "devices": devices, "threads": threads, "memory": memory}


def _append(path: str, who: str, message: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"[{stamp}.000 {who} {os.getpid():5d}] {message}\n")
    except OSError:
        return
