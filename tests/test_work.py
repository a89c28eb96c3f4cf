"""Work that others choose stays bounded: what nodes, tenants and files send, as large as the API allows it.

Each row is a pure function with an input of a size, half and whole. Twice the input is at most about twice the work,
and the whole input is at most `most` steps; a processor does some millions in a second. Calls and rounds of loops are
counted, so that the result is the same on every machine.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import pytest
import yaml
from support.allocation import gpu as a_gpu
from support.allocation import published
from support.configs import decode_config
from support.installation import Installation
from support.inventories import gpu, inventory_spec, mig
from support.mig import gpu_of
from support.objects import allocation, claim, pod, result
from support.reviews import BAD, CLASSES, a_review, an_object, body_of, config
from support.rows import slow_but
from support.steps import steps

from controller.webhook.review import NotAReview, Reviewer, read_review
from dra_driver.allocation.loading import world_of
from dra_driver.api.config import GpuConfig
from dra_driver.api.documents import read_documents
from dra_driver.api.inventory import (
    MOST_GPUS,
    ComputeInstanceFacts,
    GpuInstanceFacts,
    HealthCondition,
    HealthFacts,
    MigProfileFacts,
    NodeInventorySpec,
)
from dra_driver.api.meta import RESOURCE_SLICES, JsonObject
from dra_driver.api.policy import GpuSelection, MigRule, PublishingPolicy
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.checking.check import check
from dra_driver.checking.knowledge import Knowledge, sites_of_kinds
from dra_driver.cli.doctor import shipped_checks
from dra_driver.cli.reading.files import shipped_classes
from dra_driver.devices import mig as packing
from dra_driver.devices.limitations import limitations_of
from dra_driver.devices.offers import MOST_DEVICES, offers
from dra_driver.doctor.findings import Verdict, examined
from dra_driver.errors import InvalidInput
from dra_driver.explain.explain import Answer, explain_pod
from dra_driver.migration.migrate import ManifestText, migrate
from dra_driver.migration.model import Options
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.publish.policy_file import decode_policy
from dra_driver.slices.describe import Description, described_devices
from dra_driver.slices.domains import domain_devices
from dra_driver.slices.features import ALL_FEATURES
from dra_driver.slices.layout import Places, slice_layout

DYNAMIC = PublishingPolicy(mig=[MigRule(mode="Dynamic")])


def profiles(count: int) -> list[MigProfileFacts]:
    """As many as the model allows, each with other starts, so that nothing is calculated once for several."""
    return [
        MigProfileFacts(
            name=f"{number}g.10gb",
            id=number,
            slices=1 + number % 7,
            memory_bytes=2**30 + number,
            multiprocessors=16,
            size=1 + number % 60,
            starts=[(start * 4 + number) % 64 for start in range(16)],
            max_instances=16,
        )
        for number in range(count)
    ]


def instances() -> list[GpuInstanceFacts]:
    parts = [ComputeInstanceFacts(id=part, uuid=f"MIG-{part}", profile="x", slices=1, start=part) for part in range(16)]
    return [GpuInstanceFacts(id=start, profile="x", start=64, size=1, compute_instances=parts) for start in range(16)]


def conditions(count: int) -> HealthFacts:
    return HealthFacts(
        conditions=[
            HealthCondition(type="Xid", value=str(value), severity="Warning", message="x" * 1024, since="2026-01-01")
            for value in range(count)
        ]
    )


def node(gpus: int, count: int = 64) -> NodeInventorySpec:
    facts = mig(enabled=False, switchable=True, profiles=profiles(count), instances=instances())
    return inventory_spec("n", [gpu(number, mig=facts, health=conditions(count)) for number in range(gpus)])


def described(inventory: NodeInventorySpec) -> Description:
    return described_devices(inventory, DYNAMIC, {}, GPU_DRIVER, ALL_FEATURES)


class Work(NamedTuple):
    """`made` makes the function with its input, of a size. `sizes` are half and whole."""

    made: Callable[[int], Callable[[], object]]
    sizes: tuple[int, int]
    most: int


def counted(work: Callable[[], object]) -> int:
    """Without what an earlier test left calculated."""
    packing._order.cache_clear()
    compile_selector.cache_clear()
    return steps(work)


def describing(size: int) -> Callable[[], object]:
    inventory = node(1, size)
    return lambda: described(inventory)


def describing_gpus(size: int) -> Callable[[], object]:
    inventory = node(size)
    return lambda: described(inventory)


def reading_inventory(size: int) -> Callable[[], object]:
    inventory = node(size)
    wire = {**inventory.to_wire(), "gpus": [gpu.to_wire() for gpu in inventory.gpus]}
    return lambda: NodeInventorySpec.of(wire)


def laying_out(size: int) -> Callable[[], object]:
    gpus = described(inventory_spec("n", [gpu_of("h100-80", number) for number in range(size)])).gpus
    return lambda: slice_layout(gpus, Places(), ALL_FEATURES)


def describing_domains(size: int) -> Callable[[], object]:
    inventory = node(size)
    return lambda: domain_devices(inventory, DYNAMIC, {}, COMPUTE_DOMAIN_DRIVER, ALL_FEATURES)


def following_rules(size: int) -> Callable[[], object]:
    rules = [MigRule(mode="Dynamic", gpus=GpuSelection(names=[f"other-{number}"])) for number in range(size)]
    policy, inventory = PublishingPolicy(mig=rules), inventory_spec("n", [gpu_of("h100-80")])
    return lambda: described_devices(inventory, policy, {}, GPU_DRIVER, ALL_FEATURES)


def a_claim(requests: int, selectors: Sequence[str]) -> JsonObject:
    claim = an_object("ResourceClaim", *(config(BAD) for _ in range(requests)), selectors=tuple(selectors))
    (request,) = claim["spec"]["devices"]["requests"]
    claim["spec"]["devices"]["requests"] = [{**request, "name": f"r{number}"} for number in range(requests)]
    return claim


JUDGE = Reviewer(Knowledge(36, sites_of_kinds(), CLASSES))


def reviewing(size: int) -> Callable[[], object]:
    """A claim of 1.5 MB: as many requests and selectors as the API allows."""
    terms = " || ".join(["device.driver == 'x'"] * 60)
    body = body_of(a_review(a_claim(size, [f"{number} == 0 || {terms}" for number in range(32)])))

    def refused() -> None:
        assert not JUDGE.answer(read_review(body)).allowed, "configs are judged all the same"

    return refused


def reviewing_selectors(size: int) -> Callable[[], object]:
    """As much text of selectors as is looked at."""
    terms = " || ".join(["device.driver == 'x'"] * 40)
    body = body_of(a_review(a_claim(1, [f"{number} == 0 || {terms}" for number in range(size)])))
    return lambda: JUDGE.answer(read_review(body))


def refusing(size: int) -> Callable[[], object]:
    body = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":[' + b"[]," * size + b"[]]}"

    def refused() -> None:
        with pytest.raises(NotAReview):
            read_review(body)

    return refused


def compiling(expression: Callable[[int], str]) -> Callable[[int], Callable[[], object]]:
    def made(size: int) -> Callable[[], object]:
        text = expression(size)
        assert len(text) <= 10 * 1024, "no API server stores a longer one"

        def compiled() -> None:
            with suppress(CelError):
                compile_selector(text)

        return compiled

    return made


def reading_policy(size: int) -> Callable[[], object]:
    rule = "- {mode: Dynamic, gpus: {names: [gpu-1]}, profiles: [1g.10gb]}\n"
    text = "apiVersion: dra.gpu/v1alpha1\nkind: PublishingPolicy\nmig:\n" + rule * size
    return lambda: decode_policy(text, about="policy")


def reading_config(size: int) -> Callable[[], object]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    parameters |= {f"unknown{number:04}": "x" for number in range(size)}
    assert len(json.dumps(parameters)) <= 10 * 1024, "no API server stores larger ones"

    def refused() -> None:
        with pytest.raises(InvalidInput):
            decode_config(parameters, GpuConfig, field="parameters")

    return refused


def checking(size: int) -> Callable[[], object]:
    text = yaml.safe_dump_all(an_object("ResourceClaim", config(BAD), metadata={"name": f"c{n}"}) for n in range(size))
    return lambda: check(read_documents(text, "a.yaml"), JUDGE.knowledge)


def migrating(size: int) -> Callable[[], object]:
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}}
        for number in range(size)
    ]
    sources = [ManifestText("a.yaml", yaml.safe_dump_all(pods))]
    return lambda: migrate(sources, Options())


def examining(size: int) -> Callable[[], object]:
    installation = Installation()
    installation.grow(size)
    cluster = installation.cluster

    def no_problems() -> None:
        assert not [item for item in examined(shipped_checks(), cluster) if item.verdict is Verdict.PROBLEM]

    return no_problems


def explaining(size: int) -> Callable[[], object]:
    """Of a pod that waits for nine GPUs of a node. Each has eight, and others have them."""
    wanted = claim()
    wanted["spec"]["devices"]["requests"][0]["exactly"]["count"] = 9
    objects = [document.obj for document in shipped_classes()] + [pod("waiting", node_name=None), wanted]
    gpus = [f"gpu-{number}" for number in range(8)]
    for node_name in map(str, range(size)):
        published_slice = published(*map(a_gpu, gpus), name=node_name, node=node_name).slice.to_wire()
        objects.append({"kind": RESOURCE_SLICES.kind, **published_slice})
        for device in gpus:
            name, results = f"{node_name}-{device}", allocation(result(device, pool=node_name))
            objects += [pod(name, [name], node_name=node_name), {**claim(name), "status": {"allocation": results}}]
    world = world_of(objects).world

    def waits() -> None:
        assert explain_pod(world, ("default", "waiting")).answer is Answer.WAITS

    return waits


def reading_slices(size: int) -> Callable[[], object]:
    """Of nodes that are equal but for names and UUIDs, from a file in JSON."""
    gpus = [f"gpu-{number}" for number in range(8)]
    nodes = [str(number) for number in range(size)]
    slices = [published(*(a_gpu(f"{gpu}-{node}") for gpu in gpus), name=node, node=node).slice for node in nodes]
    items = [{"kind": RESOURCE_SLICES.kind, **item.to_wire()} for item in slices]
    text = json.dumps({"kind": "List", "items": items}).encode()

    def all_are_read() -> None:
        documents = read_documents(text, "cluster.json").raise_problems()
        assert len(world_of(document.obj for document in documents).world.slices) == size

    return all_are_read


TABLE = {
    # From a node.
    "read an inventory": Work(reading_inventory, (32, MOST_GPUS), 50_000),
    "describe the MIG profiles of a GPU": Work(describing, (32, 64), 2_000_000),
    "describe the GPUs of a node": Work(describing_gpus, (2, MOST_GPUS), 6_000_000),
    "describe domains": Work(describing_domains, (32, MOST_GPUS), 50_000),
    "lay out devices in slices": Work(laying_out, (32, MOST_GPUS), 50_000),
    # From a tenant.
    "review a claim": Work(reviewing, (16, 32), 200_000),
    "review selectors": Work(reviewing_selectors, (15, 30), 2_300_000),
    "refuse a review": Work(refusing, (41_000, 82_000), 1_000_000),
    "compile conditions": Work(compiling(lambda size: "true" + " && true" * size), (600, 1200), 1_000_000),
    "compile negations": Work(compiling(lambda size: "!" * size + "true"), (5000, 10_000), 1_000_000),
    "compile parentheses": Work(compiling(lambda size: "(" * size + "true" + ")" * size), (2500, 5000), 1_000_000),
    "compile a list": Work(compiling(lambda size: f"1 in [{'1, ' * size}1]"), (1500, 3000), 1_000_000),
    "compile a pattern": Work(
        compiling(lambda size: f"device.driver.matches('{'(a|aa)+' * size}')"), (600, 1200), 1_000_000
    ),
    "read a config": Work(reading_config, (250, 500), 200_000),
    # From a cluster, and from a file. They have no limit, so only the growth counts.
    "examine a cluster": Work(examining, (200, 400), 600_000),
    # The devices of slices that are alike are made in Python, which is quicker than to type each, and counted.
    "explain a pod that waits": Work(explaining, (100, 200), 550_000),
    "read slices of a file": Work(reading_slices, (100, 200), 120_000),
    "read a policy": Work(reading_policy, (50, 100), 1_000_000),
    "follow rules of a policy": Work(following_rules, (500, 1000), 1_000_000),
    "check claims of a file": Work(checking, (50, 100), 10_000_000),
    "migrate pods of a file": Work(migrating, (50, 100), 1_000_000),
}


LONG = ("describe the GPUs of a node", "describe the MIG profiles of a GPU", "examine a cluster", "review selectors")


@pytest.mark.parametrize("name", slow_but(TABLE, *(name for name in TABLE if name not in LONG)))
def test_work_is_at_most_proportional_and_bounded(name: str) -> None:
    made, (half, whole), most = TABLE[name]
    few, many = counted(made(half)), counted(made(whole))
    assert many <= 2.5 * few, (few, many)
    assert many <= most


def test_a_node_with_too_many_devices_publishes_those_of_its_first_gpus_and_says_so() -> None:
    inventory = node(MOST_GPUS)
    result = offers(inventory, DYNAMIC, {})
    assert 0 < len(result.offers) <= MOST_DEVICES
    published = {offer.gpu.uuid for offer in result.offers}
    assert published == {facts.uuid for facts in inventory.gpus[: len(published)]}
    (limitation,) = [
        limitation
        for limitation in limitations_of(result.notes, DYNAMIC, GPU_DRIVER, "n")
        if limitation.reason == "TooManyDevices"
    ]
    assert len(limitation.gpus) == MOST_GPUS - len(published)
