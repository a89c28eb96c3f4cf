"""What `dractl get` shows of nodes, policies, claims and domains: a row for each of them. Pure."""

from collections.abc import Sequence
from datetime import datetime

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.gpupolicy import FOLLOWED, SeenPolicy
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    GPU_POLICIES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Condition,
    condition_of,
)
from dra_driver.api.resource import ResourceClaim
from dra_driver.cli.tables.device_sheets import Asked, GetAnswer, holder_data
from dra_driver.cli.tables.seen import ClusterSeen, NodeOverview, Objects
from dra_driver.cli.tables.usage import (
    DeviceHolder,
    HeldDevice,
    PublishedDevice,
    by_claim,
    claim_name,
    consumers_of,
    published_devices,
    short_product,
)
from dra_driver.cli.top.board import KnownGpus
from dra_driver.domains.status import READY
from dra_driver.terminal import Row, Sheet, Shown, age_cell, memory_cell

# -- nodes


def nodes(objects: Objects, asked: Asked) -> GetAnswer:
    """Nodes that have GPUs or have reported what they have."""
    cluster = ClusterSeen.of(objects, asked.minor)
    known = {node.name for node in cluster.nodes} if asked.labels is not None else None
    shown = [
        node
        for node in cluster.overviews(asked.drivers[0])
        if asked.wants(node.name) and (known is None or node.name in known)
    ]
    return GetAnswer(
        Sheet(
            list(map(_node_row, shown)),
            "No node has reported GPUs. Is the node plugin running? kubectl get nodeinventories shows what it wrote.",
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
        "PROBLEMS": tuple(problems),
    }


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


# -- claims


def claims(objects: Objects, asked: Asked) -> GetAnswer:
    """What each asked for, what it got, and for whom."""
    existing: Sequence[ResourceClaim] = objects[RESOURCE_CLAIMS]
    devices = published_devices(objects[RESOURCE_SLICES], existing, consumers_of(objects[PODS]))
    held = by_claim((device, holder) for device in devices for holder in device.holders)
    return GetAnswer(
        Sheet(
            [
                _claim_row(claim, held.get(claim_name(claim), []), asked.now)
                for claim in sorted(existing, key=claim_name)
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
    note = f"{unseen} of them no controller has looked at yet; if that lasts, is feature gate ComputeDomains on?"
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
