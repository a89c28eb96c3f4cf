"""A release keeps its names: who would give it others is told so before anything is changed."""

from typing import Any

import pytest
from support.chart_values import VARIANTS
from support.helm import NAMESPACE, Cluster, Helm, HelmError, ServerThread

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
        f"{kind} {found['metadata']['name']}": found["metadata"]["resourceVersion"]
        for version, kind in kinds
        for found in cluster.objects(version, kind)
        if found["metadata"]["namespace"] == NAMESPACE
    }


@pytest.mark.parametrize("case", RENAMED)
def test_an_upgrade_to_other_names_is_refused_before_anything_is_changed(case: str, cluster: Cluster) -> None:
    first, second = RENAMED[case]
    helm = Helm(cluster.kubeconfig)
    helm.install({**first, "cleanup": {"install": False}})
    before = written(cluster)
    with pytest.raises(HelmError, match="Nothing was changed") as refused:
        helm.upgrade({**second, "cleanup": {"install": False}})
    assert written(cluster) == before
    helm.upgrade({**second, "cleanup": {"install": False}, **told(str(refused.value))})
    assert set(written(cluster)) == set(before), "with the names that the message says it goes through"
    helm.uninstall()


def told(message: str) -> dict[str, str]:
    (line,) = [line for line in message.splitlines() if line.startswith("To keep the names: ")]
    words = line.removeprefix("To keep the names: ").partition(". ")[0].split(" and ")
    return dict(word.split("=") for word in words)


@pytest.mark.parametrize("variant", ["names", "full-name", "publisher-node", "driver-name"])
def test_upgrades_that_keep_the_names_are_let_through(variant: str, server: ServerThread, helm: Helm) -> None:
    helm.install(VARIANTS[variant])
    helm.upgrade({**VARIANTS[variant], "logLevel": "debug"})


@pytest.mark.parametrize("publisher", ["controller", "node"])
def test_who_publishes_can_be_changed_with_the_same_names(publisher: str, server: ServerThread, helm: Helm) -> None:
    helm.install({"publisher": publisher, **VARIANTS["names"]})
    other = "node" if publisher == "controller" else "controller"
    helm.upgrade({"publisher": other, **VARIANTS["names"]})


def test_releases_beside_each_other_do_not_count(server: ServerThread, helm: Helm) -> None:
    """Of another namespace, of another name, or no release at all."""
    without: dict[str, Any] = {"crds": {"install": False}, "deviceClasses": {"install": False}}
    helm.install()
    Helm(server.kubeconfig, release="second").install({**without, "nameOverride": "b"})
    Helm(server.kubeconfig, namespace="elsewhere").install({**without, "nameOverride": "c"})
    helm.upgrade({"logLevel": "debug"})
