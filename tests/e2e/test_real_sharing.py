"""Partitions, shares, MPS and passthrough as real pods on a real cluster: its scheduler, its kubelet, its runtime.

The GPUs are simulated; everything that asks for them is real. For each example the node is the one that the examples'
cluster has for it. Needs what test_real_cluster.py needs. Before Kubernetes 1.36, the gates
that are on there must be switched on.
"""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.real_cluster import (
    IS_THERE,
    WHY_NOT,
    Services,
    allocated,
    apply,
    get,
    inside,
    install,
    kubectl,
    nothing_left,
    published,
    remove,
    server_minor,
    services_of,
    until,
    wait_running,
)

from dra_driver import bundled
from dra_driver.cli.simulated.scenario import nodes_of
from dra_driver.simulation.cluster import SimulatedNode
from kubelet_plugin.commands.simulate import act, standing
from kubelet_plugin.simulation.host import SimulatedHost

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)

PLACES = {
    "fabric-partition": "hgx-h200-2",
    "mig-by-hand": "a30-1",
    "mps-on-mig": "a30-1",
    "mig-on-demand": "dgx-h100-1",
    "mps-one-claim": "dgx-h100-1",
    "time-slicing-one-claim": "dgx-h100-1",
    "passthrough": "rtx-pro-6000-1",
    "shares-memory-and-cores": "hgx-h200-1",
    "shares-of-mig": "dgx-a100-80-1",
    "shares-time-sliced": "l40s-1",
}


ONE_DEVICE = sorted(PLACES.keys() - {"fabric-partition"})
"""Examples whose pods have one device each."""


def place_of(example: str) -> SimulatedNode:
    return next(node for node in nodes_of(bundled.FEATURES_FOLDER) or () if node.name == PLACES[example])


@pytest.fixture
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Services]:
    """Controller and plugin on the hardware, and with the policy, that the example wants."""
    example: str = request.param
    place = place_of(example)
    node = install()
    policy = bundled.FEATURES_FOLDER / example / "policy.yaml"
    for name, *given in place.acts:
        act(tmp_path / "host", name, given, place.profile)
    try:
        for key, value in place.labels:
            kubectl("label", "node", node, f"{key}={value}", "--overwrite")
        file = policy if policy.is_file() else None
        with services_of(tmp_path, "controller", node, place.profile, file, place.gates) as services:
            services.start("controller")
            services.start("plugin")
            until(is_complete, "devices are published")
            try:
                yield services
            finally:
                remove(example)
    finally:
        for key, _ in place.labels:
            kubectl("label", "node", node, f"{key}-")


def is_complete() -> bool:
    slices = get("resourceslices")["items"]
    return bool(slices) and len(slices) == slices[0]["spec"]["pool"]["resourceSliceCount"]


def versions() -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in get("resourceslices")["items"]}


@pytest.mark.parametrize(("services", "example"), [(example, example) for example in ONE_DEVICE], indirect=["services"])
def test_a_sharing_example_runs_and_the_hardware_is_as_before_afterwards(services: Services, example: str) -> None:
    if example in ("shares-memory-and-cores", "shares-of-mig") and server_minor() < 35:
        pytest.skip("a scheduler of 1.34 gives shares of the first device of a slice alone")
    before, slices = standing(services.folder / "host"), versions()
    pods = apply(example)
    wait_running(pods)
    changes_nothing = example in ("mig-by-hand", "mps-on-mig")
    assert (standing(services.folder / "host") == before) == changes_nothing
    for pod in pods:
        environment, listing = inside(pod, "main", "env"), inside(pod, "main", "ls -R /dev")
        assert "NVIDIA_VISIBLE_DEVICES=void" in environment
        (device,) = allocated(pod)
        folder = "/var/run/kubernetes.io/dra-device-attributes"
        (described,) = json.loads(inside(pod, "main", f"cat {folder}/*/*/*/*-metadata.json"))["requests"][0]["devices"]
        assert described["name"] == device
        assert described["attributes"].keys() > {"type", "uuid", "resource.kubernetes.io/pciBusID"}, "KubeVirt needs it"
        if device.endswith("-vfio"):
            assert re.search(r"^/dev/vfio:\n\d+\nvfio$", listing, re.MULTILINE), listing
            assert "nvidia" not in listing
            continue
        assert len(re.findall(r"^nvidia\d+$", listing, re.MULTILINE)) == 1
        variable = f"NVIDIA_DRA_DEVICE_{device.upper().replace('-', '_')}=(GPU|MIG)-[0-9a-f-]{{36}}"
        assert re.search(variable, environment), environment
        assert ("MIG-" in environment) == ("-mig-" in device)
        assert len(re.findall(r"^nvidia-cap\d+$", listing, re.MULTILINE)) == (2 if "-mig-" in device else 0)
        if example.startswith("mps") or "memory" in example:
            assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in environment
            assert "control" in inside(pod, "main", "ls -a /tmp/nvidia-mps")
    assert versions() == slices, "claims that come and go write no slices"
    remove(example)
    nothing_left(services)
    until(lambda: standing(services.folder / "host") == before, "the hardware stands as before")


@pytest.mark.parametrize("services", ["fabric-partition"], indirect=True)
def test_the_gpus_of_a_pod_are_one_fabric_partition_which_is_active_while_it_runs(services: Services) -> None:
    (pod,) = apply("fabric-partition")
    wait_running([pod])
    names = allocated(pod)
    partitions = {
        device["attributes"]["partition4"]["int"]
        for item in get("resourceslices")["items"]
        for device in item["spec"]["devices"]
        if device["name"] in names
    }
    assert (len(names), len(partitions)) == (4, 1)
    assert len(re.findall(r"^nvidia\d+$", inside(pod, "main", "ls /dev"), re.MULTILINE)) == 4
    assert active_partitions(services) == [4]
    remove("fabric-partition")
    nothing_left(services)
    until(lambda: active_partitions(services) == [], "no partition is active")


def active_partitions(services: Services) -> list[int]:
    """Their numbers of GPUs."""
    manager = SimulatedHost(services.folder / "host").state.fabric_manager
    assert manager is not None
    return [len(partition.gpus) for partition in manager.partitions if partition.active]


@pytest.mark.parametrize("services", ["mig-on-demand"], indirect=True)
def test_a_plugin_killed_while_pods_with_partitions_start_heals_and_they_run(services: Services) -> None:
    before = standing(services.folder / "host")
    pods = apply("mig-on-demand")
    services.stop("plugin", signal.SIGKILL)
    services.start("plugin")
    wait_running(pods)
    remove("mig-on-demand")
    nothing_left(services)
    until(lambda: standing(services.folder / "host") == before, "the hardware stands as before")


@pytest.mark.parametrize("services", ["mig-on-demand"], indirect=True)
def test_partitions_without_the_whole_gpu_run_and_have_no_counters(services: Services) -> None:
    before = standing(services.folder / "host")
    spec = {"priority": 1, "mig": {"mode": "Dynamic", "profiles": ["1g.10gb"], "wholeGpu": False}}
    policy = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "small"}, "spec": spec}
    kubectl("apply", "-f", "-", content=yaml.safe_dump(policy))
    try:
        until(lambda: len(published()) == 8 * 7 and is_complete(), "each GPU is seven partitions")
        assert {device["attributes"]["profile"]["string"] for device in published()} == {"1g.10gb"}
        assert not any(device.get("consumesCounters") for device in published())
        assert not any(item["spec"].get("sharedCounters") for item in get("resourceslices")["items"])
        pods = apply("mig-on-demand", lambda name: name.startswith("small"))
        wait_running(pods)
        assert len({device for pod in pods for device in allocated(pod)}) == len(pods) == 2
        assert all("nvidia-cap" in inside(pod, "main", "ls -R /dev") for pod in pods)
        remove("mig-on-demand")
        nothing_left(services)
    finally:
        kubectl("delete", "gpupolicies", "small")
    until(lambda: standing(services.folder / "host") == before, "the hardware stands as before")


@pytest.mark.parametrize("services", ["time-slicing-one-claim"], indirect=True)
def test_a_sick_gpu_is_tainted_and_its_pod_is_told_by_its_status_and_by_an_event(services: Services) -> None:
    pods = apply("time-slicing-one-claim")
    wait_running(pods)
    (device,) = allocated(pods[0])
    uid = get("pod", "-n", *pods[0])["metadata"]["uid"]
    (inventory,) = get("nodeinventories")["items"]
    index = [gpu["name"] for gpu in inventory["spec"]["gpus"]].index(device)
    act(services.folder / "host", "xid", [str(index), "79"], None)

    def taints() -> set[str]:
        slices = get("resourceslices")["items"]
        published = [entry for item in slices for entry in item["spec"].get("devices") or ()]
        return {entry["name"] for entry in published if entry.get("taints")}

    until(lambda: bool(taints()), "the GPU is tainted")
    assert {name.split("-mig-")[0] for name in taints()} == {device}

    def unhealthy() -> bool:
        status = get("pod", "-n", pods[0][0], pods[0][1])["status"]["containerStatuses"][0]
        return '"health": "Unhealthy"' in json.dumps(status.get("allocatedResourcesStatus") or [])

    if server_minor() >= 36:  # Older kubelets show no health of a claim that the pod names.
        until(unhealthy, "the pod's status says that its device is unhealthy")

    def event_messages() -> list[str]:
        events = [event for event in get("events", "-n", pods[0][0])["items"] if event["reason"] == "GpuUnhealthy"]
        return [event["message"] for event in events if event["involvedObject"]["uid"] == uid]

    until(event_messages, "an Event tells the pod")
    (note,) = event_messages()
    assert device in note, note
    assert "79" in note, note
    remove("time-slicing-one-claim")
    nothing_left(services)
