"""Archives of OCI image layouts: what container runtimes import and registry clients push.

Same input, same bytes: no time and no owner of this machine gets into an archive.
Source: OCI Image Format Specification 1.1 (image-layout.md, manifest.md, image-index.md, config.md).
"""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

type Json = Mapping[str, Any]


@dataclass(frozen=True)
class Blob:
    """A content with its media type. Large contents stay in the file `content`."""

    media_type: str
    content: bytes | Path

    @property
    def digest(self) -> str:
        if isinstance(self.content, bytes):
            return f"sha256:{hashlib.sha256(self.content).hexdigest()}"
        with self.content.open("rb") as stream:
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def descriptor(self, **more: Any) -> Json:
        """How other blobs refer to this one; `more` are fields such as `platform`."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size, **more}


@dataclass(frozen=True)
class Layer:
    """A compressed layer, and the digest of its tar archive."""

    blob: Blob
    diff_id: str


@dataclass(frozen=True)
class Artifact:
    """A manifest or an index, and all blobs that it needs, itself included."""

    top: Blob
    blobs: tuple[Blob, ...]


def json_blob(media_type: str, value: Json) -> Blob:
    return Blob(media_type, json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def artifact(config: Blob, layers: Sequence[Blob], annotations: Mapping[str, str] | None = None) -> Artifact:
    """A manifest of any kind of content. `annotations` are those of the manifest."""
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.descriptor(),
        "layers": [layer.descriptor() for layer in layers],
    }
    if annotations:
        manifest["annotations"] = dict(annotations)
    top = json_blob(MANIFEST, manifest)
    return Artifact(top, (config, *layers, top))


def image(layers: Sequence[Layer], runs: Json, architecture: str) -> Artifact:
    """An image of layers, lowest first. `runs` is the part `config` of its configuration."""
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": runs,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }
    return artifact(json_blob(CONFIG, config), [layer.blob for layer in layers])


def index(images: Mapping[str, Artifact]) -> Artifact:
    """The images of several architectures, by architecture, as one."""
    manifests = [images[name].top.descriptor(platform={"architecture": name, "os": "linux"}) for name in sorted(images)]
    top = json_blob(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    blobs = {blob.digest: blob for image in images.values() for blob in image.blobs}
    return Artifact(top, (*blobs.values(), top))


def write_archive(content: Artifact, name: str, target: Path) -> Path:
    """The archive `target`. Runtimes import it as `name`: an image's name, or a chart's version."""
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    entry = content.top.descriptor(annotations=named)
    with tarfile.open(target, "w") as archive:
        add_file(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add_file(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        for blob in content.blobs:
            place = f"blobs/{blob.digest.replace(':', '/')}"
            if isinstance(blob.content, bytes):
                add_file(archive, place, blob.content)
            else:
                info = _info(place, 0o644)
                info.size = blob.size
                with blob.content.open("rb") as stream:
                    archive.addfile(info, stream)
    return target


def write_layer(folder: Path, target: Path) -> Layer:
    """All of `folder` as a layer that belongs to root, in the order of names."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as layer:
        for path in sorted(folder.rglob("*"), key=lambda path: path.parts):
            seen = layer.gettarinfo(str(path), str(path.relative_to(folder)))
            info = _info(seen.name, seen.mode)
            if path.is_file() and not path.is_symlink():
                # Also a second name of a file: which is the first depends on the file system.
                info.size = seen.size or path.stat().st_size
                with path.open("rb") as stream:
                    layer.addfile(info, stream)
            else:
                info.type, info.linkname = seen.type, seen.linkname
                layer.addfile(info)
    return compressed(target)


def compressed(tar: Path) -> Layer:
    """A tar archive as a layer; the file is replaced by its compressed form."""
    diff_id = Blob("", tar).digest
    packed = tar.with_suffix(".gz")
    with (
        tar.open("rb") as source,
        packed.open("wb") as target,
        # Without the file's name and time.
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=target, mtime=0) as stream,
    ):
        shutil.copyfileobj(source, stream)
    tar.unlink()
    return Layer(Blob(LAYER, packed), diff_id)


def add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = _info(name, mode)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _info(name: str, mode: int) -> tarfile.TarInfo:
    """Of root, and of no time."""
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info
