"""The nodes of a real cluster, where there are several of them on one machine; see tests/e2e.

GPU_DRA_TEST_NODE   a command that is given two words, of which the second is a node's name. The first is
    root            it prints the folder through which that node's files are seen, be they there or not
    stop-kubelet    its kubelet is killed, and stays so until
    start-kubelet
    lose            all that runs there ends, as if its power went, and its files are gone; not asked of the first node
    join            an empty machine comes under that name
Tests that need two nodes skip where there is one, or no such command.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from support.real_cluster import get, until

COMMAND = os.environ.get("GPU_DRA_TEST_NODE", "")


def names() -> tuple[str, ...]:
    return tuple(sorted(node["metadata"]["name"] for node in get("nodes")["items"]))


def two() -> tuple[str, str]:
    """The first two; the test is skipped where there are not so many."""
    known = names()
    if len(known) < 2:
        pytest.skip("the real cluster has one node, and this is about two")
    if not COMMAND:
        pytest.skip("no way to the nodes' files and kubelets: set GPU_DRA_TEST_NODE")
    return known[0], known[1]


@cache
def root(node: str) -> Path:
    """Of its files. Links of it that begin with a slash lead to the root of this process."""
    return Path(_run("root", node)) if COMMAND and len(names()) > 1 else Path("/")


def kubelet_root(node: str) -> Path:
    return root(node) / "var/lib/kubelet"


def cdi_root(node: str) -> Path:
    return root(node) / "run/cdi"


def stop_kubelet(node: str) -> None:
    _run("stop-kubelet", node)


def start_kubelet(node: str) -> None:
    _run("start-kubelet", node)


def lose(node: str) -> None:
    root.cache_clear()
    _run("lose", node)


def join(node: str) -> None:
    _run("join", node)
    until(lambda: is_ready(node), f"{node} is ready")


def is_ready(node: str) -> bool:
    conditions = get("node", node)["status"].get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _run(word: str, node: str) -> str:
    done = subprocess.run([*shlex.split(COMMAND), word, node], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{word} {node}: {done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def processes(node: str, program: str) -> Sequence[int]:
    """Of containers of pods of that node, whose command line has a word that ends like this."""
    listed = get("pods", "-A", "--field-selector", f"spec.nodeName={node}")["items"]
    statuses = [status for pod in listed for status in pod["status"].get("containerStatuses", ())]
    containers = {status.get("containerID", "").rpartition("/")[2] for status in statuses} - {""}
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            groups = (folder / "cgroup").read_text()
        except OSError:
            continue
        if any(word.endswith(program.encode()) for word in words) and any(
            container in groups for container in containers
        ):
            pids.append(int(folder.name))
    return pids


def kill(node: str, program: str) -> None:
    """SIGKILL to all of these, as soon as there is one."""
    until(lambda: processes(node, program), f"{program} runs on {node}")
    for pid in processes(node, program):
        os.kill(pid, signal.SIGKILL)
