"""Which API server, and with which credentials.

In a pod: the service account's files. Elsewhere: a kubeconfig; a plain one is read by `kubeconfig`, every other by the
official `kubernetes` package, which knows exec plugins, cloud providers and all the rest.
"""

import os
import ssl
from pathlib import Path

from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.kube.credentials import Endpoint, TokenFile, trusting

__all__ = ["Endpoint", "default_kubeconfig", "endpoint_from", "pod_namespace"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def endpoint_from(kubeconfig: Path | None, context: str | None = None) -> Endpoint:
    """The endpoint that a kubeconfig names, or the one of the pod we run in when there is no kubeconfig.

    Raises InvalidInput for a kubeconfig that is missing or does not make sense, NodeNotReady outside a pod.
    """
    if kubeconfig is None:
        return _in_pod()
    # Only here: in a pod nobody needs a YAML parser in memory.
    from dra_driver.kube.kubeconfig import plain_endpoint

    return plain_endpoint(kubeconfig, context) or _from_kubeconfig(kubeconfig, context)


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
    try:
        tls = trusting((_SERVICE_ACCOUNT / "ca.crt").read_text())
    except OSError as error:
        raise NodeNotReady(f"the pod has no service account: {error}", about="API server") from error
    return Endpoint(f"https://{authority}:{port}", tls, TokenFile(_SERVICE_ACCOUNT / "token"))


def _from_kubeconfig(path: Path, context: str | None) -> Endpoint:
    import yaml
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    configuration = client.Configuration()
    try:
        config.load_kube_config(str(path), context=context, client_configuration=configuration)
        tls = _tls(configuration) if configuration.host.startswith("https:") else None
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(str(error) or "cannot be read", about=f"kubeconfig {path}") from error

    def token() -> str | None:
        # Asking also refreshes what expires. The names of the settings differ between releases of the package.
        settings = configuration.auth_settings().values()
        return next((one["value"] for one in settings if one["in"] == "header" and one["value"]), None)

    return Endpoint(configuration.host, tls, token)


def _tls(configuration: "object") -> ssl.SSLContext:
    authorities = getattr(configuration, "ssl_ca_cert", None)
    context = trusting(Path(authorities).read_text() if authorities else None)
    if not getattr(configuration, "verify_ssl", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := getattr(configuration, "cert_file", None):
        context.load_cert_chain(certificate, getattr(configuration, "key_file", None))
    return context
