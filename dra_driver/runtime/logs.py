"""Structured logs to standard error, for services and for `dractl`."""

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import TextIO, cast

import structlog

_log = structlog.get_logger(__name__)

LEVELS = ("debug", "info", "warning", "error")


class _StandardError:
    """The current standard error at each line. Loggers live forever, but programs that run a command in their own
    process pass streams that they close afterwards."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


def configure_logging(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """`level` is one of LEVELS; `log_format` is `json`, for collectors, or `console`, for people. `stream` None is
    standard error. With `json`, libraries' logs, Python's warnings and uncaught exceptions also become one object per
    line.
    """
    stream = stream or cast(TextIO, _StandardError())
    numeric = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(sort_keys=False)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if log_format == "json" else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    libraries = logging.StreamHandler(stream)
    if log_format == "json":
        libraries.setFormatter(_OneObject())
        logging.captureWarnings(True)
        sys.excepthook = _tell_uncaught
        threading.excepthook = lambda end: _tell_uncaught(end.exc_type, end.exc_value or end.exc_type(), None)
    logging.basicConfig(level=logging.WARNING, handlers=[libraries])


class _OneObject(logging.Formatter):
    """Formats a library's log line like the driver's own."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _tell_uncaught(kind: type[BaseException], error: BaseException, _: object) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    _log.error("failed unexpectedly", exc_info=error)
