"""What containers read about their devices: kubelet_plugin/prepare/metadata.py. tests/contracts/test_device_metadata.py
compares it with what Kubernetes' own helper writes."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.claims import BOOT, NODE, a_claim, a_gpu, a_held_device, a_ref, a_result, an_entry, device_name, uuid_of
from support.inventories import compute_instance, gpu_instance, mig
from support.metadata import (
    FOLDER,
    MADE,
    a_node_with,
    devices_in,
    document,
    files_of,
    mount_of,
    planned,
    records_of,
    values_of,
)
from support.rows import rows

from dra_driver.api.inventory import PassthroughFacts
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.features import Feature, Gates
from dra_driver.names import POD_CLAIM_ANNOTATION, ClaimRef
from kubelet_plugin.prepare.lifecycle import ClaimMetadata, Entry
from kubelet_plugin.prepare.metadata import (
    RequestMetadata,
    answer_of,
    host_name,
    metadata_digest,
    metadata_files,
    spec_name,
)
from kubelet_plugin.prepare.plan import finished_plan, plan_for
from kubelet_plugin.prepare.wanted import WantedClaim, wanted_of

STATIC = mig(enabled=True, instances=[gpu_instance("3g.40gb", 0, 4, compute_instance("3g.40gb", 3, number=7))])
NODE_WITH_ALL = a_node_with(
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
    attributes=[{"values": {"example.com/rack": "r<1>é"}}],
)


def only(*results: dict[str, Any], **more: Any) -> RequestMetadata:
    (file,) = planned(NODE_WITH_ALL, *results, **more).metadata
    return file


def test_a_file_has_the_form_of_kubernetes() -> None:
    file = only(a_result(0), pod_claim="gpus")
    content = document(file)
    attributes = content["requests"][0]["devices"][0].pop("attributes")
    assert content == {
        "kind": "DeviceMetadata",
        "apiVersion": "metadata.resource.k8s.io/v1alpha1",
        "metadata": {"name": "train", "namespace": "team-a", "uid": "uid-of-train", "generation": 1},
        "podClaimName": "gpus",
        "requests": [{"name": "gpu", "devices": [{"driver": "gpu.nvidia.com", "pool": NODE, "name": device_name(0)}]}],
    }
    assert attributes["uuid"] == {"string": uuid_of(0)}
    assert attributes["migCapable"] == {"bool": False}
    assert attributes["multiprocessors"] == {"int": 0}
    assert attributes["cudaDriverVersion"] == {"version": "13.0.0"}
    assert list(attributes) == sorted(attributes)
    assert '"string": "r\\u003c1\\u003eé"'.encode() in file.content, "as Go writes JSON"
    assert file.content.startswith(b'{\n  "kind": "DeviceMetadata",\n  "apiVersion"')
    assert file.spec.startswith(b'{\n  "cdiVersion": "0.5.0",\n')
    assert file.content.endswith(b"\n}\n")


@rows(
    "device, more, expected",
    [
        (0, {}, {"type": "gpu", "uuid": uuid_of(0), "sharing": "exclusive", "productName": "NVIDIA H100 80GB HBM3"}),
        (0, {"adminAccess": True}, {"type": "gpu", "uuid": uuid_of(0), "sharing": "exclusive"}),
        (
            f"{device_name(1)}-mig-3g40gb-0",
            {},
            {
                "type": "mig",
                "uuid": "MIG-00000000-0000-4000-8000-000000000007",
                "parentUUID": uuid_of(1),
                "profile": "3g.40gb",
                "resource.kubernetes.io/pciBusID": a_gpu(1).pci_bus_id,
            },
        ),
        (
            f"{device_name(2)}-mig-1g10gb-3",
            {},
            {"type": "mig", "uuid": MADE, "profile": "1g.10gb", "sharing": "exclusive"},
        ),
        (
            3,
            {"shareID": "a-share"},
            {"type": "gpu", "uuid": uuid_of(3), "sharing": "time-slicing", "isolation": "none"},
        ),
        (3, {}, {"type": "gpu", "uuid": uuid_of(3), "sharing": "exclusive", "isolation": "hardware"}),
        (f"{device_name(3)}-share-2", {}, {"type": "gpu", "uuid": uuid_of(3), "sharing": "time-slicing"}),
        (
            f"{device_name(4)}-vfio",
            {},
            {"type": "vfio", "uuid": uuid_of(4), "resource.kubernetes.io/pciBusID": "0000:14:00.0", "iommuGroup": 9},
        ),
    ],
)
def test_each_kind_of_device_is_described_as_it_is_published(
    device: int | str, more: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A share that the API server gave to one claim alone, without a share ID, is that claim's device."""
    (described,) = devices_in(only(a_result(device, **more)))
    values = values_of(described)
    assert {name: values.get(name) for name in expected} == expected
    assert values["example.com/rack"] == "r<1>é"
    assert list(described["attributes"]) == sorted(described["attributes"])


def test_a_mig_device_that_nobody_made_has_no_uuid_for_who_only_looks() -> None:
    (described,) = devices_in(only(a_result(f"{device_name(2)}-mig-1g10gb-3", adminAccess=True)))
    assert "uuid" not in values_of(described) and values_of(described)["parentUUID"] == uuid_of(2)


def test_each_request_has_its_own_file_with_its_devices_in_their_order() -> None:
    small, train = planned(
        NODE_WITH_ALL, a_result(3, "train"), a_result(0, "small"), a_result(f"{device_name(4)}-vfio", "train")
    ).metadata
    assert (small.request, train.request) == ("small", "train")
    assert [device["name"] for device in devices_in(small)] == [device_name(0)]
    assert [device["name"] for device in devices_in(train)] == [device_name(3), f"{device_name(4)}-vfio"]
    assert [document(file)["requests"][0]["name"] for file in (small, train)] == ["small", "train"]


def test_an_alternative_is_named_in_the_file_and_not_in_its_path() -> None:
    file = only(a_result(0, "gpu/large"))
    assert document(file)["requests"][0]["name"] == "gpu/large"
    assert mount_of(file)["containerPath"].endswith("/resourceclaims/train/gpu/gpu.nvidia.com-metadata.json")


def test_the_path_in_containers_is_by_the_name_that_the_pod_knows() -> None:
    folder = "/var/run/kubernetes.io/dra-device-attributes"
    ends = "gpu/gpu.nvidia.com-metadata.json"
    assert mount_of(only(a_result(0))) == {
        "hostPath": f"{FOLDER}/uid-of-train_gpu.json",
        "containerPath": f"{folder}/resourceclaims/train/{ends}",
        "options": ["ro", "bind"],
    }
    assert (
        mount_of(only(a_result(0), pod_claim="gpus"))["containerPath"] == f"{folder}/resourceclaimtemplates/gpus/{ends}"
    )


def test_a_spec_is_of_a_version_and_a_kind_that_runtimes_read() -> None:
    spec = json.loads(only(a_result(0)).spec)
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "gpu.nvidia.com/metadata")
    assert spec["devices"][0]["name"] == "uid-of-train_gpu"


@pytest.mark.parametrize("annotation", ["../../../etc", "..", "a/b", "/etc", "", "a" * 64, "A", "a\0b", "a\nb"])
def test_an_annotation_that_is_no_name_leads_nowhere(annotation: str) -> None:
    obj = a_claim(a_ref(), a_result(0))
    obj["metadata"]["annotations"] = {POD_CLAIM_ANNOTATION: annotation}
    wanted = wanted_of(ResourceClaim.of(obj), a_ref(), NODE_WITH_ALL)
    assert wanted.metadata == ClaimMetadata("")
    assert bool(wanted.warnings) == bool(annotation)
    file = only(a_result(0), pod_claim=annotation)
    assert mount_of(file)["containerPath"].endswith("/resourceclaims/train/gpu/gpu.nvidia.com-metadata.json")
    assert "podClaimName" not in document(file)


@pytest.mark.parametrize("request_name", ["..", "a/..", "../a", "a_b", "", "a/b/c", "a" * 64, "A"])
def test_a_request_that_cannot_be_a_name_is_refused(request_name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name of a request") as refusal:
        wanted_of(ResourceClaim.of(a_claim(a_ref(), a_result(0, request_name))), a_ref(), NODE_WITH_ALL)
    assert refusal.value.field == "status.allocation.devices.results[0].request"


def test_the_longest_names_fit() -> None:
    """A file name has at most 255 bytes. With the names that Kubernetes' helper gives its folders, these do not fit."""
    ref = ClaimRef("n" * 63, "c" * 253, "0b5b1c8e-6b9e-4b0e-8f0a-000000000001")
    driver = f"{'d' * 59}.com"
    node = a_node_with([a_gpu(0)], driver)
    result = a_result(0, "r" * 63, driver=driver)
    (file,) = planned(node, result, ref=ref, pod_claim="p" * 63).metadata
    assert len(spec_name(driver, ref.uid, file.request)) <= 255
    assert len(host_name(ref.uid, file.request)) <= 255
    (file,) = planned(node, result, ref=ref).metadata
    assert max(map(len, mount_of(file)["containerPath"].split("/"))) <= 255
    assert len(mount_of(file)["containerPath"]) < 4096


def test_the_first_device_of_each_request_brings_the_file_after_its_own_ids() -> None:
    entry = planned(NODE_WITH_ALL, a_result(0, "a"), a_result(3, "b"), a_result(f"{device_name(4)}-vfio", "a")).entry
    own = [device.cdi_ids for device in entry.devices]
    assert [device.cdi_ids for device in answer_of(entry, "gpu.nvidia.com")] == [
        (*own[0], "gpu.nvidia.com/metadata=uid-of-train_a"),
        (*own[1], "gpu.nvidia.com/metadata=uid-of-train_b"),
        own[2],
    ]


def test_a_device_that_a_claim_has_twice_is_in_the_files_of_both_requests() -> None:
    plan = planned(NODE_WITH_ALL, a_result(0, "use"), a_result(0, "watch", adminAccess=True))
    assert [[device["name"] for device in devices_in(file)] for file in plan.metadata] == [[device_name(0)]] * 2
    ids = [device.cdi_ids[1] for device in answer_of(plan.entry, "gpu.nvidia.com")]
    assert ids == ["gpu.nvidia.com/metadata=uid-of-train_use", "gpu.nvidia.com/metadata=uid-of-train_watch"]


def test_a_claim_of_an_older_release_is_answered_as_before() -> None:
    entry = an_entry()
    assert [device.cdi_ids for device in answer_of(entry, "gpu.nvidia.com")] == [entry.devices[0].cdi_ids]
    again = plan_for(entry.claim, WantedClaim(entry.devices), NODE_WITH_ALL, files_of(NODE_WITH_ALL))
    assert (again.entry.metadata, again.metadata) == (None, ())


def test_what_the_gate_forbids_is_not_begun_but_what_was_begun_is_kept() -> None:
    """The kubelet goes on to ask the runtime for what it was answered."""
    off = replace(NODE_WITH_ALL, gates=Gates(Gates.DEFAULT.on - {Feature.DEVICE_METADATA}))
    assert planned(off, a_result(0)).entry.metadata is None
    begun = planned(NODE_WITH_ALL, a_result(0))
    wanted = WantedClaim(begun.entry.devices, metadata=begun.entry.metadata)
    assert plan_for(begun.entry.claim, wanted, off, files_of(off)) == begun


def test_the_journal_remembers_enough_to_write_the_same_files_again() -> None:
    for results in (
        [a_result(0, "a/x"), a_result(3, "b", shareID="s")],
        [a_result(f"{device_name(2)}-mig-1g10gb-3")],
        [a_result(f"{device_name(1)}-mig-3g40gb-0"), a_result(f"{device_name(4)}-vfio")],
    ):
        first = planned(NODE_WITH_ALL, *results, pod_claim="gpus")
        entry = first.entry
        again = plan_for(
            entry.claim,
            WantedClaim(entry.devices, entry.holds, metadata=entry.metadata),
            NODE_WITH_ALL,
            files_of(NODE_WITH_ALL),
        )
        if again.content is None:
            again = finished_plan(again.entry, records_of(again), NODE_WITH_ALL, files_of(NODE_WITH_ALL))
        assert (again.metadata, again.entry) == (first.metadata, entry)


@rows(
    "node",
    [
        a_node_with([a_gpu(1)]),
        a_node_with([a_gpu(0, uuid=uuid_of(5)), a_gpu(1)]),
        replace(a_node_with([a_gpu(0)]), offers=NodeNotReady("the rules are not known")),
    ],
)
def test_a_device_that_is_offered_no_more_is_still_identified(node: Any) -> None:
    """Also if its name means another GPU now, or nobody knows yet what is offered."""
    entry = Entry(a_ref(), BOOT, (a_held_device(0),), None, metadata=ClaimMetadata())
    (file,) = metadata_files(entry, node, node.metadata, {})
    assert [values_of(device) for device in devices_in(file)] == [
        {"type": "gpu", "uuid": uuid_of(0), "resource.kubernetes.io/pciBusID": "0000:10:00.0"}
    ]
    (described,) = devices_in(file)
    assert list(described["attributes"]) == sorted(described["attributes"])


def test_the_digest_tells_files_apart() -> None:
    file = RequestMetadata("a", b"1", b"2")
    others = [
        replace(file, request="b"),
        replace(file, content=b"2"),
        replace(file, spec=b""),
        replace(file, content=b"2", spec=b"1"),
    ]
    digests = [metadata_digest(files) for files in ([file], [others[0]], [file, others[0]], *([o] for o in others[1:]))]
    assert len(set(digests)) == len(digests)
    assert metadata_digest([file, others[0]]) == metadata_digest([others[0], file])
    assert metadata_digest([]) == ""
