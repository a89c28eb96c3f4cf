"""The objects of a ComputeDomain: the claim template for its workload, and the daemons with their template. `dractl`
makes the same template from a domain in a file, so that it can explain and check pods before the domain exists in a
cluster.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import JsonObject
from dra_driver.domains import names
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION

_DAEMON = "gpu-dra-imex-daemon"
_PROBE_TIMEOUT_S = 10
_LIVENESS_FAILURES = 6
_STARTUP_FAILURES = 600


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """Settings of the daemons' pods, for all domains. Lists and maps have the form of pod fields."""

    namespace: str
    """Namespace of the DaemonSets and the daemons' claim templates: the driver's own."""
    image: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str = "default"
    priority_class: str | None = "system-node-critical"
    resources: JsonObject = field(default_factory=dict)
    log_level: str = "info"
    log_format: str = "json"
    max_nodes: int = 18
    """Maximum nodes of one clique in a domain; all daemons of a clique have the same list of this many names."""


def workload_template(domain: ComputeDomain, *, several_channels: bool = False) -> JsonObject:
    """The ResourceClaimTemplate for the workload's pods.

    `several_channels`: nodes can have more than one channel, so that several pods of the domain fit on one node. The
    selector excludes nodes that are already in another domain; pods that are scheduled before the label appears wait on
    the node.
    """
    uid = domain.metadata.uid
    attributes = f"device.attributes['{COMPUTE_DOMAIN_DRIVER}']"
    request = {
        "deviceClassName": names.CHANNEL_CLASS if several_channels else names.DEFAULT_CHANNEL_CLASS,
        "selectors": [{"cel": {"expression": f"!has({attributes}.domain) || {attributes}.domain == '{uid}'"}}],
    }
    parameters = {"domainID": uid, "allocationMode": domain.spec.channel.allocation_mode}
    name = domain.spec.channel.resource_claim_template.name
    return _template(
        name=name,
        namespace=domain.metadata.namespace or "default",
        uid=uid,
        request=(names.CHANNEL_REQUEST, request),
        config=(names.CHANNEL_CONFIG, parameters),
        owners=[_owner(domain)],
    )


def daemon_template(domain: ComputeDomain, settings: DaemonSettings) -> JsonObject:
    """The ResourceClaimTemplate of the daemons' pods: one daemon device of their node each."""
    uid = domain.metadata.uid
    return _template(
        name=names.daemon_object_name(uid),
        namespace=settings.namespace,
        uid=uid,
        request=(names.DAEMON_REQUEST, {"deviceClassName": names.DAEMON_CLASS}),
        config=(names.DAEMON_CONFIG, {"domainID": uid}),
    )


def daemon_set(domain: ComputeDomain, settings: DaemonSettings) -> JsonObject:
    """The DaemonSet of the domain: a daemon on each node with the domain's label, regardless of taints. A replaced
    daemon must end before its successor starts, because a node has one daemon device.
    """
    uid = domain.metadata.uid
    labels = {names.DOMAIN_LABEL: uid, "app.kubernetes.io/component": "imex-daemon"}
    annotations = {names.MADE_AS: made_as(domain, settings)}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": names.daemon_object_name(uid),
            "namespace": settings.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "selector": {"matchLabels": {names.DOMAIN_LABEL: uid}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": labels}, "spec": _daemon_pod(domain, settings)},
        },
    }


def made_as(domain: ComputeDomain, settings: DaemonSettings) -> str:
    """Changes if the daemons' pods would differ: in another release, or with other settings."""
    pod = json.dumps(_daemon_pod(domain, settings), sort_keys=True)
    return hashlib.sha256(pod.encode()).hexdigest()[:16]


def _daemon_pod(domain: ComputeDomain, settings: DaemonSettings) -> JsonObject:
    optional: JsonObject = {}
    if settings.priority_class:
        optional["priorityClassName"] = settings.priority_class
    if settings.image_pull_secrets:
        optional["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    uid = domain.metadata.uid
    return {
        **optional,
        "serviceAccountName": settings.service_account,
        "nodeSelector": {names.DOMAIN_LABEL: uid},
        "tolerations": [{"operator": "Exists"}],
        "enableServiceLinks": False,
        "resourceClaims": [{"name": names.DAEMON_REQUEST, "resourceClaimTemplateName": names.daemon_object_name(uid)}],
        "containers": [_daemon_container(domain, settings)],
        "volumes": [
            {"name": "imex", "emptyDir": {"sizeLimit": "16Mi"}},
            {"name": "run", "emptyDir": {"sizeLimit": "16Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
        ],
    }


def _daemon_container(domain: ComputeDomain, settings: DaemonSettings) -> JsonObject:
    arguments = [
        f"--domain={domain.metadata.namespace}/{domain.metadata.name}",
        f"--domain-uid={domain.metadata.uid}",
        f"--max-nodes={settings.max_nodes}",
        f"--log-level={settings.log_level}",
        f"--log-format={settings.log_format}",
    ]
    resources = {**settings.resources, "claims": [{"name": names.DAEMON_REQUEST}]}
    return {
        "name": "imex-daemon",
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [_DAEMON],
        "args": arguments,
        "env": [
            {"name": "GPU_DRA_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "GPU_DRA_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "resources": resources,
        "startupProbe": _probe(period_s=1, failures=_STARTUP_FAILURES, live=True),
        "livenessProbe": _probe(period_s=30, failures=_LIVENESS_FAILURES, live=True),
        "readinessProbe": _probe(period_s=5, failures=1, live=False),
        "securityContext": {
            # Only root can open the device node of the fabric's management (mode 0400), and even root needs this
            # capability to open it for writing.
            "runAsUser": 0,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "imex", "mountPath": "/imexd"},
            # nvidia-imex records there which peers imported memory (persist.dat), in case it is killed.
            {"name": "run", "mountPath": "/var/run/nvidia-imex"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _probe(*, period_s: int, failures: int, live: bool) -> JsonObject:
    """`--live` checks whether the supervisor answers, `--ready` whether its IMEX daemon knows its peers and is
    READY."""
    return {
        "exec": {"command": [_DAEMON, "--live" if live else "--ready"]},
        "periodSeconds": period_s,
        "timeoutSeconds": _PROBE_TIMEOUT_S,
        "failureThreshold": failures,
    }


def _template(
    *,
    name: str,
    namespace: str,
    uid: str,
    request: tuple[str, JsonObject],
    config: tuple[str, JsonObject],
    owners: list[JsonObject] | None = None,
) -> JsonObject:
    request_name, exactly = request
    kind, parameters = config
    # Sorted, because server-side apply sorts the keys of a claim's allocation. The API server compares bytes, so
    # another driver's apply to `status.devices` would otherwise count as a change of the allocation.
    parameters = {"apiVersion": CONFIG_API_VERSION, "kind": kind, **parameters}
    opaque = {"driver": COMPUTE_DOMAIN_DRIVER, "parameters": dict(sorted(parameters.items()))}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": {names.DOMAIN_LABEL: uid}}
    if owners:
        metadata["ownerReferences"] = owners
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {
            "metadata": {"labels": {names.DOMAIN_LABEL: uid}},
            "spec": {
                "devices": {
                    "requests": [{"name": request_name, "exactly": exactly}],
                    "config": [{"requests": [request_name], "opaque": opaque}],
                }
            },
        },
    }


def _owner(domain: ComputeDomain) -> JsonObject:
    return {
        "apiVersion": CONFIG_API_VERSION,
        "kind": "ComputeDomain",
        "name": domain.metadata.name,
        "uid": domain.metadata.uid,
        "controller": True,
    }
