"""Which API server, and with which credentials.

In a pod: the service account's files. Elsewhere: a kubeconfig, read by the official `kubernetes` package, which knows
contexts, certificates, tokens and exec plugins.
"""

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import InvalidInput, NodeNotReady

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def _no_token() -> str | None:
    return None


@dataclass(frozen=True)
class Endpoint:
    """`token` answers the Authorization header's value, or None; it is asked for every request, for tokens expire.

    `tls` is None for plain HTTP.
    """

    server: str
    tls: ssl.SSLContext | None = None
    token: Callable[[], str | None] = _no_token


def endpoint_from(kubeconfig: Path | None, context: str | None = None) -> Endpoint:
    """The endpoint that a kubeconfig names, or the one of the pod we run in when there is no kubeconfig.

    Raises InvalidInput for a kubeconfig that is missing or does not make sense, NodeNotReady outside a pod.
    """
    return _in_pod() if kubeconfig is None else _from_kubeconfig(kubeconfig, context)


def default_kubeconfig() -> Path:
    """Where kubectl looks: the first file of $KUBECONFIG, else ~/.kube/config."""
    first = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(first) if first else Path.home() / ".kube" / "config"


def pod_namespace() -> str | None:
    """The namespace of the pod we run in; None outside a pod."""
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or None
    except OSError:
        return None


def _in_pod() -> Endpoint:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise NodeNotReady("not running in a pod; name a kubeconfig with --kubeconfig", about="API server")
    authority = f"[{host}]" if ":" in host else host
    tls = _trusting(str(_SERVICE_ACCOUNT / "ca.crt"))
    return Endpoint(f"https://{authority}:{port}", tls, _TokenFile(_SERVICE_ACCOUNT / "token"))


def _trusting(authorities: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities)
    # Python 3.13 refuses certificate authorities without key usage or key identifiers, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class _TokenFile:
    """A bound service account token; kubelet replaces the file before it expires (hourly)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._header = ""

    def __call__(self) -> str:
        stat = self._path.stat()
        if (seen := (stat.st_mtime_ns, stat.st_ino)) != self._seen:
            self._header = f"Bearer {self._path.read_text().strip()}"
            self._seen = seen
        return self._header


def _from_kubeconfig(path: Path, context: str | None) -> Endpoint:
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    configuration = client.Configuration()
    try:
        config.load_kube_config(str(path), context=context, client_configuration=configuration)
    except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(str(error) or "cannot be read", about=f"kubeconfig {path}") from error
    tls = _tls(configuration) if configuration.host.startswith("https:") else None

    def token() -> str | None:
        # Asking also refreshes what expires. The names of the settings differ between releases of the package.
        settings = configuration.auth_settings().values()
        return next((one["value"] for one in settings if one["in"] == "header" and one["value"]), None)

    return Endpoint(configuration.host, tls, token)


def _tls(configuration: "object") -> ssl.SSLContext:
    cafile = getattr(configuration, "ssl_ca_cert", None)
    context = _trusting(cafile)
    if not getattr(configuration, "verify_ssl", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := getattr(configuration, "cert_file", None):
        context.load_cert_chain(certificate, getattr(configuration, "key_file", None))
    return context
