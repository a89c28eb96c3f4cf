"""Classes whose names a person chose for claims: who makes them, what they select, and where they are there already."""

import json
from pathlib import Path

import jsonschema
import yaml
from support.dractl import decided, run

from dra_driver import bundled
from dra_driver.cli.output import Status
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Migration, Options, Source, StrategyOption

RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared")
PODS = "---\n".join(
    f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}}}\n"
    f"spec: {{containers: [{{name: c, image: i, resources: {{limits: {{{name}: 1}}}}}}]}}\n"
    for number, name in enumerate(RESOURCES)
)
CHOSEN = Options(strategy=StrategyOption.CLAIMS, gpu_class="our-gpus", mig_class="our-mig", shared_class="our.shares")
DECISIONS = "strategy: claims\nclasses: {gpu: our-gpus, mig: our-mig, shared: our.shares}"


def migrated(options: Options = CHOSEN, *side: str) -> Migration:
    return migrate([Source("pods.yaml", PODS)], options, [Source(f"{n}.yaml", one) for n, one in enumerate(side)])


def made(migration: Migration) -> dict[str, str]:
    listed = (migration.chart_values or {}).get("deviceClasses", {}).get("extra", [])
    return {one["name"]: one["spec"]["selectors"][0]["cel"]["expression"] for one in listed}


def test_the_chart_makes_classes_of_chosen_names_that_select_what_its_own_do() -> None:
    found = made(migrated())
    assert list(found) == ["our-gpus", "our-mig", "our.shares"]
    shipped = {"our-gpus": "gpu.nvidia.com", "our-mig": "mig.nvidia.com", "our.shares": "shared.gpu.nvidia.com"}
    for name, usual in shipped.items():
        text = (bundled.DEVICE_CLASSES_FOLDER / f"{usual}.yaml").read_text()
        expression = yaml.safe_load(text)["spec"]["selectors"][0]["cel"]["expression"]
        assert " ".join(expression.split()) == found[name]
    assert any("our-gpus and our-mig and our.shares" in one for one in migrated().reasons)


def test_a_driver_of_another_name_has_classes_of_its_devices() -> None:
    options = Options(strategy=StrategyOption.CLAIMS, gpu_class="our-gpus", driver="gpu.example.com")
    assert made(migrated(options))["our-gpus"] == (
        "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].type == 'gpu'"
    )


def test_what_the_chart_has_or_somebody_has_made_is_not_made_again() -> None:
    assert made(migrated(Options(strategy=StrategyOption.CLAIMS))) == {}
    assert made(migrated(Options(strategy=StrategyOption.EXTENDED, gpu_class="our-gpus"))) == {}
    there = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: our-gpus}\nspec: {}\n"
    assert list(made(migrated(CHOSEN, there))) == ["our-mig", "our.shares"]


def test_one_name_for_several_kinds_is_for_a_person_to_say() -> None:
    options = Options(strategy=StrategyOption.CLAIMS, gpu_class="ours", mig_class="ours")
    assert made(migrated(options)) == {}


def test_workloads_are_tried_with_these_classes_and_the_chart_takes_the_values(tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text(PODS)
    result = run("migrate", str(tmp_path / "pods.yaml"), *decided(tmp_path, DECISIONS), "-o", str(tmp_path / "new"))
    assert result.exit_code == Status.DONE, result.output
    report = (tmp_path / "new" / "report.md").read_text()
    assert "there is no DeviceClass" not in report and "does not bring" not in report
    values = yaml.safe_load((tmp_path / "new" / "values.yaml").read_text())
    assert [one["name"] for one in values["deviceClasses"]["extra"]] == ["our-gpus", "our-mig", "our.shares"]
    chart = Path(__file__).parents[3] / "charts" / "gpu-dra-driver" / "values.schema.json"
    jsonschema.validate(values, json.loads(chart.read_text()))
