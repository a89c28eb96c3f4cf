"""The error family. Every error says what happened, to which object, who must act and when to try again.

    DriverError
    ├── InvalidInput            the user must change the object; retrying does not help
    │   ├── InvalidConfig           an opaque config that cannot be decoded or does not fit its device
    │   ├── NoSuchObject            a command names an object that does not exist
    │   └── UnreadableFile          a file or folder is not there, or may not be read
    ├── UnknownDevice           the user or the scheduler must act: this node has no such device
    ├── DeviceInUse             another claim holds the hardware; resolved when that claim is released
    ├── NodeNotReady            the administrator must act: driver root, device nodes, folders
    │   ├── DomainNotReady          no one must act: a claim waits for its ComputeDomain
    │   └── HardwareError           NVML or the kernel refused
    ├── CorruptState            a damaged file of the driver, which it has moved aside
    └── ClusterError            the API server's answer
        ├── NotFound                404
        ├── Conflict                409, stale resourceVersion or failed precondition
        │   └── AlreadyExists           409 on create
        ├── Gone                    410, the watch or list position expired
        ├── Rejected                400, 403, 405, 413, 415, 422: this request will never succeed unchanged
        └── Unreachable             no connection, 429 and 5xx: try again

Adapters translate foreign exceptions into these in one place each and keep the cause (`raise ... from error`).
"Does not fit" is a result, not an exception. Each kind has its `help`, from which docs/troubleshooting.md is generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import ClassVar


class Move(StrEnum):
    """Who must act."""

    USER = "the user"
    ADMINISTRATOR = "the administrator"
    OTHER_CLAIM = "no one: another claim holds the GPU"
    NO_ONE = "no one: the driver and the kubelet retry"
    AUTHORS = "the authors of the driver"


@dataclass(frozen=True, slots=True)
class Help:
    """Documentation of a kind of error, in Markdown: who must act, what happened, and what to do."""

    move: Move
    event: str
    advice: str


class DriverError(Exception):
    """Base of all errors that this project raises on purpose.

    `about` names the object: `claim team-a/train`, `GPU GPU-5a7b…`, `file /var/run/cdi/…`.
    `field` is the path of the offending field, or None.
    `retry_after_s` is when to try again; None means that retrying alone does not help.
    """

    retry_after_s: float | None = None
    help: ClassVar[Help] = Help(
        Move.AUTHORS,
        "An error that no other kind describes. `internal error` in the message means a defect of the driver.",
        "The log of the node plugin or the controller has a stack trace. Try a newer release, or report the error"
        " with the log. The kubelet retries the claim meanwhile.",
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
        """The whole message without the name `known`, for texts that already name this object."""
        return str(self).removeprefix(f"{known}: ")


class InvalidInput(DriverError):
    """A user's input is invalid. `problems` lists all problems, one sentence each."""

    help = Help(
        Move.USER,
        "A claim, class, policy, setting, file or option is wrong. The message lists all mistakes with their fields.",
        "Correct what the message names. `dractl check FILES` finds the same mistakes before you apply manifests. The"
        " spec of a claim is immutable: delete the claim and the pods that use it, and create it again. An"
        " administrator must correct a policy or setting; controller and plugin exit with status 2 until then.",
    )

    def __init__(
        self, message: str, *, about: str | None = None, field: str | None = None, problems: Sequence[str] = ()
    ) -> None:
        self.problems = tuple(problems)
        super().__init__(message, about=about, field=field)


class NoSuchObject(InvalidInput):
    """A command names an object that does not exist. `dractl` ends with status 1, as for every answer that is no."""

    help = Help(
        Move.USER,
        "The object that a command of `dractl` names does not exist, or is in another namespace.",
        "Check the name and the namespace: `dractl get claims`, `kubectl get pods --all-namespaces`.",
    )


class UnreadableFile(InvalidInput):
    """A file or folder that is not there, or may not be read or written. `dractl` ends with status 3."""

    help = Help(
        Move.USER,
        "A file or folder that was passed to `dractl` does not exist or is not readable.",
        "Correct the path; the exit status is 3.",
    )


class InvalidConfig(InvalidInput):
    """An opaque config that cannot be decoded, or that does not fit the device it applies to."""

    help = Help(
        Move.USER,
        "The config of a claim or class cannot be decoded, or the device does not support it.",
        "Compare the named field with [configuration.md](configuration.md), and the setting with the tables in"
        " [sharing.md](sharing.md#what-excludes-what). If the config is `FromClass`, an administrator must correct it."
        " Then create the claim again.",
    )

    @classmethod
    def of_all(cls, problems: "Sequence[InvalidConfig]") -> "InvalidConfig":
        """All of them as one error, with the field of the first; `problems` is not empty."""
        first, *others = problems
        return cls(
            "; ".join([first.message, *map(str, others)]),
            field=first.field,
            problems=[text for problem in problems for text in (problem.problems or (str(problem),))],
        )


class UnknownDevice(DriverError):
    """An allocation names a device that this node does not have."""

    help = Help(
        Move.USER,
        "This node no longer has the claim's device: the GPU was lost, the policy changed, or another release or "
        "`--driver-name` named the device differently.",
        "Check whether the GPU exists: `kubectl get nodeinventories NODE -o yaml`. If not, delete the pod and its"
        " claim; the scheduler then chooses an existing device. If all claims of a node fail like this, plugin and"
        " controller have different policies.",
    )


class DeviceInUse(DriverError):
    """The physical device is held by another claim. `about` names the claim that was refused."""

    retry_after_s = 5.0
    help = Help(
        Move.OTHER_CLAIM,
        "Another claim holds the claim's GPU or part of a GPU. The message names the other claim.",
        "Wait until the pods of the other claim end. If they no longer exist, the kubelet releases the claim within"
        " two minutes, or the plugin when it starts or at its next sweep. If both claims have running pods, two"
        " drivers allocate the same GPU during a migration: see [gpu-operator.md](gpu-operator.md).",
    )


class NodeNotReady(DriverError):
    """The node lacks something that an administrator must provide; the driver retries meanwhile."""

    retry_after_s = 5.0
    help = Help(
        Move.ADMINISTRATOR,
        "Something on the node is missing, full or not permitted: the NVIDIA driver, a device node, a folder, a"
        " program, a kernel module, a port.",
        "Correct the file or program that the message names. `kubectl get nodeinventories NODE -o yaml` lists under"
        " `problems` why GPUs are not offered. You need not restart anything: the plugin checks again every 30 s, and"
        " the kubelet retries the claim.",
    )


class DomainLack(Enum):
    """What a ComputeDomain lacks on the node of a claim."""

    READY_DAEMON = "the node is not ready in the domain, so another node may be the better choice"
    OTHER_NODES = "the node is ready, and waits for others"
    FREE_NODE = "the node is in another domain, so only another node can be chosen"


class DomainNotReady(NodeNotReady):
    """A claim of a ComputeDomain waits for its domain; no fault while pods of the domain still start."""

    help = Help(
        Move.NO_ONE,
        "A pod of a ComputeDomain waits until the IMEX daemon of its node is ready. With an NVIDIA driver before"
        " 570.158.01 it also waits until `numNodes` nodes are ready.",
        "The message says what is missing, and `dractl get domains` shows it for all nodes of the domain. The"
        " kubelet retries the claim.",
    )

    def __init__(self, message: str, *, about: str | None = None, lack: DomainLack = DomainLack.READY_DAEMON) -> None:
        self.lack = lack
        super().__init__(message, about=about)


class HardwareError(NodeNotReady):
    """NVML or the kernel refused a call. `code` is the NVML return value, or None."""

    help = Help(
        Move.ADMINISTRATOR,
        "NVML or the kernel refused an operation: a GPU is lost or needs a reset, MIG cannot change while a program"
        " uses the GPU, or a driver could not be bound.",
        "The message contains the error of NVML or the kernel. Conditions of the GPU in the node's inventory show"
        " whether it is unhealthy; taints keep new claims away. `nvidia-smi` on the node shows which programs use it."
        " Reset a GPU when no claim holds it and the plugin has released it: [reset.md](reset.md).",
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
    """A damaged file of the driver. The driver has moved it aside, never deleted it."""

    help = Help(
        Move.ADMINISTRATOR,
        "The journal of the node, `claims.journal`, is damaged or from a newer release. The plugin moves damaged"
        " lines to `claims.damaged` in the same folder and uses the others. `holds.log` there also records what was"
        " changed on the hardware.",
        "Check the disk of the node; the message names the file. The plugin prepares claims that are missing from the"
        " journal again when the kubelet asks. Running pods are not affected. After a downgrade by more than one"
        " release, see [upgrade.md](upgrade.md#downgrade).",
    )


class ClusterError(DriverError):
    """The API server refused a request or did not answer. `status` is the HTTP status, or None without an answer."""

    help = Help(
        Move.ADMINISTRATOR,
        "The API server returned an error other than those below.",
        "The message contains the server's error.",
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
        "The API server has no such object or no such kind.",
        "If an object is missing, it was deleted, and the driver continues without it. If a kind is missing, its"
        " definition is not installed (`crds.install`), or Kubernetes is older than 1.34.",
    )


class Conflict(ClusterError):
    """409: the object has changed since it was read; read it again and decide again."""

    retry_after_s = 0.1
    help = Help(
        Move.NO_ONE,
        "Another client changed the object at the same moment.",
        "Nothing. If this persists, two controllers write the same objects: check for another installation, and"
        " whether two releases have the same `driverName`.",
    )


class AlreadyExists(Conflict):
    """409 on create: an object of that name exists."""

    help = Help(
        Move.NO_ONE,
        "An object of that name already exists.",
        "Nothing: the driver uses the existing object if it belongs to the driver.",
    )


class Gone(ClusterError):
    """410: the position in the watch or list expired; list again."""

    retry_after_s = 0.0
    help = Help(
        Move.NO_ONE,
        "The position of a watch or list has expired.",
        "Nothing: the driver lists everything again.",
    )


class Rejected(ClusterError):
    """The server will not accept this request unchanged (400, 401, 403, 405, 413, 415, 422)."""

    help = Help(
        Move.ADMINISTRATOR,
        "The API server refuses the request: RBAC forbids it, or an admission policy, a webhook or validation"
        " refuses it.",
        "`forbidden` names the service account, the verb and the resource: compare them with"
        " [security.md](security.md#what-each-service-account-may-do), and check that chart and image are of one"
        " release. If the message names a webhook or policy, ask its owner in the cluster.",
    )


class Unreachable(ClusterError):
    """No answer, 429 or 5xx; retrying can help."""

    retry_after_s = 1.0
    help = Help(
        Move.NO_ONE,
        "The API server does not answer, answers 429 or 5xx, or has a certificate that is not trusted.",
        "Wait. Prepared claims stay prepared meanwhile. If this persists, check network policies, the API server's"
        " address in the kubeconfig, and its certificate.",
    )
