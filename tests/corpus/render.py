"""Renders a Helm chart for the corpus: PYTHONPATH=.:tests python tests/corpus/render.py CHART FOLDER [VALUES ...]

CHART is a folder with its dependencies, if it has any. FOLDER gets a manifest for each of the files with values, or for
the chart's own values. What the chart does not accept is said, and the rest goes on.
"""

import sys
from pathlib import Path

import yaml
from support.helm import Helm, HelmError, simulated_server


def main(chart: Path, folder: Path, values: list[Path]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    status = 0
    for file in values or [None]:
        name = chart.name if file is None else file.stem
        with simulated_server() as server:
            try:
                given = yaml.safe_load(file.read_text()) if file is not None else {}
                release = Helm(server.kubeconfig, namespace=name[:60], release="app").install(given, chart=chart)
            except (HelmError, yaml.YAMLError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                status = 1
                continue
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name[:60]}}
        objects = [
            {**obj, "metadata": {"namespace": name[:60], **obj["metadata"]}}
            for obj in release.objects
            if obj.get("metadata")
        ]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all([namespace, *objects], sort_keys=False))
        print(f"{name}: {len(objects)} objects")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(word) for word in sys.argv[3:]]))
