"""What is made for a domain: as far as the API server minds how it is written, and what an IMEX daemon's container may
do with the node of the fabric's management."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.domain_values import domain
from support.runc import runc, shell_in_container

from dra_driver.api.meta import JsonObject
from dra_driver.cdi.model import DeviceNode
from dra_driver.domains.objects import DaemonSettings, daemon_set, daemon_template, workload_template
from kubelet_plugin.hardware.capabilities import management_node
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.host import create_host

_WITHOUT = {"capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    "template", [workload_template(domain()), daemon_template(domain(), DaemonSettings("gpu", "image"))]
)
def test_parameters_have_their_keys_sorted_lest_no_status_of_their_claims_can_be_applied(template: JsonObject) -> None:
    (config,) = template["spec"]["spec"]["devices"]["config"]
    keys = list(config["opaque"]["parameters"])
    assert keys == sorted(keys)
    assert {"apiVersion", "domainID", "kind"} <= set(keys)


def _context() -> JsonObject:
    pod = daemon_set(domain(), DaemonSettings("gpu", "image"))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context: JsonObject = container["securityContext"]
    return context


def _node(folder: Path) -> DeviceNode:
    """As the kernel describes it, with the numbers of /dev/null: what is opened is of no account here."""
    return replace(management_node(HostFiles(create_host(folder, "gb200").root)), major=1, minor=3)


def test_the_daemon_is_root_with_the_one_capability_that_the_node_needs(tmp_path: Path) -> None:
    assert _node(tmp_path).file_mode == 0o400
    assert _context()["runAsUser"] == 0
    assert _context()["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}


@pytest.mark.parametrize(
    ("opened", "change", "status"),
    [("<>", {}, 0), ("<", {}, 0), ("<>", _WITHOUT, 2), ("<", _WITHOUT, 0)],
    ids=["writing", "reading", "writing without the capability", "reading without the capability"],
)
def test_a_real_container_of_the_daemon_opens_the_node_for_reading_and_writing(
    tmp_path: Path, opened: str, change: JsonObject, status: int
) -> None:
    runc()
    node = _node(tmp_path / "host")
    (bundle := tmp_path / f"imex-{tmp_path.name[-20:]}").mkdir()
    done = shell_in_container(bundle, f"exec 3{opened}{node.path}", _context() | change, node)
    assert done.returncode == status, done.stderr
    assert ("Permission denied" in done.stderr) is (status != 0), done.stderr
