"""ComputeDomains: time and API writes until a domain of N nodes is ready, after one pod's loss, after a node's end.

    [KUBEBUILDER_ASSETS=FOLDER] python benchmarks/computedomains.py [--sizes 2,16,72,256] [--many 100x2] [--json FILE]

The API server is a real one, from the folder's programs, or the simulated one. The controller's keeper of domains and
the publisher of their devices run here, as in the controller, and so do stand-ins for what surrounds them: a scheduler
that allocates claims, the DaemonSet controller, kubelets that give pods addresses, and daemons, which are ready once
the domain's status names their node and address. Stand-ins answer at once, so the time is what our part costs, and the
server. The domain can be ready no earlier than its last daemon: both times are measured.

Writes are counted by who does them. Of the controller: objects, labels, statuses, slices (`domain` on the devices of a
node that is in one). Of all: claims and their allocation, pods, their addresses and readiness as well.
"""

import argparse
import asyncio
import logging
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from _api_server import api_server, version
from _domain_world import OURS, TEAM, TRAYS, CountingKube, Surroundings, domain_label, name_of
from _many_nodes import define
from _measured import Record
from support.publishing import fixed

from controller.computedomains.keeper import DomainKeeper
from controller.slices import PublishedSlices
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
)
from dra_driver.domains.objects import DaemonSettings
from dra_driver.kube.client import endpoint_from
from dra_driver.kube.watch import Watches
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish.pools import Publication, PublishingListeners
from dra_driver.slices.domains import domain_devices

UNITS = {
    "last daemon is ready after": "s",
    "domain is ready after": "s",
    "controller's writes": "",
    "controller's writes for each node": "",
    "of them statuses": "",
    "writes of all": "",
    "one pod lost: ready again after": "s",
    "one pod lost: controller's writes": "",
    "one node replaced: ready again after": "s",
    "one node replaced: controller's writes": "",
    "objects and labels after deletion": "",
}

type Figures = dict[str, float]


class Bench:
    """A cluster with nodes, and the controller's part at work."""

    def __init__(self, around: Surroundings, controller: CountingKube) -> None:
        self.around = around
        self._controller = controller

    @classmethod
    @asynccontextmanager
    async def running(cls, nodes: int) -> AsyncIterator["Bench"]:
        async with cls._connected() as (outside, inside):
            await define(outside)
            for name in (TEAM, OURS):
                await outside.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            around = Surroundings(outside)
            await _all(around.node(index) for index in range(nodes))
            watches = Watches(inside)
            keeper = DomainKeeper(watches, DaemonSettings(namespace=OURS, image="driver", max_nodes=TRAYS))
            devices = PublishedSlices(
                watches,
                Publication(
                    driver=COMPUTE_DOMAIN_DRIVER,
                    policies=fixed(),
                    describe=domain_devices,
                    labels_matter=True,
                ),
                PublishingListeners(),
                workers=4,
            )
            async with around.watching():
                tasks = [
                    asyncio.create_task(watches.run()),
                    asyncio.create_task(keeper.run()),
                    asyncio.create_task(devices.run()),
                ]
                try:
                    await around.until(lambda: len(around.slices.objects) == nodes, "published")
                    yield cls(around, inside)
                finally:
                    for task in tasks:
                        task.cancel()
                    for ended in await asyncio.gather(*tasks, return_exceptions=True):
                        if not isinstance(ended, asyncio.CancelledError):
                            raise RuntimeError("the controller's part ended") from ended

    @classmethod
    @asynccontextmanager
    async def _connected(cls) -> AsyncIterator[tuple[CountingKube, CountingKube]]:
        with tempfile.TemporaryDirectory() as place:
            async with api_server(Path(place)) as kubeconfig:
                endpoint = endpoint_from(kubeconfig)
                async with CountingKube(endpoint) as outside, CountingKube(endpoint) as inside:
                    yield outside, inside

    @asynccontextmanager
    async def measured(self, counts: dict[str, int]) -> AsyncIterator[Callable[[], float]]:
        """The writes of the block, and of a second after it, for what is written late."""
        before, others, started = (
            Counter(self._controller.writes),
            sum(self.around.kube.writes.values()),
            time.monotonic(),
        )
        yield lambda: time.monotonic() - started
        await asyncio.sleep(2.0)
        own = Counter(self._controller.writes)
        own.subtract(before)
        counts["controller"] = sum(own.values())
        counts["all"] = counts["controller"] + sum(self.around.kube.writes.values()) - others
        counts.update({name: count for name, count in sorted(own.items()) if count})

    async def left(self) -> int:
        kube = self.around.kube
        remaining = 0
        for resource in (COMPUTE_DOMAINS, DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, PODS):
            remaining += len((await kube.list(resource)).items)
        return remaining + sum(domain_label(node) is not None for node in (await kube.list(NODES)).items)


async def _all[T](work: Iterable[Any]) -> list[T]:
    return list(await asyncio.gather(*work))


async def measure(nodes: int, domains: int) -> Figures:
    """`domains` of `nodes` nodes each, at the same time; loss and replacement are measured on the first of them."""
    names = [f"domain-{number}" for number in range(domains)]
    ready_writes: dict[str, int] = {}
    async with Bench.running(nodes * domains) as bench:
        around = bench.around
        async with bench.measured(ready_writes) as clock:
            await _all(around.domain(name) for name in names)
            await around.until(
                lambda: all((TEAM, f"{name}-channel") in around.templates.objects for name in names), "made"
            )
            begun, begun_at = clock(), time.monotonic()
            places = [
                (name, name_of(number * nodes + tray)) for number, name in enumerate(names) for tray in range(nodes)
            ]
            claims = dict(zip(places, await _all(around.use(*place) for place in places), strict=True))
            await around.until(lambda: all(around.ready(name) == nodes for name in names), "ready")
            ready_s, daemons_s = clock() - begun, around.last_ready - begun_at
            await around.until(lambda: all(around.offered_as(name) == nodes for name in names), "published")
        lost_s, lost = await _lose_a_pod(bench, names[0])
        replaced_s, replaced = await _replace_a_node(bench, names[0], nodes * domains, claims)
        await _all(around.kube.delete(COMPUTE_DOMAINS, name, namespace=TEAM) for name in names)
        await _all(around.release(claim) for claim in claims.values())
        await around.until(lambda: not around.domains.objects, "taken down")
        left = await bench.left()
    return {
        "last daemon is ready after": daemons_s,
        "domain is ready after": ready_s,
        "controller's writes": ready_writes["controller"],
        "controller's writes for each node": ready_writes["controller"] / (nodes * domains),
        "of them statuses": ready_writes.get("computedomains/status", 0),
        "writes of all": ready_writes["all"],
        "one pod lost: ready again after": lost_s,
        "one pod lost: controller's writes": lost["controller"],
        "one node replaced: ready again after": replaced_s,
        "one node replaced: controller's writes": replaced["controller"],
        "objects and labels after deletion": left,
    }


async def _lose_a_pod(bench: Bench, domain: str) -> tuple[float, dict[str, int]]:
    around, node, writes = bench.around, name_of(0), dict[str, int]()
    async with bench.measured(writes) as clock:
        before = around.addresses(domain)[node]
        await around.lose_pod(node)

        def back() -> bool:
            now = around.addresses(domain).get(node)
            return around.ready(domain) is not None and now not in ("", before)

        await around.until(back, "back")
        taken_s = clock()
    return taken_s, writes


async def _replace_a_node(
    bench: Bench, domain: str, index: int, claims: dict[tuple[str, str], str]
) -> tuple[float, dict[str, int]]:
    """The node is gone with its pods, and a new tray of the same rack takes its place."""
    around, old, new, writes = bench.around, name_of(0), name_of(index), dict[str, int]()
    async with bench.measured(writes) as clock:
        await around.end_node(old)
        await around.release(claims.pop((domain, old)))
        await around.node(0, new)
        claims[domain, new] = await around.use(domain, new)

        def replaced() -> bool:
            nodes = around.addresses(domain)
            return around.ready(domain) is not None and new in nodes and old not in nodes

        await around.until(replaced, "whole again")
        taken_s = clock()
    return taken_s, writes


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2,16,72,256", help="nodes of one domain")
    parser.add_argument("--many", default="100x2", help="DOMAINSxNODES at the same time; empty: none")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each size")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs = {f"{size} nodes": (int(size), 1) for size in options.sizes.split(",") if size}
    if options.many:
        domains, _, nodes = options.many.partition("x")
        runs[f"{domains} domains of {nodes}"] = (int(nodes), int(domains))
    record = Record(UNITS, options.json, kubernetes=version())
    for column, (nodes_each, domains_at_once) in runs.items():
        record.add(column, await measure(nodes_each, domains_at_once))


if __name__ == "__main__":
    asyncio.run(main())
