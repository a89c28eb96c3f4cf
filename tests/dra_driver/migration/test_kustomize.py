"""Whether kustomize builds of migrated folders what the migration makes of what it built before.

The oracle is `kubectl kustomize` where there is one; what is known without it is said by values.
"""

import json

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
    check_law,
    deployment,
    followed,
    keeps_labels,
    listed,
    main,
    migrated,
    needs_kubectl,
    objects,
    patch,
    put_back,
    tree,
)

from dra_driver.migration.codes import ALREADY_DRA, NOT_EDITABLE, Severity
from dra_driver.migration.model import Options, StrategyOption, Target

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


JSON_OF_NODES = "- {op: replace, path: /spec/template/spec/nodeSelector/nvidia.com~1gpu.product, value: NVIDIA-H200}"

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


WITH_OTHER = (
    "{resourceClaims: [{name: other, resourceClaimTemplateName: other}], containers: [{name: main, resources: %s}]}"
)


TREES: dict[str, tuple[Files, bool]] = {
    "no patch": (tree("", MODEL), True),
    "one GPU becomes four": (tree(listed(patch(main(4)))), True),
    "four of the base's model": (tree(listed(patch(main(4))), MODEL), True),
    "four with the base's toleration": (tree(listed(patch(main(4))), TAINT), True),
    "GPUs by the patch alone": (tree(listed(patch(main(4))), TAINT, gpus=None), True),
    "another model and four": (
        tree(listed(patch(main(4, "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}, "))), MODEL),
        True,
    ),
    "another model": (tree(listed(patch("{nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}}")), MODEL), False),
    "another model by a JSON patch": (tree(listed(JSON_OF_NODES, "{kind: Deployment}"), MODEL), True),
    "another zone": (tree(listed(patch("{nodeSelector: {zone: a}}")), MODEL), True),
    "other tolerations": (tree(listed(patch("{tolerations: [{key: x, operator: Exists}]}"))), False),
    "a toleration more by a JSON patch": (
        tree(
            listed(
                "- {op: add, path: /spec/template/spec/tolerations/-, value: {key: b}}", "{name: web, kind: Deployment}"
            ),
            TAINT,
        ),
        True,
    ),
    "the same once more": (tree(listed(patch(main(1)))), True),
    "the same in two components": (
        tree(
            "components: [../parts/a, ../parts/b]\n",
            gpus=None,
            **{
                f"parts__{one}__kustomization": "kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\n"
                + listed(patch(main(4)))
                for one in "ab"
            },
        ),
        True,
    ),
    "one of several files": (
        {
            "base/a.yaml": deployment(),
            "base/b.yaml": deployment(),
            "over/kustomization.yaml": "resources: [../base]\n",
            "base/kustomization.yaml": "resources: [b.yaml]\n",
        },
        True,
    ),
    "more pods": (
        tree("replicas: [{name: web, count: 3}]\nimages: [{name: registry.example.com/web, newTag: v2}]\n"),
        True,
    ),
    "a prefix": (tree("namePrefix: x-\nnamespace: ml\n", MODEL), True),
    "a prefix and four": (tree("nameSuffix: -x\n" + listed(patch(main(4)))), True),
    "a prefix in the middle": (
        {
            **tree("namePrefix: a-\n"),
            "top/kustomization.yaml": "resources: [../over]\nnameSuffix: -z\n" + listed(patch(main(4), "a-web")),
        },
        True,
    ),
    "a CRD and a prefix": (
        {
            "base/kustomization.yaml": "resources: [ray.yaml]\n",
            "base/ray.yaml": CLUSTER,
            "over/kustomization.yaml": "resources: [../base]\nnamePrefix: x-\n",
        },
        True,
    ),
    "a component": (
        tree(
            "components: [../parts/four]\n",
            parts__four__kustomization="kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\n"
            + listed(patch(main(4))),
        ),
        True,
    ),
    "a patch of everything": (
        tree(listed("- {op: add, path: /spec/replicas, value: 3}", "{name: 'w.*'}")),
        True,
    ),
    "a patch in a file for a name": (
        tree("patches: [{path: p.yaml, target: {kind: Deployment}}]\n", over__p=patch(main(4), "whatever")),
        True,
    ),
    "an old list of patches": (tree("patchesStrategicMerge: [p.yaml]\n", over__p=patch(main(4))), True),
    "no GPUs for a test": (tree(listed(patch(main("null")))), False),
    "a container less": (tree(listed(patch("{containers: [{name: side, $patch: delete}]}"))), True),
    "a channel beside": (beside(""), True),
    "four beside a channel": (beside(listed(patch(main(4))), OTHER + TAINT), True),
    "four by the patch alone beside a channel": (beside(listed(patch(main(4))), gpus=None), True),
    "a channel and four by the patch": (
        {
            **tree(listed(patch(WITH_OTHER % "{limits: {nvidia.com/gpu: 4}, claims: [{name: other}]}")), gpus=None),
            "base/other.yaml": CHANNEL,
            "base/kustomization.yaml": "resources: [web.yaml, other.yaml]\n",
        },
        True,
    ),
    "a channel by the patch": (
        {
            **tree(listed(patch(WITH_OTHER % "{claims: [{name: other}]}"))),
            "base/other.yaml": CHANNEL,
            "base/kustomization.yaml": "resources: [web.yaml, other.yaml]\n",
        },
        False,
    ),
    "the container with GPUs taken away": (tree(listed(patch("{containers: [{name: main, $patch: delete}]}"))), False),
}


@needs_kubectl
def test_kustomize_builds_of_the_result_what_the_migration_makes_of_what_it_built() -> None:
    names = {f"t{number}": name for number, name in enumerate(TREES)}
    converted = check_law({short: TREES[name][0] for short, name in names.items()})
    assert {names[short] for short in converted} == {name for name, (_, expected) in TREES.items() if expected}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_converted_where_its_parts_can_be_and_left_alone_and_told_otherwise(name: str) -> None:
    files, converted = TREES[name]
    result = migrated(files)
    targets = {one.choice.target for one in result.workloads}
    assert targets == ({Target.CLAIMS} if converted else {Target.EXTENDED})
    if not converted:
        assert not result.changed
        assert all("kubectl kustomize" in one.choice.reason for one in result.workloads)
    assert after(migrated(after(result))) == after(result)
    assert put_back(files) == {name: objects(text) for name, text in files.items()}


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
    patches = "".join(one.removeprefix("patches:\n") for one in entries)
    return f"resources: [../{below}]\n{draw(st.sampled_from(_RENAMES))}" + (f"patches:\n{patches}" if patches else "")


@st.composite
def _trees(draw: st.DrawFn) -> Files:
    pod, gpus = draw(st.sampled_from(_PODS)), draw(st.sampled_from([1, 2, "'1'", None]))
    base = using(deployment(pod + OTHER, gpus)) + CHANNEL if draw(st.booleans()) else deployment(pod, gpus)
    files = {**BASE, "base/web.yaml": base, "over/kustomization.yaml": draw(_over("base"))}
    return {**files, "top/kustomization.yaml": draw(_over("over"))} if draw(st.booleans()) else files


@needs_kubectl
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(st.lists(_trees(), min_size=12, max_size=12))
def test_of_trees_of_any_shape_the_same_is_true(trees: list[Files]) -> None:
    check_law({f"t{number}": files for number, files in enumerate(filter(followed, trees))})


# -- what is written


def test_a_kustomization_that_kustomize_would_not_read_is_told_and_ends_nothing() -> None:
    bounds = "{type: Container, max: {nvidia.com/gpu: 4}}, {type: Pod, max: {nvidia.com/gpu: 8}}"
    head = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: gpus}\n"
    files = {
        "over/kustomization.yaml": "resources: {}\nconfigMapGenerator: [{name: x, files: [limits.yaml]}]\n",
        "over/limits.yaml": f"{head}spec: {{limits: [{bounds}]}}\n",
        "web.yaml": deployment(),
    }
    result = migrated(files, Options(strategy=StrategyOption.CLAIMS))
    (said,) = [one for one in result.findings if "resources is a map" in one.message]
    assert (said.code, said.severity, said.place.file) == (NOT_EDITABLE, Severity.ERROR, "over/kustomization.yaml")
    assert after(result)["over/kustomization.yaml"] == files["over/kustomization.yaml"]


def test_names_of_templates_are_made_known_to_kustomize_where_it_changes_them() -> None:
    result = migrated(TREES["a CRD and a prefix"][0])
    texts = after(result)
    assert yaml.safe_load(texts["over/kustomization.yaml"])["configurations"] == ["gpu-names.yaml"]
    (reference,) = yaml.safe_load(texts["over/gpu-names.yaml"])["nameReference"]
    path = "spec/workerGroupSpecs/template/spec/resourceClaims/resourceClaimTemplateName"
    assert reference == {
        "group": "resource.k8s.io",
        "kind": "ResourceClaimTemplate",
        "fieldSpecs": [{"path": path}],
    }
    (said,) = (one for one in result.findings if one.place.path == "namePrefix")
    assert (said.severity, said.fixed) == (Severity.INFO, True)


def test_files_of_a_folder_have_what_they_name_unless_kustomize_builds_them_together() -> None:
    """Many folders hold alternatives, of which one is applied."""
    apart = after(migrated({"a.yaml": deployment(), "b.yaml": deployment()}))
    assert [text.count("kind: ResourceClaimTemplate") for text in apart.values()] == [1, 1]
    together = {"a.yaml": deployment(), "p.yaml": patch(main(1)), "kustomization.yaml": "resources: [a.yaml]\n"}
    found = after(migrated({**together, "kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p.yaml}]\n"}))
    assert [text.count("kind: ResourceClaimTemplate") for text in found.values()] == [1, 0, 0]


def test_names_that_are_known_already_are_added_to() -> None:
    first = after(migrated(TREES["a prefix"][0]))
    files = {**first, "base/ray.yaml": CLUSTER, "base/kustomization.yaml": "resources: [web.yaml, ray.yaml]\n"}
    names = yaml.safe_load(after(migrated(files))["over/gpu-names.yaml"])["nameReference"][0]["fieldSpecs"]
    assert [one["path"].partition("/resourceClaims")[0] for one in names] == [
        "spec/template/spec",
        "spec/workerGroupSpecs/template/spec",
    ]


def test_names_in_texts_are_not_changed_by_kustomize_and_that_is_told() -> None:
    flow = """apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: flow}
spec: {templates: [{name: a, container: {name: main, image: i, resources: {limits: {nvidia.com/gpu: 1}}}}]}
"""
    result = migrated({"kustomization.yaml": "namePrefix: x-\nresources: [flow.yaml]\n", "flow.yaml": flow})
    said = [one for one in result.findings if one.code is NOT_EDITABLE]
    assert [(one.place.path, one.severity) for one in said] == [("namePrefix", Severity.ERROR)]


def test_names_in_patches_that_a_kustomization_has_inside_are_changed_by_kustomize_like_others() -> None:
    """They are texts in its file, and fields once they are put over the pod."""
    result = migrated(tree("namePrefix: x-\n" + listed(patch(main(4)))))
    said = [one for one in result.findings if one.code is NOT_EDITABLE]
    assert [(one.place.path, one.severity) for one in said] == [("namePrefix", Severity.INFO)]
    assert "spec/template/spec/resourceClaims/resourceClaimTemplateName" in after(result)["over/gpu-names.yaml"]


def side_by_side(first: str = "", *, second: str = "namePrefix: b-\n") -> Files:
    return {
        **tree(""),
        "over/kustomization.yaml": f"resources: [../base]\nnamePrefix: a-\n{first}",
        "more/kustomization.yaml": f"resources: [../base]\n{second}",
        "top/kustomization.yaml": "resources: [../over, ../more]\n",
    }


@needs_kubectl
def test_a_base_that_is_built_twice_under_different_names_has_a_template_under_each() -> None:
    trees = {
        "prefixes": side_by_side(),
        "and-a-patch": side_by_side(listed(patch(main(4)))),
        "one-prefix": side_by_side(second=""),
    }
    assert check_law(trees) == trees.keys()


def test_labels_that_a_patch_puts_on_a_pod_stay_and_that_is_told() -> None:
    result = migrated(tree(listed(patch("{nodeSelector: {nvidia.com/gpu.family: hopper}}"), "{kind: Deployment}")))
    assert [one.choice.target for one in result.workloads] == [Target.CLAIMS]
    assert keeps_labels(result)
    said = [one.message for one in result.findings if one.code is NOT_EDITABLE and one.place.path == ""]
    assert said == ["a patch chooses nodes of Deployment web by nvidia.com/gpu.family, which stays with the pod"]


def test_a_patch_of_what_is_not_here_stays_and_that_is_told() -> None:
    over = "resources: ['https://example.com/base?ref=v1']\n" + listed(patch(main(4)))
    result = migrated({"over/kustomization.yaml": over})
    assert not result.changed
    assert [one.choice.target for one in result.workloads] == [Target.EXTENDED]
    assert "not among the files" in result.workloads[0].choice.reason


def test_the_template_of_a_json_file_stands_where_kustomize_builds_it() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": yaml.safe_load(main(1))}
    files = {"kustomization.yaml": "resources:\n- pod.json\n", "pod.json": json.dumps(pod, indent=2)}
    result = migrated(files)
    assert [one.choice.target for one in result.workloads] == [Target.CLAIMS]
    found = after(result)
    assert yaml.safe_load(found["kustomization.yaml"])["resources"] == ["pod.json", "gpu-claims.yaml"]
    assert found["gpu-claims.yaml"].count("kind: ResourceClaimTemplate") == 1


# -- migrated by half

OF_GPUS = claim_of("gpu.nvidia.com")
ADDED = """\
- op: add
      path: /spec/template/spec/resourceClaims
      value: [{name: other, resourceClaimTemplateName: other}]
"""


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (beside(listed(patch(main(2))), gpus=None, other=OF_GPUS), "over/kustomization.yaml"),
        (beside(listed(patch(main(2))), gpus=None, other=""), "over/kustomization.yaml"),
        (
            {**tree(listed(patch(WITH_OTHER % "{claims: [{name: other}]}"))), "base/web.yaml": deployment() + OF_GPUS},
            "base/web.yaml",
        ),
        (
            {**tree(listed(ADDED, "{kind: Deployment}")), "base/web.yaml": deployment() + OF_GPUS},
            "over/kustomization.yaml",
        ),
    ],
    ids=["GPUs of a patch", "nobody knows what the claim is of", "claims of a patch", "claims of a JSON patch"],
)
def test_a_tree_whose_parts_have_gpus_in_both_ways_is_an_error_and_is_left(files: Files, place: str) -> None:
    for strategy in StrategyOption:
        result = migrated(files, Options(strategy=strategy))
        said = [one for one in result.findings if one.code is ALREADY_DRA and one.severity is Severity.ERROR]
        assert ({one.choice.target for one in result.workloads}, result.changed) == ({Target.LEAVE}, False)
        assert [one.place.file for one in said] == [place]
        assert all("(base/web.yaml, over/kustomization.yaml together)" in one.message for one in said)


def test_where_the_patch_takes_the_old_request_away_nothing_is_asked_for_twice() -> None:
    away = WITH_OTHER % "{limits: {nvidia.com/gpu: null}, claims: [{name: other}]}"
    result = migrated({**tree(listed(patch(away))), "base/web.yaml": deployment() + OF_GPUS})
    assert not any(one.severity is Severity.ERROR for one in result.findings)


def two_folders(kind: str = "Kustomization", **more: str) -> Files:
    """`one` has a patch that takes GPUs away; `two` has an object of the same name, and no patch."""
    taken = patch("{containers: [{name: main, resources: {limits: {nvidia.com/gpu: null}}}]}")
    one = f"kind: {kind}\nresources: [web.yaml]\npatches: [{{path: patch.yaml}}]\n"
    if kind == "Component":
        one = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{path: patch.yaml}]\n"
    return {
        "one/kustomization.yaml": one,
        **({"one/web.yaml": deployment()} if kind != "Component" else {}),
        "one/patch.yaml": taken,
        "two/kustomization.yaml": "resources: [web.yaml]\n",
        "two/web.yaml": deployment(),
        **more,
    }


def targets(files: Files) -> dict[str, Target]:
    return {one.pod.document.file: one.choice.target for one in migrated(files).workloads}


@pytest.mark.parametrize("form", ["file", "inline"])
def test_a_patch_is_for_what_its_own_kustomization_builds(form: str) -> None:
    """Not for what has the same name in a folder that has nothing to do with it."""
    files = dict(two_folders())
    if form == "inline":
        text = files.pop("one/patch.yaml").strip()
        files["one/kustomization.yaml"] = f"resources: [web.yaml]\npatches:\n- patch: |\n    {text}\n"
    found = targets(files)
    assert found["one/web.yaml"] is not Target.CLAIMS
    assert found["two/web.yaml"] is Target.CLAIMS


def test_a_patch_is_for_what_is_built_on_too() -> None:
    files = {**two_folders(), "one/kustomization.yaml": "resources: [../two]\npatches: [{path: patch.yaml}]\n"}
    assert targets(files)["two/web.yaml"] is not Target.CLAIMS


def test_patches_of_a_component_are_for_all_that_it_is_put_together_with() -> None:
    over = {"all/kustomization.yaml": "resources: [../two]\ncomponents: [../one]\n"}
    assert targets(two_folders("Component", **over))["two/web.yaml"] is not Target.CLAIMS
    assert targets(two_folders("Component"))["two/web.yaml"] is Target.CLAIMS
