"""`dractl migrate`: what it reads, where it writes, what it prints, and with which status it ends."""

import json
import re
import shutil
import stat
import subprocess
from dataclasses import fields
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.dractl import dractl, run

from dra_driver import bundled
from dra_driver.api.meta import (
    CONFIG_MAPS,
    CRDS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    JsonObject,
    Resource,
)
from dra_driver.api.policy import decode_policy
from dra_driver.cli import migrate as command
from dra_driver.cli.files import UnreadableFile
from dra_driver.cli.migrate_files import write_in_place
from dra_driver.cli.output import Status
from dra_driver.errors import InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.migration.codes import CODES
from dra_driver.migration.model import FileResult, Migration, Options, Source
from dra_driver.migration.report_data import schema
from dra_driver.simulation.apiserver import SimulatedApiServer

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
    outcome = run("migrate", str(repository), "--with", config, "-o", str(target))
    assert outcome.exit_code == Status.DONE, outcome.output
    written = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert written == [
        "manifests/app/translator.yaml",
        "manifests/vector-add.yaml",
        "publishing-policy.yaml",
        "report.json",
        "report.md",
        "values.yaml",
    ]
    assert "resourceClaimTemplateName" in (target / "manifests" / "app" / "translator.yaml").read_text()
    assert (repository / "app" / "translator.yaml").read_text() == TRANSLATOR
    jsonschema.validate(json.loads((target / "report.json").read_text()), schema())
    policy = decode_policy((target / "publishing-policy.yaml").read_text(), about="policy")
    assert policy.sharing[0].strategy == "MPS"
    assert yaml.safe_load((target / "values.yaml").read_text())["policy"]["sharing"][0]["replicas"] == 10


def test_a_folder_is_never_written_over_by_accident(repository: Path) -> None:
    shutil.copytree(repository, repository / "manifests")
    with pytest.raises(InvalidInput, match="--in-place"):
        run("migrate", str(repository / "manifests" / "vector-add.yaml"), "--strategy", "claims", "-o", str(repository))


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


def test_the_way_back_ends_where_it_began(repository: Path) -> None:
    run("migrate", str(repository), "--strategy", "claims", "--in-place")
    outcome = run("migrate", str(repository), "--undo", "--in-place")
    assert outcome.exit_code == Status.DONE
    assert "2 files of 2 as before the migration." in outcome.stderr
    assert list(yaml.safe_load_all((repository / "app" / "translator.yaml").read_text())) == list(
        yaml.safe_load_all(TRANSLATOR)
    )


def test_a_kustomization_gets_a_file_of_claims_and_loses_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "kustomize"
    shutil.copytree(MANIFESTS / "awkward" / "kustomize", folder)
    before = {path.name: path.read_bytes() for path in folder.rglob("*.yaml")}
    run("migrate", str(folder), "--strategy", "claims", "--in-place")
    assert yaml.safe_load((folder / "overlay" / "kustomization.yaml").read_text())["resources"] == [
        "../base",
        "gpu-claims.yaml",
    ]
    outcome = run("migrate", str(folder), "--undo", "--in-place")
    assert "removed:" in outcome.stderr
    assert {path.name: path.read_bytes() for path in folder.rglob("*.yaml")} == before


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
def test_a_diff_is_what_patch_takes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    outcome = run("migrate", ".", "--strategy", "claims", "--diff")
    assert outcome.exit_code == Status.DONE
    subprocess.run(["patch", "-p1", "--silent"], input=outcome.stdout, text=True, check=True)
    assert run("migrate", ".", "--strategy", "claims", "--diff").stdout == ""
    assert "resourceClaims" in (repository / "app" / "translator.yaml").read_text()


def test_standard_input_to_standard_output() -> None:
    outcome = run("migrate", "-", "-o", "-", "--strategy", "claims", typed=VECTOR_ADD)
    kinds = [one["kind"] for one in yaml.safe_load_all(outcome.stdout)]
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


def test_a_file_that_is_no_text_is_named_and_the_others_go_on(repository: Path) -> None:
    (repository / "image.yaml").write_bytes(b"\xff\xfe\x00")
    outcome = run("migrate", str(repository), "--strategy", "claims", "--in-place")
    assert outcome.exit_code == Status.UNREACHABLE
    assert "image.yaml: is not UTF-8 text (byte 0)" in " ".join(outcome.stderr.split())
    assert "resourceClaims" in (repository / "vector-add.yaml").read_text()
    with pytest.raises(UnreadableFile, match=r"nowhere\.yaml"):
        run("migrate", "nowhere.yaml")


@pytest.mark.parametrize("form", ["md", "json"])
def test_the_whole_report_to_standard_output(repository: Path, form: str) -> None:
    outcome = run("migrate", str(repository), "--report", form)
    if form == "md":
        assert outcome.stdout.startswith("# From the device plugin to DRA\n")
        assert "## Tried by the allocator" in outcome.stdout
    else:
        jsonschema.validate(json.loads(outcome.stdout), schema())


def test_on_gpu_models_that_do_not_have_it_the_answer_is_no(repository: Path) -> None:
    job = str(MANIFESTS / "workloads" / "job-finetune-h100.yaml")
    assert run("migrate", job, "--strategy", "claims", "--nodes", "dgx-h100").exit_code == Status.DONE
    outcome = run("migrate", job, "--strategy", "claims", "--nodes", "t4,l40s")
    assert outcome.exit_code == Status.NO
    assert re.search(r"finetune-legal +claims +none", outcome.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name files or folders"),
        ((".", "--diff", "--in-place"), "choose one of them"),
        ((".", "--diff", "--report", "md"), "both print to standard output"),
        ((".", "--sharing", "mps"), "not like time-slicing:4"),
        ((".", "--sharing", "mps:1"), "not like time-slicing:4"),
        ((".", "--resource-unit", "a=GB"), "not NAME=UNIT"),
        ((".", "--gpu-memory", "much"), "not an amount"),
        ((".", "--kubernetes", "2.0"), "not a Kubernetes version"),
        ((".", "--nodes", "abacus"), "is none of"),
        ((".", "-n", "default"), "--cluster without PATHS"),
        ((".", "--gpu-class", "Team GPU"), "not a name like"),
        ((".", "--driver", "x" * 64), "not a name like"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(
    arguments: tuple[str, ...], said: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with pytest.raises(InvalidInput, match=said):
        run("migrate", *arguments)


def test_each_option_of_the_migration_has_a_flag(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    seen: list[Options] = []
    real = command.migrated
    monkeypatch.setattr(
        command, "migrated", lambda sources, options, side: seen.append(options) or real(sources, options, side)
    )
    flags = {
        "strategy": ("--strategy", "claims"), "driver": ("--driver", "other.example.com"),
        "gpu_class": ("--gpu-class", "g"), "mig_class": ("--mig-class", "m"), "shared_class": ("--shared-class", "s"),
        "vfio_class": ("--vfio-class", "v"), "kubernetes_minor": ("--kubernetes", "1.37"),
        "extended_resource_gate": ("--no-extended-resources",), "mig_strategy": ("--mig-strategy", "mixed"),
        "mig_profile": ("--mig-profile", "1g.10gb"), "replicas": ("--sharing", "mps:4"),
        "sharing_strategy": ("--sharing", "mps:4"), "gpu_memory": ("--gpu-memory", "80Gi"),
        "resource_units": ("--resource-unit", "a=MiB"), "several_shares": ("--several-shares", "devices"),
        "share_visible_all": ("--share-visible-all",), "pin_uuids": ("--pin-uuids",),
        "remove_mps_mounts": ("--remove-mps-mounts",), "remove_runtime_class": ("--remove-runtime-class",),
        "unknown_kinds": ("--unknown-kinds",), "kserve_standard": ("--kserve-standard",),
        "argo_resource_claims": ("--argo-resource-claims",), "dynamic_mig": ("--dynamic-mig",),
        "keep_undo": ("--no-undo-annotations",),
    }  # fmt: skip
    assert flags.keys() == {one.name for one in fields(Options)}
    empty = repository / "empty"
    empty.mkdir()
    for name, given in flags.items():
        run("migrate", str(empty), *given)
        assert getattr(seen[-1], name) != getattr(Options(), name), name


def test_every_flag_that_a_code_speaks_of_is_one() -> None:
    text = run("migrate", "--help").output
    spoken = {flag for code in CODES for flag in re.findall(r"--[a-z][a-z-]+", f"{code.means} {code.advice}")}
    assert {flag for flag in spoken if flag not in text} == {"--policy"} & spoken


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
    for path in bundled.CRDS_FOLDER.glob("*.yaml"):
        await kube.create(CRDS, yaml.safe_load(path.read_text()))
    await filled(kube)
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    version = (await kube.list(DEPLOYMENTS)).resource_version
    status, text = await dractl(
        "migrate", "--cluster", "--kubeconfig", str(kubeconfig), "--report", "json", "-o", str(tmp_path / "out")
    )
    assert status in (Status.DONE, Status.NO)
    assert (await kube.list(DEPLOYMENTS)).resource_version == version
    assert (await kube.list(RESOURCE_CLAIM_TEMPLATES)).items == []
    assert (await kube.list(DEVICE_CLASSES)).items == []
    report = json.loads(text)
    assert [one["object"]["name"] for one in report["workloads"]] == ["translator"]
    asked = {one["question"]: one["answer"] for one in report["readiness"]}
    assert asked["Each GPU is offered by one side only"] == "yes"
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
    await dractl(
        "migrate", "--cluster", "--kubeconfig", str(kubeconfig), "--strategy", "claims", "--no-undo-annotations",
        "-o", str(out),
    )  # fmt: skip
    written = {path.name: list(yaml.safe_load_all(path.read_text()))[-1] for path in out.rglob("*-[pj].yaml")}
    pod, job = written["pod-p.yaml"]["spec"], written["job-j.yaml"]
    assert pod.keys() & {"nodeName", "nodeSelector"} == set()
    assert [one["name"] for one in (*pod["volumes"], *pod["containers"][0]["volumeMounts"])] == ["data", "data"]
    assert "selector" not in job["spec"]
    assert [job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]] == [{"app": "a"}] * 2


def test_claims_are_written_before_the_pods_that_name_them(tmp_path: Path) -> None:
    """Whoever is interrupted in between begins again, and must not meet pods whose claims were never written."""
    manifest, blocked = tmp_path / "pod.json", tmp_path / "folder"
    manifest.write_text("old\n")
    blocked.write_text("a file where a folder should be\n")
    changed, new = FileResult(str(manifest), "old\n", "new\n"), Source(str(blocked / "claims.yaml"), "claims\n")
    result = Migration((changed,), (new,), (), (), ())
    with pytest.raises(UnreadableFile):
        write_in_place(result)
    assert manifest.read_text() == "old\n"


def test_what_is_the_same_in_many_places_is_shown_once(tmp_path: Path) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{}}}\nspec: {{containers: [{{name: c, image: i, {}}}]}}\n"
    gpu = "resources: {limits: {nvidia.com/gpu: 1}}"
    (tmp_path / "pods.yaml").write_text("---\n".join(pod.format(number, gpu) for number in range(5)))
    done = run("migrate", str(tmp_path))
    assert (done.stdout.count("M002"), "and 4 more" in done.stdout) == (1, True)
