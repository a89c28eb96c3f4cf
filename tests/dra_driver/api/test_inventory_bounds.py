"""An inventory is written by a node, and a node may be hostile: what is in it is a bounded amount of work."""

from collections.abc import Iterator
from typing import Any

import pytest

from docs.from_code.crds import NODE_INVENTORY, crd
from dra_driver.api.inventory import HealthCondition, MigProfileFacts, NodeInventorySpec, Problem
from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidInput

PROFILE = {
    "name": "1g.10gb", "id": 19, "slices": 1, "memoryBytes": 10**10, "multiprocessors": 16, "size": 1,
    "starts": [0, 1], "maxInstances": 7,
}  # fmt: skip


def schemas(schema: JsonObject, path: str = "spec") -> Iterator[tuple[str, JsonObject]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from schemas(field, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def test_every_list_text_and_number_of_the_custom_type_is_bounded() -> None:
    version = crd(NODE_INVENTORY)["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    needed = {"array": "maxItems", "string": "maxLength", "integer": "maximum"}
    unbounded = [
        path
        for path, schema in schemas(spec)
        if (bound := needed.get(schema["type"])) is not None and bound not in schema and "enum" not in schema
    ]
    assert len(list(schemas(spec))) > 50
    assert unbounded == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("starts", list(range(17))), ("starts", [10**9]), ("size", 10**12), ("slices", -1), ("name", "g" * 254)],
)
def test_a_profile_that_no_gpu_has_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        MigProfileFacts.of(PROFILE | {field: value})


def test_more_gpus_than_a_machine_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match="gpus"):
        NodeInventorySpec.of({"nodeName": "n", "bootID": "b", "gpus": [{}] * 65, "summary": {}})


def test_what_is_said_of_an_inventory_with_many_mistakes_is_short() -> None:
    with pytest.raises(InvalidInput) as caught:
        NodeInventorySpec.of({"nodeName": "n", "bootID": "b", "problems": [{}] * 128, "summary": {}})
    assert len(caught.value.message) < 4000


def test_long_messages_are_cut_rather_than_refused() -> None:
    """They may be what a program printed."""
    problem = Problem(subject="driver", reason="NvmlError", message="x" * 5000)
    condition = HealthCondition.of({"type": "Xid", "severity": "Info", "message": "y" * 5000, "since": "now"})
    assert [len(problem.message), len(condition.message)] == [1024, 1024]
    assert problem.message.endswith("x…")


def inventory(*profiles_and_of: tuple[list[JsonObject], str | None]) -> JsonObject:
    """As on the wire, with a GPU for each."""
    gpus = [
        {
            "uuid": f"GPU-{number}", "name": f"gpu-{number}", "minor": number, "pciBusID": f"0000:0{number}:00.0",
            "productName": "H100", "brand": "Nvidia", "architecture": "Hopper", "cudaComputeCapability": "9.0",
            "mig": {"enabled": False, "pending": False, "profiles": profiles} | ({"profilesOf": of} if of else {}),
        }
        for number, (profiles, of) in enumerate(profiles_and_of)
    ]  # fmt: skip
    summary = {"gpus": len(gpus), "healthy": "-", "product": "H100", "driver": "580", "clique": "-"}
    return {"nodeName": "n", "bootID": "b", "gpus": gpus, "summary": summary}


def test_profiles_of_equal_gpus_are_on_the_wire_once() -> None:
    large = PROFILE | {"name": "7g.80gb", "id": 0}
    each = [[PROFILE], [large], [PROFILE], [], [large], [PROFILE]]
    spec = NodeInventorySpec.of(inventory(*((profiles, None) for profiles in each)))
    wire = spec.to_wire()
    migs = [(len(gpu["mig"]["profiles"]), gpu["mig"].get("profilesOf")) for gpu in wire["gpus"]]
    assert migs == [(1, None), (1, None), (0, "GPU-0"), (0, None), (0, "GPU-1"), (0, "GPU-0")]
    assert NodeInventorySpec.of(wire) == spec
    assert spec == NodeInventorySpec.of(inventory(*((profiles, None) for profiles in each))), "writing changes nothing"
    names = [[profile.name for profile in gpu.mig.profiles] for gpu in spec.gpus if gpu.mig is not None]
    assert names == [[profile["name"] for profile in profiles] for profiles in each]


@pytest.mark.parametrize("of", ["GPU-9", "GPU-1", "GPU-2"], ids=["unknown", "itself", "a later one"])
def test_profiles_are_those_of_a_gpu_before(of: str) -> None:
    with pytest.raises(InvalidInput, match=f"gpu-1: no GPU listed before it has UUID {of}"):
        NodeInventorySpec.of(inventory(([PROFILE], None), ([], of), ([PROFILE], None)))
