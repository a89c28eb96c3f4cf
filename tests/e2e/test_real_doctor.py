"""`dractl doctor` and `dractl bundle` on a real cluster with a real kubelet, set up as for test_real_cluster.py."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dractl import run
from support.real_cluster import (
    CDI_ROOT,
    IS_THERE,
    KUBECONFIG,
    KUBELET_ROOT,
    WHY_NOT,
    Services,
    apply,
    devices,
    install,
    kubectl,
    remove,
    until,
    wait_running,
)

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = Services(tmp_path_factory.mktemp("services"), "controller", install())
    services.start("controller")
    services.start("plugin")
    until(lambda: devices() == 8, "eight devices are published")
    wait_running(apply("one-gpu"))
    yield services
    remove("one-gpu")
    for name in list(services.running):
        services.stop(name)
    kubectl("delete", "nodeinventories", "--all")
    kubectl("delete", "resourceslices", "--all")


def places(services: Services) -> list[str]:
    return [
        *("--node", "--host-root", str(services.folder / "host"), "--simulate", services.profile),
        *("--kubelet-root", str(KUBELET_ROOT), "--cdi-root", str(CDI_ROOT)),
    ]


def wrong(*arguments: str) -> set[str]:
    found = json.loads(run("doctor", *arguments, "-o", "json").stdout)["findings"]
    return {f"{one['check']}/{one['trouble']}" for one in found if one["verdict"] not in ("ok", "skipped")}


def test_with_a_pod_that_has_a_gpu_all_is_well(services: Services) -> None:
    assert wrong("--kubeconfig", KUBECONFIG) == set()
    assert wrong(*places(services)) == set()


def test_a_bundle_of_it_says_the_same(services: Services, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    assert run("bundle", "--kubeconfig", KUBECONFIG, "-o", str(archive), "--anonymize").exit_code == 0
    assert wrong("--from", str(archive)) == set()
    node = tmp_path / "node.tar.gz"
    assert run("bundle", *places(services), "-o", str(node)).exit_code == 0
    assert wrong("--from", str(node)) == set()


def test_a_plugin_that_is_dead_is_missed_on_its_node(services: Services) -> None:
    services.stop("plugin", signal.SIGKILL)
    assert wrong(*places(services)) == {"node-sockets/nobody-listens"}
    services.start("plugin")
    until(lambda: services.registered("plugin"), "the plugin registers again")
    assert wrong(*places(services)) == set()
