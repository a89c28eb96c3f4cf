"""Every value of the chart has an effect: what it is set to, or what it switches, shows in what is rendered.

Many values are changed at once, for rendering takes time; each has a mark of its own, which is found in the result and
not in that of the same release without them. A value that is not in these tables fails the first test.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from support.chart_values import EXTRA_CLASS, Values, merged
from support.foreign_types import EVERYTHING_SERVED
from support.helm import CHART, NAMESPACE, Release

from charts.generate import read_values
from dra_driver.bundled import read_documents

type Render = Any

BASE: Values = {
    "webhook": {"install": True},
    "networkPolicy": {"install": True},
    "ui": {"enabled": True, "tlsSecret": "any"},
    "metrics": {"dashboard": True},
    "policy": {"publish": [{"nodes": {"names": ["*"]}}]},
    "test": {"tolerations": []},
    "kubeletPlugin": {"tolerations": []},
}
"""With everything that other values are about."""

HOME = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "marked-home"}}

MARKED: Mapping[str, Any] = {
    "fullnameOverride": "marked-name",
    "namespaceOverride": "marked-home",
    "commonLabels": {"a-label": "of-everything"},
    "image.repository": "registry.example.com/marked",
    "image.tag": "0.0.77",
    "image.pullPolicy": "Never",
    "imagePullSecrets": [{"name": "marked-pull-secret"}],
    "driverName": "marked.example.com",
    "policy": {"withhold": [{"nodes": {"names": ["marked-node"]}}]},
    "featureGates": {"MPSSupport": False},
    "tracing.endpoint": "http://marked-collector:4317",
    "deviceClasses.extendedResources": {"mig.nvidia.com": "example.com/marked-resource"},
    "deviceClasses.extra": [{**EXTRA_CLASS, "name": "marked-class"}],
    "kubeletPlugin.kubeletRoot": "/marked/kubelet",
    "kubeletPlugin.cdiRoot": "/marked/cdi",
    "kubeletPlugin.driverRoot": "/marked/driver",
    "kubeletPlugin.cdiHook": "/marked/cdi-hook",
    "kubeletPlugin.fabricManager": "marked-fabric:6666",
    "kubeletPlugin.imexSocket": "/marked/imex.sock",
    "kubeletPlugin.discoveryInterval": 31.25,
    "kubeletPlugin.cleanupInterval": 601.25,
    "kubeletPlugin.validationCommand": "/marked/validation",
    "kubeletPlugin.runtimeClassName": "marked-runtime-class",
    "kubeletPlugin.httpPort": 18081,
    "kubeletPlugin.podLabels": {"plugin-pods": "marked-label"},
    "kubeletPlugin.podAnnotations": {"plugin-pods": "marked-annotation"},
    "kubeletPlugin.priorityClassName": "marked-plugin-priority",
    "kubeletPlugin.resources": {"limits": {"memory": "511Mi"}},
    "kubeletPlugin.nodeSelector": {"pool": "marked-plugin-nodes"},
    "kubeletPlugin.affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "marked-plugin-topology"}
    ]}},
    "kubeletPlugin.tolerations": [{"key": "marked-plugin-taint"}],
    "kubeletPlugin.terminationGracePeriodSeconds": 61,
    "kubeletPlugin.updateStrategy": {"rollingUpdate": {"maxSurge": "71%"}},
    "kubeletPlugin.podSecurityContext": {"supplementalGroups": [10717]},
    "kubeletPlugin.securityContext": {"seLinuxOptions": {"type": "marked_plugin_t"}},
    "kubeletPlugin.extraEnv": [{"name": "EXTRA", "value": "marked-plugin-env"}],
    "kubeletPlugin.extraArgs": ["--marked-plugin-arg"],
    "kubeletPlugin.extraVolumes": [{"name": "extra", "configMap": {"name": "marked-plugin-volume"}}],
    "kubeletPlugin.extraVolumeMounts": [{"name": "extra", "mountPath": "/marked/plugin-mount"}],
    "controller.replicas": 17,
    "controller.workers": 19,
    "controller.leaderElection.leaseDuration": 59.5,
    "controller.leaderElection.renewDeadline": 41.5,
    "controller.leaderElection.retryPeriod": 7.25,
    "controller.httpPort": 18082,
    "controller.podLabels": {"controller-pods": "marked-controller-label"},
    "controller.podAnnotations": {"controller-pods": "marked-controller-annotation"},
    "controller.priorityClassName": "marked-controller-priority",
    "controller.resources": {"limits": {"memory": "513Mi"}},
    "controller.nodeSelector": {"pool": "marked-controller-nodes"},
    "controller.affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "marked-controller-topology"}
    ]}},
    "controller.tolerations": [{"key": "marked-controller-taint"}],
    "controller.terminationGracePeriodSeconds": 67,
    "controller.updateStrategy": {"rollingUpdate": {"maxSurge": "73%"}},
    "controller.podSecurityContext": {"supplementalGroups": [10737]},
    "controller.securityContext": {"seLinuxOptions": {"type": "marked_controller_t"}},
    "controller.extraEnv": [{"name": "EXTRA", "value": "marked-controller-env"}],
    "controller.extraArgs": ["--marked-controller-arg"],
    "controller.extraVolumes": [{"name": "extra", "configMap": {"name": "marked-controller-volume"}}],
    "controller.extraVolumeMounts": [{"name": "extra", "mountPath": "/marked/controller-mount"}],
    "computeDomains.maxNodesPerImexDomain": 23,
    "computeDomains.priorityClassName": "marked-daemon-priority",
    "computeDomains.resources": {"limits": {"memory": "517Mi"}},
    "serviceAccounts.kubeletPlugin": "marked-plugin-account",
    "serviceAccounts.controller": "marked-controller-account",
    "serviceAccounts.imexDaemon": "marked-daemon-account",
    "serviceAccounts.annotations": {"accounts": "marked-account-annotation"},
    "webhook.timeout": 29,
    "webhook.exemptNamespaces": ["marked-namespace"],
    "webhook.port": 19443,
    "webhook.drain": 37,
    "ui.tlsSecret": "marked-ui-certificate",
    "ui.port": 18083,
    "ui.resources": {"limits": {"memory": "519Mi"}},
    "ui.nodeSelector": {"pool": "marked-ui-nodes"},
    "ui.tolerations": [{"key": "marked-ui-taint"}],
    "networkPolicy.uiFrom": [{"ipBlock": {"cidr": "10.78.0.0/28"}}],
    "networkPolicy.webhookFrom": [{"ipBlock": {"cidr": "10.77.0.0/28"}}],
    "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"who": "marked-monitoring"}}}],
    "networkPolicy.apiServerCIDRs": ["192.0.2.77/32"],
    "networkPolicy.apiServerPorts": [16443],
    "metrics.dashboardLabels": {"dashboards": "marked-dashboard"},
    "metrics.labels": {"monitors": "marked-monitor"},
    "metrics.interval": "43s",
    "podDisruptionBudget.maxUnavailable": 13,
    "cleanup.timeout": 119,
    "test.deviceClassName": "marked-test-class",
    "test.tolerations": [{"key": "marked-test-taint"}],
}  # fmt: skip
"""Values that show as they are: the last scalar of each is its mark."""


@dataclass(frozen=True)
class Switch:
    """`shows` is a pattern that is found with the value and not without it; `hides`, the other way round."""

    value: Any
    shows: str = ""
    hides: str = ""
    beside: Values | None = None
    """What it needs besides."""


SWITCHES: tuple[Mapping[str, Switch], ...] = (
    {
        "nameOverride": Switch("another-name", shows="app.kubernetes.io/name: another-name"),
        "image.digest": Switch("sha256:" + "7" * 64, shows="@sha256:7777"),
        "logLevel": Switch("warning", shows="--log-level=warning"),
        "logFormat": Switch("console", shows="--log-format=console"),
        "debugPages": Switch(True, shows="--debug-pages"),
        "crds.keep": Switch(True, shows="helm.sh/resource-policy: keep"),
        "kubeletPlugin.privileged": Switch(False, hides="privileged: true"),
        "kubeletPlugin.capabilities": Switch(["MARKED"], shows="- MARKED"),
        "webhook.failurePolicy": Switch("Ignore", shows="--webhook-failure-policy=Ignore"),
        "webhook.certificates": Switch("cert-manager", shows="kind: Certificate\n"),
        "webhook.issuerRef": Switch({"name": "marked-issuer"}, shows="name: marked-issuer"),
        "openshift.securityContextConstraints": Switch("never", hides="kind: SecurityContextConstraints"),
        "metrics.podMonitors": Switch("never", hides="kind: PodMonitor"),
        "metrics.serviceMonitors": Switch("always", shows="kind: ServiceMonitor"),
        "metrics.alerts": Switch("never", hides="kind: PrometheusRule"),
        "priorityClassQuota": Switch(True, shows="kind: ResourceQuota"),
    },
    {
        "crds.install": Switch(False, hides="kind: CustomResourceDefinition"),
        "deviceClasses.install": Switch(False, hides="kind: DeviceClass\n"),
        "kubeletPlugin.simulate": Switch("t4:1", shows="t4:1"),
        "admissionPolicies.install": Switch(False, hides="kind: ValidatingAdmissionPolicy\n"),
        "webhook.install": Switch(False, hides="kind: ValidatingWebhookConfiguration"),
        "networkPolicy.install": Switch(False, hides="kind: NetworkPolicy"),
        "metrics.runbooks": Switch("https://marked/page", shows="runbook_url: https://marked/page#gpudrapluginabsent"),
        "ui.enabled": Switch(False, hides="app.kubernetes.io/component: ui"),
        "metrics.dashboard": Switch(False, hides="name: gpu-dra-driver-dashboard"),
        "podDisruptionBudget.install": Switch(False, hides="kind: PodDisruptionBudget"),
        "cleanup.install": Switch(False, hides="kind: Job"),
    },
    {
        "publisher": Switch(
            "node", hides="kind: Deployment", beside={"webhook": {"install": False}, "ui": {"enabled": False}}
        )
    },
)

ELSEWHERE = {"devicePluginGuard": "acts where a node has a device plugin: test_nodes.py"}


def at(path: str, value: Any) -> Values:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def together(values: Mapping[str, Any]) -> Values:
    combined: Values = {}
    for path, value in values.items():
        combined = merged(combined, at(path, value))
    return combined


_DUMPER: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


def rendered(render: Render, values: Values) -> str:
    """Of objects and hooks."""
    release: Release = render(merged(BASE, values), before=(*EVERYTHING_SERVED, HOME))
    return yaml.dump_all([*release.objects, *release.hooks], Dumper=_DUMPER, width=10_000)


def scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from scalars(inner)
    else:
        yield value


SHOWN = {
    "featureGates": "MPSSupport=false",
    "image.pullPolicy": "imagePullPolicy: Never",
    "controller.replicas": "replicas: 17",
    "controller.workers": "--workers=19",
    "computeDomains.maxNodesPerImexDomain": "--max-nodes-per-imex-domain=23",
    "webhook.timeout": "--webhook-timeout=29",
    "webhook.drain": "--webhook-drain=37",
    "podDisruptionBudget.maxUnavailable": "maxUnavailable: 13",
    "cleanup.timeout": "activeDeadlineSeconds: 119",
    "controller.terminationGracePeriodSeconds": "terminationGracePeriodSeconds: 67",
    "kubeletPlugin.terminationGracePeriodSeconds": "terminationGracePeriodSeconds: 61",
}
"""Of what is found elsewhere, too, as it is: what goes before it."""


def mark_of(path: str, value: Any) -> str:
    """What shows of it, as a pattern."""
    if path in SHOWN:
        return rf"{re.escape(SHOWN[path])}\b"
    *_, last = scalars(value)
    if path == "deviceClasses.extra":
        last = value[0]["name"]
    return rf"(?<![\w.]){re.escape(str(last))}(?![\w]|\.\d)"


def test_every_value_is_in_a_table() -> None:
    leaves = {
        ".".join(leaf.path) for value in read_values((CHART / "values.yaml").read_text()) for leaf in value.leaves()
    }
    tables = [*MARKED, *(path for switches in SWITCHES for path in switches), *ELSEWHERE]
    assert sorted(tables) == sorted(leaves)


def test_what_a_value_is_set_to_shows(render: Render) -> None:
    before, after = rendered(render, {}), rendered(render, together(MARKED))
    marks = {path: mark_of(path, value) for path, value in MARKED.items()}
    assert [path for path, mark in marks.items() if re.search(mark, before)] == [], "no marks"
    assert [path for path, mark in marks.items() if not re.search(mark, after)] == [], "without an effect"


def test_all_objects_move_to_another_namespace(render: Render) -> None:
    moved = rendered(render, {"namespaceOverride": "marked-home"})
    assert {obj["metadata"]["namespace"] for obj in read_documents(moved) if "namespace" in obj["metadata"]} == {
        "marked-home"
    }
    assert re.findall(rf"(?<![\w-]){NAMESPACE}(?![\w-])", moved) == []


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: next(iter(switches)))
def test_what_a_value_switches_shows(switches: Mapping[str, Switch], render: Render) -> None:
    values = together({path: switch.value for path, switch in switches.items()})
    for switch in switches.values():
        values = merged(values, switch.beside or {})
    before, after = rendered(render, {}), rendered(render, values)
    for path, switch in switches.items():
        without, with_it = (after, before) if switch.hides else (before, after)
        pattern = re.escape(switch.hides or switch.shows)
        assert re.search(pattern, with_it) and not re.search(pattern, without), path
