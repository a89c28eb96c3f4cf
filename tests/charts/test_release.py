"""What a release does to a cluster from its first day to its last, and that nothing of it is left then."""

import asyncio
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart_values import POLICY, VARIANTS
from support.foreign_types import EVERYTHING_SERVED
from support.helm import CHART, NAMESPACE, Cluster, Helm, HelmError, Release, ServerThread, jobs_run
from support.permissions import faults
from support.rows import slow_but

from controller import uninstall
from controller.classes import wanted_class
from tests.charts.test_permissions import done_by, granted, names_in

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The cleanup Job does what its container would do."""
    asked = "cluster" if "cluster" in request.fixturenames else "server"
    cluster: Cluster = request.getfixturevalue(asked)

    with jobs_run(cluster, lambda arguments: clean_up(cluster, arguments)):
        yield


def clean_up(cluster: Cluster, arguments: list[str]) -> None:
    where = ["--kubeconfig", str(cluster.kubeconfig), "--lease-namespace", NAMESPACE]
    asyncio.run(uninstall.run(uninstall.read_settings([*arguments, *where], {})))


def made_while_it_runs(cluster: Cluster) -> None:
    """What controller and plugins make and no release owns."""
    cluster.create(wanted_class("1g.10gb", DRIVER, extended_resource=False))
    lease = {"name": "gpu-dra-driver-controller", "namespace": NAMESPACE}
    cluster.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease})
    failed = {"name": "gpu-dra-driver-test", "namespace": NAMESPACE}
    spec = {"containers": [{"name": "claim", "image": "gpu-dra-driver"}], "terminationGracePeriodSeconds": 0}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": failed, "spec": spec})


TEMPLATES = ("resource.k8s.io/v1", "ResourceClaimTemplate")
DOMAIN_LABEL = "resource.nvidia.com/computeDomain"


def a_domain(cluster: Cluster) -> None:
    """As the controller keeps it: with a finalizer, a labelled node, and daemons in the driver's namespace."""
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "train", "namespace": "default", "finalizers": [DOMAIN_LABEL]},
        "spec": {"numNodes": 1, "channel": {"resourceClaimTemplate": {"name": "train"}}},
    }
    uid = cluster.create(domain)["metadata"]["uid"]
    labels = {DOMAIN_LABEL: uid}
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": {**labels, "a": "b"}}})
    metadata = {"name": f"computedomain-daemon-{uid}", "namespace": NAMESPACE, "labels": labels}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "imex-daemon", "image": "x"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    cluster.create({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
    request = {"name": "daemon", "exactly": {"deviceClassName": "compute-domain-daemon.nvidia.com"}}
    claim = {"spec": {"devices": {"requests": [request]}}}
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata}
    cluster.create({**template, "spec": claim})


def slice_of(driver: str, name: str) -> dict[str, Any]:
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": "node-1", "pool": pool, "devices": [{"name": "gpu-1"}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def channels() -> dict[str, Any]:
    """The slice of a node's channels, as our publisher makes it."""
    channels_slice = slice_of("compute-domain.nvidia.com", "channels")
    channels_slice["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "gpu-dra-driver"}
    return channels_slice


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    "variant", slow_but(["defaults", "publisher-node", "driver-name", "network", "priority-quota"], "defaults")
)
def test_nothing_is_left_after_all(variant: str, cluster: Cluster) -> None:
    before = cluster.names()
    helm = Helm(cluster.kubeconfig)
    helm.install(VARIANTS[variant])
    helm.upgrade({"policy": POLICY})
    helm.upgrade(VARIANTS[variant])
    if variant == "defaults":
        made_while_it_runs(cluster)
    assert cluster.names() - before
    helm.uninstall()
    assert cluster.left_of(before) == set()


@pytest.mark.usefixtures("jobs")
def test_domains_go_with_their_definition_and_nodes_are_free_again(cluster: Cluster) -> None:
    """A real server keeps the definition until the last domain has gone, and a domain until its finalizer has."""
    before, helm = cluster.names(), Helm(cluster.kubeconfig)
    cluster.create(channels())  # before admission policies let nobody but the controller do so
    helm.install()
    a_domain(cluster)
    helm.uninstall()
    left = cluster.left_of(before, "Node /node-1")
    (node,) = [node for node in cluster.objects("v1", "Node") if node["metadata"]["name"] == "node-1"]
    cluster.delete(node)
    assert left == {"Node /node-1"}
    assert node["metadata"]["labels"] == {"a": "b"}


def test_the_cleanup_may_do_what_it_does_and_nothing_else(server: ServerThread) -> None:
    """Beside the rest, what cert-manager made for a webhook."""
    helm = Helm(server.kubeconfig)
    server.create(channels())
    values = {"webhook": {"install": True, "certificates": "cert-manager"}}
    for definition in EVERYTHING_SERVED:
        server.create(definition)
    release = helm.install(values)
    made_while_it_runs(server)
    a_domain(server)
    (job,) = [hook for hook in release.hooks if hook["kind"] == "Job"]
    # Not by uninstalling: the definition of domains would be gone before anybody could be seen to ask for them.
    clean_up(server, job["spec"]["template"]["spec"]["containers"][0]["args"])
    done = done_by(server.server.accesses, "gpu-dra-cleanup")
    assert done
    allowed = granted(release, "gpu-dra-driver-cleanup")
    assert faults(allowed, done, names=names_in(release), namespace=NAMESPACE) == []


@pytest.mark.slow
@pytest.mark.usefixtures("jobs")
def test_domains_stay_with_their_definition(server: ServerThread) -> None:
    """And so do their daemons and labels: programs go on, and the next release keeps the same domains."""
    helm = Helm(server.kubeconfig)
    server.create(channels())
    helm.install({"crds": {"keep": True}})
    a_domain(server)
    helm.uninstall()
    (domain,) = server.objects("resource.nvidia.com/v1beta1", "ComputeDomain")
    assert domain["metadata"]["finalizers"] == [DOMAIN_LABEL] and "deletionTimestamp" not in domain["metadata"]
    (node,) = server.objects("v1", "Node")
    assert node["metadata"]["labels"][DOMAIN_LABEL] == domain["metadata"]["uid"]
    assert len(server.objects("apps/v1", "DaemonSet")) == len(server.objects(*TEMPLATES)) == 1
    assert server.objects("resource.k8s.io/v1", "ResourceSlice") == []


@pytest.mark.usefixtures("jobs")
def test_what_others_made_stays(server: ServerThread, tmp_path: Path) -> None:
    theirs = [
        wanted_class("1g.10gb", "gpu.example.com", extended_resource=False),
        slice_of("gpu.example.com", "theirs"),
        slice_of("compute-domain.nvidia.com", "nvidias"),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "theirs"},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
        },
    ]
    for obj in theirs:
        server.create(obj)
    server.create(slice_of(DRIVER, "ours"))
    words = ["--kubeconfig", str(server.kubeconfig), "--lease-namespace", NAMESPACE]
    asyncio.run(uninstall.run(uninstall.read_settings(words, {})))
    assert {slice_["metadata"]["name"] for slice_ in server.objects("resource.k8s.io/v1", "ResourceSlice")} == {
        "theirs",
        "nvidias",
    }
    left = {device_class["metadata"]["name"] for device_class in server.objects("resource.k8s.io/v1", "DeviceClass")}
    assert left == {"theirs", "1g.10gb.mig.nvidia.com"}


def test_what_cannot_be_removed_does_not_keep_the_rest(server: ServerThread, capsys: Any) -> None:
    for profile in ("1g.10gb", "2g.20gb"):
        server.create(wanted_class(profile, DRIVER, extended_resource=False))
    for name in ("ours", "ours-too"):
        server.create(slice_of(DRIVER, name))
    for resource in ("deviceclasses", "resourceslices"):
        server.server.fail_next("DELETE", resource, 403, message="not yours")
    settings = uninstall.read_settings(["--kubeconfig", str(server.kubeconfig)], {})
    with pytest.raises(uninstall.ClusterError, match="not yours"):
        asyncio.run(uninstall.run(settings))
    for kind in ("DeviceClass", "ResourceSlice"):
        assert len(server.objects("resource.k8s.io/v1", kind)) == 1, "only the one that was refused"


@pytest.mark.usefixtures("jobs")
def test_an_upgrade_brings_a_newer_definition_and_keeps_the_objects(cluster: Cluster, tmp_path: Path) -> None:
    """Which is what Helm does not do for definitions in `crds/`."""
    older = tmp_path / "older"
    shutil.copytree(CHART, older)
    file = older / "files" / "crds" / "nodeinventory.yaml"
    crd = yaml.safe_load(file.read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    dropped = sorted(properties["spec"]["properties"])[-1]
    del properties["spec"]["properties"][dropped]
    if dropped in properties["spec"].get("required", ()):
        properties["spec"]["required"].remove(dropped)
    file.write_text(yaml.safe_dump(crd))

    def known() -> set[str]:
        (definition,) = [
            definition
            for definition in cluster.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition")
            if definition["metadata"]["name"] == "nodeinventories.dra.gpu"
        ]
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return set(schema["properties"]["spec"]["properties"])

    helm = Helm(cluster.kubeconfig)
    helm.install(chart=older)
    assert dropped not in known()
    helm.upgrade()
    assert dropped in known()
    helm.uninstall()


@pytest.mark.usefixtures("jobs")
@pytest.mark.slow
def test_definitions_can_be_kept(cluster: Cluster) -> None:
    helm = Helm(cluster.kubeconfig)
    helm.install({"crds": {"keep": True}})
    helm.uninstall()
    remaining = cluster.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    names = sorted(definition["metadata"]["name"] for definition in remaining)
    assert names == ["computedomains.resource.nvidia.com", "gpupolicies.dra.gpu", "nodeinventories.dra.gpu"]
    # And the next release takes them over, for it has the same name.
    helm.install()
    helm.uninstall()
    cluster.settle()
    assert not cluster.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition")


def as_stored(cluster: Cluster, release: Release) -> dict[str, Any]:
    """The release's objects by kind and name, without what only says when and how often they were written."""
    stored = {}
    for kind in {(obj["apiVersion"], obj["kind"]) for obj in release.objects}:
        names = {obj["metadata"]["name"] for obj in release.objects if (obj["apiVersion"], obj["kind"]) == kind}
        for obj in cluster.objects(*kind):
            if obj["metadata"]["name"] in names:
                written = {"resourceVersion", "generation", "uid", "creationTimestamp", "managedFields"}
                metadata = {key: value for key, value in obj["metadata"].items() if key not in written}
                metadata.get("annotations", {}).pop("deprecated.daemonset.template.generation", None)
                name = f"{obj['kind']} {obj['metadata']['name']}"
                stored[name] = {**obj, "metadata": metadata, "status": None}
                # A Service that was made again has another address.
                for address in ("clusterIP", "clusterIPs"):
                    stored[name].get("spec", {}).pop(address, None)
    return stored


@pytest.mark.slow
@pytest.mark.usefixtures("jobs")
def test_a_rollback_brings_back_values_and_objects_of_the_revision(cluster: Cluster) -> None:
    before, helm = cluster.names(), Helm(cluster.kubeconfig)
    values = VARIANTS["policy"]
    first = helm.install(values)
    objects, names = as_stored(cluster, first), cluster.names()
    assert len(objects) == len(first.objects)
    other = {
        "networkPolicy": {"install": True},
        "publisher": "node",
        "logLevel": "debug",
        "featureGates": {"DeviceStatus": False},
        "deviceClasses": {"extendedResources": {"gpu.nvidia.com": ""}},
    }
    helm.upgrade(other)
    assert helm.values() == other and as_stored(cluster, first) != objects

    last = helm.rollback_to(1)

    assert (last.revision, last.manifest) == (3, first.manifest)
    assert helm.values() == values
    assert as_stored(cluster, last) == objects
    revisions = {f"Secret {NAMESPACE}/sh.helm.release.v1.gpu-dra-driver.v{number}" for number in (1, 2, 3)}
    # A real cluster remembers the DaemonSet in between, too, as long as the DaemonSet is there.
    left = {name for name in cluster.names() - revisions if not name.startswith("ControllerRevision ")}
    assert left == {name for name in names - revisions if not name.startswith("ControllerRevision ")}
    helm.uninstall()
    assert cluster.left_of(before) == set()


@pytest.mark.usefixtures("jobs")
@pytest.mark.slow
def test_a_failed_upgrade_is_rolled_back(server: ServerThread) -> None:
    helm = Helm(server.kubeconfig)
    helm.install()

    def running() -> Any:
        (plugin,) = server.objects("apps/v1", "DaemonSet")
        return plugin["spec"]["template"]

    before, names = running(), server.names()
    server.server.fail_next("PATCH", "/deployments/", 403, message="not today")
    with pytest.raises(HelmError, match="not today"):
        helm.upgrade({"logLevel": "debug", "networkPolicy": {"install": True}}, rollback_on_failure=True, timeout=20)
    assert running() == before
    revisions = {f"Secret {NAMESPACE}/sh.helm.release.v1.gpu-dra-driver.v{number}" for number in (1, 2, 3)}
    assert server.names() - revisions == names - revisions


@pytest.mark.slow
def test_an_upgrade_can_test_another_class(cluster: Cluster) -> None:
    """Templates of claims cannot be changed."""
    helm = Helm(cluster.kubeconfig)
    without = {"cleanup": {"install": False}}
    first = helm.install(without)
    last = helm.upgrade({**without, "test": {"deviceClassName": "mig.nvidia.com"}})
    (pod,) = [hook for hook in last.hooks if hook["kind"] == "Pod"]
    template = last.object("ResourceClaimTemplate")["metadata"]["name"]
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template
    assert template != first.object("ResourceClaimTemplate")["metadata"]["name"]
    helm.uninstall()


@pytest.mark.slow
def test_an_upgrade_without_domains_needs_no_definition_of_them(server: ServerThread) -> None:
    """Which somebody has removed, or which a release before did not have."""
    helm = Helm(server.kubeconfig)
    helm.install({"publisher": "node"})
    for definition in server.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition"):
        server.delete(definition)
    release = helm.upgrade({"publisher": "node", "logLevel": "debug"})
    assert [definition["spec"]["names"]["kind"] for definition in release.all("CustomResourceDefinition")] == [
        "GpuPolicy",
        "NodeInventory",
    ]


NO_DOMAINS = {"featureGates": {"ComputeDomains": False}}


def domain_objects(release: Release) -> set[str]:
    """Names of what NVIDIA's own driver for ComputeDomains has as well."""
    names = {
        obj["metadata"]["name"] for kind in ("CustomResourceDefinition", "DeviceClass") for obj in release.all(kind)
    }
    return {name for name in names if "compute" in name}


@pytest.mark.usefixtures("jobs")
@pytest.mark.slow
def test_without_domains_there_is_room_for_nvidias_own_driver_of_them(server: ServerThread, helm: Helm) -> None:
    """Its definition and its classes are not touched, also not at the end."""
    theirs = [
        *yaml.safe_load_all((CHART / "files" / "crds" / "computedomain.yaml").read_text()),
        *yaml.safe_load_all((CHART / "files" / "deviceclasses" / "compute-domain-daemon.nvidia.com.yaml").read_text()),
    ]
    for obj in theirs:
        server.create(obj)
    assert domain_objects(helm.install(NO_DOMAINS)) == set()
    assert domain_objects(helm.upgrade(NO_DOMAINS)) == set()
    helm.uninstall()
    for obj in theirs:
        assert [stored["metadata"]["name"] for stored in server.objects(obj["apiVersion"], obj["kind"])] == [
            obj["metadata"]["name"]
        ]


@pytest.mark.slow
def test_from_the_controller_to_plugins_that_publish_nothing_is_left_that_nobody_needs(cluster: Cluster) -> None:
    """Classes of MIG profiles are needed: claims name them. The notes tell which there are."""
    helm, without = Helm(cluster.kubeconfig), {"cleanup": {"install": False}}
    helm.install(without)
    ours, theirs = (wanted_class("1g.10gb", driver, extended_resource=False) for driver in (DRIVER, "gpu.example.com"))
    theirs["metadata"]["name"] = "theirs.mig.nvidia.com"
    for device_class in (ours, theirs):
        cluster.create(device_class)
    lease = {"name": "gpu-dra-driver-controller", "namespace": NAMESPACE}
    cluster.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease})
    node = helm.upgrade({**without, "publisher": "node"})
    assert not [name for name in cluster.names() if "gpu-dra-driver-controller" in name]
    assert domain_objects(node) == {"computedomains.resource.nvidia.com"}, "which goes with the release that has it"
    assert "1g.10gb.mig.nvidia.com" in {device_class["metadata"]["name"] for device_class in cluster.objects(*CLASSES)}
    assert "kubectl delete deviceclasses 1g.10gb.mig.nvidia.com\n" in node.notes and "theirs.mig" not in node.notes
    again = helm.upgrade({**without, "publisher": "node", "logLevel": "debug"})
    assert not again.hooks or {hook["kind"] for hook in again.hooks} == {"Pod"}, "that of `helm test`"
    back = helm.upgrade(without)
    assert len(domain_objects(back)) == 4 and "1g.10gb" not in back.notes
    helm.uninstall()
    for device_class in (ours, theirs):
        cluster.delete(device_class)


CLASSES = ("resource.k8s.io/v1", "DeviceClass")


@pytest.mark.parametrize("publisher", slow_but(["node", "controller"], "controller"))
def test_a_first_install_has_the_definition_and_classes_of_domains_where_somebody_keeps_them(
    publisher: str, server: ServerThread, helm: Helm
) -> None:
    assert len(domain_objects(helm.install({"publisher": publisher}))) == {"node": 0, "controller": 4}[publisher]


@pytest.mark.slow
@pytest.mark.parametrize("keep", slow_but([False, True], False))
def test_a_definition_that_this_release_has_stays_when_domains_are_switched_off(
    keep: bool, server: ServerThread, helm: Helm
) -> None:
    """With it would go every ComputeDomain."""
    values = {"crds": {"keep": keep}}
    assert len(domain_objects(helm.install(values))) == 4
    (before,) = [
        definition for definition in definitions(server) if definition["spec"]["names"]["kind"] == "ComputeDomain"
    ]
    for _ in range(2):
        assert domain_objects(helm.upgrade({**values, **NO_DOMAINS})) == {"computedomains.resource.nvidia.com"}
    (after,) = [
        definition for definition in definitions(server) if definition["spec"]["names"]["kind"] == "ComputeDomain"
    ]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    annotations = after["metadata"]["annotations"]
    assert annotations["argocd.argoproj.io/sync-options"] == "Prune=false", "Argo CD cannot look, and leaves it out"
    assert ("helm.sh/resource-policy" in annotations) == keep


def definitions(server: ServerThread) -> list[Any]:
    return list(server.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition"))


@pytest.mark.slow
def test_definitions_and_classes_of_others_are_taken_over_on_request_alone(server: ServerThread, helm: Helm) -> None:
    """NVIDIA's own driver leaves the definition of ComputeDomains behind; ours takes the place of its fields."""
    (definition,) = yaml.safe_load_all((CHART / "files" / "crds" / "computedomain.yaml").read_text())
    wanted = deepcopy(definition["spec"]["versions"][0]["schema"])
    definition["spec"]["versions"][0]["schema"] = {
        "openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}, "theirs": {"type": "string"}}}
    }
    (device_class,) = yaml.safe_load_all((CHART / "files" / "deviceclasses" / "mig.nvidia.com.yaml").read_text())
    server.create(definition)
    server.create(device_class)
    with pytest.raises(HelmError, match="cannot be imported into the current release"):
        helm.install()
    helm.install({"cleanup": {"install": False}}, take_ownership=True)
    kind = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    (ours,) = [crd for crd in server.objects(*kind) if crd["spec"]["names"]["kind"] == "ComputeDomain"]
    assert ours["spec"]["versions"][0]["schema"] == wanted
    helm.uninstall()
    assert not server.objects(*kind) and not server.objects("resource.k8s.io/v1", "DeviceClass")


@pytest.mark.slow
def test_an_upgrade_that_changes_nothing_changes_nothing(server: ServerThread) -> None:
    helm = Helm(server.kubeconfig)
    objects = helm.install(VARIANTS["policy"]).objects

    def versions() -> dict[tuple[str, str], str]:
        return {
            (obj["kind"], stored["metadata"]["name"]): stored["metadata"]["resourceVersion"]
            for obj in objects
            for stored in server.objects(obj["apiVersion"], obj["kind"])
        }

    before = versions()
    helm.upgrade(VARIANTS["policy"])
    assert versions() == before


def test_the_chart_has_no_faults_that_helm_knows(server: ServerThread, helm: Helm) -> None:
    assert not [message for message in helm.lint().get("Messages") or () if message.get("Severity", 0) > 1]


def test_the_package_holds_what_the_templates_need(helm: Helm, tmp_path: Path) -> None:
    package = helm.package(tmp_path)
    assert len(helm.install(chart=package).all("CustomResourceDefinition")) == 3
