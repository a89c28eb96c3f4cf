"""Draws docs/pictures/ui.png: `dractl ui` on a simulated cluster that runs some of the examples, in a real browser.

PYTHONPATH=.:tests .venv/bin/python docs/pictures/ui.py
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from support.browser import browser

from docs.pictures.top import running_examples, simulate
from dra_driver import bundled
from dra_driver.cli.simulated import scenario

FILE = Path(__file__).with_suffix(".png")
PROFILES = ("dgx-h100", "t4", "l40s", "a30", "gb200")
EXAMPLES = ("one-gpu", "mig-on-demand", "shares-time-sliced", "time-slicing-one-claim", "compute-domain-two-trays")


async def main() -> None:
    nodes = [node for node in scenario.nodes_of(bundled.FEATURES_FOLDER) or () if node.profile in PROFILES]
    async with running_examples(nodes, EXAMPLES) as cluster:
        await simulate(cluster, "t4-1", "xid", "1", "79")
        ui = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dra_driver.cli", "ui", "--port", "0"),
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
            stdout=asyncio.subprocess.PIPE,
        )
        assert ui.stdout is not None
        address = (await ui.stdout.readline()).decode().strip()
        with tempfile.TemporaryDirectory() as profile:
            async with browser(Path(profile)) as page:
                await page.looks(width=1280, height=980, scheme="dark")
                await page.open(address)
                await page.until("document.querySelector('.gpu.unhealthy')")
                FILE.write_bytes(await page.picture())
        ui.terminate()
        await ui.wait()


if __name__ == "__main__":
    asyncio.run(main())
