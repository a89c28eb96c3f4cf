"""The guard against other DRA drivers that hand out the same GPUs: NVIDIA's own, what it gave, and releases of ours."""

from typing import Any

import pytest
from support.helm import Helm, HelmError, Object, ServerThread
from support.rows import slow_but

type Render = Any

NFD = {"feature.node.kubernetes.io/pci-10de.present": "true"}


def node(name: str, **labels: str) -> Object:
    metadata = {"name": name, "labels": NFD | labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": {"cpu": "8"}}}


def daemon_set(name: str, *containers: Object, **pod: Any) -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": list(containers), **pod}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def nvidias(*programs: str, **pod: Any) -> Object:
    """As NVIDIA's chart makes it, from whatever registry: a container for each part, whose program a shell starts."""
    containers = [
        {
            "name": program,
            "image": "mirror.example/gpu:1",
            "command": ["bash", "-c"],
            "args": [f"set -e\n{program} -v 4"],
        }
        for program in programs
    ]
    return daemon_set("nvidia-dra-driver-gpu-kubelet-plugin", *containers, **pod)


GPUS, DOMAINS = "gpu-kubelet-plugin", "compute-domain-kubelet-plugin"


def ours(driver: str, **pod: Any) -> Object:
    command = ["gpu-dra-kubelet-plugin"]
    container = {"name": "plugin", "image": "a", "command": command, "args": [f"--driver-name={driver}"]}
    return daemon_set("other-kubelet-plugin", container, **pod)


def claim(*devices: str, driver: str = "gpu.nvidia.com") -> Object:
    results = [{"request": "gpu", "driver": driver, "pool": "a", "device": device} for device in devices]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


OFF = {"featureGates": {"ComputeDomains": False}}
ELSEWHERE = {"nodeSelector": {"pool": "theirs"}}
APART = {"kubeletPlugin": {"nodeSelector": {"pool": "ours"}}}
RENAMED = {"driverName": "gpu.example.com", **OFF}
REFUSED = [
    pytest.param({}, (nvidias(DOMAINS, GPUS),), "another DRA driver for the same GPUs", id="NVIDIA's own"),
    pytest.param(
        {}, (nvidias(GPUS, **ELSEWHERE),), "kubelet-plugin is another DRA driver", id="one name on other nodes"
    ),
    pytest.param(
        RENAMED, (node("a"), nvidias(GPUS)), "another DRA driver for the same GPUs", id="another name, the same node"
    ),
    pytest.param(
        {}, (node("a"), ours("gpu.example.com")), "another DRA driver for the same GPUs", id="ours, the same node"
    ),
    pytest.param({}, (nvidias(DOMAINS),), "featureGates.ComputeDomains=false", id="domains"),
    pytest.param({}, (claim("gpu-0"),), r"1 claim holds GPUs .* \(default/train\)", id="what NVIDIA's own gave"),
    pytest.param({}, (claim("gpu-1-mig-1g10gb-19-0"),), "1 claim holds GPUs", id="a MIG device"),
    pytest.param({}, (claim("gpu-vfio-3"),), "1 claim holds GPUs", id="a GPU for a virtual machine"),
]
INSTALLED = [
    pytest.param(OFF, (nvidias(DOMAINS),), id="domains are left to it"),
    pytest.param(
        {**RENAMED, **APART},
        (node("a", pool="ours"), node("b", pool="theirs"), nvidias(GPUS, **ELSEWHERE)),
        id="another name on other nodes",
    ),
    pytest.param({}, (node("a"), ours("gpu.example.com", **ELSEWHERE)), id="ours on other nodes"),
    pytest.param({"kubeletPlugin": {"simulate": "t4"}}, (node("a"), nvidias(GPUS)), id="simulated hardware"),
    # Installed again while pods run.
    pytest.param({}, (claim("gpu-5a7b12c3", "gpu-12345678-mig-1g10gb-0"),), id="claims of ours"),
    pytest.param({}, (claim("gpu-0", driver="gpu.example.com"),), id="claims of others"),
]


@pytest.mark.parametrize(("values", "before", "says"), [*REFUSED[:1], *slow_but(REFUSED[1:])])
def test_who_hands_out_the_same_is_refused_or_told(
    values: Object, before: tuple[Object, ...], says: str, render: Render
) -> None:
    with pytest.raises(HelmError, match=f"(?s){says}"):
        render(values, before=before)
    warned = render({**values, "devicePluginGuard": "warn"}, before=before)
    assert warned.all("DaemonSet") and "WARNING: " in warned.notes
    ignored = render({**values, "devicePluginGuard": "ignore"}, before=before)
    assert ignored.all("DaemonSet") and "WARNING" not in ignored.notes


@pytest.mark.parametrize(("values", "before"), [*INSTALLED[:1], *slow_but(INSTALLED[1:])])
def test_who_hands_out_something_else_is_not_in_the_way(
    values: Object, before: tuple[Object, ...], render: Render
) -> None:
    release = render(values, before=before)
    assert release.all("DaemonSet") and "WARNING" not in release.notes


@pytest.mark.slow
def test_claims_of_another_driver_stand_in_the_way_of_no_upgrade(server: ServerThread, helm: Helm) -> None:
    """What is there since then the plugins see, each on its node."""
    helm.install()
    server.create(claim("gpu-0"))
    assert helm.upgrade().all("DaemonSet")


def test_a_release_may_get_another_driver_name(server: ServerThread, helm: Helm) -> None:
    """Its own plugins, which have the name of before, are no other driver's."""
    server.create(node("a"))
    helm.install()
    assert helm.upgrade({"driverName": "gpu.example.com"}).all("DaemonSet")
