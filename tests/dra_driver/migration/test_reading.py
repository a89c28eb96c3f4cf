"""What containers ask for, as demands: counts, kinds, shares, and who uses which devices."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.migration import GPU, all_codes, codes, limits, meaning_of, pod, read, removed, there
from support.rows import rows

from dra_driver.api.meta import JsonObject
from dra_driver.migration.demands.reading import MOST_DEVICES
from dra_driver.migration.model import Demand, DeviceShare, PodReading, Role, Want, What
from dra_driver.quantity import Quantity

SLICED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"
PLAIN = "version: v1\nflags: {migStrategy: mixed}\n"
SINGLE = "version: v1\nflags: {migStrategy: single}\n"
EXCLUSIVE = "device.attributes['gpu.nvidia.com'].sharing == 'exclusive'"


def users(reading: PodReading) -> list[tuple[tuple[str, ...], int]]:
    """Names of containers and number of devices, by demand."""
    return [(tuple(container.name for container in demand.containers), demand.want.count) for demand in reading.demands]


def wants(reading: PodReading) -> list[Want]:
    return [demand.want for demand in reading.demands]


@rows(
    "resources, count",
    [
        ({"limits": {GPU: 1}}, 1),
        ({"limits": {GPU: "2"}}, 2),
        ({"limits": {GPU: 2}, "requests": {GPU: "2", "cpu": 1}}, 2),
        ({"limits": {GPU: 1.0}}, 1),
        ({"limits": {GPU: "1k"}}, 1000),
        ({"limits": {GPU: "2000m"}}, 2),
    ],
)
def test_amounts_are_read_in_every_spelling(resources: JsonObject, count: int) -> None:
    obj = pod({"name": "main", "image": "i", "resources": resources})
    reading = read(obj, meaning_of(PLAIN))
    assert wants(reading) == [Want(What.GPU, count)]
    assert there(obj, reading)
    assert all(path[-1] == GPU for path in reading.demands[0].removes)
    assert len(reading.demands[0].removes) == len(resources)


@rows(
    "resources",
    [
        {"limits": {GPU: 0.5}},
        {"limits": {GPU: "500m"}},
        {"limits": {GPU: -1}},
        {"limits": {GPU: "one"}},
        {"limits": {GPU: True}},
        {"limits": {GPU: [1]}},
        {"limits": {GPU: 2}, "requests": {GPU: 1}},
    ],
)
def test_what_the_api_server_refuses_is_left(resources: JsonObject) -> None:
    reading = read(pod({"name": "main", "image": "i", "resources": resources}, limits({GPU: 1}, name="b")))
    assert reading.leave is not None
    assert "M026" in codes(reading.findings)


def test_requests_without_limits_are_taken_as_meant() -> None:
    reading = read(pod({"name": "main", "image": "i", "resources": {"requests": {GPU: 2}}}), meaning_of(PLAIN))
    assert (wants(reading), reading.leave) == ([Want(What.GPU, 2)], None)
    assert codes(reading.findings) == ["M026"]


@rows("resources", [None, 5, [], {"limits": None}, {"limits": []}, {"limits": {"cpu": 1}}])
def test_resources_of_any_shape_are_no_error(resources: Any) -> None:
    assert read(pod({"name": "main", "image": "i", "resources": resources})).demands == ()


@pytest.mark.parametrize("nothing", [0, "0", None])
def test_zero_asks_for_nothing(nothing: object) -> None:
    """So does an empty value, as templates leave it: the API server reads null as 0."""
    alone = read(pod(limits({GPU: nothing})))
    assert (alone.demands, codes(alone.findings)) == ((), ["M027"])
    obj = pod(limits({GPU: "0"}, name="a"), limits({GPU: 1}, name="b"))
    reading = read(obj, meaning_of(PLAIN))
    assert users(reading) == [(("b",), 1)]
    assert removed(reading.edits) == ["spec.containers[0].resources.limits[nvidia.com/gpu]"]
    assert "M027" in codes(reading.claim_findings)


def test_containers_have_gpus_of_their_own() -> None:
    reading = read(
        pod(limits({GPU: 1}, name="a"), limits({GPU: 1}, name="b"), limits(None, name="c")), meaning_of(PLAIN)
    )
    assert users(reading) == [(("a",), 1), (("b",), 1)]


def test_several_profiles_of_one_container_are_several_demands() -> None:
    amounts = {"nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-2g.20gb": 1}
    reading = read(pod(limits(amounts)))
    assert wants(reading) == [Want(What.MIG, 1, "1g.10gb+me"), Want(What.MIG, 1, "2g.20gb")]
    assert (reading.needs_claims, reading.leave) == (None, None)


# -- init containers


def _init(amount: int, name: str = "init", **more: Any) -> JsonObject:
    return limits({GPU: amount}, name=name, **more)


SIDECAR: JsonObject = {"restartPolicy": "Always"}


@rows("init, containers, expected",
    [
        ([_init(1)], [limits({GPU: 1})], [(("main", "init"), 1)]),
        ([_init(2)], [limits({GPU: 1})], [(("main", "init"), 1), (("init",), 1)]),
        ([_init(1)], [limits({GPU: 3})], [(("main", "init"), 1), (("main",), 2)]),
        ([_init(2)], [limits({GPU: 1}, name="a"), limits({GPU: 2}, name="b")],
         [(("a", "init"), 1), (("b", "init"), 1), (("b",), 1)]),
        ([_init(1), _init(3, "two")], [limits({GPU: 2})],
         [(("main", "init", "two"), 1), (("main", "two"), 1), (("two",), 1)]),
        ([_init(2), _init(2, "two")], [limits(None)], [(("init", "two"), 2)]),
        ([_init(1, "side", **SIDECAR)], [limits({GPU: 1})], [(("main",), 1), (("side",), 1)]),
        ([_init(1, "side", **SIDECAR), _init(1)], [limits({GPU: 1})], [(("main", "init"), 1), (("side",), 1)]),
        ([_init(1), _init(1, "side", **SIDECAR)], [limits(None)], [(("side", "init"), 1)]),
        ([_init(1, "side", **SIDECAR), _init(1)], [limits(None)], [(("side",), 1), (("init",), 1)]),
    ],
)  # fmt: skip
def test_init_containers_use_the_gpus_of_those_that_come_after_them(
    init: list[JsonObject], containers: list[JsonObject], expected: list[tuple[tuple[str, ...], int]]
) -> None:
    reading = read(pod(*containers, initContainers=init), meaning_of(PLAIN))
    assert sorted(users(reading)) == sorted(expected)
    classic = [container for container in init if "restartPolicy" not in container]
    assert ("M016" in codes(reading.claim_findings)) == bool(classic)
    assert ("M016" in codes(reading.extended_findings)) == bool(classic)


_AMOUNTS = st.integers(0, 4)


@given(st.lists(st.tuples(_AMOUNTS, st.booleans()), max_size=4), st.lists(_AMOUNTS, min_size=1, max_size=3))
def test_a_pod_holds_as_many_gpus_as_before_and_each_container_sees_as_many(
    init: list[tuple[int, bool]], containers: list[int]
) -> None:
    """The kubelet's arithmetic: lasting containers add up; one that ends needs its amount beside those before it."""
    before = [
        _init(amount, f"i{number}", **(SIDECAR if lasting else {})) for number, (amount, lasting) in enumerate(init)
    ]
    obj = pod(
        *(limits({GPU: amount}, name=f"c{number}") for number, amount in enumerate(containers)), initContainers=before
    )
    reading = read(obj, meaning_of(PLAIN))
    seen: dict[str, int] = {}
    for demand in reading.demands:
        for container in demand.containers:
            seen[container.name] = seen.get(container.name, 0) + demand.want.count
    asked = {f"i{number}": amount for number, (amount, _) in enumerate(init)}
    asked |= {f"c{number}": amount for number, amount in enumerate(containers)}
    assert seen == {name: amount for name, amount in asked.items() if amount}
    held = sum(containers) + sum(amount for amount, lasting in init if lasting)
    for number, (amount, lasting) in enumerate(init):
        if not lasting:
            held = max(held, amount + sum(other for other, stays in init[:number] if stays))
    assert sum(demand.want.count for demand in reading.demands) == held
    for demand in reading.demands:
        lasting_users = [user for user in demand.containers if user.role is not Role.INIT]
        assert len(lasting_users) <= 1
        for side in (user for user in lasting_users if user.role is Role.SIDECAR):
            later = [user for user in demand.containers if user.role is Role.INIT and user.path[-1] > side.path[-1]]
            assert later == []


# -- meaning


def test_without_configuration_a_gpu_is_taken_as_whole_and_that_is_said_once() -> None:
    reading = read(pod(limits({GPU: 1}, name="a"), limits({GPU: 1}, name="b")))
    assert wants(reading) == [Want(What.GPU), Want(What.GPU)]
    assert [finding.code.name for finding in reading.findings] == ["M002"]
    assert codes(read(pod(limits({GPU: 1})), meaning_of(PLAIN)).findings) == []


def test_shares_are_asked_for_as_shares() -> None:
    reading = read(pod(limits({GPU: 1})), meaning_of(SLICED))
    assert wants(reading) == [Want(What.GPU, share=DeviceShare(number=1))]
    assert reading.needs_claims is not None
    mps = read(pod(limits({GPU: 1})), meaning_of(MPS))
    assert wants(mps)[0].selectors == ("device.attributes['gpu.nvidia.com'].sharing == 'mps'",)


def test_more_shares_than_a_device_has_are_of_several_devices() -> None:
    config = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    for number, requests in ((4, [4]), (5, [1] * 5)):
        reading = read(pod(limits({GPU: number})), meaning_of(config))
        assert [demand.want.share.number for demand in reading.demands if demand.want.share is not None] == requests
    (finding,) = [finding for finding in reading.findings if finding.code.name == "M003"]
    assert finding.message == f"{GPU}: 5 became 5 devices, a share of each, because no device has more than 4"


@pytest.mark.parametrize("meaning", [SLICED, MPS])
def test_several_shares_are_of_one_device_or_of_several_as_one_says(meaning: str) -> None:
    reading = read(pod(limits({GPU: 2})), meaning_of(meaning))
    assert [(want.count, want.share) for want in wants(reading)] == [(1, DeviceShare(number=2))]
    assert codes(reading.findings) == ["M003"]
    apart = read(pod(limits({GPU: 2})), meaning_of(meaning), several_shares="devices")
    assert [(want.count, want.share, want.distinct) for want in wants(apart)] == [(1, DeviceShare(number=1), True)] * 2


def test_renamed_shares_are_shares_whatever_is_known() -> None:
    reading = read(pod(limits({f"{GPU}.shared": 1, "nvidia.com/mig-1g.5gb.shared": 1})))
    assert wants(reading) == [
        Want(What.GPU, share=DeviceShare(number=1)),
        Want(What.MIG, profile="1g.5gb", share=DeviceShare(number=1)),
    ]
    assert codes(reading.findings) == []


def test_where_some_gpus_are_shared_whole_ones_are_asked_for_by_name() -> None:
    data = {"default": PLAIN, "a": SLICED}
    meaning = meaning_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    selector = {"nvidia.com/device-plugin.config": "a"}
    assert wants(read(pod(limits({GPU: 1}), nodeSelector=selector), meaning))[0].share == DeviceShare(number=1)
    either = read(pod(limits({GPU: 1})), meaning)
    assert "M038" in codes(either.findings)
    assert wants(either) == [Want(What.GPU, selectors=(EXCLUSIVE,))]
    assert wants(read(pod(limits({"nvidia.com/mig-1g.5gb": 1})), meaning)) == [Want(What.MIG, profile="1g.5gb")]


def test_under_the_strategy_single_a_gpu_is_a_mig_device() -> None:
    unknown = read(pod(limits({GPU: 1})), meaning_of(SINGLE))
    assert (codes(unknown.findings), unknown.leave is None) == (["M002"], False)
    known = read(pod(limits({GPU: 2})), mig_strategy="single", mig_profile="1g.5gb")
    assert wants(known) == [Want(What.MIG, 2, "1g.5gb")]
    assert known.needs_claims is not None
    label = {"nvidia.com/gpu.product": "NVIDIA-A30-MIG-1g.6gb"}
    assert wants(read(pod(limits({GPU: 1}), nodeSelector=label)))[0].profile == "1g.6gb"


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        ({"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, Want(What.GPU, share=DeviceShare(number=1))),
        ({"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}, Want(What.MIG, profile="1g.5gb")),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, Want(What.GPU)),
    ],
)
def test_node_pools_of_gke_say_what_a_gpu_is(labels: JsonObject, want: Want) -> None:
    reading = read(pod(limits({GPU: 1}), nodeSelector=labels))
    assert wants(reading) == [want]
    assert removed(reading.edits) == []


def test_a_resource_that_no_node_has_is_said() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"nvidia.com/gpu.present": "true"}},
            "status": {"allocatable": {"nvidia.com/mig-1g.5gb": "7"}}}  # fmt: skip
    assert codes(read(pod(limits({GPU: 1})), meaning_of(node)).findings) == ["M002"]
    assert codes(read(pod(limits({"nvidia.com/mig-1g.5gb": 1})), meaning_of(node)).findings) == []


# -- what is left


@rows(
    "resource, code",
    [
        ("nvidia.com/GRID_T4-1Q", "M045"),
        ("nvidia.com/GA102GL_A10", "M045"),
        ("nvidia.com/pgpu", "M045"),
        ("nvidia.com/mps-core", "M019"),
        ("nvidia.com/big-gpu", "M019"),
        ("nvidia.com/gpu-with-nic", "M019"),
        ("nvidia.com/mig-rdma", "M019"),
        ("elasticgpu.io/gpu-core", "M019"),
        ("nano-gpu/gpu-percent", "M019"),
    ],
)
def test_resources_that_are_not_understood_leave_the_pod_as_it_is(resource: str, code: str) -> None:
    reading = read(pod(limits({resource: 1, GPU: 1})), meaning_of(PLAIN))
    assert (codes(reading.findings), reading.leave is None) == ([code], False)
    assert resource in reading.findings[0].message


@pytest.mark.parametrize(
    "resource",
    ["amd.com/gpu", "gpu.intel.com/i915", "iluvatar.ai/BI-V150-vgpu", "metax-tech.com/sgpu", "rdma/hca", "cpu"],
)
def test_resources_of_others_are_none_of_its_business(resource: str) -> None:
    reading = read(pod(limits({resource: 1})))
    assert (reading.demands, reading.findings, reading.leave) == ((), (), None)


@pytest.mark.parametrize("text", ["$GPU_PER_NODE", "${GPUS}", "$(GPUS)", "{{ gpus }}"])
def test_a_number_that_is_filled_in_later_is_no_invalid_one(text: str) -> None:
    result = read(pod(limits({GPU: text})))
    assert codes(result.findings) == ["M020"]
    assert "filled in later" in result.findings[0].message


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/hostdev",
        "nvidia.com/mlnxnics",
        "nvidia.com/resibs_1",
        "nvidia.com/rdma_shared",
        "nvidia.com/cx7_sriov",
    ],
)
def test_network_cards_of_nvidia_stay_beside_gpus_that_are_migrated(resource: str) -> None:
    """GPUDirect RDMA: the NVIDIA Network Operator hands them out under the same prefix."""
    reading = read(pod(limits({resource: 1, GPU: 1})), meaning_of(PLAIN))
    assert (len(reading.demands), reading.findings, reading.leave) == (1, (), None)
    assert reading.demands[0].removes == (("spec", "containers", 0, "resources", "limits", GPU),)


def test_pods_that_have_claims_are_left() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    assert codes(read(pod(limits(None), resourceClaims=claims)).findings) == ["M039"]
    half = read(pod(limits({GPU: 1}), resourceClaims=claims), meaning_of(PLAIN))
    assert (codes(half.findings), half.leave is None) == (["M039"], False)
    implicit = read(pod(limits({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1})))
    assert (implicit.demands, codes(implicit.findings)) == ((), ["M039"])


def test_static_pods_are_left() -> None:
    reading = read(pod(limits({GPU: 1}), annotations={"kubernetes.io/config.source": "file"}), meaning_of(PLAIN))
    assert (codes(reading.findings), reading.leave is None) == (["M024"], False)


def test_more_devices_than_a_claim_holds_are_left() -> None:
    assert read(pod(limits({GPU: MOST_DEVICES})), meaning_of(PLAIN)).leave is None
    reading = read(pod(limits({GPU: MOST_DEVICES}), limits({GPU: 1}, name="b")), meaning_of(PLAIN))
    assert (codes(reading.findings), reading.leave is None) == (["M018"], False)


def test_conditions_larger_than_an_expression_are_left() -> None:
    products = [f"NVIDIA-H100-{'x' * 40}-{number}" for number in range(250)]
    term = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": products}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    reading = read(pod(limits({GPU: 1}), affinity=affinity), meaning_of(PLAIN))
    assert ("M018" in codes(reading.findings), reading.leave is None) == (True, False)


@pytest.mark.parametrize(("kind", "reported"), [("Pod", True), ("Deployment", False), ("StatefulSet", False)])
def test_what_cannot_be_changed_in_place_is_told(kind: str, reported: bool) -> None:
    reading = read(pod(limits({GPU: 1}), kind=kind), meaning_of(PLAIN))
    assert ("M012" in codes(reading.claim_findings)) == reported


# -- those who watch


def _watching(value: str = "all", **more: Any) -> JsonObject:
    return limits(None, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}], **more)


def test_a_daemon_set_that_sees_all_gpus_gets_admin_access() -> None:
    obj = pod(_watching(securityContext={"privileged": True}), kind="DaemonSet")
    reading = read(obj)
    (demand,) = reading.demands
    assert demand.all_gpus
    assert there(obj, reading)
    assert all_codes(reading) == ["M006", "M046"]
    assert reading.needs_claims is not None


@pytest.mark.parametrize(
    "image", ["nvcr.io/nvidia/k8s-device-plugin:v0.17.1", "x/gpu-feature-discovery", "a/hami-device-plugin"]
)
def test_what_makes_gpus_available_is_no_workload(image: str) -> None:
    reading = read(pod(_watching() | {"image": image}, kind="DaemonSet"))
    assert (reading.demands, reading.findings, reading.leave) == ((), (), None)


@pytest.mark.parametrize("image", ["cos-nvidia-installer:fixed", "x/gpudirect-gib/nccl-plugin-gib:v1.0.6"])
def test_what_installs_drivers_and_libraries_on_nodes_is_no_workload(image: str) -> None:
    volumes = [{"name": "nvidia", "hostPath": {"path": "/home/kubernetes/bin/nvidia"}}]
    pause = {"name": "pause", "image": "gke.gcr.io/pause:3.8"}
    obj = pod(pause, kind="DaemonSet", volumes=volumes, initContainers=[{"name": "install", "image": image}])
    assert read(obj).findings == ()
    assert codes(read(pod(pause, kind="DaemonSet", volumes=volumes)).findings) == ["M006"]


@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_others_that_see_all_gpus_are_told_so(kind: str) -> None:
    reading = read(pod(_watching(), kind=kind))
    assert (reading.demands, codes(reading.findings)) == ((), ["M006"])


@pytest.mark.parametrize("value", ["none", "void", ""])
def test_who_opts_out_is_let_alone(value: str) -> None:
    assert read(pod(_watching(value), kind="DaemonSet")).findings == ()


def test_a_container_that_sees_all_gpus_can_share_those_of_its_pod() -> None:
    obj = pod(limits({GPU: 1}, name="a"), _watching() | {"name": "b"})
    reading = read(obj, meaning_of(PLAIN))
    assert (users(reading), codes(reading.findings), removed(reading.edits)) == ([(("a",), 1)], ["M006"], [])
    shared = read(obj, meaning_of(PLAIN), share_visible_all=True)
    assert users(shared) == [(("a", "b"), 1)]
    assert removed(shared.edits) == ["spec.containers[1].env[0]"]
    assert codes(shared.findings) == []
    assert "M006" in codes(shared.claim_findings)


def test_demands_take_out_what_they_were_made_of_exactly_once() -> None:
    obj = pod(limits({GPU: 3}, name="a"), initContainers=[_init(2)])
    reading = read(obj, meaning_of(PLAIN))
    paths = [path for demand in reading.demands for path in demand.removes]
    assert len(paths) == len(set(paths)) == 2
    assert isinstance(reading.demands[0], Demand)


def test_memory_of_gpus_turns_percent_into_amounts() -> None:
    obj = pod(limits({GPU: 1, "nvidia.com/gpumem-percentage": 25}))
    assert wants(read(obj))[0].share == DeviceShare(memory_percent=25)
    reading = read(obj, gpu_memory=Quantity.parse("80Gi"))
    assert wants(reading)[0].share == DeviceShare(memory=Quantity.parse("20Gi"))


@pytest.mark.parametrize(
    ("minor", "amounts", "left"),
    [(33, {GPU: 1}, True), (34, {GPU: 1}, False), (35, {f"{GPU}.shared": 1}, True), (36, {f"{GPU}.shared": 1}, False)],
)
def test_what_an_old_server_cannot_do_is_said(minor: int, amounts: JsonObject, left: bool) -> None:
    reading = read(pod(limits(amounts)), meaning_of(PLAIN) if GPU in amounts else None, kubernetes_minor=minor)
    assert (codes(reading.findings), reading.leave is not None) == (["M023"] if left else [], left)


@pytest.mark.parametrize("amount", ["8Gi", 99_999_999_999, 1001])
def test_an_amount_that_no_node_has_is_told_and_not_counted_out(amount: object) -> None:
    reading = read(pod(limits({GPU: amount})))
    assert reading.leave is not None and "a claim has at most 32" in reading.leave
    assert "M018" in codes(reading.findings)


@pytest.mark.parametrize(
    "name", ["nvidia.com/mps-core", "example.com/gpu-license", "nvidia.com/FOO", "volcano.sh/gpu-number"]
)
def test_what_a_person_says_is_no_gpu_stays_and_the_pod_is_migrated(name: str) -> None:
    obj = pod(limits({GPU: 1, name: 2}))
    unsaid = read(obj, meaning_of(PLAIN))
    assert unsaid.leave is not None or unsaid.demands[0].removes != found_removes(obj, name)
    reading = read(obj, meaning_of(PLAIN), other_resources=(name,))
    assert (wants(reading), reading.leave, all_codes(reading)) == ([Want(What.GPU, 1)], None, ["M012", "M015"])
    assert found_removes(obj, name) == reading.demands[0].removes


def found_removes(obj: JsonObject, name: str) -> tuple[tuple[str | int, ...], ...]:
    """Where the pod asks for GPUs, and for nothing of this name."""
    resources = obj["spec"]["containers"][0]["resources"]["limits"]
    return tuple(
        ("spec", "containers", 0, "resources", "limits", resource) for resource in resources if resource != name
    )
