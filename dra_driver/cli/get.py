"""`dractl get nodes|policies|devices|claims|domains`: who uses which GPU, what is free, and how much of it one
claim could have; and GpuPolicies and ComputeDomains, by their status, which the controller writes."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from dra_driver.allocation.amounts import Amount
from dra_driver.allocation.headroom import Headroom
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Pod
from dra_driver.api.gpupolicy import FOLLOWED, SeenPolicy
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    GPU_POLICIES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Condition,
    JsonObject,
)
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.cli.bars import MEANINGS, Mark, color, drawn, letters
from dra_driver.cli.live import ClusterSeen, read_cluster, readable
from dra_driver.cli.session import ContextOption, KubeconfigOption, ask, listed
from dra_driver.cli.usage import (
    DeviceHolder,
    PublishedDevice,
    PublishedGpu,
    claim_name,
    consumers_of,
    published_devices,
    published_gpus,
)
from dra_driver.domains.status import READY
from dra_driver.errors import InvalidInput, NotFound
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.terminal import (
    Row,
    Sheet,
    Shown,
    WideFormat,
    WideOutputOption,
    age_cell,
    gibibytes,
    memory_cell,
    messages,
    print_table,
    show,
)

app = typer.Typer(help="Show nodes, policies, devices, claims or domains, and who uses what.", no_args_is_help=True)

DriverOption = Annotated[list[str], typer.Option("--driver", help="Drivers to show; may be given more than once.")]
GpuDriverOption = Annotated[str, typer.Option("--driver", help="The driver of the GPUs.")]
NodeOption = Annotated[str | None, typer.Option("--node", help="Only devices of this node.", show_default=False)]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="One namespace; default: all.", show_default=False)
]
_DRIVERS = [GPU_DRIVER, COMPUTE_DOMAIN_DRIVER]
_SHOWN_PLACES = 2
"""Of what is left of a GPU, where that is not all of it."""


# -- nodes


@app.command("nodes")
def nodes(
    output: WideOutputOption = WideFormat.TABLE,
    driver: GpuDriverOption = GPU_DRIVER,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Nodes with GPUs: hardware, health, what is free, and the largest request that still fits.

    The largest request is what a claim without tolerations would get now: that many whole GPUs, or a MIG device of that
    profile, or a device or share with that much memory.
    """
    show(_node_sheet(ask(kubeconfig, context, read_cluster), driver), output)


def _node_sheet(cluster: ClusterSeen, driver: str) -> Sheet:
    headrooms = cluster.headrooms(driver)
    gpus: dict[str, list[PublishedGpu]] = {}
    for gpu in published_gpus(cluster.devices(headrooms.values(), [driver])):
        gpus.setdefault(gpu.whole.node or "-", []).append(gpu)
    inventories = {inventory.spec.node_name: inventory for inventory in cluster.inventories}
    names = sorted({*gpus, *inventories})
    return Sheet(
        [_node_row(name, gpus.get(name, []), inventories.get(name), headrooms.get(name)) for name in names],
        "No node has reported GPUs. Is the node plugin running? kubectl get nodeinventories shows what it wrote.",
        keys={
            "MOST GPUS": "largestGpus",
            "LARGEST MIG": "largestMigProfile",
            "LARGEST MEMORY": "largestMemoryBytes",
        },
        wide=("DRIVER", "CLIQUE"),
    )


def _node_row(
    name: str, gpus: Sequence[PublishedGpu], inventory: NodeInventory | None, headroom: Headroom | None
) -> Row:
    problems: list[str] = []
    products = sorted({gpu.whole.attribute("productName") for gpu in gpus})
    count, healthy, driver, clique = len(gpus), "-", gpus[0].whole.attribute("driverVersion") if gpus else "-", "-"
    if inventory is not None:
        summary = inventory.spec.summary
        count, healthy, driver, clique = summary.gpus, summary.healthy, summary.driver, summary.clique
        products = [summary.product]
        problems += [f"{problem.subject}: {problem.reason}" for problem in inventory.spec.problems]
        problems += [
            ": ".join(part for part in (limitation.rule, limitation.subject, limitation.reason) if part)
            for limitation in inventory.status.limitations
            if limitation.rule is not None
        ]
        problems += [f"{warning.subject}: {warning.reason}" for warning in inventory.spec.warnings]
    problems += headroom.problems if headroom is not None else ()
    problems += [f"{gpu.name}: {', '.join(gpu.taints)}" for gpu in gpus if gpu.taints]
    largest = headroom.largest if headroom is not None else None
    if largest is not None and largest.undecided is not None:
        problems.append(f"headroom: undecided, more may fit: {largest.undecided}")
    return {
        "NODE": name,
        "GPUS": count,
        "HEALTHY": healthy,
        "FREE": f"{sum(gpu.state == 'free' for gpu in gpus)}/{len(gpus)}",
        "MOST GPUS": largest.whole_gpus if largest else 0,
        "LARGEST MIG": largest.mig_profile if largest else None,
        "LARGEST MEMORY": memory_cell(largest.memory_bytes if largest else None),
        "PRODUCT": Shown(", ".join(product.removeprefix("NVIDIA ") for product in products), ", ".join(products)),
        "DRIVER": driver,
        "CLIQUE": None if clique == "-" else clique,
        "PROBLEMS": tuple(problems),
    }


# -- policies


@app.command("policies")
def policies(
    output: WideOutputOption = WideFormat.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """GpuPolicies, those that override others first: what they select and offer, what waits, and what fails."""

    async def question(kube: Kube) -> list[SeenPolicy]:
        return [SeenPolicy.of(item) for item in (await kube.list(GPU_POLICIES)).items]

    seen = sorted(ask(kubeconfig, context, question), key=lambda policy: (-policy.priority, policy.metadata.name))
    show(Sheet(list(map(_policy_row, seen)), "No GpuPolicies: all GPUs are published as they are."), output)


def _policy_row(policy: SeenPolicy) -> Row:
    status = policy.status
    followed = next((condition for condition in status.conditions if condition.type == FOLLOWED), None)
    waiting = list(map(str, status.waiting))
    more = status.waiting_gpus - len(waiting)
    problems = [
        *([policy.refused] if policy.refused else ()),
        *(
            f"{problem.rule} on {problem.nodes} nodes ({', '.join(problem.examples)}): {problem.message}; fix:"
            f" {problem.fix}"
            for problem in status.problems
        ),
        *waiting,
        *([f"{more} more GPUs wait"] if more > 0 else ()),
    ]
    return {
        "POLICY": policy.metadata.name,
        "PRIORITY": policy.priority,
        "NODES": status.nodes,
        "GPUS": status.gpus,
        "OFFERED": status.offered or None,
        "WAITING": status.waiting_gpus,
        "FOLLOWED": "Invalid" if policy.refused else followed.reason if followed is not None else None,
        "PROBLEMS": Shown("; ".join(problems) or "-", problems),
    }


# -- devices


@app.command("devices")
def devices(
    output: WideOutputOption = WideFormat.TABLE,
    every: Annotated[bool, typer.Option("--all", help="Every published device: partitions and shares, too.")] = False,
    free: Annotated[bool, typer.Option("--free", help="Only those of which a claim could have something.")] = False,
    node: NodeOption = None,
    driver: DriverOption = _DRIVERS,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """GPUs, each drawn as its memory slices, and the claims that have them.

    A letter is a claim; what the others mean is said below. One GPU can be published as many devices, partitions and
    shares: --all lists them.
    """
    cluster = ask(kubeconfig, context, read_cluster)
    headrooms = cluster.headrooms(driver[0])
    results = [device for device in cluster.devices(headrooms.values(), driver) if node is None or device.node == node]
    if every:
        show(_device_sheet([device for device in results if device.free or not free]), output)
        return
    counters = {
        (pool, name, counter): amounts
        for headroom in headrooms.values()
        for (pool, name, counter), amounts in headroom.counters.items()
    }
    _show_gpus([gpu for gpu in published_gpus(results) if gpu.free or not free], counters, output)


def _device_sheet(results: list[PublishedDevice]) -> Sheet:
    rows: list[Row] = [
        {
            "NODE": device.node,
            "DEVICE": device.id.device,
            "TYPE": device.kind,
            "PROFILE": device.attribute("profile"),
            "PRODUCT": device.attribute("productName"),
            "MEMORY": memory_cell(device.memory_bytes()),
            "STATE": device.state,
            "USED BY": Shown(", ".join(device.users) or "-", [_holder_data(holder) for holder in device.holders]),
            "PODS": device.pods,
            "LEFT": memory_cell(device.memory_left()),
            "TAINTS": device.taints,
        }
        for device in results
    ]
    return Sheet(
        rows,
        "No devices are published, or none match.",
        keys={"MEMORY": "memoryBytes", "LEFT": "memoryLeftBytes"},
        wide=("PRODUCT", "LEFT", "TAINTS"),
    )


def _holder_data(holder: DeviceHolder) -> JsonObject:
    return {
        "claim": holder.claim,
        "request": holder.request,
        "share": holder.share,
        "consumed": dict(holder.consumed),
        "adminAccess": holder.admin_access,
        "pods": list(holder.pods),
        "containers": list(holder.containers),
    }


type _Held = tuple[PublishedDevice, DeviceHolder]
type _Counters = Mapping[tuple[str, str, str], tuple[Amount, Amount]]
"""What is left of what, by pool, counter set and counter."""


def _show_gpus(gpus: Sequence[PublishedGpu], counters: _Counters, output: WideFormat) -> None:
    drawn_first = [cell for gpu in gpus for cell in gpu.cells if not isinstance(cell, Mark)]
    holders = [holder.claim for gpu in gpus for _, holder in gpu.held if not holder.admin_access]
    letter_of = letters([*drawn_first, *holders])
    show(_gpu_sheet(gpus, counters, letter_of), output)
    if output in (WideFormat.JSON, WideFormat.YAML):
        return
    if letter_of:
        typer.echo()
        print_table(("", "CLAIM", "PODS", "HAS"), _legend(gpus, letter_of))
    marks = [mark for mark in Mark if any(mark in gpu.cells for gpu in gpus) and mark is not Mark.FREE]
    if marks:
        messages.print("; ".join(f"{mark.value} {MEANINGS[mark]}" for mark in marks), markup=False)


def _gpu_sheet(gpus: Sequence[PublishedGpu], counters: _Counters, letter_of: Mapping[str, str]) -> Sheet:
    return Sheet(
        [_gpu_row(gpu, counters, letter_of) for gpu in gpus],
        "No GPUs are published, or none match.",
        keys={"MEMORY": "memoryBytes", "USE": "cells"},
        wide=("DEVICES", "COUNTERS", "UUID", *([] if any(gpu.taints for gpu in gpus) else ["TAINTS"])),
    )


def _gpu_row(gpu: PublishedGpu, counters: _Counters, letter_of: Mapping[str, str]) -> Row:
    cells, left = gpu.cells, gpu.left()
    product = gpu.whole.attribute("productName")
    in_use = [
        {"device": device.id.device, **_holder_data(holder)} for device in gpu.devices for holder in device.holders
    ]
    own = _counters_of(gpu, counters)
    shown = left[: 1 if gpu.state == "free" else _SHOWN_PLACES]
    return {
        "NODE": gpu.whole.node,
        "GPU": gpu.name,
        "PRODUCT": Shown(product.removeprefix("NVIDIA "), product),
        "MEMORY": memory_cell(gpu.memory_bytes()),
        "USE": Shown(drawn(cells, letter_of), [None if isinstance(cell, Mark) else cell for cell in cells]),
        "STATE": gpu.state,
        "LEFT": Shown(", ".join([*shown, *(["…"] if len(left) > len(shown) > 1 else [])]) or "-", list(left)),
        "TAINTS": gpu.taints,
        "DEVICES": Shown(str(len(gpu.devices)), in_use),
        "COUNTERS": Shown(
            ", ".join(
                f"{name} {_counter_text(name, left)}/{_counter_text(name, total)}"
                for name, (left, total) in own.items()
            )
            or "-",
            {name: {"left": left, "total": total} for name, (left, total) in own.items()},
        ),
        "UUID": gpu.uuid,
    }


def _counters_of(gpu: PublishedGpu, counters: _Counters) -> dict[str, tuple[int, int]]:
    """What is left, except of single memory slices, which the bar shows, and of what only keeps parts apart."""
    sets = {
        consumes_counter.counter_set
        for device in gpu.devices
        for consumes_counter in device.device.consumes_counters or ()
    }
    return {
        counter: (int(left), int(total))
        for (pool, name, counter), (left, total) in counters.items()
        if pool == gpu.whole.id.pool and name in sets and not counter.startswith(("memory-slice-", "ci-"))
    }


def _counter_text(counter: str, value: int) -> str:
    return gibibytes(value) if counter == "memory" else str(value)


def _legend(gpus: Sequence[PublishedGpu], letter_of: Mapping[str, str]) -> list[tuple[str | Text, ...]]:
    by_claim = _by_claim(held for gpu in gpus for held in gpu.held)
    rows: list[tuple[str | Text, ...]] = []
    for claim, letter in letter_of.items():
        had = by_claim[claim]
        pods = sorted({pod for _, holder in had for pod in holder.containers or holder.pods})
        has = [f"{device.id.device}{f' ({holder.takes})' if holder.takes else ''}" for device, holder in had]
        colored = Text(letter, style=f"bold {color(claim, letter_of)}")
        rows.append((colored, claim, ", ".join(pods) or "-", ", ".join(has)))
    return rows


def _by_claim(held: Iterable[_Held]) -> dict[str, list[_Held]]:
    by_claim: dict[str, list[_Held]] = {}
    for device, holder in held:
        by_claim.setdefault(holder.claim, []).append((device, holder))
    return by_claim


# -- claims


@app.command("claims")
def claims(
    output: WideOutputOption = WideFormat.TABLE,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """ResourceClaims: what each asked for, what it got, and for whom."""

    async def question(kube: Kube) -> tuple[list[ResourceClaim], list[JsonObject], list[JsonObject]]:
        results = [ResourceClaim.of(item) for item in (await kube.list(RESOURCE_CLAIMS, namespace=namespace)).items]
        return results, await readable(kube, PODS), await readable(kube, RESOURCE_SLICES)

    resource_claims, pods, slices = ask(kubeconfig, context, question)
    typed = [ResourceSlice.of(slice_) for slice_ in slices]
    drivers = sorted({resource_slice.spec.driver for resource_slice in typed})
    devices = published_devices(typed, resource_claims, drivers, consumers=consumers_of(map(Pod.of, pods)))
    show(_claim_sheet(resource_claims, devices, datetime.now(UTC)), output)


def _claim_sheet(resource_claims: list[ResourceClaim], devices: Sequence[PublishedDevice], now: datetime) -> Sheet:
    had = _by_claim((device, holder) for device in devices for holder in device.holders)
    return Sheet(
        [_claim_row(claim, had.get(claim_name(claim), []), now) for claim in sorted(resource_claims, key=claim_name)],
        "No ResourceClaims.",
        keys={"ASKED": "requests", "HAS": "results", "AGE": "created"},
        wide=("ASKED", "SHARES"),
    )


def _claim_row(claim: ResourceClaim, had: Sequence[_Held], now: datetime) -> Row:
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else []
    state = "pending" if allocation is None else "in use" if claim.status.reserved_for else "allocated"
    pods = {pod for _, holder in had for pod in holder.containers} or {
        consumer.name for consumer in claim.status.reserved_for
    }
    return {
        "NAMESPACE": claim.metadata.namespace or "-",
        "CLAIM": claim.metadata.name,
        "STATE": "deleting" if claim.metadata.deletion_timestamp else state,
        "ASKED": tuple(_asked(claim)),
        "DEVICES": tuple(f"{result.pool}/{result.device}" for result in results),
        "HAS": Shown(
            ", ".join(dict.fromkeys(_has(device, holder) for device, holder in had)) or "-",
            [{"device": str(device.id), **_holder_data(holder)} for device, holder in had],
        ),
        "PODS": tuple(sorted(pods)),
        "AGE": age_cell(claim.metadata.creation_timestamp, now),
        "SHARES": tuple(result.share_id for result in results if result.share_id is not None),
    }


def _asked(claim: ResourceClaim) -> list[str]:
    """`gpu: 4 x gpu.nvidia.com` a request."""
    results = []
    for request in claim.spec.devices.requests:
        wanted = [request.exactly] if request.exactly is not None else request.first_available or []
        ways = [
            f"{'all' if item.allocation_mode == 'All' else item.count or 1} x {item.device_class_name}"
            for item in wanted
        ]
        results.append(f"{request.name}: {' or '.join(ways)}")
    return results


def _has(device: PublishedDevice, holder: DeviceHolder) -> str:
    """What one device is: its profile or product, and what a share takes of it."""
    profile = device.attribute("profile")
    what = profile if profile != "-" else device.attribute("productName").removeprefix("NVIDIA ")
    return f"{what} ({holder.takes})" if holder.takes else what


# -- domains


@app.command("domains")
def domains(
    name: Annotated[str | None, typer.Argument(help="One domain; default: all.", show_default=False)] = None,
    output: WideOutputOption = WideFormat.TABLE,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """ComputeDomains: how many of their nodes are ready, why a domain is not, and what each node says.

    The second table has the nodes. With -o json or yaml each domain has its nodes.
    """
    compute_domains = _chosen(ask(kubeconfig, context, lambda kube: _read(kube, namespace)), name, namespace)
    show(domain_sheet(compute_domains, datetime.now(UTC)), output)
    nodes = node_sheet(compute_domains)
    if nodes.rows and output in (WideFormat.TABLE, WideFormat.WIDE):
        typer.echo()
        show(nodes, output)
    unseen = sum(ready_of(compute_domain) is None for compute_domain in compute_domains)
    if unseen:
        messages.print(
            f"{unseen} of them no controller has looked at yet; if that lasts, is feature gate ComputeDomains on?"
        )


async def _read(kube: Kube, namespace: str | None) -> list[JsonObject]:
    cluster_error = await listed(kube, COMPUTE_DOMAINS, namespace)
    if isinstance(cluster_error, NotFound):
        message = "this cluster does not have them; their definition comes with the driver's chart"
        raise InvalidInput(message, about=COMPUTE_DOMAINS.kind)
    if not isinstance(cluster_error, list):
        raise cluster_error
    return cluster_error


def _chosen(items: Iterable[JsonObject], name: str | None, namespace: str | None) -> list[ComputeDomain]:
    chosen = [
        compute_domain
        for compute_domain in map(ComputeDomain.of, items)
        if name in (None, compute_domain.metadata.name)
    ]
    if name is not None and not chosen:
        where = f" in namespace {namespace}" if namespace is not None else ""
        raise InvalidInput(f"there is none of this name{where}", about=f"{COMPUTE_DOMAINS.kind} {name}")
    return sorted(chosen, key=_key)


def _key(domain: ComputeDomain) -> tuple[str, str]:
    return domain.metadata.namespace or "", domain.metadata.name


def ready_of(domain: ComputeDomain) -> Condition | None:
    """None until the controller has looked at it."""
    return next((condition for condition in domain.status.conditions if condition.type == READY), None)


def domain_sheet(domains: Sequence[ComputeDomain], now: datetime) -> Sheet:
    """A row for each domain. Its nodes are in it for programs only."""
    return Sheet(
        [_domain_row(domain, now) for domain in domains],
        "No ComputeDomains.",
        keys={"DOMAIN": "name", "CHANNELS": "allocationMode", "AGE": "created"},
        wide=("CHANNELS",),
    )


def _domain_row(domain: ComputeDomain, now: datetime) -> Row:
    status, ready, channel = domain.status, ready_of(domain), domain.spec.channel
    return {
        "NAMESPACE": domain.metadata.namespace,
        "DOMAIN": domain.metadata.name,
        "STATUS": "Deleting" if domain.metadata.deletion_timestamp else status.status,
        "NODES": Shown(status.ready_nodes or "-", [node.to_wire() for node in status.nodes]),
        "REASON": ready.reason if ready is not None else None,
        "TEMPLATE": channel.resource_claim_template.name,
        "CHANNELS": channel.allocation_mode,
        "AGE": age_cell(domain.metadata.creation_timestamp, now),
        "MESSAGE": ready.message if ready is not None and ready.status != "True" else None,
    }


def node_sheet(domains: Sequence[ComputeDomain]) -> Sheet:
    """A row for each node of each domain, in the order of the status: by clique and index."""
    rows: list[Row] = [
        {
            "DOMAIN": "/".join(_key(domain)),
            "NODE": node.name,
            "CLIQUE": node.clique_id or None,
            "INDEX": node.index,
            "ADDRESS": node.ip_address or None,
            "STATUS": node.status,
            "MESSAGE": node.message,
        }
        for domain in domains
        for node in domain.status.nodes
    ]
    return Sheet(rows, "No nodes.")
