"""What other DRA drivers prepared on the node is seen by their CDI files."""

from pathlib import Path

import pytest

from kubelet_plugin.prepare.cdi_files import OtherClaims

DRIVER = "gpu.nvidia.com"
ALL = (0, 1, 2, 10)
NVIDIAS = """
cdiVersion: 0.8.0
kind: k8s.gpu.nvidia.com/claim
containerEdits:
  deviceNodes: [{path: /dev/nvidiactl}, {path: /dev/nvidia-uvm}, {path: /dev/nvidia-caps/nvidia-cap2}]
devices:
- name: 1-gpu-1
  containerEdits: {deviceNodes: [{path: /dev/nvidia1}, {path: /dev/nvidia10}]}
"""


@pytest.fixture
def others(tmp_path: Path) -> OtherClaims:
    return OtherClaims(tmp_path, [DRIVER])


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        # NVIDIA's own driver, which has our name and another ending.
        ("k8s.gpu.nvidia.com-claim_1.yaml", DRIVER),
        # Another release of ours on the same node.
        ("k8s.gpu.example.com-claim_1.json", "gpu.example.com"),
    ],
)
def test_gpus_of_another_drivers_claims_are_told_with_the_claim_and_the_file(
    name: str, driver: str, others: OtherClaims, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(NVIDIAS)
    sentences = others.gpus(ALL)
    assert sorted(sentences) == [1, 10]
    assert f"claim UID 1 of another driver, {driver}," in sentences[1] and str(tmp_path / name) in sentences[1]
    (tmp_path / name).unlink()
    assert others.gpus(ALL) == {}


@pytest.mark.parametrize(
    "name",
    [
        "k8s.gpu.nvidia.com-claim_1.json",
        # Of no claim: what NVIDIA's container toolkit writes, and a driver's own.
        "nvidia.yaml",
        "management.nvidia.com-gpu.yaml",
        "k8s.gpu.nvidia.com-device_base.yaml",
        ".k8s.gpu.example.com-claim_1.json.0123456789ab.tmp",
        # Hands out no GPUs; its daemons may see them.
        "k8s.compute-domain.nvidia.com-claim_1.yaml",
    ],
)
def test_files_that_hold_no_gpu_for_another_drivers_claim(name: str, others: OtherClaims, tmp_path: Path) -> None:
    (tmp_path / name).write_text(NVIDIAS)
    assert others.gpus(ALL) == {}


def test_claims_of_devices_that_are_no_gpus_hold_none(others: OtherClaims, tmp_path: Path) -> None:
    (tmp_path / "k8s.dra.net-claim_1.json").write_text('{"devices": [{"path": "/dev/infiniband/uverbs1"}]}')
    assert others.gpus(ALL) == {}


def test_a_file_that_cannot_be_read_may_hold_every_gpu(others: OtherClaims, tmp_path: Path) -> None:
    (tmp_path / "k8s.gpu.nvidia.com-claim_1.yaml").mkdir()
    sentences = others.gpus(ALL)
    assert set(sentences) == set(ALL) and "cannot be read: Is a directory" in sentences[0]


def test_a_file_that_is_gone_by_the_time_it_is_read_holds_none(others: OtherClaims, tmp_path: Path) -> None:
    (tmp_path / "k8s.gpu.nvidia.com-claim_1.yaml").symlink_to("gone")
    assert others.gpus(ALL) == {}


def test_of_several_claims_the_first_by_name_is_told(others: OtherClaims, tmp_path: Path) -> None:
    """Or each look would give the GPU another reason."""
    for number in (3, 1, 4, 2, 5):
        (tmp_path / f"k8s.gpu.nvidia.com-claim_{number}.yaml").write_text(NVIDIAS)
    assert "claim UID 1 of" in others.gpus(ALL)[1]


def test_without_the_folder_there_are_no_claims(tmp_path: Path) -> None:
    assert OtherClaims(tmp_path / "cdi", [DRIVER]).gpus(ALL) == {}
