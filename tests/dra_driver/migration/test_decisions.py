"""Decisions of a person: each reaches the migration, mistakes are named, and texts name decisions that there are."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from support.rows import rows

from dra_driver.errors import InvalidInput
from dra_driver.migration.codes import CODES
from dra_driver.migration.decisions import FIELDS, Decisions, lines_in, proposal
from dra_driver.migration.model import Options

EVERY = """
strategy: claims
workloads: [{name: a, strategy: claims}]
sharedClaims: [[a, b]]
sharing: mps:4
migStrategy: mixed
migProfile: 1g.10gb
dynamicMig: true
gpuMemory: 80Gi
otherResources: [b]
severalShares: devices
shareVisibleAll: true
removeRuntimeClass: true
unknownKinds: true
argoResourceClaims: true
kserveStandard: true
extendedResources: false
driver: other.example.com
classes: {gpu: g, mig: m, shared: s, vfio: v}
"""


def test_every_decision_is_an_option_and_every_option_a_decision() -> None:
    assert yaml.safe_load(EVERY).keys() == FIELDS.keys()
    options = Decisions.read(EVERY, "f").options(37)
    assert [
        option.name for option in fields(Options) if getattr(options, option.name) == getattr(Options(), option.name)
    ] == []
    assert Decisions.read("", "f").options(None) == Options()


@rows(
    "text, message",
    [
        ("sharing: mps", "not like time-slicing:4"),
        ("sharing: mps:1", "not like time-slicing:4"),
        ("otherResources: [nvidia.com/gpu]", "nvidia.com/gpu is a GPU"),
        ("gpuMemory: much", "not an amount"),
        ("gpuMemory: 80", "less than any GPU has; write the unit"),
        ("migProfile: 1g", "not a MIG profile like 1g.10gb"),
        ("classes: {gpu: Team GPU}", "classes.gpu: 'Team GPU' is not a name like"),
        (f"driver: {'x' * 64}", "not a name like"),
        ("workloads: [{name: a, strategy: never}]", "is 'never'; must be one of `auto`, `extended`, `claims`"),
        ("workloads: [{strategy: auto}]", "name: is missing"),
        ("sharedClaims: [[]]", "at least 1 item"),
        ("pinUuid: true", "no such decision: pinUuid; there are strategy, workloads"),
        ("- claims", "decisions are a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_field(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        Decisions.read(text, "f")


def test_a_proposal_has_what_was_decided_and_asks_for_the_rest() -> None:
    given = Decisions.read("gpuMemory: 80Gi", "f")
    text = proposal({"gpuMemory: 40Gi": ["M004, a:1"], "unknownKinds: true": ["M017, a:1", "M017, a:2"]}, given)
    assert Decisions.read(text, "f") == given
    assert "(M017, a:1 and 1 more)\n# unknownKinds: true\n" in text
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines() if "M017" not in line)
    assert Decisions.read(uncommented, "f").unknown_kinds


def test_texts_name_decisions_that_can_be_read() -> None:
    texts = [path.read_text() for path in Path("dra_driver/migration").rglob("*.py")]
    texts += [f"{code.means} {code.advice}" for code in CODES]
    spoken = {match[0].strip("`") for text in texts for match in re.finditer(r"`([a-z]\w+): [^`{]*[^`]+`", text)}
    lines = {line for line in spoken if line.partition(":")[0] in FIELDS and "{{" not in line} - {"strategy: MPS"}
    assert len(lines) >= 10
    assert [line for line in lines if not list(lines_in(f"`{line}`"))] == []
