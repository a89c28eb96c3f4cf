"""Device metadata: files in containers that describe the devices of a claim (KEP-5304). Pure.

`kubelet_plugin.prepare.plan` enters here for a claim's files, the service for its answer to the kubelet. A container
that uses a request of the claim gets one file for it, read-only, whose path in `CONTAINER_FOLDER` is the same for every
driver:

    resourceclaims/<claim>/<request>/<driver>-metadata.json
    resourceclaimtemplates/<claim in the pod>/<request>/<driver>-metadata.json

The second is that of a claim from a template, because its pod does not know its name. Content, paths in containers, CDI
files and CDI ids are, byte for byte, those of Kubernetes' own helper for drivers in Go (kubeletplugin/metadata.go of
dynamic-resource-allocation 0.36), so NVIDIA's own driver and this one replace each other's files. Only the place on the
host differs. The helper names a folder for the claim's namespace and name: if a claim is deleted and created again with
that name, the end of the first removes the files of the second, and the longest names are too long for a folder.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pydantic_core import to_json

from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.model import CdiDevice, CdiSpec, ContainerEdits, Mount, json_of, qualified_name
from dra_driver.errors import NodeNotReady
from dra_driver.features import Feature
from dra_driver.names import POD_CLAIM_ANNOTATION, STANDARD_DOMAIN, is_dns_label
from kubelet_plugin.prepare.known_node import KnownNode, MetadataSource
from kubelet_plugin.prepare.lifecycle import ClaimMetadata, Entry, HeldDevice, PreparedDevice, digest_of

API_VERSION = "metadata.resource.k8s.io/v1alpha1"
"""What Kubernetes 1.36 and KubeVirt read. A file may have the same in several versions, newest first."""

CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"

_CDI_VERSION = "0.5.0"
"""Names of CDI devices may begin with a digit, as UIDs do."""

_ESCAPED = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})
"""As Go writes these characters in JSON."""


@dataclass(frozen=True, slots=True)
class RequestMetadata:
    """The files of one request: the metadata, and the CDI spec that mounts it."""

    request: str
    content: bytes = field(repr=False)
    spec: bytes = field(repr=False)


def wanted_metadata(claim: ResourceClaim, node: KnownNode) -> tuple[ClaimMetadata | None, tuple[str, ...]]:
    """Whether containers of the claim are to have it (None: not), and what of the claim has no effect.

    The annotation becomes part of a path in containers, and the API server accepts any text there.
    """
    if node.metadata is None or Feature.DEVICE_METADATA not in node.gates:
        return None, ()
    pod_claim = claim.metadata.annotations.get(POD_CLAIM_ANNOTATION, "")
    if not pod_claim or is_dns_label(pod_claim):
        return ClaimMetadata(pod_claim), ()
    text = f"annotation {POD_CLAIM_ANNOTATION} is {pod_claim[:80]!r}, which cannot be the name of a claim in a pod"
    return ClaimMetadata(), (text,)


def metadata_files(
    entry: Entry, node: KnownNode, source: MetadataSource, made: Mapping[HeldDevice, str]
) -> tuple[RequestMetadata, ...]:
    """Those of a claim that is to have them, by request. `made` are the UUIDs of MIG devices that were made for it."""
    by_request: dict[str, list[HeldDevice]] = {}
    for device in entry.devices:
        for request in device.request_names:
            by_request.setdefault(request, []).append(device)
    return tuple(
        RequestMetadata(
            request,
            _content(
                entry, request, [_described(device, node, source, made.get(device)) for device in devices], devices
            ),
            _spec(entry, request, node.driver, source.folder),
        )
        for request, devices in sorted(by_request.items())
    )


def metadata_digest(files: Iterable[RequestMetadata]) -> str:
    """How the files of a claim are compared with what the journal remembers of them; empty if there are none."""
    lines = [f"{file.request} {digest_of(file.content)} {digest_of(file.spec)}\n" for file in files]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest() if lines else ""


def host_name(claim_uid: str, request: str) -> str:
    """Of the metadata file on the host, in the folder of them all. A request has no `_` in its name."""
    return f"{claim_uid}_{request}.json"


def spec_name(driver: str, claim_uid: str, request: str) -> str:
    """Of the CDI file that mounts it."""
    return f"{driver}_metadata_{claim_uid}_{request}.json"


def answer_of(entry: Entry, driver: str) -> tuple[PreparedDevice, ...]:
    """The kubelet's answer. The first device of each request brings the request's metadata, after its own CDI ids: the
    kubelet names a device by the first."""
    if entry.metadata is None:
        return tuple(device.answer() for device in entry.devices)
    brought: set[str] = set()
    answer = []
    for device in entry.devices:
        new = [request for request in device.request_names if request not in brought]
        brought.update(new)
        answer.append(device.answer(_cdi_id(driver, entry.claim.uid, request) for request in new))
    return tuple(answer)


def _cdi_id(driver: str, claim_uid: str, request: str) -> str:
    return qualified_name(f"{driver}/metadata", f"{claim_uid}_{request}")


def _content(entry: Entry, request: str, described: list[JsonObject], devices: list[HeldDevice]) -> bytes:
    claim, pod_claim = entry.claim, entry.metadata.pod_claim if entry.metadata is not None else ""
    alternative = devices[0].alternative
    document: JsonObject = {
        "kind": "DeviceMetadata",
        "apiVersion": API_VERSION,
        # The helper, too, begins with 1 whenever a claim is prepared. No file is changed while a container reads it.
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 1},
        **({"podClaimName": pod_claim} if pod_claim else {}),
        "requests": [{"name": f"{request}/{alternative}" if alternative else request, "devices": described}],
    }
    return (to_json(document, indent=2).decode().translate(_ESCAPED) + "\n").encode()


def _described(device: HeldDevice, node: KnownNode, source: MetadataSource, made: str | None) -> JsonObject:
    return {
        "driver": node.driver,
        "pool": device.pool,
        "name": device.device,
        "attributes": dict(sorted((_published(device, node, source) | _identity(device, made)).items())),
    }


def _published(device: HeldDevice, node: KnownNode, source: MetadataSource) -> JsonObject:
    """As the ResourceSlice has them; nothing of a device that is no longer offered, or while the rules are not known: a
    claim that is written again needs none."""
    offer = None if isinstance(node.offers, NodeNotReady) else node.offers.get(device.device)
    if offer is None or offer.gpu.uuid != device.gpu_uuid:
        return {}
    if offer.sharing is not None and offer.share is None and device.share_id is None:
        offer = replace(offer, sharing=None)
    return source.attributes(offer)


def _identity(device: HeldDevice, made: str | None) -> JsonObject:
    """What is known of every device. A MIG device that is made for the claim is published before it has a UUID."""
    uuid = made or device.mig_uuid or (device.gpu_uuid if device.partition is None else None)
    identity = {"type": device.kind.value, f"{STANDARD_DOMAIN}/pciBusID": device.pci_bus_id}
    return {name: {"string": value} for name, value in (identity | ({"uuid": uuid} if uuid else {})).items()}


def _spec(entry: Entry, request: str, driver: str, folder: str) -> bytes:
    host_path = f"{folder}/{host_name(entry.claim.uid, request)}"
    mount = Mount(host_path, _container_path(entry, request, driver), ("ro", "bind"))
    device = CdiDevice(f"{entry.claim.uid}_{request}", ContainerEdits(mounts=(mount,)))
    return to_json(json_of(CdiSpec(_CDI_VERSION, f"{driver}/metadata", (device,))), indent=2)


def _container_path(entry: Entry, request: str, driver: str) -> str:
    pod_claim = entry.metadata.pod_claim if entry.metadata is not None else ""
    claim = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{entry.claim.name}"
    return f"{CONTAINER_FOLDER}/{claim}/{request}/{driver}-metadata.json"
