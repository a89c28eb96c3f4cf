"""Public applications: each runs on a simulated cluster, or is refused with a sentence that a person has read.

GPU_DRA_TEST_CORPUS   a folder with the sample manifests of other projects, each project in a folder

`reviewed.yaml` has the sentences, as patterns, and the manifests that run. A new sentence fails here: read it beside
the manifest that it is about, correct it if it is wrong or does not help, and add it. `render.py` makes manifests of
Helm charts.

The corpus of 2026-11-28: samples and demos of NVIDIA's own DRA driver, KubeRay, the vLLM production stack, Kueue,
JobSet, LeaderWorkerSet, Kubeflow's MPI operator, KServe and KubeVirt; and the charts of JupyterHub and of the vLLM
production stack, this with the values of 21 of its tutorials; 600 files, 126 of them about GPUs.
"""

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.places import SHORT
from typer.testing import CliRunner

from dra_driver.cli.main import app
from dra_driver.cli.simulated import scenario as scenarios
from dra_driver.cli.simulated.demo import run_scenario
from dra_driver.errors import InvalidInput
from dra_driver.kubernetes import CURRENT, SEEN
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes

FOLDER = Path(os.environ["GPU_DRA_TEST_CORPUS"]) if os.environ.get("GPU_DRA_TEST_CORPUS") else None
REVIEWED = yaml.safe_load(Path(__file__).with_name("reviewed.yaml").read_text())
NODES = "dgx-h100:2,gb200:2,t4"
TIMEOUT_S = 12.0
_OF_ONE_POD = re.compile(r"; (?=pod )")
ABOUT_GPUS = re.compile(r"nvidia\.com|resourceClaim|ComputeDomain")

pytestmark = [
    pytest.mark.skipif(FOLDER is None, reason="GPU_DRA_TEST_CORPUS names no folder of other projects' samples"),
    pytest.mark.slow,
]


def manifests() -> Iterator[Path]:
    assert FOLDER is not None
    return (path for path in sorted(FOLDER.rglob("*")) if path.suffix in (".yaml", ".yml"))


def unread(sentences: dict[str, list[str]], kind: str) -> dict[str, list[str]]:
    """Sentences that no pattern of `kind` matches whole, with the files that met them."""
    patterns = [re.compile(pattern, re.DOTALL) for pattern in REVIEWED[kind]]
    return {
        text: files for text, files in sentences.items() if not any(pattern.fullmatch(text) for pattern in patterns)
    }


def test_every_finding_of_dractl_check_was_read() -> None:
    sentences: dict[str, list[str]] = {}
    checked = 0
    for path in manifests():
        outcome = CliRunner().invoke(app, ["check", str(path), "-o", "json"])
        assert outcome.exception is None or isinstance(outcome.exception, SystemExit), path
        for finding in json.loads(outcome.stdout):
            sentences.setdefault(f"{finding['code']}: {finding['message']}", []).append(path.name)
        checked += 1
    assert checked > 100, "the folder is not that of the corpus"
    assert sorted(unread(sentences, "check")) == []


async def test_every_manifest_about_gpus_runs_or_is_refused_with_a_sentence_that_was_read(tmp_path: Path) -> None:
    sentences: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(dir=SHORT) as place:
        results = await _run_all(Path(place), tmp_path, sentences)
    ran = sorted(path for path, result in results.items() if result == "ran")
    print(dict(Counter(results.values())), *ran, sep="\n")
    assert sorted(unread(sentences, "run")) == []
    assert [path for path in REVIEWED["ran"] if path in results and path not in ran] == [], "these ran before"
    assert len(ran) > len(REVIEWED["ran"]) / 2, "the folder is not that of the corpus"


async def _run_all(place: Path, work: Path, sentences: dict[str, list[str]]) -> dict[str, str]:
    """What came of each manifest, by its path below the corpus."""
    assert FOLDER is not None
    results: dict[str, str] = {}
    async with SimulatedCluster.running(place, parse_nodes(NODES), version=SEEN[CURRENT]) as cluster:
        for number, path in enumerate(path for path in manifests() if ABOUT_GPUS.search(path.read_text())):
            folder = work / str(number)
            folder.mkdir()
            shutil.copy(path, folder)
            result, sentence = await _tried(cluster, folder)
            results[str(path.relative_to(FOLDER))] = result
            for part in _OF_ONE_POD.split(sentence) if sentence else ():
                sentences.setdefault(part, []).append(path.name)
    return results


async def _tried(cluster: SimulatedCluster, folder: Path) -> tuple[str, str]:
    """What came of it, and the sentence, empty if it ran."""
    try:
        scenario = await asyncio.to_thread(scenarios.read_scenario, folder)
    except InvalidInput as error:
        return "no manifest", str(error).replace(str(folder), "FOLDER")
    if scenario.foreign:
        return "other kinds", ""
    outcome = await run_scenario(cluster, scenario, TIMEOUT_S)
    return ("refused", outcome.error) if outcome.error else ("ran", "")
