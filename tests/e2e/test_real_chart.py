"""The chart as pods of a real cluster: image, DaemonSet, controller, `helm test`, update, rollback and removal.

Needs what test_real_cluster.py needs, the packages of the dev group, a package index for the image's install, and:

    GPU_DRA_TEST_IMPORT_IMAGE   a command that gives every node's runtime the image archive whose path is appended

The GPUs are simulated by the plugin's pod itself (`kubeletPlugin.simulate`), so it runs without privileges; one test
runs it as on real hardware, on a node that has none.
"""

from contextlib import ExitStack

import pytest
from support.chart_values import merged
from support.helm import Helm
from support.real_chart import CHART_IS_THERE, CHART_WHY_NOT, VALUES, wait_ready
from support.real_cluster import devices, get, inside, kubectl, slice_versions, until
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


@pytest.mark.parametrize("privileged", [True, False])
def test_on_a_node_without_a_driver_it_runs_and_says_so(helm: Helm, privileged: bool) -> None:
    """As on real hardware: the host's root, processes and devices; with privileges, and with capabilities alone."""
    helm.install(
        merged(dict(VALUES), {"publisher": "node", "kubeletPlugin": {"simulate": "", "privileged": privileged}})
    )
    wait_ready(controller=False)

    def told() -> list[str]:
        return [one["reason"] for item in get("nodeinventories")["items"] for one in item["spec"].get("problems", ())]

    until(lambda: len(told()) == len(names()), "the inventory of every node says what is missing")
    assert set(told()) == {"DriverNotFound"}
    helm.uninstall(timeout_s=180)
