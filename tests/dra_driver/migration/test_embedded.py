"""Manifests in ConfigMaps: they stay with the extended resource, unless a person who knows their reader names them."""

import json
from typing import Any

import pytest
import yaml
from support.rows import rows

from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import NOT_EDITABLE, FindingSeverity
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, StrategyOption
from dra_driver.migration.write.undo import undo

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: worker   # of whoever reads this
spec:
  containers:
  - name: base
    image: i
    resources: {limits: {nvidia.com/gpu: 1}}
"""
NAMED = Options(strategy_of=(("Pod/worker", StrategyOption.CLAIMS),))


def config_map(**data: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "team"}, "data": data}


def text_of(obj: JsonObject) -> str:
    return yaml.dump(obj, Dumper=_Blocks, sort_keys=False)


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as people write them."""


_Blocks.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def migrated(text: str, options: Options) -> Migration:
    return migrate([ManifestText("c.yaml", text)], options)


def objects(result: Migration) -> list[Any]:
    return list(yaml.safe_load_all(result.files[0].after))


@pytest.mark.parametrize("options", [Options(), Options(strategy=StrategyOption.CLAIMS)])
def test_it_stays_and_its_gpus_are_counted(options: Options) -> None:
    result = migrated(text_of(config_map(pod=POD)), options)
    (workload,) = result.workloads
    assert (result.changed, workload.choice.target, workload.pod.document.namespace) == (
        False,
        MigrationTarget.EXTENDED,
        "team",
    )
    assert "{name: Pod/worker, strategy: claims}" in workload.choice.reason
    assert not [one for one in result.findings if one.code is NOT_EDITABLE]


def test_what_the_extended_resource_cannot_say_is_an_error() -> None:
    result = migrated(text_of(config_map(pod=POD.replace("gpu:", "gpu.shared:"))), Options())
    assert [one.choice.target for one in result.workloads] == [MigrationTarget.LEAVE]
    said = [one.message for one in result.findings if one.severity is FindingSeverity.ERROR]
    assert len(said) == 1 and "{name: Pod/worker, strategy: claims}" in said[0]


@pytest.mark.parametrize(
    "pod", [POD, json.dumps(yaml.safe_load(POD)), f"---\n{POD}---\n{POD.replace('worker', 'other')}"]
)
def test_whoever_names_it_gets_claims_beside_the_config_map_and_the_way_back(pod: str) -> None:
    before = text_of(config_map(**{"pod.yaml": pod, "other": "1"}))
    result = migrated(before, NAMED)
    template, after = objects(result)
    assert template["metadata"]["namespace"] == "team"
    inner = next(yaml.safe_load_all(after["data"]["pod.yaml"]))
    assert inner["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert "nvidia.com/gpu" not in json.dumps(inner["spec"]["containers"])
    again = migrate([ManifestText("c.yaml", result.files[0].after)], NAMED)
    assert not again.changed
    assert not [one for one in again.findings if one.code is NOT_EDITABLE]
    back = undo([ManifestText("c.yaml", result.files[0].after)])
    assert list(yaml.safe_load_all(back.files[0].after)) == list(yaml.safe_load_all(before))


@rows(
    "text",
    [
        POD.replace("worker ", "'{{ user }}' "),
        POD.replace("image: i", "image: $(IMAGE)"),
        f"kubectl apply -f - <<END\n{POD}END\n",
        POD.replace("kind: Pod\n", ""),
        POD.replace("apiVersion: v1\n", ""),
        f"{POD}---\n{{limits: {{nvidia.com/gpu: 1}}}}\n",
        f"{POD}---\nlimits: [\n",
        "apiVersion: v1\nkind: LimitRange\nspec: {limits: [{default: {nvidia.com/gpu: 1}}]}\n",
        "apiVersion: v1\nkind: ResourceQuota\nspec: {hard: {requests.nvidia.com/gpu: 1}}\n",
    ],
)
def test_what_is_not_all_of_an_object_is_left_and_named(text: str) -> None:
    result = migrated(text_of(config_map(text=text)), NAMED)
    assert (result.changed, result.workloads) == (False, ())
    said = [one for one in result.findings if one.code is NOT_EDITABLE]
    assert [one.place.path for one in said] == ["data.text"]
    assert "dractl migrate -" in said[0].advice


@rows("generator", ["configMapGenerator", "secretGenerator"])
@rows("entry", ["pods/worker.yaml", "template=pods/worker.yaml", "./pods/worker.yaml"])
def test_a_file_that_a_kustomization_makes_a_text_of_is_such_a_text(generator: str, entry: str) -> None:
    kustomization = f"{generator}:\n- name: templates\n  files: [{entry}]\n"
    files = [ManifestText("k/kustomization.yaml", kustomization), ManifestText("k/pods/worker.yaml", POD)]
    result = migrate(files, Options(strategy=StrategyOption.CLAIMS))
    (workload,) = result.workloads
    assert (result.changed, workload.choice.target) == (False, MigrationTarget.EXTENDED)
    assert "ConfigMap or Secret" in workload.choice.reason
