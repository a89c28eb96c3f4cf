"""A bundle has what a support case needs, no secret, and no name when names are to be replaced."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.installation import NAMESPACE, NODES, NOW, FakeKube, Installation, Obj
from support.inventories import gpu_uuid

from dra_driver.cli.doctor import put_cluster, report_of_bundle, shipped_checks
from dra_driver.doctor.archive import Bundle, Logs, stored
from dra_driver.doctor.findings import examined
from dra_driver.doctor.redaction import Anonymity
from dra_driver.errors import InvalidInput, NodeNotReady, Unreachable, UnreadableFile

RELEASE = "0.1.0"
SECRET = "hunter2-Vx9"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"
KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----"
PLANTED = (SECRET, JWT, "MIIEvQIBADANBg")


def log_of(pod: str, *, previous: bool = False) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/log{'?previous' if previous else ''}"


def metrics_of(pod: str) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics"


@pytest.fixture
def kube() -> FakeKube:
    kube = FakeKube(Installation())
    for pod in kube.installation.objects["pods"]:
        kube.texts[log_of(pod)] = f"{pod} works on gpu-1\nclaim team-a/train: prepared"
    kube.texts[metrics_of("controller-0")] = 'gpu_dra_build_info{component="controller",version="0.1.0"} 1'
    return kube


def plant(kube: FakeKube) -> None:
    """A secret in every place that one could be in."""
    it = kube.installation
    fields = (("env", [{"name": "PLAIN", "value": SECRET}]), ("lifecycle", {"preStop": {"exec": {"command": [KEY]}}}))
    for obj in _pod_specs(it):
        for container in obj["containers"]:
            container.update(dict(fields))
            container["args"] = [*container.get("args", []), "--token", SECRET, f"--registry-password={SECRET}"]
            header = {"name": "Authorization", "value": SECRET}
            container["livenessProbe"] = {"httpGet": {"path": "/", "httpHeaders": [header]}}
    for objects in it.objects.values():
        for obj in objects.values():
            metadata = obj["metadata"]
            metadata["annotations"] = {
                **metadata.get("annotations", {}),
                "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"password": SECRET}),
                "team.example/whatever": SECRET,
                "dra.gpu/note": f"token={SECRET}",
            }
            metadata["managedFields"] = [{"manager": SECRET}]
    it.objects["configmaps"]["policy"]["data"] |= {"other": SECRET, "certificate": KEY}
    it.objects["configmaps"]["policy"]["data"]["policy.yaml"] += f"# password: {SECRET}\n"
    it.objects["configmaps"]["policy"]["binaryData"] = {"a": SECRET}
    it.add("secrets", {"metadata": {"name": "key", "namespace": NAMESPACE}, "data": {"a": SECRET}})
    request = it.claim["spec"]["devices"]
    request["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"apiToken": SECRET}}}]
    it.pod()["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"message": f"password={SECRET}"}}
    it.add(
        "events",
        {
            "metadata": {"name": "e", "namespace": NAMESPACE, "uid": "uid-e"},
            "message": f"failed with Bearer {SECRET}12345",
            "involvedObject": {"kind": "Pod", "name": "plugin-gpu-1"},
        },
    )
    lines = [f"password={SECRET}", f"GET https://u:{SECRET}@host/", f"token {JWT}", *KEY.split("\n"), "the end"]
    kube.texts[log_of("plugin-gpu-1")] = "\n".join(lines)
    kube.texts[metrics_of("controller-0")] = f'calls{{url="https://u:{SECRET}@host"}} 1'
    kube.fail["deviceclasses"] = Unreachable(f"proxy said: authorization: {SECRET}", status=502)


def _pod_specs(it: Installation) -> Iterator[Obj]:
    for plural in ("daemonsets", "deployments"):
        yield from (workload["spec"]["template"]["spec"] for workload in it.objects[plural].values())
    yield from (pod["spec"] for pod in it.objects["pods"].values())


async def bundled(kube: FakeKube, folder: Path, *, anonymous: bool = False, lines: int = 100) -> Path:
    staging = folder / "staging"
    staging.mkdir()
    made = Bundle(staging, Anonymity() if anonymous else None)
    await put_cluster(made, kube, None, lines, now=lambda: NOW)
    made.pack(folder / "bundle.tar.gz", release=RELEASE, time=NOW)
    return folder / "bundle.tar.gz"


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


async def test_no_planted_secret_is_in_it(kube: FakeKube, tmp_path: Path) -> None:
    plant(kube)
    path = await bundled(kube, tmp_path)
    everything = gzip.decompress(path.read_bytes()).decode(errors="replace")
    for planted in PLANTED:
        assert planted not in everything
    assert "<redacted>" in everything
    assert "the end" in contents(path)[f"gpu-dra-bundle/logs/{NAMESPACE}/plugin-gpu-1/plugin.log"]
    assert not [request for request in kube.asked if "secret" in request]


async def test_what_was_planted_was_there_to_be_found(kube: FakeKube) -> None:
    """The test before could not fail otherwise."""
    plant(kube)
    stored_text = json.dumps([obj for _, obj in kube.installation.kept_objects()])
    for planted in PLANTED[:1]:
        assert stored_text.count(planted) > 50


async def test_it_has_objects_logs_metrics_versions_and_what_the_doctor_says(kube: FakeKube, tmp_path: Path) -> None:
    kube.installation.pod()["status"]["containerStatuses"][0]["restartCount"] = 1
    kube.texts[log_of("plugin-gpu-1", previous=True)] = "the run before"
    files = {
        name.removeprefix("gpu-dra-bundle/"): text for name, text in contents(await bundled(kube, tmp_path)).items()
    }
    assert {name for name in files if not name.startswith(("logs/", "cluster/"))} == {
        *("README.txt", "bundle.json", "doctor.json", "doctor.txt", "errors.txt"),
        f"metrics/{NAMESPACE}/controller-0.txt",
    }
    nodes = json.loads(files["cluster/nodes.json"])
    assert [(node["metadata"]["name"], node["kind"]) for node in nodes] == [
        (name, "Node") for name in (*NODES, "plain")
    ]
    assert {name.partition(".")[0] for name in files if name.startswith("cluster/")} == {
        f"cluster/{plural}"
        for plural in (
            *("nodes", "nodeinventories", "resourceslices", "resourceclaims", "deviceclasses", "pods", "facts"),
            *("customresourcedefinitions", "daemonsets", "deployments", "configmaps", "leases", "namespaces"),
            *("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        )
    }
    assert files[f"logs/{NAMESPACE}/plugin-gpu-1/plugin.previous.log"] == "the run before\n"
    assert "logs/team-a/train/main.log" not in files
    assert json.loads(files["doctor.json"])["counts"]["ok"] == len(shipped_checks())
    assert json.loads(files["bundle.json"]) == {
        "format": 1,
        "release": RELEASE,
        "time": NOW.isoformat(),
        "anonymous": False,
    }


async def test_what_could_not_be_read_is_listed_and_stops_nothing(kube: FakeKube, tmp_path: Path) -> None:
    kube.refuse = {"resourceslices", "create resourceslices", log_of("plugin-gpu-1")}
    kube.fail = {"leases": Unreachable("etcd is slow", status=503)}
    files = contents(await bundled(kube, tmp_path))
    errors = files["gpu-dra-bundle/errors.txt"].splitlines()
    assert "resourceslices: you may not list resourceslices.resource.k8s.io" in errors
    assert "leases: etcd is slow" in errors
    assert any(error.startswith(f"logs/{NAMESPACE}/plugin-gpu-1/plugin.log: ") for error in errors)
    assert any(error.startswith(f"metrics/{NAMESPACE}/controller-1.txt: ") for error in errors)
    assert any("create resourceslices.resource.k8s.io" in error for error in errors)
    assert f"gpu-dra-bundle/logs/{NAMESPACE}/plugin-gpu-2/plugin.log" in files


@pytest.mark.parametrize("anonymous", [False, True])
async def test_the_doctor_finds_in_it_what_it_finds_in_the_cluster(
    kube: FakeKube, tmp_path: Path, *, anonymous: bool
) -> None:
    """With much that is wrong: names that belong together still do when they are replaced."""
    it = kube.installation
    it.drop("pods", "plugin-gpu-1")
    it.drop("pods", "train")
    it.node("gpu-2")["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    it.inventory("gpu-2")["spec"]["registrations"] = []
    it.slice()["spec"]["pool"]["resourceSliceCount"] = 2
    it.policy(publihs=[])
    it.objects["leases"]["controller"]["spec"]["renewTime"] = (NOW - timedelta(minutes=5)).isoformat()
    live = [(finding.check, finding.verdict, finding.trouble) for finding in examined(shipped_checks(), it.cluster)]
    later = report_of_bundle(await bundled(kube, tmp_path, anonymous=anonymous))
    assert [(finding.check, finding.verdict, finding.trouble) for finding in later.findings] == live
    assert len({trouble for _, _, trouble in live if trouble}) >= 8


async def test_no_name_is_in_it_when_names_are_replaced(kube: FakeKube, tmp_path: Path) -> None:
    it = kube.installation
    it.node()["metadata"]["labels"]["kubernetes.io/hostname"] = "gpu-1"
    it.node()["status"]["addresses"] = [{"type": "InternalIP", "address": "10.1.2.3"}]
    it.pod()["status"]["podIP"] = "10.1.2.3"
    it.domain()["metadata"]["name"] = "gb200-of-acme"
    it.inventory()["spec"]["gpus"][0]["serial"] = "1652922000123"
    kube.texts[log_of("plugin-gpu-1")] = (
        f"node gpu-1: GPU {gpu_uuid(0)} ({it.inventory()['spec']['gpus'][0]['name']}) for team-a/train,"
        " asked by 10.1.2.3; slice 00000-gpu.nvidia.com-gpu-1-x7k2p, serial 1652922000123, from fd00:10:2:0:0:0:0:1"
    )
    path = await bundled(kube, tmp_path, anonymous=True)
    files = contents(path)
    everything = "\n".join([*files, *(text for name, text in files.items() if not name.endswith("README.txt"))])
    for name in (
        *NODES,
        "team-a",
        "train",
        "plugin-gpu",
        gpu_uuid(0),
        "10.1.2.3",
        "1652922000123",
        "fd00:10",
        "gb200-of-acme",
    ):
        assert not re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", everything), name
    assert f":{NAMESPACE}:" not in everything
    assert f"/{NAMESPACE}/" not in everything
    (log,) = [text for name, text in files.items() if name.endswith("/plugin.log") and "for namespace" in text]
    inventory = json.loads(files["gpu-dra-bundle/cluster/nodeinventories.dra.gpu.json"])[0]
    node, gpu = inventory["metadata"]["name"], inventory["spec"]["gpus"][0]
    assert node.startswith("node-")
    assert f"{node}: GPU {gpu['uuid']} ({gpu['name']})" in log
    assert f"slice 00000-gpu.nvidia.com-{node}-x7k2p" in log
    assert gpu["name"] == f"gpu-{gpu['uuid'][4:12]}"
    assert gpu["productName"] == "NVIDIA H100 80GB HBM3"
    assert stored(path).anonymous


def test_a_folder_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="cannot be read: Is a directory"):
        stored(tmp_path)


async def test_the_same_cluster_gives_the_same_archive(kube: FakeKube, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    archive, other = [await bundled(kube, tmp_path / name) for name in "ab"]
    assert archive.read_bytes() == other.read_bytes()
    with tarfile.open(archive) as tar:
        assert [member.name for member in tar] == sorted(member.name for member in tar)
        assert {member.mode for member in tar} == {0o600}
    assert archive.stat().st_mode & 0o777 == 0o600


async def test_of_long_logs_the_end_is_kept_and_of_too_many_those_that_are_not_well(tmp_path: Path) -> None:
    kube = FakeKube(Installation())
    kube.texts = {log_of(pod): f"{'x' * 99}\n" * 50 + f"last of {pod}" for pod in kube.installation.objects["pods"]}
    kube.installation.pod("plugin-gpu-2")["status"]["conditions"] = []
    (tmp_path / "staging").mkdir()
    made = Bundle(tmp_path / "staging")
    pods = tuple(pod for pod in kube.installation.cluster.pods.items if pod.program is not None)
    await Logs(kube, made, lines=10, most_bytes=1000, left_bytes=1500).read(pods)
    made.pack(tmp_path / "b", release=RELEASE, time=NOW)
    files = contents(tmp_path / "b")
    log = files[f"gpu-dra-bundle/logs/{NAMESPACE}/plugin-gpu-2/plugin.log"]
    assert log.startswith("(earlier lines are left out")
    assert log.endswith("last of plugin-gpu-2\n")
    assert len(log) < 1200
    errors = files["gpu-dra-bundle/errors.txt"]
    assert errors.count("left out: all logs together are too long") == 2


def test_an_archive_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "staging").mkdir()
    with pytest.raises(NodeNotReady, match="File exists"):
        Bundle(tmp_path / "staging").pack(tmp_path / "there", release=RELEASE, time=NOW)
    assert (tmp_path / "there").read_text() == "mine"


def tar_of(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"gpu-dra-bundle/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a tar",
        gzip.compress(b"not a tar either"),
        tar_of(),
        tar_of(**{"bundle.json": "[]"}),
        tar_of(**{"bundle.json": '{"format": 2}'}),
        tar_of(**{"bundle.json": "{"}),
        tar_of(**{"bundle.json": '{"format": 1}', "cluster/nodes.json": "[\n{broken\n]"}),
        tar_of(**{"bundle.json": '{"format": 1}', "cluster/facts.json": "{}"}),
    ],
    ids=["empty", "no gzip", "no tar", "no description", "a list", "newer", "no JSON", "broken objects", "no facts"],
)
def test_what_is_no_bundle_is_refused_in_a_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidInput):
        report_of_bundle(tmp_path / "file")


async def test_a_bundle_that_was_cut_off_is_refused(kube: FakeKube, tmp_path: Path) -> None:
    path = await bundled(kube, tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InvalidInput):
        report_of_bundle(path)
