"""For settings.md: every flag of every program, its variable and default, and the value of the chart that sets it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from controller import settings as controller_settings
from controller import uninstall
from docs.from_code.tables import table
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.objects import DaemonSettings, daemon_set
from dra_driver.runtime.settings import Declared, SettingsParser
from kubelet_plugin import settings as plugin_settings
from kubelet_plugin.imex import settings as imex_settings

TEMPLATES = Path(__file__).parents[2] / "charts" / "gpu-dra-driver" / "templates"

PROGRAMS: Mapping[str, tuple[SettingsParser, str | None, str]] = {
    "gpu-dra-kubelet-plugin": (plugin_settings._parser(), "kubelet-plugin.yaml", "The node plugin, one on each node."),
    "gpu-dra-controller": (
        controller_settings._parser(),
        "controller.yaml",
        "The controller; one replica is the leader.",
    ),
    "gpu-dra-imex-daemon": (
        imex_settings.settings_parser(),
        None,
        "The supervisor of an IMEX daemon, one on each node of a ComputeDomain, in a pod that the controller creates.",
    ),
    "python -m controller.uninstall": (
        uninstall._parser(),
        "cleanup.yaml",
        "`helm uninstall` runs this at the end: it deletes what the driver created.",
    ),
}
"""Parser, template of the chart (None: the controller creates its pods), and description."""

_SCOPES = {"$plugin": "kubeletPlugin", "$controller": "controller", ".Values": "", "$.Values": ""}


def settings() -> str:
    """A section for each program."""
    heads = ("Flag", "Variable", "Default", "Value of the chart", "Meaning")
    sections = []
    for program, (parser, template, meaning) in PROGRAMS.items():
        by_value = _given_by_controller() if template is None else chart_values(TEMPLATES / template)
        sections += [f"## {program}", meaning, table(heads, _rows(parser, by_value))]
    return "\n\n".join(sections)


def _rows(parser: SettingsParser, by_value: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for setting in parser.declared:
        text = setting.text if "-" in setting.text.split()[0] else setting.text[:1].upper() + setting.text[1:]
        if setting.choices:
            text += f": {', '.join(f'`{choice}`' for choice in setting.choices)}"
        yield (
            f"`{_flag(setting)}`",
            f"`{setting.variable}`",
            _default(setting),
            by_value.get(setting.flag, ""),
            f"{text}.",
        )


def _flag(setting: Declared) -> str:
    return f"--[no-]{setting.flag[2:]}" if isinstance(setting.default, bool) else setting.flag


def _default(setting: Declared) -> str:
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return "" if setting.default == "" else f"`{setting.default}`"


def _given_by_controller() -> dict[str, str]:
    """The settings that the controller gives to pods of ComputeDomains' daemons."""
    domain = ComputeDomain.of(
        {"metadata": {"name": "d"}, "spec": {"channel": {"resourceClaimTemplate": {"name": "t"}}}}
    )
    (container,) = daemon_set(domain, DaemonSettings("n", "i"))["spec"]["template"]["spec"]["containers"]
    flags = [argument.partition("=")[0] for argument in container["args"]]
    variables = [variable["name"].removeprefix("GPU_DRA_").lower().replace("_", "-") for variable in container["env"]]
    return dict.fromkeys([*flags, *(f"--{name}" for name in variables)], "*the controller*")


def chart_values(template: Path) -> dict[str, str]:
    """The value that sets each flag, as Markdown; `the chart` if no value does."""
    values_by_flag: dict[str, str] = {}
    text = template.read_text(encoding="utf-8")
    for given in re.finditer(
        r"^ *- (?:\{\{ printf \")?--(\S*?)(?:\{\{.*?no-\{\{ end \}\})?([a-z-]+)(?:=(.*))?$", text, re.M
    ):
        flag = f"--{given[2]}"
        switch = re.search(r"if not (\S+?) \}\}no-", given[0])
        source = switch[1] if switch else _source(given[3] or "", text[: given.start()])
        path = None if source is None else _path(source)
        values_by_flag[flag] = "*the chart*" if path is None else f"`{path}`"
    return values_by_flag | {"--node-name": "*the chart*"} if "GPU_DRA_NODE_NAME" in text else values_by_flag


def _source(argument: str, before: str) -> str | None:
    """The expression of the argument, or of the enclosing `with` or `if`."""
    if "include" in argument:
        return None
    named = re.search(r"(\$?\.?\w+(?:\.\w+)+)", argument)
    if named is not None and "{{" in argument:
        return named[1]
    around = re.search(r"\{\{- (?:with|if) (?:include \"(\S+)\" \.|(\S+)) \}\}\s*$", before)
    if around is None:
        return None
    return around[2] or _first_value(around[1])


def _first_value(name: str) -> str | None:
    """The first value in a named template of the chart."""
    helpers = (TEMPLATES / "_helpers.tpl").read_text(encoding="utf-8")
    _, _, body = helpers.partition(f'define "{name}"')
    match = re.search(r"\.Values\.\w+", body.partition("{{- define")[0])
    return None if match is None else match[0]


def _path(source: str) -> str | None:
    scope, _, rest = source.partition(".") if source.startswith("$") and not source.startswith("$.") else ("", "", "")
    if scope in _SCOPES:
        return f"{_SCOPES[scope]}.{rest}" if _SCOPES[scope] else rest
    match = re.fullmatch(r"\$?\.Values\.(.+)", source)
    return None if match is None else match[1]
