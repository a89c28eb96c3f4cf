"""Which API server, and with which credentials.

In a pod: the service account's files. Elsewhere: a kubeconfig; a plain one is read by `kubeconfig`, every other by the
official `kubernetes` package, which knows exec plugins, cloud providers and all the rest.
"""

import os
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path

from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.kube.credentials import Endpoint, TlsFiles, TokenFile, trusting

__all__ = ["Endpoint", "default_kubeconfigs", "endpoint_from", "pod_namespace"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def endpoint_from(kubeconfig: Path | Sequence[Path] | None, context: str | None = None) -> Endpoint:
    """The endpoint that a kubeconfig names, or several together, or the one of the pod we run in when there is none.

    Raises InvalidInput for a kubeconfig that is missing or does not make sense, NodeNotReady outside a pod.
    """
    if kubeconfig is None:
        return _in_pod()
    files = [kubeconfig] if isinstance(kubeconfig, Path) else list(kubeconfig)
    there = [file for file in files if file.exists()]
    if not there:
        raise InvalidInput(
            "is not there; name another with --kubeconfig, or in KUBECONFIG", about=f"kubeconfig {_joined(files)}"
        )
    # Only here: in a pod nobody needs a YAML parser in memory.
    from dra_driver.kube.kubeconfig import plain_endpoint

    plain = plain_endpoint(there[0], context) if len(there) == 1 else None
    return plain or _from_kubeconfig(there, context)


def default_kubeconfigs() -> tuple[Path, ...]:
    """Where kubectl looks: the files of $KUBECONFIG, which count together, else ~/.kube/config."""
    named = [one for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    return tuple(map(Path, named)) or (Path.home() / ".kube" / "config",)


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
    authority, authority_file = f"[{host}]" if ":" in host else host, _SERVICE_ACCOUNT / "ca.crt"
    try:
        tls = TlsFiles([authority_file], lambda: trusting(authority_file.read_text()))
    except OSError as error:
        raise NodeNotReady(f"the pod has no service account: {error}", about="API server") from error
    return Endpoint(f"https://{authority}:{port}", tls, TokenFile(_SERVICE_ACCOUNT / "token"))


def _joined(files: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, files))


def _current(files: Sequence[Path]) -> str | None:
    """The context of the first file that names one, as for kubectl; the package takes that of the last. Raises what a
    file that is no kubeconfig leads to."""
    import yaml

    for file in files:
        named = (yaml.safe_load(file.read_text()) or {}).get("current-context")
        if named:
            return str(named)
    return None


def _from_kubeconfig(files: Sequence[Path], context: str | None) -> Endpoint:
    import yaml
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    from dra_driver.kube.kubeconfig import proxy_of

    configuration = client.Configuration()
    try:
        context = context or _current(files)
        config.load_kube_config(_joined(files), context=context, client_configuration=configuration)
        tls = _tls(configuration) if configuration.host.startswith("https:") else None
        proxy = proxy_of(configuration.proxy)
    except (ConfigException, yaml.YAMLError, OSError, ValueError) as error:
        raise InvalidInput(str(error) or "cannot be read", about=f"kubeconfig {_joined(files)}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput("is no kubeconfig", about=f"kubeconfig {_joined(files)}") from error

    def token() -> str | None:
        # Asking also refreshes what expires. The names of the settings differ between releases of the package.
        settings = configuration.auth_settings().values()
        return next((one["value"] for one in settings if one["in"] == "header" and one["value"]), None)

    return Endpoint(configuration.host, tls, token, proxy, configuration.tls_server_name or None)


def _tls(configuration: "object") -> ssl.SSLContext:
    authorities = getattr(configuration, "ssl_ca_cert", None)
    context = trusting(Path(authorities).read_text() if authorities else None)
    if not getattr(configuration, "verify_ssl", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := getattr(configuration, "cert_file", None):
        context.load_cert_chain(certificate, getattr(configuration, "key_file", None))
    return context
