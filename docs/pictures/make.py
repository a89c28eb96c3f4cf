"""Draws docs/pictures/ui.png: `dractl ui` on a simulated cluster that runs some of the examples, in a real browser.

PYTHONPATH=.:tests .venv/bin/python docs/pictures/make.py
"""

import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from support.browser import browser

from dra_driver import bundled
from dra_driver.cli import scenario
from dra_driver.errors import DriverError
from dra_driver.simulation.cluster import SimulatedCluster

FILE = Path(__file__).with_name("ui.png")
PROFILES = ("dgx-h100", "t4", "l40s", "a30", "gb200")
EXAMPLES = ("one-gpu", "mig-on-demand", "shares-time-sliced", "time-slicing-one-claim", "compute-domain-two-trays")
FAULT = ("t4-1", "xid", "1", "79")
_WAIT_S = 60.0


async def main() -> None:
    nodes = [node for node in scenario.nodes_of(bundled.FEATURES_FOLDER) or () if node.profile in PROFILES]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, tempfile.TemporaryDirectory() as profile:
        async with SimulatedCluster.running(Path(folder), nodes) as cluster:
            for name in EXAMPLES:
                example = scenario.read_scenario(bundled.FEATURES_FOLDER / name)
                await scenario.apply(cluster.kube, example)
                with suppress(DriverError):
                    await scenario.wait_running(cluster, example, _WAIT_S)
            environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
            fault = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dra_driver.cli", "simulate", *FAULT, env=environment
            )
            await fault.wait()
            ui = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dra_driver.cli", "ui", "--port", "0"),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
            assert ui.stdout is not None
            address = (await ui.stdout.readline()).decode().strip()
            async with browser(Path(profile)) as page:
                await page.looks(width=1280, height=980, scheme="dark")
                await page.open(address)
                await page.until("document.querySelector('.gpu.unhealthy')")
                FILE.write_bytes(await page.picture())
            ui.terminate()
            await ui.wait()


if __name__ == "__main__":
    asyncio.run(main())
