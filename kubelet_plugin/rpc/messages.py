"""Converts the kubelet's messages to values and back. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from dra_driver.errors import DriverError
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2, health_v1_pb2, health_v1alpha1_pb2
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.lifecycle import PreparedDevice

type Prepared = Mapping[str, tuple[PreparedDevice, ...] | DriverError]
"""By claim UID: its devices, or why it could not be prepared."""

type Unprepared = Mapping[str, DriverError | None]

_NO_ANSWER = "internal error: the claim was not answered; this is a defect of the driver"


@dataclass(frozen=True, slots=True)
class HealthVersion:
    """One version of the DRAResourceHealth service."""

    service: str
    messages: ModuleType


HEALTH_VERSIONS = (
    HealthVersion(kubelet_api.HEALTH_V1, health_v1_pb2),
    HealthVersion(kubelet_api.HEALTH_V1ALPHA1, health_v1alpha1_pb2),
)


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health of one published device; `healthy` None means unknown. `since` is in Unix seconds."""

    pool: str
    device: str
    healthy: bool | None
    since: int
    message: str = ""


def claims_of(request: Any) -> list[ClaimRef]:
    """The claims of a prepare or unprepare request, in its order, without duplicates."""
    return list({claim.uid: ClaimRef(claim.namespace, claim.name, claim.uid) for claim in request.claims}.values())


def prepare_response(claims: Sequence[ClaimRef], prepared: Prepared) -> Any:
    """An entry for each requested claim, with devices or with an error of one line."""
    response = dra_v1_pb2.NodePrepareResourcesResponse()
    for claim in claims:
        entry = response.claims[claim.uid]
        answer = prepared.get(claim.uid)
        if answer is None:
            entry.error = _NO_ANSWER
        elif isinstance(answer, DriverError):
            entry.error = one_line(answer)
        else:
            entry.devices.extend(_device(device) for device in answer)
    return response


def unprepare_response(claims: Sequence[ClaimRef], unprepared: Unprepared) -> Any:
    """An entry for each requested claim; an empty one means that it is released."""
    response = dra_v1_pb2.NodeUnprepareResourcesResponse()
    for claim in claims:
        entry = response.claims[claim.uid]
        if claim.uid not in unprepared:
            entry.error = _NO_ANSWER
        elif (error := unprepared[claim.uid]) is not None:
            entry.error = one_line(error)
    return response


def health_response(version: HealthVersion, devices: Iterable[DeviceHealth], timeout_s: int) -> Any:
    """All devices in one message; for the kubelet, the health of a missing device is unknown."""
    messages = version.messages
    words = {True: messages.HEALTHY, False: messages.UNHEALTHY, None: messages.UNKNOWN}
    return messages.NodeWatchResourcesResponse(
        devices=[
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                health=words[device.healthy],
                last_updated_time=device.since,
                health_check_timeout_seconds=timeout_s,
                message=device.message,
            )
            for device in devices
        ]
    )


def one_line(error: DriverError) -> str:
    """An error in the form of a pod's Event."""
    return " ".join(str(error).split())


def _device(device: PreparedDevice) -> Any:
    message = dra_v1_pb2.Device(
        request_names=device.request_names,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )
    if device.share_id is not None:
        message.share_id = device.share_id
    return message
