"""Upstream's own table of allocator cases, each decided as upstream's Go code decides it.

`GPU_DRA_TEST_ALLOCATOR_TABLE` names a JSON file: a list of cases, each with `name`, `features`, `claims`, `classes`,
`slices`, `node`, `whole` ([driver, pool, device] of devices in use), `consumed` (amounts by `driver/pool/device`), and
what upstream's allocator answered with the features of the case (`asInCase`) and with those of 1.36 (`defaults`):
`results`, `error`, or neither. CONTRIBUTING.md says how it is made.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.allocation.amounts import amount
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, allocate
from dra_driver.allocation.snapshot import Catalog, PoolId, PoolUsage, PublishedSlice, Snapshot, Usage
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.errors import InvalidInput, NodeNotReady

_TABLE = os.environ.get("GPU_DRA_TEST_ALLOCATOR_TABLE")

type Case = Mapping[str, Any]


def _cases() -> list[Case]:
    return json.loads(Path(_TABLE).read_text()) if _TABLE else []


def _decided(case: Case, behavior: Behavior) -> object:
    """Devices of each claim, `none` or `error`."""
    classes = [DeviceClass.of(obj) for obj in case["classes"] or ()]
    slices = [PublishedSlice(ResourceSlice.of(_with_counters(obj))) for obj in case["slices"] or ()]
    snapshot = Snapshot(Catalog(slices, behavior), {class_.metadata.name: class_ for class_ in classes}, _usage(case))
    try:
        result = allocate([ResourceClaim.of(obj) for obj in case["claims"]], NodeView.read(case["node"]), snapshot)
    except (InvalidInput, NodeNotReady):
        return "error"
    return (
        _plain(given.to_wire() for given in result.allocations)
        if isinstance(result, Allocated) and result.allocations
        else "none"
    )


def _with_counters(slice_: dict[str, Any]) -> dict[str, Any]:
    """Two cases have counter sets without counters, which no API server stores and our models refuse."""
    spec = slice_["spec"]
    consumed = [
        counter_set for device in spec.get("devices") or () for counter_set in device.get("consumesCounters") or ()
    ]
    for counter_set in (*consumed, *(spec.get("sharedCounters") or ())):
        counter_set.setdefault("counters", {"any": {"value": "1"}})
    return slice_


def _usage(case: Case) -> Usage:
    whole: dict[PoolId, set[str]] = defaultdict(set)
    shared: dict[PoolId, dict[str, dict[str, Any]]] = defaultdict(dict)
    for driver, pool, device in case["whole"] or ():
        whole[driver, pool].add(device)
    for name, amounts in case["consumed"].items():
        driver, pool, device = name.split("/")
        shared[driver, pool][device] = {key: amount(value) for key, value in amounts.items()}
    return Usage({id_: PoolUsage(frozenset(whole[id_]), shared[id_]) for id_ in {*whole, *shared}})


def _upstream(answer: Mapping[str, Any]) -> object:
    if answer.get("error"):
        # A pool that is invalid ends the attempt on one node only.
        return "none" if answer["error"].startswith("invalid resource pools") else "error"
    return _plain(answer["results"]) if answer.get("results") else "none"


def _plain(allocations: Iterable[Mapping[str, Any]]) -> object:
    """Without what differs by chance: identities of shares, and the order in which upstream walks a Go map."""
    return [
        (
            sorted(json.dumps(_without_share(device), sort_keys=True) for device in each["devices"]["results"]),
            [{key: value for key, value in config.items() if value} for config in each["devices"].get("config") or ()],
            _sorted_selector(each.get("nodeSelector")),
        )
        for each in allocations
    ]


def _without_share(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: bool(value) if key == "shareID" else value for key, value in result.items() if value is not None}


def _sorted_selector(selector: Mapping[str, Any] | None) -> object:
    terms = (selector or {}).get("nodeSelectorTerms") or ()
    return [
        {key: sorted(json.dumps(requirement, sort_keys=True) for requirement in term.get(key) or ()) for key in term}
        for term in terms
    ]


_FIELDS = {
    "AdminAccess": "admin_access",
    "ConsumableCapacity": "consumable",
    "DeviceBindingAndStatus": "binding_conditions",
    "DeviceTaints": "taints",
    "ListTypeAttributes": "list_attributes",
    "PartitionableDevices": "partitionable",
    "PrioritizedList": "prioritized",
}


def _behavior(features: Mapping[str, bool]) -> Behavior:
    return Behavior.of(36, **{field: features[name] for name, field in _FIELDS.items()})


@pytest.mark.skipif(not _TABLE, reason="GPU_DRA_TEST_ALLOCATOR_TABLE names no table of upstream's cases")
@pytest.mark.parametrize("reading", ["asInCase", "defaults"])
def test_every_case_of_upstream_is_decided_as_upstream_does_it(reading: str) -> None:
    differences = {}
    for case in _cases():
        behavior = _behavior(case["features"]) if reading == "asInCase" else Behavior.of(36)
        ours, theirs = _decided(case, behavior), _upstream(case[reading])
        if ours != theirs:
            differences[case["name"]] = (ours, theirs)
    assert differences == {}
    assert len(_cases()) >= 219
