"""What the driver says of a GPU's health when it is asked: errors counted, rows to remap, what should be done.

`kubelet_plugin.hardware.nvml` reads one `HealthReading` for each GPU with every look; what it means is decided in
`kubelet_plugin.hardware.conditions`. Each question may stay without an answer: older GPUs do not know some, GPUs in
MIG mode
do not answer others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from dra_driver.api.inventory import GpuFacts
from dra_driver.devices.health import Severity
from kubelet_plugin.hardware.conditions import Reading, Trouble

_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the node",
}
"""Source: nvmlDeviceGpuRecoveryAction_t."""

_ACTION_NAMES = {
    1: "GpuReset",
    2: "NodeReboot",
    3: "DrainP2P",
    4: "DrainAndReset",
    5: "RecoverImexDomain",
    6: "BusReset",
    7: "SystemReboot",
}
_DRAIN_P2P = 3

type Ask = Callable[..., Any]
"""Calls a function of the library about one GPU; None when there is no answer."""


@dataclass(frozen=True, slots=True)
class HealthReading:
    """None is a question without an answer. `uncorrected_errors` counts since the driver was loaded."""

    uncorrected_errors: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    repair_pending: bool | None = None
    recovery_action: int | None = None
    max_clock_mhz: int | None = None
    """Of the multiprocessors."""


def health_reading(ask: Ask, library: Any, handle: Any) -> HealthReading:
    """Ask all questions about the GPU with this handle."""
    remapped = ask(library.nvmlDeviceGetRemappedRows, handle)
    repair = ask(library.nvmlDeviceGetRepairStatus, handle)
    return HealthReading(
        uncorrected_errors=ask(
            library.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        remap_pending=bool(remapped[2]) if remapped is not None else None,
        remap_failed=bool(remapped[3]) if remapped is not None else None,
        repair_pending=any(repair) if repair is not None else None,
        recovery_action=_recovery_action(ask, library, handle),
        max_clock_mhz=ask(library.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
    )


def _recovery_action(ask: Ask, library: Any, handle: Any) -> int | None:
    values = ask(library.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def reading_of(gpu: GpuFacts, health: HealthReading) -> Reading:
    """What is wrong with a GPU that answers, by what it answered. Pure."""
    found = [*_memory(health), *_action(health), *_fabric(gpu)]
    untold = [type_ for type_, answer in _answers(health) if answer is None]
    no_action = None if health.recovery_action is None else health.recovery_action == 0
    return Reading(tuple(found), no_action, frozenset(untold))


def _answers(health: HealthReading) -> tuple[tuple[str, int | bool | None], ...]:
    """Types of trouble with the answer that tells of each."""
    return (
        ("Ecc", health.uncorrected_errors),
        ("RowRemap", health.remap_failed),
        ("Repair", health.repair_pending),
        ("RecoveryAction", health.recovery_action),
    )


def _memory(health: HealthReading) -> list[Trouble]:
    found = []
    if health.uncorrected_errors:
        count = health.uncorrected_errors
        found.append(Trouble("Ecc", "Warning", f"{count} uncorrected memory errors since the driver was loaded"))
    if health.remap_failed:
        found.append(
            Trouble("RowRemap", "Critical", "remapping memory rows failed; the GPU must be replaced", "failed")
        )
    if health.remap_pending:
        found.append(Trouble("RowRemap", "Warning", "memory rows are remapped at the next reset of the GPU", "pending"))
    if health.repair_pending:
        found.append(Trouble("Repair", "Warning", "the GPU repairs itself at its next reset"))
    return found


def _action(health: HealthReading) -> list[Trouble]:
    action = health.recovery_action
    if not action:
        return []
    what = _ACTIONS.get(action, f"action {action}")
    name = _ACTION_NAMES.get(action, str(action))
    severity: Severity = "Warning" if action == _DRAIN_P2P else "Critical"
    return [Trouble("RecoveryAction", severity, f"the driver asks to {what}", name)]


def _fabric(gpu: GpuFacts) -> list[Trouble]:
    """A GPU behind NVSwitches cannot start a program until it is registered with the fabric manager."""
    fabric = gpu.fabric
    if fabric is None or (gpu.mig is not None and gpu.mig.enabled):
        return []
    if fabric.state != "Completed":
        message = "the GPU is not registered with the NVLink fabric; is the fabric manager running?"
        return [Trouble("NvLink", "Critical", message, fabric.state)]
    if fabric.status != 0:
        message = f"registration with the NVLink fabric failed with NVML code {fabric.status}"
        return [Trouble("NvLink", "Critical", message, "RegistrationFailed")]
    if fabric.health == "Unhealthy":
        return [Trouble("NvLink", "Critical", "the NVLink fabric reports the GPU as unhealthy", "Unhealthy")]
    if fabric.health == "LimitedCapacity":
        return [Trouble("NvLink", "Warning", "the NVLink fabric works with limited capacity", "LimitedCapacity")]
    return []
