"""The table of layouts on docs/hardware.md says what the code finds, and names tests that exist."""

from pathlib import Path
from typing import get_args

import pytest
from support.pages import DOCS, ROOT

from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.layouts import BINARY_FOLDERS, program_below
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.driver_files import PLACES
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.state import Layout

_TESTS = ROOT / "tests/kubelet_plugin/hardware/test_driver_root.py"


def _rows() -> list[list[str]]:
    section = (DOCS / "hardware.md").read_text().partition("## Layouts")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


ROWS = {row[0].strip("`"): row for row in _rows()}


def test_every_layout_has_its_row_and_each_test_of_a_row_is_there() -> None:
    layouts = [name for name, row in ROWS.items() if row[0].startswith("`")]
    assert layouts == list(PLACES) == list(get_args(Layout.__value__))
    for row in ROWS.values():
        assert f"def {row[5].strip('`')}(" in _TESTS.read_text(), row


@pytest.mark.parametrize("layout", PLACES)
def test_a_rows_folders_are_those_in_which_the_driver_is_found_by_itself(tmp_path: Path, layout: Layout) -> None:
    _, _, libraries, programs, way, _ = ROWS[layout]
    place = PLACES[layout]
    assert (libraries.strip("`"), programs.strip("`")) == (place.libraries, place.programs)
    assert way == "by itself"
    host = create_host(tmp_path, "t4", layout=layout)
    files = HostFiles(tmp_path)
    root = find_driver_root(files)
    assert root.path == place.root
    assert programs.strip("`").removeprefix(place.root.rstrip("/")) in BINARY_FOLDERS
    assert root.nvml_library.samefile(host.path(host.library_folder / f"libnvidia-ml.so.{root.version}"))
    assert program_below(files, root.path, "nvidia-smi") is not None
