"""Whatever is chosen, every object of the chart is one that an API server takes, and says what was chosen."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from support import real_api_server
from support.chart_values import EXTRA_CLASS, POLICY, VARIANTS, Values, combinations, merged
from support.foreign_types import EVERYTHING_SERVED
from support.helm import CHART, NAMESPACE, Cluster, Helm, HelmError, Object, Release, ServerThread, simulated_server
from support.real_api_server import RealApiServer
from support.rows import slow_but

from controller import settings as controller_settings
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.objects import DaemonSettings, daemon_set
from dra_driver.publish.policy_file import decode_policy

type Render = Any


def accepted(values: Values, tmp_path: Path) -> Release:
    """Installed on a server that serves everything we could make; hooks are created as Helm would later."""
    with simulated_server() as thread:
        for served in EVERYTHING_SERVED:
            thread.create(served)
        release = Helm(thread.kubeconfig).install(values)
        for hook in release.hooks:
            thread.create(hook)
        nothing_dropped(thread, (*release.objects, *release.hooks))
    return release


def nothing_dropped(cluster: Cluster, objects: Iterable[Object]) -> None:
    """Every field that we send is stored: a field that the server does not know would silently be gone."""
    sent_objects = list(objects)
    kinds = {(obj["apiVersion"], obj["kind"]) for obj in sent_objects}
    there = {kind: cluster.objects(*kind) for kind in kinds}
    for sent in sent_objects:
        stored_objects = there[sent["apiVersion"], sent["kind"]]
        (stored,) = [
            candidate for candidate in stored_objects if candidate["metadata"]["name"] == sent["metadata"]["name"]
        ]
        missing = _missing(sent, stored, sent["kind"])
        assert not missing, missing


def _missing(sent: Any, stored: Any, where: str) -> list[str]:
    if isinstance(sent, dict):
        if not isinstance(stored, dict):
            return [where] if sent else []
        return [
            lost
            for key, value in sent.items()
            if value not in (None, [], {}, "", False)
            for lost in _missing(value, stored.get(key), f"{where}.{key}")
        ]
    if isinstance(sent, list):
        if not isinstance(stored, list) or len(stored) != len(sent):
            return [where]
        return [
            lost
            for index, (a, b) in enumerate(zip(sent, stored, strict=True))
            for lost in _missing(a, b, f"{where}[{index}]")
        ]
    return [where] if stored is None else []


@pytest.mark.parametrize("name", slow_but(VARIANTS, "names", "webhook"))
def test_every_variant_is_accepted(name: str, tmp_path: Path) -> None:
    release = accepted(VARIANTS[name], tmp_path)
    assert release.revision == 1


def test_a_real_server_accepts_every_variant(real_server: RealApiServer, tmp_path: Path) -> None:
    """Also what the simulated one does not look at: expressions of policies, formats, privileges."""
    kubeconfig = tmp_path / "kubeconfig"
    real_api_server.write_kubeconfig(real_server, kubeconfig)
    cluster, helm = Cluster(kubeconfig), Helm(kubeconfig)
    for served in EVERYTHING_SERVED:
        cluster.create(served)
    try:
        for name, values in VARIANTS.items():
            release = helm.install(merged(values, {"cleanup": {"install": False}}))
            hooks = [candidate for candidate in release.hooks if candidate["kind"] != "Pod"]
            for hook in hooks:
                cluster.create(hook)
            nothing_dropped(cluster, release.objects)
            for hook in hooks:
                cluster.delete(hook)
            helm.uninstall()
            assert release.objects, name
    finally:
        for served in EVERYTHING_SERVED:
            cluster.delete(served)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=combinations())
def test_combinations_are_accepted_and_every_object_says_whose_it_is_and_lies_in_the_releases_namespace(
    values: Values, tmp_path: Path
) -> None:
    release = accepted(values, tmp_path)
    assert release.objects
    for obj in (*release.objects, *release.hooks):
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm" and labels["app.kubernetes.io/instance"]
        assert obj["metadata"].get("namespace", NAMESPACE) == NAMESPACE
        assert len(obj["metadata"]["name"]) <= 100


def test_two_releases_live_side_by_side(server: ServerThread, tmp_path: Path) -> None:
    kubeconfig = server.kubeconfig
    Helm(kubeconfig, namespace="one").install()
    only_once = {"crds": {"install": False}, "deviceClasses": {"install": False}, "driverName": "gpu.example.com"}
    assert Helm(kubeconfig, namespace="two").install(only_once).objects


def test_no_template_depends_on_the_version_of_the_chart_in_a_pod(render: Render) -> None:
    """A release that changes nothing restarts no plugin."""
    plugin = render().object("DaemonSet")
    assert "helm.sh/chart" not in plugin["spec"]["template"]["metadata"]["labels"]


def test_an_update_of_plugins_leaves_no_gap(render: Render) -> None:
    spec = render().object("DaemonSet")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert "--pod-uid=$(POD_UID)" in container["args"]
    assert {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}} in container["env"]
    # Two pods of a DaemonSet share a node while it is updated: neither may hold what the other needs.
    assert not pod.get("hostNetwork") and not any("hostPort" in port for port in container["ports"])


def test_paths_that_hosts_programs_hear_of_are_the_same_inside(render: Render) -> None:
    pod = render({"kubeletPlugin": {"kubeletRoot": "/var/lib/k0s/kubelet"}}).object("DaemonSet")["spec"]["template"][
        "spec"
    ]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {paths[name] == mounts[name] for name in ("plugins", "registry", "cdi", "dev")} == {True}
    assert paths["plugins"] == "/var/lib/k0s/kubelet/plugins"


def test_the_policy_of_the_values_is_the_policy_of_both(render: Render) -> None:
    release = render({"policy": POLICY})
    text = release.object("ConfigMap")["data"]["policy.yaml"]
    assert (
        decode_policy(text, about="chart").to_wire()
        == decode_policy(
            yaml.safe_dump({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **POLICY}), about="values"
        ).to_wire()
    )
    for kind in ("DaemonSet", "Deployment"):
        (container,) = release.object(kind)["spec"]["template"]["spec"]["containers"]
        assert "--policy=/etc/gpu-dra-driver/policy.yaml" in container["args"]


@pytest.mark.slow
def test_another_policy_restarts_both_and_other_values_do_not(render: Render) -> None:
    def checksums(values: Values) -> list[str]:
        release = render(values)
        return [
            release.object(kind)["spec"]["template"]["metadata"]["annotations"]["checksum/policy"]
            for kind in ("DaemonSet", "Deployment")
        ]

    before = checksums({})
    assert checksums({"metrics": {"interval": "10s"}}) == before
    assert not set(checksums({"policy": POLICY})) & set(before)


def test_without_a_policy_everything_is_published(render: Render) -> None:
    text = render().object("ConfigMap")["data"]["policy.yaml"]
    assert decode_policy(text, about="chart").publish is None


def test_without_a_controller_nothing_of_it_is_there(render: Render) -> None:
    release = render(VARIANTS["publisher-node"])
    assert not release.all("Deployment") and not release.all("PodDisruptionBudget")
    assert not [obj for obj in release.objects if "controller" in obj["metadata"]["name"]]


def test_classes_select_the_driver_that_was_named(render: Render) -> None:
    release = render({"driverName": "gpu.example.com"})
    (expression,) = [
        selector["cel"]["expression"]
        for selector in release.object("DeviceClass", "gpu.nvidia.com")["spec"]["selectors"]
    ]
    assert expression == "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].type == 'gpu'"


def test_classes_are_those_of_the_repository(render: Render) -> None:
    source = {
        document["metadata"]["name"]: document["spec"]
        for path in (CHART.parents[1] / "deviceclasses").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
    }
    assert {
        device_class["metadata"]["name"]: device_class["spec"] for device_class in render().all("DeviceClass")
    } == source


def test_extended_resources_are_given_and_taken_by_class(render: Render) -> None:
    def names(values: Values) -> dict[str, str]:
        classes = render(values).all("DeviceClass")
        spec = {device_class["metadata"]["name"]: device_class["spec"] for device_class in classes}
        return {
            name: class_spec["extendedResourceName"]
            for name, class_spec in spec.items()
            if "extendedResourceName" in class_spec
        }

    assert names({}) == {"gpu.nvidia.com": "nvidia.com/gpu"}
    assert names(VARIANTS["no-extended-resource"]) == {}
    assert names({"deviceClasses": {"extendedResources": None}}) == {}
    assert names(VARIANTS["extended-resources"]) == {
        "gpu.nvidia.com": "example.com/gpu",
        "mig.nvidia.com": "example.com/mig",
    }


def test_the_notes_say_who_judges_classes_of_ones_own(render: Render) -> None:
    values = {"deviceClasses": {"extra": [{"name": "big", "spec": {}}, {"name": "small", "spec": {}}]}}
    assert "selectors and configs of deviceClasses.extra: big, small.\n\n  dractl check" in render(values).notes
    assert "deviceClasses.extra" not in render().notes


def test_classes_of_ones_own_come_as_they_are(render: Render) -> None:
    assert render(VARIANTS["extra-class"]).object("DeviceClass", EXTRA_CLASS["name"])["spec"] == EXTRA_CLASS["spec"]


@pytest.mark.slow
def test_openshift_and_prometheus_get_their_objects_where_they_are(render: Render) -> None:
    kinds = {"SecurityContextConstraints", "PodMonitor", "PrometheusRule"}
    assert not kinds & {obj["kind"] for obj in render().objects}
    assert kinds <= {obj["kind"] for obj in render(before=EVERYTHING_SERVED).objects}
    assert not kinds & {obj["kind"] for obj in render(VARIANTS["no-monitors"], before=EVERYTHING_SERVED).objects}


def test_alerts_come_as_their_file_has_them(render: Render) -> None:
    """Their own braces are Prometheus' and not Helm's."""
    spec = render(VARIANTS["names"], before=EVERYTHING_SERVED).object("PrometheusRule")["spec"]
    alerts = {rule["alert"]: rule for rule in spec["groups"][0]["rules"]}
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    wanted = {rule["alert"]: rule for rule in written["groups"][0]["rules"]}
    assert alerts.pop("GpuDraPluginNotReady") != wanted.pop("GpuDraPluginNotReady")
    assert alerts == wanted


@pytest.mark.parametrize("variant", ["defaults", "names"])
def test_the_alert_on_plugins_that_are_not_ready_is_about_the_daemon_set_that_there_is(
    variant: str, render: Render
) -> None:
    release = render(VARIANTS[variant], before=EVERYTHING_SERVED)
    metadata = release.object("DaemonSet")["metadata"]
    rules = release.object("PrometheusRule")["spec"]["groups"][0]["rules"]
    (expression,) = [rule["expr"] for rule in rules if rule["alert"] == "GpuDraPluginNotReady"]
    ours = f'{{namespace="{metadata["namespace"]}", daemonset="{metadata["name"]}"}}'
    assert expression.count(ours) == 2 and expression.count("{") == 2


def test_the_dashboard_comes_as_its_file_has_it(render: Render) -> None:
    release = render(VARIANTS["dashboard"])
    dashboard = release.object("ConfigMap", "gpu-dra-driver-dashboard")
    assert dashboard["metadata"]["labels"]["grafana"] == "yes"
    assert dashboard["data"] == {"gpu-dra-driver.json": (CHART / "files" / "dashboard.json").read_text()}


def constraint_of(release: Release, part: str) -> Object:
    (constraint,) = [
        constraint
        for constraint in release.all("SecurityContextConstraints")
        if constraint["metadata"]["name"].endswith(part)
    ]
    return constraint


def test_the_constraint_of_openshift_is_for_the_account_that_the_plugin_has(render: Render) -> None:
    release = render(VARIANTS["accounts"], before=EVERYTHING_SERVED)
    account = release.object("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    constraint = constraint_of(release, "kubelet-plugin")
    assert constraint["users"] == [f"system:serviceaccount:{NAMESPACE}:{account}"]


def test_the_constraint_of_openshift_for_daemons_of_domains_lets_in_what_the_controller_makes(render: Render) -> None:
    release = render(VARIANTS["accounts"], before=EVERYTHING_SERVED)
    (controller,) = release.object("Deployment")["spec"]["template"]["spec"]["containers"]
    daemons = controller_settings.read_settings(controller["args"], {"GPU_DRA_LEASE_NAMESPACE": NAMESPACE}).daemons
    constraint = constraint_of(release, "imex-daemon")
    assert constraint["users"] == [f"system:serviceaccount:{NAMESPACE}:{daemons.service_account}"]
    spec = {"channel": {"resourceClaimTemplate": {"name": "t"}}}
    domain = ComputeDomain.of({"metadata": {"name": "d", "namespace": "n", "uid": "u"}, "spec": spec})
    pod = daemon_set(domain, daemons)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert {key for volume in pod["volumes"] for key in volume} - {"name"} <= set(constraint["volumes"])
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"]["drop"] == constraint["requiredDropCapabilities"]
    assert context["capabilities"]["add"] == constraint["allowedCapabilities"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    without = render({"featureGates": {"ComputeDomains": False}}, before=EVERYTHING_SERVED)
    assert len(without.all("SecurityContextConstraints")) == 1


def test_monitors_and_network_policies_select_the_pods_and_their_port(render: Render) -> None:
    release = render(VARIANTS["network"], before=EVERYTHING_SERVED)
    pods = [release.object(kind)["spec"]["template"] for kind in ("DaemonSet", "Deployment")]
    for kind, key in (("PodMonitor", "selector"), ("NetworkPolicy", "podSelector")):
        monitors_or_policies = [obj for obj in release.all(kind) if "imex-daemon" not in obj["metadata"]["name"]]
        for obj in monitors_or_policies:
            wanted = obj["spec"][key]["matchLabels"].items()
            (pod,) = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
            (port,) = pod["spec"]["containers"][0]["ports"]
            if kind == "PodMonitor":
                assert obj["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
            else:
                assert obj["spec"]["ingress"][0]["ports"][0]["port"] == port["containerPort"]
        assert len(monitors_or_policies) == 2


def test_what_is_removed_at_the_end_is_removed_also_where_a_network_denies(render: Render) -> None:
    release = render(VARIANTS["network-narrow"])
    hooks = {hook["kind"]: hook for hook in release.hooks}
    policy, job = hooks["NetworkPolicy"], hooks["Job"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    controller = release.object("NetworkPolicy", "gpu-dra-driver-controller")["spec"]
    assert policy["spec"]["egress"] == controller["egress"][:1] and "ingress" not in policy["spec"]
    assert not [hook for hook in render().hooks if hook["kind"] == "NetworkPolicy"]


def test_daemons_of_domains_reach_each_other_and_the_api_server_alone(render: Render) -> None:
    policy = render(VARIANTS["network-narrow"]).object("NetworkPolicy", "gpu-dra-driver-imex-daemon")["spec"]
    domain = ComputeDomain.of(
        {"metadata": {"name": "train", "uid": "u"}, "spec": {"channel": {"resourceClaimTemplate": {"name": "train"}}}}
    )
    labels = daemon_set(domain, DaemonSettings(namespace=NAMESPACE, image="x"))["spec"]["template"]["metadata"][
        "labels"
    ]
    for selector in (
        policy["podSelector"],
        policy["ingress"][0]["from"][0]["podSelector"],
        policy["egress"][0]["to"][0]["podSelector"],
    ):
        assert selector["matchLabels"].items() <= labels.items()
        assert [
            (expression["key"] in labels, expression["operator"]) for expression in selector["matchExpressions"]
        ] == [(True, "Exists")]
    assert policy["egress"][1]["ports"] == [{"port": 6443, "protocol": "TCP"}]
    assert [peer["ipBlock"]["cidr"] for peer in policy["egress"][1]["to"]] == ["10.0.0.1/32", "fd00::1/128"]
    assert (len(policy["ingress"]), len(policy["egress"])) == (1, 2)
    off = render({"networkPolicy": {"install": True}, "featureGates": {"ComputeDomains": False}})
    assert len(off.all("NetworkPolicy")) == 2


def test_service_monitors_select_services_of_the_pods_and_take_the_place_of_pod_monitors(render: Render) -> None:
    release = render(VARIANTS["service-monitors"], before=EVERYTHING_SERVED)
    assert not release.all("PodMonitor")
    read = []
    for monitor in release.all("ServiceMonitor"):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [
            candidate for candidate in release.all("Service") if wanted <= candidate["metadata"]["labels"].items()
        ]
        (port,) = service["spec"]["ports"]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] == port["name"] and endpoint["honorLabels"]
        selected = service["spec"]["selector"].items()
        for kind in ("DaemonSet", "Deployment"):
            pod = release.object(kind)["spec"]["template"]
            if selected <= pod["metadata"]["labels"].items():
                (container_port,) = pod["spec"]["containers"][0]["ports"]
                assert port["targetPort"] == container_port["name"]
                read.append(kind)
    assert sorted(read) == ["DaemonSet", "Deployment"]


def test_service_monitors_have_to_be_asked_for_and_both_are_one_too_many(render: Render) -> None:
    assert not render(before=EVERYTHING_SERVED).all("ServiceMonitor")
    named = [service["metadata"]["name"] for service in render(VARIANTS["service-monitors"]).all("Service")]
    assert not [name for name in named if name.endswith("-metrics")], "auto is for clusters that have them"
    with pytest.raises(HelmError, match="everything would be counted twice"):
        render({"metrics": {"podMonitors": "always", "serviceMonitors": "always"}}, before=EVERYTHING_SERVED)


def test_the_quota_of_priority_classes_allows_those_that_pods_have(render: Render) -> None:
    priority = {"priorityClassName": "plugins"}, {"priorityClassName": ""}, {"priorityClassName": "daemons"}
    values = dict(zip(("kubeletPlugin", "controller", "computeDomains"), priority, strict=True))
    (scope,) = quota(render({**values, "priorityClassQuota": True}))["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == ["plugins", "daemons"]
    (scope,) = quota(render({"publisher": "node", "priorityClassQuota": True}))["spec"]["scopeSelector"][
        "matchExpressions"
    ]
    assert scope["values"] == ["system-node-critical"]


def quota(release: Release) -> Object:
    return release.object("ResourceQuota")
