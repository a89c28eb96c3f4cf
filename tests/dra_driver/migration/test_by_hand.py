"""What a person is told to write makes of a folder what the migration of the whole would be."""

import json
import re
from typing import Any

import pytest
import yaml
from support.kustomize import (
    Files,
    after,
    built,
    comparable,
    listed,
    main,
    migrated,
    needs_kubectl,
    patch,
    tree,
)

from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.model import Finding, Options, StrategyOption

OF_SIDE = patch("{containers: [{name: side, resources: {limits: {nvidia.com/gpu: 2}}}]}")
POD = "spec.template.spec"
GPUS = f"{POD}.containers.0.resources.limits.[nvidia.com/gpu]"


def copying(source: str, to: str, name: str = "web") -> str:
    return (
        f"replacements:\n- source: {{kind: Deployment, name: web, fieldPath: '{source}'}}\n"
        f"  targets:\n  - select: {{kind: Deployment, name: {name}}}\n    fieldPaths: ['{to}']\n"
        "    options: {create: true}\n"
    )


def of_four(files: Files) -> Files:
    """With the amount in an annotation."""
    web = files["base/web.yaml"].replace("{name: web}", "{name: web, annotations: {gpus: '4'}}")
    return {**files, "base/web.yaml": web}


STAYS: dict[str, Files] = {
    "a patch of another container": tree(listed(OF_SIDE)),
    "in a file": tree("patches: [{path: p.yaml}]\n", over__p=OF_SIDE),
    "by the old field": tree("patchesStrategicMerge: [p.yaml]\n", over__p=OF_SIDE),
    "a patch that takes GPUs away": tree(listed(patch(main("null")))),
    "a replacement of the amount": of_four(tree(copying("metadata.annotations.gpus", GPUS))),
    "a replacement of resources": tree(copying(f"{POD}.containers.0.resources", f"{POD}.containers.1.resources")),
}


def told(files: Files) -> Finding:
    (said,) = (one for one in migrated(files).findings if one.code is NOT_EDITABLE and "By hand" in one.advice)
    return said


def written(advice: str) -> tuple[str, list[Any]]:
    """The patch for the kustomization, and templates."""
    operations = []
    for op, path, value in re.findall(r"`(add|replace|remove) ([^\s`]+)(?: ([^`]+))?`", advice):
        operations.append({"op": op, "path": path, **({"value": json.loads(value)} if value else {})})
    target = re.search(r"`target: (\{.+?\})`", advice)
    assert target is not None
    templates = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": json.loads(spec),
        }
        for name, spec in re.findall(r"ResourceClaimTemplate (\S+) with `spec: (.+?)`", advice)
    ]
    return f"patches:\n- target: {target[1]}\n  patch: '{json.dumps(operations)}'\n", templates


def in_order(objects: list[Any]) -> list[str]:
    """Kustomize puts containers of a strategic patch in front of the others, those of a JSON patch where they were, and
    requests are in the order of containers."""
    for one in objects:
        if one["kind"] == "ResourceClaimTemplate":
            one["spec"]["spec"]["devices"]["requests"].sort(key=lambda request: request["name"])
        if one["kind"] == "Deployment":
            one["spec"]["template"]["spec"]["containers"].sort(key=lambda container: container["name"])
    return comparable(objects)


@needs_kubectl
def test_who_writes_what_is_told_has_what_the_migration_of_the_whole_would_be() -> None:
    trees: dict[str, tuple[Files, str]] = {}
    for number, files in enumerate(STAYS.values()):
        more, templates = written(told(files).advice)
        base = after(migrated({name: text for name, text in files.items() if name.startswith("base/")}))
        over = f"resources: [../base{', hand.yaml' if templates else ''}]\n{more}"
        hand = {**base, "over/kustomization.yaml": over, "over/hand.yaml": yaml.safe_dump_all(templates)}
        trees |= {f"t{number}-before": (files, "over"), f"t{number}-hand": (hand, "over")}
    found = built(trees)
    for number, name in enumerate(STAYS):
        whole = after(migrated({"all.yaml": yaml.safe_dump_all(found[f"t{number}-before"])}))["all.yaml"]
        assert in_order(found[f"t{number}-hand"]) == in_order(list(yaml.safe_load_all(whole))), name


@pytest.mark.parametrize("name", STAYS)
def test_it_is_told_where_it_stands_and_in_which_kustomization(name: str) -> None:
    files = STAYS[name]
    said = told(files)
    assert said.place.file == ("over/p.yaml" if "over/p.yaml" in files else "over/kustomization.yaml")
    assert "over/kustomization.yaml" in said.advice
    assert "was left as it is" in said.message


@pytest.mark.parametrize("name", STAYS)
def test_with_extended_resources_there_is_nothing_to_write(name: str) -> None:
    result = migrated(STAYS[name], Options(strategy=StrategyOption.EXTENDED))
    assert [one.message for one in result.findings if one.code is NOT_EDITABLE] == []


def test_an_amount_that_is_copied_elsewhere_is_told_with_its_value() -> None:
    said = told(tree(copying(GPUS, "metadata.annotations.gpus")))
    assert f"{GPUS}, which it copies, is not there with claims; write 1 into metadata.annotations.gpus" in said.advice


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("generators", "let a folder of its own build it"),
        ("transformers", "say it by `patches`, `replacements`"),
        ("helmCharts", "let a folder of its own build it"),
    ],
)
def test_what_is_no_patch_is_told_with_what_to_say_instead(field: str, what: str) -> None:
    said = told(tree(f"{field}: [{{name: x, valuesInline: {{nvidia.com/gpu: 1}}}}]\n"))
    assert what in said.advice
    assert f"over/kustomization.yaml {field}[0] speaks of GPUs" in said.message
