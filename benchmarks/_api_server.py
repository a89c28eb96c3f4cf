"""A simulated API server for one measurement."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[Path]:
    """A fresh simulated API server in its own process; answers its kubeconfig."""
    kubeconfig = folder / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dra_driver.simulation.apiserver", "--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield kubeconfig
    finally:
        process.terminate()
        await process.wait()
