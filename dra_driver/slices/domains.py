"""What a node offers to ComputeDomains: the devices of its pool of `compute-domain.nvidia.com`.

`daemon-0` is for the domain's daemon, one at a time; `channel-0`, `channel-1`, ... are places for pods of one domain,
as many as the policy says. A node that is in a domain says so on each of them, so that the scheduler gives it to no one
else. Where the NVLink fabric is not complete the devices are tainted, or not offered where there are no taints. Pure.
"""

from collections.abc import Mapping

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.inventory import DOMAIN_SUBJECT, NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute, Device, Taint
from dra_driver.devices.limitations import LimitationCause, Note
from dra_driver.devices.nvlink import NodeFabric, fabric_of
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.slices.describe import DescribedGpu, Description
from dra_driver.slices.features import ServerFeatures

FABRIC_TAINT = "fabric"
"""Its key follows the driver's name; its value is the reason in CamelCase."""

DAEMON_TAINT = "daemon"
"""Of channels whose node gave up a pod because its daemon did not become ready; the value is `NotReady`."""

CHANNEL_ATTRIBUTES = ("type", "id", "clique", "clusterUUID", "cliqueID", "domain")
"""Of channels and daemons; `type` and `id` are NVIDIA's, the rest is there where the node has it."""


def domain_devices(
    inventory: NodeInventorySpec,
    policy: PublishingPolicy,
    labels: Mapping[str, str],
    driver_name: str,
    features: ServerFeatures,
) -> Description:
    """`labels` are the node's. Where the driver has neither IMEX channels nor programs, there is nothing to offer."""
    imex, node = inventory.imex, inventory.node_name
    if imex is None or not imex.usable:
        return Description((), ())
    fabric = fabric_of(inventory.gpus)
    if fabric.problem is not None and not features.taints:
        text = f"the node is not offered to ComputeDomains because {fabric.problem}"
        return Description((), (Note(LimitationCause.FABRIC_INCOMPLETE, text),))
    rule = policy.domain_rule(node, labels)
    channels = min(rule.channels, imex.channels)
    common = _common(fabric, labels.get(DOMAIN_LABEL))
    notes, taints = [], []
    if fabric.problem is not None:
        taints = [Taint(key=f"{driver_name}/{FABRIC_TAINT}", value=fabric.reason, effect="NoSchedule")]
        notes.append(Note(LimitationCause.FABRIC_INCOMPLETE, f"channels are tainted because {fabric.problem}"))
    devices = [_device("daemon", 0, common, taints)]
    if features.taints and any(problem.subject == DOMAIN_SUBJECT for problem in inventory.problems):
        # The daemon itself is not kept away: it is tried again with the next pod.
        taints = [Taint(key=f"{driver_name}/{DAEMON_TAINT}", value="NotReady", effect="NoSchedule"), *taints]
    binds = features.binding and inventory.prepares_for_binding is True
    devices += [_device("channel", number, common, taints, binds=binds) for number in range(channels)]
    if channels < rule.channels:
        text = (
            f"{channels} channels are offered because the NVIDIA driver has no more; the rule asks for {rule.channels}"
        )
        notes.append(Note(LimitationCause.FEWER_CHANNELS, text, rule=rule))
    return Description((DescribedGpu(tuple(devices)),), tuple(notes))


def _device(
    kind: str, number: int, common: Mapping[str, Attribute], taints: list[Taint], *, binds: bool = False
) -> Device:
    """`binds`: a pod with the device is bound when the daemon of its domain is ready on the node."""
    own = {"type": Attribute(string=kind), "id": Attribute(int_=number)}
    return Device(
        name=f"{kind}-{number}",
        attributes={**own, **common},
        taints=taints or None,
        binding_conditions=[BINDING_READY] if binds else None,
        binding_failure_conditions=[BINDING_FAILED] if binds else None,
    )


def _common(fabric: NodeFabric, domain: str | None) -> dict[str, Attribute]:
    common: dict[str, Attribute] = {}
    if fabric.clique:
        cluster, _, clique = fabric.clique.rpartition(".")
        common["clique"] = Attribute(string=fabric.clique)
        common["clusterUUID"] = Attribute(string=cluster)
        common["cliqueID"] = Attribute(int_=int(clique))
    if domain:
        common["domain"] = Attribute(string=domain)
    return common
