"""All workloads at once on nodes that are described: what has room, what has none, and what had some before."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from dra_driver import bundled
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.cli.files import read_files
from dra_driver.migration.ground import Ground, ground_of_cluster, ground_of_labels, ground_of_models
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Migration, Options, Source, StrategyOption
from dra_driver.migration.outcome import Report
from dra_driver.migration.report_together import sums
from dra_driver.migration.together import Standing, Together, together
from dra_driver.migration.verify import Progress, Verdict, untold, verify

CLAIMS = Options(strategy=StrategyOption.CLAIMS)
H100 = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}


@cache
def classes() -> Mapping[str, DeviceClass]:
    documents = read_files([str(bundled.DEVICE_CLASSES_FOLDER)]).documents
    return {one.name: DeviceClass.of(one.obj) for one in documents}


def deployment(name: str, gpus: int, replicas: int, spec: JsonObject | None = None, resource: str = "gpu") -> str:
    container = {"name": "c", "image": "i", "resources": {"limits": {f"nvidia.com/{resource}": gpus}}}
    pod = {**(spec or {}), "containers": [container]}
    labels = {"app": name}
    return yaml.safe_dump(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
    )


def migrated(*texts: str, options: Options = CLAIMS) -> Migration:
    return migrate([Source(f"{index}.yaml", text) for index, text in enumerate(texts)], options)


def tried(migration: Migration, ground: Ground, progress: Progress = untold) -> Together:
    found = together(migration, ground, classes(), verify(migration, ground, classes()), progress)
    assert found is not None
    return found


def on_models(migration: Migration, **models: int) -> Together:
    named = {name.replace("_", "-"): number for name, number in models.items()}
    return tried(migration, ground_of_models(named, migration.policy, 36))


def numbers(found: Together) -> list[tuple[int, int | None, int | None]]:
    return [(one.pods, one.fit, one.before) for one in found.standings]


@pytest.mark.parametrize("strategy", list(StrategyOption))
def test_who_is_particular_and_who_wants_most_come_first(strategy: StrategyOption) -> None:
    """Eight H100 and four T4: three want an H100, two want four of one node, and one of five finds what is left."""
    texts = deployment("small", 1, 5), deployment("big", 4, 2), deployment("picky", 1, 3, H100)
    found = on_models(migrated(*texts, options=Options(strategy=strategy)), dgx_h100=1, t4=1)
    assert numbers(found) == [(5, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert found.title == "2 nodes: 1 x dgx-h100, 1 x t4"
    small, big, picky = found.standings
    assert picky.nodes == (("dgx-h100-1", 3),)
    assert big.nodes == (("dgx-h100-1", 1), ("t4-1", 1))
    assert any("dgx-h100-1: " in one and "needs 1 device; of 8 on the node: 8 in use" in one for one in small.why)
    assert not any(one.lost for one in found.standings)


def test_everything_fits_where_there_is_room() -> None:
    found = on_models(migrated(deployment("small", 1, 12)), t4=3)
    assert numbers(found) == [(12, 12, 12)]
    assert found.standings[0].nodes == (("t4-1", 4), ("t4-2", 4), ("t4-3", 4))
    assert (
        sums(found) == "1 workload makes 12 pods; 12 of them have devices at a time. The device plugin had room for 12."
    )


def test_pods_without_end_are_not_tried_one_by_one() -> None:
    found = on_models(migrated(deployment("crowd", 1, 2_000_000_000)), t4=2)
    room = numbers(on_models(migrated(deployment("few", 1, 50)), t4=2))[0][1]
    assert numbers(found) == [(2_000_000_000, room, room)]


def test_pods_without_end_that_have_one_claim_are_so_many_as_one_claim_has_users() -> None:
    """They were placed one by one, and each of them had room."""
    options = replace(CLAIMS, shared_claims=(("crowd", "more", "last"),))
    texts = [deployment("crowd", 1, 200), deployment("more", 1, 2_000_000_000), deployment("last", 1, 3)]
    found = on_models(migrated(*texts, options=options), t4=2)
    assert sum(one.fit or 0 for one in found.standings) == 256
    assert sum(one.before or 0 for one in found.standings) == 8
    for one in found.standings:
        assert one.fit == one.pods or one.why == ("at most 256 pods use one ResourceClaim at a time",)
    few = on_models(migrated(*(deployment(name, 1, 3) for name in ("crowd", "more", "last")), options=options), t4=2)
    assert numbers(few) == [(3, 3, 3), (3, 3, 3), (3, 3, 2)]
    assert {name for one in few.standings for name, _ in one.nodes} == {"t4-1"}
    nowhere = on_models(migrated(deployment("crowd", 9, 2_000_000_000), options=options), t4=2)
    assert numbers(nowhere) == [(2_000_000_000, 0, 0)]
    assert "t4" in nowhere.standings[0].why[0]


def test_one_workload_of_very_many_pods_is_not_all_that_time_is_for() -> None:
    asked: list[int] = []

    def some(done: int, _of: int) -> bool:
        asked.append(done)
        return len(asked) < 3

    migration = migrated(deployment("crowd", 1, 500))
    found = tried(migration, ground_of_models({"dgx-h100": 60}, migration.policy, 36), some)
    (standing,) = found.standings
    assert (standing.fit, standing.before, len(asked)) == (127, 127, 3)
    assert standing.why == ("there was no time left to try more than 127 of them",)


def test_what_had_a_place_and_has_none_now_fails_the_migration() -> None:
    """A claim for GPUs of one model, where the label is of a node that has both: nobody looks at the GPU any more."""
    migration = migrated(deployment("any", 1, 4))
    ground = ground_of_models({"t4": 1}, None, 36)
    verification = verify(migration, ground, classes())
    found = together(migration, ground, {}, verification)
    assert found is not None
    assert numbers(found) == [(4, 0, 4)]
    assert found.standings[0].lost == 4
    report = Report(migration, None, together=found)
    assert (report.lost, report.failed) == (1, True)
    assert "**Fewer than before: Deployment any.**" in sums(found)


@pytest.mark.parametrize("options", [CLAIMS, Options(strategy=StrategyOption.EXTENDED)], ids=["claims", "extended"])
def test_network_cards_are_not_asked_of_nodes_of_which_only_the_gpus_are_known(options: Options) -> None:
    obj = yaml.safe_load(deployment("ranks", 4, 2))
    obj["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] |= {"nvidia.com/hostdev": 1, "rdma/hca": 1}
    migration = migrated(yaml.safe_dump(obj), options=options)
    assert numbers(on_models(migration, **{"dgx-h100": 1})) == [(2, 2, 2)]
    alone = verify(migration, ground_of_models(["dgx-h100"], migration.policy, 36), classes())
    assert [one.verdict for one in alone.checked] == [Verdict.SAME]


def test_a_daemon_set_has_a_pod_on_each_node_that_it_chooses() -> None:
    text = deployment("agent", 1, 1, H100).replace("kind: Deployment", "kind: DaemonSet")
    found = on_models(migrated(text.replace("  replicas: 1\n", "")), dgx_h100=2, t4=1)
    assert numbers(found) == [(2, 2, 2)]


def test_shares_are_counted_as_the_policy_offers_them() -> None:
    sharing = Options(strategy=StrategyOption.CLAIMS, replicas=4, sharing_strategy="time-slicing")
    found = on_models(migrated(deployment("shells", 1, 20), options=sharing), t4=1)
    assert numbers(found) == [(20, 16, None)]


def test_rules_that_a_workload_needs_are_taken_for_granted_and_told() -> None:
    found = on_models(migrated(deployment("slices", 1, 30, resource="mig-1g.10gb")), dgx_h100=1)
    assert found.needs == {"mig": [{"mode": "Dynamic"}]}
    assert numbers(found) == [(30, 30, None)]


def test_when_time_is_up_the_rest_is_not_tried_and_says_so() -> None:
    migration = migrated(deployment("first", 2, 1), deployment("second", 1, 1))
    found = tried(migration, ground_of_models({"t4": 1}, None, 36), lambda done, of: done < 1)
    assert numbers(found) == [(1, 1, 1), (1, None, None)]
    assert found.standings[1].why == ("there was no time left to try it",)
    assert sums(found).endswith("1 workload not tried.")


# -- nodes of a cluster


def node(name: str, labels: dict[str, str], allocatable: dict[str, str] | None = None, **spec: Any) -> JsonObject:
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": allocatable or {}}}


def gfd(product: str, count: int, **more: str) -> dict[str, str]:
    return {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(count), **more}


CLUSTER = (
    node("a", gfd("Tesla-T4", 4, zone="x"), {"nvidia.com/gpu": "4"}),
    node("b", gfd("NVIDIA-H100-80GB-HBM3", 2, zone="y"), {"nvidia.com/gpu": "2"}),
    node("c", gfd("Abacus-3000", 2), {"nvidia.com/gpu": "2"}),
    node("cpu", {}),
)


def on_labels(migration: Migration) -> Together:
    ground = ground_of_labels(CLUSTER, ground_of_models((), migration.policy, 36))
    return tried(migration, ground)


def test_labels_of_gpu_feature_discovery_say_what_nodes_are() -> None:
    found = on_labels(migrated(deployment("six", 1, 8), deployment("picky", 1, 3, H100)))
    assert found.title == "2 nodes: 1 x t4 (4 GPUs), 1 x dgx-h100 (2 GPUs), by their labels"
    assert found.left_out == ("c has Abacus-3000, which is none of the GPU models that are known here",)
    assert numbers(found) == [(8, 4, 4), (3, 2, 2)]


def test_whatever_else_a_pod_asks_of_its_node_counts() -> None:
    found = on_labels(migrated(deployment("zoned", 1, 5, {"nodeSelector": {"zone": "x"}})))
    assert numbers(found) == [(5, 4, 4)]
    assert any("not selected by nodeSelector zone=x" in one for one in found.standings[0].why)


def test_slices_of_a_cluster_are_taken_as_they_are() -> None:
    devices = [{"name": f"gpu-{index}", "attributes": {"type": {"string": "gpu"}}} for index in range(2)]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slice_ = {
        "metadata": {"name": "s"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices},
    }
    migration = migrated(deployment("three", 1, 3))
    over = ground_of_cluster([node("n", {})], [slice_], 36)
    assert numbers(tried(migration, over)) == [(3, 2, None)]
    both = ground_of_cluster([node("n", {}, {"nvidia.com/gpu": "3"})], [slice_], 36)
    found = tried(migrated(deployment("three", 1, 3), options=Options()), both)
    assert numbers(found) == [(3, 2, 3)]
    assert found.standings[0].lost == 1


def test_where_nodes_are_not_described_nothing_is_said() -> None:
    migration = migrated(deployment("small", 1, 1))
    ground = ground_of_models((), None, 36)
    assert together(migration, ground, classes(), verify(migration, ground, classes())) is None


def test_a_standing_that_was_not_tried_has_lost_nothing() -> None:
    workload = migrated(deployment("small", 1, 1)).workloads[0]
    assert Standing(workload, 3, None, 3).lost == 0
