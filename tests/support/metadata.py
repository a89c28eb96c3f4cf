"""A node's devices with what they are published with, and the device metadata of claims on it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from support.claims import BOOT, NODE, a_claim, a_ref, node_facts
from support.prepared import DRIVER_FILES, given_nodes

from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.model import DeviceNode
from dra_driver.names import GPU_DRIVER, POD_CLAIM_ANNOTATION, ClaimRef
from kubelet_plugin.facts.offers import NodeOffers, NodeRules
from kubelet_plugin.prepare.holds import ComputeInstance, HoldRecord, HoldState, Made, Records, VfioBinding
from kubelet_plugin.prepare.known_node import ContainerFiles, KnownNode, MetadataSource
from kubelet_plugin.prepare.metadata import RequestMetadata
from kubelet_plugin.prepare.plan import Plan, finished_plan, plan_for
from kubelet_plugin.prepare.wanted import wanted_of

FOLDER = "/var/lib/kubelet/plugins/gpu.nvidia.com/dra-device-metadata"
MADE = "MIG-12345678-0000-4000-8000-000000000000"
"""UUID of a MIG device that is made for a claim."""


def a_node_with(gpus: Sequence[GpuFacts], driver: str = GPU_DRIVER, **rules: Any) -> KnownNode:
    """`rules` are those of a policy."""
    offers, facts = NodeOffers(NodeRules(PublishingPolicy.of(rules)), NODE), node_facts(gpus)
    source = MetadataSource(FOLDER, offers.attributes(facts, driver))
    return KnownNode(driver, NODE, BOOT, offers.of(facts), {gpu.uuid: gpu for gpu in gpus}, metadata=source)


def files_of(node: KnownNode) -> ContainerFiles:
    nodes = {uuid: (DeviceNode(f"/dev/nvidia{gpu.minor}", type="c", major=195),) for uuid, gpu in node.gpus.items()}
    return ContainerFiles(DRIVER_FILES, given_nodes(nodes), lambda *_: (), DeviceNode)


def records_of(plan: Plan) -> Records:
    """All holds of a plan, made."""
    facts = {ComputeInstance: {"uuid": MADE, "gi": "1", "ci": "0"}, VfioBinding: {"node": "/dev/vfio/1"}}
    return {
        hold: HoldRecord(HoldState.MADE, BOOT, Made(tuple(facts.get(type(hold), {}).items())))
        for hold in plan.entry.holds
    }


def planned(node: KnownNode, *results: JsonObject, ref: ClaimRef | None = None, pod_claim: str | None = None) -> Plan:
    """What a claim with these results has when all its holds are made."""
    ref = ref or a_ref()
    obj = a_claim(ref, *results)
    if pod_claim is not None:
        obj["metadata"]["annotations"] = {POD_CLAIM_ANNOTATION: pod_claim}
    plan = plan_for(ref, wanted_of(ResourceClaim.of(obj), ref, node), node, files_of(node))
    return finished_plan(plan.entry, records_of(plan), node, files_of(node)) if plan.content is None else plan


def document(file: RequestMetadata) -> JsonObject:
    content: JsonObject = json.loads(file.content)
    return content


def devices_in(file: RequestMetadata) -> list[JsonObject]:
    (request,) = document(file)["requests"]
    devices: list[JsonObject] = request["devices"]
    return devices


def values_of(device: JsonObject) -> Mapping[str, Any]:
    """Its attributes without their types."""
    return {name: value for name, typed in device["attributes"].items() for value in typed.values()}


def mount_of(file: RequestMetadata) -> JsonObject:
    spec = json.loads(file.spec)
    (device,) = spec["devices"]
    mount: JsonObject
    (mount,) = device["containerEdits"]["mounts"]
    assert device["containerEdits"].keys() == {"mounts"}
    return mount
