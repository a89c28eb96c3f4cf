"""ComputeDomains: time and API writes until a domain of N nodes is ready, after one pod's loss, after a node's end.

    python benchmarks/computedomains.py [--sizes 2,18,64,256] [--many 300x2] [-o json]

The API server is the simulated one in a process of its own. The controller's keeper of domains and the publisher of
their devices run here, as in the controller, and so do stand-ins for what surrounds them: a scheduler that allocates
claims, the DaemonSet controller, kubelets that give pods addresses, and daemons, which are ready once the domain's
status names their node and address. Stand-ins answer at once, so the time is what our part costs, and the server.

Writes are counted by who does them. Of the controller: objects, labels, statuses, slices (`domain` on the devices of a
node that is in one). Of all: claims and their allocation, pods, their addresses and readiness as well.
"""

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
import yaml
from _api_server import api_server
from _domain_world import OURS, TEAM, TRAYS, CountingKube, Surroundings, domain_label, name_of
from prometheus_client import CollectorRegistry
from support.publishing import fixed

from controller.computedomains.keeper import DomainKeeper
from controller.slices import PublishedSlices
from docs.from_code.crds import DEFINITIONS
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    CRDS,
    DAEMON_SETS,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
)
from dra_driver.domains.objects import DaemonSettings
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish.metrics import PublishingCounters
from dra_driver.publish.pools import Publication, PublishingListeners
from dra_driver.slices.domains import domain_devices


@dataclass(frozen=True)
class Figures:
    """Writes are `controller` and `all`; of `controller`, by what is written."""

    nodes: int
    domains: int
    ready_s: float
    """From the first claim that is allocated to the last domain that is ready; its objects are made before."""
    ready_writes: Mapping[str, int]
    pod_lost_s: float | None
    pod_lost_writes: Mapping[str, int]
    node_replaced_s: float | None
    node_replaced_writes: Mapping[str, int]
    left_behind: int
    """Objects and labels after all domains were deleted."""


class Bench:
    """A cluster with nodes, and the controller's part at work."""

    def __init__(self, around: Surroundings, controller: CountingKube) -> None:
        self.around = around
        self._controller = controller

    @classmethod
    @asynccontextmanager
    async def running(cls, nodes: int) -> AsyncIterator["Bench"]:
        async with cls._connected() as (outside, inside):
            for definition in DEFINITIONS:
                await outside.create(CRDS, yaml.safe_load(definition.file.read_text()))
            await _served(outside)
            for name in (TEAM, OURS):
                await outside.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            around = Surroundings(outside)
            await _all(around.node(index) for index in range(nodes))
            keeper = DomainKeeper(inside, DaemonSettings(namespace=OURS, image="driver", max_nodes=TRAYS))
            counters = PublishingCounters(CollectorRegistry())
            devices = PublishedSlices(
                inside,
                Publication(
                    driver=COMPUTE_DOMAIN_DRIVER,
                    policies=fixed(),
                    describe=domain_devices,
                    labels_matter=True,
                ),
                PublishingListeners(),
                counters,
                workers=4,
            )
            async with around.watching():
                tasks = [
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
    async def measured(self, found: dict[str, int]) -> AsyncIterator[Callable[[], float]]:
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
        found["controller"] = sum(own.values())
        found["all"] = found["controller"] + sum(self.around.kube.writes.values()) - others
        found.update({name: count for name, count in sorted(own.items()) if count})

    async def left(self) -> int:
        kube = self.around.kube
        found = 0
        for resource in (COMPUTE_DOMAINS, DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, PODS):
            found += len((await kube.list(resource)).items)
        return found + sum(domain_label(node) is not None for node in (await kube.list(NODES)).items)


async def _served(kube: Kube) -> None:
    while True:
        try:
            await kube.list(COMPUTE_DOMAINS)
            await kube.list(NODE_INVENTORIES)
        except NotFound:
            await asyncio.sleep(0.05)
        else:
            return


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
            begun = clock()
            places = [
                (name, name_of(number * nodes + tray)) for number, name in enumerate(names) for tray in range(nodes)
            ]
            claims = dict(zip(places, await _all(around.use(*place) for place in places), strict=True))
            await around.until(lambda: all(around.ready(name) == nodes for name in names), "ready")
            ready_s = clock() - begun
            await around.until(lambda: all(around.offered_as(name) == nodes for name in names), "published")
        lost_s, lost = await _lose_a_pod(bench, names[0])
        replaced_s, replaced = await _replace_a_node(bench, names[0], nodes * domains, claims)
        await _all(around.kube.delete(COMPUTE_DOMAINS, name, namespace=TEAM) for name in names)
        await _all(around.release(claim) for claim in claims.values())
        await around.until(lambda: not around.domains.objects, "taken down")
        left = await bench.left()
    return Figures(
        nodes, domains, round(ready_s, 2), ready_writes, round(lost_s, 2), lost, round(replaced_s, 2), replaced, left
    )


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


HEADINGS = ("nodes", "domains", "ready s", "writes", "of all", "a node", "pod lost", "writes", "replaced", "writes")


def row(figures: Figures) -> tuple[object, ...]:
    nodes = figures.nodes * figures.domains
    return (
        *(figures.nodes, figures.domains, figures.ready_s),
        *(figures.ready_writes["controller"], figures.ready_writes["all"]),
        round(figures.ready_writes["controller"] / nodes, 2),
        *(figures.pod_lost_s, figures.pod_lost_writes["controller"]),
        *(figures.node_replaced_s, figures.node_replaced_writes["controller"]),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2,18,64,256", help="nodes of one domain")
    parser.add_argument("--many", default="200x2", help="DOMAINSxNODES at the same time; empty: none")
    parser.add_argument("-o", choices=("table", "json"), default="table")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs = [(int(size), 1) for size in options.sizes.split(",") if size]
    if options.many:
        domains, _, nodes = options.many.partition("x")
        runs.append((int(nodes), int(domains)))
    found = []
    if options.o == "table":
        print("  ".join(f"{heading:>8}" for heading in HEADINGS))
    for nodes, domains in runs:
        figures = await measure(nodes, domains)
        found.append(figures)
        if options.o == "table":
            print("  ".join(f"{value!s:>8}" for value in row(figures)), flush=True)
    if options.o == "json":
        print(json.dumps([asdict(one) for one in found], indent=2))


if __name__ == "__main__":
    asyncio.run(main())
