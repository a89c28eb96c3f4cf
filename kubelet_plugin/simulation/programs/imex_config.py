"""The configuration of an IMEX daemon, read as strictly as the daemon may: a bad key or value is a refusal.

Source: the comments of the configuration file that comes with nvidia-imex.
"""

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HOSTS_VARIABLE = "GPU_DRA_HOSTS_FILE"
"""A simulated container has no /etc of its own; this says where its file of hosts is."""


class Refused(Exception):
    """The daemon does not start; the message says why."""


def _number(lowest: int, highest: int) -> Callable[[str], bool]:
    return lambda text: text.lstrip("-").isdecimal() and lowest <= int(text) <= highest


def _word(*words: str) -> Callable[[str], bool]:
    return lambda text: text in words


def _address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text == ""
    return True


def _path(text: str) -> bool:
    return len(text) <= 256


def _any(text: str) -> bool:
    return True


_PORT, _SWITCH, _COUNT = _number(0, 65535), _word("0", "1"), _number(0, 2**31)

_KEYS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "LOG_LEVEL": ("4", _number(0, 4)),
    "LOG_FILE_NAME": ("/var/log/nvidia-imex.log", _path),
    "STATS_FILE_NAME": ("/var/log/nvidia-imex-stats.log", _path),
    "LOG_APPEND_TO_LOG": ("1", _SWITCH),
    "LOG_FILE_MAX_SIZE": ("1024", _COUNT),
    "LOG_MAX_ROTATE_COUNT": ("3", _COUNT),
    "LOG_USE_SYSLOG": ("0", _SWITCH),
    "DAEMONIZE": ("1", _SWITCH),
    "BIND_INTERFACE_IP": ("", _address),
    "SERVER_PORT": ("50000", _PORT),
    "IMEX_NODE_CONFIG_FILE": ("/etc/nvidia-imex/nodes_config.cfg", _path),
    "NETWORK_INTERFACE": ("", _any),
    "IMEX_WAIT_FOR_QUORUM": ("RECOVERY", _word("NONE", "RECOVERY", "FULL")),
    "IMEX_ENABLE_AUTH_ENCRYPTION": ("0", _SWITCH),
    "IMEX_AUTH_ENCRYPTION_MODE": ("SSL_TLS", _word("SSL_TLS", "GSS_AUTH_ENCRYPT", "GSS_AUTH_ONLY")),
    "IMEX_AUTH_SOURCE": ("", _word("", "FILE", "ENV_PATH", "ENV_VAL")),
    "IMEX_SERVER_KEY": ("", _any),
    "IMEX_SERVER_CERT": ("", _any),
    "IMEX_SERVER_CERT_AUTH": ("", _any),
    "IMEX_CLIENT_KEY": ("", _any),
    "IMEX_CLIENT_CERT": ("", _any),
    "IMEX_CLIENT_CERT_AUTH": ("", _any),
    "IMEX_SECURITY_TARGET_OVERRIDE": ("", _any),
    "IMEX_GSS_SERVICE_NAME": ("host", _any),
    "IMEX_GSS_TIMEOUT_SEC": ("-1", _number(-1, 2**31)),
    "IMEX_GSS_RETRY_INTERVAL_SEC": ("5", _COUNT),
    "IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC": ("-1", _number(-1, 2**31)),
    "IMEX_GSS_SHUTDOWN_ON_FAILURE": ("1", _SWITCH),
    "IMEX_CMD_ENABLED": ("0", _SWITCH),
    "IMEX_CMD_BIND_INTERFACE_IP": ("", _address),
    "IMEX_CMD_PORT": ("", lambda text: text == "" or _PORT(text)),
    "IMEX_CMD_UNIX_DOMAIN_PATH": ("", _path),
    "IMEX_NODE_DISCONNECTED_GRACE_TIME": ("-1", _number(-1, 2**31)),
}  # fmt: skip
"""Each with its default, and whether a value is one."""


def read_config(path: str) -> dict[str, str]:
    """Raises Refused for a missing file, a line that is no setting, a key that there is not, a value that is none."""
    found = {key: default for key, (default, _) in _KEYS.items()}
    for number, line in enumerate(_lines(path, "configuration file"), 1):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise Refused(f"{path}:{number}: {line!r} is not KEY=VALUE")
        if key not in _KEYS:
            raise Refused(f"{path}:{number}: unknown configuration key {key}")
        if not _KEYS[key][1](value):
            raise Refused(f"{path}:{number}: invalid value {value!r} of {key}")
        found[key] = value
    if found["IMEX_CMD_ENABLED"] == "1" and not (found["IMEX_CMD_PORT"] or found["IMEX_CMD_UNIX_DOMAIN_PATH"]):
        raise Refused("IMEX_CMD_ENABLED needs IMEX_CMD_PORT or IMEX_CMD_UNIX_DOMAIN_PATH")
    if found["IMEX_ENABLE_AUTH_ENCRYPTION"] == "1" and not found["IMEX_AUTH_SOURCE"]:
        raise Refused("IMEX_ENABLE_AUTH_ENCRYPTION needs IMEX_AUTH_SOURCE")
    return found


def read_nodes(path: str) -> list[str]:
    """The addresses or names of the list of nodes. Raises Refused."""
    nodes = list(_lines(path, "node configuration file"))
    if not nodes:
        raise Refused(f"node configuration file {path} has no nodes")
    if len(set(nodes)) < len(nodes):
        raise Refused(f"node configuration file {path} has a node twice")
    return nodes


def resolved(names: list[str]) -> list[str | None]:
    """Each name's address, in the container's own file of hosts; None for one that is not known."""
    known: dict[str, str] = {}
    with open(os.environ.get(HOSTS_VARIABLE, "/etc/hosts"), encoding="utf-8") as file:
        for line in file:
            address, *aliases = line.partition("#")[0].split() or [""]
            known.update({alias: address for alias in aliases if alias not in known})
    return [name if name and _address(name) else known.get(name) for name in names]


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name of a socket that fits into its address, however long the path is."""
    folder, _, name = path.rpartition("/")
    fd = os.open(folder or "/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def ask_at(peer: socket.socket, question: str) -> str:
    """One line to a daemon, and its answer, a line. Raises OSError."""
    peer.sendall(question.encode() + b"\n")
    with peer.makefile(encoding="utf-8") as stream:
        answer = stream.readline()
    if not answer:
        raise ConnectionResetError("the daemon went away")
    return answer


def _lines(path: str, what: str) -> Iterator[str]:
    """Without comments and empty lines."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise Refused(f"cannot open {what} {path}: {error.strerror}") from error
    yield from (line for line in lines if line)
