"""Results on a real kube-apiserver that has the kinds of other projects, as those projects define them.

Runs where KUBEBUILDER_ASSETS names a kube-apiserver and GPU_DRA_TEST_CRDS a folder of CustomResourceDefinitions. Every
manifest of these tests of such a kind is tried, as it was and as it becomes, with unknown fields refused: what was
taken is taken, and nothing of it is dropped; where that needs the definitions, who does not give them is warned.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import real_api_server
from support.real_crds import CRDS, Server, crds_folder, crds_in, lost

from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import NO_CLAIMS_HERE
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, Options, StrategyOption

if not (os.environ.get(real_api_server.ASSETS) and os.environ.get(CRDS)):
    pytest.skip(f"{real_api_server.ASSETS} and {CRDS} are not both set", allow_module_level=True)

HERE = Path(__file__).parent
FILES = sorted(
    path.relative_to(HERE) for pattern in ("manifests/**/*.yaml", "golden/*/before.yaml") for path in HERE.glob(pattern)
)
WAYS = {
    "auto": Options(),
    "claims": Options(strategy=StrategyOption.CLAIMS, argo_resource_claims=True, kserve_standard=True),
}


@pytest.fixture(scope="module")
def definitions() -> Mapping[tuple[str, str], JsonObject]:
    """By group and kind."""
    crds = crds_in(crds_folder())
    return {(crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd for crd in crds}


@pytest.fixture(scope="module")
def server(
    definitions: Mapping[tuple[str, str], JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    running = real_api_server.start(real_api_server.assets_folder(), tmp_path_factory.mktemp("real"))
    try:
        store = Server(running)
        store.define(definitions.values())
        yield store
    finally:
        running.stop()


@cache
def text(file: Path) -> str:
    return (HERE / file).read_bytes().decode("utf-8")


def objects(source: str) -> list[JsonObject]:
    return [document.obj for document in read_documents(source, "f").documents if document.obj.get("apiVersion")]


def named(obj: JsonObject) -> tuple[str, str, Any]:
    return str(obj["apiVersion"]), str(obj["kind"]), (obj.get("metadata") or {}).get("name")


OWN_GROUPS = ("apps", "batch", "autoscaling", "policy", "extensions")


def is_foreign(obj: JsonObject) -> bool:
    """Of a group that is none of Kubernetes' own."""
    group, slash, _ = str(obj["apiVersion"]).rpartition("/")
    return bool(slash) and group not in OWN_GROUPS and group.removesuffix(".k8s.io") not in OURS


OURS = ("resource", "networking", "rbac.authorization", "admissionregistration", "storage", "scheduling", "metrics")


type Key = tuple[str, str, Any]


def tried(server: Server, migration: Migration, before: Mapping[Key, Collection[str]]) -> Iterator[str]:
    """What the server does not take of the results, or drops; `before` has what it dropped of the manifests.

    Something is dropped of a manifest whose version is converted by its operator, which is not there.
    """
    for obj in objects(migration.files[0].after):
        key = named(obj)
        if key in before:
            answer = server.tried(obj)
            if not answer.taken:
                yield f"{key}: {answer.message}"
            else:
                yield from (f"{key}: {path} is dropped" for path in lost(obj, answer.body) if path not in before[key])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", FILES, ids=str)
def test_what_was_taken_is_taken_and_nothing_is_dropped(
    server: Server, definitions: Mapping[tuple[str, str], JsonObject], file: Path, way: str
) -> None:
    known = {named(obj): obj for obj in objects(text(file)) if is_foreign(obj) and server.knows(obj)}
    answers = {key: server.tried(obj) for key, obj in known.items()}
    taken = {key: set(lost(known[key], answer.body)) for key, answer in answers.items() if answer.taken}
    if not known:
        pytest.skip("no object of a kind that is defined")
    if not taken:
        pytest.skip(f"not as this release has it: {'; '.join(answer.message for answer in answers.values())}"[:300])
    own = {
        (version.partition("/")[0], kind): definitions.get((version.partition("/")[0], kind))
        for version, kind, _ in taken
    }
    side = [ManifestText(f"{kind}.yaml", json.dumps(obj)) for (_, kind), obj in own.items() if obj is not None]
    assert list(tried(server, migrate([ManifestText("a.yaml", text(file))], WAYS[way], side), taken)) == []
    alone = migrate([ManifestText("a.yaml", text(file))], replace(WAYS[way], argo_resource_claims=False))
    if list(tried(server, alone, taken)):
        assert any(finding.code is NO_CLAIMS_HERE and not finding.fixed for finding in alone.findings), (
            "nobody was warned"
        )


def test_kinds_that_are_defined_are_tried(server: Server) -> None:
    counted = Counter(
        named(obj)[:2] for file in FILES for obj in objects(text(file)) if is_foreign(obj) and server.knows(obj)
    )
    assert counted
    print(f"{sum(counted.values())} objects of {len(counted)} kinds: {dict(counted)}")
