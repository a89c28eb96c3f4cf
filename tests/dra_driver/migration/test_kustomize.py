"""What becomes of folders of kustomize: migrated where they stand unless something patches what the migration changes.

The oracle is `kubectl kustomize` where there is one; what is known without it is said by values.
"""

import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.kustomize import (
    BASE,
    CLAIMS,
    MODEL,
    TAINT,
    Files,
    after,
    builds,
    built,
    check_law,
    deployment,
    listed,
    main,
    migrated,
    needs_kubectl,
    patch,
    top_of,
    tree,
)
from support.rows import examples, rows, slow_but
from support.steps import steps

from dra_driver.checking.codes import Severity
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, MigrationTarget, Options

CLUSTER = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: ray}
spec:
  headGroupSpec: {template: {spec: {containers: [{name: head, image: i}]}}}
  workerGroupSpecs:
  - groupName: workers
    rayStartParams: {}
    template: {spec: {containers: [{name: worker, image: i, resources: {limits: {nvidia.com/gpu: 2}}}]}}
"""


OTHER = "      resourceClaims: [{name: other, resourceClaimTemplateName: other}]\n"


def claim_of(class_name: str) -> str:
    request = f"{{name: r, exactly: {{deviceClassName: {class_name}}}}}"
    head = "---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: other}\n"
    return f"{head}spec: {{spec: {{devices: {{requests: [{request}]}}}}}}\n"


CHANNEL = claim_of("compute-domain-default-channel.nvidia.com")


def using(text: str) -> str:
    """The container with the GPUs has the other claim, too."""
    return text.replace("resources:\n", "resources:\n          claims: [{name: other}]\n", 1)


def beside(over: str, pod: str = OTHER, gpus: object = 1, other: str = CHANNEL) -> Files:
    """A tree whose pod has another claim."""
    return {**tree(over), "base/web.yaml": using(deployment(pod, gpus)) + other}


COMPONENT = "kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\n"
IMAGE = "- {op: replace, path: /spec/template/spec/containers/0/image, value: other}"
TREES: dict[str, tuple[Files, bool]] = {
    "no patch": (tree("", MODEL), True),
    "another zone": (tree(listed(patch("{nodeSelector: {zone: a}}")), MODEL), True),
    "a limit of memory": (
        tree(listed(patch("{containers: [{name: main, resources: {limits: {memory: 1Gi}}}]}")), MODEL),
        True,
    ),
    "another image": (tree(listed(IMAGE, "{kind: Deployment, name: web}")), True),
    "a container more": (tree(listed(patch("{containers: [{name: more, image: i}]}"))), True),
    "a container more by a JSON patch": (
        tree(
            listed(
                "- {op: add, path: /spec/template/spec/containers/-, value: {name: z, image: i}}", "{kind: Deployment}"
            )
        ),
        True,
    ),
    "a patch of another kind": (tree(listed(IMAGE, "{kind: StatefulSet}")), True),
    "more pods and another image": (
        tree("replicas: [{name: web, count: 3}]\nimages: [{name: registry.example.com/web, newTag: v2}]\n"),
        True,
    ),
    "a namespace and labels": (tree("namespace: ml\nlabels: [{pairs: {a: b}}]\n", MODEL), True),
    "one of several files": (
        {
            "base/a.yaml": deployment(),
            "base/b.yaml": deployment(),
            "over/kustomization.yaml": "resources: [../base]\n",
            "base/kustomization.yaml": "resources: [b.yaml]\n",
        },
        True,
    ),
    "a channel beside": (beside(""), True),
    "one GPU becomes four": (tree(listed(patch(main(4)))), False),
    "four by a JSON patch": (
        tree(
            listed(
                "- {op: replace, path: /spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu, value: 4}",
                "{kind: Deployment}",
            )
        ),
        False,
    ),
    "GPUs by the patch alone": (tree(listed(patch(main(4))), gpus=None), False),
    "an old list of patches": (tree("patchesStrategicMerge: [p.yaml]\n", over__p=patch(main(4))), False),
    "another model": (tree(listed(patch("{nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}}")), MODEL), False),
    "other tolerations": (tree(listed(patch("{tolerations: [{key: x, operator: Exists}]}"))), False),
    "the container with GPUs taken away": (tree(listed(patch("{containers: [{name: main, $patch: delete}]}"))), False),
    "a patch of everything, also of templates": (
        tree(listed("- {op: add, path: /spec/replicas, value: 3}", "{name: 'w.*'}")),
        False,
    ),
    "a component": (
        tree("components: [../parts]\n", parts__kustomization=COMPONENT + listed(patch(main(4)))),
        False,
    ),
    "a CRD, whose lists are replaced": (
        {
            "base/kustomization.yaml": "resources: [ray.yaml]\n",
            "base/ray.yaml": CLUSTER,
            "over/kustomization.yaml": "resources: [../base]\n"
            + listed(
                "{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: ray}, spec: {workerGroupSpecs: ["
                "{groupName: workers, replicas: 2, template: {spec: {containers: [{name: worker, image: i}]}}}]}}"
            ),
        },
        False,
    ),
    "a replacement": (
        tree(
            "replacements:\n- source: {kind: Deployment, name: web, "
            "fieldPath: 'spec.template.spec.containers.0.resources.limits.[nvidia.com/gpu]'}\n"
            "  targets:\n  - select: {kind: Deployment}\n    fieldPaths: [metadata.annotations.x]\n"
            "    options: {create: true}\n"
        ),
        False,
    ),
    "a claim beside by the patch": (
        {
            **tree(listed(patch("{resourceClaims: [{name: other, resourceClaimTemplateName: other}]}"))),
            "base/web.yaml": deployment() + CHANNEL,
        },
        False,
    ),
    "a prefix": (tree("namePrefix: x-\n"), False),
    "a transformer": (
        tree(
            "transformers: [t.yaml]\n",
            over__t="apiVersion: builtin\nkind: PrefixTransformer\nmetadata: {name: p}\nprefix: x-\n"
            "fieldSpecs: [{path: metadata/name}]\n",
        ),
        False,
    ),
}


@needs_kubectl
def test_kustomize_builds_of_the_result_what_the_migration_makes_of_what_it_built() -> None:
    names = {f"t{number}": name for number, name in enumerate(TREES)}
    converted = check_law({short: TREES[name][0] for short, name in names.items()})
    assert {names[short] for short in converted} == {name for name, (_, expected) in TREES.items() if expected}


@rows("name", TREES)
def test_what_nothing_patches_is_migrated_and_all_else_is_left_and_named(name: str) -> None:
    files, converted = TREES[name]
    result = migrated(files)
    targets = {workload.choice.target for workload in result.workloads}
    assert targets <= ({MigrationTarget.CLAIMS} if converted else {MigrationTarget.EXTENDED})
    if not converted:
        assert not result.changed
        findings = [
            finding
            for finding in result.findings
            if finding.code is NOT_EDITABLE and finding.place.file != "base/web.yaml"
        ]
        assert findings and all(
            "kustomize build over > rendered.yaml && dractl migrate" in finding.advice for finding in findings
        )
    assert after(migrated(after(result))) == after(result)


_TAKEN_AWAY = ("the container with GPUs taken away", "a CRD, whose lists are replaced")


LEFT = [name for name, (_, converted) in TREES.items() if not converted]


@needs_kubectl
@pytest.mark.parametrize("name", slow_but(LEFT, *LEFT[::3]))
def test_what_is_left_is_migrated_once_it_is_rendered(name: str) -> None:
    files, _ = TREES[name]
    rendered = "---\n".join(map(yaml.safe_dump, built({"ns": (files, top_of(files))})["ns"]))
    targets = [workload.choice.target for workload in migrated({"rendered.yaml": rendered}).workloads]
    assert targets == ([] if name in _TAKEN_AWAY else [MigrationTarget.CLAIMS])


def test_amounts_in_patches_stay_and_are_reported_with_extended_resources_too() -> None:
    result = migrated(TREES["one GPU becomes four"][0], Options())
    assert [workload.choice.target for workload in result.workloads] == [MigrationTarget.EXTENDED]
    (finding,) = [finding for finding in result.findings if finding.code is NOT_EDITABLE]
    assert "a patch that asks for GPUs" in finding.message


# -- trees of any shape

_PODS = ["", MODEL, TAINT, MODEL + TAINT]
_CHANGES = [
    "{nodeSelector: {zone: a}}",
    "{nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}}",
    "{nodeSelector: {nvidia.com/gpu.product: null}}",
    "{tolerations: [{key: other, operator: Exists}]}",
    "{tolerations: [{key: nvidia.com/gpu, operator: Exists}]}",
    "{priorityClassName: high}",
    "{containers: [{name: side, $patch: delete}]}",
    "{containers: [{name: more, image: i}]}",
    main(2),
    main(4, "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}, "),
    main(1, "tolerations: [{key: third, operator: Exists}], "),
    "{containers: [{name: side, resources: {limits: {nvidia.com/gpu: 1}}}]}",
    "{containers: [{name: main, resources: {limits: {memory: 1Gi}}}]}",
]
_MAIN = "/spec/template/spec/containers/0/resources"
_OPERATIONS = [
    "- {op: add, path: /spec/template/spec/priorityClassName, value: low}",
    "- {op: replace, path: /spec/template/spec/containers/0/image, value: other}",
    "- {op: add, path: /spec/template/spec/nodeSelector, value: {nvidia.com/gpu.memory: '81920'}}",
    f"- {{op: replace, path: {_MAIN}/limits/nvidia.com~1gpu, value: 3}}",
    f"- {{op: add, path: {_MAIN}/limits/nvidia.com~1gpu, value: 2}}",
    f"- {{op: remove, path: {_MAIN}/limits/nvidia.com~1gpu}}",
    f"- {{op: remove, path: {_MAIN}/limits}}",
    f"- {{op: remove, path: {_MAIN}}}",
    f"- {{op: add, path: {_MAIN}, value: {{limits: {{nvidia.com/gpu: 4}}}}}}",
    f"- {{op: add, path: {_MAIN}/requests, value: {{cpu: 1}}}}",
    "- {op: test, path: /spec/template/spec/containers/0/name, value: main}",
    f"- {{op: test, path: {_MAIN}/limits/nvidia.com~1gpu, value: 1}}",
    f"- {{op: copy, from: {_MAIN}, path: /spec/template/spec/containers/1/resources}}",
    f"- {{op: move, from: {_MAIN}, path: /spec/template/spec/containers/1/resources}}",
    "- {op: add, path: /spec/template/spec/containers/1/resources, value: {limits: {nvidia.com/gpu: 1}}}",
    "- {op: add, path: /spec/template/spec/containers/-, "
    "value: {name: z, image: i, resources: {limits: {nvidia.com/gpu: 1}}}}",
    "- {op: remove, path: /spec/template/spec/containers/1}",
    "- {op: remove, path: /spec/template/spec/containers/0}",
    "- {op: add, path: /spec/template/spec/tolerations, value: [{key: nvidia.com/gpu, operator: Exists}]}",
    "- {op: add, path: /spec/template/spec/nodeSelector, value: {nvidia.com/gpu.product: NVIDIA-H200}}",
    "- {op: remove, path: /spec/template/spec/nodeSelector}",
    "- {op: add, path: /spec/template/spec/runtimeClassName, value: nvidia}",
]
_RENAMES = ["", "namePrefix: x-\n", "nameSuffix: -y\n", "commonAnnotations: {a: b}\n"]
_TARGETS = ["", "{kind: Deployment}", "{kind: Deployment, name: web}", "{kind: Deployment, labelSelector: 'no=such'}"]


@st.composite
def _over(draw: st.DrawFn, below: str) -> str:
    entries = [
        listed(patch(draw(st.sampled_from(_CHANGES))), draw(st.sampled_from(_TARGETS)))
        for _ in range(draw(st.integers(0, 2)))
    ]
    if draw(st.integers(0, 3)) == 0:
        entries.append(listed(draw(st.sampled_from(_OPERATIONS)), "{kind: Deployment}"))
    patches = "".join(entry.removeprefix("patches:\n") for entry in entries)
    return f"resources: [../{below}]\n{draw(st.sampled_from(_RENAMES))}" + (f"patches:\n{patches}" if patches else "")


@st.composite
def _trees(draw: st.DrawFn) -> Files:
    pod, gpus = draw(st.sampled_from(_PODS)), draw(st.sampled_from([1, 2, "'1'", None]))
    base = using(deployment(pod + OTHER, gpus)) + CHANNEL if draw(st.booleans()) else deployment(pod, gpus)
    files = {**BASE, "base/web.yaml": base, "over/kustomization.yaml": draw(_over("base"))}
    return {**files, "top/kustomization.yaml": draw(_over("over"))} if draw(st.booleans()) else files


@needs_kubectl
@settings(
    max_examples=examples(3), deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow]
)
@given(st.lists(_trees(), min_size=12, max_size=12))
def test_of_trees_of_any_shape_the_same_is_true(trees: list[Files]) -> None:
    check_law({f"t{number}": files for number, files in enumerate(filter(builds, trees))})


POD = {"containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}

# -- what is said


def test_a_kustomization_that_kustomize_would_not_read_ends_nothing() -> None:
    odd = {"resources": "{}", "patches": "[3, {path: gone.yaml}, {patch: '{'}]", "replacements": "[x, {path: y}]"}
    for name, value in odd.items():
        files = {**tree(f"{name}: {value}\nvars: [{{}}]\n"), "over/kustomization.yaml": f"{name}: {value}\n"}
        assert [workload.choice.target for workload in migrated(files).workloads] == [MigrationTarget.CLAIMS]


def test_a_patch_of_what_is_not_here_stays_and_says_so() -> None:
    over = "resources: ['https://example.com/base?ref=v1']\n" + listed(patch(main(4)))
    result = migrated({"over/kustomization.yaml": over})
    assert not result.changed
    (finding,) = [finding for finding in result.findings if finding.code is NOT_EDITABLE]
    assert (finding.severity, finding.place.line) == (Severity.WARNING, 3)


@pytest.mark.parametrize("depth", [300, 900, 990, 5000])
def test_a_patch_that_is_nested_too_deep_to_read_stops_nothing(depth: int) -> None:
    files = {"kustomization.yaml": "resources: [web.yaml]\npatches: [{path: deep.yaml}]\n", "web.yaml": deployment()}
    result = migrated({**files, "deep.yaml": f"a: {'[' * depth}{']' * depth}\n"})
    assert any(finding.code is NOT_EDITABLE and "cannot be read" in finding.message for finding in result.findings)


def test_a_json_file_that_a_kustomization_lists_is_rendered_first() -> None:
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": POD})
    result = migrated({"kustomization.yaml": "resources:\n- pod.json\n", "pod.json": pod})
    assert not result.changed
    assert "JSON" in result.workloads[0].choice.reason


def two_folders(kind: str = "Kustomization", **more: str) -> Files:
    """`one` has a patch that takes GPUs away; `two` has an object of the same name, and no patch."""
    taken = patch("{containers: [{name: main, resources: {limits: {nvidia.com/gpu: null}}}]}")
    kustomization = f"kind: {kind}\nresources: [web.yaml]\npatches: [{{path: patch.yaml}}]\n"
    if kind == "Component":
        kustomization = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{path: patch.yaml}]\n"
    return {
        "one/kustomization.yaml": kustomization,
        **({"one/web.yaml": deployment()} if kind != "Component" else {}),
        "one/patch.yaml": taken,
        "two/kustomization.yaml": "resources: [web.yaml]\n",
        "two/web.yaml": deployment(),
        **more,
    }


def targets(files: Files) -> dict[str, MigrationTarget]:
    return {workload.pod.document.file: workload.choice.target for workload in migrated(files).workloads}


@pytest.mark.parametrize("form", ["file", "inline"])
def test_a_patch_is_for_what_its_own_kustomization_builds(form: str) -> None:
    """Not for what has the same name in a folder that has nothing to do with it."""
    files = dict(two_folders())
    if form == "inline":
        text = files.pop("one/patch.yaml").strip()
        files["one/kustomization.yaml"] = f"resources: [web.yaml]\npatches:\n- patch: |\n    {text}\n"
    target_of = targets(files)
    assert target_of["one/web.yaml"] is not MigrationTarget.CLAIMS
    assert target_of["two/web.yaml"] is MigrationTarget.CLAIMS


def test_a_patch_is_for_what_is_built_on_too() -> None:
    files = {**two_folders(), "one/kustomization.yaml": "resources: [../two]\npatches: [{path: patch.yaml}]\n"}
    assert targets(files)["two/web.yaml"] is not MigrationTarget.CLAIMS


def test_patches_of_a_component_are_for_all_that_it_is_put_together_with() -> None:
    over = {"all/kustomization.yaml": "resources: [../two]\ncomponents: [../one]\n"}
    assert targets(two_folders("Component", **over))["two/web.yaml"] is not MigrationTarget.CLAIMS
    assert targets(two_folders("Component"))["two/web.yaml"] is MigrationTarget.CLAIMS


# -- large trees


def large(pairs: int) -> list[ManifestText]:
    """Each a base of some files and an overlay with a patch."""
    operation = "- {op: replace, path: /spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu, value: 4}"
    files = {}
    for pair in range(pairs):
        names = [f"w{pair}x{number}" for number in range(6)]
        for number, name in enumerate(names):
            files[f"a{pair}/base/{name}.yaml"] = deployment("", 1 if number < 2 else None, name)
        files[f"a{pair}/base/kustomization.yaml"] = "resources:\n" + "".join(f"- {name}.yaml\n" for name in names)
        patch = listed(operation, f"{{kind: Deployment, name: {names[0]}}}")
        files[f"a{pair}/over/kustomization.yaml"] = f"resources: [../base]\n{patch}"
    return [ManifestText(file, text) for file, text in files.items()]


def test_twice_the_tree_is_twice_the_work() -> None:
    """Counted, not timed: how often something of ours or of the standard library is called."""
    few, many = (steps(lambda pairs=pairs: migrate(large(pairs), CLAIMS)) for pairs in (15, 30))
    assert many < 2.2 * few
