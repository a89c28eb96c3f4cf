"""Every example as real pods on a real cluster, with simulated GPUs: devices and environment seen inside containers.

Needs a cluster with one node, whose kubelet runs on this machine with containerd and CDI:

    GPU_DRA_TEST_KUBECONFIG   kubeconfig of an administrator
    GPU_DRA_TEST_IMAGE        an image on that node with sh, env, ls, cat and sleep
    GPU_DRA_TEST_RESTART_KUBELET   optional: a command that restarts that kubelet

Controller and node plugin run as processes here, as root, on kubelet's real folder and the runtime's real CDI folder.
"""

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.real_cluster import (
    CDI_ROOT,
    IS_THERE,
    RESTART_KUBELET,
    WHY_NOT,
    Services,
    allocated,
    answers,
    apply,
    devices,
    get,
    inside,
    install,
    kubectl,
    manifests,
    nothing_left,
    remove,
    services_of,
    slice_versions,
    until,
    wait_running,
)
from support.real_load import CLAIM, Load, refused_prepares

from dra_driver import bundled

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)

SHARING = ("fabric-partition", "mig-", "mps-on-mig", "passthrough", "shares-")
DOMAINS = ("compute-domain-", "diagnose-")
ELSEWHERE = ("gpu-and-nic-", "nvlink-domain-")

EXAMPLES = sorted(
    path.name
    for path in bundled.FEATURES_FOLDER.iterdir()
    if path.is_dir() and not path.name.startswith((*SHARING, *DOMAINS, *ELSEWHERE))
)
"""Those of whole GPUs on one node; the others are in test_real_sharing.py and tests/e2e/test_domains.py, or need more
than this driver and its hardware."""


@pytest.fixture(scope="module", params=["controller", "node"])
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with services_of(tmp_path_factory.mktemp("services"), request.param, install()) as services:
        if services.publisher == "controller":
            services.start("controller")
        services.start("plugin")
        until(lambda: devices() == 8, "eight devices are published")
        try:
            yield services
        finally:
            for example in EXAMPLES:
                remove(example)


def minors_and_uuids() -> dict[str, tuple[int, str]]:
    """Device name to minor number and UUID, as the node reported them."""
    (inventory,) = get("nodeinventories")["items"]
    return {gpu["name"]: (gpu["minor"], gpu["uuid"]) for gpu in inventory["spec"]["gpus"]}


def check_inside(pod: tuple[str, str]) -> None:
    """Every container has exactly the device nodes and UUIDs of GPUs of its pod's claims, and together all of them."""
    hardware = minors_and_uuids()
    seen: set[str] = set()
    for container in get("pod", "-n", pod[0], pod[1])["spec"]["containers"]:
        listing = inside(pod, container["name"], "ls /dev")
        if not asks_for_gpus(container):
            assert "nvidia" not in listing
            continue
        environment = inside(pod, container["name"], "env")
        minors = {int(minor) for minor in re.findall(r"^nvidia(\d+)$", listing, re.MULTILINE)}
        here = {name for name, (minor, _) in hardware.items() if minor in minors}
        assert here, listing
        assert here <= allocated(pod)
        assert {"nvidiactl", "nvidia-uvm"} <= set(listing.split())
        assert "NVIDIA_VISIBLE_DEVICES=void" in environment
        assert {uuid for name, (_, uuid) in hardware.items() if name in here} == set(
            re.findall(r"GPU-[0-9a-f-]{36}", environment)
        )
        assert "libcuda.so" in inside(pod, container["name"], "cat /proc/self/mountinfo")
        seen |= here
    assert seen == allocated(pod)


def asks_for_gpus(container: dict[str, Any]) -> bool:
    resources = container.get("resources", {})
    return bool(resources.get("claims")) or "nvidia.com/gpu" in resources.get("limits", {})


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_with_its_devices_inside_and_leaves_nothing(services: Services, example: str) -> None:
    if example == "extended-resource" and "extendedResourceName" not in get("deviceclass", "gpu.nvidia.com")["spec"]:
        pytest.skip("this API server drops extendedResourceName: the gate DRAExtendedResource is off")
    pods = apply(example)
    try:
        wait_running(pods)
        for pod in pods:
            check_inside(pod)
    finally:
        remove(example)
    nothing_left(services)


BY_HAND = """{
  "apiVersion": "resource.k8s.io/v1",
  "kind": "ResourceClaim",
  "metadata": {"name": "by-hand"},
  "spec": {"devices": {
    "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
    "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {
      "kind": "GpuConfig",
      "apiVersion": "resource.nvidia.com/v1beta1",
      "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    }}}]
  }}
}"""


def test_a_claim_as_clients_send_it_that_sort_no_keys_says_how_its_device_is(services: Services) -> None:
    """The scheduler puts its parameters into the allocation with white space and all."""
    kubectl("create", "--raw", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", "-f", "-", content=BY_HAND)
    (pod,) = [manifest for manifest in manifests("one-gpu") if manifest["kind"] == "Pod"]
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "by-hand"}]
    content = yaml.safe_dump(pod)
    kubectl("apply", "-f", "-", content=content)
    try:
        wait_running([("default", "one-gpu")])
        until(lambda: status_of("by-hand") == {"Ready": "True", "Healthy": "True"}, "the claim says how its device is")
        services.stop("plugin")
        services.start("plugin")
        until(lambda: services.registered("plugin"), "registered again")
        assert status_of("by-hand") == {"Ready": "True", "Healthy": "True"}
    finally:
        kubectl("delete", "-f", "-", content=content)
        kubectl("delete", "resourceclaim", "by-hand")
    nothing_left(services)
    assert "device status cannot be written" not in (services.folder / "plugin.log").read_text()


def status_of(claim: str) -> dict[str, str]:
    """Type and status of the conditions of a claim's only device."""
    (device,) = get("resourceclaim", claim).get("status", {}).get("devices") or [{}]
    return {condition["type"]: condition["status"] for condition in device.get("conditions") or ()}


def test_a_killed_plugin_comes_back_and_releases_what_it_had_prepared(services: Services) -> None:
    before = slice_versions()
    pods = apply("one-gpu")
    wait_running(pods)
    services.stop("plugin", signal.SIGKILL)
    services.start("plugin")
    until(lambda: services.registered("plugin"), "registered again")
    assert slice_versions() == before
    check_inside(pods[0])
    remove("one-gpu")
    nothing_left(services)


def test_a_rolling_update_serves_all_the_time_and_leaves_slices_as_they_are(services: Services) -> None:
    before, refused = slice_versions(), refused_prepares()
    pods = apply("one-gpu")
    wait_running(pods)
    kubectl("apply", "-f", "-", content=CLAIM)
    with Load(services.node) as load:
        load.more(1)
        services.start("newer plugin")
        until(lambda: services.registered("newer plugin"), "the newer instance is registered")
        load.more(1)
        services.stop("plugin")
        load.more(2)
    kubectl("delete", "-f", "-", content=CLAIM)
    assert refused_prepares() == refused
    second = apply("two-containers-one-claim")
    wait_running(second)
    remove("one-gpu")
    until(
        lambda: len(list(CDI_ROOT.glob("k8s.gpu.nvidia.com*"))) == 1,
        "the newer instance releases what the old one made",
    )
    check_inside(second[0])
    remove("two-containers-one-claim")
    nothing_left(services)
    services.start("plugin")
    until(lambda: services.registered("plugin"), "an instance without a pod UID is registered again")
    services.stop("newer plugin")
    assert slice_versions() == before


@pytest.mark.skipif(not RESTART_KUBELET, reason="no way to restart kubelet: set GPU_DRA_TEST_RESTART_KUBELET")
def test_after_a_kubelet_restart_slices_come_back_and_pods_keep_their_devices(services: Services) -> None:
    pods = apply("one-gpu")
    wait_running(pods)
    old = {item["metadata"]["uid"] for item in get("resourceslices")["items"]}
    subprocess.run(shlex.split(RESTART_KUBELET), check=True, timeout=120)
    until(
        lambda: devices() == 8 and not old & {item["metadata"]["uid"] for item in get("resourceslices")["items"]},
        "new slices",
        120,
    )
    until(lambda: answers(pods[0]), "kubelet answers", 60)
    check_inside(pods[0])
    remove("one-gpu")
    nothing_left(services)
