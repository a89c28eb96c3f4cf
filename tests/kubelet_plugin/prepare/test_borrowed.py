"""What a proof borrows goes back, whoever is killed and whatever fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.prepare.borrowed import Borrowed
from kubelet_plugin.prepare.holds import GpuIdentity, Made, Records, TimeSlice

FIRST, SECOND = (TimeSlice(GpuIdentity(uuid, address), "Long") for uuid, address in (("GPU-a", "a"), ("GPU-b", "b")))


class Slices:
    """Notes what is done; `stuck` cannot be taken back."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.stuck: TimeSlice | None = None

    def before(self, hold: TimeSlice, records: Records) -> Made:
        return Made()

    def make(self, hold: TimeSlice, records: Records) -> Made:
        self.done.append(f"make {hold.gpu.uuid}")
        return Made()

    def undo(self, hold: TimeSlice, records: Records, boot_id: str) -> None:
        if hold == self.stuck:
            raise HardwareError("stuck", about=str(hold.gpu))
        self.done.append(f"undo {hold.gpu.uuid}")


@pytest.fixture
def slices() -> Slices:
    return Slices()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "proof"


@pytest.fixture
def borrowed(folder: Path, slices: Slices) -> Iterator[Borrowed]:
    yield Borrowed(folder, {TimeSlice: slices}, lambda: "boot")


def test_the_folder_is_there_only_while_something_is_borrowed(borrowed: Borrowed, folder: Path) -> None:
    assert borrowed.there_and_back([FIRST], lambda records: (folder.exists(), list(records))) == (True, [FIRST])
    assert not folder.exists()


def test_what_a_killed_proof_has_left_goes_back_before_anything_is_made(
    borrowed: Borrowed, slices: Slices, folder: Path
) -> None:
    folder.mkdir(parents=True)
    borrowed.begin([FIRST])
    assert borrowed.there_and_back([SECOND], list) == [SECOND]
    assert slices.done == ["make GPU-a", "undo GPU-a", "make GPU-b", "undo GPU-b"]


async def test_what_cannot_go_back_now_stays_for_the_next_one(borrowed: Borrowed, slices: Slices, folder: Path) -> None:
    folder.mkdir(parents=True)
    borrowed.begin([FIRST, SECOND])
    slices.stuck = FIRST
    with capture_logs() as logs:
        await borrowed.settle()
    assert [line["event"] for line in logs] == ["what a proof left cannot be taken back"]
    slices.stuck = None
    assert len(borrowed.give_back()) == 1
    assert slices.done == ["make GPU-a", "make GPU-b", "undo GPU-b", "undo GPU-a"]
    assert not folder.exists()


def test_a_hold_of_another_release_stays(borrowed: Borrowed, folder: Path) -> None:
    folder.mkdir(parents=True)
    borrowed.begin([FIRST])
    with pytest.raises(NodeNotReady, match="run the release that made it"):
        Borrowed(folder, {}, lambda: "boot").give_back()
    assert len(borrowed.give_back()) == 1


def test_a_lock_that_cannot_be_opened_is_named(borrowed: Borrowed, folder: Path) -> None:
    (folder / "borrowing.lock").mkdir(parents=True)
    with pytest.raises(NodeNotReady, match=r"borrowing\.lock: cannot be opened: Is a directory"):
        borrowed.give_back()
