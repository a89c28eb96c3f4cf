"""The controller's settings: read once by `main`, from flags and `GPU_DRA_*` variables; nothing else reads them.

Each says its unit, its default and why one would change it.
"""

import os
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    return Settings(
        kubeconfig=Path(options.kubeconfig) if options.kubeconfig else None,
        driver_name=options.driver_name,
        policy=Path(options.policy) if options.policy else None,
        workers=options.workers,
        feature_gates=options.feature_gates,
        leader_election=options.leader_election,
        lease_namespace=options.lease_namespace or pod_namespace() or "default",
        lease_name=options.lease_name,
        lease_times=times,
        identity=options.identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}",
        http_endpoint=options.http_endpoint or None,
        debug_pages=options.debug_pages,
        otlp_endpoint=endpoint_asked_for(options.otlp_endpoint, environment),
        log_level=options.log_level,
        log_format=options.log_format,
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
    setting("--http-endpoint", "", "HOST:PORT for /healthz, /readyz and /metrics; default: none", type=endpoint)
    parser.switch("--debug-pages", False, "serve /debug there, too: stacks and pools")
    setting("--otlp-endpoint", "", OTLP_ENDPOINT, type=http_url)
    setting("--log-level", "info", "how much to log", choices=LEVELS)
    setting("--log-format", "json", "how to log", choices=("json", "console"))
    return parser


def from_process() -> Settings:
    """The settings of this process."""
    return read_settings(sys.argv[1:], os.environ)
