"""Kubelet's clock settings; the defaults are those of Kubernetes 1.36, tests shorten them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """All in seconds."""

    registry_poll_s: float = 0.2
    """How often the registration directory is looked at (kubelet: a file watch and a loop each second)."""
    dial_s: float = 10.0
    info_s: float = 1.0
    notify_s: float = 5.0
    registration_retry_s: float = 0.5
    """First wait after a failed registration; doubled each time."""
    call_s: float = 45.0
    """Deadline of a prepare or unprepare call."""
    pod_retry_s: float = 10.0
    """Wait before a pod start that failed is tried again (kubelet: about 90)."""
    health_retry_s: float = 5.0
    """Wait before a health stream that ended is opened again."""
    reconcile_s: float = 60.0
    """How often claims of pods that are gone are looked for."""
    wipe_after_s: float = 30.0
    """How long a driver may be without a connection before its slices are deleted."""
