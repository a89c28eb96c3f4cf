"""Every setting of the programs is set by the chart, or is not for it to set, for a reason that stands here."""

from typing import Any

import pytest
from support.chart_values import VARIANTS
from support.helm import HelmError, Release
from support.rows import slow_but

from controller import settings as controller_settings
from controller import uninstall
from dra_driver.features import Feature, Gates
from dra_driver.runtime.settings import SettingsParser
from kubelet_plugin import settings as plugin_settings

type Render = Any

NOT_FOR_CLUSTERS = {
    "--kubeconfig": "in a pod, the service account is used",
}
NOT_SET = {
    "DaemonSet": {
        **NOT_FOR_CLUSTERS,
        "--namespace": "that of the pod",
        "--state-dir": "below kubelet's folder, which is mounted at the host's path; that of sockets, too",
    },
    "Deployment": {
        **NOT_FOR_CLUSTERS,
        "--leader-election": "always on: while a Deployment is updated it has two replicas, whatever it asks for",
        "--lease-namespace": "that of the pod",
        "--identity": "the pod's name and a random part",
        "--webhook-url": "the API server reaches Services",
    },
}
BY_VARIABLE = {"GPU_DRA_NODE_NAME": "--node-name"}
PARSERS = {"DaemonSet": plugin_settings._parser, "Deployment": controller_settings._parser}


def flags(parser: SettingsParser) -> set[str]:
    return {setting.flag for setting in parser.declared}


def given(release: Release, kind: str) -> dict[str, str]:
    """Flags and variables of the container, by flag; a switch's value is empty."""
    (container,) = release.object(kind)["spec"]["template"]["spec"]["containers"]
    arguments = {}
    for argument in container["args"]:
        flag, _, value = argument.partition("=")
        arguments[flag.replace("--no-", "--")] = value
    return arguments | {
        BY_VARIABLE[variable["name"]]: "" for variable in container.get("env", ()) if variable["name"] in BY_VARIABLE
    }


EVERY_SETTING = {
    "imagePullSecrets": [{"name": "registry"}],
    "webhook": {"install": True},
    "featureGates": {"MPSSupport": False},
    "debugPages": True,
    "tracing": {"endpoint": "http://collector.traces:4317"},
    "kubeletPlugin": {
        **VARIANTS["places"]["kubeletPlugin"],
        **VARIANTS["times"]["kubeletPlugin"],
        **VARIANTS["validation"]["kubeletPlugin"],
        "simulate": "t4",
    },
}


@pytest.mark.parametrize("kind", PARSERS)
def test_every_setting_is_in_the_chart_or_not_for_it(kind: str, render: Render) -> None:
    set_by_chart, known = given(render(EVERY_SETTING), kind).keys(), flags(PARSERS[kind]())
    assert set_by_chart - known == set(), "the chart sets what does not exist"
    assert known - set_by_chart == NOT_SET[kind].keys(), "settings that the chart forgets, or that it sets by now"


@pytest.mark.parametrize(
    "variant",
    slow_but(
        ["defaults", "places", "times", "validation", "simulated", "publisher-node", "logs", "webhook"],
        "defaults",
        "validation",
        "publisher-node",
    ),
)
def test_the_programs_understand_what_the_chart_tells_them(variant: str, render: Render) -> None:
    release = render(VARIANTS[variant])
    (container,) = release.object("DaemonSet")["spec"]["template"]["spec"]["containers"]
    uid = "0aa1bb22-3c4d-4e5f-8a9b-0c1d2e3f4a5b"
    words = [word.replace("$(POD_UID)", uid) for word in container["args"]]
    settings = plugin_settings.read_settings(words, {"GPU_DRA_NODE_NAME": "node-1"})
    assert settings.pod_uid == uid and settings.node_name == "node-1"
    assert settings.publisher == ("node" if variant == "publisher-node" else "controller")
    assert settings.validation_command == (("/bin/sh", "-c", "exit 0") if variant == "validation" else ())
    for deployment in release.all("Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        parsed = controller_settings.read_settings(container["args"], {})
        assert parsed.leader_election and (parsed.webhook is not None) == (variant == "webhook")
    (job,) = [hook for hook in release.hooks if hook["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert uninstall.read_settings(container["args"], {}).driver_name == "gpu.nvidia.com"


def test_probes_ask_where_the_program_answers(render: Render) -> None:
    release = render(VARIANTS["pods"])
    for kind in ("DaemonSet", "Deployment"):
        (container,) = release.object(kind)["spec"]["template"]["spec"]["containers"]
        (port,) = container["ports"]
        assert f"--http-endpoint=:{port['containerPort']}" in container["args"]
        probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
        assert {probe["port"] for probe in probes} == {port["name"]}
        assert {probe["path"] for probe in probes} == {"/healthz", "/readyz"}


def test_the_lease_that_is_cleaned_up_is_the_controllers(render: Render) -> None:
    release = render(VARIANTS["names"])
    lease = given(release, "Deployment")["--lease-name"]
    (job,) = [hook for hook in release.hooks if hook["kind"] == "Job"]
    assert f"--lease-name={lease}" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    named = [rule["resourceNames"] for rule in release.object("Role")["rules"] if "resourceNames" in rule]
    assert named == [[lease]]


def test_gates_reach_both_programs_and_the_others_are_as_by_default(render: Render) -> None:
    release = render(VARIANTS["feature-gates"])
    wanted = Gates((Gates.DEFAULT.on | {Feature.MIG_EXTENDED_RESOURCES}) - {Feature.MPS})
    (container,) = release.object("Deployment")["spec"]["template"]["spec"]["containers"]
    assert controller_settings.read_settings(container["args"], {}).feature_gates == wanted
    (container,) = release.object("DaemonSet")["spec"]["template"]["spec"]["containers"]
    words = [word for word in container["args"] if not word.startswith("--pod-uid")]
    assert plugin_settings.read_settings(words, {"GPU_DRA_NODE_NAME": "node-1"}).feature_gates == wanted


@pytest.mark.parametrize(
    ("gates", "says"),
    [
        ({"DynamicMig": True}, "DynamicMig"),
        ({"DynamicMIG": "yes"}, "DynamicMIG"),
        ({"MigExtendedResources": True, "MigProfileClasses": False}, "MigExtendedResources needs MigProfileClasses"),
    ],
)
def test_gates_that_do_not_exist_or_contradict_are_refused_before_anything_starts(
    gates: dict[str, object], says: str, render: Render
) -> None:
    with pytest.raises(HelmError, match=says):
        render({"featureGates": gates})


def test_traces_reach_their_collector_through_the_network_policies(render: Render) -> None:
    release = render(VARIANTS["network"])
    policies = [policy for policy in release.all("NetworkPolicy") if "imex-daemon" not in policy["metadata"]["name"]]
    assert len(policies) == 2
    for policy in policies:
        ports = {(port["protocol"], port["port"]) for rule in policy["spec"]["egress"] for port in rule["ports"]}
        assert {("TCP", 4317), ("UDP", 53)} <= ports
    for kind in ("DaemonSet", "Deployment"):
        assert given(release, kind)["--otlp-endpoint"] == "http://otel.traces:4317"
