"""A real kube-apiserver, where KUBEBUILDER_ASSETS names one: its permissions are judged as it judges them."""

import json
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from support import real_api_server
from support.dractl import run

from dra_driver.kube.client import Kube

pytestmark = [
    pytest.mark.skipif(find_spec("helm_sdkpy") is None, reason="there is no Helm on this platform"),
]


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of an administrator of a server with one node, on which the chart is installed."""
    folder = tmp_path_factory.mktemp("doctor")
    server = real_api_server.start(real_api_server.assets_folder(), folder / "server")
    try:
        path = folder / "kubeconfig"
        real_api_server.write_kubeconfig(server, path)
        from support.helm import Cluster, Helm

        labels = {"nvidia.com/gpu.present": "true"}
        Cluster(path).create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "labels": labels}})
        Helm(path).install({"image": {"tag": version("gpu-dra-driver")}})
        yield path
    finally:
        server.stop()


def verdicts(kubeconfig: Path) -> dict[str, set[str]]:
    outcome = run("doctor", "--kubeconfig", str(kubeconfig), "-o", "json")
    by_check: dict[str, set[str]] = {}
    for finding in json.loads(outcome.stdout)["findings"]:
        by_check.setdefault(finding["check"], set()).add(finding["trouble"] or finding["verdict"])
    return by_check


def test_an_administrator_hears_of_all_that_is_missing_and_of_nothing_else(kubeconfig: Path) -> None:
    """Nothing runs: there is no kubelet. The API server keeps our slices, and lets our accounts do their work."""
    wrong = {
        check: outcomes for check, outcomes in verdicts(kubeconfig).items() if not outcomes <= {"ok", "not-looked-at"}
    }
    assert wrong == {
        "container-runtime": {"unknown-runtime"},
        "plugin-pods": {"missing"},
        "inventories": {"missing"},
        "controller": {"down"},
        "leader": {"no-lease"},
    }


def test_a_user_without_rights_hears_which_are_missing(kubeconfig: Path, tmp_path: Path) -> None:
    from support.helm import Cluster

    async def token(kube: Kube) -> str:
        place = "/api/v1/namespaces/default/serviceaccounts"
        await kube.raw("POST", place, {"metadata": {"name": "reader"}})
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = await kube.raw("POST", f"{place}/reader/token", asked)
        return str(answer["status"]["token"])

    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": Cluster(kubeconfig).kube(token)}
    reader = tmp_path / "kubeconfig"
    reader.write_text(yaml.safe_dump(config))
    by_check = verdicts(reader)
    known = {check for check, verdict in by_check.items() if verdict == {"ok"}}
    assert known == {"server-version", "dra-api"}
    assert by_check["your-permissions"] == {"lacking"}
    assert all(
        verdict == {"unknown"} for check, verdict in by_check.items() if check not in (*known, "your-permissions")
    )
