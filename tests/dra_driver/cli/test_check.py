"""`dractl check`: what it prints in each format, and with which status it ends."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.allocation import gpu
from support.dra_objects import resource_slice
from support.dractl import dractl, forbid, run
from support.objects import claim, node
from support.shipped import create_classes

from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_driver.checking.codes import CODES
from dra_driver.errors import InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Status, plain_errors

GOOD = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
"""
WARNING = GOOD.replace("gpu.nvidia.com", "gpu2.nvidia.com")
ERROR = GOOD.replace("exactly", "exact")
NOTE = GOOD.replace("gpu.nvidia.com", "fpga.example.com")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "objects.yaml"


@pytest.mark.parametrize(
    ("text", "options", "status"),
    [
        (GOOD, (), Status.DONE),
        (NOTE, ("--strict",), Status.DONE),
        (WARNING, (), Status.DONE),
        (WARNING, ("--strict",), Status.NO),
        (WARNING.replace("gpu2.nvidia.com", "gpu.nvidia.con"), (), Status.NO),
        (ERROR, (), Status.NO),
        ("a: [", (), Status.NO),
    ],
)
def test_the_status_says_whether_there_are_errors(
    file: Path, text: str, options: tuple[str, ...], status: Status
) -> None:
    file.write_text(text)
    assert run("check", str(file), *options).exit_code == status


def test_a_table_has_place_severity_code_and_what(file: Path) -> None:
    file.write_text(ERROR)
    heading, row = run("check", str(file)).stdout.splitlines()
    assert heading.split() == ["PLACE", "SEVERITY", "CODE", "WHAT"]
    assert row.split()[:3] == [f"{file}:4:48", "error", "unknown-field"]
    assert "did you mean `exactly`?" in row


def test_nothing_to_say_prints_nothing_to_standard_output(file: Path) -> None:
    file.write_text(GOOD)
    outcome = run("check", str(file))
    assert outcome.stdout == ""
    assert "1 document: no problems found" in outcome.stderr


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_get_every_finding_with_the_same_keys(file: Path, output: str) -> None:
    file.write_text(WARNING + "---\n" + ERROR.replace("name: gpu}", "name: other}"))
    text = run("check", str(file), "-o", output).stdout
    data = json.loads(text) if output == "json" else yaml.safe_load(text)
    assert {tuple(finding) for finding in data} == {
        ("file", "line", "column", "field", "severity", "code", "message", "fix")
    }
    assert data[0] == {
        "file": str(file),
        "line": 4,
        "column": 58,
        "field": "spec.spec.devices.requests[0].exactly.deviceClassName",
        "severity": "warning",
        "code": "misnamed",
        "message": "there is no DeviceClass 'gpu2.nvidia.com'; did you mean `gpu.nvidia.com`?",
        "fix": "write `gpu.nvidia.com`",
    }


def test_sarif_has_the_structure_that_code_scanning_demands(file: Path) -> None:
    file.write_text(WARNING + "---\n" + ERROR + "---\nx: [\n")
    report = json.loads(run("check", str(file), "-o", "sarif").stdout)
    (one_run,) = report["runs"]
    driver, results = one_run["tool"]["driver"], one_run["results"]
    assert (report["version"], "$schema" in report, "name" in driver) == ("2.1.0", True, True)
    assert {rule["defaultConfiguration"]["level"] for rule in driver["rules"]} == {"error", "warning", "note"}
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    rules = [rule["id"] for rule in driver["rules"]]
    assert rules == [code.name for code in CODES]
    assert sorted(result["level"] for result in results) == ["error", "error", "warning", "warning"]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in results)
    regions = [result["locations"][0]["physicalLocation"]["region"] for result in results]
    assert all(region["startLine"] >= 1 and region["startColumn"] >= 1 for region in regions)
    place = {"artifactLocation": {"uri": str(file)}, "region": {"startLine": 4, "startColumn": 58}}
    field = {"fullyQualifiedName": "spec.spec.devices.requests[0].exactly.deviceClassName"}
    assert "there is no DeviceClass 'gpu2.nvidia.com'" in results[0]["message"]["text"]
    assert results[0]["locations"] == [{"physicalLocation": place, "logicalLocations": [field]}]


def test_github_gets_one_command_a_finding(file: Path) -> None:
    file.write_text(ERROR)
    (first,) = run("check", str(file), "-o", "github").stdout.splitlines()
    assert first.startswith(
        f"::error file={file},line=4,col=48,title=unknown-field::spec.spec.devices.requests[0].exact"
    )


def test_what_would_end_a_github_command_is_written_in_its_own_way() -> None:
    from dra_driver.checking.codes import Severity
    from dra_driver.checking.findings import Finding, as_github

    finding = Finding("a,b:c.yaml", 1, 2, "", Severity.INFO, "x", "100%\nof it")
    assert as_github([finding]) == ["::notice file=a%2Cb%3Ac.yaml,line=1,col=2,title=x::100%25%0Aof it"]


def test_standard_input_and_folders_are_read(tmp_path: Path) -> None:
    assert run("check", "-", typed=ERROR).exit_code == Status.NO
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "bad.yml").write_text(ERROR)
    (tmp_path / "below" / "notes.txt").write_text("a: [")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "bad.yaml").write_text("a: [")
    data = json.loads(run("check", str(tmp_path), "-o", "json").stdout)
    assert {Path(finding["file"]).name for finding in data} == {"bad.yml"}


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a shell's variable that is not set."""
    monkeypatch.chdir(tmp_path)
    for words in (("check", ""), ("migrate", "", "--in-place"), ("allocate", "--nodes", "t4", "-f", "")):
        with pytest.raises(InvalidInput, match="the name of a file or folder is empty"):
            run(*words)
    with pytest.raises(InvalidInput, match="--to: the name of the folder is empty"):
        run("migrate", "pod.yaml", "--to", "")


def test_a_file_that_cannot_be_read_ends_with_another_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, plain_errors():
        run("check", str(tmp_path / "nothing.yaml"))
    assert caught.value.code == Status.UNREACHABLE
    assert "nothing.yaml: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [("--kubernetes", "2.0"), ("--kubernetes", "1.20"), ("--profiles", "abacus"), ("--live", "--profiles", "t4")],
)
def test_options_that_make_no_sense_are_refused(
    file: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GOOD)
    with pytest.raises(SystemExit) as caught, plain_errors():
        run("check", str(file), *options)
    assert caught.value.code == Status.USAGE
    assert "--" in capsys.readouterr().err


def test_with_the_models_named_a_misfit_is_an_error(file: Path) -> None:
    file.write_text(GOOD.replace("com}", "com, count: 5}"))
    assert run("check", str(file), "--profiles", "t4").exit_code == Status.NO
    assert run("check", str(file), "--profiles", "t4,dgx-h100").exit_code == Status.DONE


async def test_a_live_cluster_knows_its_own_classes_nodes_and_templates(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path, file: Path
) -> None:
    await create_classes(kube)
    await kube.create(NODES, node())
    await kube.create(RESOURCE_SLICES, resource_slice("s", gpu("gpu-a")))
    template = {**claim("there"), "kind": "ResourceClaimTemplate", "spec": {"spec": claim("there")["spec"]}}
    await kube.create(RESOURCE_CLAIM_TEMPLATES, template)
    pod = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  resourceClaims: [{name: gpu, resourceClaimTemplateName: %s}]
  containers: [{name: main, image: ubuntu, resources: {claims: [{name: gpu}]}}]
"""
    live = ("--live", "--kubeconfig", str(api_server.kubeconfig(tmp_path / "kubeconfig")), "-o", "json")
    file.write_text(GOOD + "---\n" + pod % "there")
    assert await dractl("check", str(file), *live) == (Status.DONE, "[]\n")
    file.write_text(GOOD.replace("com}", "com, count: 2}") + "---\n" + pod % "elsewhere")
    status, text = await dractl("check", str(file), *live)
    assert status == Status.NO
    assert [(finding["code"], finding["severity"]) for finding in json.loads(text)] == [
        ("never-fits", "error"),
        ("not-found", "error"),
    ]


@pytest.mark.parametrize(
    ("unread", "codes"),
    [
        ((NODES,), ["never-fits"]),
        ((NODES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES), ["never-fits"]),
        ((RESOURCE_SLICES, DEVICE_CLASSES), []),
    ],
)
async def test_what_may_not_be_listed_is_noted_and_the_rest_is_checked(
    api_server: SimulatedApiServer,
    kube: Kube,
    tmp_path: Path,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    unread: tuple[Resource, ...],
    codes: list[str],
) -> None:
    await create_classes(kube)
    await kube.create(RESOURCE_SLICES, resource_slice("s", gpu("gpu-a")))
    forbid(monkeypatch, *unread)
    file.write_text(GOOD.replace("com}", "com, count: 2}"))
    kubeconfig = str(api_server.kubeconfig(tmp_path / "kubeconfig"))
    done = await asyncio.to_thread(run, "check", str(file), "--live", "--kubeconfig", kubeconfig, "-o", "json")
    assert [finding["code"] for finding in json.loads(done.stdout)] == codes
    assert [line.partition("note: you may not list ")[2].partition(":")[0] for line in done.stderr.splitlines()] == [
        kind.plural for kind in unread
    ]


def test_checking_loads_neither_the_http_client_nor_the_cluster() -> None:
    """A hook that runs at each commit should not wait for what it does not need."""
    program = (
        "import sys, dra_driver.cli.check; print([m for m in ('aiohttp', 'grpc', 'kubernetes') if m in sys.modules])"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "[]"


def test_patches_of_a_kustomization_are_not_judged_as_objects(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "merge.yaml").write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 2}\n"
    )
    (overlay / "json.yaml").write_text("- {op: remove, path: /spec/replicas}\n")
    alone = run("check", str(tmp_path))
    assert alone.exit_code == Status.NO and "merge.yaml" in alone.stdout and "json.yaml" in alone.stdout
    kustomization = {
        "patches": [{"path": "./merge.yaml"}, {"patch": "- op: remove"}],
        "patchesJson6902": [{"path": "json.yaml"}],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    together = run("check", str(tmp_path))
    assert (together.exit_code, together.stdout) == (Status.DONE, "")
    assert "2 patch files of kustomizations not checked" in together.stderr


def test_templates_of_a_chart_in_a_folder_are_not_errors(tmp_path: Path) -> None:
    templates = tmp_path / "chart" / "templates"
    templates.mkdir(parents=True)
    (templates / "pod.yaml").write_text("metadata: {name: {{ .Release.Name }}}\n")
    (templates / "plain.yaml").write_text(ERROR)
    alone = run("check", str(templates / "pod.yaml"))
    assert alone.exit_code == Status.NO and "is a template" in alone.stdout
    (tmp_path / "chart" / "Chart.yaml").write_text("apiVersion: v2\nname: a\nversion: 0.1.0\n")
    together = run("check", str(tmp_path))
    assert "1 template of charts not checked" in together.stderr
    assert "pod.yaml" not in together.stdout and "plain.yaml" in together.stdout
