"""Runs the simulated API server alone: `python benchmarks/_simulated_api_server.py --kubeconfig FILE`."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from dra_driver.simulation.apiserver.server import DEFAULT_VERSION, SimulatedApiServer


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig for kubectl to this file")
    parser.add_argument("--kubernetes-version", default=DEFAULT_VERSION, help="version to be (default: %(default)s)")
    return parser.parse_args()


async def _run(arguments: argparse.Namespace) -> None:
    server = SimulatedApiServer(version=arguments.kubernetes_version)
    url = await server.start()
    if arguments.kubeconfig is not None:
        server.kubeconfig(arguments.kubeconfig)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(_run(_arguments()))
