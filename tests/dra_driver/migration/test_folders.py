"""What kustomize builds together, and that large trees take no longer for each file than small ones."""

from support.calls import calls
from support.kustomize import CLAIMS, Files, deployment, listed

from dra_driver.api.documents import read_documents
from dra_driver.migration.folders import Folders
from dra_driver.migration.kustomize import kustomizations
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Source


def folders(files: Files) -> Folders:
    documents = [one for file, text in files.items() for one in read_documents(text, file).documents]
    return Folders(kustomizations(documents))


TREE = {
    "a/base/kustomization.yaml": "resources: [web.yaml]\n",
    "a/over/kustomization.yaml": "resources: [../base]\npatches: [{path: p.yaml}]\ncomponents: [../../part]\n",
    "a/more/kustomization.yaml": "resources: [../base, db.yaml]\n",
    "part/kustomization.yaml": "kind: Component\nresources: [extra.yaml, ../a/over]\n",
}


def test_files_are_together_that_one_kustomization_builds_with_all_below_it() -> None:
    found = folders(TREE)
    assert {"a/over/p.yaml", "a/more/db.yaml", "part/extra.yaml"} <= found.files_with("a/base/web.yaml")
    assert "a/more/db.yaml" not in found.files_with("a/over/p.yaml")
    assert found.files_with("elsewhere.yaml") == {"elsewhere.yaml"}


def test_folders_that_name_each_other_are_each_there_once() -> None:
    found = folders(TREE)
    (part,) = (one for one in found.all if str(one.folder) == "part")
    assert list(map(str, found.applied(part.folder))).count("part") == 1
    assert {"a/base", "a/over", "part"} <= set(map(str, found.applied(part.folder)))


def large(pairs: int) -> Files:
    """Each a base of some files and an overlay with a patch."""
    operation = "- {op: replace, path: /spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu, value: 4}"
    files = {}
    for pair in range(pairs):
        names = [f"w{pair}x{number}" for number in range(6)]
        for number, name in enumerate(names):
            files[f"a{pair}/base/{name}.yaml"] = deployment("", 1 if number < 2 else None, name)
        files[f"a{pair}/base/kustomization.yaml"] = "resources:\n" + "".join(f"- {name}.yaml\n" for name in names)
        patch = listed(operation, f"{{kind: Deployment, name: {names[0]}}}")
        files[f"a{pair}/over/kustomization.yaml"] = f"resources: [../base]\n{patch}"
    return files


def test_twice_the_tree_is_twice_the_work() -> None:
    """Counted, not timed: how often something of ours or of the standard library is called."""
    few, many = (calls(lambda pairs=pairs: migrate(_sources(pairs), CLAIMS)) for pairs in (15, 30))
    assert many < 2.2 * few


def _sources(pairs: int) -> list[Source]:
    return [Source(file, text) for file, text in large(pairs).items()]
