"""Where the API server is, and who we are there, from a kubeconfig."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.kube.endpoint import default_kubeconfig, endpoint_from


def kubeconfig(folder: Path, user: dict[str, Any]) -> Path:
    path = folder / "config"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_token_of_the_kubeconfig_is_sent(tmp_path: Path) -> None:
    endpoint = endpoint_from(kubeconfig(tmp_path, {"token": "secret"}))
    assert (endpoint.server, endpoint.token(), endpoint.tls) == ("http://127.0.0.1:1", "Bearer secret", None)


def test_an_exec_plugin_gives_the_token(tmp_path: Path) -> None:
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"fresh"}}'
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [credential],
        "interactiveMode": "Never",
    }
    assert endpoint_from(kubeconfig(tmp_path, {"exec": plugin})).token() == "Bearer fresh"


def test_without_credentials_nothing_is_sent(tmp_path: Path) -> None:
    assert endpoint_from(kubeconfig(tmp_path, {})).token() is None


def test_a_context_that_is_not_there_is_a_mistake_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="kubeconfig .*nowhere"):
        endpoint_from(kubeconfig(tmp_path, {}), "nowhere")


def test_outside_a_pod_a_kubeconfig_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NodeNotReady, match="--kubeconfig"):
        endpoint_from(None)


def test_the_default_kubeconfig_is_kubectls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/one:/two")
    assert default_kubeconfig() == Path("/one")
    monkeypatch.delenv("KUBECONFIG")
    assert default_kubeconfig() == Path.home() / ".kube" / "config"
