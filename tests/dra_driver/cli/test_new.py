"""`dractl new` as a user meets it: YAML on standard output, questions in a terminal, refusals in a line."""

import json
import re
from pathlib import Path

import pytest
import yaml
from support.dractl import run

from dra_driver.errors import InvalidInput
from dra_driver.terminal import Status, plain_errors


def test_yaml_goes_to_standard_output_and_explains_itself() -> None:
    answer = run("new", "claim", "train", "--gpu", "h100", "--count", "4", "--same", "nvlink")
    assert answer.exit_code == 0
    (claim,) = yaml.safe_load_all(answer.stdout)
    assert (claim["kind"], claim["metadata"]["name"]) == ("ResourceClaim", "train")
    assert claim["spec"]["devices"]["constraints"] == [
        {"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/nvlinkDomain"}
    ]
    assert "# 4 x GPU (h100), with the same NVLink domain." in answer.stdout


def test_json_is_a_list_when_there_is_more_than_one_object() -> None:
    listed = json.loads(run("new", "template", "--mig", "1g.10gb", "--pod", "--image", "x:1", "-o", "json").stdout)
    template, pod = listed["items"]
    assert pod["spec"]["containers"][0]["image"] == "x:1"
    assert (
        pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"] == "mig-1g-10gb"
    )


def test_a_pod_of_a_claim_names_the_claim() -> None:
    claim, pod = yaml.safe_load_all(run("new", "claim", "--count", "1", "--pod").stdout)
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]


def test_a_workload_comes_with_the_template_of_its_pods_and_each_gets_devices(tmp_path: Path) -> None:
    """The image's own program runs, unless a command is given; as many pods are placed as were asked for."""
    for kind, fields in (("deployment", "apps/v1"), ("statefulset", "apps/v1"), ("job", "batch/v1"), ("jobset", "")):
        text = run("new", kind, "train", "--gpu", "h100", "--count", "4", "--replicas", "3", "--image", "x:1").stdout
        template, workload = yaml.safe_load_all(text)
        assert workload["kind"].lower() == kind and workload["apiVersion"].startswith(fields)
        assert (template["metadata"]["name"], "command:" in text) == ("train", False)
        file = tmp_path / f"{kind}.yaml"
        file.write_text(text)
        assert run("check", str(file), "--strict").stderr == "2 documents: no problems found\n"
        placed = json.loads(run("allocate", "-f", str(file), "--nodes", "dgx-h100", "-o", "json").stdout)
        assert [item["fits"] for item in placed] == [True, True, False]
    text = run("new", "job", "--count", "1", "--command", "python 'my train.py'").stdout
    (container,) = list(yaml.safe_load_all(text))[1]["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == ("ubuntu:24.04", ["python", "my train.py"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("deployment", "--count", "1"), "--image is missing"),
        (("job", "--count", "1", "--pod"), "--pod for claim and template"),
        (("claim", "--count", "1", "--replicas", "2"), "--replicas is for deployment"),
        (("job", "--count", "1", "--command", "it's"), "quote it as in a shell"),
        (("claim", "--memory", "40"), "'40' is 40 bytes; write an amount like 40Gi"),
        (("claim",), "dractl new claim --gpu h100 --count 2;"),
        (("class",), "dractl new class --gpu h100;"),
        (("job",), "dractl new job --gpu h100 --count 2;"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_to_write(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        run("new", *arguments)


def test_a_wrong_combination_ends_with_status_2_and_a_line_for_each_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, plain_errors():
        run("new", "claim", "--mps", "--time-slice", "long", "--gpu", "t4", "--mig", "1g.5gb")
    assert ended.value.code == Status.USAGE
    printed = capsys.readouterr().err
    assert "time-slicing and MPS exclude each other" in printed
    assert "this GPU has no MIG mode (Tesla T4" in printed


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("1\nh100\n2\ny\nn\n", ["--gpu", "h100", "--count", "2", "--same", "nvlink"]),
        ("2\n3g.40gb\n\n1\ny\n", ["--mig", "3g.40gb", "--count", "1", "--pod"]),
        ("2\n9x\n3g.40gb\n\n1\ny\n", ["--mig", "3g.40gb", "--count", "1", "--pod"]),
        ("3\ncore=1\ncores=25\nl40s\nmany\n0\n1\nn\n", ["--share", "cores=25", "--gpu", "l40s", "--count", "1"]),
        ("9\n3\ncores=25\nl40s\n1\nn\n", ["--share", "cores=25", "--gpu", "l40s", "--count", "1"]),
    ],
)
def test_in_a_terminal_it_asks(monkeypatch: pytest.MonkeyPatch, typed: str, options: list[str]) -> None:
    monkeypatch.setattr("dra_driver.cli.new._somebody_is_there", lambda: True)
    answer = run("new", "template", typed=typed)
    # The runner shows what is typed, as a terminal does, before the YAML.
    assert answer.stdout.endswith(run("new", "template", *options).stdout)


def test_what_answers_cannot_change_is_refused_before_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.cli.new._somebody_is_there", lambda: True)
    with pytest.raises(InvalidInput, match="--image is missing"):
        run("new", "deployment", "llm", typed="2\n1g.10gb\n")


def test_it_says_when_no_known_gpu_can_satisfy_it() -> None:
    answer = run("new", "claim", "--gpu", "x900")
    assert answer.exit_code == 0
    assert "no device of the known" in answer.stderr
    assert run("new", "claim", "--gpu", "h100", "--count", "2").stderr == ""
    assert run("new", "claim", "--mig", "1c.3g.40gb").stderr == ""


def test_a_domain_comes_with_a_job_that_gets_its_channels_and_passes_the_check(tmp_path: Path) -> None:
    text = run("new", "domain", "pretrain", "--nodes", "3").stdout
    domain, gpus, job = yaml.safe_load_all(text)
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    names = [entry["resourceClaimTemplateName"] for entry in job["spec"]["template"]["spec"]["resourceClaims"]]
    assert (job["spec"]["parallelism"], names) == (3, [gpus["metadata"]["name"], template])
    assert "allocationMode" not in domain["spec"]["channel"]
    file = tmp_path / "domain.yaml"
    file.write_text(text)
    checked = run("check", str(file), "--strict")
    assert (checked.exit_code, checked.stdout) == (Status.DONE, "")
    assert run("allocate", "-f", str(file), "--nodes", "gb200:3", "-q").exit_code == Status.DONE
    assert run("allocate", "-f", str(file), "--nodes", "gb200:2", "-q").exit_code == Status.NO


def test_a_domain_can_have_all_channels_and_a_name_must_be_one() -> None:
    listed = json.loads(run("new", "domain", "--all-channels", "-o", "json").stdout)
    assert listed["items"][0]["spec"]["channel"]["allocationMode"] == "All"
    for name, why in (("Pretrain", "lower case"), ("x" * 51, "has more than 50 characters")):
        with pytest.raises(InvalidInput, match=why):
            run("new", "domain", name)
