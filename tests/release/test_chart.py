"""The packaged chart is what Helm packages and pushes, and names the image that it was packaged for."""

import json
import os
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.registry import Registry, registry

from release.chart import WrongValue, chart_artifact, chart_package, metadata
from release.oci import MANIFEST

if find_spec("helm_sdkpy") is None:
    pytest.skip("there is no Helm on this platform", allow_module_level=True)

from support.foreign_types import EVERYTHING_SERVED
from support.helm import CHART, Helm, simulated_server

IMAGE = "registry.example.com/team/gpu-dra-driver"
PAGE = "https://example.com/driver/blob/v0.1.0/docs/runbooks.md"
DIGEST = f"sha256:{'1a' * 32}"
RELEASED = {"image.repository": IMAGE, "image.digest": DIGEST, "metrics.runbooks": PAGE}


def test_a_release_of_the_package_runs_the_image_that_it_was_packaged_for(tmp_path: Path) -> None:
    package = tmp_path / "chart.tgz"
    package.write_bytes(chart_package(RELEASED))
    with simulated_server() as server:
        for definition in EVERYTHING_SERVED:
            server.create(definition)
        release = Helm(server.kubeconfig).install({"metrics": {"alerts": "always"}}, chart=package)
    pods = [release.object(kind)["spec"]["template"]["spec"] for kind in ("DaemonSet", "Deployment")]
    pods += [hook["spec"]["template"]["spec"] for hook in release.hooks if hook["kind"] == "Job"]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    assert images == {f"{IMAGE}@{DIGEST}"}
    assert "no registry" not in release.notes
    (group,) = release.object("PrometheusRule")["spec"]["groups"]
    assert {alert["annotations"]["runbook_url"] for alert in group["rules"]} == {
        f"{PAGE}#{alert['alert'].lower()}" for alert in group["rules"]
    }


def test_a_release_from_the_repository_says_that_no_registry_has_its_image() -> None:
    with simulated_server() as server:
        notes = Helm(server.kubeconfig).install().notes
    assert "image gpu-dra-driver:0.1.0 names no registry" in " ".join(notes.split())
    assert "image.repository=REGISTRY/gpu-dra-driver" in notes


@pytest.mark.parametrize("image", ["https://registry.example.com/x", "registry.example.com/x:1", "", "Registry/X Y"])
def test_an_image_that_the_schema_refuses_is_not_packaged(image: str) -> None:
    with pytest.raises(WrongValue, match=r"image\.repository"):
        chart_package({"image.repository": image})


def test_a_digest_that_is_none_is_not_packaged() -> None:
    with pytest.raises(WrongValue, match=r"image\.digest"):
        chart_package({"image.digest": "sha256:1a"})


def test_the_same_chart_is_the_same_package() -> None:
    assert chart_package() == chart_package() != chart_package(RELEASED)


def test_the_archive_holds_what_helm_would_push(tmp_path: Path) -> None:
    """A real push of the package: the same blobs; Helm's manifest also has the time."""
    package = tmp_path / f"gpu-dra-driver-{metadata()['version']}.tgz"
    package.write_bytes(chart_package(RELEASED))
    with registry() as pushed:
        _push(package, pushed)
    kind, manifest = pushed.manifests["charts/gpu-dra-driver", metadata()["version"]]
    theirs = json.loads(manifest)
    artifact = chart_artifact(package.read_bytes())
    assert isinstance(artifact.top.content, bytes)
    ours = json.loads(artifact.top.content)
    assert kind == MANIFEST
    assert theirs["config"]["mediaType"] == ours["config"]["mediaType"]
    assert theirs["layers"] == ours["layers"]
    assert json.loads(pushed.blobs[theirs["config"]["digest"]]) == metadata()
    annotations = theirs["annotations"]
    annotations.pop("org.opencontainers.image.created")
    assert annotations == ours["annotations"]


def _push(package: Path, pushed: Registry) -> None:
    """In a process of its own: Go reads the authorities that it trusts once."""
    authority = package.with_name("ca.crt")
    authority.write_text(pushed.authority)
    script = "import asyncio, sys, helm_sdkpy as helm; asyncio.run(helm.Push(helm.Configuration()).run(*sys.argv[1:]))"
    words = [sys.executable, "-c", script, str(package), f"oci://{pushed.address}/charts"]
    subprocess.run(words, check=True, env={**os.environ, "SSL_CERT_FILE": str(authority)})


def test_the_package_has_what_helm_packages(tmp_path: Path) -> None:
    ours = tmp_path / "ours.tgz"
    ours.write_bytes(chart_package())
    (tmp_path / "theirs").mkdir()
    theirs = Helm(tmp_path / "no-kubeconfig").package(tmp_path / "theirs", CHART)
    with tarfile.open(ours) as our_tar, tarfile.open(theirs) as other:
        assert {member.name for member in our_tar.getmembers()} == {
            member.name for member in other.getmembers() if member.name != "gpu-dra-driver/.helmignore"
        }
