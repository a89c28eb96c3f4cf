"""Kustomize folders for tests, and what is made of them: the oracle is `kubectl kustomize`, if there is one."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.api.documents import read_documents
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, StrategyOption

CLAIMS = Options(strategy=StrategyOption.CLAIMS)
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl, which has kustomize")
type Files = Mapping[str, str]


def deployment(pod: str = "", gpus: object = 1, name: str = "web") -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
{pod}      containers:
      - name: main
        image: registry.example.com/web:1
        resources:
          limits:
            memory: 8Gi
{f"            nvidia.com/gpu: {gpus}" if gpus else ""}
      - name: side
        image: registry.example.com/side:1
"""


def patch(spec: str, name: str = "web") -> str:
    """Of the pod of a Deployment; `spec` is a map in flow style."""
    head = f"{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}}}"
    return f"{head}, spec: {{template: {{spec: {spec}}}}}}}\n"


def main(gpus: object, more: str = "") -> str:
    return f"{{{more}containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}]}}"


def migrated(files: Files, options: Options = CLAIMS) -> Migration:
    return migrate([ManifestText(name, text) for name, text in files.items()], options)


def after(result: Migration) -> dict[str, str]:
    return {file.file: file.after for file in result.files} | {file.file: file.text for file in result.new_files}


# -- the oracle


def builds(files: Files) -> bool:
    """Whether kustomize takes it at all."""
    return _kustomize({"one": (files, top_of(files))}).returncode == 0


def _kustomize(trees: Mapping[str, tuple[Files, str]]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as root:
        for name, (files, folder) in trees.items():
            wrapped = f"resources: [../{folder}]\nnamespace: {name}\n"
            for file, text in {**files, "wrapped/kustomization.yaml": wrapped}.items():
                path = Path(root, name, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
        listed = "".join(f"- {name}/wrapped\n" for name in trees)
        Path(root, "kustomization.yaml").write_text(f"resources:\n{listed}")
        return subprocess.run(["kubectl", "kustomize", root], capture_output=True, text=True, check=False)


def built(trees: Mapping[str, tuple[Files, str]]) -> dict[str, list[Any]]:
    """What kustomize makes of folders, by the name of the tree. All in one run, each in a namespace of its own."""
    done = _kustomize(trees)
    assert done.returncode == 0, done.stderr
    objects: dict[str, list[Any]] = {name: [] for name in trees}
    for obj in yaml.safe_load_all(done.stdout):
        objects[obj["metadata"].pop("namespace")].append(obj)
    return objects


def comparable(objects: list[Any]) -> list[str]:
    """Pods with the content of the templates that they name; templates that nobody names are left out."""
    specs = {obj["metadata"]["name"]: obj["spec"] for obj in objects if obj["kind"] == "ResourceClaimTemplate"}
    rest = [obj for obj in objects if obj["kind"] != "ResourceClaimTemplate"]
    return sorted(json.dumps(_resolved(obj, specs), sort_keys=True) for obj in rest)


def _resolved(value: Any, specs: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        inner = {key: _resolved(item, specs) for key, item in value.items()}
        for name in {"tolerations", "selectors"} & inner.keys():
            # Which one stands first says nothing.
            inner[name] = sorted(inner[name], key=lambda item: json.dumps(item, sort_keys=True))
        if "resourceClaimTemplateName" in inner:
            # A person's name in a pod is not changed with a prefix.
            name = inner["resourceClaimTemplateName"]
            inner["resourceClaimTemplateName"] = _resolved(specs[name], {}) if name != "other" else name
        return inner
    return [_resolved(item, specs) for item in value] if isinstance(value, list) else value


def check_law(trees: Mapping[str, Files]) -> set[str]:
    """Of which trees claims were written. What cannot be migrated in its parts must be left alone, and said."""
    results = {name: migrated(files) for name, files in trees.items()}
    both = {f"{name}-before": (files, top_of(files)) for name, files in trees.items()}
    both |= {f"{name}-after": (after(results[name]), top_of(files)) for name, files in trees.items()}
    objects = built(both)
    converted = set()
    for name, result in results.items():
        before, now = objects[f"{name}-before"], objects[f"{name}-after"]
        if "dractl-migrate" in json.dumps(now):
            whole = migrate([ManifestText("all.yaml", yaml.safe_dump_all(before))], CLAIMS)
            # An object that cannot be migrated in its parts stays as it is, beside others that can.
            left = {
                workload.pod.document.name
                for workload in result.workloads
                if workload.choice.target is not MigrationTarget.CLAIMS
            }
            migrated_whole = [document.obj for document in read_documents(whole.files[0].after, "").documents]
            before = [
                *(obj for obj in migrated_whole if not _is_one_of(obj, left)),
                *(obj for obj in before if _is_one_of(obj, left)),
            ]
            converted.add(name)
        assert comparable(now) == comparable(before), name
        assert after(migrated(after(result))) == after(result), name
    return converted


def _is_one_of(obj: Any, names: set[str]) -> bool:
    """Also with what kustomize puts around its name."""
    own = obj["metadata"]["name"]
    return obj["kind"] != "ResourceClaimTemplate" and any(name in own.split("-") for name in names)


def top_of(files: Files) -> str:
    return next(name for name in ("top", "over", "base") if f"{name}/kustomization.yaml" in files)


BASE = {"base/kustomization.yaml": "resources: [web.yaml]\n"}
MODEL = "      nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}\n"
TAINT = "      tolerations: [{key: team, operator: Exists}]\n"


def tree(over: str, pod: str = "", gpus: object = 1, **more: str) -> Files:
    files = {**BASE, "base/web.yaml": deployment(pod, gpus), "over/kustomization.yaml": f"resources: [../base]\n{over}"}
    return {**files, **{name.replace("__", "/") + ".yaml": text for name, text in more.items()}}


def listed(text: str, target: str = "") -> str:
    return f"patches:\n- {target and f'target: {target}'}\n  patch: |-\n    {text}\n".replace("- \n ", "-")
