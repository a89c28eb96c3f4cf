"""On which nodes plugins run, what the notes say of them, and the guards against a device plugin on the same nodes and
against domains that nobody would take down. Against other DRA drivers: `test_other_drivers`."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.helm import CHART, Cluster, Helm, HelmError, Object, ServerThread, simulated_server

from dra_driver.api.meta import COMPUTE_DOMAINS, NODES

type Render = Any


def node(name: str, labels: dict[str, str], gpus: str | None = None, **others: str) -> Object:
    offered = {f"nvidia.com/{other}": amount for other, amount in others.items()}
    status = {"allocatable": {"cpu": "8"} | ({} if gpus is None else {"nvidia.com/gpu": gpus}) | offered}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


NFD = {"feature.node.kubernetes.io/pci-10de.present": "true"}

WITH_GPUS = {
    "NFD": NFD,
    "NFD, display controller": {"feature.node.kubernetes.io/pci-0300_10de.present": "true"},
    "NFD, 3D controller": {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
    "NFD, Grace": {"feature.node.kubernetes.io/cpu-model.vendor_id": "NVIDIA"},
    "GFD": {"nvidia.com/gpu.present": "true"},
    "GKE": {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
    "EKS": {"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"},
    "EKS, Karpenter": {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
    "EKS, Auto Mode": {"eks.amazonaws.com/instance-gpu-manufacturer": "nvidia"},
    "AKS": {"kubernetes.azure.com/accelerator": "nvidia"},
    "AKS, old": {"accelerator": "nvidia"},
}
WITHOUT = {
    "no labels": {},
    "GFD says no": {"nvidia.com/gpu.present": "false"},
    "TPU": {"cloud.google.com/gke-tpu-accelerator": "tpu-v5"},
    "another vendor": {"karpenter.k8s.aws/instance-gpu-manufacturer": "amd"},
    "Intel": {"feature.node.kubernetes.io/cpu-model.vendor_id": "Intel"},
}


def test_the_notes_count_the_nodes_that_get_a_plugin(render: Render) -> None:
    nodes = [node(f"gpu-{index}", labels) for index, labels in enumerate(WITH_GPUS.values())]
    others = [node(f"cpu-{index}", labels) for index, labels in enumerate(WITHOUT.values())]
    notes = render(before=(*nodes, *others)).notes
    assert f"\nThe plugin runs on {len(nodes)} node(s)" in notes and "No node matches" not in notes
    assert "gpu-0, gpu-1" in notes and "cpu-" not in notes and "…" in notes


def test_the_notes_say_what_to_do_when_no_node_matches(render: Render) -> None:
    assert "kubectl label node NODE nvidia.com/gpu.present=true" in render(before=(node("a", {}),)).notes


def test_the_notes_say_nothing_of_nodes_that_were_not_looked_at(helm: Helm, tmp_path: Path) -> None:
    """Helm's library has no dry run; one of the client gives an empty map for each lookup, as this chart has it."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    helpers = chart / "templates" / "_helpers.tpl"
    text, lookup = helpers.read_text(), '(lookup "v1" "Node" "" "")'
    assert lookup in text
    helpers.write_text(text.replace(lookup, "(dict)"))
    notes = helm.install(chart=chart).notes
    assert "Helm did not contact the cluster" in notes and "No node matches" not in notes and "on 0 node" not in notes


def test_a_cluster_without_nodes_was_looked_at(render: Render) -> None:
    notes = render().notes
    assert "did not contact" not in notes and "No node matches" in notes


def test_a_node_selector_narrows(render: Render) -> None:
    before = (node("a", {**NFD, "pool": "x"}), node("b", NFD))
    assert (
        "kubeletPlugin.affinity and nodeSelector: a.\n"
        in render({"kubeletPlugin": {"nodeSelector": {"pool": "x"}}}, before=before).notes
    )


def test_where_the_node_selector_matches_no_node_the_notes_name_its_label(render: Render) -> None:
    selector = {"kubeletPlugin": {"nodeSelector": {"dra.gpu/driver": "yes"}}}
    notes = render(selector, before=(node("a", NFD),)).notes
    assert "kubectl label node NODE nvidia.com/gpu.present=true dra.gpu/driver=yes --overwrite\n" in notes
    assert "remove it from the node first" in notes and "Node Feature Discovery" not in notes


def test_a_node_with_a_device_plugin_is_refused_until_it_has_none(cluster: Cluster) -> None:
    busy, helm = node("busy", NFD, gpus="8"), Helm(cluster.kubeconfig)
    cluster.create(busy)
    try:
        with pytest.raises(HelmError, match=r"on 1 of the nodes of this driver \(busy\)"):
            helm.install()
        assert not cluster.objects("apps/v1", "DaemonSet")
        none_left = {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}
        cluster.kube(lambda kube: kube.merge_patch(NODES, "busy", none_left, subresource="status"))
        assert "kubeletPlugin.affinity: busy.\n" in helm.install({"cleanup": {"install": False}}).notes
        helm.uninstall()
    finally:
        cluster.delete(busy)


def test_on_request_it_is_only_told(render: Render) -> None:
    before = (node("busy", NFD, gpus="8"), node("free", NFD))
    release = render({"devicePluginGuard": "warn"}, before=before)
    assert "WARNING: a device plugin offers nvidia.com/gpu on 1 of these nodes" in release.notes
    assert release.all("DaemonSet")
    ignoring = render({"devicePluginGuard": "ignore"}, before=before)
    assert ignoring.all("DaemonSet") and "WARNING" not in ignoring.notes


def test_mig_devices_and_shared_gpus_of_a_device_plugin_are_told_too(render: Render) -> None:
    """With MIG strategy `mixed`, or `renameByDefault`, a node has no nvidia.com/gpu at all."""
    before = (
        node("mig", NFD, gpus="0", **{"mig-1g.5gb": "7"}),
        node("sliced", NFD, **{"gpu.shared": "4", "hostdev": "2"}),
        node("free", NFD, **{"mig-1g.5gb": "0"}),
    )
    with pytest.raises(HelmError, match=r"offers nvidia.com/gpu.shared, nvidia.com/mig-1g.5gb on 2 .* \(mig, sliced\)"):
        render(before=before)
    assert "on 2 of these nodes" in render({"devicePluginGuard": "warn"}, before=before).notes


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(node("elsewhere", {}, gpus="8"), id="a node that gets no plugin"),
        pytest.param(node("former", NFD, gpus="0"), id="a device plugin that was removed"),
        pytest.param(node("never", NFD), id="none ever", marks=pytest.mark.slow),
        pytest.param(node("network", NFD, hostdev="8"), id="a device plugin of other devices", marks=pytest.mark.slow),
    ],
)
def test_nothing_stands_in_the_way_of(other: Object, render: Render) -> None:
    release = render(before=(other,))
    assert release.all("DaemonSet") and "WARNING" not in release.notes


def test_simulated_hardware_has_no_rival(render: Render) -> None:
    values = {"kubeletPlugin": {"simulate": "t4"}}
    assert render(values, before=(node("busy", NFD, gpus="8"),)).all("DaemonSet")


def test_an_upgrade_is_guarded_too(server: ServerThread, helm: Helm) -> None:
    helm.install()
    server.create(node("busy", NFD, gpus="8"))
    with pytest.raises(HelmError, match="device plugin"):
        helm.upgrade()


@pytest.mark.slow
def test_domains_that_nobody_would_take_down_keep_them_from_being_switched_off(
    server: ServerThread, helm: Helm
) -> None:
    values = {"featureGates": {"ComputeDomains": False}}
    helm.install()
    domain: Object = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "train"}}},
    }
    server.create(domain)
    assert helm.upgrade(values).all("DaemonSet"), "NVIDIA's own driver may keep it"
    helm.upgrade()
    condition = {"type": "TemplateReady", "status": "True", "reason": "TemplateMade", "message": ""}
    status = {"status": {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
    server.kube(
        lambda kube: kube.merge_patch(COMPUTE_DOMAINS, "train", status, namespace="default", subresource="status")
    )
    with pytest.raises(HelmError, match=r"There are 1 ComputeDomains \(default/train\)"):
        helm.upgrade(values)
    server.delete(domain)
    assert helm.upgrade(values).all("DaemonSet")


def holds(requirement: dict[str, Any], labels: dict[str, str]) -> bool:
    """Source: NodeSelectorRequirement, core/v1."""
    value, values = labels.get(requirement["key"]), requirement.get("values", [])
    match requirement["operator"]:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Gt":
            return value is not None and value.isdigit() and int(value) > int(values[0])
        case _:
            return value is not None and value.isdigit() and int(value) < int(values[0])


_KEY, _VALUE = st.sampled_from(["a", "b"]), st.sampled_from(["1", "2", "3"])
_REQUIREMENT = st.one_of(
    st.fixed_dictionaries({"key": _KEY, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
    st.fixed_dictionaries(
        {"key": _KEY, "operator": st.sampled_from(["In", "NotIn"]), "values": st.lists(_VALUE, min_size=1, max_size=2)}
    ),
    st.fixed_dictionaries(
        {"key": _KEY, "operator": st.sampled_from(["Gt", "Lt"]), "values": st.lists(_VALUE, min_size=1, max_size=1)}
    ),
)
_TERMS = st.lists(st.lists(_REQUIREMENT, min_size=1, max_size=2), min_size=1, max_size=2)
_LABELS = st.dictionaries(_KEY, _VALUE)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(terms=_TERMS, labels=st.lists(_LABELS, min_size=4, max_size=8))
def test_the_chart_sees_nodes_as_the_scheduler_does(
    terms: list[list[dict[str, Any]]], labels: list[dict[str, str]], tmp_path: Any
) -> None:
    """All requirements of one of the terms hold."""
    selector = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    wanted = [any(all(holds(expression, mine) for expression in term) for term in terms) for mine in labels]
    with simulated_server() as thread:
        for index, mine in enumerate(labels):
            thread.create(node(f"n{index}", mine))
        helm = Helm(thread.kubeconfig)
        notes = helm.install({"kubeletPlugin": {"affinity": affinity}}).notes
    assert [f"n{index}" in notes for index in range(len(labels))] == wanted, notes
