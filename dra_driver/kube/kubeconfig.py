"""Plain kubeconfigs: a server, certificates, a token. What a test cluster and most administrators have.

The official `kubernetes` package reads every kind, and costs 10 MB of memory in a service that runs for months. So
`plain_endpoint` answers for the plain kind, and None for everything else, mistakes included: that package then does the
work, runs the plugin, or says what is wrong.
"""

import base64
import binascii
import ssl
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import yaml

from dra_driver.kube.credentials import Endpoint, TlsFiles, TokenFile, trusting

_CLUSTER = {
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "extensions",
    "proxy-url",
    "tls-server-name",
}
_USER = {"client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "extensions"}
_TOKEN_FILE = {"tokenFile", "extensions"}
_FILES = ("certificate-authority", "client-certificate", "client-key")


def plain_endpoint(path: Path, context: str | None) -> Endpoint | None:
    """What the kubeconfig's context names; None when it needs more than files, or cannot be understood."""
    try:
        config = yaml.safe_load(path.read_text())
        chosen = _named(config, "contexts", "context", context or config["current-context"])
        cluster = _named(config, "clusters", "cluster", chosen["cluster"])
        user = _named(config, "users", "user", chosen["user"])
        if not (cluster.keys() <= _CLUSTER and (user.keys() <= _USER or user.keys() <= _TOKEN_FILE)):
            return None
        server = str(cluster["server"])
        files = [path.parent / entry[field] for entry in (cluster, user) for field in _FILES if entry.get(field)]
        tls = TlsFiles(files, lambda: _tls(path.parent, cluster, user)) if server.startswith("https:") else None
        proxy, name = proxy_of(cluster.get("proxy-url")), cluster.get("tls-server-name") or None
        if "tokenFile" in user:
            return Endpoint(server, tls, TokenFile(path.parent / user["tokenFile"]), proxy, name)
        header = f"Bearer {user['token']}" if user.get("token") else None
        return Endpoint(server, tls, lambda: header, proxy, name)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError):
        return None


def proxy_of(url: str | None) -> str | None:
    """The proxy of a `proxy-url`. Raises ValueError for one that cannot be used."""
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"proxy-url {url!r} is not supported; name a proxy with http:// or https://")
    return url


def _named(config: Any, kind: str, field: str, name: str) -> dict[str, Any]:
    (found,) = (entry[field] or {} for entry in config[kind] if entry["name"] == name)
    return dict(found)


def _tls(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    authority = _content(folder, cluster, "certificate-authority")
    context = trusting(authority.decode() if authority is not None else None)
    certificate = _content(folder, user, "client-certificate")
    key = _content(folder, user, "client-key")
    if certificate is not None and key is not None:
        # OpenSSL takes a client's certificate from a file only.
        with NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _content(folder: Path, entry: dict[str, Any], field: str) -> bytes | None:
    """What the field names or, as the official package has it, what it carries itself."""
    if data := entry.get(f"{field}-data"):
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from error
    return (folder / entry[field]).read_bytes() if entry.get(field) else None
