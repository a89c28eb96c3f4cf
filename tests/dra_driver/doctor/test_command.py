"""`dractl doctor` and `dractl bundle` as users meet them: on a simulated cluster, and where the chart is installed."""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest
from support.dractl import dractl, run, troubles
from support.helm import Helm, Release, simulated_server
from support.objects import node

from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NODE_INVENTORIES,
    NODES,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.cli.doctor import shipped_checks
from dra_driver.cli.main import app
from dra_driver.doctor.api_server import OF_THE_CONTROLLER, OF_THE_PLUGIN
from dra_driver.doctor.findings import Diagnosis, DoctorReport, Verdict, rendered, summary
from dra_driver.errors import InvalidInput, NoSuchObject
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes
from dra_driver.terminal import Status, plain_errors


async def test_a_cluster_that_runs_is_well_and_what_is_broken_in_it_is_found(tmp_path: Path) -> None:
    """The simulated cluster, with the real controller and plugin as processes; then a bundle of it."""
    # A folder of pytest would be too long for sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        async with SimulatedCluster.running(Path(short), parse_nodes("t4")) as cluster:
            options = ("--kubeconfig", str(cluster.kubeconfig), "-o", "json")
            status, text = await dractl("doctor", "--strict", *options)
            assert troubles(text) == set()
            assert status == Status.DONE
            verdicts = {entry["check"]: entry["verdict"] for entry in json.loads(text)["findings"]}
            assert verdicts.pop("kubelet-gates") == "skipped", "simulated kubelets have no configuration to tell"
            assert set(verdicts.values()) == {"ok"}
            assert len(json.loads(text)["findings"]) == len(shipped_checks())

            await break_it(cluster)
            status, text = await dractl("doctor", *options)
            assert status == Status.NO
            assert troubles(text) == {
                "device-classes/missing",
                "device-plugin/both",
                "slices-ours/foreign",
                "slices-complete/incomplete",
                "slices-alive/node-gone",
                "container-runtime/unknown-runtime",
                "inventories/not-owned",
            }

            archive = tmp_path / "bundle.tar.gz"
            status, _ = await dractl("bundle", "--kubeconfig", str(cluster.kubeconfig), "--archive", str(archive))
            assert status == Status.DONE
            assert troubles(run("doctor", "--from", str(archive), "-o", "json").stdout) == troubles(text)


async def break_it(cluster: SimulatedCluster) -> None:
    kube = cluster.kube
    await kube.delete(DEVICE_CLASSES, "mig.nvidia.com")
    await kube.merge_patch(NODES, "t4-1", {"status": {"allocatable": {"nvidia.com/gpu": "4"}}}, subresource="status")
    pool = {"name": "gone", "generation": 1, "resourceSliceCount": 2}
    foreign = {"driver": "gpu.nvidia.com", "nodeName": "gone", "pool": pool, "devices": [{"name": "gpu-0"}]}
    await kube.create(RESOURCE_SLICES, an_object(RESOURCE_SLICES, "foreign", foreign))
    await kube.create(NODES, node("other"))
    facts = {"gpus": 0, "healthy": "0/0", "product": "-", "driver": "-", "clique": "-"}
    driver = {"version": "580.126.09", "cudaVersion": "13.0", "root": "/"}
    spec = {"nodeName": "other", "bootID": "b", "driver": driver, "gpus": [], "summary": facts}
    spec |= {"registrations": [{"driver": "gpu.nvidia.com", "time": "2026-01-01T00:00:00.000000Z"}]}
    await kube.create(NODE_INVENTORIES, an_object(NODE_INVENTORIES, "other", spec))


def an_object(resource: Resource, name: str, spec: JsonObject) -> JsonObject:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}


def test_what_the_chart_installs_is_known_and_its_roles_are_enough(tmp_path: Path) -> None:
    """On a simulated API server nothing runs, so what is missing are pods, and with them their leader."""
    with simulated_server() as server:
        server.create({"apiVersion": "v1", "kind": "Node", **gpu_node("gpu-1")})
        release = Helm(server.kubeconfig).install({"image": {"tag": version("gpu-dra-driver")}})
        text = run("doctor", "--kubeconfig", str(server.kubeconfig), "-o", "json").stdout
    assert troubles(text) == {"plugin-pods/missing", "inventories/missing", "controller/down", "leader/no-lease"}
    for kind, needs in (("DaemonSet", OF_THE_PLUGIN), ("Deployment", OF_THE_CONTROLLER)):
        account = release.object(kind)["spec"]["template"]["spec"]["serviceAccountName"]
        missing = {(need.verb, need.group, need.resource) for need in needs} - granted(release, account)
        assert missing == set(), kind


def gpu_node(name: str) -> JsonObject:
    info = {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.4"}
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}},
        "status": {"nodeInfo": info, "allocatable": {}},
    }


def granted(release: Release, account: str) -> set[tuple[str, str, str]]:
    """Verb, group and resource of all rules that are bound to it."""
    rights = set()
    for binding in (*release.all("ClusterRoleBinding"), *release.all("RoleBinding")):
        if account in {subject["name"] for subject in binding["subjects"]}:
            for rule in release.object(binding["roleRef"]["kind"], binding["roleRef"]["name"])["rules"]:
                names = (rule["verbs"], rule["apiGroups"], rule["resources"])
                rights |= {(verb, group, resource) for verb in names[0] for group in names[1] for resource in names[2]}
    return rights


async def test_a_proof_on_a_node_that_does_not_exist_is_refused(api_server: SimulatedApiServer, tmp_path: Path) -> None:
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    words = ("doctor", "--prove", "--on", "nosuch", "--archive", str(tmp_path / "a.tgz"))
    with pytest.raises(NoSuchObject, match="nosuch: the driver reports no such node to this cluster"):
        await dractl(*words, "--kubeconfig", str(kubeconfig))
    assert not (tmp_path / "a.tgz").exists()


async def test_on_an_empty_cluster_it_says_how_to_install(api_server: SimulatedApiServer, tmp_path: Path) -> None:
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    status, text = await dractl("doctor", "-v", "--kubeconfig", str(kubeconfig))
    assert status == Status.NO
    assert "fix: helm install gpu-dra-driver" in " ".join(text.split())
    assert [line.split()[1] for line in text.splitlines() if line.startswith("problem")] == ["installation"]
    assert "helm upgrade" not in text
    (skipped,) = [line for line in text.splitlines() if line.startswith("skipped") and "not installed" in line]
    assert " checks " in skipped


def test_an_archive_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written; name another file with --archive"):
        app(["bundle", "--archive", str(tmp_path / "missing" / "bundle.tar.gz")], standalone_mode=False)


@pytest.mark.parametrize("command", ["doctor", "bundle"])
def test_a_server_that_cannot_be_reached_ends_with_status_3(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SimulatedApiServer()
    server.url = "http://127.0.0.1:1"
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    archive = ["--archive", str(tmp_path / "archive")] if command == "bundle" else []
    with pytest.raises(SystemExit) as ended, plain_errors():
        app([command, "--kubeconfig", str(kubeconfig), *archive], standalone_mode=False)
    assert ended.value.code == Status.UNREACHABLE
    assert "cannot reach the API server" in capsys.readouterr().err
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--node", "--from", "x"),
        ("doctor", "--from", "FILE"),
        ("bundle", "--archive", "FILE"),
        ("doctor", "--simulate", "t4"),
        ("doctor", "--on", "n"),
    ],
)
def test_mistakes_in_what_is_asked_end_with_status_2(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("no bundle")
    with pytest.raises(SystemExit) as ended, plain_errors():
        app([str(file) if word == "FILE" else word for word in arguments], standalone_mode=False)
    assert ended.value.code == Status.USAGE
    assert capsys.readouterr().err.startswith("error: ")


def finding(number: int = 0, verdict: Verdict = Verdict.PROBLEM, **fields: str) -> Diagnosis:
    return Diagnosis("plugin-pods", verdict, "has no pod", f"Node gpu-{number}", "kubectl describe node", "missing")


def test_each_finding_has_its_fix_below_it_and_the_worst_come_first() -> None:
    warning = Diagnosis("pods", Verdict.WARNING, "restarted")
    report = DoctorReport((Diagnosis("crds", Verdict.OK, "all there"), warning, finding()))
    assert list(rendered(report, 80, verbose=True)) == [
        "problem   plugin-pods  Node gpu-0: has no pod",
        "                       fix: kubectl describe node",
        "warning   pods         restarted",
        "ok        crds         all there",
    ]
    assert not any("crds" in line for line in rendered(report, 80, verbose=False))
    assert summary(report) == "3 checks: 1 problem, 1 warning"


def test_of_many_alike_a_few_are_shown() -> None:
    report = DoctorReport(tuple(finding(number) for number in range(100)))
    lines = list(rendered(report, 80, verbose=True))
    assert [line for line in lines if "problem" in line] == [
        f"problem   plugin-pods  Node gpu-{number}: has no pod" for number in range(5)
    ]
    assert " ".join(" ".join(lines[10:]).split()) == (
        "and 95 more like this: Node gpu-5, Node gpu-6, Node gpu-7, Node gpu-8, Node gpu-9 and 90 more"
        " (-o json has all)"
    )
    assert summary(report) == "1 checks: 100 problems"
    assert len(report.to_data()["findings"]) == 100


def test_all_that_is_well_is_said_to_be() -> None:
    assert summary(DoctorReport((Diagnosis("crds", Verdict.OK, "all there"),))) == "1 checks: no problems found"


def test_long_sentences_are_folded_below_themselves() -> None:
    report = DoctorReport((Diagnosis("crds", Verdict.OK, "word " * 30),))
    lines = list(rendered(report, 60, verbose=True))
    assert len(lines) > 2
    assert {len(line) <= 60 for line in lines} == {True}
    assert all(line.startswith(" " * 16) for line in lines[1:])
