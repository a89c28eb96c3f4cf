"""Logs of a service."""

import json
import subprocess
import sys

import pytest
import structlog

from dra_driver.runtime.logs import configure_logging


@pytest.fixture
def _other_tests_log_as_before() -> object:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_other_tests_log_as_before")
def test_json_logs_are_one_object_a_line_with_the_trace_inside(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    log = structlog.get_logger()
    log.debug("not this")
    log.info("registered", driver="gpu.nvidia.com")
    try:
        raise ZeroDivisionError("a defect")
    except ZeroDivisionError:
        log.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["driver"], first["level"]) == ("registered", "gpu.nvidia.com", "info")
    assert "ZeroDivisionError: a defect" in second["exception"]


OTHERS = """
import logging, threading, warnings
from dra_driver.runtime.logs import configure_logging

configure_logging("info", "json")
try:
    raise ZeroDivisionError("of a library")
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("two\\nlines of %s", "a library")
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("of the\\nprogram")
"""


def test_what_libraries_warnings_threads_and_uncaught_errors_say_is_one_object_a_line_as_well() -> None:
    ended = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    library, warning, thread, program = map(json.loads, ended.stderr.splitlines())
    assert (library["event"], library["logger"], library["level"]) == ("two\nlines of a library", "asyncio", "error")
    assert "ZeroDivisionError: of a library" in library["exception"]
    assert "UserWarning: old" in warning["event"] and warning["level"] == "warning"
    assert "ZeroDivisionError" in thread["exception"] and "RuntimeError: of the\nprogram" in program["exception"]
    assert all(line["timestamp"].endswith("Z") for line in (library, warning, thread, program))
