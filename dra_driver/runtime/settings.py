"""Reads settings from flags and `GPU_DRA_*` variables, each named after its flag; the flag overrides the variable.
`kubelet_plugin.settings` and `controller.settings` define the settings with unit, default and reason. A mistake ends
the process with status 2 and a message of one line.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn, cast

from dra_driver.errors import InvalidInput
from dra_driver.features import Gates
from dra_driver.names import is_dns_subdomain

PREFIX = "GPU_DRA_"

OTLP_ENDPOINT = (
    "URL of an OpenTelemetry collector for traces (OTLP, gRPC); default: OTEL_EXPORTER_OTLP_ENDPOINT, or none"
)

FEATURE_GATES = "features to enable or disable, as NAME=true,NAME=false; docs/feature-gates.md lists them"

_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")


@dataclass(frozen=True, slots=True)
class Declared:
    """A setting, for the documentation. `choices` is empty if any value is allowed; a switch's default is a bool."""

    flag: str
    variable: str
    default: object
    text: str
    choices: tuple[str, ...] = ()


class SettingsParser:
    """Declare settings with `setting` and `switch`, then call `parse`; the variables are `PREFIX` and the flag in
    capitals."""

    def __init__(self, program: str, description: str) -> None:
        self._parser = _Parser(
            prog=program,
            description=description,
            epilog="Every flag can also be set as a variable: --log-level is GPU_DRA_LOG_LEVEL.",
            allow_abbrev=False,
        )
        self.declared: list[Declared] = []

    def setting(self, flag: str, default: object, text: str, **more: Any) -> None:
        """A value; `more` goes to argparse."""
        self.declared.append(Declared(flag, _variable(flag), default, text, tuple(more.get("choices", ()))))
        shown = f" (default: {default})" if default != "" else ""
        self._parser.add_argument(flag, default=default, help=text + shown, **more)

    def switch(self, flag: str, default: bool, text: str) -> None:
        """On or off: `--flag` and `--no-flag`, or the variable with true or false."""
        self.declared.append(Declared(flag, _variable(flag), default, text))
        shown = f" (default: {'on' if default else 'off'})"
        self._parser.add_argument(flag, default=default, help=text + shown, action=argparse.BooleanOptionalAction)

    def parse(self, arguments: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
        # Variables become flags before the given ones, so that the same rules apply and given flags override them.
        given = [self._as_flag(each, value) for each in self.declared if (value := environment.get(each.variable))]
        return self._parser.parse_args([*given, *arguments])

    def refuse(self, message: str) -> NoReturn:
        """Ends the process because of a mistake in the settings."""
        self._parser.error(message)

    def _as_flag(self, setting: Declared, value: str) -> str:
        if not isinstance(setting.default, bool):
            return f"{setting.flag}={value}"
        if value.lower() not in _TRUE + _FALSE:
            self.refuse(f"{setting.variable}: {value!r} is neither true nor false")
        return setting.flag if value.lower() in _TRUE else f"--no-{setting.flag.removeprefix('--')}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; --help lists the settings", file=sys.stderr)  # noqa: T201 - no logger yet
        raise SystemExit(2)


def _variable(flag: str) -> str:
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def filled[T](kind: type[T], options: argparse.Namespace, prefix: str = "", **more: Any) -> T:
    """A dataclass with `more`; its other fields are the options of their names, after `prefix`."""
    names = {field.name for field in fields(cast(Any, kind))} - more.keys()
    return kind(**{name: getattr(options, prefix + name) for name in names}, **more)


def optional(text: str) -> str | None:
    """Nothing is None; so it is below."""
    return text or None


def names(text: str) -> tuple[str, ...]:
    """Separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def path(text: str) -> Path | None:
    return Path(text) if text else None


def seconds(text: str) -> float:
    """A setting in seconds, between 0.1 and a day."""
    value = float(text)
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400 seconds")
    return value


def driver_name(text: str) -> str:
    """The name of a DRA driver; also a folder's name. Source: ResourceSliceSpec.driver, resource.k8s.io/v1."""
    if not is_dns_subdomain(text, longest=63):
        raise argparse.ArgumentTypeError(f"{text!r} is not a DNS subdomain of at most 63 characters")
    return text


def feature_gates(text: str) -> Gates:
    """`NAME=true,NAME=false`; see `dra_driver.features`."""
    try:
        return Gates.parse(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def http_url(text: str) -> str | None:
    """`http://…` or `https://…`, or nothing."""
    if text and not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with http:// or https://")
    return text or None


def endpoint(text: str) -> str | None:
    """HOST:PORT, or nothing."""
    _, colon, port = text.rpartition(":")
    if text and (not colon or not port.isdigit() or int(port) > 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text or None
