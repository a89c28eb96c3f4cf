"""The controller's settings: read once by `main`, from flags and `GPU_DRA_*` variables; nothing else reads them.

Each documents its unit, default and reason to change it.
"""

import argparse
import json
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dra_driver.api.meta import JsonObject
from dra_driver.domains.objects import DaemonSettings
from dra_driver.features import Gates
from dra_driver.kube.endpoint import pod_namespace
from dra_driver.kube.leader import LeaseTimes
from dra_driver.names import GPU_DRIVER
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
    names,
    optional,
    path,
    seconds,
)
from dra_driver.runtime.tracing import endpoint_asked_for


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Settings of the admission webhook. Secret and Service are in the namespace of the lease."""

    endpoint: str
    """HOST:PORT of HTTPS."""
    configuration: str
    """Name of the ValidatingWebhookConfiguration that the controller updates, if it exists."""
    secret: str
    service: str
    url: str | None
    """URL of the endpoint, without path, for an API server that cannot reach Services; None: the Service."""
    issued_here: bool
    """Whether the controller issues certificates; otherwise another program fills the Secret."""
    failure_policy: Literal["Fail", "Ignore"]
    """Whether an object with a config for this driver is refused if no replica answers."""
    timeout_s: int
    exempt_namespaces: tuple[str, ...]
    """Namespaces that are not reviewed: essential parts of the cluster must not depend on this webhook."""
    drain_s: float
    """How long a stopping replica still answers. Increase it if API servers receive changed endpoints late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of a controller process."""

    kubeconfig: Path | None
    """None: the service account of the pod."""
    driver_name: str
    policy: Path | None
    """A PublishingPolicy; None publishes every GPU of every node."""
    workers: int
    """Pools written at the same time: more publishes large clusters faster, fewer loads the API server less."""
    feature_gates: Gates
    """The same as the plugins'; by default all gates that are not alpha are on."""
    leader_election: bool
    """Disable it only if at most one process can run."""
    lease_namespace: str
    lease_name: str
    lease_times: LeaseTimes
    """Longer times tolerate slower API servers, shorter ones replace a failed leader sooner."""
    identity: str
    """Name of this process in the lease."""
    webhook: WebhookSettings | None
    """None: no webhook."""
    daemons: DaemonSettings
    """Settings of the pods of ComputeDomains' daemons."""
    http_endpoint: str | None
    """HOST:PORT of probes and metrics; None: none."""
    debug_pages: bool
    """Whether that port also shows stacks and what is published, to everyone who can reach it."""
    otlp_endpoint: str | None
    """URL of the collector that gets spans; None: no tracing, and its libraries are not imported."""
    log_level: str
    log_format: str


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> ControllerSettings:
    """Settings from command line and environment. A mistake ends the process with status 2 and a message."""
    parser = _parser()
    options = parser.parse(arguments, environment)
    times = LeaseTimes(options.lease_duration, options.renew_deadline, options.retry_period)
    if not times.lease_s > times.renew_s > times.retry_s:
        parser.refuse(
            "--lease-duration must be longer than --renew-deadline, and --renew-deadline longer than --retry-period"
        )
    if not 1 <= options.workers <= 64:
        parser.refuse(f"--workers {options.workers} is not between 1 and 64")
    namespace = options.lease_namespace or pod_namespace() or "default"
    return filled(
        ControllerSettings,
        options,
        lease_namespace=namespace,
        lease_times=times,
        identity=options.identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}",
        webhook=_webhook(options, parser, namespace),
        daemons=_daemons(options, parser, namespace),
        otlp_endpoint=endpoint_asked_for(options.otlp_endpoint, environment),
    )


def _daemons(options: argparse.Namespace, parser: SettingsParser, namespace: str) -> DaemonSettings:
    if not 1 <= options.max_nodes_per_imex_domain <= 1000:
        parser.refuse(f"--max-nodes-per-imex-domain {options.max_nodes_per_imex_domain} is not between 1 and 1000")
    return filled(
        DaemonSettings,
        options,
        "daemon_",
        namespace=namespace,
        log_level=options.log_level,
        log_format=options.log_format,
        max_nodes=options.max_nodes_per_imex_domain,
    )


def _webhook(options: argparse.Namespace, parser: SettingsParser, namespace: str) -> WebhookSettings | None:
    if not options.webhook_endpoint:
        return None
    if not 1 <= options.webhook_timeout <= 30:
        parser.refuse(f"--webhook-timeout {options.webhook_timeout} is not between 1 and 30 seconds")
    if options.webhook_url and not options.webhook_url.startswith("https://"):
        parser.refuse(f"--webhook-url {options.webhook_url}: an API server calls only https:// URLs")
    return filled(
        WebhookSettings,
        options,
        "webhook_",
        url=options.webhook_url.rstrip("/") or None,
        issued_here=options.webhook_certificates == "self-managed",
        timeout_s=options.webhook_timeout,
        exempt_namespaces=tuple(sorted({*options.webhook_exempt_namespaces, namespace})),
        drain_s=options.webhook_drain,
    )


def _parser() -> SettingsParser:
    parser = SettingsParser("gpu-dra-controller", "The controller: publishes the GPUs that nodes report.")
    setting = parser.setting
    setting("--kubeconfig", "", "kubeconfig file; without one, the pod's service account is used", type=path)
    setting("--driver-name", GPU_DRIVER, "name of the DRA driver; DeviceClasses must select the same", type=driver_name)
    setting("--policy", "", "file with the PublishingPolicy of the installation, made into GpuPolicies", type=path)
    setting("--workers", 16, "pools written at the same time, 1 to 64", type=int)
    setting("--feature-gates", "", FEATURE_GATES, type=feature_gates)
    parser.switch("--leader-election", True, "work only while holding the lease; off only for a single replica")
    setting("--lease-namespace", "", "namespace of the lease; default: that of the pod")
    setting("--lease-name", "gpu-dra-controller", "name of the lease")
    setting("--lease-duration", 15.0, "seconds before another replica may take over an expired lease", type=seconds)
    setting(
        "--renew-deadline", 10.0, "seconds for which the leader tries to renew its lease before it stops", type=seconds
    )
    setting("--retry-period", 2.0, "seconds between attempts to take or renew the lease", type=seconds)
    setting("--identity", "", "name of this process in the lease; default: host name and a random part")
    _declare_daemons(parser)
    _declare_webhook(parser)
    setting("--http-endpoint", "", "HOST:PORT for /healthz, /readyz and /metrics; default: none", type=endpoint)
    parser.switch("--debug-pages", False, "also serve /debug there: stacks and pools")
    setting("--otlp-endpoint", "", OTLP_ENDPOINT, type=http_url)
    setting("--log-level", "info", "log level", choices=LEVELS)
    setting("--log-format", "json", "log format", choices=("json", "console"))
    return parser


def _declare_daemons(parser: SettingsParser) -> None:
    setting = parser.setting
    setting("--daemon-image", "gpu-dra-driver", "image of the pods of ComputeDomains' daemons: the driver's own")
    policies = ("Always", "IfNotPresent", "Never")
    setting("--daemon-image-pull-policy", "IfNotPresent", "when nodes pull it from the registry", choices=policies)
    secrets = "names of pull Secrets in the lease's namespace, separated by commas"
    setting("--daemon-image-pull-secrets", "", secrets, type=names)
    setting("--daemon-service-account", "default", "service account of those pods; it may get and watch ComputeDomains")
    priority = "priority class of those pods; empty: none"
    setting("--daemon-priority-class", "system-node-critical", priority, type=optional)
    setting("--daemon-resources", "", "requests and limits of their container, as JSON; default: none", type=_resources)
    setting(
        "--max-nodes-per-imex-domain", 18, "maximum number of nodes of one NVLink clique in a ComputeDomain", type=int
    )


def _resources(text: str) -> JsonObject:
    """ResourceRequirements of core/v1, without claims."""
    try:
        resources = json.loads(text or "{}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(resources, dict) or not resources.keys() <= {"requests", "limits"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not an object with requests and limits")
    return resources


def _declare_webhook(parser: SettingsParser) -> None:
    setting = parser.setting
    setting("--webhook-endpoint", "", "HOST:PORT of the admission webhook (HTTPS); default: none", type=endpoint)
    setting(
        "--webhook-configuration",
        "gpu-dra-webhook",
        "name of the ValidatingWebhookConfiguration that the controller updates",
    )
    setting("--webhook-secret", "gpu-dra-webhook", "name of the Secret with the webhook's certificate")
    setting(
        "--webhook-service",
        "gpu-dra-controller",
        "name of the Service through which the API server reaches the webhook",
    )
    setting("--webhook-url", "", "https://HOST:PORT instead of the Service, for an API server outside the cluster")
    setting(
        "--webhook-certificates",
        "self-managed",
        "who writes the Secret: the controller, or another program such as cert-manager",
        choices=("self-managed", "external"),
    )
    setting(
        "--webhook-failure-policy",
        "Fail",
        "what the API server does with objects that have a config for this driver if no replica answers",
        choices=("Fail", "Ignore"),
    )
    setting("--webhook-timeout", 5, "seconds that the API server waits for an answer, 1 to 30", type=int)
    setting(
        "--webhook-exempt-namespaces",
        "kube-system",
        "namespaces that are not reviewed, in addition to that of the lease",
        type=names,
    )
    setting("--webhook-drain", 10.0, "seconds for which a stopping replica still answers", type=seconds)
