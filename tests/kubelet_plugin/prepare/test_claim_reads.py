"""Reading claims, and what a failed answer means: kubelet_plugin/prepare/claim_reads.py."""

import asyncio

import pytest
from support.claims import NODE, FakeClaims, a_claim, a_ref, a_result

from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import ClusterError, Conflict, Gone, NotFound, Rejected, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.prepare.claim_reads import ClaimReader, explained


@pytest.fixture
def api() -> FakeClaims:
    api = FakeClaims()
    api.put(a_claim(a_ref(), a_result(0)))
    return api


async def test_a_claim_is_read_by_name_whatever_its_uid(api: FakeClaims) -> None:
    claim = await ClaimReader(api).read(a_ref("train", "another-uid"))

    assert isinstance(claim, ResourceClaim)
    assert claim.metadata.uid == "uid-of-train"


async def test_a_claim_that_is_not_there_is_no_error(api: FakeClaims) -> None:
    assert await ClaimReader(api).read(a_ref("nobody")) is None


async def test_an_api_server_says_so_in_these_words(kube: Kube) -> None:
    assert await ClaimReader(kube).read(a_ref("nobody", namespace="default")) is None


async def test_a_server_that_does_not_know_claims_at_all_has_not_said_that_one_is_gone(api: FakeClaims) -> None:
    api.away = NotFound("the server could not find the requested resource", status=404)

    with pytest.raises(NotFound):
        await ClaimReader(api).read(a_ref("nobody"))


@pytest.mark.parametrize("failure", [Unreachable("500", status=500), Conflict("409"), Gone("410"), Unreachable("away")])
async def test_what_passes_is_asked_again_while_there_is_patience(api: FakeClaims, failure: ClusterError) -> None:
    api.failures = [failure, failure]

    assert await ClaimReader(api).read(a_ref(), patience_s=10) is not None
    assert api.reads == 3


async def test_without_patience_the_first_failure_is_the_answer(api: FakeClaims) -> None:
    api.failures = [Unreachable("away")]

    with pytest.raises(Unreachable):
        await ClaimReader(api).read(a_ref())


async def test_what_does_not_pass_is_not_asked_again(api: FakeClaims) -> None:
    api.failures = [Rejected("forbidden", status=403)]

    with pytest.raises(Rejected):
        await ClaimReader(api).read(a_ref(), patience_s=10)

    assert api.reads == 1


async def test_a_server_that_never_answers_is_away(api: FakeClaims) -> None:
    async def never(_: str) -> None:
        await asyncio.Event().wait()

    api.before_answer = never

    with pytest.raises(Unreachable, match="no answer"):
        await ClaimReader(api, attempt_s=0.01).read(a_ref())


async def test_of_all_claims_those_with_a_device_of_this_node_are_ours(api: FakeClaims) -> None:
    api.put(a_claim(a_ref("elsewhere"), a_result(0, pool="node-b")))
    api.put(a_claim(a_ref("other-driver"), a_result(0, driver="other.example.com")))
    api.put(a_claim(a_ref("both"), a_result(0, driver="other.example.com"), a_result(1)))
    api.put(a_claim(a_ref("free")))

    claims = await ClaimReader(api).allocated(GPU_DRIVER, NODE)

    assert sorted(claim.metadata.name for claim in claims) == ["both", "train"]


@pytest.mark.parametrize("status", [7, {"allocation": 3}, {"allocation": {"devices": {"results": [None]}}}])
async def test_a_list_of_claims_that_makes_no_sense_is_no_answer(api: FakeClaims, status: object) -> None:
    api.put({**a_claim(a_ref("train"), a_result(0)), "status": status})

    with pytest.raises(Unreachable, match="an invalid claim"):
        await ClaimReader(api).allocated(GPU_DRIVER, NODE)


@pytest.mark.parametrize(
    ("error", "move"),
    [
        (Unreachable("busy", status=429), "the kubelet tries again"),
        (Rejected("forbidden", status=403), "administrator"),
    ],
)
def test_an_error_says_which_claim_and_whose_move_it_is(error: ClusterError, move: str) -> None:
    explanation = explained(error, a_ref())

    assert type(explanation) is type(error)
    assert str(explanation).startswith("claim team-a/train: ")
    assert error.message in str(explanation)
    assert move in str(explanation)
    assert explanation.status == error.status


async def test_pauses_double_and_a_busy_server_says_how_long(api: FakeClaims, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    away = Unreachable("500", status=500, retry_after_s=1.5)
    api.failures = [away] * 6
    await ClaimReader(api).read(a_ref(), patience_s=60)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]

    pauses.clear()
    silent = Unreachable("429", status=429)
    silent.retry_after_s = None
    api.failures = [
        Unreachable("429", status=429, retry_after_s=30),
        silent,
        Unreachable("429", status=429, retry_after_s=1.5),
    ]
    await ClaimReader(api).read(a_ref(), patience_s=60)
    assert pauses == [2.0, 0.2, 1.5]
