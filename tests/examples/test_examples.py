"""Every example is accepted by the API server, and gets what its README promises on machines that fit."""

from pathlib import Path

import pytest
import yaml
from support.dractl import run
from support.published import published_devices
from support.rows import rows
from support.scheduling import Desk
from support.shipped import create_definitions

from dra_driver.api.gpupolicy import GpuPolicy
from dra_driver.api.meta import (
    DEVICE_CLASSES,
    GPU_POLICIES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    JsonObject,
    Resource,
)
from dra_driver.bundled import FEATURES_FOLDER
from dra_driver.kube.client import Kube

EXAMPLES = sorted(path.name for path in FEATURES_FOLDER.iterdir() if path.is_dir())
_KINDS: dict[str, Resource] = {
    resource.kind: resource
    for resource in (NAMESPACES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, DEVICE_CLASSES, PODS)
}

FITTING = {
    "one-gpu": ("t4", 1),
    "device-metadata": ("t4", 1),
    "two-containers-one-claim": ("t4", 1),
    "by-memory-and-architecture": ("dgx-h100", 1),
    "nvlink-pair": ("dgx-h100", 2),
    "preference-list": ("dgx-h100", 1),
    "admin-monitoring": ("l40s", 8),
    "extended-resource": ("t4", 1),
}
"""Profile of a node that fits, and the number of devices that the pod gets there."""

SHARING = {
    "diagnose-an-unhealthy-gpu", "mig-by-hand", "mig-on-demand", "mps-on-mig", "mps-one-claim", "passthrough",
    "shares-memory-and-cores", "shares-of-mig", "shares-time-sliced", "time-slicing-one-claim",
}  # fmt: skip
"""See test_sharing_examples.py."""

DOMAINS = {"compute-domain-two-trays"}
"""Run as a whole by tests/e2e/test_demo.py: the controller has to make the template that their pods name."""

ELSEWHERE = {"fabric-partition", "gpu-and-nic-one-pcie-root", "nvlink-domain-gang"}
"""See test_examples_elsewhere.py."""

UNFIT = {
    "by-memory-and-architecture": ("t4", "4 not selected by the request"),
    "nvlink-pair": ("l40s", "needs 2 devices with one gpu.nvidia.com/nvlinkDomain; no device has it"),
}
"""Profile of a node that does not fit, and what the waiting pod is told."""


def documents(example: str) -> list[JsonObject]:
    objects: list[JsonObject] = []
    for path in sorted((FEATURES_FOLDER / example).glob("*.yaml")):
        objects += [obj for obj in yaml.safe_load_all(path.read_text()) if obj]
    return objects


@pytest.mark.parametrize(
    "example", [example for example in EXAMPLES if (FEATURES_FOLDER / example / "policy.yaml").is_file()]
)
async def test_policies_are_what_kubectl_apply_takes(example: str, kube: Kube) -> None:
    """Unchanged, by the definition of the kind; and what is stored means the same."""
    await create_definitions(kube)
    (policy,) = yaml.safe_load_all((FEATURES_FOLDER / example / "policy.yaml").read_text())
    stored = await kube.create(GPU_POLICIES, policy)
    assert GpuPolicy.read(stored).spec == GpuPolicy.read(policy).spec


async def apply(cluster: Desk, example: str) -> JsonObject:
    """Create the example's objects; its pod."""
    pods: list[JsonObject] = []
    for document in documents(example):
        kind = _KINDS[document["kind"]]
        place = document["metadata"].get("namespace", "default") if kind.namespaced else None
        created = await cluster.kube.create(kind, document, namespace=place)
        pods += [created] if kind is PODS else []
    (pod,) = pods
    return pod


async def devices_of(cluster: Desk, pod: JsonObject) -> list[JsonObject]:
    """Allocation results of the claims reserved for a pod."""
    return [
        result
        for claim in (await cluster.kube.list(RESOURCE_CLAIMS)).items
        if any(user["uid"] == pod["metadata"]["uid"] for user in claim.get("status", {}).get("reservedFor") or ())
        for result in claim["status"]["allocation"]["devices"]["results"]
    ]


async def add_node(cluster: Desk, folder: Path, profile: str, name: str | None = None) -> None:
    name = name or profile
    devices = await published_devices(folder / name, profile, name)
    await cluster.node(name, *(device.to_wire() for device in devices))


async def placed(cluster: Desk, pod: JsonObject) -> str:
    async def node() -> str | None:
        metadata = pod["metadata"]
        return (await cluster.kube.get(PODS, metadata["name"], metadata["namespace"]))["spec"].get("nodeName")

    return await cluster.until(node)


def test_every_example_is_tested_and_has_a_readme_that_says_how_to_run_it() -> None:
    assert sorted({*FITTING, *SHARING, *DOMAINS, *ELSEWHERE}) == EXAMPLES
    for example in {*FITTING, *DOMAINS, *ELSEWHERE}:
        readme = (FEATURES_FOLDER / example / "README.md").read_text()
        assert f"kubectl apply -f examples/features/{example}\n" in readme
        # A namespace of its own takes everything in it along; `delete -f` would look for what is gone already.
        removal = "namespace gpu-monitoring" if example == "admin-monitoring" else f"-f examples/features/{example}"
        assert f"kubectl delete {removal}\n" in readme
        assert "\nExpect " in readme


@pytest.mark.parametrize("example", sorted(FITTING))
async def test_an_example_gets_its_devices_on_a_node_that_fits(cluster: Desk, example: str, tmp_path: Path) -> None:
    profile, number = FITTING[example]
    await add_node(cluster, tmp_path, profile)
    pod = await apply(cluster, example)
    assert await placed(cluster, pod) == profile
    assert len(await devices_of(cluster, pod)) == number


@pytest.mark.parametrize("example", sorted(UNFIT))
async def test_an_example_waits_with_a_reason_where_nothing_fits(cluster: Desk, example: str, tmp_path: Path) -> None:
    profile, reason = UNFIT[example]
    await add_node(cluster, tmp_path, profile)
    pod = await apply(cluster, example)
    assert (await cluster.waiting(pod["metadata"]["name"])).endswith(reason)


ANYWHERE = (
    "one-gpu", "device-metadata", "two-containers-one-claim", "preference-list", "admin-monitoring",
    "extended-resource", "time-slicing-one-claim", "mps-one-claim", "shares-time-sliced",
    "shares-memory-and-cores", "passthrough",
)  # fmt: skip
"""Examples of features that all GPUs have."""


@rows("example", ANYWHERE)
def test_an_example_of_a_feature_that_all_gpus_have_fits_on_all_of_them(example: str) -> None:
    for nodes in ("t4", "dgx-a100-80", "dgx-h100", "gb200"):
        assert run("allocate", "--quiet", "-f", str(FEATURES_FOLDER / example), "--nodes", nodes).exit_code == 0, nodes


async def test_nvlink_pair_gets_two_gpus_of_one_domain(cluster: Desk, tmp_path: Path) -> None:
    await add_node(cluster, tmp_path, "l40s", "a-without-nvlink")
    await add_node(cluster, tmp_path, "hgx-h200", "b-with-nvlink")
    pod = await apply(cluster, "nvlink-pair")
    assert await placed(cluster, pod) == "b-with-nvlink"
    chosen = {result["device"] for result in await devices_of(cluster, pod)}
    devices = await published_devices(tmp_path / "again", "hgx-h200", "b-with-nvlink")
    domains = {device.attributes["nvlinkDomain"].string for device in devices if device.name in chosen}
    assert len(chosen) == 2
    assert len(domains) == 1 and None not in domains


@pytest.mark.parametrize(
    ("profiles", "served"),
    [
        (["t4", "dgx-h100", "hgx-h200"], ["gpu/h200"]),
        (["t4", "dgx-h100"], ["gpu/h100"]),
        (["t4"], ["gpu/two-small", "gpu/two-small"]),
    ],
)
async def test_preference_list_takes_the_best_that_the_cluster_has(
    cluster: Desk, profiles: list[str], served: list[str], tmp_path: Path
) -> None:
    for number, profile in enumerate(profiles):
        await add_node(cluster, tmp_path, profile, f"node-{number}")
    pod = await apply(cluster, "preference-list")
    assert await placed(cluster, pod) == f"node-{len(profiles) - 1}"
    assert [result["request"] for result in await devices_of(cluster, pod)] == served


async def test_admin_monitoring_sees_gpus_in_use_and_keeps_none_from_others(cluster: Desk, tmp_path: Path) -> None:
    await add_node(cluster, tmp_path, "t4")
    await placed(cluster, await apply(cluster, "one-gpu"))
    monitor = await apply(cluster, "admin-monitoring")
    await placed(cluster, monitor)
    results = await devices_of(cluster, monitor)
    assert len(results) == 4
    assert all(result["adminAccess"] for result in results)
    await placed(cluster, await apply(cluster, "two-containers-one-claim"))
