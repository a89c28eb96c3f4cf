import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from support.cdi import class_names, container_edits, device_names, specs, vendors
from support.rows import examples, rows

from dra_driver.cdi.inject import decode
from dra_driver.cdi.model import (
    VERSIONS,
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    encode,
    lowest_version,
    problems_of,
    qualified_name,
    spec_of,
)
from dra_driver.errors import InvalidInput

NODE = DeviceNode("/dev/x")
NOTHING = ContainerEdits()
SOME = settings(max_examples=examples(30))
"""Each spec is large: more would take long, and find little more."""
DEVICE = CdiDevice("a", ContainerEdits(device_nodes=(NODE,)))


def spec_with(edits: ContainerEdits = NOTHING, *, name: str = "a", kind: str = "vendor/class") -> CdiSpec:
    return spec_of(kind, (CdiDevice(name, ContainerEdits(device_nodes=(NODE,))),), edits)


def problem(spec: CdiSpec) -> str:
    """The one thing that is wrong with `spec`."""
    (message,) = problems_of(spec)
    return message


# The text


@SOME
@given(specs())
def test_a_spec_is_the_same_after_writing_and_reading_it(spec: CdiSpec) -> None:
    assert decode(encode(spec)) == spec


@SOME
@given(specs())
def test_the_text_means_the_same_as_json_and_as_yaml(spec: CdiSpec) -> None:
    """Runtimes parse it as YAML, everybody else as JSON."""
    text = encode(spec)
    assert yaml.safe_load(text) == json.loads(text)


@SOME
@given(specs())
def test_equal_specs_have_equal_text(spec: CdiSpec) -> None:
    again = replace(
        spec, container_edits=replace(spec.container_edits), annotations=dict(reversed(spec.annotations.items()))
    )
    assert encode(again) == encode(spec)


def test_the_text_is_laid_out_for_people() -> None:
    spec = spec_of(
        "k8s.gpu.nvidia.com/claim",
        (
            CdiDevice(
                "1-gpu-0", ContainerEdits(("A=1",), (DeviceNode("/dev/nvidia0", type="c", major=195, file_mode=0o666),))
            ),
        ),
        ContainerEdits(env=("B=2", "C=3"), mounts=(Mount("/a", "/b", ("ro",)),), additional_gids=(44,)),
    )
    assert encode(spec).decode() == (
        "{\n"
        ' "cdiVersion": "0.7.0",\n'
        ' "kind": "k8s.gpu.nvidia.com/claim",\n'
        ' "devices": [\n'
        '  {"name": "1-gpu-0", "containerEdits": {"env": ["A=1"], "deviceNodes":'
        ' [{"path": "/dev/nvidia0", "type": "c", "major": 195, "fileMode": 438}]}}\n'
        " ],\n"
        ' "containerEdits": {\n'
        '  "env": [\n'
        '   "B=2",\n'
        '   "C=3"\n'
        "  ],\n"
        '  "mounts": [\n'
        '   {"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}\n'
        "  ],\n"
        '  "additionalGids": [\n'
        "   44\n"
        "  ]\n"
        " }\n"
        "}\n"
    )


def test_zero_is_written_where_it_differs_from_absent() -> None:
    """uid, gid, file mode and timeout of 0 are something else than none; major and minor of 0 are not."""
    node = DeviceNode("/dev/x", type="c", major=1, minor=0, file_mode=0, uid=0, gid=0)
    edits = ContainerEdits(device_nodes=(node,), hooks=(Hook("prestart", "/x", timeout=0),))
    device = json.loads(encode(spec_of("a/b", (CdiDevice("c", edits),), ContainerEdits())))["devices"][0]
    assert device["containerEdits"] == {
        "deviceNodes": [{"path": "/dev/x", "type": "c", "major": 1, "fileMode": 0, "uid": 0, "gid": 0}],
        "hooks": [{"hookName": "prestart", "path": "/x", "timeout": 0}],
    }


def test_an_invalid_spec_is_not_written() -> None:
    with pytest.raises(InvalidInput) as caught:
        encode(CdiSpec("0.3.0", "no-class", ()))
    assert len(caught.value.problems) == 2


# Versions


@rows(
    "spec, version",
    [
        (spec_with(), "0.3.0"),
        (spec_with(ContainerEdits(mounts=(Mount("/a", "/b", type="tmpfs"),))), "0.4.0"),
        (spec_with(ContainerEdits(device_nodes=(DeviceNode("/dev/x", host_path="/dev/y"),))), "0.5.0"),
        (spec_with(name="0a"), "0.5.0"),
        (spec_with(kind="vendor.com/cl.ass"), "0.6.0"),
        (replace(spec_with(), annotations={"a": "b"}), "0.6.0"),
        (replace(spec_with(), devices=(replace(DEVICE, annotations={"a": "b"}),)), "0.6.0"),
        (spec_with(ContainerEdits(additional_gids=(44,))), "0.7.0"),
    ],
)
def test_each_feature_needs_the_version_that_brought_it(spec: CdiSpec, version: str) -> None:
    assert lowest_version(spec) == version


@SOME
@given(specs())
def test_the_lowest_version_is_the_lowest(spec: CdiSpec) -> None:
    """A declared version below what the content needs makes the spec invalid, and any other does not."""
    lowest = VERSIONS.index(lowest_version(spec))
    for index, version in enumerate(VERSIONS):
        assert (problems_of(replace(spec, cdi_version=version)) == ()) == (index >= lowest)


@SOME
@given(specs(), container_edits)
def test_adding_something_never_lowers_the_version(spec: CdiSpec, more: ContainerEdits) -> None:
    both = ContainerEdits(
        env=(*spec.container_edits.env, *more.env),
        device_nodes=(*spec.container_edits.device_nodes, *more.device_nodes),
        hooks=(*spec.container_edits.hooks, *more.hooks),
        mounts=(*spec.container_edits.mounts, *more.mounts),
        additional_gids=(*spec.container_edits.additional_gids, *more.additional_gids),
    )
    larger = replace(spec, container_edits=both)
    assert VERSIONS.index(lowest_version(larger)) >= VERSIONS.index(lowest_version(spec))


@pytest.mark.parametrize("version", ["", "0.2.0", "0.5", "2.0.0", "latest"])
def test_an_unknown_version_is_invalid(version: str) -> None:
    assert problem(replace(spec_with(), cdi_version=version)).startswith(f"cdiVersion: {version!r} is none of 0.3.0, ")


# Names


def named(qualified: str) -> tuple[str, ...]:
    """What is wrong with a spec whose one device containers ask for by this name."""
    kind, _, device = qualified.partition("=")
    return problems_of(spec_with(name=device, kind=kind))


@given(vendors, class_names, device_names)
def test_names_that_are_generated_are_legal(vendor: str, class_name: str, device: str) -> None:
    assert named(qualified_name(f"{vendor}/{class_name}", device)) == ()


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/gpu=0:1", "nvidia.com/gpu=GPU-5a7b12c3", "k8s.gpu.nvidia.com/claim=0f3c-gpu-0", "v/c=d", "V1/c_1.x=0"],
)
def test_legal_names(name: str) -> None:
    assert named(name) == ()


@rows("name",
    [
        "", "gpu0", "nvidia.com/gpu", "nvidia.com=0", "/gpu=0", "nvidia.com/=0", "nvidia.com/gpu=", "1nvidia/gpu=0",
        "nvidia./gpu=0", "nvidia/1gpu=0", "nvidia/gpu-=0", "nvidia/gpu=-0", "nvidia/gpu=0-", "nvidia/gpu=a/b",
        "nvidia/gpu=a b", "nvidia/gpu=ä", "nvidia/g/pu=0", "nvidia/gpu=0\n",
    ],
)  # fmt: skip
def test_illegal_names(name: str) -> None:
    assert named(name)


# Validity


@rows(
    "edits, expected",
    [
        (ContainerEdits(env=("=x",)), "env[0]: '=x' is not NAME=value"),
        (ContainerEdits(env=("A=1", "B")), "env[1]: 'B' is not NAME=value"),
        (ContainerEdits(device_nodes=(DeviceNode(""),)), "deviceNodes[0].path: must not be empty"),
        (ContainerEdits(device_nodes=(DeviceNode("/x", type="d"),)), "deviceNodes[0].type: 'd' is none of b, c, u, p"),
        (
            ContainerEdits(device_nodes=(DeviceNode("/x", permissions="rx"),)),
            "deviceNodes[0].permissions: 'rx' is not made of r, w and m, and is not none",
        ),
        (
            ContainerEdits(device_nodes=(DeviceNode("/x", gid=-1),)),
            "deviceNodes[0].gid: -1 is not between 0 and 4294967295",
        ),
        (ContainerEdits(mounts=(Mount("", "/b"),)), "mounts[0].hostPath: must not be empty"),
        (ContainerEdits(mounts=(Mount("/a", ""),)), "mounts[0].containerPath: must not be empty"),
        (ContainerEdits(hooks=(Hook("prestart", ""),)), "hooks[0].path: must not be empty"),
        (ContainerEdits(hooks=(Hook("prestart", "/x", env=("A",)),)), "hooks[0].env[0]: 'A' is not NAME=value"),
        (ContainerEdits(additional_gids=(2**32,)), "additionalGids[0]: 4294967296 is not a group id"),
    ],
)
def test_invalid_edits_are_found_at_the_top_and_in_devices(edits: ContainerEdits, expected: str) -> None:
    assert problem(spec_with(edits)) == f"containerEdits.{expected}"
    in_device = spec_of("a/b", (CdiDevice("c", edits),), ContainerEdits())
    assert problem(in_device) == f"devices[0].containerEdits.{expected}"


def test_an_unknown_hook_is_invalid() -> None:
    message = problem(spec_with(ContainerEdits(hooks=(Hook("preStart", "/x"),))))
    assert message.startswith("containerEdits.hooks[0].hookName: 'preStart' is none of prestart, ")


def test_a_device_that_changes_nothing_is_invalid() -> None:
    assert problem(spec_of("a/b", (CdiDevice("c", ContainerEdits()),), ContainerEdits())) == (
        "devices[0].containerEdits: must not be empty"
    )


def test_two_devices_of_one_name_are_invalid() -> None:
    assert problem(spec_of("a/b", (DEVICE, DEVICE), ContainerEdits())) == "devices[1].name: 'a' is devices[0] already"


def test_annotations_have_keys_and_a_size_as_in_kubernetes() -> None:
    assert problem(replace(spec_with(), cdi_version="0.6.0", annotations={"a b": ""})) == (
        "annotations: 'a b' is not a qualified name"
    )
    large = {"a": "x" * 256 * 1024}
    assert problem(replace(spec_with(), cdi_version="0.6.0", annotations=large)) == (
        "annotations: 262145 bytes are more than 262144"
    )


def test_all_problems_are_found_together() -> None:
    spec = CdiSpec(
        "0.3.0", "1/2", (CdiDevice("-", ContainerEdits()),), ContainerEdits(env=("x",), additional_gids=(1,))
    )
    assert [message.partition(":")[0] for message in problems_of(spec)] == [
        "cdiVersion", "kind", "kind", "devices[0].name", "devices[0].containerEdits", "containerEdits.env[0]",
    ]  # fmt: skip
