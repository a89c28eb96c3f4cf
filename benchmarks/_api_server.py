"""An API server for one measurement: a real one if KUBEBUILDER_ASSETS names its programs, else the simulated one.
GPU_DRA_BENCH_APISERVER are more flags of the real one.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import real_api_server

SIMULATED = Path(__file__).with_name("_simulated_api_server.py")
"""Runs the simulated API server alone."""


FLAGS = os.environ.get("GPU_DRA_BENCH_APISERVER", "").split()


def version() -> str:
    """Of the API server that is started, with its more flags: `v1.36.2`, or `simulated`."""
    if not os.environ.get(real_api_server.ASSETS):
        return "simulated"
    program = real_api_server.assets_folder() / "kube-apiserver"
    number = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    return " ".join((number, *FLAGS))


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[Path]:
    """A fresh API server in a process of its own; answers its kubeconfig."""
    kubeconfig = folder / "kubeconfig"
    if os.environ.get(real_api_server.ASSETS):
        start = partial(real_api_server.start, real_api_server.assets_folder(), folder / "server", flags=FLAGS)
        server = await asyncio.to_thread(start)
        real_api_server.write_kubeconfig(server, kubeconfig)
        try:
            yield kubeconfig
        finally:
            await asyncio.to_thread(server.stop)
        return
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, SIMULATED, "--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield kubeconfig
    finally:
        process.terminate()
        await process.wait()
