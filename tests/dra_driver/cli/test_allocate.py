"""`dractl allocate -f`: devices for what is in the files, as a user sees it."""

import json
from pathlib import Path

import pytest
import yaml
from support.allocation import gpu
from support.dra_objects import Obj, allocation, claim, claim_spec, request, resource_slice
from typer.testing import CliRunner, Result

from dra_driver.cli.main import app
from dra_driver.errors import DriverError
from dra_driver.terminal import Status


def _template(name: str) -> Obj:
    return {**claim(name), "kind": "ResourceClaimTemplate", "spec": {"spec": claim_spec()}}


def _deployment(name: str, replicas: int, template: str) -> Obj:
    entries = [{"name": "gpu", "resourceClaimTemplateName": template}]
    container = {"name": "main", "image": "image", "resources": {"claims": [{"name": "gpu"}]}}
    pod = {"spec": {"containers": [container], "resourceClaims": entries}}
    spec = {"replicas": replicas, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def _run(tmp_path: Path, *objects: Obj, options: tuple[str, ...] = ("-o", "json")) -> Result:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return CliRunner().invoke(app, ["allocate", "-f", str(path), *options])


def _devices(result: Result) -> list[tuple[str, str | None, list[str]]]:
    return [
        (
            placed["name"],
            placed["node"],
            [device["device"] for claim in placed["claims"] for device in claim["allocation"]["devices"]["results"]],
        )
        for placed in json.loads(result.stdout)
    ]


def test_each_claim_takes_what_it_got_from_those_after_it(tmp_path: Path) -> None:
    result = _run(tmp_path, resource_slice("gpus", gpu("gpu-0"), gpu("gpu-1")), claim("first"), claim("second"))
    assert result.exit_code == Status.DONE, result.stderr
    assert _devices(result) == [("first", "node-1", ["gpu-0"]), ("second", "node-1", ["gpu-1"])]


def test_what_does_not_fit_is_named_with_the_reason_and_the_exit_status_is_1(tmp_path: Path) -> None:
    result = _run(tmp_path, resource_slice("gpus", gpu("gpu-0")), claim("first"), claim("second"), options=())
    assert result.exit_code == Status.NO
    assert 'default/second  does not fit  -      -        1 node: request "gpu"' in result.stdout
    assert result.stderr == "dractl explain with the same options says why, and what would fit.\n"


def test_a_workload_counts_with_all_its_replicas(tmp_path: Path) -> None:
    objects = (
        resource_slice("gpus", gpu("gpu-0")),
        resource_slice("more-gpus", gpu("gpu-0"), node="node-2"),
        _template("one"),
    )
    result = _run(tmp_path, *objects, _deployment("web", 3, "one"))
    assert result.exit_code == Status.NO
    expected = [("web-0", "node-1", ["gpu-0"]), ("web-1", "node-2", ["gpu-0"]), ("web-2", None, [])]
    assert _devices(result) == expected


def test_devices_of_claims_in_the_files_that_have_some_are_in_use(tmp_path: Path) -> None:
    held = {**claim("held"), "status": {"allocation": allocation()}}  # of gpu-0
    result = _run(tmp_path, resource_slice("gpus", gpu("gpu-0"), gpu("gpu-1")), held, claim("new"))
    assert _devices(result) == [("new", "node-1", ["gpu-1"])]


def test_quiet_says_it_with_the_exit_status_alone(tmp_path: Path) -> None:
    result = _run(tmp_path, resource_slice("gpus", gpu("gpu-0")), claim("one"), options=("--quiet",))
    assert (result.exit_code, result.stdout) == (Status.DONE, "")


@pytest.mark.parametrize("version", ["36", "1.33", "2.0", "1.x"])
def test_a_version_that_has_no_claims_is_refused(tmp_path: Path, version: str) -> None:
    result = _run(tmp_path, resource_slice("gpus"), claim("one"), options=("--kubernetes", version))
    assert result.exit_code != Status.DONE
    assert "--kubernetes" in str(result.exception)


def test_a_claim_that_takes_too_many_steps_is_called_not_decided(tmp_path: Path) -> None:
    result = _run(
        tmp_path,
        claim("big", claim_spec(request(count=4))),
        resource_slice("gpus", *(gpu(f"gpu-{index}") for index in range(4))),
        options=("--steps", "3"),
    )
    assert result.exit_code == Status.NO
    assert "not decided: the search was ended after 3 steps" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    "metadata", [None, [], "a", 3, {}, {"name": None}, {"name": 3}, {"name": "a", "namespace": []}]
)
@pytest.mark.parametrize("kind", ["Pod", "Deployment", "CronJob", "JobSet", "ResourceClaim", "Node", "DeviceClass"])
def test_an_object_without_a_name_is_a_mistake_in_the_file_and_no_traceback(
    tmp_path: Path, kind: str, metadata: object
) -> None:
    workload = _deployment("a", 1, "t")
    obj = {**workload, "kind": kind, "metadata": metadata}
    result = _run(tmp_path, obj, claim("b"), resource_slice("gpus", gpu("gpu-0")))
    assert result.exception is None or isinstance(result.exception, SystemExit | DriverError), result.exception


def _with_gpus(count: int) -> Obj:
    return {"spec": {"containers": [{"name": "m", "image": "x", "resources": {"limits": {"nvidia.com/gpu": count}}}]}}


FRAMEWORKS = {
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": (
        {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": _with_gpus(4)}},
        ["a-0", "a-0-1", "a-1", "a-1-1"],
    ),
    "ray.io/v1 RayJob": (
        {"rayClusterSpec": {"headGroupSpec": {"template": _with_gpus(1)}, "workerGroupSpecs": []}},
        ["a-raycluster-head-0"],
    ),
    "kubeflow.org/v2beta1 MPIJob": (
        {"mpiReplicaSpecs": {"Launcher": {"template": _with_gpus(1)}, "Worker": {"template": _with_gpus(1)}}},
        ["a-launcher-0", "a-worker-0"],
    ),
    "batch.volcano.sh/v1alpha1 Job": (
        {"tasks": [{"name": "t", "replicas": 2, "template": _with_gpus(2)}]},
        ["a-t-0", "a-t-1"],
    ),
}


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_a_workload_of_a_framework_counts_with_all_its_pods(kind: str, tmp_path: Path) -> None:
    spec, pods = FRAMEWORKS[kind]
    version, name = kind.split()
    workload = {"apiVersion": version, "kind": name, "metadata": {"name": "a"}, "spec": spec}
    result = _run(tmp_path, workload, options=("--nodes", "dgx-h100:2", "-o", "json"))
    assert result.exit_code == Status.DONE
    assert sorted(placed["name"] for placed in json.loads(result.stdout)) == pods


def test_a_workload_that_is_not_valid_has_no_pods(tmp_path: Path) -> None:
    for spec in ({"pytorchReplicaSpecs": {"Worker": 3}}, {"pytorchReplicaSpecs": {"Worker": {"template": {}}}}):
        broken = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": spec}
        result = _run(tmp_path, broken, options=("--nodes", "t4"))
        assert isinstance(result.exception, DriverError) and "there is no waiting pod" in str(result.exception)
