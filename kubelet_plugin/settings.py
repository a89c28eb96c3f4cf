"""The node plugin's settings: read once by `main`, from flags and from `GPU_DRA_*` variables; nothing else reads them.

Each field documents its unit, default and reason to change it. A flag overrides the variable of the same name.
"""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.features import Feature, Gates
from dra_driver.kube.endpoint import pod_namespace
from dra_driver.names import GPU_DRIVER, is_uid
from dra_driver.runtime.logs import LEVELS
from dra_driver.runtime.settings import (
    FEATURE_GATES,
    OTLP_ENDPOINT,
    SettingsParser,
    driver_name,
    endpoint,
    feature_gates,
    filled,
    http_url,
    optional,
    path,
    seconds,
)
from dra_driver.runtime.tracing import endpoint_asked_for


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePluginSettings:
    """Settings of a plugin process. Paths are as this process sees them."""

    node_name: str
    namespace: str
    """The driver's own. Daemons of ComputeDomains run there, and in no other."""
    kubeconfig: Path | None
    """None: the service account of the pod."""
    driver_name: str
    pod_uid: str | None
    """Part of the socket names, so that two plugins can serve during a rolling update; None: classic names."""
    kubelet_root: Path
    cdi_root: Path
    state_dir: Path
    host_root: Path
    driver_root: str | None
    """Folder of the NVIDIA driver on the host; None: the plugin searches for it."""
    cdi_hook: str | None
    """Host path of nvidia-cdi-hook or nvidia-ctk, or `none`; None: the plugin searches for it, or copies the image's to
    the host."""
    fabric_manager: str | None
    """Where Fabric Manager takes commands: a socket on the host, HOST or HOST:PORT; None: the plugin searches for the
    socket. For the gate FabricManagerPartitioning."""
    imex_socket: str
    """Where on the host its own IMEX daemon takes commands. For the gate HostManagedIMEXDaemon."""
    publisher: str
    """`controller` or `node`: who writes ResourceSlices."""
    policy: Path | None
    """A PublishingPolicy that comes with the installation. It holds where the publisher has decided nothing."""
    validation_command: tuple[str, ...]
    """Checks a GPU if the policy says `health: {validate: true}`; empty: only the built-in check."""
    simulate: str | None
    """A profile's name or a record's file, or either with `:INDEX`: simulated hardware below host_root, created if
    missing."""
    feature_gates: Gates
    """The same as the controller's; by default all gates that are not alpha are on."""
    discovery_interval_s: float
    cleanup_interval_s: float
    http_endpoint: str | None
    """HOST:PORT of probes and metrics; None: none."""
    debug_pages: bool
    """Whether that port also shows stacks, held claims and the last errors, to everyone who can reach it."""
    otlp_endpoint: str | None
    """URL of the collector that gets spans; None: no tracing, and its libraries are not imported."""
    log_level: str
    log_format: str

    @property
    def compute_domains(self) -> bool:
        """Whether the node takes part in ComputeDomains. Only a controller manages them and publishes their devices."""
        return Feature.COMPUTE_DOMAINS in self.feature_gates and self.publisher == "controller"

    @property
    def prepares_for_binding(self) -> bool:
        """Whether claims are prepared before their pods are bound. The controller names them, and the answer is a part
        of the device status."""
        needed = {Feature.BINDING_CONDITIONS, Feature.DEVICE_STATUS}
        return needed <= self.feature_gates.on and self.publisher == "controller"


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> NodePluginSettings:
    """Settings from command line and environment. A mistake ends the process with status 2 and a message."""
    parser = _parser()
    options = parser.parse(arguments, environment)
    if not options.node_name:
        parser.refuse("--node-name is needed (in a DaemonSet: GPU_DRA_NODE_NAME from spec.nodeName)")
    return filled(
        NodePluginSettings,
        options,
        namespace=options.namespace or pod_namespace() or "default",
        state_dir=options.state_dir or options.kubelet_root / "plugins" / options.driver_name,
        discovery_interval_s=options.discovery_interval,
        cleanup_interval_s=options.cleanup_interval,
        otlp_endpoint=endpoint_asked_for(options.otlp_endpoint, environment),
    )


def _parser() -> SettingsParser:
    parser = SettingsParser(
        "gpu-dra-kubelet-plugin",
        "The node plugin: reports this node's GPUs and prepares ResourceClaims for the kubelet.",
    )
    setting = parser.setting
    setting("--node-name", "", "name of this node, as in the cluster")
    setting("--namespace", "", "namespace of the driver, where daemons of ComputeDomains run; default: that of the pod")
    setting("--kubeconfig", "", "kubeconfig file; without one, the pod's service account is used", type=path)
    setting("--driver-name", GPU_DRIVER, "name of the DRA driver; DeviceClasses must select the same", type=driver_name)
    setting("--pod-uid", "", "UID of this pod; makes rolling updates without a gap possible", type=_uid)
    setting("--kubelet-root", "/var/lib/kubelet", "folder of the kubelet, with plugins and plugins_registry", type=Path)
    setting("--cdi-root", "/var/run/cdi", "folder of the CDI files; the container runtime must read it", type=Path)
    setting("--state-dir", "", "folder of the journal; default: plugins/DRIVER below the kubelet's folder", type=path)
    setting("--host-root", "/", "where the host's root is mounted", type=Path)
    driver_root = "folder of the NVIDIA driver on the host; default: the plugin searches for it"
    setting("--driver-root", "", driver_root, type=optional)
    setting(
        "--cdi-hook",
        "",
        "nvidia-cdi-hook or nvidia-ctk on the host, or `none`; default: the plugin searches, or uses the image's",
        type=_hook,
    )
    setting(
        "--fabric-manager",
        "",
        "where Fabric Manager takes commands: a socket on the host, HOST or HOST:PORT; default: the plugin searches",
        type=_fabric_manager,
    )
    setting(
        "--imex-socket",
        "/etc/nvidia-imex/imex_ctrl.sock",
        "socket of the host's own IMEX daemon, its IMEX_CMD_UNIX_DOMAIN_PATH, for the gate HostManagedIMEXDaemon",
        type=_socket,
    )
    setting("--publisher", "controller", "who writes ResourceSlices", choices=("controller", "node"))
    setting("--policy", "", "file with the PublishingPolicy of the installation, made into GpuPolicies", type=path)
    setting(
        "--validation-command",
        "",
        "additional check of a GPU (GPU_UUID in its environment): a program with arguments, without a shell",
        type=_words,
    )
    setting(
        "--simulate",
        "",
        "simulate the hardware of a profile or a record: PROFILE or FILE, optionally with :INDEX",
        type=_simulated,
    )
    setting("--feature-gates", "", FEATURE_GATES, type=feature_gates)
    setting("--discovery-interval", 30.0, "seconds between discoveries of the hardware", type=seconds)
    setting(
        "--cleanup-interval", 600.0, "seconds between searches for prepared claims that no longer exist", type=seconds
    )
    setting("--http-endpoint", "", "HOST:PORT for /healthz, /readyz and /metrics; default: none", type=endpoint)
    parser.switch("--debug-pages", False, "also serve /debug there: stacks, held claims, the last errors")
    setting("--otlp-endpoint", "", OTLP_ENDPOINT, type=http_url)
    setting("--log-level", "info", "log level", choices=LEVELS)
    setting("--log-format", "json", "log format", choices=("json", "console"))
    return parser


def _uid(text: str) -> str | None:
    if text and not is_uid(text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be the UID of a pod")
    return text or None


def _hook(text: str) -> str | None:
    if text and text != "none" and not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither an absolute path on the host nor `none`")
    return text or None


def _fabric_manager(text: str) -> str | None:
    host, _, port = text.partition(":")
    if text and not text.startswith("/") and (not host or (port and not port.isdecimal())):
        raise argparse.ArgumentTypeError(f"{text!r} is neither an absolute path on the host, nor HOST or HOST:PORT")
    return text or None


def _socket(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an absolute path on the host")
    return text


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from error


def _simulated(text: str) -> str | None:
    _, colon, index = text.rpartition(":")
    if colon and not index.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not PROFILE or FILE, alone or with :INDEX")
    return text or None
