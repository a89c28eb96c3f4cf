"""Prepare and unprepare: kubelet_plugin/claims/service.py over real files."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs
from support.claims import (
    NODE,
    a_claim,
    a_config,
    a_gpu,
    a_ref,
    a_result,
    device_name,
    node_facts,
    uuid_of,
)
from support.plugin import eventually
from support.prepared import Bench, prepare_one, unprepare_one

from dra_driver.api.inventory import Problem
from dra_driver.errors import (
    Conflict,
    DeviceInUse,
    DriverError,
    Gone,
    InvalidConfig,
    InvalidInput,
    NodeNotReady,
    NotFound,
    Rejected,
    UnknownDevice,
    Unreachable,
)
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER, ClaimRef
from dra_driver.runtime.files import TEMPORARY_SUFFIX, StagedFile
from kubelet_plugin.claims import service as claims_service
from kubelet_plugin.claims.service import NodeSources
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.offers import NodeOffers, NodeRules
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.claim_reads import PodsOfClaims
from kubelet_plugin.prepare.journal import decode
from kubelet_plugin.prepare.known_node import ContainerFiles
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.prepare.store import DAMAGED, JOURNAL

AWAY = Unreachable("cannot reach the API server: connection refused")
FULL = NodeNotReady("cannot be written: the file system is full", about="file /var/run/cdi/x.json")


def held_back(bench: Bench, claim: str) -> asyncio.Event:
    """The API server answers about the claim once the event is set."""
    go_on = asyncio.Event()

    async def answer(name: str) -> None:
        if name == claim:
            await go_on.wait()

    bench.api.before_answer = answer
    return go_on


@pytest.fixture
def count_durable_writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """One entry for each fsync of a file or folder."""
    calls: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        calls.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    yield calls


class TestPrepare:
    async def test_a_claim_gets_the_devices_that_it_was_allocated(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(3, "train"), a_result(1, "eval/small")))

        async with bench.plugin() as service:
            answer = await prepare_one(service, ref)

        assert [(device.request_names, device.pool, device.device) for device in answer] == [
            (("train",), NODE, device_name(3)),
            (("eval",), NODE, device_name(1)),
        ]
        assert bench.claims_with_file == {ref.uid}
        content = bench.cdi.path(ref.uid).read_text()
        assert uuid_of(3) in content
        assert uuid_of(1) in content
        for device in answer:
            assert device.cdi_ids[0].partition("=")[2] in content

    async def test_results_of_other_drivers_are_not_ours(self, bench: Bench) -> None:
        foreign = a_result("channel-7", "imex", driver="compute-domain.nvidia.com", pool="elsewhere")
        ref = bench.api.put(a_claim(a_ref(), foreign, a_result(0)))

        async with bench.plugin() as service:
            answer = await prepare_one(service, ref)

        assert [device.device for device in answer] == [device_name(0)]

    async def test_a_renamed_driver_prepares_its_own_devices_under_its_own_name(self, bench: Bench) -> None:
        name = "gpu.example.com"
        ours, others = a_result(0, driver=name), a_result(1)
        ref = bench.api.put(a_claim(a_ref(), others, ours))
        async with bench.plugin(driver=name, cdi=CdiFiles(bench.cdi.folder, name, bench.metadata)) as service:
            (device,) = await prepare_one(service, ref)

            ids = (f"k8s.{name}/claim=uid-of-train-{device_name(0)}", f"{name}/metadata=uid-of-train_gpu")
            assert device.cdi_ids == ids
            assert bench.files == [
                f"{name}_metadata_uid-of-train_gpu.json",
                f"k8s.{name}-claim_uid-of-train.json",
                "uid-of-train_gpu.json",
            ]

            await unprepare_one(service, ref)
        assert bench.files == []

    async def test_asked_again_the_answer_is_the_same_and_nothing_is_written(
        self, bench: Bench, count_durable_writes: list[str]
    ) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            first = await prepare_one(service, ref)
            count_durable_writes.clear()

            assert await prepare_one(service, ref) == first

        assert count_durable_writes == []

    async def test_a_restarted_plugin_gives_the_same_answer(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            first = await prepare_one(service, ref)

        async with bench.plugin() as service:
            assert await prepare_one(service, ref) == first

    async def test_the_pods_of_claims_are_known_after_a_prepare_and_after_a_restart(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        for again in (False, True):
            pods = PodsOfClaims()
            async with bench.plugin(pods=pods) as service:
                if not again:
                    await prepare_one(service, ref)
                assert pods.of(service.held.keys()) == {ref.uid: ("pod",)}

    @pytest.mark.parametrize("damage", ["missing", "altered"])
    async def test_asked_again_a_missing_or_altered_file_is_written_again(self, bench: Bench, damage: str) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            first = await prepare_one(service, ref)
            good = bench.cdi.path(ref.uid).read_bytes()
            if damage == "missing":
                bench.cdi.path(ref.uid).unlink()
            else:
                bench.cdi.path(ref.uid).write_bytes(good[:-20])

            assert await prepare_one(service, ref) == first

        assert bench.cdi.path(ref.uid).read_bytes() == good

    async def test_eight_claims_of_one_call_share_one_write_of_the_journal(
        self, bench: Bench, count_durable_writes: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claims_service, "_TOGETHER_S", 10.0)
        refs = [bench.api.put(a_claim(a_ref(f"claim-{index}"), a_result(index))) for index in range(8)]

        async def answer_the_last_one_late(name: str) -> None:
            await asyncio.sleep(0.1 * (name == "claim-7"))

        async with bench.plugin() as service:
            await prepare_one(service, refs[0])
            await unprepare_one(service, refs[0])
            bench.api.before_answer = answer_the_last_one_late
            count_durable_writes.clear()
            answers = await service.prepare(refs)

        assert [answers[ref.uid][0].device for ref in refs] == [device_name(index) for index in range(8)]
        assert [Path(path).name for path in count_durable_writes] == [JOURNAL]

    async def test_a_claim_that_cannot_be_read_yet_does_not_hold_up_the_others_of_its_call(self, bench: Bench) -> None:
        slow = bench.api.put(a_claim(a_ref("slow"), a_result(0)))
        fast = bench.api.put(a_claim(a_ref("fast"), a_result(1)))
        go_on = held_back(bench, "slow")
        async with bench.plugin() as service:
            call = asyncio.ensure_future(service.prepare([slow, fast]))
            await eventually(lambda: bench.claims_with_file == {fast.uid})
            assert not call.done()
            go_on.set()
            await call
        assert bench.claims_with_file == {slow.uid, fast.uid}

    async def test_one_claim_costs_one_journal_write_and_its_release_another(
        self, bench: Bench, count_durable_writes: list[str]
    ) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, bench.api.put(a_claim(a_ref("first"), a_result(1))))
            count_durable_writes.clear()
            await prepare_one(service, ref)
            assert [Path(path).name for path in count_durable_writes] == [JOURNAL]
            count_durable_writes.clear()
            await unprepare_one(service, ref)

        assert [Path(path).name for path in count_durable_writes] == [JOURNAL]

    async def test_every_claim_of_a_call_is_answered_on_its_own(self, bench: Bench) -> None:
        good = bench.api.put(a_claim(a_ref("good"), a_result(0)))
        bad = bench.api.put(a_claim(a_ref("bad"), a_result("gpu-99999999")))
        gone = a_ref("gone")

        async with bench.plugin() as service:
            answers = await service.prepare([bad, gone, good, good])

        assert isinstance(answers[bad.uid], UnknownDevice)
        assert isinstance(answers[gone.uid], InvalidInput)
        assert answers[good.uid] == (PreparedDevice(("gpu",), NODE, device_name(0), answers[good.uid][0].cdi_ids),)
        assert bench.claims_with_file == {good.uid}

    async def test_a_slow_claim_does_not_hold_up_another_call(self, bench: Bench) -> None:
        slow = bench.api.put(a_claim(a_ref("slow"), a_result(0)))
        fast = bench.api.put(a_claim(a_ref("fast"), a_result(1)))
        go_on = held_back(bench, "slow")
        async with bench.plugin() as service:
            waiting = asyncio.ensure_future(prepare_one(service, slow))
            await asyncio.sleep(0)
            await prepare_one(service, fast)
            assert not waiting.done()
            go_on.set()
            await waiting

        assert bench.claims_with_file == {slow.uid, fast.uid}

    async def test_a_program_error_is_answered_for_its_claim_only(self, bench: Bench) -> None:
        good = bench.api.put(a_claim(a_ref("good"), a_result(0)))
        odd = bench.api.put(a_claim(a_ref("odd"), a_result(1)))

        async def fail(name: str) -> None:
            if name == "odd":
                raise ZeroDivisionError("a bug")

        bench.api.before_answer = fail
        async with bench.plugin() as service:
            answers = await service.prepare([odd, good])

        assert "internal error" in str(answers[odd.uid])
        assert not isinstance(answers[good.uid], DriverError)


class TestRefusals:
    """Bad input is answered with a clear error, and nothing changes."""

    @pytest.mark.parametrize(
        ("results", "kind", "words"),
        [
            ([], InvalidInput, ["status.allocation", "not allocated"]),
            ([a_result(0, driver="other.example.com")], InvalidInput, ["no device of driver gpu.nvidia.com"]),
            ([a_result(0, pool="node-b")], InvalidInput, ["results[0].pool", "node-b", NODE]),
            ([a_result("gpu-99999999")], UnknownDevice, ["results[0].device", "gpu-99999999", device_name(0)]),
            ([a_result(0), a_result(0, "other")], InvalidInput, [uuid_of(0), "twice"]),
        ],
    )
    async def test_a_claim_that_cannot_be_prepared(
        self, bench: Bench, results: list[dict[str, object]], kind: type[DriverError], words: list[str]
    ) -> None:
        ref = bench.api.put(a_claim(a_ref(), *results))

        async with bench.plugin() as service:
            with pytest.raises(kind) as refused:
                await prepare_one(service, ref)
            assert service.held == {}

        message = str(refused.value)
        assert type(refused.value) is kind
        assert message.startswith("claim team-a/train: ")
        assert "\n" not in message
        for word in words:
            assert word in message
        assert bench.files == []

    @pytest.mark.parametrize(
        ("ref", "field"),
        [
            (a_ref(namespace=""), "metadata.namespace"),
            (a_ref(namespace="team/a"), "metadata.namespace"),
            (a_ref(""), "metadata.name"),
            (a_ref("../train"), "metadata.name"),
            (a_ref("train?watch=1"), "metadata.name"),
            (a_ref("t" * 254), "metadata.name"),
            (ClaimRef("team-a", "train", ""), "metadata.uid"),
            (a_ref(uid="../../etc"), "metadata.uid"),
        ],
    )
    async def test_a_claim_that_cannot_exist_is_refused_before_anybody_is_asked(
        self, bench: Bench, ref: ClaimRef, field: str
    ) -> None:
        async with bench.plugin() as service:
            with pytest.raises(InvalidInput, match=f"{field}: .* cannot be"):
                await prepare_one(service, ref)

        assert bench.api.reads == 0
        assert bench.files == []

    async def test_a_file_in_place_of_the_cdi_folder_is_named_and_nothing_stays_held(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        bench.cdi.folder.rmdir()
        bench.cdi.folder.touch()
        async with bench.plugin() as service:
            with pytest.raises(NodeNotReady, match="not a folder"):
                await prepare_one(service, ref)
            assert service.held == {}
            await unprepare_one(service, ref)
            bench.cdi.folder.unlink()
            await prepare_one(service, ref)

    @pytest.mark.parametrize(
        ("parameters", "words"),
        [
            ({"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfg"}, ["parameters.kind", "GpuConfg", "GpuConfig"]),
            ({"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharng": {}}, ["parameters.sharng", "sharing"]),
            ({"apiVersion": CONFIG_API_VERSION, "kind": "MigDeviceConfig"}, ["parameters.kind", "MIG"]),
        ],
    )
    async def test_a_config_that_cannot_be_honoured(
        self, bench: Bench, parameters: dict[str, object], words: list[str]
    ) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0), configs=[a_config(parameters, "gpu")]))

        async with bench.plugin() as service:
            with pytest.raises(InvalidConfig) as refused:
                await prepare_one(service, ref)

        assert str(refused.value).startswith("claim team-a/train: status.allocation.devices.config[0]")
        for word in words:
            assert word in str(refused.value)
        assert bench.files == []

    async def test_a_gpu_config_without_settings_is_accepted(self, bench: Bench) -> None:
        parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig"}
        foreign = a_config({"anything": 1}, "gpu", driver="other.example.com")
        ref = bench.api.put(a_claim(a_ref(), a_result(0), configs=[foreign, a_config(parameters, "gpu")]))

        async with bench.plugin() as service:
            assert len(await prepare_one(service, ref)) == 1

    async def test_a_claim_created_again_under_its_name_is_not_the_one_that_was_asked_for(self, bench: Bench) -> None:
        bench.api.put(a_claim(a_ref("train", "new-uid"), a_result(0)))

        async with bench.plugin() as service:
            with pytest.raises(InvalidInput, match=r"UID new-uid.*created again"):
                await prepare_one(service, a_ref("train", "old-uid"))

        assert bench.files == []

    async def test_of_a_held_claim_created_again_each_uid_is_answered_right(self, bench: Bench) -> None:
        old = bench.api.put(a_claim(a_ref("train", "old-uid"), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, old)
            new = bench.api.put(a_claim(a_ref("train", "new-uid"), a_result(0)))

            with pytest.raises(InvalidInput, match="created again"):
                await prepare_one(service, old)
            with pytest.raises(DeviceInUse, match="old-uid"):
                await prepare_one(service, new)
            await unprepare_one(service, old)
            await prepare_one(service, new)

        assert bench.claims_with_file == {"new-uid"}

    async def test_the_same_gpu_is_never_in_two_claims(self, bench: Bench) -> None:
        first = bench.api.put(a_claim(a_ref("first"), a_result(0)))
        second = bench.api.put(a_claim(a_ref("second"), a_result(0)))

        async with bench.plugin() as service:
            answers = await service.prepare([first, second])

        refused = [answer for answer in answers.values() if isinstance(answer, DeviceInUse)]
        assert len(refused) == 1
        assert "is still held by claim team-a/" in str(refused[0])
        assert len(bench.claims_with_file) == 1
        assert len(bench.files) == 3

    async def test_admin_access_is_given_beside_the_holder(self, bench: Bench) -> None:
        holder = bench.api.put(a_claim(a_ref("holder"), a_result(0)))
        admin = bench.api.put(a_claim(a_ref("admin"), a_result(0, adminAccess=True), a_result(1, adminAccess=True)))
        later = bench.api.put(a_claim(a_ref("later"), a_result(1)))

        async with bench.plugin() as service:
            answers = await service.prepare([holder, admin])
            assert len(await prepare_one(service, later)) == 1

        assert len(answers[admin.uid]) == 2

    async def test_a_device_that_appeared_since_the_last_look_is_found(self, bench: Bench) -> None:
        bench.facts.facts, bench.facts.after = node_facts(1), node_facts(2)
        ref = bench.api.put(a_claim(a_ref(), a_result(1)))
        async with bench.plugin() as service:
            bench.facts.facts = node_facts(1)

            assert len(await prepare_one(service, ref)) == 1

    async def test_a_bad_gpu_fails_its_claim_with_the_reason_and_no_other(self, bench: Bench) -> None:
        lost = Problem(subject="GPU 0000:11:00.0", reason="GpuIsLost", message="fell off the bus")
        bench.facts.facts = node_facts([a_gpu(0), a_gpu(2)], problems=[lost])
        good = bench.api.put(a_claim(a_ref("good"), a_result(2)))
        bad = bench.api.put(a_claim(a_ref("bad"), a_result(1)))

        async with bench.plugin() as service:
            answers = await service.prepare([good, bad])

        assert not isinstance(answers[good.uid], DriverError)
        assert isinstance(answers[bad.uid], NodeNotReady)
        assert "fell off the bus" in str(answers[bad.uid])

    async def test_without_the_drivers_files_the_claim_fails_with_what_is_missing_and_is_retried(
        self, bench: Bench
    ) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        bench.not_ready = NodeNotReady("libcuda.so.580.105.08 is missing", about="driver root /run/nvidia/driver")

        async with bench.plugin() as service:
            with pytest.raises(NodeNotReady, match="libcuda"):
                await prepare_one(service, ref)
            assert bench.files == []
            bench.not_ready = None
            await prepare_one(service, ref)

        assert bench.claims_with_file == {ref.uid}


class TestApiServer:
    """What the API server's answers mean."""

    @pytest.mark.parametrize(
        "failure",
        [
            Conflict("409", status=409),
            Gone("410", status=410),
            Unreachable("429", status=429),
            Unreachable("500", status=500),
        ],
    )
    async def test_a_passing_failure_is_waited_out(self, bench: Bench, failure: DriverError) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        failure.retry_after_s = 0.0
        async with bench.plugin(api_s=5.0) as service:
            bench.api.failures = [failure, failure]

            assert len(await prepare_one(service, ref)) == 1

    async def test_an_api_server_that_is_away_fails_the_claim_and_changes_nothing(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            bench.api.away = AWAY
            with pytest.raises(Unreachable, match=r"claim team-a/train: .*connection refused.*the kubelet tries again"):
                await prepare_one(service, ref)
            assert service.held == {}
            bench.api.away = None
            await prepare_one(service, ref)

    async def test_a_prepared_claim_is_answered_from_the_journal_while_the_api_server_is_away(
        self, bench: Bench
    ) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            first = await prepare_one(service, ref)
            bench.api.away = AWAY

            with capture_logs() as logs:
                assert await prepare_one(service, ref) == first
            assert [line["devices"] for line in logs if line["event"] == "prepare"] == [[device_name(0)]]

    async def test_unprepare_asks_nobody(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            bench.api.away = AWAY
            reads = bench.api.reads

            await unprepare_one(service, ref)

        assert bench.api.reads == reads
        assert bench.files == []

    async def test_a_missing_permission_is_the_administrators_move(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            bench.api.away = Rejected("forbidden", status=403)
            with pytest.raises(Rejected, match="administrator"):
                await prepare_one(service, ref)

    async def test_a_server_without_the_claims_api_does_not_mean_that_claims_are_gone(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            bench.api.away = NotFound("the server could not find the requested resource", status=404)
            await service.sweep()

        async with bench.plugin() as service:
            assert list(service.held) == [ref.uid]

    async def test_a_claim_allocated_again_with_other_devices_is_prepared_with_those(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            bench.api.put(a_claim(ref, a_result(1)))

            answer = await prepare_one(service, ref)
            other = bench.api.put(a_claim(a_ref("other"), a_result(0)))
            await prepare_one(service, other)

        assert [device.device for device in answer] == [device_name(1)]
        assert uuid_of(1) in bench.cdi.path(ref.uid).read_text()


class TestUnprepare:
    async def test_nothing_is_left_of_a_released_claim(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)

            await unprepare_one(service, ref)

            assert service.held == {}
        assert bench.files == []

    async def test_an_unknown_claim_is_released_already(self, bench: Bench) -> None:
        async with bench.plugin() as service:
            await unprepare_one(service, a_ref("nobody"))
            assert await service.unprepare([]) == {}

    async def test_an_orphaned_file_of_an_unknown_claim_goes_too(self, bench: Bench) -> None:
        async with bench.plugin() as service:
            bench.cdi.path("uid-of-nobody").write_bytes(b"{}")

            await unprepare_one(service, a_ref("nobody"))

        assert bench.files == []

    async def test_what_cannot_be_undone_stays_held_until_it_can(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            bench.cdi.fail["remove"] = NodeNotReady("cannot be removed: read-only", about="file x")
            with pytest.raises(NodeNotReady, match="read-only"):
                await unprepare_one(service, ref)
            assert list(service.held) == [ref.uid]
            bench.cdi.fail.clear()

            await unprepare_one(service, ref)

            assert service.held == {}

    async def test_a_claim_can_be_prepared_again_after_its_release(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            first = await prepare_one(service, ref)
            await unprepare_one(service, ref)

            assert await prepare_one(service, ref) == first

    async def test_prepare_and_unprepare_of_one_claim_take_turns(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await asyncio.gather(
                *(service.prepare([ref]) if turn % 2 else service.unprepare([ref]) for turn in range(20))
            )

            assert list(service.held) == [ref.uid]
            assert bench.claims_with_file == {ref.uid}


class TestDisk:
    """A disk that refuses: a clear error for the claim, nothing left behind, the retry succeeds."""

    @pytest.mark.parametrize("method", ["stage", "publish"])
    async def test_a_cdi_file_that_cannot_be_written(self, bench: Bench, method: str) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            bench.cdi.fail[method] = FULL
            with pytest.raises(NodeNotReady, match="full"):
                await prepare_one(service, ref)
            assert service.held == {}
            assert bench.files == []
            bench.cdi.fail.clear()

            await prepare_one(service, ref)

        assert bench.claims_with_file == {ref.uid}

    async def test_a_missing_cdi_folder_is_named(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            bench.cdi._folder = str(bench.root / "not" / "mounted")
            with pytest.raises(NodeNotReady, match=r"not/mounted.*does not exist.*mounted"):
                await prepare_one(service, ref)
            assert service.held == {}
            bench.cdi._folder = str(bench.root / "cdi")

            await prepare_one(service, ref)

    async def test_a_rewrite_that_fails_leaves_the_claim_as_it_was(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            before = dict(service.held)
            bench.cdi.path(ref.uid).unlink()
            bench.cdi.fail["publish"] = FULL
            with pytest.raises(NodeNotReady):
                await prepare_one(service, ref)
            assert service.held == before
            bench.cdi.fail.clear()

            await prepare_one(service, ref)

        assert bench.claims_with_file == {ref.uid}

    async def test_a_journal_that_cannot_be_written(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        from kubelet_plugin.prepare import store

        ref = bench.api.put(a_claim(a_ref(), a_result(0)))

        def refuse(*_: object, **__: object) -> None:
            raise NodeNotReady("cannot be written: the file system is full", about="file claims.journal")

        async with bench.plugin() as service:
            with monkeypatch.context() as full:
                full.setattr(store, "write_durably", refuse)
                with pytest.raises(NodeNotReady, match="full"):
                    await prepare_one(service, ref)
                assert bench.files == []

            await prepare_one(service, ref)
            with monkeypatch.context() as full:
                full.setattr(store, "append_durably", refuse)
                with pytest.raises(NodeNotReady, match="full"):
                    await unprepare_one(service, ref)
                assert list(service.held) == [ref.uid]

            await unprepare_one(service, ref)

        assert bench.files == []


class TestCancelled:
    """kubelet gives up after 45 s; what was begun is finished, and the retry finds the result."""

    async def test_a_prepare_that_was_given_up_is_finished_and_found_by_the_retry(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def answer_slowly(_: str) -> None:
            asked.set()
            await go_on.wait()

        async with bench.plugin() as service:
            bench.api.before_answer = answer_slowly
            call = asyncio.ensure_future(service.prepare([ref]))
            await asked.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            retry = asyncio.ensure_future(prepare_one(service, ref))
            go_on.set()

            assert len(await retry) == 1

        assert bench.claims_with_file == {ref.uid}

    async def test_what_only_waited_for_the_api_server_is_dropped(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def answer_slowly(_: str) -> None:
            asked.set()
            await go_on.wait()

        async with bench.plugin() as service:
            bench.api.before_answer = answer_slowly
            call = asyncio.ensure_future(service.prepare([ref]))
            await asked.wait()
            call.cancel()
            await asyncio.sleep(0)
            go_on.set()
        assert bench.files == []

    async def test_what_only_waited_for_its_turn_is_dropped(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        begun, go_on, asked = threading.Event(), threading.Event(), asyncio.Event()
        stage = bench.cdi.stage

        async def noticed(_: str) -> None:
            asked.set()

        def slowly(uid: str, content: bytes) -> StagedFile:
            begun.set()
            assert go_on.wait(10)
            return stage(uid, content)

        monkeypatch.setattr(bench.cdi, "stage", slowly)
        async with bench.plugin() as service:
            first = asyncio.ensure_future(prepare_one(service, ref))
            await asyncio.to_thread(begun.wait, 10)
            release = asyncio.ensure_future(unprepare_one(service, ref))
            bench.api.before_answer = noticed
            late = asyncio.ensure_future(service.prepare([ref]))
            await asked.wait()
            await asyncio.sleep(0.01)
            late.cancel()
            await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(first, release)
        assert bench.files == []

    async def test_a_release_that_only_waited_for_its_turn_is_dropped(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A plugin that is replaced would undo what its successor has prepared since: campaign, seed 95838474."""
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        begun, go_on = threading.Event(), threading.Event()
        stage = bench.cdi.stage

        def slowly(uid: str, content: bytes) -> StagedFile:
            begun.set()
            assert go_on.wait(10)
            return stage(uid, content)

        monkeypatch.setattr(bench.cdi, "stage", slowly)
        async with bench.plugin() as service:
            first = asyncio.ensure_future(prepare_one(service, ref))
            await asyncio.to_thread(begun.wait, 10)
            release = asyncio.ensure_future(service.unprepare([ref]))
            await asyncio.sleep(0.01)
            release.cancel()
            await asyncio.gather(release, return_exceptions=True)
            go_on.set()
            await first
        assert bench.claims_with_file == {ref.uid}

    async def test_calls_for_one_claim_wait_for_one_answer_and_its_release_for_none(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def answer_slowly(_: str) -> None:
            asked.set()
            await go_on.wait()

        async with bench.plugin() as service:
            before, bench.api.before_answer = bench.api.reads, answer_slowly
            calls = [asyncio.ensure_future(prepare_one(service, ref)) for _ in range(3)]
            await asked.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert bench.api.reads - before == 1
            async with asyncio.timeout(10):
                await unprepare_one(service, ref)
            go_on.set()
            answers = await asyncio.gather(*calls)
            assert answers[0] == answers[1] == answers[2]
            # The release overtook the answer: each asked again in its turn.
            assert bench.api.reads - before == 4

    async def test_closing_waits_for_what_was_begun(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        service = bench.service()
        await service.start()
        begun, go_on = threading.Event(), threading.Event()
        stage = bench.cdi.stage

        def slowly(uid: str, content: bytes) -> StagedFile:
            begun.set()
            go_on.wait(10)
            return stage(uid, content)

        monkeypatch.setattr(bench.cdi, "stage", slowly)
        call = asyncio.ensure_future(service.prepare([ref]))
        await asyncio.to_thread(begun.wait, 10)
        call.cancel()
        await asyncio.sleep(0)
        go_on.set()

        await service.close()

        assert bench.claims_with_file == {ref.uid}

    async def test_an_unprepare_that_was_given_up_is_finished(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            call = asyncio.ensure_future(service.unprepare([ref]))
            await asyncio.sleep(0)
            call.cancel()

        async with bench.plugin() as service:
            assert service.held == {}
        assert bench.files == []


class TestStaleHolders:
    """A claim whose object is gone may still have containers (kubernetes issue 141471), but not for ever."""

    async def test_a_holder_whose_claim_is_gone_gets_the_time_that_kubelet_needs(self, bench: Bench) -> None:
        old = bench.api.put(a_claim(a_ref("old"), a_result(0)))
        new = bench.api.put(a_claim(a_ref("new"), a_result(0)))
        async with bench.plugin(holder_s=30.0) as service:
            await prepare_one(service, old)
            bench.api.remove(old)
            waiting = asyncio.ensure_future(prepare_one(service, new))
            await asyncio.sleep(0.02)
            assert not waiting.done()

            await unprepare_one(service, old)

            assert len(await waiting) == 1
        assert bench.claims_with_file == {new.uid}

    async def test_a_plugin_that_starts_does_not_know_whether_the_containers_have_stopped(self, bench: Bench) -> None:
        """The pod was deleted by force while the kubelet was down, and the plugin was updated meanwhile."""
        old = bench.api.put(a_claim(a_ref("old"), a_result(0)))
        new = bench.api.put(a_claim(a_ref("new"), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, old)
            bench.api.remove(old)

        async with bench.plugin() as service:
            with pytest.raises(DeviceInUse, match="uid-of-old"):
                await prepare_one(service, new)
            assert bench.claims_with_file == {old.uid}

            await unprepare_one(service, old)
            await prepare_one(service, new)

    async def test_until_then_the_new_claim_is_refused(self, bench: Bench) -> None:
        old = bench.api.put(a_claim(a_ref("old"), a_result(0)))
        new = bench.api.put(a_claim(a_ref("new"), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, old)
            bench.api.remove(old)

            with pytest.raises(DeviceInUse, match="uid-of-old"):
                await prepare_one(service, new)

    @pytest.mark.parametrize("how", ["gone", "recreated", "deallocated", "moved"])
    async def test_a_holder_that_is_stale_for_long_is_released_for_the_new_claim(self, bench: Bench, how: str) -> None:
        old = bench.api.put(a_claim(a_ref("old"), a_result(0)))
        new = bench.api.put(a_claim(a_ref("new"), a_result(0)))
        async with bench.plugin(stale_s=0.0) as service:
            await prepare_one(service, old)
            match how:
                case "gone":
                    bench.api.remove(old)
                case "recreated":
                    bench.api.put(a_claim(replace(old, uid="another"), a_result(1)))
                case "deallocated":
                    bench.api.put(a_claim(old))
                case "moved":
                    bench.api.put(a_claim(old, a_result(2)))

            await prepare_one(service, new)

            assert list(service.held) == [new.uid]
        assert bench.claims_with_file == {new.uid}

    async def test_a_stale_holder_that_cannot_be_released_is_in_the_way_and_not_tried_for_ever(
        self, bench: Bench
    ) -> None:
        old = bench.api.put(a_claim(a_ref("old"), a_result(0)))
        new = bench.api.put(a_claim(a_ref("new"), a_result(0)))
        async with bench.plugin(stale_s=0.0, holder_s=30.0) as service:
            await prepare_one(service, old)
            bench.api.remove(old)
            bench.cdi.fail["remove"] = NodeNotReady("cannot be removed: read-only", about="file x")

            async with asyncio.timeout(10):
                with pytest.raises(DeviceInUse):
                    await prepare_one(service, new)
            bench.cdi.fail.clear()

            await prepare_one(service, new)

    async def test_a_holder_that_stands_is_never_released_for_another(self, bench: Bench) -> None:
        old = bench.api.put(a_claim(a_ref("old"), a_result(0)))
        new = bench.api.put(a_claim(a_ref("new"), a_result(0)))
        async with bench.plugin(stale_s=0.0, holder_s=30.0) as service:
            await prepare_one(service, old)

            with pytest.raises(DeviceInUse):
                await prepare_one(service, new)

    async def test_a_holder_that_stood_again_in_between_gets_its_time_once_more(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        later_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s)
        monkeypatch.setattr("kubelet_plugin.prepare.heal.time", clock)
        old = bench.api.put(a_claim(a_ref("old"), a_result(0)))
        new = bench.api.put(a_claim(a_ref("new"), a_result(0)))
        async with bench.plugin(stale_s=100.0, holder_s=0.05) as service:
            await prepare_one(service, old)
            for result in ((), (a_result(0),), ()):
                bench.api.put(a_claim(old, *result))
                with pytest.raises(DeviceInUse):
                    await prepare_one(service, new)
                later_s += 60.0
            later_s += 60.0
            await prepare_one(service, new)

    async def test_two_claims_that_swapped_their_gpus_do_not_wait_for_each_other_for_ever(self, bench: Bench) -> None:
        first = bench.api.put(a_claim(a_ref("one"), a_result(0)))
        second = bench.api.put(a_claim(a_ref("two"), a_result(1)))
        async with bench.plugin(stale_s=0.0) as service:
            await service.prepare([first, second])
            bench.api.put(a_claim(first, a_result(1)))
            bench.api.put(a_claim(second, a_result(0)))

            async with asyncio.timeout(10):
                await service.prepare([first, second])
                await prepare_one(service, first)
                await prepare_one(service, second)

            assert {uid: entry.devices[0].device for uid, entry in service.held.items()} == {
                first.uid: device_name(1),
                second.uid: device_name(0),
            }


class TestStart:
    """Start-up puts right what it finds."""

    async def prepared(self, bench: Bench, *numbers: int) -> None:
        """Claims `claim-N` with GPU N, prepared by an earlier process."""
        async with bench.plugin() as service:
            for number in numbers:
                await prepare_one(service, bench.api.put(a_claim(a_ref(f"claim-{number}"), a_result(number))))

    async def started(self, bench: Bench, **patience: float) -> tuple[list[str], list[str], list[str]]:
        """What a new process did, what is pending, and which claims it holds."""
        service = bench.service(**patience)
        report = await service.start()
        held = sorted(service.held)
        await service.close()
        return list(report.done), list(report.pending), held

    async def test_where_nothing_is_wrong_nothing_is_done(self, bench: Bench, count_durable_writes: list[str]) -> None:
        await self.prepared(bench, 0, 1)
        count_durable_writes.clear()

        looks = bench.facts.looks
        assert await self.started(bench) == ([], [], ["uid-of-claim-0", "uid-of-claim-1"])
        assert count_durable_writes == []
        assert bench.facts.looks == looks + 1, "what was read before the start may be old"

    async def test_a_missing_file_is_written_again(self, bench: Bench) -> None:
        await self.prepared(bench, 0)
        good = bench.cdi.path("uid-of-claim-0").read_bytes()
        bench.cdi.path("uid-of-claim-0").unlink()

        done, pending, _ = await self.started(bench)

        assert bench.cdi.path("uid-of-claim-0").read_bytes() == good
        assert len(done) == 1
        assert "claim team-a/claim-0 (UID uid-of-claim-0) had no CDI file" in done[0]
        assert pending == []

    async def test_an_altered_file_is_written_again_even_while_the_api_server_is_away(self, bench: Bench) -> None:
        await self.prepared(bench, 0)
        good = bench.cdi.path("uid-of-claim-0").read_bytes()
        bench.cdi.path("uid-of-claim-0").write_bytes(b"{}")
        bench.api.away = AWAY

        await self.started(bench)

        assert bench.cdi.path("uid-of-claim-0").read_bytes() == good

    async def test_orphaned_and_left_over_files_are_removed(self, bench: Bench) -> None:
        await self.prepared(bench, 0)
        files = bench.files
        bench.cdi.path("nobody").write_bytes(b"{}")
        temporary = bench.cdi.path("half-done").name
        (bench.cdi.folder / f".{temporary}.0123{TEMPORARY_SUFFIX}").write_bytes(b"half")

        done, _, _ = await self.started(bench)

        assert bench.files == files
        assert "nobody" in done[0]

    @pytest.mark.parametrize("how", ["gone", "recreated"])
    async def test_a_claim_that_is_gone_or_another_one_is_released_if_kubelet_never_comes(
        self, bench: Bench, how: str
    ) -> None:
        await self.prepared(bench, 0, 1)
        if how == "gone":
            bench.api.remove(a_ref("claim-0"))
        else:
            bench.api.put(a_claim(a_ref("claim-0", "another"), a_result(0)))

        done, pending, held = await self.started(bench)

        assert held == ["uid-of-claim-0", "uid-of-claim-1"]
        assert done == []
        assert "the kubelet is given time" in pending[0]

        done, pending, held = await self.started(bench, stale_s=0.0)

        assert held == ["uid-of-claim-1"]
        assert bench.claims_with_file == {"uid-of-claim-1"}
        assert "released" in done[0]
        assert pending == []

    async def test_an_unfinished_claim_is_finished_when_it_stands_and_undone_when_it_does_not(
        self, bench: Bench
    ) -> None:
        await self.prepared(bench, 0, 1)
        for number in (0, 1):
            bench.cdi.path(f"uid-of-claim-{number}").unlink()
        bench.api.remove(a_ref("claim-1"))

        _, _, held = await self.started(bench, stale_s=0.0)

        assert held == ["uid-of-claim-0"]
        assert bench.claims_with_file == {"uid-of-claim-0"}

    async def test_new_driver_files_reach_the_prepared_claims(self, bench: Bench) -> None:
        await self.prepared(bench, 0)
        before = bench.cdi.path("uid-of-claim-0").read_bytes()
        bench.facts.facts = node_facts([a_gpu(0, minor=5)])

        done, _, _ = await self.started(bench)

        assert bench.cdi.path("uid-of-claim-0").read_bytes() != before
        assert b"nvidia5" in bench.cdi.path("uid-of-claim-0").read_bytes()
        assert "other driver files or device nodes" in done[0]
        assert await self.started(bench) == ([], [], ["uid-of-claim-0"])

    async def test_after_a_reboot_claims_that_stand_have_their_files_again_and_others_are_dropped(
        self, bench: Bench
    ) -> None:
        await self.prepared(bench, 0, 1, 2)
        for path in bench.cdi.folder.iterdir():
            path.unlink()
        bench.facts.facts = node_facts([a_gpu(index, minor=7 - index) for index in range(8)], boot_id="boot-2")
        bench.api.remove(a_ref("claim-1"))
        bench.api.put(a_claim(a_ref("claim-2"), a_result(2), reserved=False))

        _, pending, held = await self.started(bench)

        assert held == ["uid-of-claim-0"]
        assert bench.claims_with_file == {"uid-of-claim-0"}
        assert b"/dev/nvidia7" in bench.cdi.path("uid-of-claim-0").read_bytes()
        assert pending == []
        entry = decode((bench.state / JOURNAL).read_bytes()).held["uid-of-claim-0"]
        assert entry.boot_id == "boot-2"

    async def test_after_a_reboot_without_the_api_server_claims_stay_held_and_are_settled_later(
        self, bench: Bench
    ) -> None:
        await self.prepared(bench, 0, 1)
        for path in bench.cdi.folder.iterdir():
            path.unlink()
        bench.facts.facts = node_facts(boot_id="boot-2")
        bench.api.remove(a_ref("claim-1"))
        bench.api.away = AWAY
        service = bench.service(stale_s=0.0)

        report = await service.start()

        assert len(report.pending) == 2
        assert sorted(service.held) == ["uid-of-claim-0", "uid-of-claim-1"]
        bench.api.away = None
        await service.sweep()
        assert sorted(service.held) == ["uid-of-claim-0"]
        assert bench.claims_with_file == {"uid-of-claim-0"}
        await service.close()

    async def test_after_a_reboot_a_claim_that_kubelet_prepares_first_gets_a_new_file(self, bench: Bench) -> None:
        await self.prepared(bench, 0)
        bench.cdi.path("uid-of-claim-0").unlink()
        bench.facts.facts = node_facts([a_gpu(0, minor=4)], boot_id="boot-2")
        bench.api.away = AWAY
        async with bench.plugin() as service:
            bench.api.away = None

            await prepare_one(service, a_ref("claim-0"))

        assert b"/dev/nvidia4" in bench.cdi.path("uid-of-claim-0").read_bytes()

    async def test_a_node_whose_hardware_does_not_answer_starts_and_keeps_what_it_holds(self, bench: Bench) -> None:
        await self.prepared(bench, 0)
        problem = Problem(subject="driver", reason="DriverNotLoaded", message="the driver is not loaded")
        bench.facts.facts = replace(node_facts(0, problems=[problem]), driver=None)
        bench.not_ready = NodeNotReady("the driver is not loaded")

        assert await self.started(bench) == ([], [], ["uid-of-claim-0"])

    async def test_a_prepared_claim_can_be_released_while_the_hardware_does_not_answer(self, bench: Bench) -> None:
        await self.prepared(bench, 0)
        bench.not_ready = NodeNotReady("the driver is not loaded")
        bench.facts.facts = node_facts(0)
        async with bench.plugin() as service:
            await unprepare_one(service, a_ref("claim-0"))

        assert bench.files == []

    async def test_sweeping_gives_kubelet_time_before_it_releases(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin() as service:
            await prepare_one(service, ref)
            bench.api.remove(ref)

            report = await service.sweep()

            assert report.done == ()
            assert "given time" in report.pending[0]
            assert list(service.held) == [ref.uid]

        async with bench.plugin(stale_s=0.0) as service:
            assert service.held == {}

    async def test_a_sweep_removes_what_the_other_instance_was_writing_when_it_was_killed(self, bench: Bench) -> None:
        """During a rolling update the old instance can be killed after the new one has started."""
        async with bench.plugin() as service:
            half_done = (
                bench.cdi.folder / f".{bench.cdi.path('half-done').name}.0123{TEMPORARY_SUFFIX}",
                bench.state / f".claims.journal.0123{TEMPORARY_SUFFIX}",
            )
            for path in half_done:
                path.write_bytes(b"half")

            await service.sweep()

            assert [path for path in half_done if path.exists()] == []

    async def test_a_claim_that_stays_stale_is_released_by_a_later_sweep(self, bench: Bench) -> None:
        ref = bench.api.put(a_claim(a_ref(), a_result(0)))
        async with bench.plugin(stale_s=0.05) as service:
            await prepare_one(service, ref)
            bench.api.remove(ref)
            await service.sweep()
            assert list(service.held) == [ref.uid]
            bench.api.put(a_claim(a_ref(), a_result(0)))
            await service.sweep()
            await asyncio.sleep(0.06)
            bench.api.remove(ref)
            await service.sweep()
            assert list(service.held) == [ref.uid], "it stood in between"
            await asyncio.sleep(0.06)
            await service.sweep()
            assert service.held == {}


class TestDamage:
    """A damaged journal costs what is damaged, and no GPU is given out twice for it."""

    async def two_prepared(self, bench: Bench) -> None:
        await TestStart().prepared(bench, 0, 1)

    def spoil(self, bench: Bench, old: bytes, new: bytes) -> None:
        path = bench.state / JOURNAL
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new))

    async def test_a_damaged_entry_is_put_aside_and_found_again_in_the_api(self, bench: Bench) -> None:
        await self.two_prepared(bench)
        self.spoil(bench, b'"uid":"uid-of-claim-0"', b'"uid":"uid-of-claim-#"')

        service = bench.service()
        report = await service.start()

        assert sorted(service.held) == ["uid-of-claim-0", "uid-of-claim-1"]
        assert (bench.state / DAMAGED).exists()
        assert any("checksum" in sentence for sentence in report.done)
        assert any("claim-0" in sentence and "entered again" in sentence for sentence in report.done)
        assert await TestStart().started(bench) == ([], [], ["uid-of-claim-0", "uid-of-claim-1"])
        await service.close()

    @pytest.mark.parametrize("content", [b"", b"\0" * 512, b"{}\n"])
    async def test_a_journal_that_is_lost_as_a_whole_is_made_again(self, bench: Bench, content: bytes) -> None:
        await self.two_prepared(bench)
        (bench.state / JOURNAL).write_bytes(content)

        _, pending, held = await TestStart().started(bench)

        assert held == ["uid-of-claim-0", "uid-of-claim-1"]
        assert pending == []

    async def test_on_a_new_node_nothing_is_missing(self, bench: Bench) -> None:
        assert await TestStart().started(bench) == ([], [], [])

    async def test_a_journal_that_somebody_removed_is_made_again(self, bench: Bench) -> None:
        await self.two_prepared(bench)
        bench.api.put(a_claim(a_ref("allocated-and-not-prepared-yet"), a_result(2)))
        (bench.state / JOURNAL).unlink()
        before = bench.files

        done, _, held = await TestStart().started(bench)

        assert done[0] == "the journal is missing although claims are prepared: it is made again"
        assert held == ["uid-of-claim-0", "uid-of-claim-1"]
        assert bench.files == before

    async def test_files_of_claims_that_are_gone_are_not_entered_again(self, bench: Bench) -> None:
        await self.two_prepared(bench)
        (bench.state / JOURNAL).write_bytes(b"")
        bench.api.remove(a_ref("claim-0"))

        async with bench.plugin(stale_s=0) as service:
            assert list(service.held) == ["uid-of-claim-1"]
        assert bench.claims_with_file == {"uid-of-claim-1"}

    async def test_a_lost_claim_of_a_force_deleted_pod_keeps_its_gpu_until_the_kubelet_comes_for_it(
        self, bench: Bench
    ) -> None:
        """The claim no longer exists, but its containers may still run. The scheduler gives its GPU to another."""
        await self.two_prepared(bench)
        (bench.state / JOURNAL).unlink()
        bench.api.remove(a_ref("claim-0"))
        thief = bench.api.put(a_claim(a_ref("thief"), a_result(0)))
        async with bench.plugin() as service:
            with pytest.raises(NodeNotReady, match=r"may still run \(UID uid-of-claim-0\)"):
                await prepare_one(service, thief)
            await service.sweep()
            assert bench.claims_with_file == {"uid-of-claim-0", "uid-of-claim-1"}

            await unprepare_one(service, a_ref("claim-0"))
            await prepare_one(service, thief)
            assert sorted(service.held) == ["uid-of-claim-1", "uid-of-thief"]

    async def test_a_claim_that_is_released_while_the_claims_are_read_is_not_entered_again(self, bench: Bench) -> None:
        """Its pod still ends, so it is still allocated."""
        await self.two_prepared(bench)
        (bench.state / JOURNAL).write_bytes(b"")
        service = bench.service()

        async def released() -> None:
            assert await unprepare_one(service, a_ref("claim-0")) is None

        bench.api.before_list = released

        await service.start()

        assert list(service.held) == ["uid-of-claim-1"]
        assert bench.claims_with_file == {"uid-of-claim-1"}
        await service.close()

    async def test_nothing_is_prepared_and_no_file_removed_until_the_lost_claims_are_known(self, bench: Bench) -> None:
        await self.two_prepared(bench)
        self.spoil(bench, b'"uid":"uid-of-claim-0"', b'"uid":"uid-of-claim-#"')
        bench.api.away = AWAY
        service = bench.service()

        report = await service.start()

        assert report.pending
        assert bench.claims_with_file == {"uid-of-claim-0", "uid-of-claim-1"}
        bench.api.away = None
        failing = Unreachable("busy", status=429)
        thief = bench.api.put(a_claim(a_ref("thief"), a_result(0)))
        bench.api.failures = [failing]
        with pytest.raises(NodeNotReady, match="journal"):
            await prepare_one(service, thief)
        with pytest.raises(DeviceInUse, match="uid-of-claim-0"):
            await prepare_one(service, thief)
        assert service._left.is_set(), "what the lost claims left is looked after soon"
        await service.close()

    async def test_two_lost_claims_with_one_gpu_do_not_keep_the_node_from_preparing_others(self, bench: Bench) -> None:
        await self.two_prepared(bench)
        (bench.state / JOURNAL).write_bytes(b"")
        bench.api.put(a_claim(a_ref("claim-1"), a_result(0)))
        other = bench.api.put(a_claim(a_ref("other"), a_result(2)))
        async with bench.plugin() as service:
            await prepare_one(service, other)

            assert sorted(service.held) == ["uid-of-claim-0", "uid-of-other"]

    async def test_a_lost_claim_whose_gpu_is_not_usable_does_not_keep_the_node_from_preparing_others(
        self, bench: Bench
    ) -> None:
        await self.two_prepared(bench)
        (bench.state / JOURNAL).write_bytes(b"")
        bench.without_node = {uuid_of(0)}
        other = bench.api.put(a_claim(a_ref("other"), a_result(2)))
        async with bench.plugin() as service:
            await prepare_one(service, other)

            assert sorted(service.held) == ["uid-of-claim-1", "uid-of-other"]

    async def test_damage_that_is_not_settled_yet_is_remembered_over_a_restart(self, bench: Bench) -> None:
        await self.two_prepared(bench)
        self.spoil(bench, b'"uid":"uid-of-claim-0"', b'"uid":"uid-of-claim-#"')
        bench.api.away = AWAY
        await TestStart().started(bench)
        await TestStart().started(bench)
        bench.api.away = None

        _, _, held = await TestStart().started(bench)

        assert held == ["uid-of-claim-0", "uid-of-claim-1"]

    async def test_a_lost_claim_can_be_unprepared(self, bench: Bench) -> None:
        await self.two_prepared(bench)
        (bench.state / JOURNAL).write_bytes(b"")
        bench.api.away = AWAY
        async with bench.plugin() as service:
            await unprepare_one(service, a_ref("claim-0"))

        assert bench.claims_with_file == {"uid-of-claim-1"}


async def test_files_that_are_known_need_no_thread(bench: Bench) -> None:
    looks: list[str] = []

    def look(facts: NodeFacts) -> ContainerFiles:
        looks.append(threading.current_thread().name)
        return bench.container_files(facts)

    def unknown(_: NodeFacts) -> ContainerFiles | None:
        raise NodeNotReady("not known yet", about="node")

    sources = NodeSources(GPU_DRIVER, NODE, bench.facts, look, NodeOffers(NodeRules(bench.policy), NODE))
    files = await sources.files()
    assert len(looks) == 1 and looks[0] != threading.current_thread().name
    assert await replace(sources, known_files=lambda _: files).files() is files
    assert len(looks) == 1
    for known_files in (lambda _: None, unknown):
        await replace(sources, known_files=known_files).files()
    assert len(looks) == 3
