import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cdi import HOOK, claim_device, driver_files, gpu_facts, gpu_node
from support.rows import rows

from dra_driver.cdi.edits import ClaimDevice, claim_spec
from dra_driver.cdi.model import (
    VERSIONS,
    CdiSpec,
    ContainerEdits,
    encode,
    fitted,
    lowest_version,
    problems_of,
    qualified_name,
    readable_version,
    reads,
)

CLAIM = "0b5b1c8e-6b9e-4b0e-8f0a-000000000001"


@rows(
    "runtime, version",
    [
        ("containerd://1.6.33", None),
        ("containerd://1.7.0", "0.5.0"),
        ("containerd://1.7.11", "0.5.0"),
        ("containerd://1.7.12", "0.6.0"),
        ("containerd://1.7.15", "0.6.0"),
        ("containerd://1.7.16", "0.7.0"),
        ("containerd://1.7.27-k3s1", "0.8.0"),
        ("containerd://2.0.0", "0.8.0"),
        ("containerd://2.0.5", "1.0.0"),
        ("containerd://v2.1.4+unknown", "1.0.0"),
        ("containerd://2.2.1", "1.1.0"),
        ("cri-o://1.29.13", "0.6.0"),
        ("cri-o://1.30.0", "0.7.0"),
        ("cri-o://1.34.3-dev", "1.0.0"),
        ("docker://28.0.1", None),
        ("containerd://", None),
        ("simulated://1.0", None),
        ("", None),
    ],
)
def test_what_a_runtime_reads_goes_by_its_release(runtime: str, version: str | None) -> None:
    assert readable_version(runtime) == version


def test_a_runtime_that_is_not_known_is_told_everything() -> None:
    assert all(reads(None, version) for version in VERSIONS)


def spec(*, mode: int = 0o660, annotated: bool = False) -> CdiSpec:
    closed = ClaimDevice("gpu-5a7b12c3", gpu_facts(), (gpu_node(file_mode=mode, gid=44),))
    made = claim_spec("gpu.nvidia.com", CLAIM, (closed, claim_device(1)), driver_files(hook=HOOK))
    if annotated:
        made = replace(made, annotations={"resource.nvidia.com/computeDomain": "u"})
        made = replace(made, cdi_version=lowest_version(made))
    return made


@rows("annotated", [False, True])
@rows("readable", ["0.5.0", "0.6.0", "0.7.0", "1.1.0", None])
def test_a_fitted_spec_is_valid_and_readable_and_says_all_that_can_be_said(
    readable: str | None, annotated: bool
) -> None:
    whole = spec(annotated=annotated)
    assert whole.cdi_version == "0.7.0"
    made = fitted(whole, readable)
    assert problems_of(made) == ()
    assert reads(readable, made.cdi_version)
    assert (made.devices[0].container_edits.additional_gids == (44,)) is reads(readable, "0.7.0")
    assert bool(made.annotations) is (annotated and reads(readable, "0.6.0"))
    without = replace(made.devices[0].container_edits, additional_gids=(44,))
    assert without == whole.devices[0].container_edits
    assert made.container_edits == whole.container_edits


def test_a_spec_that_is_readable_is_left_alone() -> None:
    whole = spec(mode=0o666)
    assert whole.cdi_version == "0.5.0"
    assert fitted(whole, "0.5.0") is whole


def test_groups_of_the_common_part_are_left_out_too() -> None:
    whole = replace(spec(), container_edits=ContainerEdits(env=("A=b",), additional_gids=(45,)))
    assert fitted(whole, "0.6.0").container_edits == ContainerEdits(env=("A=b",))


READERS = Path(os.environ["GPU_DRA_TEST_CDI_READERS"]) if os.environ.get("GPU_DRA_TEST_CDI_READERS") else None


@pytest.mark.skipif(READERS is None, reason="GPU_DRA_TEST_CDI_READERS names no folder of CDI readers")
@pytest.mark.parametrize("reader", sorted(READERS.iterdir()) if READERS else [Path()], ids=lambda path: path.name)
def test_what_a_runtime_reads_is_what_its_cdi_library_reads(reader: Path, tmp_path: Path) -> None:
    """Of each release (`containerd-1.7.15`), by tests/support/cdi_reader.go."""
    readable = readable_version(reader.name.replace("-", "://"))
    whole = spec()

    def given(made: CdiSpec) -> Any:
        (tmp_path / "claim.json").write_bytes(encode(made))
        device = qualified_name(made.kind, made.devices[0].name)
        done = subprocess.run([reader, tmp_path, device], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    assert bool(given(whole)["unresolved"]) is not reads(readable, "0.7.0")
    got = given(fitted(whole, readable))
    assert not got["unresolved"]
    assert got["gids"] == ([44] if reads(readable, "0.7.0") else None)
    (closed,) = [node for node in got["devices"] if node.get("fileMode") == 0o660]
    assert closed["uid"] == 1000
