"""Programs of the driver: what they print, and what they cannot do to the plugin that runs them."""

import resource
from pathlib import Path

import pytest

from dra_driver.errors import HardwareError
from kubelet_plugin.hardware.driver_programs import DriverProgram, run_program


def program(folder: Path, script: str) -> DriverProgram:
    file = folder / "program"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return DriverProgram("program", file, str(file), "/", "/lib", Path(), whole_system=False)


def test_both_outputs_and_the_status_are_reported(tmp_path: Path) -> None:
    assert run_program(program(tmp_path, "cat; echo oops >&2"), (), about="x", asked="a\nb\n") == "a\nb\n"
    with pytest.raises(HardwareError, match=r"`program -q` failed \(3\): no oops") as caught:
        run_program(program(tmp_path, "echo no; echo oops >&2; exit 3"), ("-q",), about="x")
    assert caught.value.code == 3


def test_a_program_that_prints_without_end_fills_no_memory(tmp_path: Path) -> None:
    """A container can answer in place of its MPS daemon, whatever and as much as it likes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HardwareError):
        run_program(program(tmp_path, "exec cat /dev/zero"), (), about="x", timeout_s=2.0)
    with pytest.raises(HardwareError):
        run_program(program(tmp_path, "exec cat /dev/zero >&2"), (), about="x", timeout_s=2.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
