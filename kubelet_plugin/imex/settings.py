"""The settings of an IMEX daemon's supervisor: read once by its `main`, from flags and `GPU_DRA_*` variables.

The controller writes them, so little is checked.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.runtime.logs import LEVELS
from dra_driver.runtime.settings import SettingsParser, filled, path
from kubelet_plugin.imex.probe import FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ImexSettings:
    """Settings of a supervisor. The controller writes most of them into the DaemonSet of the domain."""

    namespace: str
    """Of the ComputeDomain."""
    name: str
    uid: str
    """Of the ComputeDomain: another one of its name is not obeyed."""
    node_name: str
    address: str
    """Of this pod; peers find the daemon there."""
    max_nodes: int
    """Names in the list of nodes; the same for all daemons of a domain, or they refuse each other."""
    folder: Path
    """Of this container alone: configuration, list of nodes and sockets."""
    hosts_file: Path
    """Where this container's resolver looks; it is written in place, since it is a mount."""
    host_root: Path
    """Where /proc has the version of the node's driver."""
    kubeconfig: Path | None
    """None: the service account of the pod."""
    log_level: str
    log_format: str


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> ImexSettings:
    """A mistake ends the process with status 2 and a line that says it."""
    parser = settings_parser()
    options = parser.parse(arguments, environment)
    for flag, value in (
        ("--domain", options.domain),
        ("--domain-uid", options.domain_uid),
        ("--node-name", options.node_name),
        ("--pod-ip", options.pod_ip),
    ):
        if not value:
            parser.refuse(f"{flag} is needed; the DaemonSet that the controller makes has it")
    namespace, _, name = options.domain.partition("/")
    more = {"namespace": namespace, "name": name, "uid": options.domain_uid, "address": options.pod_ip}
    return filled(ImexSettings, options, **more)


def settings_parser() -> SettingsParser:
    """What there is to set, for the documentation, too."""
    parser = SettingsParser(
        "gpu-dra-imex-daemon",
        "Runs the IMEX daemon of one ComputeDomain on this node, in a pod that the controller makes. As a probe, with"
        " --live or --ready alone, it asks the one that runs in the same container.",
    )
    setting = parser.setting
    setting("--domain", "", "the ComputeDomain, as NAMESPACE/NAME", type=_domain)
    setting("--domain-uid", "", "UID of the ComputeDomain")
    setting("--node-name", "", "name of this node, as in the cluster")
    setting("--pod-ip", "", "IP address of this pod")
    setting("--max-nodes", 18, "nodes that a domain can have in one clique; the same on all of them", type=int)
    setting("--folder", FOLDER, "a folder of this container alone", type=Path)
    setting("--hosts-file", "/etc/hosts", "where this container's names are looked up", type=Path)
    setting("--host-root", "/", "where /proc/driver/nvidia is", type=Path)
    setting("--kubeconfig", "", "kubeconfig file; without one, the pod's service account is used", type=path)
    setting("--log-level", "info", "how much to log", choices=LEVELS)
    setting("--log-format", "json", "how to log", choices=("json", "console"))
    return parser


def _domain(text: str) -> str:
    namespace, slash, name = text.partition("/")
    if text and not (namespace and slash and name and "/" not in name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return text
