"""GPUs under names that somebody chose: the class that answers to one is used, and patterns become selectors."""

import json
from pathlib import Path

import pytest
import yaml
from support.dractl import decided, run
from support.migration import GPU, all_codes, limits, meaning_of, pod, read

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Want, What
from dra_driver.terminal import Status

OURS = "device.driver == 'gpu.nvidia.com'"
PRODUCT = "device.attributes['gpu.nvidia.com'].productName"


def device_class(name: str, resource: str, *more: str, driver: str = OURS, created: str = "") -> JsonObject:
    selectors = [{"cel": {"expression": " && ".join((driver, *more))}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, **({"creationTimestamp": created} if created else {})},
        "spec": {"selectors": selectors, "extendedResourceName": resource},
    }


H100 = device_class("h100.example.com", "nvidia.com/gpu-h100", f"{PRODUCT}.contains('H100')")
CONFIG = "version: v1\nresources: {gpus: [{pattern: '*H100*', name: gpu-h100}]}\n"


def test_the_class_that_answers_to_a_name_is_the_class_of_the_claim() -> None:
    reading = read(pod(limits({"nvidia.com/gpu-h100": 2})), meaning_of(H100))
    assert [demand.want for demand in reading.demands] == [Want(What.GPU, 2, device_class="h100.example.com")]
    assert (reading.leave, reading.needs_claims, all_codes(reading)) == (None, None, ["M012"])


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("device.attributes['gpu.nvidia.com'].type == 'mig'", What.MIG),
        ("device.attributes['gpu.nvidia.com'].profile == '1g.10gb'", What.MIG),
        ('device.attributes["gpu.nvidia.com"].type == "vfio"', What.VFIO),
        ("true", What.GPU),
    ],
)
def test_the_class_says_what_it_is(expression: str, what: What) -> None:
    meaning = meaning_of(device_class("own.example.com", "example.com/slice-gpu", expression))
    assert meaning.own["example.com/slice-gpu"].what is what


def test_of_two_classes_for_a_name_the_newest_counts_as_for_schedulers() -> None:
    old = device_class("a.example.com", GPU, created="2026-01-01T00:00:00Z")
    new = device_class("b.example.com", GPU, created="2026-02-01T00:00:00Z")
    reading = read(pod(limits({GPU: 1})), meaning_of(old, new))
    assert reading.demands[0].want.device_class == "b.example.com"
    configured = read(pod(limits({GPU: 1})), meaning_of(old, new), gpu_class="said.example.com")
    assert configured.demands[0].want.device_class is None


def test_classes_of_other_drivers_say_nothing_of_our_devices() -> None:
    other = device_class("other.example.com", "example.com/gpu", driver="device.driver == 'gpu.example.com'")
    reading = read(pod(limits({"example.com/gpu": 1})), meaning_of(other))
    assert (reading.demands, all_codes(reading)) == ((), ["M019"])


@pytest.mark.parametrize("strategy", ["claims", "extended"])
def test_either_way_the_pod_gets_what_the_name_stands_for(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "class.yaml").write_text(yaml.safe_dump(H100))
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod(limits({"nvidia.com/gpu-h100": 1}))))
    given = ("--with", str(tmp_path / "class.yaml"), "--strategy", strategy, "--nodes", "t4,dgx-h100")
    outcome = run("migrate", str(tmp_path / "pod.yaml"), *given, "--report", "json")
    assert outcome.exit_code == Status.DONE, outcome.output
    (tried,) = json.loads(outcome.stdout)["verification"]["workloads"]
    assert (tried["verdict"], tried["node"]) == ("same", "dgx-h100")


THING: JsonObject = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}
STRANGE = {"limits": {"alnair/vgpu-memory": 4}, "requests": {"alnair/vgpu-memory": 4}}
SHAPES: dict[str, tuple[JsonObject, int]] = {
    "a pod": ({"template": {"spec": {"containers": [{"name": "main", "image": "a", "resources": STRANGE}]}}}, 1),
    "no pod": ({"worker": {"resources": {"limits": {"alnair/vgpu-memory": 4}}}}, 1),
    "another vendor's": ({"worker": {"resources": {"limits": {"amd.com/gpu": 1, "cpu": 2}}}}, 0),
    "no amount": ({"worker": {"resources": {"limits": {"note": "alnair/vgpu-memory"}}}}, 0),
}


@pytest.mark.parametrize("options", ["", "unknownKinds: true\n"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_nobody_knows_in_a_kind_that_nobody_knows_is_told_once(tmp_path: Path, shape: str, options: str) -> None:
    spec, times = SHAPES[shape]
    file = tmp_path / "thing.yaml"
    file.write_text(yaml.safe_dump({**THING, "spec": spec}))

    def unknown(more: str = "") -> int:
        outcome = run("migrate", str(file), *decided(tmp_path, options + more), "--report", "json")
        return sum(finding["code"] == "M019" for finding in json.loads(outcome.stdout)["findings"])

    assert unknown() == times
    assert unknown("otherResources: [alnair/vgpu-memory]") == 0
