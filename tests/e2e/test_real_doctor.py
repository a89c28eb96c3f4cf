"""`dractl doctor` and `dractl bundle` on a real cluster with a real kubelet, set up as for test_real_cluster.py."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dractl import run, troubles
from support.real_cluster import (
    CDI_ROOT,
    IS_THERE,
    KUBECONFIG,
    KUBELET_ROOT,
    WHY_NOT,
    Services,
    apply,
    devices,
    forget_warnings,
    get,
    install,
    remove,
    services_of,
    until,
    wait_running,
)

from dra_driver.names import GPU_DRIVER

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    node = install()
    # The doctor reads what was told in the last half hour; plugins of tests before this one are not to be judged here,
    # nor is a device plugin of theirs, whose GPUs the kubelet offers for some seconds after it has ended.
    forget_warnings(GPU_DRIVER)
    until(lambda: not _from_device_plugins(node), "no device plugin offers GPUs")
    with services_of(tmp_path_factory.mktemp("services"), "controller", node) as services:
        services.start("controller")
        services.start("plugin")
        until(lambda: devices() == 8, "eight devices are published")
        try:
            wait_running(apply("one-gpu"))
            yield services
        finally:
            remove("one-gpu")


def _from_device_plugins(node: str) -> bool:
    allocatable: dict[str, str] = get("node", node)["status"]["allocatable"]
    return any(amount != "0" for name, amount in allocatable.items() if name.startswith("nvidia.com/"))


def places(services: Services) -> list[str]:
    return [
        *("--node", "--host-root", str(services.folder / "host"), "--simulate", services.profile),
        *("--kubelet-root", str(KUBELET_ROOT), "--cdi-root", str(CDI_ROOT)),
    ]


def wrong(*arguments: str) -> set[str]:
    return troubles(run("doctor", *arguments, "-o", "json").stdout)


def test_with_a_pod_that_has_a_gpu_all_is_well(services: Services) -> None:
    assert wrong("--kubeconfig", KUBECONFIG) == set()
    assert wrong(*places(services)) == set()


def test_a_bundle_of_it_says_the_same(services: Services, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    assert run("bundle", "--kubeconfig", KUBECONFIG, "--archive", str(archive), "--anonymize").exit_code == 0
    assert wrong("--from", str(archive)) == set()
    node = tmp_path / "node.tar.gz"
    assert run("bundle", *places(services), "--archive", str(node)).exit_code == 0
    assert wrong("--from", str(node)) == set()


def test_a_plugin_that_is_dead_is_missed_on_its_node(services: Services) -> None:
    services.stop("plugin", signal.SIGKILL)
    assert wrong(*places(services)) == {"node-sockets/nobody-listens"}
    services.start("plugin")
    until(lambda: services.registered("plugin"), "the plugin registers again")
    assert wrong(*places(services)) == set()
