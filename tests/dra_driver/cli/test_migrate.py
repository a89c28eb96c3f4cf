"""`dractl migrate`: what it reads, where it writes, what it prints, and with which status it ends."""

import json
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.dractl import decided, dractl, forbid, run
from support.rows import slow_but
from support.shipped import create_definitions

from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    CONFIG_MAPS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.cli.migration import migrate as command
from dra_driver.cli.migration.migrate_files import diff, write_in_place
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import InvalidInput, UnreadableFile
from dra_driver.kube.client import Kube
from dra_driver.migration.codes import CODES
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import FileResult, ManifestText, Migration, Options
from dra_driver.migration.report.data import schema
from dra_driver.publish.policy_file import decode_policy
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Status
from kubelet_plugin.recording.take import NodeRecorder
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.recorded.format import write_record

MANIFESTS = Path(__file__).parents[1] / "migration" / "manifests"
TRANSLATOR = (MANIFESTS / "workloads" / "deployment-translator.yaml").read_text()
VECTOR_ADD = (MANIFESTS / "workloads" / "pod-vector-add.yaml").read_text()
BROKEN = (MANIFESTS / "awkward" / "invalid-indentation.yaml").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder as people have it."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "translator.yaml").write_text(TRANSLATOR)
    (tmp_path / "vector-add.yaml").write_text(VECTOR_ADD)
    (tmp_path / "README.md").write_text("nvidia.com/gpu: 1")
    return tmp_path


def test_without_an_option_nothing_is_written_and_tables_say_what_would_be(repository: Path) -> None:
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    outcome = run("migrate", str(repository), "--strategy", "claims")
    assert outcome.exit_code == Status.DONE
    assert re.search(r"Deployment language/translator +claims +as before", outcome.stdout)
    assert "2 files, 2 pod specifications that ask for GPUs: 2 with claims now." in outcome.stderr
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before


def test_results_are_written_beside_with_reports_and_values(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    config = str(MANIFESTS / "platform" / "device-plugin-mps.yaml")
    outcome = run("migrate", str(repository), "--with", config, "--to", str(target))
    assert outcome.exit_code == Status.DONE, outcome.output
    written = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert written == [
        "gpu-policies.yaml",
        "manifests/app/translator.yaml",
        "manifests/vector-add.yaml",
        "report.json",
        "report.md",
        "values.yaml",
    ]
    assert "resourceClaimTemplateName" in (target / "manifests" / "app" / "translator.yaml").read_text()
    assert (repository / "app" / "translator.yaml").read_text() == TRANSLATOR
    jsonschema.validate(json.loads((target / "report.json").read_text()), schema())
    policy = decode_policy((target / "gpu-policies.yaml").read_text(), about="policy")
    assert policy.sharing[0].strategy == "MPS"
    assert yaml.safe_load((target / "values.yaml").read_text())["policy"]["sharing"][0]["replicas"] == 10


def test_a_folder_is_never_written_over_by_accident(repository: Path) -> None:
    shutil.copytree(repository, repository / "manifests")
    with pytest.raises(InvalidInput, match="name a folder outside of PATHS, or use --in-place"):
        run(
            "migrate",
            str(repository / "manifests" / "vector-add.yaml"),
            "--strategy",
            "claims",
            "--to",
            str(repository),
        )


def test_in_place_keeps_modes_and_touches_only_what_changes(repository: Path) -> None:
    readme, script = repository / "README.md", repository / "vector-add.yaml"
    script.chmod(0o640)
    untouched = (repository / "app" / "translator.yaml").stat().st_mtime_ns
    outcome = run("migrate", str(script), "--strategy", "claims", "--in-place")
    assert outcome.exit_code == Status.DONE
    assert "resourceClaims" in script.read_text()
    assert stat.S_IMODE(script.stat().st_mode) == 0o640
    assert (repository / "app" / "translator.yaml").stat().st_mtime_ns == untouched
    assert readme.read_text() == "nvidia.com/gpu: 1"
    again = run("migrate", str(script), "--strategy", "claims", "--diff")
    assert again.stdout == ""
    assert sorted(path.name for path in repository.iterdir()) == ["README.md", "app", "vector-add.yaml"]


def test_lines_of_a_diff_end_where_those_of_patch_do() -> None:
    """Not at a form feed, or at a line separator of Unicode, as lines of Python do."""
    strange = "a: \x0c b\u2028c\x85d\n"
    migration = Migration((FileResult("x.yaml", strange + "b: 1\n", strange + "b: 2\n"),), (), (), (), ())
    assert list(diff(migration))[2:] == ["@@ -1,2 +1,2 @@\n", f" {strange}", "-b: 1\n", "+b: 2\n"]


def test_what_is_named_when_it_is_created_is_called_by_what_its_name_begins_with() -> None:
    text = VECTOR_ADD.replace("name: vector-add", "generateName: vector-add-", 1)
    outcome = run("migrate", "-", "--strategy", "claims", "--to", "-", typed=text)
    assert outcome.stdout.startswith("# What Pod vector-add- asks for.")
    outcome = run("migrate", "-", "--strategy", "claims", "--report", "json", typed=text)
    (workload,) = json.loads(outcome.stdout)["workloads"]
    assert workload["object"]["name"] == "vector-add-"


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
@pytest.mark.parametrize(
    ("folder", "path", "arguments"), [(".", ".", ()), (".", "{repository}", ()), ("app", "{repository}", ("-d", "/"))]
)
def test_a_diff_is_what_patch_takes(
    folder: str, path: str, arguments: tuple[str, ...], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder elsewhere, from the root of the machine."""
    monkeypatch.chdir(repository / folder)
    command = ("migrate", path.format(repository=repository), "--strategy", "claims", "--diff")
    outcome = run(*command)
    assert outcome.exit_code == Status.DONE
    subprocess.run(["patch", "-p1", "--silent", *arguments], input=outcome.stdout, text=True, check=True)
    assert run(*command).stdout == ""
    assert "resourceClaims" in (repository / "app" / "translator.yaml").read_text()


def test_of_a_quota_alone_it_is_told_that_something_changed() -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "a"}}
    quota["spec"] = {"hard": {"requests.nvidia.com/gpu": "4"}}
    outcome = run("migrate", "-", "--strategy", "claims", "--report", "md", typed=json.dumps(quota))
    assert "something that counts them has changed" in outcome.stdout


def test_standard_input_to_standard_output() -> None:
    outcome = run("migrate", "-", "--to", "-", "--strategy", "claims", typed=VECTOR_ADD)
    kinds = [obj["kind"] for obj in yaml.safe_load_all(outcome.stdout)]
    assert kinds == ["ResourceClaimTemplate", "Pod"]
    with pytest.raises(InvalidInput, match="standard input has no place"):
        run("migrate", "-", "--in-place", "--strategy", "claims", typed=VECTOR_ADD)


def test_a_file_that_is_no_yaml_is_an_error_and_the_others_go_on(repository: Path) -> None:
    (repository / "broken.yaml").write_text(BROKEN)
    outcome = run("migrate", str(repository), "--strategy", "claims", "--in-place")
    assert outcome.exit_code == Status.NO
    assert re.search(r"broken.yaml:8 +error +M042 +column 11: is not YAML", outcome.stdout)
    assert (repository / "broken.yaml").read_text() == BROKEN
    assert "resourceClaims" in (repository / "vector-add.yaml").read_text()


def test_a_device_class_that_is_none_is_reported_and_all_else_is_done(repository: Path) -> None:
    class_ = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: 5}\nspec: 7\n"
    (repository / "class.yaml").write_text(class_)
    (repository / "words.json").write_text('{"metadata": 389, "kind": 110, "spec": 166}')
    outcome = run("migrate", str(repository), "--strategy", "claims")
    assert re.search(r"class.yaml:1 +error +M042 +.*metadata.name", outcome.stdout)
    assert "2 with claims now." in outcome.stderr


def test_a_file_that_is_no_text_is_named_and_the_others_go_on(repository: Path) -> None:
    (repository / "image.yaml").write_bytes(b"\xff\xd8\xff")
    (repository / "half.yaml").write_bytes("a: b".encode("utf-16")[:-1])
    outcome = run("migrate", str(repository), "--strategy", "claims", "--in-place")
    assert outcome.exit_code == Status.UNREACHABLE
    assert "image.yaml: is not UTF-8 text (byte 0)" in " ".join(outcome.stderr.split())
    assert "half.yaml: is not UTF-8 text (byte 0); it looks like UTF-16" in " ".join(outcome.stderr.split())
    assert "resourceClaims" in (repository / "vector-add.yaml").read_text()
    with pytest.raises(UnreadableFile, match=r"nowhere\.yaml"):
        run("migrate", "nowhere.yaml")


@pytest.mark.parametrize(
    ("annotations", "amounts"),
    [
        ({}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}),
        ({}, {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 50}),
        ({"gpu-fraction": "0.5"}, {}),
    ],
)
def test_what_is_left_to_be_done_by_hand_makes_the_answer_no(
    tmp_path: Path, annotations: dict[str, str], amounts: dict[str, int]
) -> None:
    """Percent of a memory whose size nobody said; the answer says how to say it, and then it is done."""
    container = {"name": "m", "image": "i", "resources": {"limits": amounts}}
    metadata = {"name": "p", "annotations": annotations}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    asked = run("migrate", str(tmp_path))
    assert asked.exit_code == Status.NO, asked.output
    assert "1 left alone" in asked.stderr
    run("migrate", str(tmp_path / "pod.yaml"), "--to", str(tmp_path / "out"))
    proposed = (tmp_path / "out" / "decisions.yaml").read_text()
    assert "# gpuMemory: 80Gi\n" in proposed
    assert proposed.rstrip() in run("migrate", str(tmp_path / "pod.yaml"), "--report", "md").stdout
    given = decided(tmp_path, proposed.replace("# gpuMemory", "gpuMemory"))
    outcome = run("migrate", str(tmp_path / "pod.yaml"), *given)
    assert outcome.exit_code == Status.DONE, outcome.output


def test_manifests_of_an_earlier_run_are_named(tmp_path: Path) -> None:
    pod, out = tmp_path / "in" / "pod.yaml", tmp_path / "out"
    pod.parent.mkdir()
    pod.write_text(VECTOR_ADD)
    first = run("migrate", str(pod), "--strategy", "claims", "--to", str(out))
    assert "did not write" not in first.stderr
    earlier = out / "manifests" / "earlier.yaml"
    earlier.write_text("kept")
    second = run("migrate", str(pod), "--strategy", "claims", "--to", str(out))
    assert f"warning: this run did not write {earlier}; remove what you do not want to apply" in second.stderr
    assert earlier.read_text() == "kept"


def test_the_whole_report_to_standard_output(repository: Path) -> None:
    text = run("migrate", str(repository), "--report", "md").stdout
    assert text.startswith("# From the device plugin to DRA\n") and "## Tried by the allocator" in text
    jsonschema.validate(json.loads(run("migrate", str(repository), "--report", "json").stdout), schema())


def test_on_gpu_models_that_do_not_have_it_the_answer_is_no(repository: Path) -> None:
    job = str(MANIFESTS / "workloads" / "job-finetune-h100.yaml")
    assert run("migrate", job, "--strategy", "claims", "--nodes", "dgx-h100").exit_code == Status.DONE
    outcome = run("migrate", job, "--strategy", "claims", "--nodes", "t4,l40s")
    assert outcome.exit_code == Status.NO
    assert re.search(r"finetune-legal +claims +none", outcome.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name files or folders"),
        ((".", "--diff", "--in-place"), "choose one of them"),
        ((".", "--diff", "--report", "md"), "both print to standard output"),
        ((".", "--kubernetes", "2.0"), "not a Kubernetes version"),
        ((".", "--nodes", "abacus"), "is none of"),
        ((".", "-n", "default"), "--cluster without PATHS"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(
    arguments: tuple[str, ...], message: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with pytest.raises(InvalidInput, match=message):
        run("migrate", *arguments)


def test_decisions_of_a_file_reach_the_migration_and_the_flag_counts_first(
    monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    seen: list[Options] = []

    def noting(sources: Sequence[ManifestText], options: Options, side: Sequence[ManifestText]) -> Migration:
        seen.append(options)
        return migrate(sources, options, side)

    monkeypatch.setattr(command, "migrated", noting)
    given = decided(repository, "strategy: claims\nunknownKinds: true\n")
    run("migrate", str(repository), *given)
    run("migrate", str(repository), *given, "--strategy", "extended", "--kubernetes", "1.37")
    assert [(options.strategy, options.unknown_kinds, options.kubernetes_minor) for options in seen] == [
        ("claims", True, None),
        ("extended", True, 37),
    ]


def test_decisions_given_as_surroundings_are_refused(repository: Path) -> None:
    (repository / "decisions.yaml").write_text("strategy: claims\n")
    with pytest.raises(InvalidInput, match=r"--with: .*decisions.yaml has decisions; pass it with --decisions"):
        run("migrate", str(repository / "vector-add.yaml"), "--with", str(repository / "decisions.yaml"))


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        ("", True),
        ("strategey: claims\n", True),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n", True),
        (VECTOR_ADD, True),
        (f"{VECTOR_ADD}---\napiVersion: v1\nkind: Node\nmetadata: {{name: n}}\n", False),
        ("migStrategy: single\n", False),
        ("version: v1\nflags: {migStrategy: mixed}\n", False),
        ("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, namespace: d}\nspec: {hard: {}}\n", False),
    ],
)
def test_a_file_of_surroundings_that_says_nothing_is_noted(repository: Path, text: str, unused: bool) -> None:
    (repository / "around.yaml").write_text(text)
    outcome = run("migrate", str(repository / "app"), "--with", str(repository / "around.yaml"), "--try-seconds", "0")
    assert ("around.yaml: says nothing about the cluster's GPUs, so it is not used" in outcome.stderr) == unused


def test_decisions_that_decide_nothing_are_noted(repository: Path) -> None:
    (repository / "decisions.yaml").write_text("# strategy: claims\n")
    outcome = run("migrate", str(repository / "app"), "--decisions", str(repository / "decisions.yaml"))
    assert "decisions.yaml decides nothing; remove the # in front of the lines that you want" in outcome.stderr


def test_decisions_that_make_no_sense_are_refused_and_nothing_is_written(repository: Path) -> None:
    given = decided(repository, "gpuMemory: much\nsharing: mps:1\n")
    with pytest.raises(InvalidInput, match=r"decisions\.txt: sharing: .*; gpuMemory: 'much' is not an amount"):
        run("migrate", str(repository), *given, "--in-place")
    assert (repository / "vector-add.yaml").read_text() == VECTOR_ADD
    with pytest.raises(UnreadableFile):
        run("migrate", str(repository), "--decisions", str(repository / "none.yaml"))


def test_every_flag_that_a_code_speaks_of_is_one() -> None:
    text = run("migrate", "--help").output
    texts = re.sub(r"`dractl new [^`]*`", "", " ".join(f"{code.means} {code.advice}" for code in CODES))
    spoken = set(re.findall(r"--[a-z][a-z-]+", texts))
    assert {flag for flag in spoken if flag not in text} == {"--policy"} & spoken


def test_a_file_that_cannot_be_read_is_named_in_the_report_and_the_others_go_on(repository: Path) -> None:
    # As root everything may be opened; reading this one fails for everybody.
    (repository / "app" / "secret.yaml").symlink_to("/proc/self/mem")
    outcome = run("migrate", str(repository), "--strategy", "claims", "--report", "json")
    assert outcome.exit_code == Status.UNREACHABLE
    report = json.loads(outcome.stdout)
    assert [unread["what"] for unread in report["unread"]] == [str(repository / "app" / "secret.yaml")]
    assert report["unread"][0]["why"].startswith("cannot be read: ")
    assert report["summary"]["workloads"]["claims"] == 2
    assert "## Not read" in run("migrate", str(repository), "--report", "md").stdout


# -- a cluster


DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)


async def filled(kube: Kube) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "language"}})
    deployment, _ = yaml.safe_load_all(TRANSLATOR)
    await kube.create(DEPLOYMENTS, {**deployment, "metadata": {"name": "translator", "namespace": "language"}})
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "translator", "uid": "u", "controller": True}
    pod = {
        "metadata": {"name": "translator-1", "namespace": "language", "ownerReferences": [owner]},
        "spec": {**deployment["spec"]["template"]["spec"], "nodeName": "gpu-node-1"},
    }
    await kube.create(PODS, pod)
    for node in yaml.safe_load((MANIFESTS / "platform" / "nodes.yaml").read_text())["items"]:
        await kube.create(NODES, node)
    config: JsonObject = yaml.safe_load((MANIFESTS / "platform" / "device-plugin-time-slicing.yaml").read_text())
    await kube.create(NAMESPACES, {"metadata": {"name": "gpu-operator"}})
    await kube.create(CONFIG_MAPS, config)


async def test_a_cluster_is_only_read(kube: Kube, api_server: SimulatedApiServer, tmp_path: Path) -> None:
    await create_definitions(kube)
    await filled(kube)
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    version = (await kube.list(DEPLOYMENTS)).resource_version
    status, text = await dractl(
        "migrate", "--cluster", "--kubeconfig", str(kubeconfig), "--report", "json", "--to", str(tmp_path / "out")
    )
    assert status in (Status.DONE, Status.NO)
    assert (await kube.list(DEPLOYMENTS)).resource_version == version
    assert (await kube.list(RESOURCE_CLAIM_TEMPLATES)).items == []
    assert (await kube.list(DEVICE_CLASSES)).items == []
    report = json.loads(text)
    assert [workload["object"]["name"] for workload in report["workloads"]] == ["translator"]
    stages = {stage["node"]: stage for stage in report["cutover"]["forward"]}
    assert {"gpu-node-1", "gpu-node-2"} <= stages.keys()
    commands = [command for step in stages["gpu-node-1"]["steps"] for command in step["commands"]]
    assert "kubectl cordon gpu-node-1" in commands
    assert (tmp_path / "out" / "values-cutover.yaml").exists()


async def test_with_files_a_cluster_is_what_is_around_them(
    kube: Kube, api_server: SimulatedApiServer, tmp_path: Path, repository: Path
) -> None:
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    status, text = await dractl(
        "migrate", str(repository), "--cluster", "--kubeconfig", str(kubeconfig), "--report", "json"
    )
    assert status == Status.DONE
    assert len(json.loads(text)["workloads"]) == 2


@pytest.mark.parametrize("kind", slow_but([RESOURCE_SLICES, NODES, PODS, DAEMON_SETS], NODES, PODS))
async def test_what_may_not_be_listed_makes_a_plan_that_says_so(
    kind: Resource, kube: Kube, api_server: SimulatedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices that were not seen are not slices that are not there: who believes it would give GPUs out twice."""
    await filled(kube)
    forbid(monkeypatch, kind)
    given = ("migrate", "--cluster", "--kubeconfig", str(api_server.kubeconfig(tmp_path / "kubeconfig")))
    report = json.loads((await dractl(*given, "--report", "json"))[1])
    _, text = await dractl(*given, "--report", "md")
    (unread,) = {kind_unread["what"] for kind_unread in report["unread"]}
    assert unread == kind.kind
    assert f"You may not list {unread}, so the plan may be wrong" in text.partition("## The way to the driver")[2]
    commands = [step["command"] for step in report["next"] if step["command"]]
    assert all(command.count("--cluster") < 2 for command in commands)


RANKS = """\
apiVersion: v1
kind: Pod
metadata: {name: rank, namespace: hpc}
spec:
  resourceClaims:
  - {name: channel, resourceClaimTemplateName: ranks-channel}
  - {name: nic, resourceClaimTemplateName: nic}
  - {name: port, resourceClaimName: port}
  containers:
  - {name: rank, image: i, resources: {limits: {nvidia.com/gpu: 4}, claims: [{name: channel}, {name: nic}]}}
"""


async def test_a_cluster_says_what_the_claims_of_pods_are_for(
    kube: Kube, api_server: SimulatedApiServer, tmp_path: Path
) -> None:
    await create_definitions(kube)
    file = tmp_path / "ranks.yaml"
    file.write_text(RANKS)
    given = ("migrate", str(file), "--cluster", "--kubeconfig", str(api_server.kubeconfig(tmp_path / "kubeconfig")))
    _, text = await dractl(*given, "--strategy", "claims", "--report", "json")
    assert [workload["target"] for workload in json.loads(text)["workloads"]] == ["leave"]
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "fabric"}}]}}
    metadata = {"name": "ranks", "namespace": "hpc"}
    domain = {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "ranks-channel"}}}
    selector = {"cel": {"expression": "device.driver == 'dra.net'"}}
    await kube.create(NAMESPACES, {"metadata": {"name": "hpc"}})
    header = {"apiVersion": COMPUTE_DOMAINS.api_version, "kind": COMPUTE_DOMAINS.kind}
    await kube.create(COMPUTE_DOMAINS, {**header, "metadata": metadata, "spec": domain})
    await kube.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {**metadata, "name": "nic"}, "spec": {"spec": spec}})
    await kube.create(RESOURCE_CLAIMS, {"metadata": {**metadata, "name": "port"}, "spec": spec})
    await kube.create(DEVICE_CLASSES, {"metadata": {"name": "fabric"}, "spec": {"selectors": [selector]}})
    _, text = await dractl(*given, "--strategy", "claims", "--report", "json")
    report = json.loads(text)
    assert [workload["target"] for workload in report["workloads"]] == ["claims"]
    assert {
        finding["message"].partition(" is not for GPUs")[0]
        for finding in report["findings"]
        if finding["code"] == "M039"
    } == {
        "claim channel (the channel of a ComputeDomain)",
        "claim nic (of class fabric)",
        "claim port (of class fabric)",
    }


JOBS = Resource("batch", "v1", "jobs", "Job", True)


async def test_objects_of_a_cluster_become_what_a_person_would_have_written(
    kube: Kube, api_server: SimulatedApiServer, tmp_path: Path
) -> None:
    """A node that the scheduler chose is none that somebody wanted, and a generated selector fits no new Job."""
    await kube.create(NAMESPACES, {"metadata": {"name": "ml"}})
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    token = {"name": "kube-api-access-x1", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    spec = {
        "nodeName": "n1",
        "containers": [{**container, "volumeMounts": [token, {"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": token["name"], "projected": {"sources": []}}, {"name": "data", "emptyDir": {}}],
    }
    await kube.create(PODS, {"metadata": {"name": "p", "namespace": "ml"}, "spec": spec})
    labels = {"batch.kubernetes.io/controller-uid": "u", "job-name": "j", "app": "a"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    selector = {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}
    metadata = {"name": "j", "namespace": "ml", "labels": labels}
    await kube.create(JOBS, {"metadata": metadata, "spec": {"selector": selector, "template": template}})
    kubeconfig, out = api_server.kubeconfig(tmp_path / "kubeconfig"), tmp_path / "out"
    given = decided(tmp_path, "strategy: claims")
    await dractl("migrate", "--cluster", "--kubeconfig", str(kubeconfig), *given, "--to", str(out))
    written = {path.name: list(yaml.safe_load_all(path.read_text()))[-1] for path in out.rglob("*-[pj].yaml")}
    pod, job = written["pod-p.yaml"]["spec"], written["job-j.yaml"]
    assert pod.keys() & {"nodeName", "nodeSelector"} == set()
    assert [volume["name"] for volume in (*pod["volumes"], *pod["containers"][0]["volumeMounts"])] == ["data", "data"]
    assert "selector" not in job["spec"]
    assert [job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]] == [{"app": "a"}] * 2


def test_claims_are_written_before_the_pods_that_name_them(tmp_path: Path) -> None:
    """Whoever is interrupted in between begins again, and must not meet pods whose claims were never written."""
    pod, claims = str(tmp_path / "pod.yaml"), str(tmp_path / "claims.yaml")
    result = Migration((FileResult(pod, "old\n", "new\n"),), (ManifestText(claims, "claims\n"),), (), (), ())
    assert write_in_place(result) == [f"written: {claims}", f"written: {pod}"]


def test_where_one_file_cannot_be_written_none_is_changed(tmp_path: Path) -> None:
    names = [tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "gone" / "c.yaml"]
    for name in names[:2]:
        name.write_text("old\n")
    (tmp_path / "gone").write_text("a file where a folder was\n")
    changed = tuple(FileResult(str(name), "old\n", "new\n") for name in names)
    with pytest.raises(UnreadableFile, match=r"c\.yaml"):
        write_in_place(Migration(changed, (), (), (), ()))
    assert [name.read_text() for name in names[:2]] == ["old\n", "old\n"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "b.yaml", "gone"]


def test_a_link_and_its_file_are_read_once_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(VECTOR_ADD)
    (tmp_path / "a link.yaml").symlink_to("pod.yaml")
    (tmp_path / "nowhere.yaml").symlink_to("gone.yaml")
    outcome = run("migrate", str(tmp_path), "--strategy", "claims", "--in-place")
    assert outcome.exit_code == Status.DONE, outcome.output
    assert (tmp_path / "a link.yaml").is_symlink()
    assert (tmp_path / "pod.yaml").read_text().count("kind: ResourceClaimTemplate") == 1


def test_what_is_the_same_in_many_places_is_shown_once(tmp_path: Path) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{}}}\nspec: {{containers: [{{name: c, image: i, {}}}]}}\n"
    gpu = "resources: {limits: {nvidia.com/gpu: 1}}"
    (tmp_path / "pods.yaml").write_text("---\n".join(pod.format(number, gpu) for number in range(5)))
    done = run("migrate", str(tmp_path))
    assert (done.stdout.count("M002"), "and 4 more" in done.stdout) == (1, True)


# -- some workloads otherwise than others


def two(folder: Path, *names: str, namespace: str = "search", extra: str = "") -> Path:
    """A file with a pod of each name that asks for one GPU."""
    pod = (
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {0}, namespace: {1}}}\nspec:\n  containers:\n"
        "  - name: c\n    image: i\n    resources:\n      limits:\n        nvidia.com/gpu: 1\n{2}"
    )
    file = folder / "pods.yaml"
    file.write_text("".join(pod.format(name, namespace, extra) for name in names))
    return file


@pytest.mark.parametrize("name", ["b", "Pod/b", "pod/search/b", "search/b", "se*/b", "Pod/*/b"])
def test_a_workload_can_be_kept_as_it_is_while_others_get_claims(tmp_path: Path, name: str) -> None:
    file = two(tmp_path, "a", "b")
    given = decided(tmp_path, f"strategy: claims\nworkloads: [{{name: '{name}', strategy: extended}}]\n")
    outcome = run("migrate", str(file), *given, "--to", "-")
    first, second = [obj for obj in yaml.safe_load_all(outcome.stdout) if obj["kind"] == "Pod"]
    assert "resourceClaims" in first["spec"]
    assert "resourceClaims" not in second["spec"]


def test_of_several_that_name_a_workload_the_last_one_counts(tmp_path: Path) -> None:
    file = two(tmp_path, "a", "b")
    some = "[{name: '*', strategy: claims}, {name: a, strategy: extended}]"
    given = decided(tmp_path, f"strategy: extended\nworkloads: {some}\n")
    outcome = run("migrate", str(file), *given, "--report", "json")
    assert [workload["target"] for workload in json.loads(outcome.stdout)["workloads"]] == ["extended", "claims"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("workloads: [{name: c, strategy: extended}]", "workloads: no workload that asks for GPUs is called 'c'"),
        ("sharedClaims: [[a, c]]", "sharedClaims: no workload that asks for GPUs is called 'c'"),
    ],
)
def test_a_name_that_is_none_is_refused(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run("migrate", str(two(tmp_path, "a", "b")), *decided(tmp_path, given))


def test_the_result_is_tried_on_the_nodes_of_a_record(tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "t4")
    made = NodeRecorder(NodePlaces(host_root=host.root, simulate="t4"), ask_programs=False)
    write_record(made.record(release="", keep_names=False), tmp_path / "node.tar.gz")
    file = two(tmp_path, *"abcdef")
    outcome = run("migrate", str(file), "--nodes", f"{tmp_path}/node.tar.gz", "--report", "json")
    verification = json.loads(outcome.stdout)["verification"]
    assert verification["on"].startswith("nodes of node")
    assert {workload["verdict"] for workload in verification["workloads"]} == {"same"}
    with pytest.raises(InvalidInput, match="make one on a node with `dractl record`"):
        run("migrate", str(file), "--nodes", f"{tmp_path}/other.tar.gz")


def test_pods_that_share_a_gpu_by_purpose_have_one_claim(tmp_path: Path) -> None:
    file = two(tmp_path, "a", "b")
    given = decided(tmp_path, "sharedClaims: [['search/*']]")
    outcome = run("migrate", str(file), *given, "--nodes", "t4", "--report", "json")
    report = json.loads(outcome.stdout)
    assert outcome.exit_code == Status.DONE, outcome.output
    devices = {
        device
        for workload in report["verification"]["workloads"]
        for got in workload["got"]
        for device in got["devices"]
    }
    assert len(devices) == 1
    assert [finding["code"] for finding in report["findings"] if finding["code"] == "M052"] == ["M052", "M052"]
    run("migrate", str(file), *given, "--in-place")
    claim, *pods = yaml.safe_load_all(file.read_text())
    assert (claim["kind"], claim["spec"]["devices"]["requests"][0]["exactly"]["count"]) == ("ResourceClaim", 1)
    (entries,) = {str(pod["spec"]["resourceClaims"]) for pod in pods}
    assert entries == str([{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}])
    assert run("check", str(file)).exit_code == Status.DONE
    assert run("migrate", str(file), "--diff").stdout == ""


def test_what_one_claim_cannot_be_for_is_refused(tmp_path: Path) -> None:
    file = two(tmp_path, "a", "b", extra="        nvidia.com/gpumem: 3000\n")
    with pytest.raises(InvalidInput, match="memory or cores of its own"):
        run("migrate", str(file), *decided(tmp_path, "sharedClaims: [[a, b]]"))
    (tmp_path / "other").mkdir()
    other = two(tmp_path / "other", "b", namespace="elsewhere")
    with pytest.raises(InvalidInput, match="different namespaces"):
        run("migrate", str(two(tmp_path, "a")), str(other), *decided(tmp_path, "sharedClaims: [[a, b]]"))


# -- how long it takes, and how it ends


def test_what_is_not_tried_in_time_is_told(tmp_path: Path) -> None:
    outcome = run("migrate", str(two(tmp_path, "a", "b")), "--try-seconds", "0", "--report", "json")
    tried = json.loads(outcome.stdout)["verification"]["workloads"]
    assert [(workload["verdict"], workload["why"]) for workload in tried] == [
        ("unknown", ["there was no time left to try it"])
    ] * 2


@pytest.mark.parametrize(
    ("status", "given"),
    [
        (Status.DONE, ("--strategy", "claims")),
        (Status.DONE, ("--nodes", "t4")),
        (Status.NO, ("--nodes", "t4", "--kubernetes", "1.33")),
        (Status.NO, ("--strategy", "claims", "--nodes", "t4")),
    ],
)
def test_the_exit_status_says_how_it_went(tmp_path: Path, status: Status, given: tuple[str, ...]) -> None:
    decisions = decided(tmp_path, "{migStrategy: single, migProfile: 1g.5gb}" if {"t4", "claims"} <= {*given} else "")
    assert run("migrate", str(two(tmp_path, "a")), *decisions, *given).exit_code == status


def test_three_hundred_workloads_fit_a_terminal(tmp_path: Path) -> None:
    """What it comes to stands first, workloads of one kind have one row, and equal ones are searched for once."""
    names = [f"w{number}" for number in range(297)]
    text = (
        two(tmp_path, *names).read_text()
        + two(tmp_path, "odd1", "odd2", "odd3", extra="        nvidia.com/abacus: 1\n").read_text()
    )
    (tmp_path / "pods.yaml").write_text(text)
    outcome = run("migrate", str(tmp_path / "pods.yaml"), "--strategy", "claims", "--nodes", "t4")
    lines = outcome.output.splitlines()
    assert len(lines) <= 24, outcome.output
    assert max(map(len, lines)) <= 250
    assert lines[0] == "1 file, 300 pod specifications that ask for GPUs: 297 with claims now, 3 left alone."
    table = outcome.stdout.splitlines()
    assert re.match(r"3: Pod search/odd1, Pod search/odd2 and 1 more +left alone", table[1])
    assert re.match(r"297: Pod search/w0, Pod search/w1 and 295 more +claims +as before", table[2])


def test_a_pod_whose_resource_nobody_knows_is_left_to_be_done_by_hand(tmp_path: Path) -> None:
    """No class answers to it when the device plugin is gone, so that the pod would wait forever."""
    file = tmp_path / "pod.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        "  - {name: c, image: i, resources: {limits: {nvidia.com/mps-core: 30}}}\n"
    )
    outcome = run("migrate", str(file))
    assert outcome.exit_code == Status.NO
    assert "nothing that is understood asks for GPUs" in outcome.stderr
