"""The chart as pods of a real cluster: image, DaemonSet, controller, `helm test`, update, rollback and removal.

Needs what test_real_cluster.py needs, the packages of the dev group, a package index for the image's install, and:

    GPU_DRA_TEST_IMPORT_IMAGE   a command that gives every node's runtime the image archive whose path is appended

The GPUs are simulated by the plugin's pod itself (`kubeletPlugin.simulate`), so it runs without privileges; one test
runs it as on real hardware, on a node that has none.
"""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from support.chart_values import merged
from support.helm import NAMESPACE, Helm
from support.real_chart import CHART_IS_THERE, CHART_WHY_NOT, VALUES, ready, wait_ready
from support.real_cluster import KUBECONFIG, devices, get, inside, kubectl, slice_versions, until
from support.real_domains import make_domain
from support.real_load import CLAIM, Load, phase, pod, refused_prepares
from support.real_nodes import cdi_root, names

pytestmark = pytest.mark.skipif(not CHART_IS_THERE, reason=CHART_WHY_NOT)


@pytest.mark.parametrize("publisher", ["controller", "node"])
def test_it_runs_tests_itself_updates_under_load_goes_back_and_leaves_nothing(helm: Helm, publisher: str) -> None:
    controller = publisher == "controller"
    # With a controller there are classes of MIG profiles, too, which belong to no release.
    policy = {"mig": [{"mode": "Dynamic", "profiles": ["1g.10gb"]}]} if controller else {}
    published = (8 + 8 * 7 if controller else 8) * len(names())
    values = merged(dict(VALUES), {"publisher": publisher, "policy": policy})
    first = helm.install(values)
    wait_ready(controller=controller)
    until(lambda: devices() == published, "all devices are published")
    if controller:
        until(lambda: "1g.10gb.mig.nvidia.com" in kubectl("get", "deviceclasses", "-o", "name"), "a class of a profile")
    helm.test()
    kubectl("apply", "-f", "-", content=CLAIM)
    kubectl("apply", "-f", "-", content=pod("stays"))
    until(lambda: phase("stays") == "Running", "the pod runs", 90)
    assert "NVIDIA_VISIBLE_DEVICES=void" in inside(("default", "stays"), "main", "env")
    slices, refused = slice_versions(), refused_prepares()

    with ExitStack() as under_load:
        loads = [under_load.enter_context(Load(node)) for node in names()]
        for load in loads:
            load.more(2)
        helm.upgrade(merged(values, {"logLevel": "debug", "kubeletPlugin": {"podAnnotations": {"round": "2"}}}))
        wait_ready(controller=controller)
        for load in loads:
            load.more(2)
    assert refused_prepares() == refused
    assert slice_versions() == slices

    helm.rollback_to(first.revision)
    wait_ready(controller=controller)
    assert slice_versions() == slices
    kubectl("delete", "pod", "stays")
    until(
        lambda: not [file for node in names() for file in cdi_root(node).glob("k8s.gpu.nvidia.com*")],
        "CDI files are gone",
    )
    kubectl("delete", "resourceclaimtemplate", "one")
    if controller:
        make_domain("goes-with-its-definition")
    helm.uninstall(timeout_s=180)
    # `helm` looks whether anything is left.


def test_a_user_with_a_token_sees_the_pages_and_another_gets_the_command_that_changes_it(helm: Helm) -> None:
    helm.install(merged(dict(VALUES), {"ui": {"enabled": True}}))
    wait_ready()
    until(lambda: ready("deployment", "gpu-dra-driver-ui"), "the pages are served")
    for user in ("viewer", "stranger"):
        kubectl("create", "serviceaccount", user)
    role = "gpu-dra-gpu-dra-driver-ui-viewer"
    kubectl("create", "clusterrolebinding", "ui-viewer", f"--clusterrole={role}", "--serviceaccount=default:viewer")
    try:
        with forwarded("deployment/gpu-dra-driver-ui", 8080) as address:
            until(lambda: f"{8 * len(names())} GPUs on" in page(address, "viewer")[1], "all GPUs are shown")
            node = names()[0]
            status, text = page(f"{address}nodes/{node}", "viewer")
            assert status == 200 and "H100" in text
            kubectl("apply", "-f", "-", content=CLAIM)
            kubectl("apply", "-f", "-", content=pod("looked-at"))
            until(lambda: phase("looked-at") == "Running", "the pod runs", 90)
            until(lambda: "got it" in page(f"{address}nodes/{node}", "viewer")[1], "the history has the claim")
            status, text = page(address, "stranger")
            assert status == 403 and f"--clusterrole={role} --serviceaccount=default:stranger" in text
            assert page(address)[0] == 401
            assert page(address, token="x" * 40)[0] == 401
    finally:
        kubectl("delete", "clusterrolebinding", "ui-viewer")
        kubectl("delete", "serviceaccount", "viewer", "stranger")
        kubectl("delete", "pod", "looked-at", "--ignore-not-found")
        kubectl("delete", "resourceclaimtemplate", "one", "--ignore-not-found")
    helm.uninstall(timeout_s=180)


def page(address: str, user: str = "", *, token: str = "") -> tuple[int, str]:
    token = kubectl("create", "token", user).strip() if user else token
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def forwarded(target: str, port: int) -> Iterator[str]:
    """The address on this machine at which `kubectl port-forward` answers."""
    command = ["kubectl", "--kubeconfig", KUBECONFIG, "-n", NAMESPACE, "port-forward", target, f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()  # Forwarding from 127.0.0.1:34567 -> 8080
            yield f"http://{line.split()[2]}/"
        finally:
            process.terminate()


@pytest.mark.parametrize("privileged", [True, False])
def test_on_a_node_without_a_driver_it_runs_and_says_so(helm: Helm, privileged: bool) -> None:
    """As on real hardware: the host's root, processes and devices; with privileges, and with capabilities alone."""
    helm.install(
        merged(dict(VALUES), {"publisher": "node", "kubeletPlugin": {"simulate": "", "privileged": privileged}})
    )
    wait_ready(controller=False)

    def reasons() -> list[str]:
        return [
            problem["reason"]
            for item in get("nodeinventories")["items"]
            for problem in item["spec"].get("problems", ())
        ]

    until(lambda: len(reasons()) == len(names()), "the inventory of every node says what is missing")
    assert set(reasons()) == {"DriverNotFound"}
    helm.uninstall(timeout_s=180)
