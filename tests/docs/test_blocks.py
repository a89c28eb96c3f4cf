"""What stands in the blocks of all pages is so: commands run, YAML is right, and what cannot be tried says why."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.objects import node
from support.page_commands import HelmLine, Shell, is_runnable
from support.pages import LANGUAGES, PAGES, ROOT, Block, Command, blocks, commands, name
from support.rows import rows, slow_but
from support.shipped import definition
from typer.testing import CliRunner

from dra_driver import bundled
from dra_driver.api.config import DEVICE_CONFIGS
from dra_driver.api.meta import Resource
from dra_driver.api.opaque import kind_of, written_config
from dra_driver.cli.main import app

BLOCKS = [block for page in PAGES for block in blocks(page)]
SCHEMA = json.loads((ROOT / "charts" / "gpu-dra-driver" / "values.schema.json").read_text())
CONFIGS = {kind.kind: kind for kind in DEVICE_CONFIGS}

ANSWERS_ELSEWHERE = ("docs/commands.md", "docs/explain.md", "docs/check.md")
"""Their commands are run by test_answers.py, against the clusters that they tell of."""


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


@rows("block", BLOCKS)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, f"```{block.info}"
    known = {block.language, "values"}
    words = block.info.split(" no-run: ")[0].split(" no-check: ")[0].split()
    assert {word for word in words if not word.startswith("file=")} <= known, block.info
    for reason in (block.not_run, block.not_checked):
        assert reason is None or len(reason.split()) > 2, "a reason is a few words"


@rows("block", [block for block in of("sh", "console") if block.not_run is not None])
def test_what_is_not_run_could_not_be_run(block: Block) -> None:
    assert not [command.line for command in commands(block) if is_runnable(command.line)], (
        "put these into a block that is run"
    )


# -- YAML


@rows("block", [block for block in of("yaml") if block.values])
def test_values_are_what_the_chart_takes(block: Block) -> None:
    jsonschema.validate(yaml.safe_load(block.text), SCHEMA)


def documents(block: Block) -> list[Any]:
    return [document for document in yaml.safe_load_all(block.text) if document is not None]


@rows("block", [block for block in of("yaml") if not block.values])
def test_manifests_are_yaml_of_a_kind(block: Block) -> None:
    for document in documents(block):
        if block.not_checked is None:
            assert document["apiVersion"] and document["kind"]
            if document["kind"] in CONFIGS:
                written_config(document, CONFIGS[kind_of(document, field="p")], field="p")


def test_manifests_pass_dractl_check(tmp_path: Path) -> None:
    for number, block in enumerate(
        manifest_block
        for manifest_block in of("yaml")
        if not manifest_block.values and manifest_block.not_checked is None
    ):
        manifests = [document for document in documents(block) if document["kind"] not in CONFIGS]
        if manifests:
            page = name(block.page).replace("/", "_")
            (tmp_path / f"{number}-{page}-{block.line}.yaml").write_text(yaml.safe_dump_all(manifests))
    outcome = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output


# -- commands


def run_of(page: Path) -> list[Command | Block]:
    """Commands in their order, and the files that they find."""
    steps: list[Command | Block] = []
    for block in blocks(page):
        if block.file is not None:
            steps.append(block)
        elif block.language in ("sh", "console") and block.not_run is None:
            steps += commands(block)
    return steps


STORIES = {name(page): run_of(page) for page in PAGES if name(page) not in ANSWERS_ELSEWHERE}
LIKE_INSTALL = ("docs/install-", "docs/upgrade.md", "docs/air-gap.md", "docs/guides/09-upgrade.md")
"""Pages whose commands are mostly those of install.md and of the guides: `make test-all` runs them."""
RUN = [page for page, steps in STORIES.items() if any(isinstance(step, Command) for step in steps)]


@pytest.mark.parametrize("page", slow_but(RUN, *(page for page in RUN if not page.startswith(LIKE_INSTALL))))
def test_every_command_of_the_page_can_be_given(page: str, tmp_path: Path) -> None:
    lines = [step.line for step in STORIES[page] if isinstance(step, Command)]
    if not any(line.startswith(("helm ", "kubectl ")) for line in lines):
        _play(page, Shell(tmp_path, tmp_path / "no-kubeconfig"))
        return
    if find_spec("helm_sdkpy") is None:
        pytest.skip("there is no Helm on this platform")
    from support.foreign_types import EVERYTHING_SERVED
    from support.helm import simulated_server

    with simulated_server() as server:
        for obj in (*before(), *(EVERYTHING_SERVED if page == "docs/install-openshift.md" else ())):
            server.create(obj)
        server.kube(lambda kube: kube.create(OPERATOR, CLUSTER_POLICY))
        shell = Shell(tmp_path, server.kubeconfig)
        if any(line.startswith("helm ") for line in lines):
            shell.helm = HelmLine(server.kubeconfig)
        else:
            # A page that installs nothing is for people who have it.
            installed(server)
        _play(page, shell)


def before() -> list[dict[str, Any]]:
    """What there is in the cluster when somebody begins to read."""
    names = {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    operator = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {
            "group": "nvidia.com",
            "names": names,
            "scope": "Cluster",
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}},
            ],
        },
    }
    nodes = [node("gpu-node-1"), node("gpu-node-2")]
    for gpu_node in nodes:
        gpu_node["metadata"]["labels"] = {"nvidia.com/gpu.present": "true"}
    return [*nodes, operator]


OPERATOR = Resource("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
CLUSTER_POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}


def _play(page: str, shell: Shell) -> None:
    for step in STORIES[page]:
        if isinstance(step, Block):
            assert step.file is not None
            (shell.folder / step.file).write_text(step.text)
        elif not step.line.startswith("dractl cluster") and not in_own_cluster(step.block):
            _run(shell, step)
        elif step.line.startswith("dractl cluster"):
            _play_in_own_cluster(step.block, shell)


def in_own_cluster(block: Block) -> bool:
    return any(command.line.startswith("dractl cluster") for command in commands(block))


def _play_in_own_cluster(block: Block, shell: Shell) -> None:
    """What comes after `dractl cluster` in its block is for that cluster, which has definitions and classes."""
    from support.helm import simulated_server

    with simulated_server() as server:
        installed(server)
        for command in commands(block):
            _run(Shell(shell.folder, server.kubeconfig), command)


def installed(server: Any) -> None:
    for folder in (bundled.CRDS_FOLDER, bundled.DEVICE_CLASSES_FOLDER):
        for file in sorted(folder.glob("*.yaml")):
            server.create(definition(file))


def _run(shell: Shell, command: Command) -> None:
    try:
        shell.run(command.line)
    except Exception as error:
        raise AssertionError(f"{command}\n{error}") from error


# -- the rest


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


def test_python_stands_where_it_is_run() -> None:
    """tests/dra_driver/allocation/test_library.py runs that page from top to bottom."""
    assert {name(block.page) for block in of("python")} == {"docs/library.md"}


@rows("block", of("text"))
def test_text_hides_no_commands(block: Block) -> None:
    programs = ("helm ", "kubectl ", "dractl ", "$ ")
    assert not [line for line in block.text.splitlines() if line.lstrip().startswith(programs)]
