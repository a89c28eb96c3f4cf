"""Which API server, whom to trust, and with which credentials.

In a pod: the service account's files. Elsewhere: a kubeconfig. A plain one, with a server, certificates and a token, is
read here; the official `kubernetes` package, which costs 10 MB of memory and half a second, reads all others: exec
plugins, cloud providers, and those with mistakes, which it explains.
"""

import base64
import binascii
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import structlog

from dra_driver.errors import InvalidInput, NodeNotReady, Unreachable, UnreadableFile
from dra_driver.kube.http_client import ResumingContext

_log = structlog.get_logger(__name__)

type _Signature = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Endpoint:
    """`token` returns the value of the Authorization header, or None; it is called for every request, because tokens
    expire.

    `tls` is None if neither the server nor the proxy uses TLS; `TlsFiles` for certificates that may be replaced.
    `proxy` is the URL of an HTTP proxy.
    `server_name` is the required name in the server's certificate; None for the host of the address.
    `impersonation` has the headers that make the server answer as another user; a name can be repeated.
    """

    server: str
    tls: "ssl.SSLContext | TlsFiles | None" = None
    token: Callable[[], str | None] = lambda: None
    proxy: str | None = None
    server_name: str | None = None
    impersonation: tuple[tuple[str, str], ...] = ()

    def context(self) -> ssl.SSLContext | None:
        """The TLS context for a new connection."""
        return self.tls.context() if isinstance(self.tls, TlsFiles) else self.tls


def trusting(authorities: str | None) -> ssl.SSLContext:
    """A context that trusts the certificates in `authorities` (PEM), or those of the system."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    # Not VERIFY_X509_STRICT, as in `ssl.create_default_context`: it rejects authorities without key usage or key
    # identifiers, but many clusters have such authorities.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if authorities:
        context.load_verify_locations(cadata=authorities)
    else:
        context.load_default_certs()
    return context


class TlsFiles:
    """Certificates in files, read again when a file is replaced, because clusters rotate their authority. `make` reads
    them; at first its errors are raised. If later files are invalid, the previous context stays.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], ssl.SSLContext]) -> None:
        self._files = tuple(files)
        self._make = make
        self._seen = self._signature()
        self._context = make()

    def context(self) -> ssl.SSLContext:
        if (seen := self._signature()) != self._seen:
            self._seen = seen
            try:
                self._context = self._make()
            except (OSError, ValueError) as error:
                _log.warning(
                    "cannot read the new certificates of the API server; the previous ones stay in use",
                    files=[str(file) for file in self._files],
                    error=str(error),
                )
        return self._context

    def _signature(self) -> _Signature:
        return tuple(map(_signature_of, self._files))


def _signature_of(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


class TokenFile:
    """A bound service account token; the kubelet replaces the file before it expires (hourly)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._header = ""

    def __call__(self) -> str:
        """Raises Unreachable if the token cannot be read."""
        try:
            if (seen := _signature_of(self._path)) is None or seen != self._seen:
                self._header = f"Bearer {self._path.read_text().strip()}"
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            raise Unreachable(f"cannot read the token: {error}", about="API server") from error
        return self._header


_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def endpoint_from(kubeconfig: Path | Sequence[Path] | None, context: str | None = None) -> Endpoint:
    """The endpoint from one or more kubeconfigs or, without any, from this pod. Raises InvalidInput if a kubeconfig is
    missing or invalid, NodeNotReady outside a pod.
    """
    if kubeconfig is None:
        return _in_pod()
    files = [kubeconfig] if isinstance(kubeconfig, Path) else list(kubeconfig)
    there = [file for file in files if file.exists()]
    # As kubectl, which passes over empty files if there are others.
    there = [file for file in there if not file.is_file() or file.stat().st_size] or there
    if not there:
        raise InvalidInput("does not exist; name another file", about=f"kubeconfig {_joined(files)}")
    plain = _plain_endpoint(there[0], context) if len(there) == 1 else None
    return plain or _from_kubeconfig(there, context)


def default_kubeconfigs() -> tuple[Path, ...]:
    """The files that kubectl uses: all files of $KUBECONFIG, otherwise ~/.kube/config."""
    named = [text for text in os.environ.get("KUBECONFIG", "").split(os.pathsep) if text]
    return tuple(map(Path, named)) or (Path.home() / ".kube" / "config",)


def pod_namespace() -> str | None:
    """The namespace of this pod; None outside a pod."""
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or None
    except OSError:
        return None


def _in_pod() -> Endpoint:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise NodeNotReady("not running in a pod; name a kubeconfig with --kubeconfig", about="API server")
    authority, authority_file = f"[{host}]" if ":" in host else host, _SERVICE_ACCOUNT / "ca.crt"
    try:
        tls = TlsFiles([authority_file], lambda: trusting(authority_file.read_text()))
    except OSError as error:
        raise NodeNotReady(f"the pod has no service account: {error}", about="API server") from error
    return Endpoint(f"https://{authority}:{port}", tls, TokenFile(_SERVICE_ACCOUNT / "token"))


def _joined(files: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, files))


def _current(files: Sequence[Path]) -> str | None:
    """The context of the first file that names one, as in kubectl; the package uses that of the last. Raises the errors
    of an invalid kubeconfig."""
    for config in map(_config, files):
        if named := config.get("current-context"):
            return str(named)
    return None


def _config(file: Path) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(file.read_text()) or {}


def _first(files: Sequence[Path], kind: str, name: str | None) -> dict[str, Any]:
    """The entry of this name; of several, the first one counts, as in kubectl. Raises the errors of an invalid
    kubeconfig."""
    entries = [entry for config in map(_config, files) for entry in config.get(f"{kind}s") or ()]
    return next((entry[kind] for entry in entries if entry["name"] == name), None) or {}


def namespace_of(files: Sequence[Path], context: str | None) -> str:
    """The namespace of the context, which kubectl uses if none is given; `default` without one, and if the files cannot
    be read, which `endpoint_from` reports."""
    import yaml

    # What can be read only once, as a pipe of the shell, is for `endpoint_from`.
    there = [file for file in files if file.is_file()]
    try:
        return str(_first(there, "context", context or _current(there)).get("namespace") or "default")
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError):
        return "default"


def _from_kubeconfig(files: Sequence[Path], context: str | None) -> Endpoint:
    import yaml
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    configuration, about = client.Configuration(), f"kubeconfig {_joined(files)}"
    try:
        context = context or _current(files)
        with _failures_raised():
            config.load_kube_config(_joined(files), context=context, client_configuration=configuration)
        chosen = _first(files, "context", context)
        proxy = _proxy(_first(files, "cluster", chosen.get("cluster")), configuration.host)
        tls = _tls_of_package(configuration) if _uses_tls(configuration.host, proxy) else None
        impersonation = _impersonation(_first(files, "user", chosen.get("user")))
    except UnicodeDecodeError as error:
        raise InvalidInput("is not UTF-8 text, so it is not a kubeconfig", about=about) from error
    except binascii.Error as error:
        raise InvalidInput(f"has certificate data that is not Base64: {error}", about=about) from error
    except OSError as error:
        raise UnreadableFile(error.strerror or "cannot be read", about=about) from error
    except (ConfigException, yaml.YAMLError, ValueError) as error:
        raise InvalidInput(" ".join(_in_words(str(error)).split()), about=about) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput("is not a kubeconfig", about=about) from error

    def token() -> str | None:
        # This call also refreshes expiring credentials. The names of the settings differ between releases of the
        # package.
        try:
            with _failures_raised():
                settings = configuration.auth_settings().values()
        except ValueError as error:
            raise Unreachable(str(error), about="API server") from error
        return next((setting["value"] for setting in settings if setting["in"] == "header" and setting["value"]), None)

    return Endpoint(configuration.host, tls, token, proxy, configuration.tls_server_name or None, impersonation)


@contextmanager
def _failures_raised() -> Iterator[None]:
    """Raises ValueError when the command of an exec plugin fails: the official package only logs it, and continues
    without credentials."""
    logged: list[str] = []

    class Failures(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "root" and record.levelno >= logging.ERROR:
                logged.append(record.getMessage())

    root = logging.getLogger()
    others, root.handlers = root.handlers, [Failures()]
    try:
        yield
    finally:
        root.handlers = others
    if logged:
        reason = " ".join(re.sub(r"^(exec: |\[Errno \d+\] )", "", logged[-1]).split())
        raise ValueError(f"the command for credentials failed: {reason}")


def _in_words(reason: str) -> str:
    """The official package's reason, in the words of kubectl where they are about contexts."""
    if (missing := re.search(r"Expected object with name (\S+) in \S+/contexts list", reason)) is not None:
        return f"has no context {missing[1]}; kubectl config get-contexts lists them"
    if "Expected key current-context" in reason:
        return "has no current context; kubectl config use-context NAME sets it"
    return reason


def _tls_of_package(configuration: object) -> ssl.SSLContext:
    authorities = getattr(configuration, "ssl_ca_cert", None)
    context = trusting(Path(authorities).read_text() if authorities else None)
    if not getattr(configuration, "verify_ssl", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := getattr(configuration, "cert_file", None):
        try:
            context.load_cert_chain(certificate, getattr(configuration, "key_file", None))
        except ssl.SSLError as error:
            raise ValueError(f"client-certificate and client-key are not a certificate and its key: {error}") from error
    return context


_CLUSTER = {
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "extensions",
    "proxy-url",
    "tls-server-name",
}
_AS = {"as", "as-groups", "as-uid", "as-user-extra"}
_TOKEN_FILE = {"tokenFile", "extensions", *_AS}
_USER = {"client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "extensions", *_AS}
_FILES = ("certificate-authority", "client-certificate", "client-key")


def _plain_endpoint(path: Path, context: str | None) -> Endpoint | None:
    """The endpoint of the kubeconfig's context; None if it needs more than files, or cannot be parsed."""
    # Only here: a pod needs no YAML parser in memory.
    import yaml

    try:
        config = yaml.safe_load(path.read_text())
        chosen = _named(config, "contexts", "context", context or config["current-context"])
        cluster = _named(config, "clusters", "cluster", chosen["cluster"])
        user = _named(config, "users", "user", chosen["user"])
        if not (cluster.keys() <= _CLUSTER and (user.keys() <= _USER or user.keys() <= _TOKEN_FILE)):
            return None
        server = str(cluster["server"])
        files = [path.parent / entry[field] for entry in (cluster, user) for field in _FILES if entry.get(field)]
        proxy, name = _proxy(cluster, server), cluster.get("tls-server-name") or None
        impersonation = _impersonation(user)
        tls = TlsFiles(files, lambda: _tls(path.parent, cluster, user)) if _uses_tls(server, proxy) else None
        if "tokenFile" in user:
            return Endpoint(server, tls, TokenFile(path.parent / user["tokenFile"]), proxy, name, impersonation)
        header = f"Bearer {user['token']}" if user.get("token") else None
        return Endpoint(server, tls, lambda: header, proxy, name, impersonation)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError):
        return None


def _impersonation(user: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The headers that client-go sends for the `as` fields of a user. Raises ValueError if they are not valid."""
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    if not isinstance(groups, list):
        raise ValueError("as-groups must be a list of groups")
    if not isinstance(extra, dict) or not all(isinstance(values, list) for values in extra.values()):
        raise ValueError("as-user-extra must have a list of values for each key")
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in groups]
    headers += [
        (f"Impersonate-Extra-{quote(key, safe=_IN_HEADER)}", value) for key, values in extra.items() for value in values
    ]
    sent = [(name, value) for name, value in headers if value is not None and value != ""]
    if not all(isinstance(value, str) and value.isprintable() for _, value in sent):
        raise ValueError("as, as-uid and the values of as-groups and as-user-extra must be text of one line")
    if sent and not user.get("as"):
        raise ValueError("as-groups, as-uid and as-user-extra also need the user's name in `as`")
    return tuple(sent)


_IN_HEADER = "!#$&'*+^`|"
"""What a header's name may have besides letters, digits and what `quote` keeps."""


def _proxy(cluster: dict[str, Any], server: str) -> str | None:
    """The proxy that kubectl uses: of the cluster, else of the environment. Raises ValueError if it is not supported,
    or if the server's address is not valid."""
    parts = _url(server)
    url = cluster.get("proxy-url") or _proxy_of_environment(parts)
    if url and not url.startswith(("http://", "https://")):
        raise ValueError(f"the proxy {url!r} is not supported; name one with http:// or https://")
    return url or None


def _url(server: str) -> SplitResult:
    """Raises ValueError if it is not one."""
    with suppress(ValueError):
        parts = urlsplit(server)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ValueError(f"the server {server!r} is not a URL; write it as https://HOST:PORT")


def _proxy_of_environment(server: SplitResult) -> str | None:
    """Source: Go's http.ProxyFromEnvironment, which never uses a proxy for this machine."""
    url, excepted = _variable(f"{server.scheme}_proxy"), _variable("no_proxy").lower()
    here = "localhost,127.0.0.0/8,::1"
    if not url or any(_excepts(entry.strip(), server) for entry in f"{here},{excepted}".split(",")):
        return None
    return url if "://" in url else f"http://{url}"


def _variable(name: str) -> str:
    return os.environ.get(name.upper()) or os.environ.get(name) or ""


def _excepts(entry: str, server: SplitResult) -> bool:
    """Whether an entry of NO_PROXY is for the server: `*`, a network, an address or a domain, of one port or all."""
    host, port = server.hostname or "", server.port
    with suppress(ValueError):
        return ip_address(host) in ip_network(entry, strict=False)
    name, _, of_port = entry.removeprefix("*").partition(":")
    if not entry or (of_port and of_port != str(port or "")):
        return False
    return entry == "*" or host == name or host.endswith(name if name.startswith(".") else f".{name}")


def _uses_tls(server: str, proxy: str | None) -> bool:
    """Whether the server or the proxy in front of it does: one context is for both."""
    return server.startswith("https:") or (proxy or "").startswith("https:")


def _named(config: Any, kind: str, field: str, name: str) -> dict[str, Any]:
    (named,) = (entry[field] or {} for entry in config[kind] if entry["name"] == name)
    return dict(named)


def _tls(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    authority = _content(folder, cluster, "certificate-authority")
    context = trusting(authority.decode() if authority is not None else None)
    certificate = _content(folder, user, "client-certificate")
    key = _content(folder, user, "client-key")
    if certificate is not None and key is not None:
        from tempfile import NamedTemporaryFile  # here, because no pod needs it

        # OpenSSL reads a client's certificate only from a file.
        with NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _content(folder: Path, entry: dict[str, Any], field: str) -> bytes | None:
    """The content of the file that the field names, or the field's inline data, in the official package's order."""
    if data := entry.get(f"{field}-data"):
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from error
    return (folder / entry[field]).read_bytes() if entry.get(field) else None
