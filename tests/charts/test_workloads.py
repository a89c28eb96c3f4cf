"""How pods of a release are made: what all of them have, and what is lost when one of them is forgotten."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.helm import Object, Release
from support.rows import slow_but

type Render = Any


def pods(release: Release) -> Iterator[tuple[str, Object]]:
    """By what has them: `DaemonSet`, `Deployment`, `Job` of the removal, `Pod` of the test."""
    for obj in (*release.objects, *release.hooks):
        if obj["kind"] == "Pod":
            yield "Pod", obj["spec"]
        elif "template" in obj.get("spec", {}) and "containers" in obj["spec"]["template"].get("spec", {}):
            yield obj["kind"], obj["spec"]["template"]["spec"]


def test_every_pod_pulls_its_image_with_the_secrets_of_the_values(render: Render) -> None:
    """A private registry: what is forgotten does not start, and the last one only at the very end."""
    release = render({"imagePullSecrets": [{"name": "one"}, {"name": "two"}]})
    pod_specs = dict(pods(release))
    assert set(pod_specs) == {"DaemonSet", "Deployment", "Job", "Pod"}
    for kind, pod in pod_specs.items():
        assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}], kind
    arguments = pod_specs["Deployment"]["containers"][0]["args"]
    assert "--daemon-image-pull-secrets=one,two" in arguments, "daemons of ComputeDomains are made by the controller"


@pytest.mark.parametrize("image", [{"tag": "1.2.3"}, {"digest": "sha256:" + "0" * 64}])
def test_every_pod_runs_the_image_of_the_values(image: Object, render: Render) -> None:
    release = render({"image": {"repository": "registry.example/a", "pullPolicy": "Always", **image}})
    named = f"registry.example/a{':1.2.3' if 'tag' in image else '@' + image.get('digest', '')}"
    for kind, pod in pods(release):
        for container in pod["containers"]:
            assert (container["image"], container["imagePullPolicy"]) == (named, "Always"), kind
    assert f"--daemon-image={named}" in dict(pods(release))["Deployment"]["containers"][0]["args"]


def test_a_new_controller_is_ready_before_an_old_one_goes(render: Render) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert render().object("Deployment")["spec"]["strategy"] == rolling


@pytest.mark.parametrize(
    ("values", "kind", "field", "replaced"),
    [
        ("kubeletPlugin", "DaemonSet", "updateStrategy", "OnDelete"),
        *slow_but([("controller", "Deployment", "strategy", "Recreate")]),
    ],
)
def test_pods_are_replaced_as_the_values_say(values: str, kind: str, field: str, replaced: str, render: Render) -> None:
    """Kubernetes refuses `rollingUpdate`, whose defaults Helm leaves in the values, beside another type."""
    assert render({values: {"updateStrategy": {"type": replaced}}}).object(kind)["spec"][field] == {"type": replaced}
    rolling = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}
    spec = render({values: {"updateStrategy": rolling}}).object(kind)["spec"]
    assert spec[field] == {"type": "RollingUpdate", **rolling}


@pytest.mark.parametrize("kind", slow_but(["DaemonSet", "Deployment"], "DaemonSet"))
def test_a_security_context_of_the_values_replaces_single_fields(kind: str, render: Render) -> None:
    values = {"DaemonSet": "kubeletPlugin", "Deployment": "controller"}[kind]
    before, after = (
        dict(pods(render(given)))[kind]["containers"][0]["securityContext"]
        for given in ({}, {values: {"securityContext": {"runAsUser": 77, "seLinuxOptions": {"type": "marked_t"}}}})
    )
    assert after == {**before, "runAsUser": 77, "seLinuxOptions": {"type": "marked_t"}}


def test_controllers_are_two_apart_from_each_other_and_one_may_be_away(render: Render) -> None:
    release = render()
    deployment, budget = release.object("Deployment")["spec"], release.object("PodDisruptionBudget")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    selected = deployment["selector"]["matchLabels"]
    (preferred,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert deployment["replicas"] == 2 and budget["maxUnavailable"] == 1
    assert preferred["weight"] == 100
    assert preferred["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    # Of these pods and of no others of the release: not of plugins, of which each node has one.
    plugins = release.object("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        selected,
        budget["selector"]["matchLabels"],
        preferred["podAffinityTerm"]["labelSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= plugins.items()


def test_on_real_hardware_the_plugin_sees_the_hosts_processes(render: Render) -> None:
    """What a pod with its own PIDs starts ends with it, and MPS daemons must not end with their plugin."""
    assert render().object("DaemonSet")["spec"]["template"]["spec"]["hostPID"] is True


def test_only_what_calls_the_api_server_has_a_token(render: Render) -> None:
    pod_specs = dict(pods(render()))
    assert pod_specs["Pod"]["automountServiceAccountToken"] is False
    for kind in ("DaemonSet", "Deployment", "Job"):
        assert "serviceAccountName" in pod_specs[kind] and "automountServiceAccountToken" not in pod_specs[kind]


def test_no_pod_is_told_of_the_services_of_its_namespace(render: Render) -> None:
    assert [pod.get("enableServiceLinks") for _, pod in pods(render())] == [False] * 4


def test_the_plugin_leaves_its_last_words_where_it_can_write(render: Render) -> None:
    """/dev, where Kubernetes has the file by default, is the host's."""
    (container,) = render().object("DaemonSet")["spec"]["template"]["spec"]["containers"]
    path = container["terminationMessagePath"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert path.startswith("/tmp/") and not mounts["/tmp"].get("readOnly")
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_what_the_host_mounts_later_is_seen_where_daemons_and_drivers_come_and_go(render: Render) -> None:
    (container,) = render().object("DaemonSet")["spec"]["template"]["spec"]["containers"]
    seen = {
        mount["mountPath"] for mount in container["volumeMounts"] if mount.get("mountPropagation") == "HostToContainer"
    }
    assert seen == {"/var/lib/kubelet/plugins", "/host"}
