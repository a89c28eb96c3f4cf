import os
from pathlib import Path

import pytest

from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.runtime.files import StagedFile, stage
from kubelet_plugin.prepare import cdi_files
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.metadata import RequestMetadata

DRIVER = "gpu.nvidia.com"
CLAIM = "0b5b1c8e-6b9e-4b0e-8f0a-000000000001"
OTHER = "0b5b1c8e-6b9e-4b0e-8f0a-000000000002"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cdi").mkdir()
    return tmp_path / "cdi"


@pytest.fixture
def cdi(folder: Path) -> CdiFiles:
    return CdiFiles(folder, DRIVER)


def test_a_claims_file_has_the_name_that_the_cdi_library_recommends(cdi: CdiFiles, folder: Path) -> None:
    cdi.write(CLAIM, b"{}")
    (file,) = folder.iterdir()
    assert file.name == f"k8s.gpu.nvidia.com-claim_{CLAIM}.json"
    assert file.stat().st_mode & 0o777 == 0o644


def test_what_was_written_is_read_until_it_is_removed(cdi: CdiFiles) -> None:
    assert cdi.read(CLAIM) is None
    cdi.write(CLAIM, b"one")
    cdi.write(CLAIM, b"two")
    assert cdi.read(CLAIM) == b"two"
    assert cdi.claims() == {CLAIM}
    cdi.remove(CLAIM)
    cdi.remove(CLAIM)
    assert cdi.read(CLAIM) is None
    assert cdi.claims() == frozenset()


def test_files_of_others_are_not_ours(cdi: CdiFiles, folder: Path) -> None:
    foreign = [
        "nvidia.yaml",
        "k8s.gpu.nvidia.com-device_x.json",
        "k8s.compute-domain.nvidia.com-claim_x.json",
        ".k8s.compute-domain.nvidia.com-claim_x.json.0123.tmp",
        "spec.123.tmp",
    ]
    for name in foreign:
        (folder / name).write_text("theirs")
    cdi.write(CLAIM, b"{}")
    assert cdi.claims() == {CLAIM}
    (folder / "k8s.gpu.nvidia.com-claim_y.yaml").write_text("NVIDIA's")
    foreign.append("k8s.gpu.nvidia.com-claim_y.yaml")
    assert cdi.remove_leftovers() == ()
    cdi.remove("x")
    assert sorted(path.name for path in folder.iterdir()) == sorted([*foreign, cdi.path(CLAIM).name])


def test_with_a_claim_goes_what_nvidias_own_driver_wrote_for_it(cdi: CdiFiles, folder: Path) -> None:
    """It was uninstalled while the claim's pods ran, and nobody else hears that they ended."""
    theirs = folder / f"k8s.gpu.nvidia.com-claim_{CLAIM}.yaml"
    theirs.write_text("theirs")
    cdi.remove(OTHER)
    assert theirs.exists()
    cdi.remove(CLAIM)
    assert not theirs.exists()


def test_a_renamed_driver_has_files_of_its_own(folder: Path) -> None:
    mine, theirs = CdiFiles(folder, "gpu.example.com"), CdiFiles(folder, DRIVER)
    mine.write(CLAIM, b"{}")
    assert mine.claims() == {CLAIM}
    assert theirs.claims() == frozenset()
    assert mine.path(CLAIM).name == f"k8s.gpu.example.com-claim_{CLAIM}.json"


def test_staged_files_are_seen_by_no_runtime_until_they_are_published(cdi: CdiFiles, folder: Path) -> None:
    staged = [cdi.stage(CLAIM, b"one"), cdi.stage(OTHER, b"two")]
    assert not [path for path in folder.iterdir() if path.suffix in (".json", ".yaml")]
    assert cdi.claims() == frozenset()
    cdi.publish(staged)
    assert cdi.claims() == {CLAIM, OTHER}
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".json"]


METADATA = [RequestMetadata(request, b"content", b"spec") for request in ("one", "two")]


@pytest.fixture
def described(folder: Path) -> CdiFiles:
    """With device metadata, in the folder `metadata` beside that of CDI files."""
    return CdiFiles(folder, DRIVER, folder.parent / "metadata")


@pytest.mark.parametrize("number", range(4))
def test_of_files_that_cannot_all_be_staged_none_is_left(
    described: CdiFiles, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What stays open would also keep the next process from removing it."""
    made: list[StagedFile] = []

    def fails_at(path: Path, content: bytes, *, flushed: bool) -> StagedFile:
        if len(made) == number:
            raise NodeNotReady("the disk is full", about=str(path))
        made.append(stage(path, content, flushed=flushed))
        return made[-1]

    monkeypatch.setattr(cdi_files, "stage", fails_at)
    with pytest.raises(NodeNotReady, match="the disk is full"):
        described.stage_metadata(CLAIM, METADATA)
    assert len(made) == number
    assert [path for path in (*folder.iterdir(), *(folder.parent / "metadata").iterdir()) if path.is_file()] == []


@pytest.mark.parametrize("number", range(3))
def test_when_one_file_cannot_take_its_place_the_others_are_not_left(cdi: CdiFiles, folder: Path, number: int) -> None:
    uids = [f"0b5b1c8e-6b9e-4b0e-8f0a-00000000000{digit}" for digit in range(3)]
    staged = [cdi.stage(uid, b"{}") for uid in uids]
    cdi.path(uids[number]).mkdir()
    with pytest.raises(NodeNotReady):
        cdi.publish(staged)
    assert sorted(path.name for path in folder.iterdir()) == [cdi.path(uid).name for uid in uids[: number + 1]]


def test_the_metadata_of_a_claim_is_not_that_of_one_whose_uid_begins_alike(described: CdiFiles) -> None:
    described.publish(described.stage_metadata("a", METADATA[:1]) + described.stage_metadata("a_b", METADATA[1:]))
    assert [file.request for file in described.metadata("a")] == ["one"]
    described.remove("a")
    assert [file.request for file in described.metadata("a_b")] == ["two"]


def test_leftovers_of_a_killed_plugin_are_removed(cdi: CdiFiles, folder: Path) -> None:
    left = folder / f".{cdi.path(CLAIM).name}.0123456789ab.tmp"
    left.write_bytes(b"half")
    assert cdi.remove_leftovers() == (left,)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("method", ["write", "stage"])
def test_the_folder_is_made_when_only_it_is_missing_as_after_a_boot(tmp_path: Path, method: str) -> None:
    cdi = CdiFiles(tmp_path / "cdi", DRIVER)
    assert cdi.claims() == frozenset()
    assert cdi.remove_leftovers() == ()
    assert cdi.read(CLAIM) is None
    cdi.remove(CLAIM)
    before = os.umask(0o077)
    try:
        getattr(cdi, method)(CLAIM, b"{}")
    finally:
        os.umask(before)
    assert cdi.folder.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_is_not_mounted_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    cdi = CdiFiles(tmp_path / "run" / "cdi", DRIVER)
    with pytest.raises(NodeNotReady, match=r"does not exist, and neither does .*/run: is the host's folder mounted"):
        cdi.write(CLAIM, b"{}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(NodeNotReady, match="cannot be created: Not a directory"):
        CdiFiles(tmp_path / "run" / "cdi", DRIVER).write(CLAIM, b"{}")


def test_something_else_in_the_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    with pytest.raises(NodeNotReady, match="not a folder"):
        CdiFiles(tmp_path / "cdi", DRIVER).write(CLAIM, b"{}")
    with pytest.raises(NodeNotReady, match="cannot be listed"):
        CdiFiles(tmp_path / "cdi", DRIVER).claims()


@pytest.mark.parametrize("uid", ["../escape", "a/b", "/etc/passwd", "a\0b"])
def test_a_uid_that_would_lead_out_of_the_folder_is_refused(cdi: CdiFiles, uid: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the UID"):
        cdi.path(uid)
