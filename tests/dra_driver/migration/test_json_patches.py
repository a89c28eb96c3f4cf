"""JSON patches of kustomizations: what they made of objects is what they make of them with claims.

The oracle is `kubectl kustomize`, as for all folders; the shapes are those that people publish.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.kustomize import (
    BASE,
    MODEL,
    TAINT,
    Files,
    after,
    built,
    check_law,
    deployment,
    followed,
    main,
    migrated,
    needs_kubectl,
    objects,
    patch,
    put_back,
    tree,
)

from dra_driver.cli.migrate_files import diff
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.model import Options, Source, StrategyOption, Target
from dra_driver.migration.undo import undo

POD = "/spec/template/spec"
MAIN = f"{POD}/containers/0/resources"
SIDE = f"{POD}/containers/1/resources"
AMOUNT = f"{MAIN}/limits/nvidia.com~1gpu"
NAME = f"{POD}/resourceClaims/0/resourceClaimTemplateName"
OF_WEB = "{kind: Deployment, name: web}"
FOUR = {"op": "replace", "path": AMOUNT, "value": 4}
COMPONENT = "kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\n"


def operation(op: str, path: str, value: object = None, **more: str) -> dict[str, object]:
    return {"op": op, "path": path, **more, **({"value": value} if value is not None else {})}


def patched(*operations: dict[str, object], target: str = OF_WEB, field: str = "patches") -> str:
    text = "".join(f"    {line}\n" for line in yaml.safe_dump(list(operations), sort_keys=False).splitlines())
    return f"{field}:\n- target: {target}\n  patch: |-\n{text}"


def two(second: str = "api", gpus: object = 1, pod: str = "") -> Files:
    return {
        "base/kustomization.yaml": "resources: [web.yaml, other.yaml]\n",
        "base/web.yaml": deployment(),
        "base/other.yaml": deployment(pod, gpus, second),
    }


def over(text: str, base: Files | None = None, **more: str) -> Files:
    files = base or {**BASE, "base/web.yaml": deployment()}
    beside = {name.replace("__", "/") + ".yaml": text for name, text in more.items()}
    return {**files, "over/kustomization.yaml": f"resources: [../base]\n{text}", **beside}


BOTH = deployment().replace(
    "            nvidia.com/gpu: 1\n",
    "            nvidia.com/gpu: 1\n          requests:\n            nvidia.com/gpu: 1\n",
)
ONLY = deployment().replace("            memory: 8Gi\n", "")
MORE_OF_BOTH = (FOUR, operation("replace", f"{MAIN}/requests/nvidia.com~1gpu", 4))
LIMITS = {"limits": {"nvidia.com/gpu": 1}}

SHAPES: dict[str, Files] = {
    "another amount": over(patched(FOUR)),
    "another amount, by the old field": over(patched(FOUR, field="patchesJson6902")),
    "another amount of a model": over(patched(FOUR), {**BASE, "base/web.yaml": deployment(MODEL)}),
    "limits and requests": over(patched(*MORE_OF_BOTH), {**BASE, "base/web.yaml": BOTH}),
    "an image between limits and requests": over(
        patched(MORE_OF_BOTH[0], operation("replace", f"{POD}/containers/0/image", "i"), MORE_OF_BOTH[1]),
        {**BASE, "base/web.yaml": BOTH},
    ),
    "added where it is": over(patched(operation("add", AMOUNT, 2))),
    "added where there was none": tree(patched(operation("add", AMOUNT, 2)), gpus=None),
    "a map of resources": over(patched(operation("add", SIDE, LIMITS))),
    "other resources": over(patched(operation("replace", MAIN, {"limits": {"cpu": 1, "nvidia.com/gpu": 2}}))),
    "resources where there are no GPUs": tree(patched(operation("add", MAIN, LIMITS)), TAINT, gpus=None),
    "the same amount": over(patched(operation("replace", AMOUNT, 1))),
    "a string": over(patched(operation("replace", AMOUNT, "2"))),
    "a test before": over(patched(operation("test", AMOUNT, 1), FOUR)),
    "a test alone": over(patched(operation("test", AMOUNT, 1))),
    "a copy": over(patched(operation("copy", SIDE, **{"from": MAIN}))),
    "a move": over(patched(operation("move", SIDE, **{"from": MAIN}))),
    "a move of the amount": over(
        patched(
            operation("add", SIDE, {"limits": {}}),
            operation("move", f"{SIDE}/limits/nvidia.com~1gpu", **{"from": AMOUNT}),
        )
    ),
    "a container more": over(
        patched(operation("add", f"{POD}/containers/-", {"name": "z", "image": "i", "resources": LIMITS}))
    ),
    "a container more in front": over(
        patched(operation("add", f"{POD}/containers/0", {"name": "z", "image": "i", "resources": LIMITS}))
    ),
    "a memory limit where GPUs were all": over(
        patched(operation("add", f"{MAIN}/limits/memory", "1Gi")), {**BASE, "base/web.yaml": ONLY}
    ),
    "a model": over(patched(FOUR, operation("add", f"{POD}/nodeSelector", {"nvidia.com/gpu.product": "NVIDIA-H200"}))),
    "a model and a zone": over(
        patched(operation("add", f"{POD}/nodeSelector", {"zone": "a", "nvidia.com/gpu.product": "NVIDIA-H200"}))
    ),
    "no model any more": tree(patched(operation("remove", f"{POD}/nodeSelector")), MODEL),
    "a toleration": over(
        patched(operation("add", f"{POD}/tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}]))
    ),
    "a toleration more and four": tree(patched(FOUR, operation("add", f"{POD}/tolerations/-", {"key": "b"})), TAINT),
    "a runtime class": over(patched(operation("add", f"{POD}/runtimeClassName", "nvidia"), FOUR)),
    "by a kind": over(patched(FOUR, target="{kind: Deployment}")),
    "by an expression": over(patched(FOUR, target="{name: 'w.*|nobody'}")),
    "by a label": over(
        patched(FOUR, target="{labelSelector: 'app=web'}"),
        {**BASE, "base/web.yaml": deployment().replace("{name: web}", "{name: web, labels: {app: web}}")},
    ),
    "by a label that a kustomization adds": over(
        patched(FOUR, target="{labelSelector: 'team=ml'}"),
        {
            "base/kustomization.yaml": "resources: [web.yaml]\nlabels: [{pairs: {team: ml}}]\n",
            "base/web.yaml": deployment(),
        },
    ),
    "by a namespace": over(
        patched(FOUR, target="{namespace: ml}"),
        {"base/kustomization.yaml": "resources: [web.yaml]\nnamespace: ml\n", "base/web.yaml": deployment()},
    ),
    "two objects alike": over(patched(FOUR, target="{kind: Deployment}"), two()),
    "one of two objects": over(patched(FOUR), two()),
    "two objects, GPUs for both": over(
        patched(operation("add", SIDE, LIMITS), target="{kind: Deployment}"),
        two(gpus=None) | {"base/web.yaml": deployment(gpus=None)},
    ),
    "a file in YAML": over(
        f"patches: [{{path: p.yaml, target: {OF_WEB}}}]\n",
        over__p=f"# four\n- op: replace\n  path: {AMOUNT}\n  value: 4 # of them\n",
    ),
    "a file in JSON": {
        **over(f"patches: [{{path: p.json, target: {OF_WEB}}}]\n"),
        "over/p.json": json.dumps([FOUR], indent=2) + "\n",
    },
    "a file with Windows line ends": over(
        f"patches: [{{path: p.yaml, target: {OF_WEB}}}]\n",
        over__p=f"- op: replace\r\n  path: {AMOUNT}\r\n  value: 4\r\n",
    ),
    "inline JSON": over(f"patches:\n- target: {OF_WEB}\n  patch: '{json.dumps([FOUR])}'\n"),
    "a component": over("components: [../parts/four]\n", parts__four__kustomization=COMPONENT + patched(FOUR)),
    "a prefix": over("namePrefix: x-\n" + patched(FOUR)),
    "GPUs by the patch alone and a prefix": tree(
        "namePrefix: x-\n" + patched(operation("add", SIDE, LIMITS)), gpus=None
    ),
    "one overlay above another": {
        **over(patched(FOUR)),
        "top/kustomization.yaml": "resources: [../over]\nnameSuffix: -z\n" + patched(operation("replace", AMOUNT, 8)),
    },
    "beside a strategic patch": over(
        "patches:\n- patch: |-\n    " + patch(main(2)) + patched(FOUR).removeprefix("patches:\n")
    ),
    "a strategic patch after it": over(patched(FOUR) + "- patch: |-\n    " + patch(main(2))),
    "replacements beside it": over(
        patched(FOUR)
        + "replacements:\n- source: {kind: Deployment, name: web, fieldPath: metadata.name}\n  targets:\n"
        + "  - select: {kind: Deployment}\n    fieldPaths: [spec.template.metadata.labels.app]\n"
    ),
}
"""Where the pods of the outermost folder have claims then."""

IMAGE = f"{POD}/containers/0/image"
CPU_ONLY = operation("replace", MAIN, {"limits": {"cpu": 1}})


def three(**kinds: str) -> Files:
    """Two that ask for the same, and one that asks for a model, too."""
    files = two("other", pod=MODEL)
    files["base/kustomization.yaml"] = "resources: [web.yaml, other.yaml, third.yaml]\n"
    files["base/third.yaml"] = deployment("", 1, "third")
    for name, kind in kinds.items():
        file = f"base/{name}.yaml"
        files[file] = files[file].replace("kind: Deployment", f"kind: {kind}")
    return files


DIVIDED: dict[str, Files] = {
    "two objects that differ": over(patched(FOUR, target="{kind: Deployment}"), two(pod=MODEL)),
    "two alike and one that differs": over(patched(FOUR, target="{kind: Deployment}"), three()),
    "objects of two kinds that differ": over(
        patched(FOUR, target="{kind: Deployment|StatefulSet}"), three(other="StatefulSet", third="StatefulSet")
    ),
    "divided under a prefix": over(
        "namePrefix: x-\n"
        + patched(operation("test", AMOUNT, 1), FOUR, target="{labelSelector: 'a=b'}")
        + "- {path: later.yaml}\n",
        {name: text.replace("metadata: {name:", "metadata: {labels: {a: b}, name:") for name, text in three().items()},
        over__later=patch("{priorityClassName: high}"),
    ),
    "a file that is divided": over(
        "patches:\n- {path: p.yaml, target: {name: '.*'}, options: {allowNameChange: true}}\n",
        two(pod=MODEL),
        over__p=f"# More.\n- {json.dumps(FOUR)}\n- op: replace  # An image.\n  path: {IMAGE}\n  value: i:2\n",
    ),
    "two patches that are divided": over(
        patched(FOUR, target="{kind: Deployment}")
        + patched(operation("add", f"{MAIN}/limits/cpu", 4), operation("replace", AMOUNT, 2), target="{name: '.*'}")[
            9:
        ],
        two(pod=MODEL),
    ),
}
"""Where objects of one patch have different claims, so that it becomes several."""

SHAPES |= DIVIDED

TAKEN_AWAY: dict[str, Files] = {
    "the amount": over(patched(operation("remove", AMOUNT))),
    "the limits": over(patched(operation("remove", f"{MAIN}/limits"))),
    "all resources": over(patched(operation("remove", MAIN))),
    "resources without GPUs": over(patched(operation("replace", MAIN, {"limits": {"cpu": 1}}))),
    "the container": over(patched(operation("remove", f"{POD}/containers/0"))),
    "resources of which one had GPUs": over(patched(CPU_ONLY, target="{kind: Deployment}"), two(gpus=None)),
    "only GPUs were asked for": over(patched(operation("remove", AMOUNT)), {**BASE, "base/web.yaml": ONLY}),
}
"""Where the base has claims, and the overlay none any more."""

PLACE = "spec.template.spec.containers.0.resources.limits.[nvidia.com/gpu]"
OF_ALL = "patches:\n- {path: ../p.yaml, target: {kind: Deployment}}\n"
LEFT: dict[str, tuple[Files, str, str]] = {
    "two objects that differ and a file of two": (
        {
            **over(OF_ALL, two(pod=MODEL)),
            "p.yaml": f"[{json.dumps(FOUR)}]\n",
            "more/kustomization.yaml": "resources: [../base]\n" + OF_ALL,
        },
        "one for several objects, whose claims differ: Deployment web, Deployment api",
        f"a patch for each object; for Deployment web, instead of `replace {AMOUNT} 4` write `replace {NAME} ",
    ),
    "limits without requests": (
        over(patched(FOUR), {**BASE, "base/web.yaml": BOTH}),
        "what it makes of Deployment web cannot have claims: nvidia.com/gpu: the limit is 4 and the request 1",
        "Correct in over/kustomization.yaml what is said here",
    ),
    "generated in other ways": (
        over(
            patched(FOUR)
            + "replacements:\n- source: {kind: Deployment, name: web, fieldPath: spec.replicas}\n  targets:\n"
            + f"  - select: {{kind: Deployment}}\n    fieldPaths: ['{PLACE}']\n"
        ),
        "the replacement in over/kustomization.yaml replacements[0] cannot be followed",
        f"write `replace {NAME} ",
    ),
}
"""Where all stays as it is, and what is said."""


EVERYTHING = {**SHAPES, **TAKEN_AWAY, **{name: files for name, (files, *_) in LEFT.items()}}
GOLDEN = Path(__file__).parent / "golden-json-patches"


@needs_kubectl
def test_kustomize_builds_of_the_result_what_the_migration_makes_of_what_it_built() -> None:
    names = {f"t{number}": name for number, name in enumerate(SHAPES)}
    converted = check_law({short: SHAPES[name] for short, name in names.items()})
    assert {names[short] for short in converted} == SHAPES.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_the_pod_has_claims_no_amounts_and_no_warning(name: str) -> None:
    result = migrated(SHAPES[name])
    assert {one.choice.target for one in result.workloads} == {Target.CLAIMS}
    assert "nvidia.com~1gpu" not in "".join(after(result).values())
    assert [one.message for one in result.findings if one.code is NOT_EDITABLE and not one.fixed] == []


@needs_kubectl
def test_what_an_overlay_takes_away_it_takes_away_with_claims_too() -> None:
    names = {f"t{number}": name for number, name in enumerate(TAKEN_AWAY)}
    assert check_law({short: TAKEN_AWAY[name] for short, name in names.items()}) == names.keys()
    found = built({short: (after(migrated(TAKEN_AWAY[name])), "over") for short, name in names.items()})
    for short, name in names.items():
        assert all("nvidia.com/gpu" not in json.dumps(one) for one in found[short] if one["kind"] == "Deployment"), name
        assert "resourceClaims" in after(migrated(TAKEN_AWAY[name]))["base/web.yaml"], name


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_told_anew_stays_and_that_is_told_with_what_to_do(name: str) -> None:
    files, why, what = LEFT[name]
    result = migrated(files)
    assert not result.changed
    assert all(why in one.choice.reason for one in result.workloads if one.pod.document.name == "web")
    said = [one for one in result.findings if one.code is NOT_EDITABLE]
    assert any(one.place.file == "over/kustomization.yaml" and why in one.message for one in said)
    assert all(what in one.advice for one in said if "the JSON patch" in one.message)


@pytest.mark.parametrize("files", [*SHAPES.values(), *TAKEN_AWAY.values()], ids=[*SHAPES, *TAKEN_AWAY])
def test_what_was_told_anew_is_put_back(files: Files) -> None:
    assert put_back(files) == {name: objects(text) for name, text in files.items()}
    kept = after(migrated(files, Options(strategy=StrategyOption.CLAIMS)))
    back = after(undo([Source(file, text) for file, text in kept.items()]))
    patches = [file for file in files if file.startswith("over/p.")]
    assert [back[file] for file in patches] == [files[file] for file in patches]


def test_comments_that_were_written_since_stay() -> None:
    texts = after(migrated(SHAPES["a file in YAML"], Options(strategy=StrategyOption.CLAIMS)))
    texts["over/p.yaml"] = texts["over/p.yaml"].replace("# of them", "# of them, at last")
    back = after(undo([Source(file, text) for file, text in texts.items()]))
    assert back["over/p.yaml"] == SHAPES["a file in YAML"]["over/p.yaml"].replace("# of them", "# of them, at last")


@pytest.mark.parametrize("name", [*SHAPES, *TAKEN_AWAY])
def test_with_extended_resources_nothing_is_changed_and_nothing_is_amiss(name: str) -> None:
    files = {**SHAPES, **TAKEN_AWAY}[name]
    result = migrated(files, Options(strategy=StrategyOption.EXTENDED))
    assert not result.changed
    assert [one.message for one in result.findings if one.code is NOT_EDITABLE] == []


# -- what is written


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_shape_becomes_what_is_written_down(name: str) -> None:
    """With WRITE_GOLDEN=1 in the environment what it becomes today is written first; read it before you commit."""
    result = migrated(EVERYTHING[name])
    said = [f"! {one.message}\n  {one.advice}\n" for one in result.findings if one.code is NOT_EDITABLE]
    file = GOLDEN / f"{name.replace(' ', '-').replace(',', '')}.diff"
    text = "".join([*diff(result), *said])
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(text, newline="")
    assert file.read_bytes().decode() == text


def operations(text: str) -> Any:
    return yaml.safe_load(yaml.safe_load(text)["patches"][0]["patch"])


def test_an_amount_becomes_the_name_of_a_template_that_the_overlay_brings() -> None:
    texts = after(migrated(SHAPES["another amount"]))
    (template,) = yaml.safe_load_all(texts["over/gpu-claims.yaml"])
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 4
    assert operations(texts["over/kustomization.yaml"]) == [
        {"op": "replace", "path": NAME, "value": template["metadata"]["name"]}
    ]
    assert "# What Deployment web asks for." in texts["over/gpu-claims.yaml"]


def test_a_test_of_an_amount_is_one_of_the_template_and_holds_as_long() -> None:
    texts = after(migrated(SHAPES["a test before"]))
    test, _ = operations(texts["over/kustomization.yaml"])
    assert (test["op"], test["path"]) == ("test", NAME)
    assert f"resourceClaimTemplateName: {test['value']}" in texts["base/web.yaml"]


def test_objects_that_ask_for_the_same_have_one_template_that_is_named_after_their_kind() -> None:
    texts = after(migrated(SHAPES["two objects alike"]))
    (template,) = yaml.safe_load_all(texts["over/gpu-claims.yaml"])
    assert template["metadata"]["name"].startswith("deployments-gpu-")
    assert "# What Deployment web, Deployment api asks for." in texts["over/gpu-claims.yaml"]


def test_operations_and_comments_that_have_nothing_to_do_with_gpus_stay_as_they_are() -> None:
    texts = after(migrated(SHAPES["an image between limits and requests"]))
    assert [one["path"] for one in operations(texts["over/kustomization.yaml"])] == [NAME, f"{POD}/containers/0/image"]
    name = yaml.safe_load(texts["over/gpu-claims.yaml"])["metadata"]["name"]
    in_a_file = after(migrated(SHAPES["a file in YAML"]))["over/p.yaml"]
    assert in_a_file == f"# four\n- op: replace\n  path: {NAME}\n  value: {name} # of them\n"
    windows = after(migrated(SHAPES["a file with Windows line ends"]))["over/p.yaml"]
    assert windows == f"- op: replace\r\n  path: {NAME}\r\n  value: {name}\r\n"
    assert json.loads(after(migrated(SHAPES["a file in JSON"]))["over/p.json"])[0]["value"] == name


def test_a_patch_that_needs_claims_brings_them_to_its_base() -> None:
    """Of its own the base would have stayed with the extended resource."""
    model = operation("add", f"{POD}/nodeSelector", {"nvidia.com/gpu.product": "NVIDIA-H200"})
    plain, chosen = (migrated(over(patched(one)), Options(keep_undo=False)) for one in (FOUR, model))
    assert {one.choice.target for one in plain.workloads} == {Target.EXTENDED}
    assert not plain.changed
    assert {one.choice.target for one in chosen.workloads} == {Target.CLAIMS}
    assert operations(after(chosen)["over/kustomization.yaml"])[0]["path"] == NAME


def test_a_patch_of_what_is_not_here_stays_and_is_told_with_what_to_do() -> None:
    files = {"over/kustomization.yaml": "resources: ['https://example.com/base?ref=v1']\n" + patched(FOUR)}
    result = migrated(files)
    assert not result.changed
    (said,) = (one for one in result.findings if one.code is NOT_EDITABLE)
    assert said.place.line == 4
    assert "of nothing that is among the files" in said.message
    assert "resourceClaims/0/resourceClaimTemplateName" in said.advice
    assert f"`replace {AMOUNT} 4`" in said.advice


def test_what_was_changed_since_is_not_put_back_and_its_template_stays() -> None:
    for name in ("another amount", "a file in YAML"):
        texts = after(migrated(SHAPES[name], Options(strategy=StrategyOption.CLAIMS)))
        edited = {file: text.replace("op: replace\n", "op: add\n") for file, text in texts.items()}
        result = undo([Source(file, text) for file, text in edited.items()])
        back = after(result)
        assert any("was changed after the migration" in one.message for one in result.findings)
        assert back["over/gpu-claims.yaml"] == edited["over/gpu-claims.yaml"]
        assert all(back[file] == edited[file] for file in edited if file.startswith("over/"))


def test_a_file_of_two_kustomizations_is_told_anew_once() -> None:
    entry = f"patches: [{{path: ../p.yaml, target: {OF_WEB}}}]\n"
    files = over(entry, p=f"- {{op: replace, path: {AMOUNT}, value: 4}}\n")
    files = {**files, "more/kustomization.yaml": f"resources: [../base]\n{entry}"}
    texts = after(migrated(files))
    assert texts["p.yaml"].count("resourceClaimTemplateName") == 1
    assert texts["over/gpu-claims.yaml"] == texts["more/gpu-claims.yaml"]
    assert put_back(files) == {name: objects(text) for name, text in files.items()}


# -- lists of any operations

_LISTS = st.lists(
    st.sampled_from(
        [
            FOUR,
            operation("add", AMOUNT, 2),
            operation("remove", AMOUNT),
            operation("test", AMOUNT, 1),
            operation("add", MAIN, LIMITS),
            operation("add", SIDE, LIMITS),
            operation("remove", SIDE),
            operation("copy", SIDE, **{"from": MAIN}),
            operation("move", SIDE, **{"from": MAIN}),
            operation("add", f"{MAIN}/limits", {"memory": "2Gi"}),
            operation("add", f"{MAIN}/requests", {"nvidia.com/gpu": 4}),
            operation("add", f"{POD}/nodeSelector", {"nvidia.com/gpu.product": "NVIDIA-H200", "zone": "b"}),
            operation("add", f"{POD}/nodeSelector/nvidia.com~1gpu.family", "hopper"),
            operation("add", f"{POD}/tolerations", [{"key": "x", "operator": "Exists"}]),
            operation("remove", f"{POD}/containers/1"),
            operation("remove", f"{POD}/containers/0"),
            operation("add", f"{POD}/containers/0", {"name": "z", "image": "i", "resources": LIMITS}),
            operation("add", f"{POD}/initContainers", [{"name": "first", "image": "i", "resources": LIMITS}]),
            operation("replace", f"{POD}/containers/0/image", "i:2"),
        ]
    ),
    min_size=1,
    max_size=4,
)
_TARGETS = st.sampled_from([OF_WEB, "{kind: Deployment}", "{name: api}", "{name: '.*'}", "{labelSelector: 'a=b'}"])


@st.composite
def _trees(draw: st.DrawFn) -> Files:
    base = two(gpus=draw(st.sampled_from([1, 2, None])), pod=draw(st.sampled_from(["", MODEL])))
    files = over(draw(st.sampled_from(["", "namePrefix: x-\n"])) + patched(*draw(_LISTS), target=draw(_TARGETS)), base)
    if draw(st.booleans()):
        part = COMPONENT + patched(*draw(_LISTS), target=draw(_TARGETS))
        above = patched(*draw(_LISTS), target=draw(_TARGETS))
        files = {
            **files,
            "parts/a/kustomization.yaml": part,
            "top/kustomization.yaml": "resources: [../over]\ncomponents: [../parts/a]\n" + above,
        }
    return files


@needs_kubectl
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(st.lists(_trees(), min_size=12, max_size=12))
def test_of_any_lists_the_same_is_true(trees: list[Files]) -> None:
    check_law({f"t{number}": files for number, files in enumerate(filter(followed, trees))})
