"""Names of releases, their objects and their drivers: what cannot be is told before anything is changed."""

from typing import Any

import pytest
from support.chart_values import VARIANTS
from support.helm import NAMESPACE, Cluster, Helm, HelmError, Object, ServerThread
from support.rows import slow_but

RENAMED = {
    "the label alone": ({"fullnameOverride": "gpus"}, {"fullnameOverride": "gpus", "nameOverride": "other"}),
    "label and names": ({}, {"nameOverride": "other"}),
    "names alone": ({}, {"fullnameOverride": "other"}),
    "back to the defaults": (VARIANTS["names"], {}),
    "back, without a controller": ({**VARIANTS["full-name"], "publisher": "node"}, {"publisher": "node"}),
}


def written(cluster: Cluster) -> dict[str, str]:
    """Everything, by name and version; but for what Helm keeps of its revisions."""
    kinds = (("v1", "ServiceAccount"), ("v1", "ConfigMap"), ("apps/v1", "DaemonSet"), ("apps/v1", "Deployment"))
    return {
        f"{kind} {obj['metadata']['name']}": obj["metadata"]["resourceVersion"]
        for version, kind in kinds
        for obj in cluster.objects(version, kind)
        if obj["metadata"]["namespace"] == NAMESPACE
    }


@pytest.mark.parametrize("case", slow_but(RENAMED, "label and names"))
def test_an_upgrade_to_other_names_is_refused_before_anything_is_changed(case: str, cluster: Cluster) -> None:
    first, second = RENAMED[case]
    helm = Helm(cluster.kubeconfig)
    helm.install({**first, "cleanup": {"install": False}})
    before = written(cluster)
    with pytest.raises(HelmError, match="Nothing was changed") as refused:
        helm.upgrade({**second, "cleanup": {"install": False}})
    assert written(cluster) == before
    helm.upgrade({**second, "cleanup": {"install": False}, **advised(str(refused.value))})
    assert set(written(cluster)) == set(before), "with the names that the message says it goes through"
    helm.uninstall()


def advised(message: str) -> dict[str, str]:
    (line,) = [line for line in message.splitlines() if line.startswith("To keep the names, set ")]
    words = line.removeprefix("To keep the names, set ").partition(". ")[0].split(" and ")
    return dict(word.split("=") for word in words)


@pytest.mark.parametrize("variant", slow_but(["names", "full-name", "publisher-node", "driver-name"], "names"))
def test_upgrades_that_keep_the_names_are_let_through(variant: str, server: ServerThread, helm: Helm) -> None:
    helm.install(VARIANTS[variant])
    helm.upgrade({**VARIANTS[variant], "logLevel": "debug"})


@pytest.mark.slow
@pytest.mark.parametrize("publisher", slow_but(["controller", "node"], "controller"))
def test_who_publishes_can_be_changed_with_the_same_names(publisher: str, server: ServerThread, helm: Helm) -> None:
    helm.install({"publisher": publisher, **VARIANTS["names"]})
    other = "node" if publisher == "controller" else "controller"
    helm.upgrade({"publisher": other, **VARIANTS["names"]})


@pytest.mark.slow
def test_releases_beside_each_other_do_not_count(server: ServerThread, helm: Helm) -> None:
    """Of another namespace, of another name, or no release at all."""
    without: dict[str, Any] = {"crds": {"install": False}, "deviceClasses": {"install": False}}
    helm.install()
    second = {**without, "nameOverride": "b", "driverName": "b.example.com"}
    Helm(server.kubeconfig, release="second").install(second)
    Helm(server.kubeconfig, namespace="elsewhere").install({**second, "driverName": "c.example.com"})
    helm.upgrade({"logLevel": "debug"})


@pytest.mark.parametrize("publisher", slow_but(["controller", "node"], "controller"))
@pytest.mark.parametrize("other", slow_but([{"release": "second"}, {"namespace": "elsewhere"}], {"release": "second"}))
def test_a_driver_has_one_release(publisher: str, other: dict[str, str], server: ServerThread, helm: Helm) -> None:
    """Each one's policies would refuse the other's slices, and two plugins would serve one node."""
    without: dict[str, Any] = {"crds": {"install": False}, "deviceClasses": {"install": False}, "publisher": publisher}
    helm.install()
    before = server.names()
    with pytest.raises(
        HelmError, match=r"gpu-dra/gpu-dra-driver-kubelet-plugin is already a plugin of driver gpu.nvidia.com"
    ):
        Helm(server.kubeconfig, **other).install(without)
    assert server.names() == before
    Helm(server.kubeconfig, **other).install({**without, "driverName": "gpu.example.com"})


def claim(driver: str) -> Object:
    result = {"request": "gpu", "driver": driver, "pool": "node-1", "device": "gpu-1"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"of-{driver.partition('.')[2]}", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def test_a_driver_keeps_its_name_while_somebody_has_its_devices(cluster: Cluster) -> None:
    """Nobody would release them: kubelet asks a driver of that name, and the journal lies in a folder of that name."""
    helm, without = Helm(cluster.kubeconfig), {"cleanup": {"install": False}}
    helm.install(without)
    claims = [claim(device_class) for device_class in ("gpu.nvidia.com", "gpu.others.example")]
    for asking in claims:
        cluster.create(asking)
    before = written(cluster)
    with pytest.raises(HelmError, match=r"1 claim has devices of driver gpu.nvidia.com \(default/of-nvidia.com\)"):
        helm.upgrade({**without, "driverName": "gpu.example.com"})
    assert written(cluster) == before
    helm.upgrade({**without, "logLevel": "debug"})
    cluster.delete(claims[0])
    helm.upgrade({**without, "driverName": "gpu.example.com"})
    helm.uninstall()
    cluster.delete(claims[1])


@pytest.mark.parametrize("release", slow_but(["9gpus", "team.gpus", "gpu-dra-driver.v2", f"{'x' * 39}.y"], "9gpus"))
def test_a_release_whose_services_could_not_have_its_name_is_told_so(release: str, server: ServerThread) -> None:
    before, helm = server.names(), Helm(server.kubeconfig, release=release)
    with pytest.raises(
        HelmError, match=r"names of Services must begin with a letter and have no dots(.|\n)*fullnameOverride"
    ):
        helm.install()
    assert server.names() == before
    helm.install({"fullnameOverride": "gpus"})


@pytest.mark.slow
def test_long_names_are_taken(server: ServerThread) -> None:
    """As long as Helm and Kubernetes let them be."""
    helm = Helm(server.kubeconfig, release="r" * 53, namespace="n" * 63)
    helm.install({"webhook": {"install": True}, "metrics": {"serviceMonitors": "never"}})
    helm.upgrade({"networkPolicy": {"install": True}, "priorityClassQuota": True})
