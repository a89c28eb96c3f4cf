from dataclasses import replace
from pathlib import PurePosixPath
from posixpath import normpath

import pytest
from hypothesis import given, settings
from support.cdi import container_edits
from support.rows import examples

from dra_driver.cdi.inject import ContainerDescription, DeviceRule, SpecFile, SpecFiles, edited, inject, resolve
from dra_driver.cdi.model import (
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    spec_of,
)
from dra_driver.errors import InvalidInput

EMPTY = ContainerDescription()
SOME = settings(max_examples=examples(40))


def env(*variables: str) -> ContainerEdits:
    return ContainerEdits(env=variables)


def spec(*devices: str, kind: str = "v/c", top: ContainerEdits | None = None) -> CdiSpec:
    return spec_of(kind, tuple(CdiDevice(name, env(f"{name.upper()}=1")) for name in devices), top or ContainerEdits())


def file(path: str, *devices: str, priority: int = 0, kind: str = "v/c") -> SpecFile:
    return SpecFile(PurePosixPath(path), priority, spec(*devices, kind=kind))


# Resolving


def test_a_device_is_found_by_its_whole_name() -> None:
    specs = SpecFiles((file("a.json", "x", "y"), file("b.json", "x", kind="other/c")))
    resolved = resolve(["v/c=y", "other/c=x", "v/c=x"], specs)
    assert [(cdi_spec.kind, device.name) for cdi_spec, device in resolved] == [
        ("v/c", "y"),
        ("other/c", "x"),
        ("v/c", "x"),
    ]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_later_folder_wins_whatever_the_order_of_files(reverse: bool) -> None:
    files = [file("/etc/cdi/a.json", "x"), file("/var/run/cdi/a.json", "x", "y", priority=1)]
    specs = SpecFiles(tuple(reversed(files) if reverse else files))
    ((merged, _),) = resolve(["v/c=x"], specs)
    assert len(merged.devices) == 2


def test_a_device_in_two_files_of_one_folder_is_in_neither() -> None:
    specs = SpecFiles((file("a.json", "x", "y"), file("b.json", "x", "z")))
    with pytest.raises(InvalidInput, match=r"v/c=x is in several files: a\.json, b\.json"):
        resolve(["v/c=x"], specs)
    assert len(resolve(["v/c=y", "v/c=z"], specs)) == 2


def test_a_conflict_in_a_folder_that_loses_is_a_conflict_all_the_same() -> None:
    """As in the reference library, which drops every name that was ever in conflict."""
    specs = SpecFiles((file("a.json", "x"), file("b.json", "x"), file("c.json", "x", priority=1)))
    with pytest.raises(InvalidInput, match=r"in several files: a\.json, b\.json"):
        resolve(["v/c=x"], specs)


def test_all_unresolvable_devices_are_named_and_so_are_files_that_were_left_out() -> None:
    specs = SpecFiles((file("a.json", "x"),), unreadable={"b.json": "is invalid: kind: is required"})
    with pytest.raises(InvalidInput) as caught:
        resolve(["v/c=x", "v/c=y", "w/c=z"], specs)
    assert caught.value.problems == ("v/c=y is in no file", "w/c=z is in no file")
    assert "b.json was left out: is invalid: kind: is required" in str(caught.value)


def test_one_unresolvable_device_stops_all() -> None:
    with pytest.raises(InvalidInput):
        inject(EMPTY, ["v/c=x", "v/c=y"], SpecFiles((file("a.json", "x"),)))


# Order


def test_a_specs_own_edits_come_once_and_before_those_of_its_first_device() -> None:
    top = ContainerEdits(env=("T=1",), hooks=(Hook("prestart", "/top"),))
    other = spec("z", kind="w/c", top=env("T=2"))
    specs = SpecFiles(
        (SpecFile(PurePosixPath("a"), 0, spec("x", "y", top=top)), SpecFile(PurePosixPath("b"), 0, other))
    )
    got = inject(EMPTY, ["v/c=y", "w/c=z", "v/c=x"], specs)
    assert got.env == ("T=2", "Y=1", "Z=1", "X=1")
    assert len(got.hooks) == 1


# Edits


def test_a_variable_takes_the_place_of_one_of_the_same_name() -> None:
    container = ContainerDescription(env=("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "HOME=/"))
    got = edited(container, env("NVIDIA_VISIBLE_DEVICES=void", "NEW=1", "NEW=2"))
    assert got.env == ("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void", "HOME=/", "NEW=2")


def test_mounts_end_up_sorted_by_depth_and_replace_the_same_path() -> None:
    container = ContainerDescription(mounts=(Mount("/1", "/a/b/c"), Mount("/2", "/a")))
    got = edited(container, ContainerEdits(mounts=(Mount("/3", "/a/b"), Mount("/4", "/a"), Mount("/5", "/z"))))
    assert [(mount.container_path, mount.host_path) for mount in got.mounts] == [
        ("/a", "/4"), ("/z", "/5"), ("/a/b", "/3"), ("/a/b/c", "/1"),
    ]  # fmt: skip


def test_mounts_of_the_container_keep_their_order_when_none_is_added() -> None:
    container = ContainerDescription(mounts=(Mount("/1", "/a/b/c"), Mount("/2", "/a")))
    assert edited(container, env("A=1")).mounts == container.mounts


def test_a_device_node_at_the_same_path_is_replaced() -> None:
    first, second = (DeviceNode("/dev/x", type="c", major=1, minor=minor) for minor in (1, 2))
    got = edited(edited(EMPTY, ContainerEdits(device_nodes=(first,))), ContainerEdits(device_nodes=(second,)))
    assert [node.minor for node in got.device_nodes] == [2]
    assert [rule.minor for rule in got.device_rules] == [1, 2]


def test_group_ids_are_added_once_and_root_never() -> None:
    got = edited(ContainerDescription(additional_gids=(44,)), ContainerEdits(additional_gids=(0, 44, 105, 105)))
    assert got.additional_gids == (44, 105)


def test_hooks_are_added_again_each_time() -> None:
    edits = ContainerEdits(hooks=(Hook("prestart", "/x"),))
    assert len(edited(edited(EMPTY, edits), edits).hooks) == 2


def node_of(node: DeviceNode, *, container: ContainerDescription = EMPTY) -> DeviceNode:
    return edited(container, ContainerEdits(device_nodes=(node,))).device_nodes[0]


def test_a_node_with_type_and_major_needs_no_node_on_the_host() -> None:
    node = DeviceNode("/dev/x", type="c", major=195, minor=0)
    assert node_of(node) == node


@pytest.mark.parametrize(
    "node", [DeviceNode("/dev/x"), DeviceNode("/dev/x", type="c"), DeviceNode("/dev/x", major=195)]
)
def test_a_node_without_type_or_major_needs_one(node: DeviceNode) -> None:
    """With a major and no type, which is what nvidia-ctk writes, a missing node stops the container."""
    with pytest.raises(InvalidInput, match="no such device node"):
        node_of(node)


def test_a_node_belongs_to_the_process_unless_the_spec_says_otherwise() -> None:
    user = ContainerDescription(uid=1000, gid=2000)
    plain = node_of(DeviceNode("/dev/x", type="c", major=1), container=user)
    assert (plain.uid, plain.gid) == (1000, 2000)
    owned = node_of(DeviceNode("/dev/x", type="c", major=1, uid=0, gid=44), container=user)
    assert (owned.uid, owned.gid) == (0, 44)
    root = node_of(DeviceNode("/dev/x", type="c", major=1))
    assert (root.uid, root.gid) == (None, None)


@pytest.mark.parametrize(("permissions", "access"), [("", "rwm"), ("rwm", "rwm"), ("r", "r"), ("none", "")])
def test_the_cgroup_allows_what_the_permissions_say(permissions: str, access: str) -> None:
    node = DeviceNode("/dev/x", type="c", major=195, minor=4, permissions=permissions)
    got = edited(EMPTY, ContainerEdits(device_nodes=(node,)))
    assert got.device_rules == (DeviceRule("c", 195, 4, access),)


def test_the_cgroup_knows_nothing_of_pipes() -> None:
    got = edited(EMPTY, ContainerEdits(device_nodes=(DeviceNode("/x", type="p"),)))
    assert got.device_rules == ()


# Laws


def with_numbers(edits: ContainerEdits) -> ContainerEdits:
    nodes = tuple(replace(node, type=node.type or "c", major=node.major or 7) for node in edits.device_nodes)
    return replace(edits, device_nodes=nodes)


some_edits = container_edits.map(with_numbers)


@SOME
@given(some_edits, some_edits)
def test_doing_the_same_again_changes_nothing_but_hooks_and_rules(first: ContainerEdits, edits: ContainerEdits) -> None:
    once = edited(edited(EMPTY, first), edits)
    twice = edited(once, edits)
    assert set(twice.env) == set(once.env)
    assert twice.additional_gids == once.additional_gids
    assert sorted(map(repr, twice.mounts)) == sorted(map(repr, once.mounts))
    assert sorted(map(repr, twice.device_nodes)) == sorted(map(repr, once.device_nodes))


@SOME
@given(some_edits, some_edits)
def test_the_later_edit_wins_and_nothing_is_there_twice(first: ContainerEdits, second: ContainerEdits) -> None:
    got = edited(edited(EMPTY, first), second)
    for variables in (first.env, second.env):
        wanted = {variable.partition("=")[0]: variable for variable in variables}
        others = {variable.partition("=")[0] for variable in second.env} if variables is first.env else set()
        assert {variable for name, variable in wanted.items() if name not in others} <= set(got.env)
    names = [variable.partition("=")[0] for variable in got.env]
    assert len(set(names)) == len(names)
    for mount in {mount.container_path: mount for mount in second.mounts}.values():
        assert mount in got.mounts
    assert len({mount.container_path for mount in got.mounts}) == len(got.mounts)
    assert len({node.path for node in got.device_nodes}) == len(got.device_nodes)


@SOME
@given(some_edits)
def test_no_mount_comes_after_one_that_lies_deeper(edits: ContainerEdits) -> None:
    mounts = edited(EMPTY, edits).mounts
    depths = [normpath(mount.container_path).count("/") for mount in mounts]
    assert depths == sorted(depths)
