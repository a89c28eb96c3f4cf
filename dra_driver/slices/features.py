"""What of a ResourceSlice this cluster's API server keeps: the optional fields that decide what can be published.

A server whose feature gate is off drops a field without a word, and clusters switch gates as they like; so instead of
versions being compared, a probe is created in a dry run, and the answer is compared. Pure; the probes are sent by
`dra_driver.publish.observed`.
"""

from dataclasses import dataclass

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.meta import JsonObject
from dra_driver.errors import Unreachable
from dra_driver.kubernetes import FeatureGates


@dataclass(frozen=True, slots=True)
class ServerFeatures:
    """All false: devices without counters, for one claim each, that vanish when they are not healthy."""

    partitionable: bool = False
    """Counters: devices that exclude each other (DRAPartitionableDevices)."""
    consumable: bool = False
    """Devices that several claims hold (DRAConsumableCapacity)."""
    taints: bool = False
    """DRADeviceTaints."""
    counters_apart: bool = True
    """The forms of Kubernetes 1.35 and newer: counter sets have slices of their own, and taints may have no effect.
    Before, counter sets are in the slice of their devices."""
    list_attributes: bool = False
    """Attributes that are lists (DRAListTypeAttributes). The driver asks the server only if its own gate is on."""
    binding: bool = False
    """Devices that must be prepared before a pod is bound (DRADeviceBindingConditions). False also if the driver's own
    gate is off."""

    def __str__(self) -> str:
        words = {
            "partitionable devices": self.partitionable,
            "consumable capacity": self.consumable,
            "device taints": self.taints,
        }
        more = {"list attributes": self.list_attributes, "binding conditions": self.binding}
        listed = [f"{'' if there else 'no '}{word}" for word, there in words.items()]
        return ", ".join([*listed, *(word for word, there in more.items() if there)])


ALL_FEATURES = ServerFeatures(partitionable=True, consumable=True, taints=True, binding=True)
"""As Kubernetes 1.36 has them with its default gates."""


def default_features(minor: int) -> ServerFeatures:
    """Of a server 1.`minor` with its default gates."""
    gates = FeatureGates(minor)
    return ServerFeatures(
        partitionable=gates.enabled("DRAPartitionableDevices"),
        consumable=gates.enabled("DRAConsumableCapacity"),
        taints=gates.enabled("DRADeviceTaints"),
        counters_apart=minor >= 35,
        binding=gates.enabled("DRADeviceBindingConditions"),
    )


_PROBE = "gpu-dra-probe"


def probe(driver: str, node: str | None, *, counters_apart: bool) -> JsonObject:
    """A slice with a device that has every optional field, to be created in a dry run.

    `node` is for publishers that may write slices of one node only. `counters_apart`: without the counter set that the
    device consumes from, and with a taint without effect; servers before 1.35 refuse both.
    """
    counters = {"probe": {"value": "1"}}
    device = {
        "name": "probe",
        "allowMultipleAllocations": True,
        "capacity": {"probe": {"value": "1", "requestPolicy": {"default": "1"}}},
        "consumesCounters": [{"counterSet": "probe", "counters": counters}],
        "taints": [{"key": f"{driver}/probe", "effect": "None" if counters_apart else "NoSchedule"}],
        "bindingConditions": [BINDING_READY],
        "bindingFailureConditions": [BINDING_FAILED],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"{_PROBE}-"},
        "spec": {
            "driver": driver,
            "nodeName": node or _PROBE,
            "pool": {"name": node or _PROBE, "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
            **({} if counters_apart else {"sharedCounters": [{"name": "probe", "counters": counters}]}),
        },
    }


def list_probe(driver: str, node: str | None) -> JsonObject:
    """As `probe`, with an attribute that is a list. A server without lists drops the list, and then refuses the
    attribute because it has no value."""
    sent = probe(driver, node, counters_apart=True)
    sent["spec"]["devices"] = [{"name": "probe", "attributes": {"probe": {"strings": ["a", "b"]}}}]
    return sent


def kept_features(answer: JsonObject, *, counters_apart: bool) -> ServerFeatures:
    """From the server's answer to `probe`. Raises Unreachable for an answer that cannot be a slice."""
    spec = answer.get("spec")
    devices = (spec.get("devices") or [{}]) if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(devices, list) or not isinstance(devices[0], dict):
        raise Unreachable("the answer is not a ResourceSlice", about="the probe for slice fields")
    counters = bool(devices[0].get("consumesCounters"))
    return ServerFeatures(
        partitionable=counters and (counters_apart or bool(spec.get("sharedCounters"))),
        consumable=bool(devices[0].get("allowMultipleAllocations")),
        taints=bool(devices[0].get("taints")),
        binding=bool(devices[0].get("bindingConditions")),
        counters_apart=counters_apart,
    )
