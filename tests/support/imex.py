"""IMEX daemons of a simulated node, as processes, each at a loopback address of its own."""

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubelet_plugin.imex.probe import ProbeFolder, config_text

IMEX, CONTROL = "usr/bin/nvidia-imex", "usr/bin/nvidia-imex-ctl"
CAPABILITY = "/dev/nvidia-caps/nvidia-cap0"


def addresses(count: int) -> list[str]:
    """That nobody else has: all daemons listen at the same port."""
    prefix = f"127.{random.randint(2, 254)}.{random.randint(0, 255)}"
    return [f"{prefix}.{number + 1}" for number in range(count)]


def until(true: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class ImexNode:
    """A place with its files, as the supervisor would write them; not a process yet."""

    def __init__(self, host: Path, folder: Path, address: str, names: Mapping[str, str]) -> None:
        """`names` are the hosts that are known at first, name to address."""
        self.host, self.place, self.address = host, ProbeFolder(folder), address
        self.hosts = folder / "hosts"
        folder.mkdir(parents=True)
        self.place.config.write_text(config_text(self.place, address))
        self.know(names)

    def know(self, names: Mapping[str, str]) -> None:
        self.hosts.write_text("".join(f"{address}\t{name}\n" for name, address in names.items()))

    def list_nodes(self, *names: str) -> None:
        self.place.nodes.write_text("".join(f"{name}\n" for name in names))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "GPU_DRA_HOSTS_FILE": str(self.hosts),
            "SIMULATED_DEVICES": f"/dev/nvidia0:{CAPABILITY}",
        }

    def refusal(self, **environment: str) -> str:
        """What the daemon says when it does not start."""
        done = subprocess.run(
            [self.host / IMEX, "-c", self.place.config],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        return done.stderr

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        log = self.place.folder / "log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [self.host / IMEX, "-c", self.place.config], env=self.environment, stdout=out, stderr=out
            )
        try:
            until(lambda: self.state() == "READY", f"{log.read_text()}")
            yield process
        finally:
            process.kill()
            process.wait()

    def control(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [self.host / CONTROL, *words], env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def state(self) -> str:
        return self.control("-c", str(self.place.config), "-q")[1].split("\n")[0]

    def domain(self) -> dict[str, Any]:
        status, text = self.control("-c", str(self.place.config), "-N", "-j")
        assert status == 0, text
        domain: dict[str, Any] = json.loads(text)
        return domain

    def connections(self) -> list[str]:
        """Of this daemon, to each node of the list."""
        (own,) = [node for node in self.domain()["nodes"].values() if node["local"]]
        return [connection["status"] for connection in own["connections"].values()]

    def log(self) -> str:
        return (self.place.folder / "log").read_text()
