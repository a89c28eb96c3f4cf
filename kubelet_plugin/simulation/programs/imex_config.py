"""The configuration of an IMEX daemon, read as strictly as the daemon may: a bad key or value is a refusal.

Source: the comments of the configuration file that comes with nvidia-imex.
"""

import ipaddress
import os
import re
from collections.abc import Iterator

HOSTS_VARIABLE = "GPU_DRA_HOSTS_FILE"
"""A simulated container has no /etc of its own; this says where its file of hosts is."""


class ConfigRefused(Exception):
    """The daemon does not start; the message says why."""


_KEYS: dict[str, tuple[str, str]] = {
    "LOG_LEVEL": ("4", "[0-4]"),
    "LOG_FILE_NAME": ("/var/log/nvidia-imex.log", ".{0,256}"),
    "STATS_FILE_NAME": ("/var/log/nvidia-imex-stats.log", ".{0,256}"),
    "LOG_USE_SYSLOG": ("0", "[01]"),
    "DAEMONIZE": ("1", "[01]"),
    "BIND_INTERFACE_IP": ("", "[0-9a-fA-F:.]*"),
    "SERVER_PORT": ("50000", r"[0-5]?\d{1,4}|6[0-5]\d{3}"),
    "IMEX_NODE_CONFIG_FILE": ("/etc/nvidia-imex/nodes_config.cfg", ".{0,256}"),
    "IMEX_WAIT_FOR_QUORUM": ("RECOVERY", "NONE|RECOVERY|FULL"),
    "IMEX_CMD_ENABLED": ("0", "[01]"),
    "IMEX_CMD_UNIX_DOMAIN_PATH": ("", ".{0,256}"),
}
"""The keys that supervisors write, each with its default, and what its values look like."""


def read_config(path: str) -> dict[str, str]:
    """Raises ConfigRefused for a missing file, a line that is no setting, an unknown key, and an invalid value."""
    settings = {key: default for key, (default, _) in _KEYS.items()}
    for number, line in enumerate(_lines(path, "configuration file"), 1):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise ConfigRefused(f"{path}:{number}: {line!r} is not KEY=VALUE")
        if key not in _KEYS:
            raise ConfigRefused(f"{path}:{number}: unknown configuration key {key}")
        if re.fullmatch(_KEYS[key][1], value) is None:
            raise ConfigRefused(f"{path}:{number}: invalid value {value!r} of {key}")
        settings[key] = value
    if settings["IMEX_CMD_ENABLED"] == "1" and not settings["IMEX_CMD_UNIX_DOMAIN_PATH"]:
        raise ConfigRefused("IMEX_CMD_ENABLED needs IMEX_CMD_UNIX_DOMAIN_PATH: commands by TCP are not simulated")
    return settings


def read_nodes(path: str) -> list[str]:
    """The addresses or names of the list of nodes. Raises ConfigRefused."""
    nodes = list(_lines(path, "node configuration file"))
    if not nodes:
        raise ConfigRefused(f"node configuration file {path} has no nodes")
    if len(set(nodes)) < len(nodes):
        raise ConfigRefused(f"node configuration file {path} has a node twice")
    return nodes


def resolved(names: list[str]) -> list[str | None]:
    """Each name's address, in the container's own file of hosts; None for one that is not known."""
    known: dict[str, str] = {}
    with open(os.environ.get(HOSTS_VARIABLE, "/etc/hosts"), encoding="utf-8") as file:
        for line in file:
            address, *aliases = line.partition("#")[0].split() or [""]
            known.update({alias: address for alias in aliases if alias not in known})
    return [name if _is_address(name) else known.get(name) for name in names]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _lines(path: str, what: str) -> Iterator[str]:
    """Without comments and empty lines."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise ConfigRefused(f"cannot open {what} {path}: {error.strerror}") from error
    yield from (line for line in lines if line)
