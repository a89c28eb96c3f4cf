"""What the node's container runtime reads, and what containers go without:
kubelet_plugin/facts/container_files.py."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from support.driver_tree import DriverTree
from support.inventories import DRIVER_FACTS

from dra_driver.api.meta import NODES
from dra_driver.errors import NodeNotReady
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import MirrorChange
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.facts.container_files import container_files_of, known_container_files, lacking
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, NvmlSource
from kubelet_plugin.facts.own_node import OwnNode
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.hook_program import HookChoice, HookMode, hook_warning
from kubelet_plugin.prepare.cdi_files import OtherClaims
from kubelet_plugin.reporting.reporter import wanted_spec

NODE = "node-1"


def known(runtime: str) -> OwnNode:
    return OwnNode(NODE, {}, runtime)


async def test_what_it_reads_is_said_once_it_is_known_and_as_long_as_it_is(kube: Kube) -> None:
    own = OwnNode(NODE)
    with pytest.raises(NodeNotReady, match="has not been read"):
        own.readable_cdi()
    assert own.runtime_warnings() == ()
    info = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://1.7.12"}}}
    await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, **info})
    following = asyncio.create_task(own.follow(kube))
    await own.first_read()
    assert own.readable_cdi() == "0.6.0"
    info["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://2.1.4"
    await kube.merge_patch(NODES, NODE, info, subresource="status")
    async with asyncio.timeout(20):
        while own.readable_cdi() != "1.0.0":  # noqa: ASYNC110 - the watch makes it true
            await asyncio.sleep(0.02)
    following.cancel()


@pytest.mark.parametrize("info", ["x", 7, ["x"], {"containerRuntimeVersion": None}, {}])
async def test_a_node_that_no_api_server_stores_ends_nothing(info: object) -> None:
    own = OwnNode(NODE)
    own._saw(MirrorChange(("", NODE), None, {"metadata": {"name": NODE}, "status": {"nodeInfo": info}}))
    assert own.runtime == ""


@pytest.mark.parametrize("runtime", ["containerd://1.7.16", "cri-o://1.34.0", "docker://28.0.1", "simulated://1"])
def test_a_runtime_that_reads_groups_or_is_not_known_lacks_nothing(runtime: str) -> None:
    assert known(runtime).runtime_warnings() == ()


def test_a_runtime_that_does_not_read_groups_is_a_warning() -> None:
    (warning,) = known("cri-o://1.29.3").runtime_warnings()
    assert (warning.subject, warning.reason) == ("container runtime", "OldCdi")
    assert "cri-o://1.29.3 reads CDI files up to version 0.6.0" in warning.message


def test_no_file_is_written_for_a_runtime_that_nobody_knows(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path)
    tree.complete()
    own = OwnNode(NODE)
    files = partial(container_files_of, DriverInstallation(tree.host), readable=own.readable_cdi)
    facts = NodeFacts("boot", DRIVER_FACTS.model_copy(update={"version": "580.82.07"}), (), ())
    with pytest.raises(NodeNotReady, match="has not been read"):
        files(facts)
    own.runtime = "containerd://1.7.12"
    assert files(facts).readable == "0.6.0"


def test_what_is_known_is_the_same_and_needs_no_look(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path)
    tree.complete()
    tree.settle()
    others = OtherClaims(tmp_path / "cdi", [GPU_DRIVER])
    installation, own = DriverInstallation(tree.host), known("containerd://1.7.12")
    facts = NodeFacts("boot", DRIVER_FACTS.model_copy(update={"version": "580.82.07"}), (), ())
    options = {"others": others, "readable": own.readable_cdi}
    assert known_container_files(installation, facts, **options) is None
    looked = container_files_of(installation, facts, **options)
    remembered = known_container_files(installation, facts, **options)
    assert remembered is not None
    assert remembered.driver is looked.driver and (remembered.readable, remembered.taken) == ("0.6.0", {})
    assert known_container_files(installation, NodeFacts("boot", None, (), ()), **options) is None


@pytest.mark.parametrize(
    ("choice", "reason", "words"),
    [
        (HookChoice(HookMode.NONE, problem="the host has none"), "NoHookProgram", "no forward compatibility"),
        (HookChoice(HookMode.OFF), "HookProgramOff", "the settings ask for none"),
    ],
)
def test_containers_without_hooks_are_a_warning(choice: HookChoice, reason: str, words: str) -> None:
    warning = hook_warning(choice)
    assert warning is not None
    assert warning.reason == reason
    assert words in warning.message


def test_the_inventory_says_what_containers_go_without(tmp_path: Path) -> None:
    tree = DriverTree(tmp_path)
    tree.complete()
    tree.file("/proc/sys/kernel/random/boot_id", "boot")
    runtime = known("containerd://1.7.0")
    installation = DriverInstallation(tree.host, configured_hook="/opt/nvidia-cdi-hook")

    def no_nvml() -> NvmlSource:
        raise NodeNotReady("no driver", about="driver")

    hardware = Hardware(tree.host, no_nvml, warnings=lambda: lacking(installation, runtime))
    spec = wanted_spec(NODE, hardware.look(), {})
    assert [(warning["subject"], warning["reason"]) for warning in spec["warnings"]] == [
        ("container runtime", "OldCdi"),
        ("hook program", "NoHookProgram"),
    ]
    assert "does not exist on the host" in spec["warnings"][1]["message"]
