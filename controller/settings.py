"""The controller's settings: read once by `main`, from flags and `GPU_DRA_*` variables; nothing else reads them.

Each says its unit, its default and why one would change it.
"""

import argparse
import json
import os
import socket
import sys
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
from dra_driver.runtime.settings import (
    FEATURE_GATES,
    OTLP_ENDPOINT,
    SettingsParser,
    driver_name,
    endpoint,
    feature_gates,
    http_url,
    seconds,
)
from dra_driver.runtime.telemetry import LEVELS
from dra_driver.runtime.tracing import endpoint_asked_for


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """What a controller is told of the admission webhook. Secret and Service are in the namespace of the lease."""

    endpoint: str
    """HOST:PORT of HTTPS."""
    configuration: str
    """Name of the ValidatingWebhookConfiguration that is kept while there is one."""
    secret: str
    service: str
    url: str | None
    """Where an API server finds the endpoint that does not reach Services, without path; None: at the Service."""
    issued_here: bool
    """Whether certificates are made here; else somebody else fills the Secret."""
    failure_policy: Literal["Fail", "Ignore"]
    """Whether an object with a config of ours is refused when no replica answers."""
    timeout_s: int
    exempt_namespaces: tuple[str, ...]
    """Whose objects are not reviewed: what a cluster needs to live must not wait for us."""
    drain_s: float
    """How long a replica that ends still answers; longer where API servers hear late of changed endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a controller process is told."""

    kubeconfig: Path | None
    """None: the service account of the pod."""
    driver_name: str
    policy: Path | None
    """A PublishingPolicy; None publishes every GPU of every node."""
    workers: int
    """Pools written at the same time: more publishes large clusters faster, fewer spares the API server."""
    feature_gates: Gates
    """Which behaviours may be used, the same as the plugins'; by default all that are not alpha."""
    leader_election: bool
    """Off only where one process at most can run."""
    lease_namespace: str
    lease_name: str
    lease_times: LeaseTimes
    """Longer ones ride out slower API servers, shorter ones take over sooner from a leader that died."""
    identity: str
    """This process in the lease."""
    webhook: WebhookSettings | None
    """None: there is no webhook."""
    daemons: DaemonSettings
    """How pods of ComputeDomains' daemons are made."""
    http_endpoint: str | None
    """HOST:PORT of probes and metrics; None: none."""
    debug_pages: bool
    """Whether that port also shows stacks and what is published, to whomever can reach it."""
    otlp_endpoint: str | None
    """URL of the collector that gets spans; None: nothing is traced, and nothing imported for it."""
    log_level: str
    log_format: str


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from command line and environment. A mistake ends the process with status 2 and a line that says it."""
    parser = _parser()
    options = parser.parse(arguments, environment)
    times = LeaseTimes(options.lease_duration, options.renew_deadline, options.retry_period)
    if not times.lease_s > times.renew_s > times.retry_s:
        parser.refuse("--lease-duration must be longer than --renew-deadline, and that longer than --retry-period")
    if not 1 <= options.workers <= 64:
        parser.refuse(f"--workers {options.workers} is not between 1 and 64")
    namespace = options.lease_namespace or pod_namespace() or "default"
    return Settings(
        kubeconfig=Path(options.kubeconfig) if options.kubeconfig else None,
        driver_name=options.driver_name,
        policy=Path(options.policy) if options.policy else None,
        workers=options.workers,
        feature_gates=options.feature_gates,
        leader_election=options.leader_election,
        lease_namespace=namespace,
        lease_name=options.lease_name,
        lease_times=times,
        identity=options.identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}",
        webhook=_webhook(options, parser, namespace),
        daemons=_daemons(options, parser, namespace),
        http_endpoint=options.http_endpoint or None,
        debug_pages=options.debug_pages,
        otlp_endpoint=endpoint_asked_for(options.otlp_endpoint, environment),
        log_level=options.log_level,
        log_format=options.log_format,
    )


def _daemons(options: argparse.Namespace, parser: SettingsParser, namespace: str) -> DaemonSettings:
    if not 1 <= options.max_nodes_per_imex_domain <= 1000:
        parser.refuse(f"--max-nodes-per-imex-domain {options.max_nodes_per_imex_domain} is not between 1 and 1000")
    secrets = (name.strip() for name in options.daemon_image_pull_secrets.split(","))
    return DaemonSettings(
        namespace=namespace,
        image=options.daemon_image,
        image_pull_policy=options.daemon_image_pull_policy,
        image_pull_secrets=tuple(name for name in secrets if name),
        service_account=options.daemon_service_account,
        priority_class=options.daemon_priority_class or None,
        resources=options.daemon_resources,
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
        parser.refuse(f"--webhook-url {options.webhook_url}: an API server asks by https:// only")
    exempt = [name.strip() for name in options.webhook_exempt_namespaces.split(",") if name.strip()]
    return WebhookSettings(
        endpoint=options.webhook_endpoint,
        configuration=options.webhook_configuration,
        secret=options.webhook_secret,
        service=options.webhook_service,
        url=options.webhook_url.rstrip("/") or None,
        issued_here=options.webhook_certificates == "self-managed",
        failure_policy=options.webhook_failure_policy,
        timeout_s=options.webhook_timeout,
        exempt_namespaces=tuple(sorted({*exempt, namespace})),
        drain_s=options.webhook_drain,
    )


def _parser() -> SettingsParser:
    parser = SettingsParser("gpu-dra-controller", "The controller: publishes the GPUs that nodes report.")
    setting = parser.setting
    setting("--kubeconfig", "", "kubeconfig file; without one, the pod's service account is used")
    setting("--driver-name", GPU_DRIVER, "name of the DRA driver; DeviceClasses must select the same", type=driver_name)
    setting("--policy", "", "file with a PublishingPolicy; without one, every GPU of every node is published")
    setting("--workers", 16, "pools written at the same time, 1 to 64", type=int)
    setting("--feature-gates", "", FEATURE_GATES, type=feature_gates)
    parser.switch("--leader-election", True, "work only while holding the lease; off only for a single replica")
    setting("--lease-namespace", "", "namespace of the lease; default: that of the pod")
    setting("--lease-name", "gpu-dra-controller", "name of the lease")
    setting("--lease-duration", 15.0, "seconds that others respect a lease that is not renewed", type=seconds)
    setting("--renew-deadline", 10.0, "seconds that the leader tries to renew before it stops", type=seconds)
    setting("--retry-period", 2.0, "seconds between attempts to take or renew the lease", type=seconds)
    setting("--identity", "", "this process in the lease; default: host name and a random part")
    _declare_daemons(parser)
    _declare_webhook(parser)
    setting("--http-endpoint", "", "HOST:PORT for /healthz, /readyz and /metrics; default: none", type=endpoint)
    parser.switch("--debug-pages", False, "serve /debug there, too: stacks and pools")
    setting("--otlp-endpoint", "", OTLP_ENDPOINT, type=http_url)
    setting("--log-level", "info", "how much to log", choices=LEVELS)
    setting("--log-format", "json", "how to log", choices=("json", "console"))
    return parser


def _declare_daemons(parser: SettingsParser) -> None:
    setting = parser.setting
    setting("--daemon-image", "gpu-dra-driver", "image of the pods of ComputeDomains' daemons: the driver's own")
    policies = ("Always", "IfNotPresent", "Never")
    setting("--daemon-image-pull-policy", "IfNotPresent", "when nodes ask the registry for it", choices=policies)
    setting("--daemon-image-pull-secrets", "", "names of Secrets in the lease's namespace, with commas between them")
    setting("--daemon-service-account", "default", "of those pods: may get and watch ComputeDomains")
    setting("--daemon-priority-class", "system-node-critical", "of those pods; empty: none")
    setting("--daemon-resources", "", "requests and limits of their container, as JSON; default: none", type=_resources)
    setting("--max-nodes-per-imex-domain", 18, "nodes of one NVLink clique that a ComputeDomain can have", type=int)


def _resources(text: str) -> JsonObject:
    """ResourceRequirements of core/v1, without claims."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found.keys() <= {"requests", "limits"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not an object with requests and limits")
    return found


def _declare_webhook(parser: SettingsParser) -> None:
    setting = parser.setting
    setting("--webhook-endpoint", "", "HOST:PORT of the admission webhook (HTTPS); default: none", type=endpoint)
    setting(
        "--webhook-configuration", "gpu-dra-webhook", "name of the ValidatingWebhookConfiguration that is filled in"
    )
    setting("--webhook-secret", "gpu-dra-webhook", "name of the Secret with the webhook's certificate")
    setting(
        "--webhook-service", "gpu-dra-controller", "name of the Service by which the API server reaches the webhook"
    )
    setting("--webhook-url", "", "https://HOST:PORT instead of the Service, for an API server outside the cluster")
    setting(
        "--webhook-certificates",
        "self-managed",
        "who writes the Secret: the controller, or for example cert-manager",
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
    )
    setting("--webhook-drain", 10.0, "seconds for which a stopping replica still answers", type=seconds)


def from_process() -> Settings:
    """The settings of this process."""
    return read_settings(sys.argv[1:], os.environ)
