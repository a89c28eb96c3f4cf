"""Every application is what its README says: where it fits, why it waits elsewhere, and how to run it."""

import json
import re
from contextlib import suppress
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from support.dractl import run
from support.rows import rows

from dra_driver.api.meta import JsonObject
from dra_driver.bundled import APPS_FOLDER
from dra_driver.terminal import Status

APPS = sorted(path.name for path in APPS_FOLDER.iterdir() if path.is_dir())
_ROW = re.compile(r"^\| (`.+`) \| (fits|waits)(?:: `([^`]+)`)?", re.MULTILINE)
"""A row of the table of a README: nodes, result, and the reason why the application waits."""
MUST_SAY = ("t4", "dgx-a100-80", "dgx-h100", "gb200")


def readme(app: str) -> str:
    return (APPS_FOLDER / app / "README.md").read_text(encoding="utf-8")


def promises(app: str) -> list[tuple[str, str | None]]:
    """Nodes, and why the application waits there; None where it fits."""
    return [
        (nodes, reason or None)
        for names, _, reason in _ROW.findall(readme(app))
        for nodes in re.findall(r"`([^`]+)`", names)
    ]


def placements(app: str, nodes: str) -> list[JsonObject]:
    """What `dractl allocate` says of each pod, after its exit status was compared with that."""
    answer = run("allocate", "-f", str(APPS_FOLDER / app), "--nodes", nodes, "-o", "json")
    placed: list[JsonObject] = json.loads(answer.stdout)
    assert placed
    assert answer.exit_code == (Status.DONE if all(item["fits"] for item in placed) else Status.NO)
    return placed


def results(claim: JsonObject) -> list[JsonObject]:
    devices: list[JsonObject] = claim["allocation"]["devices"]["results"]
    return devices


def documents(app: str) -> list[JsonObject]:
    return [
        document
        for path in sorted((APPS_FOLDER / app).glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


@rows("app, nodes, reason", [(app, *promise) for app in APPS for promise in promises(app)])
def test_it_fits_where_its_readme_says_so_and_waits_elsewhere_for_the_reason_there(
    app: str, nodes: str, reason: str | None
) -> None:
    waiting = [item for item in placements(app, nodes) if not item["fits"]]
    assert bool(waiting) == bool(reason)
    assert all(reason in each["reason"] for item in waiting for each in item["reasons"] if reason)


@rows(
    "app, nodes, of_pods",
    [
        ("vllm-two-gpus", "dgx-a100-80", [["gpus", "gpus"]]),
        ("jupyter-mig", "a30", [["gpu"]]),
        ("fine-tuning-job", "a30,dgx-h100", [["gpus/large"]]),
        ("fine-tuning-job", "a30", [["gpus/two-smaller", "gpus/two-smaller"]]),
        ("triton-shares", "t4", [["gpu"], ["gpu"], ["gpu"]]),
        ("ray-cluster", "t4", [[], ["gpu"], ["gpu"]]),
        ("disaggregated-inference", "gb200:2", [["gpus", "gpus", "channel"], [*["gpus"] * 4, "channel"]]),
        ("nvl72-jobset", "gb200:18", [[*["gpus"] * 4, "channel"]] * 18),
        ("kubevirt-vm", "rtx-pro-6000", [["gpu"]]),
    ],
)
def test_each_pod_gets_the_devices_that_its_readme_promises(app: str, nodes: str, of_pods: list[list[str]]) -> None:
    placed = placements(app, nodes)
    got = [[result["request"] for claim in item["claims"] for result in results(claim)] for item in placed]
    assert got == of_pods
    if "channel" in got[0]:
        assert len({item["node"] for item in placed}) == len(placed)
    if app == "triton-shares":
        assert len({result["device"] for item in placed for claim in item["claims"] for result in results(claim)}) == 1


@pytest.mark.parametrize("app", APPS)
def test_its_readme_has_a_result_for_each_row_and_for_common_hardware(app: str) -> None:
    rows_in_table = re.findall(r"^\| `.*$", readme(app), re.MULTILINE)
    read = _ROW.findall(readme(app))
    assert len(read) == len(rows_in_table)
    assert all((result == "waits") == bool(reason) for _, result, reason in read)
    promised = {nodes.split(":")[0] for nodes, _ in promises(app)}
    assert promised.issuperset(MUST_SAY)
    shown = re.search(rf"`dractl allocate -f examples/apps/{app} --nodes (\S+)` shows", readme(app))
    assert shown is not None and (shown[1], None) in promises(app)


@pytest.mark.parametrize("app", APPS)
def test_the_check_has_nothing_to_say(app: str) -> None:
    checked = run("check", "--strict", str(APPS_FOLDER / app))
    assert (checked.exit_code, checked.stdout) == (Status.DONE, "")


@pytest.mark.parametrize("app", APPS)
def test_what_kubernetes_itself_defines_is_valid_to_the_last_field(app: str) -> None:
    """The check looks at what has to do with devices; `strict` refuses a misspelled field anywhere."""
    known = 0
    for document in documents(app):
        with suppress(kubernetes_validate.SchemaNotFoundError):
            kubernetes_validate.validate(document, "1.36", strict=True)
            known += 1
    assert known


@pytest.mark.parametrize("app", APPS)
def test_its_readme_says_how_to_run_it_what_to_expect_and_what_to_change(app: str) -> None:
    has_policy = (APPS_FOLDER / app / "policy.yaml").is_file()
    files = f"examples/apps/{app}/{app}.yaml" if has_policy else f"examples/apps/{app}"
    for command in ("apply", "delete"):
        assert f"    kubectl {command} -f {files}\n" in readme(app)
    assert "\nExpect " in readme(app) and "\nWhat to change:\n" in readme(app)
    assert (f"    kubectl apply -f examples/apps/{app}/policy.yaml\n" in readme(app)) == has_policy
    for policy in (item for item in documents(app) if item["kind"] == "GpuPolicy"):
        labels = policy["spec"]["nodes"]["labelSelector"]["matchLabels"]
        assert all(f"    kubectl label node NODE {key}={value}\n" in readme(app) for key, value in labels.items())


@pytest.mark.parametrize("app", APPS)
def test_its_images_have_a_tag_of_one_version(app: str) -> None:
    images = re.findall(r"image: (\S+)", (APPS_FOLDER / app / f"{app}.yaml").read_text(encoding="utf-8"))
    assert images
    for image in images:
        name, _, tag = image.rpartition(":")
        assert "/" in name and re.search(r"\d\.\d|\d{4}-\d\d-\d\d|\d\d\.\d\d", tag), image


def test_the_index_names_every_example_by_its_title() -> None:
    """And nothing else."""
    top = APPS_FOLDER.parent
    index = (top / "README.md").read_text(encoding="utf-8")
    for part in ("apps", "features"):
        folders = sorted(path for path in (top / part).iterdir() if path.is_dir())
        wanted = {f"| [{_title(path)}]({part}/{path.name}) |" for path in folders}
        listed = set(re.findall(rf"^\| \[[^\]]+\]\({part}/[^)]+\) \|", index, re.MULTILINE))
        assert listed == wanted


def _title(folder: Path) -> str:
    first, *_ = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    return first.removeprefix("# ")
