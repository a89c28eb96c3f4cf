from pathlib import Path

import pytest
from support.driver_tree import DriverTree

from kubelet_plugin.hardware.sysfs import Seen


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    tree = DriverTree(tmp_path)
    tree.file("/usr/lib/libcuda.so.1", "x")
    tree.folder("/run")
    tree.settle()
    return tree


def seen(tree: DriverTree, *paths: str) -> Seen:
    record = Seen()
    for path in paths:
        record.look(tree.host, path)
    assert record.unchanged()
    return record


def test_it_tells_where_a_path_leads(tree: DriverTree) -> None:
    tree.link("/lib", "usr/lib")
    assert str(Seen().look(tree.host, "/lib/libcuda.so.1")) == "/usr/lib/libcuda.so.1"
    assert Seen().look(tree.host, "/lib/other") is None


def test_a_new_file_in_a_folder_is_a_change(tree: DriverTree) -> None:
    before = seen(tree, "/usr/lib")
    tree.file("/usr/lib/libnvidia-ml.so.1")
    assert not before.unchanged()


def test_a_file_that_was_written_again_is_a_change(tree: DriverTree) -> None:
    before = seen(tree, "/usr/lib/libcuda.so.1")
    tree.file("/usr/lib/libcuda.so.1", "xyz")
    assert not before.unchanged()


def test_a_folder_that_appears_is_a_change(tree: DriverTree) -> None:
    before = seen(tree, "/run/nvidia/driver/usr/lib64")
    tree.folder("/run/nvidia")
    assert not before.unchanged()


def test_a_folder_that_goes_is_a_change(tree: DriverTree) -> None:
    before = seen(tree, "/run")
    tree.path("/run").rmdir()
    assert not before.unchanged()


def test_a_folder_in_the_place_of_another_is_a_change(tree: DriverTree) -> None:
    """As when a driver container is mounted anew: another device or inode, whatever the time stamps."""
    before = seen(tree, "/usr/lib")
    tree.path("/usr").rename(tree.path("/old"))
    tree.file("/usr/lib/libcuda.so.1", "x")
    tree.settle()
    assert not before.unchanged()


def test_a_link_that_leads_elsewhere_is_a_change(tree: DriverTree) -> None:
    tree.file("/other/libcuda.so.1", "x")
    tree.link("/run/current", "/usr/lib")
    before = seen(tree, "/run/current")
    tree.link("/run/current", "/other")
    assert not before.unchanged()


def test_what_happens_elsewhere_is_no_change(tree: DriverTree) -> None:
    before = seen(tree, "/usr/lib", "/run/nvidia")
    tree.file("/etc/hosts")
    tree.file("/usr/share/x")
    assert before.unchanged()


def test_what_changed_just_now_may_change_again_unnoticed(tree: DriverTree) -> None:
    """Time stamps move in ticks: a second change within one would look like none."""
    assert seen(tree, "/usr/lib").settled()
    tree.keep_changing("/usr/lib")
    assert not seen(tree, "/usr/lib").settled()
    assert seen(tree, "/run").settled()
