"""What `dractl get` was asked and what it answers: a row for each node, policy, claim or domain, for each GPU with a
legend, or for each published device. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from rich.text import Text

from dra_driver.allocation.amounts import Amount
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.gpupolicy import FOLLOWED, SeenPolicy
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    GPU_POLICIES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Condition,
    JsonObject,
    condition_of,
)
from dra_driver.api.resource import ResourceClaim
from dra_driver.cli.tables.bars import MEANINGS, Mark, color, drawn, letters
from dra_driver.cli.tables.seen import ClusterSeen, KnownGpus, NodeOverview, Objects
from dra_driver.cli.tables.usage import (
    DeviceHolder,
    HeldDevice,
    PublishedDevice,
    PublishedGpu,
    by_claim,
    consumers_of,
    published_devices,
    published_gpus,
    short_product,
    users_of,
)
from dra_driver.domains.status import READY
from dra_driver.grouping import grouped
from dra_driver.phrases import how_many
from dra_driver.terminal import Cell, Row, Sheet, Shown, age_cell, gibibytes, memory_cell

_SHOWN_PLACES = 2
"""Of what is left of a GPU, where that is not all of it."""
_MANY_GPUS = 30
"""From here on a summary comes first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What `dractl get` was asked. `names` empty: all. `minor` is the server's version, `labels` a selector of nodes or
    of the objects themselves.

    `node`, `free` and `every` are for devices; the first of `drivers` is that of the GPUs.
    """

    now: datetime
    minor: int
    drivers: Sequence[str]
    names: Collection[str]
    labels: str | None
    node: str | None
    free: bool
    every: bool

    def wants(self, *parts: str, also: str | None = None) -> bool:
        """Whether an object is asked for: by its last part, by all parts with slashes between, or by `also`."""
        return not self.names or not {parts[-1], "/".join(parts), also}.isdisjoint(self.names)


@dataclass(frozen=True, slots=True)
class GetAnswer:
    """`summary` comes before the table, `more` tables after it, `notes` last; programs get the sheet only. `map` is for
    a page; None if there are no GPUs to draw."""

    sheet: Sheet
    more: Sequence[Sheet] = field(default=())
    summary: str | None = None
    notes: Sequence[str] = ()
    map: KnownGpus | None = None


# -- devices


def devices(objects: Objects, asked: Asked) -> GetAnswer:
    """GPUs come before the devices of other drivers, such as IMEX channels."""
    cluster = ClusterSeen(objects, asked.minor)
    headrooms = cluster.headrooms(asked.drivers[0])
    known = {node.name for node in cluster.nodes} if asked.labels is not None else None
    results = sorted(
        (
            device
            for device in cluster.devices(headrooms.values(), asked.drivers)
            if asked.node in (None, device.node) and (known is None or device.node in known)
        ),
        key=lambda device: asked.drivers.index(device.id.driver),
    )
    if asked.every:
        return GetAnswer(_device_sheet([device for device in results if device.free or not asked.free], asked))
    counters = {
        (pool, name, counter): amounts
        for headroom in headrooms.values()
        for (pool, name, counter), amounts in headroom.counters.items()
    }
    gpus = [
        gpu
        for gpu in published_gpus(results)
        if (gpu.free or not asked.free) and asked.wants(gpu.whole.node or "-", gpu.name, also=gpu.uuid)
    ]
    own = [gpu for gpu in gpus if gpu.whole.id.driver == asked.drivers[0]]
    by_node = grouped(own, lambda gpu: gpu.whole.node or "-")
    nodes = [NodeOverview(name, tuple(group), None, headrooms.get(name)) for name, group in by_node.items()]
    summary = counted(own) if len(own) > _MANY_GPUS else None
    return replace(_of_gpus(gpus, counters), summary=summary, map=KnownGpus.of(nodes, cluster.waiting))


def _of_gpus(gpus: Sequence[PublishedGpu], counters: "_Counters") -> GetAnswer:
    drawn_first = [cell for gpu in gpus for cell in gpu.cells if not isinstance(cell, Mark)]
    holders = [holder.claim for gpu in gpus for _, holder in gpu.held if not holder.admin_access]
    letter_of = letters([*drawn_first, *holders])
    marks = [mark for mark in Mark if any(mark in gpu.cells for gpu in gpus) and mark is not Mark.FREE]
    return GetAnswer(
        _gpu_sheet(gpus, counters, letter_of),
        more=[_legend(gpus, letter_of)],
        notes=["; ".join(f"{mark.value} {MEANINGS[mark]}" for mark in marks)] if marks else [],
    )


def counted(gpus: Sequence[PublishedGpu]) -> str:
    """`56 GPUs on 9 nodes: 28 free, 21 in use, 3 partly, 4 tainted`."""
    states = Counter(gpu.state for gpu in gpus)
    nodes = len({gpu.whole.node for gpu in gpus})
    counts = ", ".join(
        f"{states[state]} {state}" for state in (*_STATES, *sorted(states.keys() - set(_STATES))) if states[state]
    )
    return f"{how_many(len(gpus), 'GPU')} on {how_many(nodes, 'node')}: {counts}"


_STATES = ("free", "in use", "partly", "tainted")


def _device_sheet(results: Sequence[PublishedDevice], asked: Asked) -> Sheet:
    rows: list[Row] = [
        {
            "NODE": device.node,
            "DEVICE": device.id.device,
            "TYPE": device.kind,
            "PROFILE": device.attribute("profile"),
            "PRODUCT": device.attribute("productName"),
            "MEMORY": memory_cell(device.memory_bytes()),
            "STATE": device.state,
            "USED BY": Shown(", ".join(device.users) or "-", [holder_data(holder) for holder in device.holders]),
            "PODS": tuple(users_of((device, holder) for holder in device.holders)),
            "LEFT": memory_cell(device.memory_left()),
            "TAINTS": device.taints,
        }
        for device in results
        if asked.wants(device.node or "-", device.id.device)
    ]
    return Sheet(
        rows,
        "No devices are published; dractl doctor says why.",
        keys={"MEMORY": "memoryBytes", "LEFT": "memoryLeftBytes"},
        wide=("PRODUCT", "LEFT", "TAINTS"),
        drop=("PODS", "PROFILE", "MEMORY", "TYPE"),
        named=("NODE", "DEVICE"),
    )


def holder_data(holder: DeviceHolder) -> JsonObject:
    return {
        "claim": holder.claim,
        "request": holder.request,
        "share": holder.share,
        "consumed": dict(holder.consumed),
        "adminAccess": holder.admin_access,
        "pods": list(holder.pods),
        "containers": list(holder.containers),
    }


type _Counters = Mapping[tuple[str, str, str], tuple[Amount, Amount]]
"""What is left of what, by pool, counter set and counter."""


def _gpu_sheet(gpus: Sequence[PublishedGpu], counters: _Counters, letter_of: Mapping[str, str]) -> Sheet:
    return Sheet(
        [_gpu_row(gpu, counters, letter_of) for gpu in gpus],
        "No GPUs are published; dractl doctor says why.",
        keys={"MEMORY": "memoryBytes", "USE": "cells"},
        wide=("DEVICES", "COUNTERS", "UUID", *([] if any(gpu.taints for gpu in gpus) else ["TAINTS"])),
        drop=("COUNTERS", "UUID", "DEVICES", "LEFT", "MEMORY", "PRODUCT", "TAINTS"),
        named=("NODE", "GPU"),
    )


def _gpu_row(gpu: PublishedGpu, counters: _Counters, letter_of: Mapping[str, str]) -> Row:
    cells, left = gpu.cells, gpu.left()
    product = gpu.whole.attribute("productName")
    in_use = [
        {"device": device.id.device, **holder_data(holder)} for device in gpu.devices for holder in device.holders
    ]
    own = _counters_of(gpu, counters)
    shown = left[: 1 if gpu.state == "free" else _SHOWN_PLACES]
    return {
        "NODE": gpu.whole.node,
        "GPU": gpu.name,
        "PRODUCT": Shown(short_product(product), product),
        "MEMORY": memory_cell(gpu.memory_bytes()),
        "USE": Shown(drawn(cells, letter_of), [None if isinstance(cell, Mark) else cell for cell in cells]),
        "STATE": gpu.state,
        "LEFT": Shown(", ".join([*shown, *(["…"] if len(left) > len(shown) > 1 else [])]) or "-", list(left)),
        "TAINTS": _faults(gpu.taints, unhealthy=gpu.unhealthy),
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
    sets = {taken.counter_set for device in gpu.devices for taken in device.device.consumes_counters or ()}
    return {
        counter: (int(left), int(total))
        for (pool, name, counter), (left, total) in counters.items()
        if pool == gpu.whole.id.pool and name in sets and not counter.startswith(("memory-slice-", "ci-"))
    }


def _counter_text(counter: str, value: int) -> str:
    return gibibytes(value) if counter == "memory" else str(value)


def _legend(gpus: Sequence[PublishedGpu], letter_of: Mapping[str, str]) -> Sheet:
    held = by_claim(held for gpu in gpus for held in gpu.held)
    rows: list[Row] = []
    for claim, letter in letter_of.items():
        had = held[claim]
        has = [f"{device.id.device}{f' ({holder.takes})' if holder.takes else ''}" for device, holder in had]
        colored = Shown(Text(letter, style=f"bold {color(claim, letter_of)}"), letter)
        rows.append({"": colored, "CLAIM": claim, "PODS": tuple(users_of(had)), "HAS": tuple(has)})
    return Sheet(rows, "", drop=("HAS", "PODS"))


# -- nodes


def nodes(objects: Objects, asked: Asked) -> GetAnswer:
    """Nodes that have GPUs or have reported what they have."""
    cluster = ClusterSeen(objects, asked.minor)
    known = {node.name for node in cluster.nodes} if asked.labels is not None else None
    shown = [
        node
        for node in cluster.overviews(asked.drivers[0])
        if asked.wants(node.name) and (known is None or node.name in known)
    ]
    return GetAnswer(
        Sheet(
            list(map(_node_row, shown)),
            "No node has reported GPUs; dractl doctor says why.",
            keys={
                "MOST GPUS": "largestGpus",
                "LARGEST MIG": "largestMigProfile",
                "LARGEST MEMORY": "largestMemoryBytes",
            },
            wide=("DRIVER", "CLIQUE"),
            drop=("CLIQUE", "DRIVER", "LARGEST MEMORY", "LARGEST MIG", "MOST GPUS", "PRODUCT"),
            named=("NODE",),
        ),
        map=KnownGpus.of(shown, cluster.waiting),
    )


def _node_row(node: NodeOverview) -> Row:
    largest = node.headroom.largest if node.headroom is not None else None
    problems = list(node.problems)
    if largest is not None and largest.undecided is not None:
        problems.append(f"headroom: undecided, more may fit: {largest.undecided}")
    return {
        "NODE": node.name,
        "GPUS": node.count,
        "HEALTHY": Shown(node.healthy or "-", node.healthy_count),
        "FREE": Shown(f"{node.free}/{len(node.gpus)}", node.free),
        "MOST GPUS": largest.whole_gpus if largest else 0,
        "LARGEST MIG": largest.mig_profile if largest else None,
        "LARGEST MEMORY": memory_cell(largest.memory_bytes if largest else None),
        "PRODUCT": Shown(", ".join(map(short_product, node.products)), ", ".join(node.products)),
        "DRIVER": node.driver,
        "CLIQUE": node.clique,
        "PROBLEMS": _faults(problems, unhealthy=node.unhealthy > 0),
    }


def _faults(texts: Sequence[str], *, unhealthy: bool) -> Cell:
    """Red for what is unhealthy, as `dractl top` has it."""
    return Shown(Text(", ".join(texts), style="red"), list(texts)) if texts and unhealthy else tuple(texts)


# -- policies


def policies(objects: Objects, asked: Asked) -> GetAnswer:
    """Those that override others first."""
    seen: Sequence[SeenPolicy] = objects[GPU_POLICIES]
    wanted = [policy for policy in seen if asked.wants(policy.metadata.name)]
    return GetAnswer(
        Sheet(
            [_policy_row(item) for item in sorted(wanted, key=lambda item: (-item.priority, item.metadata.name))],
            "No GpuPolicies: all GPUs are published as they are.",
            drop=("GPUS", "NODES", "PRIORITY", "OFFERED"),
            named=("POLICY",),
        )
    )


def _policy_row(policy: SeenPolicy) -> Row:
    status = policy.status
    followed = condition_of(status.conditions, FOLLOWED)
    waiting = list(map(str, status.waiting))
    more = status.waiting_gpus - len(waiting)
    problems = [
        *([policy.refused] if policy.refused else ()),
        *(["selects no GPU of any node"] if policy.selects_nothing else ()),
        *(
            f"{problem.rule} on {how_many(problem.nodes, 'node')} ({', '.join(problem.examples)}): {problem.message};"
            f" fix: {problem.fix}"
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


# -- claims


def claims(objects: Objects, asked: Asked) -> GetAnswer:
    """What each asked for, what it got, and for whom."""
    existing: Sequence[ResourceClaim] = objects[RESOURCE_CLAIMS]
    devices = published_devices(objects[RESOURCE_SLICES], existing, consumers_of(objects[PODS]))
    held = by_claim((device, holder) for device in devices for holder in device.holders)
    return GetAnswer(
        Sheet(
            [
                _claim_row(claim, held.get(str(claim), []), asked.now)
                for claim in sorted(existing, key=str)
                if asked.wants(claim.metadata.namespace or "-", claim.metadata.name)
            ],
            "No ResourceClaims.",
            keys={"ASKED": "requests", "HAS": "results", "AGE": "created"},
            wide=("ASKED", "SHARES"),
            drop=("SHARES", "ASKED", "AGE", "DEVICES", "PODS"),
            named=("NAMESPACE", "CLAIM"),
        )
    )


def _claim_row(claim: ResourceClaim, had: Sequence[HeldDevice], now: datetime) -> Row:
    results = claim.results
    state = "pending" if claim.status.allocation is None else "in use" if claim.status.reserved_for else "allocated"
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
            [{"device": str(device.id), **holder_data(holder)} for device, holder in had],
        ),
        "PODS": tuple(sorted(pods)),
        "AGE": age_cell(claim.metadata.creation_timestamp, now),
        "SHARES": tuple(result.share_id for result in results if result.share_id is not None),
    }


def _asked(claim: ResourceClaim) -> list[str]:
    """`gpu: 4 x gpu.nvidia.com` a request."""
    results = []
    for request in claim.spec.devices.requests:
        ways = [
            f"{'all' if item.allocation_mode == 'All' else item.count or 1} x {item.device_class_name}"
            for _, item in request.ways
        ]
        results.append(f"{request.name}: {' or '.join(ways)}")
    return results


def _has(device: PublishedDevice, holder: DeviceHolder) -> str:
    """What one device is: its profile or product, and what a share takes of it."""
    profile = device.attribute("profile")
    what = profile if profile != "-" else short_product(device.attribute("productName"))
    return f"{what} ({holder.takes})" if holder.takes else what


# -- domains


def ready_of(domain: ComputeDomain) -> Condition | None:
    """None until the controller has looked at it."""
    return condition_of(domain.status.conditions, READY)


def domains(objects: Objects, asked: Asked) -> GetAnswer:
    """A row for each domain, and for people one for each of their nodes, which programs get with the domain."""
    wanted = sorted((item for item in objects[COMPUTE_DOMAINS] if asked.wants(*_key(item))), key=_key)
    unseen = sum(ready_of(domain) is None for domain in wanted)
    note = f"{unseen} of them not yet processed by a controller; if this persists, is feature gate ComputeDomains on?"
    sheet = Sheet(
        [_domain_row(domain, asked.now) for domain in wanted],
        "No ComputeDomains.",
        keys={"DOMAIN": "name", "CHANNELS": "allocationMode", "AGE": "created"},
        wide=("CHANNELS",),
        drop=("CHANNELS", "AGE", "TEMPLATE", "REASON"),
        named=("NAMESPACE", "DOMAIN"),
    )
    return GetAnswer(sheet, more=[_member_sheet(wanted)], notes=[note] if unseen else [])


def _key(domain: ComputeDomain) -> tuple[str, str]:
    return domain.metadata.namespace or "", domain.metadata.name


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


def _member_sheet(domains: Sequence[ComputeDomain]) -> Sheet:
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
    return Sheet(rows, "", drop=("ADDRESS", "INDEX", "CLIQUE"))
