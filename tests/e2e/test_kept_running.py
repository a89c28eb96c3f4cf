"""`dractl cluster`: who kills one of its programs sees it come back, and the cluster goes on."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.places import SHORT

from dra_driver import bundled
from dra_driver.api.meta import PODS, RESOURCE_CLAIM_TEMPLATES
from dra_driver.kube.client import Kube, endpoint_from

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="programs are found as children of who forks them"
)


def until[T](look: Callable[[], T], what: str, limit_s: float = 60.0) -> T:
    deadline = time.monotonic() + limit_s
    while not (value := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return value


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def a_pod_runs(kubeconfig: Path) -> None:
    template, pod = yaml.safe_load_all((bundled.FEATURES_FOLDER / "one-gpu" / "one-gpu.yaml").read_text())
    async with Kube(endpoint_from(kubeconfig)) as kube:
        await kube.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
        await kube.create(PODS, pod, namespace="default")
        for _ in range(600):
            if (await kube.get(PODS, "one-gpu", "default")).get("status", {}).get("phase") == "Running":
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the pod does not run")


@pytest.mark.slow
def test_a_plugin_that_is_killed_is_started_again_and_prepares_claims() -> None:
    with tempfile.TemporaryDirectory(dir=SHORT) as place:
        folder, printed = Path(place), Path(place) / "said"
        command = [sys.executable, "-m", "dra_driver.cli", "cluster", "--nodes", "t4", "--publisher", "node"]
        with printed.open("w") as out:
            running = subprocess.Popen([*command, "--folder", place], stdout=out, stderr=out)
        try:
            until(lambda: "Ctrl-C ends it" in printed.read_text(), "the cluster does not run", 90)
            (forks,) = children(running.pid)
            (plugin,) = children(forks)
            os.kill(plugin, signal.SIGKILL)
            until(lambda: children(forks) not in ([], [plugin]), "it is not started again")
            asyncio.run(a_pod_runs(folder / "kubeconfig"))
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
        finally:
            running.kill()
            running.wait()
        (line,) = [line for line in " ".join(printed.read_text().split()).split(" plugin of ") if "SIGKILL" in line]
        assert line.startswith("node t4-1 was ended by SIGKILL; it is started again now. Its log: ")
