"""Replacements of kustomizations: what they copied into pods, they copy into pods with claims, or these get none."""

from typing import Any

import pytest
import yaml
from support.kustomize import (
    BASE,
    Files,
    after,
    built,
    check_law,
    deployment,
    listed,
    main,
    migrated,
    needs_kubectl,
    patch,
    tree,
)

from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.model import Target
from dra_driver.migration.replacing import parts

POD = "spec.template.spec"
MAIN = f"{POD}.containers.0"
GPU = "[nvidia.com/gpu]"
HIDDEN = "configMapGenerator: [{name: params, literals: [gpus=4, image=i]}]\n"


def replacement(to: list[str], source: str = "spec.replicas", **more: Any) -> str:
    """Of one value of web, or of what `of` names, into fields of what `select` names."""
    target = {"select": more.pop("select", {"kind": "Deployment", "name": "web"}), "fieldPaths": to}
    target |= {name: more.pop(name) for name in ("reject", "options") if name in more}
    told = {
        "source": {**more.pop("of", {"kind": "Deployment", "name": "web"}), "fieldPath": source, **more},
        "targets": [target],
    }
    return yaml.safe_dump(told, sort_keys=False)


def told(*some: str, other: str = "", head: str = "") -> Files:
    """An overlay, or the base itself, with replacements."""
    listed = "replacements:\n" + "".join("- " + one.replace("\n", "\n  ").rstrip() + "\n" for one in some)
    files = {
        "base/kustomization.yaml": f"resources: [web.yaml{', other.yaml' if other else ''}]\n",
        "base/web.yaml": deployment().replace("spec:\n  selector", "spec:\n  replicas: 4\n  selector"),
        "over/kustomization.yaml": f"resources: [../base]\n{head}{listed}",
    }
    return files | ({"base/other.yaml": other} if other else {})


OF_API = {"kind": "Deployment", "name": "api"}
API = deployment("", 4, "api")
PLAIN = deployment("", None, "api")

HARMLESS: dict[str, Files] = {
    "a name": told(replacement(["spec.template.metadata.labels.app"], "metadata.name")),
    "an image": told(replacement([f"{MAIN}.image"], f"{POD}.containers.1.image")),
    "an image, by the container's name": told(replacement([f"{POD}.containers.[name=main].image"], "metadata.name")),
    "images of all": told(replacement([f"{POD}.containers.*.image"], "metadata.name")),
    "a part of an image": told(
        replacement([f"{MAIN}.image"], "metadata.name", options={"delimiter": ":", "index": 1}),
    ),
    "of a ConfigMap that is generated": told(
        replacement([f"{MAIN}.image"], "data.image", of={"kind": "ConfigMap", "name": "params"}), head=HIDDEN
    ),
    "memory": told(
        replacement([f"{MAIN}.resources.limits.memory"], f"{MAIN}.resources.limits.memory", of=OF_API), other=PLAIN
    ),
    "an annotation that is made": told(
        replacement(["metadata.annotations.[example.com/a]"], "metadata.name", options={"create": True})
    ),
    "GPUs of one that is refused": told(
        replacement(
            [f"{MAIN}.resources"],
            f"{MAIN}.resources",
            of=OF_API,
            select={"kind": "Deployment"},
            reject=[{"name": "web"}],
        ),
        other=API,
    ),
    "a pod": told(replacement(["spec.template"], "spec.template", of=OF_API), other=API),
    "all of it": told(replacement(["spec"], "spec", of=OF_API), other=API),
    "a file": {
        **told(),
        "over/kustomization.yaml": "resources: [../base]\nreplacements: [{path: r.yaml}]\n",
        "over/r.yaml": replacement([f"{MAIN}.image"], "metadata.name"),
    },
}
"""The pod has claims then."""

LEFT: dict[str, Files] = {
    "an amount by the container's name": told(replacement([f"{POD}.containers.[name=main].resources.limits.{GPU}"])),
    "amounts of all": told(replacement([f"{POD}.containers.*.resources"], f"{MAIN}.resources", of=OF_API), other=API),
    "an amount of the first": told(replacement([f"{MAIN}.resources.limits.{GPU}"], "spec.replicas")),
    "an amount that is made": told(
        replacement([f"{POD}.containers.1.resources.limits.{GPU}"], "spec.replicas", options={"create": True})
    ),
    "a container": told(replacement([MAIN], MAIN, of=OF_API), other=API),
    "containers": told(replacement([f"{POD}.containers"], f"{POD}.containers", of=OF_API), other=API),
    "from it to another": told(replacement([f"{MAIN}.resources"], f"{MAIN}.resources", select=OF_API), other=PLAIN),
    "its amount, to an annotation": told(
        replacement(
            ["metadata.annotations.gpus"], f"{MAIN}.resources.limits.{GPU}", select=OF_API, options={"create": True}
        ),
        other=PLAIN,
    ),
    "an amount of a ConfigMap that is generated": told(
        replacement([f"{MAIN}.resources.limits.{GPU}"], "data.gpus", of={"kind": "ConfigMap", "name": "params"}),
        head=HIDDEN,
    ),
    "a file": {
        **told(),
        "over/kustomization.yaml": "resources: [../base]\nreplacements: [{path: r.yaml}]\n",
        "over/r.yaml": replacement([f"{MAIN}.resources.limits.{GPU}"]),
    },
    "a list in a file": {
        **told(),
        "over/kustomization.yaml": "resources: [../base]\nreplacements: [{path: r.yaml}]\n",
        "over/r.yaml": "- " + replacement([f"{MAIN}.resources.limits.{GPU}"]).replace("\n", "\n  ").rstrip() + "\n",
    },
    "a variable behind one that goes": {
        "base/kustomization.yaml": "resources: [web.yaml]\n",
        "base/web.yaml": deployment().replace(
            "        resources:\n",
            "        env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}, {name: a, value: b}]\n        resources:\n",
            1,
        ),
        "over/kustomization.yaml": "resources: [../base]\nreplacements:\n- "
        + replacement([f"{MAIN}.env.1.value"], "metadata.name").replace("\n", "\n  ").rstrip()
        + "\n",
    },
}
"""All stays as it is."""

VAR: Files = {
    **BASE,
    "base/web.yaml": deployment().replace("web:1", 'web:1\n        args: ["$(GPUS)"]'),
    "over/kustomization.yaml": "resources: [../base]\nvars:\n- name: GPUS\n"
    "  objref: {apiVersion: apps/v1, kind: Deployment, name: web}\n"
    f"  fieldref: {{fieldpath: '{POD}.containers[0].resources.limits.nvidia\\.com/gpu'}}\n",
}


@needs_kubectl
def test_kustomize_builds_of_the_result_what_the_migration_makes_of_what_it_built() -> None:
    trees = {f"t{number}": files for number, files in enumerate(HARMLESS.values())}
    assert check_law(trees) == trees.keys()


@needs_kubectl
def test_what_is_left_is_something_that_kustomize_builds() -> None:
    check_law({f"t{number}": files for number, files in enumerate(LEFT.values())})


@pytest.mark.parametrize("files", [*LEFT.values(), VAR], ids=[*LEFT, "a var"])
def test_where_values_of_gpus_are_copied_nothing_is_changed_and_it_is_told(files: Files) -> None:
    result = migrated(files)
    assert after(result) == files
    web = [one for one in result.workloads if one.pod.document.name == "web"]
    assert {one.choice.target for one in web} == {Target.EXTENDED}
    assert all("over/" in one.choice.reason for one in web)


def test_a_list_of_replacements_in_a_file_is_not_taken_for_a_patch() -> None:
    said = [one.message for one in migrated(LEFT["a list in a file"]).findings if one.code is NOT_EDITABLE]
    assert not any("list of operations" in one for one in said)


def test_of_a_path_what_is_in_brackets_is_one_part() -> None:
    assert parts("a.[b.c/d].[name=x.y].*.0") == ["a", "b.c/d", "[name=x.y]", "*", "0"]
    assert parts("a.b\\.c") == ["a", "b.c"]


# -- what is neither a patch nor a replacement

FOUR = """\
apiVersion: builtin
kind: PatchTransformer
metadata: {name: p}
target: {kind: Deployment}
patch: '[{"op":"replace","path":"/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu","value":4}]'
"""
CHART = """\
apiVersion: builtin
kind: HelmChartInflationGenerator
metadata: {name: p}
name: x
releaseName: x
valuesInline: {resources: {limits: {nvidia.com/gpu: 1}}}
"""
COPIES = replacement([f"{POD}.containers.1.resources"], f"{MAIN}.resources", options={"create": True})
BY_PATH = FOUR.partition("patch:")[0] + "path: p.yaml\n"
LIST = "- {op: replace, path: /spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu, value: 4}\n"


def _inline(text: str) -> str:
    return "- |-\n" + "".join(f"  {line}\n" for line in text.splitlines())


def _builtin(kind: str, rest: str) -> str:
    return f"apiVersion: builtin\nkind: {kind}\nmetadata: {{name: p}}\n{rest}"


IN_A_FOLDER = {"over__g__kustomization": "resources: [t.yaml]\n"}
OTHERS: dict[str, Files] = {
    "a generator in a file": tree("generators: [g.yaml]\n", over__g=CHART),
    "a generator": tree("generators:\n" + _inline(CHART)),
    "generators in a folder": tree("generators: [g]\n", over__g__t=CHART, **IN_A_FOLDER),
    "a chart": tree("helmCharts: [{name: x, valuesInline: {resources: {limits: {nvidia.com/gpu: 1}}}}]\n"),
    "a chart with a file of values": tree(
        "helmCharts: [{name: x, valuesFile: v.yaml}]\n", over__v="resources: {limits: {nvidia.com/gpu: 1}}\n"
    ),
    "a transformer": tree("transformers:\n" + _inline(FOUR)),
    "transformers in a folder": tree("transformers: [g]\n", over__g__t=FOUR, **IN_A_FOLDER),
    "a transformer with a patch in a file": tree("transformers: [t.yaml]\n", over__t=BY_PATH, over__p=LIST),
    "a transformer with replacements in a file": tree(
        "transformers: [t.yaml]\n",
        over__t=_builtin("ReplacementTransformer", "replacements: [{path: r.yaml}]\n"),
        over__r=COPIES,
    ),
    "a transformer that renames": tree(
        "transformers: [t.yaml]\n",
        over__t=_builtin("PrefixTransformer", "prefix: x-\nfieldSpecs: [{path: metadata/name}]\n"),
    ),
}
SPEAK_OF_OTHERS: dict[str, Files] = {
    "a generator": tree("generators: [g.yaml]\n", over__g=_builtin("ConfigMapGenerator", "literals: [a=b]\n")),
    "a transformer": tree(
        "transformers: [t.yaml]\n",
        over__t=_builtin("LabelTransformer", "labels: {a: b}\nfieldSpecs: [{path: metadata/labels, create: true}]\n"),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_generators_and_transformers_that_speak_of_gpus_keep_the_tree_as_it_is_and_are_told(name: str) -> None:
    files = OTHERS[name]
    result = migrated(files)
    assert after(result) == files
    web = [one for one in result.workloads if one.pod.document.name == "web"]
    told = {one.choice.reason.partition(": ")[2].partition("[0]")[0] for one in web}
    assert told in ({f"over/kustomization.yaml {field}"} for field in ("generators", "transformers", "helmCharts"))


@needs_kubectl
def test_those_that_speak_of_other_things_are_no_hindrance() -> None:
    trees = {f"t{number}": files for number, files in enumerate(SPEAK_OF_OTHERS.values())}
    assert check_law(trees) == trees.keys()


# -- what a kustomization brings that nobody sees

FOUR_OF_ALL = f"""\
patches:
- target: {{kind: Deployment}}
  patch: |-
    {LIST}"""
FOUR_OF_WEB = FOUR_OF_ALL.replace("{kind: Deployment}", "{kind: Deployment, name: web}")
STRATEGIC = listed(patch(main(4)), "{kind: Deployment}")
REMOTE = "resources: [../base, 'https://example.com/org/repo//part?ref=v1']\n"
THING = "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}\n"


def beside(head: str, patches: str) -> Files:
    return {**tree(""), "over/kustomization.yaml": head + patches, "over/g.yaml": THING}


@pytest.mark.parametrize("patches", [FOUR_OF_ALL, STRATEGIC], ids=["a JSON patch", "a strategic patch"])
@pytest.mark.parametrize(
    ("head", "what"),
    [
        (REMOTE, "https://example.com/org/repo//part?ref=v1"),
        (REMOTE.replace("https://example.com/", "github.com/"), "github.com/org/repo//part?ref=v1"),
        ("resources: [../base]\nhelmCharts: [{name: x}]\n", "over/kustomization.yaml helmCharts"),
        ("resources: [../base]\ngenerators: [g.yaml]\n", "over/kustomization.yaml generators"),
        ("resources: [../base, ../missing]\n", "../missing"),
    ],
    ids=["a URL", "a URL without a scheme", "a chart", "a generator", "a folder that was not given"],
)
def test_a_patch_for_many_is_for_what_is_not_here_too_and_stays(head: str, what: str, patches: str) -> None:
    files = beside(head, patches)
    result = migrated(files)
    assert after(result) == files
    reasons = {one.choice.reason for one in result.workloads}
    assert all(f"patches[0] is for any objects that fit, and what {what} brings" in one for one in reasons)
    assert not any("of nothing that is among the files" in one.message for one in result.findings)


@pytest.mark.parametrize("head", [REMOTE, "resources: [../base]\nhelmCharts: [{name: x}]\n"], ids=["a URL", "a chart"])
def test_a_patch_that_names_its_object_is_for_no_other_one(head: str) -> None:
    result = migrated(beside(head, FOUR_OF_WEB))
    assert {one.choice.target for one in result.workloads} == {Target.CLAIMS}


BY_IMAGE = """\
definitions:
  d.Deployment:
    x-kubernetes-group-version-kind: [{group: apps, kind: Deployment, version: v1}]
    type: object
    properties:
      spec: {type: object, properties: {template: {type: object, properties: {spec: {$ref: "#/definitions/d.Spec"}}}}}
  d.Spec:
    type: object
    properties:
      containers:
        {type: array, items: {type: object}, x-kubernetes-patch-merge-key: image, x-kubernetes-patch-strategy: merge}
"""
SETTINGS = {
    "labels in selectors": "labels: [{pairs: {a: b}, includeSelectors: true}]\n",
    "labels of templates": "labels: [{pairs: {a: b}, includeTemplates: true}]\n",
    "common labels": "commonLabels: {a: b}\n",
    "annotations": "commonAnnotations: {a: b}\n",
    "images": "images: [{name: registry.example.com/web, newTag: '2'}]\n",
    "replicas": "replicas: [{name: web, count: 3}]\n",
    "a namespace": "namespace: ml\n",
    "types of others": "crds: [c.json]\n",
}


@needs_kubectl
def test_what_kustomizations_say_of_other_things_goes_together_with_claims() -> None:
    four = listed(patch(main(4)))
    trees = {f"t{number}": tree(one + four) for number, one in enumerate(SETTINGS.values())}
    trees = {name: {**files, "over/c.json": "{}"} for name, files in trees.items()}
    assert check_law(trees) == trees.keys()


def test_a_schema_by_which_lists_are_merged_otherwise_keeps_the_tree_as_it_is_and_is_told() -> None:
    files = {**tree("openapi: {path: o.yaml}\n" + listed(patch(main(4)))), "over/o.yaml": BY_IMAGE}
    result = migrated(files)
    assert after(result) == files
    assert all(
        "over/kustomization.yaml gives kustomize a schema of its own (openapi)" in one.choice.reason
        for one in result.workloads
    )


def beside_a_schema(include: str = "../other") -> Files:
    """Two overlays of two bases, of which the second has a schema of its own."""
    other = deployment(name="api")
    return {
        **tree(listed(patch(main(4)))),
        "other/kustomization.yaml": "resources: [web.yaml]\nopenapi: {path: o.yaml}\n",
        "other/o.yaml": BY_IMAGE,
        "other/web.yaml": other,
        "apart/kustomization.yaml": f"resources: [{include}]\n" + listed(patch(main(4), "api")),
    }


def test_a_schema_reaches_what_is_built_with_it_and_nothing_else() -> None:
    """What includes a base that has one is merged by it, too; another tree beside it is not."""
    files = beside_a_schema()
    result = migrated(files)
    targets = {one.pod.document.name: one.choice.target for one in result.workloads}
    assert targets == {"web": Target.CLAIMS, "api": Target.EXTENDED}
    changed = {name for name, text in after(result).items() if files.get(name) != text}
    assert changed == {"base/web.yaml", "over/kustomization.yaml", "over/gpu-claims.yaml"}
    reasons = {one.choice.reason for one in result.workloads if one.pod.document.name == "api"}
    assert all("other/kustomization.yaml gives kustomize a schema of its own (openapi)" in one for one in reasons)


@needs_kubectl
@pytest.mark.parametrize(("version", "containers"), [("", 3), ("openapi: {version: v1.21.2}\n", 2)])
def test_so_says_kustomize_itself(version: str, containers: int) -> None:
    """Merged by their images, containers of one name and another image are two."""
    files = beside_a_schema()
    file = "apart/kustomization.yaml"
    files[file] = files[file].replace("{name: main,", "{name: main, image: 'registry.example.com/new:1',") + version
    (found,) = built({"t": (files, "apart")})["t"]
    assert len(found["spec"]["template"]["spec"]["containers"]) == containers


def test_a_version_of_kustomizes_own_schemas_goes_before_schemas_of_what_is_included() -> None:
    files = beside_a_schema()
    files["apart/kustomization.yaml"] += "openapi: {version: v1.21.2}\n"
    assert {one.choice.target for one in migrated(files).workloads} == {Target.CLAIMS}
