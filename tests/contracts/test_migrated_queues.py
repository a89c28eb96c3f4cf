"""Queues as the migration leaves them, on a real API server with the definitions of Kueue, Volcano and KAI.

Needs KUBEBUILDER_ASSETS, and GPU_DRA_TEST_CRDS: a folder with the definitions of those projects.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from support.real_api_server import RealApiServer
from support.real_crds import Server, crds_folder, crds_in, lost

from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Options, StrategyOption

MIGRATION = Path(__file__).parents[1] / "dra_driver/migration"
GROUPS = ("kueue.x-k8s.io", "scheduling.volcano.sh", "scheduling.run.ai")
FILES = [
    path
    for path in sorted((*MIGRATION.glob("manifests/quotas/*.yaml"), *MIGRATION.glob("golden/*/before.yaml")))
    if any(f"apiVersion: {group}/" in path.read_text() for group in GROUPS)
]
CONVERTED = {".spec.cohort"}
"""What v1beta1 of Kueue calls otherwise, and its conversion webhook, which does not run here, carries over."""
OPTIONS = {
    "auto": Options(),
    "claims": Options(strategy=StrategyOption.CLAIMS),
    "dynamic": Options(strategy=StrategyOption.CLAIMS, dynamic_mig=True),
}


@pytest.fixture(scope="module")
def server(real_server: Callable[..., RealApiServer]) -> Server:
    folder = crds_folder()
    started = Server(real_server({}))
    started.define(crd for crd in crds_in(folder) if crd["spec"]["group"] in GROUPS)
    return started


def queues_after(path: Path, options: Options) -> Iterator[JsonObject]:
    result = migrate([ManifestText(path.name, path.read_text())], options)
    for document in read_documents(result.files[0].after, path.name).documents:
        if document.api_version.partition("/")[0] in GROUPS:
            yield document.obj


@pytest.mark.parametrize("options", OPTIONS)
def test_queues_are_taken_whole(server: Server, options: str) -> None:
    tried = 0
    for path in FILES:
        for obj in queues_after(path, OPTIONS[options]):
            if not server.knows(obj):
                continue
            answer = server.tried(obj)
            assert answer.taken, f"{path.parent.name}/{path.name}: {answer.message}"
            assert set(lost(obj, answer.body)) <= CONVERTED, yaml.safe_dump(obj)
            tried += 1
    assert tried >= 12
