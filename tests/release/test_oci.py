"""Archives of OCI layouts hold what they refer to, and depend on nothing but the content."""

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from release.oci import Artifact, image, index, write_archive, write_layer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a layer is made of: folders, links, two names of one file, a program."""
    root = tmp_path / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "usr" / "bin" / "tool").write_text("#!/bin/sh\n")
    (root / "usr" / "bin" / "tool").chmod(0o755)
    os.link(root / "usr" / "bin" / "tool", root / "usr" / "bin" / "alias")
    (root / "usr" / "empty").write_text("")
    return root


def built(folder: Path, work: Path) -> Artifact:
    work.mkdir()
    layer = write_layer(folder, work / "layer.tar")
    return index(
        {architecture: image([layer], {"User": "65532:65532"}, architecture) for architecture in ("arm64", "amd64")}
    )


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened.getmembers()}  # type: ignore[union-attr]


def references(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Descriptors in an index or a manifest."""
    yield from document.get("manifests", ())
    yield from document.get("layers", ())
    if "config" in document and "digest" in document["config"]:
        yield document["config"]


def test_every_reference_leads_to_a_blob_of_its_size_and_digest(folder: Path, tmp_path: Path) -> None:
    files = contents(write_archive(built(folder, tmp_path / "work"), "name:1", tmp_path / "a.tar"))
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    names, documents = set(), [json.loads(files.pop("index.json"))]
    while documents:
        for reference in references(documents.pop()):
            name = f"blobs/{reference['digest'].replace(':', '/')}"
            names.add(name)
            assert len(files[name]) == reference["size"]
            assert hashlib.sha256(files[name]).hexdigest() == reference["digest"].partition(":")[2]
            if reference["mediaType"].endswith(("index.v1+json", "manifest.v1+json")):
                documents.append(json.loads(files[name]))
    assert names == set(files), "and nothing else is in the archive"


def test_an_index_names_each_architecture_and_a_configuration_the_digest_of_the_plain_layer(
    folder: Path, tmp_path: Path
) -> None:
    artifact = built(folder, tmp_path / "work")
    by_digest = {blob.digest: blob.content for blob in artifact.blobs}
    manifests = json.loads(_bytes(artifact.top.content))["manifests"]
    assert [descriptor["platform"] for descriptor in manifests] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux"},
    ]
    for manifest_entry in manifests:
        manifest = json.loads(_bytes(by_digest[manifest_entry["digest"]]))
        config = json.loads(_bytes(by_digest[manifest["config"]["digest"]]))
        assert config["architecture"] == manifest_entry["platform"]["architecture"]
        (layer,) = manifest["layers"]
        plain = gzip.decompress(_bytes(by_digest[layer["digest"]]))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]


def test_a_layer_unpacks_to_the_folder_and_belongs_to_root(folder: Path, tmp_path: Path) -> None:
    layer = write_layer(folder, tmp_path / "layer.tar")
    assert isinstance(layer.blob.content, Path)
    with tarfile.open(layer.blob.content) as opened:
        assert {(member.uid, member.gid, member.mtime) for member in opened.getmembers()} == {(0, 0, 0)}
        opened.extractall(tmp_path / "out", filter="tar")
    out = tmp_path / "out"
    assert (out / "bin").readlink() == Path("usr/bin")
    assert (out / "bin" / "alias").read_text() == (out / "bin" / "tool").read_text() == "#!/bin/sh\n"
    assert (out / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert (out / "usr" / "empty").read_bytes() == b""


def test_the_same_content_is_the_same_archive(folder: Path, tmp_path: Path) -> None:
    first = write_archive(built(folder, tmp_path / "a"), "name:1", tmp_path / "a.tar").read_bytes()
    os.utime(folder / "usr" / "bin" / "tool", (1, 1))
    assert write_archive(built(folder, tmp_path / "b"), "name:1", tmp_path / "b.tar").read_bytes() == first
    (folder / "usr" / "bin" / "tool").chmod(0o700)
    assert write_archive(built(folder, tmp_path / "c"), "name:1", tmp_path / "c.tar").read_bytes() != first


def _bytes(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()
