"""The error family. Every error says what happened, to which object, whose move it is and when to try again.

    DriverError
    ├── InvalidInput            the user's move: change the object; trying again will not help
    │   └── InvalidConfig           an opaque config that cannot be decoded or does not fit its device
    ├── UnknownDevice           the user's or scheduler's move: this node has no such device
    ├── DeviceInUse             another claim's move: the hardware is held; clears when that claim is released
    ├── NodeNotReady            the administrator's move: driver root, device nodes, folders
    │   ├── DomainNotReady          nobody's: a claim waits for its ComputeDomain
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
"Does not fit" is a result, not an exception. Each kind has its `help`, of which docs/troubleshooting.md is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Move(StrEnum):
    """Whose it is."""

    USER = "the user's"
    ADMINISTRATOR = "the administrator's"
    OTHER_CLAIM = "another claim's"
    NOBODY = "nobody's: it is tried again"
    OURS = "the driver's authors'"


@dataclass(frozen=True, slots=True)
class Help:
    """What people are told of a kind of error, in sentences of Markdown for the page on it."""

    move: Move
    said: str
    advice: str


class DriverError(Exception):
    """Base of all errors that this project raises on purpose.

    `about` names the object: `claim team-a/train`, `GPU GPU-5a7b…`, `file /var/run/cdi/…`.
    `field` is the path of the offending field, or None.
    `retry_after_s` is when to try again; None means that trying again will not help until somebody acts.
    """

    retry_after_s: float | None = None
    help: ClassVar[Help] = Help(
        Move.OURS,
        "Something happened that no other kind describes: `internal error` in the message is a defect of the driver.",
        "The log of the node plugin or of the controller has a stack trace. Look whether a newer release is free of it,"
        " else report it with the log. The claim is tried again by kubelet meanwhile.",
    )

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

    def beside(self, known: str) -> str:
        """All of it for readers to whom the object `known` is named already: without that name."""
        return str(self).removeprefix(f"{known}: ")


class InvalidInput(DriverError):
    """Something that a user wrote cannot be accepted. `problems` lists all that was found, one sentence each."""

    help = Help(
        Move.USER,
        "Something that somebody wrote cannot be accepted: a claim, a class, a policy, a setting, a file, an "
        "option. All that is wrong is listed, each with its field.",
        "Correct what the message names. `dractl check FILES` says the same before anything is applied. The "
        "spec of a claim cannot be changed: delete it, with the pods that use it, and make it anew. A policy "
        "or setting is the administrator's; controller and plugin end with status 2 until it is right.",
    )

    def __init__(
        self, message: str, *, about: str | None = None, field: str | None = None, problems: Sequence[str] = ()
    ) -> None:
        self.problems = tuple(problems)
        super().__init__(message, about=about, field=field)


class InvalidConfig(InvalidInput):
    """An opaque config that cannot be decoded, or that does not fit the device it applies to."""

    help = Help(
        Move.USER,
        "The config of a claim or class cannot be decoded, or wants of a device what it cannot do.",
        "Compare the field that is named with [configuration.md](configuration.md), and the wish with the "
        "tables of [sharing.md](sharing.md#what-excludes-what). A config that comes `FromClass` is the "
        "administrator's. Then make the claim anew.",
    )


class UnknownDevice(DriverError):
    """An allocation names a device that this node does not have."""

    help = Help(
        Move.USER,
        "The claim was given a device that this node does not have any more: it was lost, taken out of the "
        "policy, or is named as another release or `--driver-name` names it.",
        "Look whether the GPU is there: `kubectl get nodeinventories NODE -o yaml`. If it is gone, delete the "
        "pod and its claim: the scheduler chooses among what is there now. If all claims of a node fail so, "
        "plugin and controller were given different policies.",
    )


class DeviceInUse(DriverError):
    """The physical device is held by another claim. `about` names the claim that was refused."""

    retry_after_s = 5.0
    help = Help(
        Move.OTHER_CLAIM,
        "Another claim holds the GPU, or the part of it that this claim was given. The message names the other one.",
        "Wait: it clears when the other claim's pods end. If these are gone, kubelet releases it within two "
        "minutes, and the plugin when it starts or at its next sweep. If both claims are of pods that run, "
        "both drivers of a move hand out the same GPU: see [gpu-operator.md](gpu-operator.md).",
    )


class NodeNotReady(DriverError):
    """Something that the node needs is missing; an administrator's move, retried meanwhile."""

    retry_after_s = 5.0
    help = Help(
        Move.ADMINISTRATOR,
        "Something that the node needs is missing, full or not allowed: the NVIDIA driver, a device node, a "
        "folder, a program, a kernel module, a port.",
        "The message names the file or program. `kubectl get nodeinventories NODE -o yaml` lists under "
        "`problems` what keeps GPUs from being offered. Nothing has to be restarted afterwards: the plugin "
        "looks again every 30 s, and kubelet tries the claim again.",
    )


class DomainNotReady(NodeNotReady):
    """A claim of a ComputeDomain waits for its domain; nobody's fault as long as pods of it are still coming."""

    help = Help(
        Move.NOBODY,
        "A pod of a ComputeDomain has to wait until the domain is ready on its node: until the daemon there has found "
        "its peers, or until there are `numNodes` nodes.",
        "The message says what is missing; `dractl get domains` says it of all nodes of the domain. kubelet tries the "
        "claim again by itself.",
    )


class HardwareError(NodeNotReady):
    """NVML or the kernel refused a call. `code` is the NVML return value, or None."""

    help = Help(
        Move.ADMINISTRATOR,
        "NVML or the kernel refused what was asked of the hardware: a GPU that is lost or wants a reset, MIG "
        "that cannot be made while a program uses the GPU, a binding that did not come about.",
        "The message has NVML's or the kernel's own words. Conditions of the GPU in its node's inventory say "
        "whether it is sick, and taints keep new claims away from it. `nvidia-smi` on the node shows who uses "
        "it; a GPU that wants a reset gets it when no claim holds it and the plugin has released it: [reset.md]"
        "(reset.md).",
    )

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

    help = Help(
        Move.ADMINISTRATOR,
        "The journal of the node, `claims.journal`, is damaged or not for this release. Lines that cannot be"
        " trusted are put aside into `claims.damaged` beside it; the others are used."
        " What was made of the hardware is known from `holds.log` beside it, too.",
        "The message names the file. Look at the disk of the node. Claims that are not in the journal any "
        "more are prepared anew when kubelet asks; pods that run are not touched. After a downgrade by more "
        "than one release: [upgrade.md](upgrade.md#downgrade).",
    )


class ClusterError(DriverError):
    """The API server refused or could not be asked. `status` is the HTTP status, or None without an answer."""

    help = Help(
        Move.ADMINISTRATOR,
        "The API server's answer was none of those below.",
        "The message has the server's own words.",
    )

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

    help = Help(
        Move.ADMINISTRATOR,
        "The API server knows no such object, or no such type.",
        "An object that is gone was deleted by somebody; what needed it goes on without. A type that is "
        "missing is a definition that is not installed (`crds.install`), or a Kubernetes older than 1.34.",
    )


class Conflict(ClusterError):
    """409: somebody changed the object since it was read; read again and decide again."""

    retry_after_s = 0.1
    help = Help(
        Move.NOBODY,
        "Somebody changed the object at the same moment.",
        "Nothing. If it does not end, two controllers write the same objects: look who else is installed, and "
        "whether two releases have the same `driverName`.",
    )


class AlreadyExists(Conflict):
    """409 on create: an object of that name is there."""

    help = Help(
        Move.NOBODY,
        "An object of that name is there already.",
        "Nothing: what is there is looked at, and used where it is ours.",
    )


class Gone(ClusterError):
    """410: the position in the watch or list expired; list again."""

    retry_after_s = 0.0
    help = Help(
        Move.NOBODY,
        "The API server has forgotten the place where a watch was.",
        "Nothing: everything is listed anew.",
    )


class Rejected(ClusterError):
    """The server will not accept this request as it is (400, 401, 403, 405, 413, 415, 422)."""

    help = Help(
        Move.ADMINISTRATOR,
        "The API server refuses the request: it is forbidden, or an admission policy, a webhook or a "
        "validation says no.",
        "`forbidden` names the service account, the verb and the resource: compare with "
        "[security.md](security.md#what-each-service-account-may-do), and whether chart and image are of one "
        "release. A webhook or policy that is named is somebody's of the cluster.",
    )


class Unreachable(ClusterError):
    """No answer, 429 or 5xx; worth trying again."""

    retry_after_s = 1.0
    help = Help(
        Move.NOBODY,
        "The API server does not answer, or answers that it is busy or broken (429 and 5xx), or its "
        "certificate is not trusted.",
        "Nothing, if it ends. Claims that are prepared stay so, also when kubelet asks again meanwhile. If it "
        "does not end: network policies, the API server's address in the kubeconfig, its certificate.",
    )
