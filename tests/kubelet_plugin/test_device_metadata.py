"""Device metadata from kubelet's side: the claim service over real files. What is in the files is in
tests/kubelet_plugin/prepare/test_metadata.py."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.claims import a_claim, a_gpu, a_ref, a_result, device_name, node_facts, uuid_of
from support.inventories import mig
from support.prepared import Bench, DividedBench, prepare_one, unprepare_one

from dra_driver.api.inventory import DriverFacts
from dra_driver.cdi.inject import ContainerDescription, inject
from dra_driver.errors import NodeNotReady
from dra_driver.features import Feature, Gates
from dra_driver.names import ClaimRef
from dra_driver.simulation.kubelet.kubelet import read_folders
from kubelet_plugin.claims.service import ClaimService
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.prepare.transitions import with_entry

IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims"
OFF = Gates(Gates.DEFAULT.on - {Feature.DEVICE_METADATA})


@pytest.fixture
async def service(bench: Bench) -> AsyncIterator[ClaimService]:
    async with bench.plugin() as service:
        yield service


def claim(bench: Bench, name: str, *devices: int, uid: str | None = None, request: str = "gpu") -> ClaimRef:
    return bench.api.put(a_claim(a_ref(name, uid), *(a_result(index, request) for index in devices)))


def contents(bench: Bench) -> Mapping[str, bytes]:
    folders = [folder for folder in (bench.cdi.folder, bench.metadata) if folder.is_dir()]
    return {path.name: path.read_bytes() for folder in folders for path in folder.iterdir() if path.is_file()}


def in_container(bench: Bench, ids: tuple[str, ...]) -> ContainerDescription:
    """As a runtime makes it, from all CDI files that are there."""
    return inject(ContainerDescription(), ids, read_folders([bench.cdi.folder]))


async def test_a_container_finds_the_file_of_its_request_and_no_other(bench: Bench, service: ClaimService) -> None:
    ref = bench.api.put(a_claim(a_ref(), a_result(0, "a"), a_result(1, "b/large"), a_result(2, "b/large")))
    first, second, third = await prepare_one(service, ref)
    a = in_container(bench, first.cdi_ids)
    b = in_container(bench, (*second.cdi_ids, *third.cdi_ids))
    for container, request, devices in ((a, "a", [0]), (b, "b", [1, 2])):
        (mount,) = (mount for mount in container.mounts if mount.container_path.startswith("/var/run/kubernetes.io"))
        assert mount.container_path == f"{IN_CONTAINER}/train/{request}/gpu.nvidia.com-metadata.json"
        assert mount.options == ("ro", "bind")
        (described,) = json.loads(Path(mount.host_path).read_bytes())["requests"]
        assert [device["attributes"]["uuid"]["string"] for device in described["devices"]] == list(
            map(uuid_of, devices)
        )
        assert Path(mount.host_path).stat().st_mode & 0o777 == 0o644, "for every user of a container"


async def test_the_answer_is_repeated_and_the_files_go_with_the_claim(bench: Bench, service: ClaimService) -> None:
    ref, other = claim(bench, "train", 0), claim(bench, "other", 1)
    await prepare_one(service, other)
    before = contents(bench)
    answer = await prepare_one(service, ref)
    after = contents(bench)
    assert after.keys() - before.keys() == {
        "k8s.gpu.nvidia.com-claim_uid-of-train.json",
        "gpu.nvidia.com_metadata_uid-of-train_gpu.json",
        "uid-of-train_gpu.json",
    }
    inodes = {path.name: path.stat().st_ino for path in bench.metadata.iterdir()}
    assert await prepare_one(service, ref) == answer
    assert {path.name: path.stat().st_ino for path in bench.metadata.iterdir()} == inodes, "nothing is written again"
    await unprepare_one(service, ref)
    assert contents(bench) == before


@pytest.mark.parametrize("how", ["lost", "altered", "emptied"])
@pytest.mark.parametrize("name", ["uid-of-train_gpu.json", "gpu.nvidia.com_metadata_uid-of-train_gpu.json"])
@pytest.mark.parametrize("healer", ["kubelet", "sweep", "start"])
async def test_files_that_are_lost_or_altered_are_written_again(bench: Bench, name: str, how: str, healer: str) -> None:
    ref = claim(bench, "train", 0)
    async with bench.plugin() as service:
        answer = await prepare_one(service, ref)
        good = contents(bench)
        path = (bench.metadata if name.startswith("uid") else bench.cdi.folder) / name
        if how == "lost":
            path.unlink()
        else:
            path.write_bytes(b"{}" if how == "altered" else b"")
        if healer == "kubelet":
            assert await prepare_one(service, ref) == answer
        elif healer == "sweep":
            assert "device metadata" in " ".join((await service.sweep()).done)
    if healer == "start":
        async with bench.plugin():
            pass
    assert contents(bench) == good


async def test_after_a_boot_everything_is_as_it_was(bench: Bench) -> None:
    ref = claim(bench, "train", 0)
    async with bench.plugin() as service:
        answer = await prepare_one(service, ref)
    good = contents(bench)
    for path in bench.cdi.folder.iterdir():
        path.unlink()
    bench.facts.facts = node_facts(boot_id="boot-2")
    async with bench.plugin() as service:
        assert contents(bench) == good
        assert await prepare_one(service, ref) == answer


async def test_a_file_follows_its_claim_when_the_driver_is_updated(bench: Bench) -> None:
    async with bench.plugin() as service:
        await prepare_one(service, claim(bench, "train", 0))
    facts = replace(node_facts(), driver=DriverFacts(version="590.11.01", cuda_version="13.1", root="/"))
    bench.facts.facts, bench.driver_files = facts, replace(bench.driver_files, version="590.11.01", libraries=())
    async with bench.plugin():
        pass
    (request,) = json.loads((bench.metadata / "uid-of-train_gpu.json").read_bytes())["requests"]
    assert request["devices"][0]["attributes"]["driverVersion"] == {"version": "590.11.1"}


async def test_a_claim_that_has_the_name_of_an_earlier_one_keeps_its_file(bench: Bench, service: ClaimService) -> None:
    old = claim(bench, "train", 0, uid="old")
    await prepare_one(service, old)
    new = claim(bench, "train", 1, uid="new")
    await prepare_one(service, new)
    await unprepare_one(service, old)
    assert sorted(path.name for path in bench.metadata.iterdir()) == ["new_gpu.json"]


async def test_a_claim_that_was_allocated_again_has_only_files_of_its_requests(
    bench: Bench, service: ClaimService
) -> None:
    await prepare_one(service, claim(bench, "train", 0, request="first"))
    ref = claim(bench, "train", 1, request="second")
    await prepare_one(service, ref)
    assert [path.name for path in bench.metadata.iterdir()] == ["uid-of-train_second.json"]
    assert not list(bench.cdi.folder.glob("*_first.json"))
    assert (await service.sweep()).done == ()


async def test_what_belongs_to_no_claim_is_removed_and_what_others_made_is_not(bench: Bench) -> None:
    """A CDI file without a metadata file of this driver is NVIDIA's own driver's, for pods that may still run."""
    (bench.metadata / "team-a_train.json" / "gpu").mkdir(parents=True)
    theirs = ["gpu.nvidia.com_metadata_their-claim_gpu.json", "gpu.example.com_metadata_gone_gpu.json"]
    for name in (*theirs, "gpu.nvidia.com_metadata_gone_gpu.json", ".gpu.nvidia.com_metadata_half_gpu.json.0123.tmp"):
        (bench.cdi.folder / name).write_bytes(b"{}")
    for name in ("gone_gpu.json", "gone_other.json", ".half_gpu.json.0123.tmp"):
        (bench.metadata / name).write_bytes(b"{}")
    async with bench.plugin(stale_s=0) as service:
        assert contents(bench).keys() == set(theirs)
        assert (bench.metadata / "team-a_train.json").is_dir()
        await unprepare_one(service, a_ref("x", "their-claim"))
    assert contents(bench).keys() == {theirs[1]}, "the claim ends here, too"


@pytest.mark.parametrize("method", ["stage", "publish"])
async def test_a_claim_that_cannot_be_prepared_leaves_no_file(bench: Bench, method: str, service: ClaimService) -> None:
    bench.cdi.fail[method] = NodeNotReady("the disk failed")
    with pytest.raises(NodeNotReady, match="the disk failed"):
        await prepare_one(service, claim(bench, "train", 0))
    assert (bench.files, service.held) == ([], {})


async def test_a_folder_that_cannot_be_made_is_named(bench: Bench, service: ClaimService) -> None:
    bench.metadata.write_bytes(b"in its place")
    with pytest.raises(NodeNotReady, match="dra-device-metadata"):
        await prepare_one(service, claim(bench, "train", 0))
    assert list(bench.cdi.folder.iterdir()) == []
    bench.metadata.unlink()
    assert await prepare_one(service, claim(bench, "train", 0))


async def test_without_the_gate_there_are_no_files_and_claims_keep_theirs(bench: Bench) -> None:
    """The kubelet goes on to ask the runtime for the ids that it was answered."""
    old, new = claim(bench, "old", 0), claim(bench, "new", 1)
    async with bench.plugin() as service:
        answer = await prepare_one(service, old)
        good = contents(bench)
    async with bench.plugin(gates=OFF) as service:
        assert await prepare_one(service, old) == answer
        (device,) = await prepare_one(service, new)
        assert device.cdi_ids == (f"k8s.gpu.nvidia.com/claim=uid-of-new-{device_name(1)}",)
        await unprepare_one(service, new)
        assert contents(bench) == good
        (bench.metadata / "uid-of-old_gpu.json").unlink()
        await service.sweep()
        assert contents(bench) == good
        await unprepare_one(service, old)
    assert contents(bench) == {}


async def test_a_claim_of_an_older_release_stays_without(bench: Bench) -> None:
    """Its pod's containers were started without the file, and the kubelet knows of none."""
    ref = claim(bench, "train", 0)
    async with bench.plugin(gates=OFF) as service:
        answer = await prepare_one(service, ref)
    for boot in ("boot-1", "boot-2"):
        bench.facts.facts = node_facts(boot_id=boot)
        async with bench.plugin() as service:
            assert await prepare_one(service, ref) == answer
        assert contents(bench).keys() == {"k8s.gpu.nvidia.com-claim_uid-of-train.json"}


async def test_a_part_that_is_made_anew_is_described_anew(tmp_path: Path) -> None:
    """A MIG device that is made for a claim has another UUID after each boot."""
    bench = DividedBench(tmp_path)

    def uuids() -> set[str]:
        (request,) = json.loads((bench.metadata / "uid-of-train_gpu.json").read_bytes())["requests"]
        made = {hold.made["uuid"] for hold in bench.journal.holds.values() if hold.made.get("uuid")}
        assert {request["devices"][0]["attributes"]["uuid"]["string"]} == made
        return made

    ref = bench.api.put(a_claim(a_ref(), a_result(f"{device_name(0)}-mig-1g10gb-3")))
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        first = uuids()
    bench.hardware.reboot()
    bench.facts.facts = node_facts([a_gpu(0, mig=mig())], boot_id="boot-2")
    async with bench.plugin() as service:
        assert uuids() != first
        await unprepare_one(service, ref)
    assert bench.files == []


async def test_killed_before_the_digest_is_known_it_is_finished_with_its_file(bench: Bench) -> None:
    """An entry without digests, as a claim with holds has it while they are made."""
    ref = claim(bench, "train", 0)
    async with bench.plugin() as service:
        answer = await prepare_one(service, ref)
        good, entry = contents(bench), service.held[ref.uid]
    assert entry.metadata is not None
    journal = JournalStore(bench.state)
    await journal.commit(with_entry(replace(entry, cdi_digest=None, metadata=replace(entry.metadata, digest=""))))
    async with bench.plugin() as service:
        assert contents(bench) == good
        assert await prepare_one(service, ref) == answer
