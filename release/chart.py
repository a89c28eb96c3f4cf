"""`make chart`: the chart as Helm's package, and as the OCI archive that `helm push` would push.

    build/gpu-dra-driver-VERSION.tgz   for `helm install FILE` and `helm push FILE oci://…`
    build/chart.tar                    for clients of registries: `skopeo copy oci-archive:build/chart.tar docker://…`

With `IMAGE=REPOSITORY` the packaged chart names that image, so that people who install it need no `--set`, and with
`DIGEST=sha256:…` exactly the image that was pushed, even if its tag moves. With `RUNBOOKS=URL` its alerts link to
that page.
Source: Helm's OCI media types (helm.sh/docs/topics/registries). A package is a compressed folder with the chart's name.
"""

import argparse
import fnmatch
import gzip
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from release.oci import Artifact, Blob, add_file, artifact, json_blob, write_archive

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "charts" / "gpu-dra-driver"
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"

DEFAULTS = {"image.repository": "gpu-dra-driver", "image.digest": '""', "metrics.runbooks": "docs/runbooks.md"}
"""Values that mean something in the source only: a released chart has those of its release."""


class WrongValue(Exception):
    """What the packaged chart should name cannot be that value of the chart."""


def chart_package(values: Mapping[str, str] | None = None) -> bytes:
    """Helm's package. `values` replace some of `DEFAULTS`. Raises `WrongValue`. Same chart and values, same bytes."""
    stream = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for file in _files():
            content = file.read_bytes()
            if file == CHART / "values.yaml":
                content = _with_values(content.decode(), values or {}).encode()
            add_file(archive, f"{CHART.name}/{file.relative_to(CHART)}", content)
    return stream.getvalue()


def _with_values(text: str, values: Mapping[str, str]) -> str:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for name, value in values.items():
        part, key = name.split(".")
        pattern = schema["properties"][part]["properties"][key]["pattern"]
        if not re.search(pattern, value):
            raise WrongValue(f"{name}: {value!r} does not match {pattern}, as values.schema.json requires")
        text, times = re.subn(rf"^(  {key}: ){re.escape(DEFAULTS[name])}$", rf"\g<1>{value}", text, flags=re.MULTILINE)
        assert times == 1, f"values.yaml has one line with the default of {name}"
    return text


def _files() -> Iterator[Path]:
    """Chart.yaml first, because Helm reads it first."""
    ignored = (CHART / ".helmignore").read_text().split()
    files = [file for file in sorted(CHART.rglob("*")) if file.is_file() and file.name != ".helmignore"]
    for file in sorted(files, key=lambda file: file.name != "Chart.yaml"):
        if not any(fnmatch.fnmatch(part, pattern) for pattern in ignored for part in file.relative_to(CHART).parts):
            yield file


def chart_artifact(package: bytes) -> Artifact:
    """As `helm push` makes it, without the time of its making."""
    described = metadata()
    annotations = {
        "org.opencontainers.image.title": described["name"],
        "org.opencontainers.image.version": described["version"],
        "org.opencontainers.image.description": described["description"],
    }
    return artifact(json_blob(CONFIG, described), [Blob(CONTENT, package)], annotations)


def metadata() -> dict[str, Any]:
    """Chart.yaml."""
    chart: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return chart


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chart")
    parser.add_argument("--image", help="repository of the image that the packaged chart names")
    parser.add_argument("--digest", help="digest of that image (sha256:…)")
    parser.add_argument("--runbooks", help="URL of docs/runbooks.md, to which its alerts link")
    parser.add_argument("--target", type=Path, default=REPOSITORY / "build")
    options = parser.parse_args()
    try:
        given = dict(zip(DEFAULTS, (options.image, options.digest, options.runbooks), strict=True))
        package = chart_package({name: value for name, value in given.items() if value is not None})
    except WrongValue as error:
        sys.exit(f"make chart: {error}")
    options.target.mkdir(parents=True, exist_ok=True)
    version = metadata()["version"]
    file = options.target / f"{CHART.name}-{version}.tgz"
    file.write_bytes(package)
    print(file)
    print(write_archive(chart_artifact(package), version, options.target / "chart.tar"))
    if options.image is None:
        print("the packaged chart names no registry: give its image with `make chart IMAGE=REGISTRY/gpu-dra-driver`")


if __name__ == "__main__":
    main()
