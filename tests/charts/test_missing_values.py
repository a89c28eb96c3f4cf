"""Values that are missing are told by name, before anything is changed; where nothing is as good, null is as good."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.helm import CHART, Helm, HelmError, ServerThread

NEEDED = yaml.safe_load((CHART / "files" / "needed-values.yaml").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())


def null_at(*paths: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path in paths:
        *parents, last = path.split(".")
        at = values
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = None
    return values


@pytest.mark.slow
def test_each_value_that_is_needed_is_missed_by_name(server: ServerThread, helm: Helm) -> None:
    before = server.names()
    for path in NEEDED:
        with pytest.raises(HelmError, match=f"Values are missing: {path}[.] Null takes a default away"):
            helm.install(null_at(path))
    assert server.names() == before


def test_of_a_map_that_is_missing_its_values_are_not_counted_up(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"Values are missing: controller, metrics[.]interval[.] Null"):
        helm.install({"controller": None, "metrics": {"interval": None}})


def test_null_is_as_good_as_empty_everywhere_else(helm: Helm) -> None:
    others = [path for path in leaves(DEFAULTS) if path not in NEEDED]
    assert {"policy", "kubeletPlugin.resources", "controller.priorityClassName"} <= set(others)
    assert helm.install(null_at(*others)).objects


def leaves(values: dict[str, Any], above: str = "") -> list[str]:
    """Down to where values.yaml has no names of its own any more."""
    paths = []
    for name, value in values.items():
        path = f"{above}{name}"
        paths += leaves(value, f"{path}.") if path in NEEDED and isinstance(value, dict) else [path]
    return paths


def test_an_upgrade_that_knows_only_the_values_of_an_older_chart_is_refused(
    server: ServerThread, helm: Helm, tmp_path: Path
) -> None:
    """A value that is new in this chart, as `tracing.endpoint` once was."""
    older = tmp_path / "older"
    shutil.copytree(CHART, older)
    for file in ("templates", "files"):
        shutil.rmtree(older / file)
    (older / "templates").mkdir()
    (older / "templates" / "one.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}")
    (older / "values.schema.json").unlink()
    (older / "values.yaml").write_text(
        yaml.safe_dump({key: value for key, value in DEFAULTS.items() if key != "tracing"})
    )
    helm.install({"logLevel": "debug"}, chart=older)
    with pytest.raises(
        HelmError, match=r"Values are missing: tracing[.] .*--reuse-values(.|\n)*--reset-then-reuse-val"
    ):
        helm.upgrade(reset_values=False, reuse_values=True)
    assert not server.objects("apps/v1", "DaemonSet")
    assert helm.upgrade({"logLevel": "debug"}).objects
