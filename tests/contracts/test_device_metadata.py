"""Device metadata is what Kubernetes' own helper for drivers writes for the same claims and attributes, byte for byte.

Needs `GPU_DRA_TEST_METADATA_HELPER`: a program built from tests/support/metadata_helper.go.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.claims import a_claim, a_gpu, a_ref, a_result, device_name
from support.inventories import compute_instance, gpu_instance, mig
from support.metadata import FOLDER, a_node_with, devices_in, planned

from dra_driver.api.inventory import PassthroughFacts
from dra_driver.api.meta import JsonObject
from dra_driver.names import POD_CLAIM_ANNOTATION, ClaimRef
from kubelet_plugin.prepare.lifecycle import HeldDevice
from kubelet_plugin.prepare.metadata import answer_of, host_name, spec_name
from kubelet_plugin.prepare.plan import Plan

HELPER = os.environ.get("GPU_DRA_TEST_METADATA_HELPER")

pytestmark = pytest.mark.skipif(HELPER is None, reason="GPU_DRA_TEST_METADATA_HELPER names no program")

DRIVER = "gpu.nvidia.com"
STATIC = mig(enabled=True, instances=[gpu_instance("3g.40gb", 0, 4, compute_instance("3g.40gb", 3, number=7))])
NODE = a_node_with(
    [
        a_gpu(0),
        a_gpu(1, mig=STATIC),
        a_gpu(2, mig=mig()),
        a_gpu(3),
        a_gpu(4, passthrough=PassthroughFacts(iommu_group="9", iommufd=True)),
    ],
    mig=[{"gpus": {"names": [device_name(2)]}, "mode": "Dynamic"}],
    sharing=[{"gpus": {"names": [device_name(3)]}, "strategy": "TimeSlicing", "replicas": 4}],
    passthrough=[{"gpus": {"names": [device_name(4)]}}],
    attributes=[{"values": {"example.com/rack": '<r&1>"\\é\x7f\t\u2028', "example.com/on": True, "example.com/n": -5}}],
)
"""Every kind of device, and an attribute with the characters that JSON writers treat differently."""

CLAIMS: dict[str, tuple[list[JsonObject], str | None]] = {
    "full": ([a_result(0)], None),
    "watched": ([a_result(0, adminAccess=True)], None),
    "mig": ([a_result(f"{device_name(1)}-mig-3g40gb-0")], "parts"),
    "mig-made": ([a_result(f"{device_name(2)}-mig-1g10gb-3")], None),
    "share": ([a_result(3, shareID="3f0a9c1e-0000-4000-8000-000000000001")], "gpu"),
    "separate-share": ([a_result(f"{device_name(3)}-share-2")], None),
    "vfio": ([a_result(f"{device_name(4)}-vfio")], "gpu"),
    "several": ([a_result(0, "b/large"), a_result(3, "a"), a_result(f"{device_name(4)}-vfio", "b/large")], "gpus"),
    "twice": ([a_result(0, "use"), a_result(0, "watch", adminAccess=True)], None),
}


def helped(folder: Path, claims: Sequence[tuple[Plan, str | None]], released: Sequence[str] = ()) -> dict[str, Any]:
    """What the helper answers to kubelet, by claim UID, the CDI ids of each device. Its files are below `folder`."""
    for name in ("data", "cdi"):
        (folder / name).mkdir()
    order = [
        {"claim": object_of(plan, pod_claim), "devices": [as_helped(device, plan) for device in plan.entry.devices]}
        for plan, pod_claim in claims
    ]
    paths = {"driver": DRIVER, "folder": str(folder / "data"), "cdi": str(folder / "cdi")}
    text = json.dumps({**paths, "claims": order, "released": list(released)})
    done = subprocess.run([str(HELPER)], input=text, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def object_of(plan: Plan, pod_claim: str | None) -> JsonObject:
    obj = a_claim(plan.entry.claim, a_result(0))
    if pod_claim is not None:
        obj["metadata"]["annotations"] = {POD_CLAIM_ANNOTATION: pod_claim}
    return {"metadata": obj["metadata"], "status": {"allocation": {}}}


def as_helped(device: HeldDevice, plan: Plan) -> JsonObject:
    """As a driver in Go passes a prepared device to the helper, with the attributes that are in our file."""
    request = device.request_names[0]
    (file,) = (file for file in plan.metadata if file.request == request)
    (described,) = (candidate for candidate in devices_in(file) if candidate["name"] == device.device)
    full = f"{request}/{device.alternative}" if device.alternative else request
    return {
        "requests": [full],
        "pool": device.pool,
        "device": device.device,
        "cdi": device.cdi_ids,
        "attributes": described["attributes"],
    }


def test_files_and_answers_are_the_same(tmp_path: Path) -> None:
    plans = [
        (planned(NODE, *results, ref=a_ref(name), pod_claim=pod_claim), pod_claim)
        for name, (results, pod_claim) in CLAIMS.items()
    ]
    answer = helped(tmp_path, plans)
    written = 0
    for plan, _ in plans:
        claim = plan.entry.claim
        assert answer[claim.uid] == [list(device.cdi_ids) for device in answer_of(plan.entry, DRIVER)]
        for file in plan.metadata:
            place = tmp_path / "data/dra-device-metadata" / f"{claim.namespace}_{claim.name}" / file.request
            assert (place / "metadata.json").read_bytes() == file.content
            theirs = (tmp_path / "cdi" / spec_name(DRIVER, claim.uid, file.request)).read_bytes()
            ours = f"{FOLDER}/{host_name(claim.uid, file.request)}"
            assert theirs.replace(str(place / "metadata.json").encode(), ours.encode()) == file.spec
            written += 1
    assert written == len(list((tmp_path / "cdi").iterdir())) == len(CLAIMS) + 2


def test_why_files_have_another_place_on_the_host(tmp_path: Path) -> None:
    """When this fails, the helper was corrected, and its place is as good as ours."""
    old, new = (planned(NODE, a_result(0), ref=a_ref("train", uid)) for uid in ("old", "new"))
    long = planned(NODE, a_result(3), ref=ClaimRef("n" * 63, "c" * 253, "long"))
    answer = helped(tmp_path, [(new, None), (long, None)])
    assert answer["long"] == [list(long.entry.devices[0].cdi_ids)], "its folder's name was too long"
    place = tmp_path / "data/dra-device-metadata/team-a_train/gpu/metadata.json"
    assert place.is_file()
    (tmp_path / "again").mkdir()
    helped(tmp_path / "again", [(old, None)], released=["old"])
    assert not list((tmp_path / "again/data/dra-device-metadata").iterdir()), "by namespace and name, not by UID"
