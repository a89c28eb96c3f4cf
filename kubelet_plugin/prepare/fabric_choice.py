"""Which fabric partition a claim needs. Pure.

`kubelet_plugin.prepare.wanted` enters here. NVSwitches that are shared connect the GPUs of an active partition, and
Fabric Manager offers certain sets of GPUs only. The full GPUs of a claim, and those for virtual machines, must be one
of these sets, as with kubernetes-sigs/dra-driver-nvidia-gpu; MIG devices use no NVLink and are not counted.
"""

from collections.abc import Iterable

from dra_driver.api.inventory import FABRIC_MANAGER_SUBJECT, GpuFacts
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.features import Feature
from dra_driver.names import PARTITION_SIZES, ClaimRef
from kubelet_plugin.prepare.holds import FabricPartition, GpuIdentity
from kubelet_plugin.prepare.known_node import KnownNode


def partition_of(asked: ClaimRef, gpus: Iterable[GpuFacts], node: KnownNode, *, field: str) -> FabricPartition | None:
    """The partition that consists of `gpus`, which are those that the claim uses as a whole; None where NVSwitches are
    not shared, and for no GPUs.

    Raises InvalidInput when they form none, and NodeNotReady while the partitions are not known.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if not by_uuid or Feature.FABRIC_PARTITIONS not in node.gates:
        return None
    sets = [{(part.id, part.size) for part in gpu.fabric_partitions} for gpu in by_uuid.values()]
    if not any(sets):
        _check_known(asked, node, field)
        return None
    common = sorted(id_ for id_, size in set.intersection(*sets) if size == len(by_uuid))
    if not common:
        raise InvalidInput(_no_partition(list(by_uuid.values())), about=str(asked), field=field)
    gpu_identities = sorted(GpuIdentity(gpu.uuid, gpu.pci_bus_id) for gpu in by_uuid.values())
    return FabricPartition(common[0], tuple(gpu_identities))


def _check_known(asked: ClaimRef, node: KnownNode, field: str) -> None:
    problem = next((known for known in node.problems if known.subject == FABRIC_MANAGER_SUBJECT), None)
    if problem is not None:
        raise NodeNotReady(f"may need a fabric partition, and {problem.message}", about=str(asked), field=field)


def _no_partition(gpus: list[GpuFacts]) -> str:
    names = ", ".join(sorted(gpu.name for gpu in gpus))
    count, sizes = len(gpus), sorted({part.size for gpu in gpus for part in gpu.fabric_partitions})
    if count in sizes and count in PARTITION_SIZES:
        way = (
            f"add the constraint `matchAttribute: gpu.nvidia.com/partition{count}` to the claim, for all requests of"
            " GPUs, and delete the pod and its claim, so that the claim is allocated again"
        )
    else:
        offered = ", ".join(map(str, sizes))
        way = f"request as many GPUs as a partition of this node has ({offered}), with matchAttribute on that partition"
    return f"{names} are not a fabric partition, so Fabric Manager cannot connect them; {way}"
