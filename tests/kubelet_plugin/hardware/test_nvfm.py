"""Fabric Manager through libnvfm: the simulated library, and one that a C compiler makes."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from ctypes import sizeof
from pathlib import Path

import pytest
from support.mishaps import active_partitions, fabric_mishap, start_fabric_manager, stop_fabric_manager
from support.nodes import Node, a_node
from support.rows import rows

from dra_driver.errors import HardwareError
from kubelet_plugin.hardware import nvfm
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.nvfm import FabricManager, FmCode, PartitionMember
from kubelet_plugin.simulation.nvfm import SimulatedFabricLibrary


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = a_node(tmp_path, "hgx-h200")
    node.host.share_switches()
    return node


def manager_of(node: Node, address: str | None = None, **patience: float) -> FabricManager:
    library = SimulatedFabricLibrary(node.host.root)
    return FabricManager(node.files, DriverInstallation(node.files).root, address, lambda _: library, **patience)


def failed(act: Callable[[], object]) -> HardwareError:
    with pytest.raises(HardwareError) as caught:
        act()
    assert caught.value.about == "Fabric Manager"
    return caught.value


def test_an_h200_board_has_fifteen_partitions_whose_gpus_are_known_by_module_id_alone(node: Node) -> None:
    partitions = manager_of(node).partitions()
    assert [(part.id, [member.physical_id for member in part.members]) for part in partitions[:7]] == [
        (0, [1, 2, 3, 4, 5, 6, 7, 8]),
        (1, [1, 2, 3, 4]),
        (2, [5, 6, 7, 8]),
        (3, [1, 3]),
        (4, [2, 4]),
        (5, [5, 7]),
        (6, [6, 8]),
    ]
    assert [part.members for part in partitions[7:]] == [(PartitionMember(number),) for number in range(1, 9)]
    assert not any(part.active for part in partitions)


def test_an_a100_board_names_its_gpus(tmp_path: Path) -> None:
    node = a_node(tmp_path, "dgx-a100-80")
    node.host.share_switches()
    named = {(member.uuid, member.pci_bus_id) for member in manager_of(node).partitions()[0].members}
    assert named == {(gpu.uuid, gpu.address) for gpu in node.host.state.gpus}


def test_a_partition_is_activated_and_deactivated(node: Node) -> None:
    manager = manager_of(node)
    manager.activate(3)
    assert active_partitions(node.host) == [3]
    assert [part.id for part in manager.partitions() if part.active] == [3]
    assert failed(lambda: manager.activate(1)).code == FmCode.IN_USE
    assert failed(lambda: manager.activate(99)).code == FmCode.BADPARAM
    manager.deactivate(3)
    assert active_partitions(node.host) == []
    assert failed(lambda: manager.deactivate(3)).code == FmCode.UNINITIALIZED


@rows("code", [code for code in FmCode if code])
def test_every_error_of_the_library_has_its_name_and_what_to_do(node: Node, code: FmCode) -> None:
    fabric_mishap(node.host, "fmActivateFabricPartition", code=int(code))
    error = failed(lambda: manager_of(node).activate(4))
    assert error.code == code and f"activation of partition 4 failed: FM_ST_{code.name} ({int(code)}); " in str(error)
    assert active_partitions(node.host) == []


def test_an_error_that_is_newer_than_this_driver_is_shown_as_a_number(node: Node) -> None:
    fabric_mishap(node.host, "fmGetSupportedFabricPartitions", code=-77)
    assert "an unknown error (-77); see the log of Fabric Manager" in str(failed(manager_of(node).partitions))


@pytest.mark.parametrize(
    ("happens", "code", "advice"),
    [
        (lambda host: stop_fabric_manager(host), FmCode.CONNECTION_NOT_VALID, "start the service"),
        (lambda host: start_fabric_manager(host, 0), FmCode.NOT_SUPPORTED, "FABRIC_MODE=1"),
        (lambda host: start_fabric_manager(host, ready=False), FmCode.NOT_CONFIGURED, "is starting"),
        (lambda host: start_fabric_manager(host, restart=1), FmCode.NOT_CONFIGURED, "FABRIC_MODE_RESTART=0"),
    ],
)
def test_what_fabric_manager_cannot_answer_now(
    node: Node, happens: Callable[[object], None], code: FmCode, advice: str
) -> None:
    happens(node.host)
    error = failed(manager_of(node).partitions)
    assert error.code == code and advice in str(error)


def test_each_question_has_a_connection_of_its_own_so_a_restart_is_not_noticed(node: Node) -> None:
    manager = manager_of(node)
    manager.activate(0)
    start_fabric_manager(node.host)
    assert not any(part.active for part in manager.partitions())


def test_a_library_that_does_not_know_types_of_addresses_is_asked_in_its_own_way(node: Node) -> None:
    with node.host.edit() as state:
        assert state.fabric_manager is not None
        state.fabric_manager.connect_version = 1
    assert manager_of(node).partitions()
    with node.host.edit() as state:
        assert state.fabric_manager is not None
        state.fabric_manager.connect_version = 0
    assert failed(manager_of(node).partitions).code == FmCode.VERSION_MISMATCH


def test_a_library_that_hangs_is_left_alone_until_it_answers(node: Node) -> None:
    fabric_mishap(node.host, "fmGetSupportedFabricPartitions", delay_s=0.5, times=1)
    manager = manager_of(node, read_s=0.1)
    threads = threading.active_count()
    assert "has not answered for 0.1 s" in str(failed(manager.partitions))
    again = failed(manager.partitions)
    assert again.code == FmCode.TIMEOUT and "still does not answer an earlier question" in str(again)
    assert threading.active_count() <= threads + 1
    time.sleep(0.6)
    assert manager.partitions()


def test_a_change_that_takes_long_is_waited_for_and_a_glance_shows_what_was_before(node: Node) -> None:
    manager = manager_of(node, read_s=0.1)
    before = manager.glance()
    fabric_mishap(node.host, "fmActivateFabricPartition", delay_s=0.6, times=1)
    change = threading.Thread(target=manager.activate, args=(3,))
    change.start()
    time.sleep(0.2)
    assert manager.glance() == before
    assert [part.id for part in manager.partitions() if part.active] == [3]
    change.join()
    assert manager.glance() == manager.partitions() != before


def test_the_socket_is_searched_for_and_may_be_named(node: Node) -> None:
    socket = node.host.path("/run/nvidia-fabricmanager/socket")
    assert manager_of(node, "/run/nvidia-fabricmanager/socket").partitions()
    assert manager_of(node, "fabric.example:6666").partitions()
    assert "connection to" in str(failed(manager_of(node, "/run/other").partitions))
    socket.unlink()
    missing = failed(manager_of(node).partitions)
    assert missing.code == FmCode.CONNECTION_NOT_VALID and "FM_CMD_UNIX_SOCKET_PATH" in str(missing)


def test_a_driver_without_the_library_says_which_package_has_it(node: Node) -> None:
    (node.host.path(node.host.library_folder) / "libnvfm.so.1").unlink()
    assert "nvidia-fabricmanager-devel" in str(failed(manager_of(node).partitions))


def test_only_a_node_with_switches_of_its_own_is_asked(tmp_path: Path) -> None:
    needed = {
        name: manager_of(a_node(tmp_path / name, name)).is_needed() for name in ("hgx-h200", "gb200", "l40s", "v100")
    }
    assert needed == {"hgx-h200": True, "gb200": False, "l40s": False, "v100": False}


def test_switches_behind_an_infiniband_bridge_are_found_by_the_name_in_its_product_data(tmp_path: Path) -> None:
    node = a_node(tmp_path, "l40s")
    vpd = node.host.path("/sys/class/infiniband/mlx5_4/device/vpd")
    vpd.parent.mkdir(parents=True)
    vpd.write_bytes(b"\x82\x10\x00NVIDIA SW_MNG\xff\x90")
    assert manager_of(node).is_needed()


def test_a_library_with_other_structures_is_not_believed(node: Node) -> None:
    class Other(SimulatedFabricLibrary):
        def fmGetSupportedFabricPartitions(self, handle: object, partitions: object) -> int:
            code = super().fmGetSupportedFabricPartitions(handle, partitions)
            partitions._obj.partitionInfo[2].numGpus = 17  # type: ignore[attr-defined]
            return code

    library = Other(node.host.root)
    manager = FabricManager(node.files, DriverInstallation(node.files).root, None, lambda _: library)
    assert "reports 17 where at most 16 fit" in str(failed(manager.partitions))


LIBRARY = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned version; char address[256]; unsigned timeout, is_unix; int type; } Params;
typedef struct { unsigned id; char uuid[80]; char pci[32]; unsigned links, most, rate; } Gpu;
typedef struct { unsigned id, active, count; Gpu gpus[16]; } Partition;
typedef struct { unsigned version, count, most; Partition partitions[64]; } List;
static char handle[1];
static unsigned active = 99;
int fmLibInit(void) { return 0; }
int fmConnect(Params *given, void **out) {
    if (given->version != (sizeof(Params) | 2u << 24)) return -6;
    int path = given->address[0] == '/';
    if (given->type != 1 + path || given->is_unix != path || !given->timeout) return -1;
    if (!path && strcmp(given->address, "fabric:6666")) return -9;
    *out = handle;
    return 0;
}
int fmDisconnect(void *given) { return given == handle ? 0 : -1; }
int fmGetSupportedFabricPartitions(void *given, List *list) {
    if (given != handle) return -1;
    if (list->version != (sizeof(List) | 1u << 24)) return -6;
    list->count = 64;
    for (unsigned i = 0; i < 64; i++) {
        list->partitions[i].id = 63 - i;
        list->partitions[i].active = active == 63 - i;
        list->partitions[i].count = 16;
        for (unsigned j = 0; j < 16; j++) {
            list->partitions[i].gpus[j].id = j + 1;
            sprintf(list->partitions[i].gpus[j].uuid, "GPU-%u-%u", i, j);
            strcpy(list->partitions[i].gpus[j].pci, "0000001B:AF:00.0");
        }
    }
    return 0;
}
int fmActivateFabricPartition(void *given, unsigned id) { active = id; return given == handle ? 0 : -1; }
int fmDeactivateFabricPartition(void *given, unsigned id) { return given == handle && id == active ? 0 : -4; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_compiled_library_gets_and_gives_what_its_header_says(node: Node, tmp_path: Path) -> None:
    source, file = tmp_path / "nvfm.c", tmp_path / "libnvfm.so"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", file, source], check=True)
    library = nvfm.load_fabric_library(file)
    elsewhere, manager = (
        FabricManager(node.files, DriverInstallation(node.files).root, address, lambda _: library)
        for address in ("fabric:6666", None)
    )
    elsewhere.activate(7)
    partitions = manager.partitions()
    assert [part.id for part in partitions] == list(range(64))
    assert [part.id for part in partitions if part.active] == [7]
    assert partitions[0].members[15] == PartitionMember(16, "GPU-63-15", "001b:af:00.0")
    manager.deactivate(7)
    assert failed(lambda: manager.deactivate(8)).code == FmCode.UNINITIALIZED


def test_the_structures_are_as_large_as_those_of_the_header() -> None:
    """Of nv_fm_types.h of driver 580: what its compiler says."""
    kinds = (nvfm.ConnectParamsV1, nvfm.ConnectParamsV2, nvfm.PartitionGpuInfo, nvfm.PartitionInfo, nvfm.PartitionList)
    assert [sizeof(kind) for kind in kinds] == [268, 272, 128, 2060, 131852]
    assert nvfm.versioned(nvfm.PartitionList).version == 0x102030C


def test_what_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "libnvfm.so.1").write_text("simulated")
    assert "cannot be loaded" in str(failed(lambda: nvfm.load_fabric_library(tmp_path / "libnvfm.so.1")))
