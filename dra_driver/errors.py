"""The error family. Every error says what happened, to which object, whose move it is and when to try again.

    DriverError
    ├── InvalidInput            the user's move: change the object; trying again will not help
    │   └── InvalidConfig           an opaque config that cannot be decoded or does not fit its device
    ├── UnknownDevice           the user's or scheduler's move: this node has no such device
    ├── DeviceInUse             another claim's move: the hardware is held; clears when that claim is released
    ├── NodeNotReady            the administrator's move: driver root, device nodes, folders
    │   └── HardwareError           NVML or the kernel refused
    ├── CorruptState            a file of ours that cannot be trusted; it was put aside
    └── ClusterError            the API server's answer
        ├── NotFound                404
        ├── Conflict                409, stale resourceVersion or failed precondition
        │   └── AlreadyExists           409 on create
        ├── Gone                    410, the watch or list position expired
        ├── Rejected                400, 403, 405, 413, 415, 422: this request will never succeed as it is
        └── Unreachable             no connection, 429 and 5xx: try again

Adapters translate foreign exceptions into these in one place each and keep the cause (`raise ... from error`).
"Does not fit" is a result, not an exception.
"""

from collections.abc import Sequence


class DriverError(Exception):
    """Base of all errors that this project raises on purpose.

    `about` names the object: `claim team-a/train`, `GPU GPU-5a7b…`, `file /var/run/cdi/…`.
    `field` is the path of the offending field, or None.
    `retry_after_s` is when to try again; None means that trying again will not help until somebody acts.
    """

    retry_after_s: float | None = None

    def __init__(
        self,
        message: str,
        *,
        about: str | None = None,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.message = message
        self.about = about
        self.field = field
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s
        super().__init__(message)

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.about, self.field) if part)
        return f"{where}: {self.message}" if where else self.message


class InvalidInput(DriverError):
    """Something that a user wrote cannot be accepted. `problems` lists all that was found, one sentence each."""

    def __init__(
        self, message: str, *, about: str | None = None, field: str | None = None, problems: Sequence[str] = ()
    ) -> None:
        self.problems = tuple(problems)
        super().__init__(message, about=about, field=field)


class InvalidConfig(InvalidInput):
    """An opaque config that cannot be decoded, or that does not fit the device it applies to."""


class UnknownDevice(DriverError):
    """An allocation names a device that this node does not have."""


class DeviceInUse(DriverError):
    """The physical device is held by another claim. `about` names the claim that was refused."""

    retry_after_s = 5.0


class NodeNotReady(DriverError):
    """Something that the node needs is missing; an administrator's move, retried meanwhile."""

    retry_after_s = 5.0


class HardwareError(NodeNotReady):
    """NVML or the kernel refused a call. `code` is the NVML return value, or None."""

    def __init__(
        self,
        message: str,
        *,
        about: str | None = None,
        field: str | None = None,
        retry_after_s: float | None = None,
        code: int | None = None,
    ) -> None:
        self.code = code
        super().__init__(message, about=about, field=field, retry_after_s=retry_after_s)


class CorruptState(DriverError):
    """A file of ours that cannot be trusted. It was put aside, never silently dropped."""


class ClusterError(DriverError):
    """The API server refused or could not be asked. `status` is the HTTP status, or None without an answer."""

    def __init__(
        self,
        message: str,
        *,
        about: str | None = None,
        field: str | None = None,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        self.status = status
        super().__init__(message, about=about, field=field, retry_after_s=retry_after_s)


class NotFound(ClusterError):
    """404: no such object, or no such resource type on this server."""


class Conflict(ClusterError):
    """409: somebody changed the object since it was read; read again and decide again."""

    retry_after_s = 0.1


class AlreadyExists(Conflict):
    """409 on create: an object of that name is there."""


class Gone(ClusterError):
    """410: the position in the watch or list expired; list again."""

    retry_after_s = 0.0


class Rejected(ClusterError):
    """The server will not accept this request as it is (400, 401, 403, 405, 413, 415, 422)."""


class Unreachable(ClusterError):
    """No answer, 429 or 5xx; worth trying again."""

    retry_after_s = 1.0
