"""Parts of GPUs as HAMi, Volcano, Aliyun, Tencent, KAI and Run:ai ask for them."""

from typing import Any

import pytest
from support.migration import GPU, all_codes, codes, limits, meaning_of, pod, pod_of, read, removed, there
from support.rows import rows

from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import Attribute, Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.checking.codes import Severity
from dra_driver.migration.claims.templates import claims_for
from dra_driver.migration.model import DeviceShare, Options, Want, What
from dra_driver.migration.understand.meaning import Hami, Meaning
from dra_driver.names import GPU_DRIVER
from dra_driver.quantity import Quantity

A = "device.attributes['gpu.nvidia.com']"
MEM, PERCENT, CORES = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"


def memory(text: str, **more: Any) -> DeviceShare:
    return DeviceShare(memory=Quantity.parse(text), **more)


def shared(share: DeviceShare, count: int = 1, *selectors: str) -> Want:
    return Want(What.GPU, count, share=share, selectors=selectors)


def wants(obj: JsonObject, meaning: Meaning | None = None, **options: Any) -> list[Want]:
    return [demand.want for demand in read(obj, meaning, **options).demands]


@rows("amounts, annotations, want",
    [
        ({GPU: 1, MEM: 3000}, {}, shared(memory("3000Mi"))),
        ({GPU: 1, MEM: "3000", CORES: 30}, {}, shared(memory("3000Mi", cores=30))),
        ({MEM: 3000}, {}, shared(memory("3000Mi"))),
        ({GPU: 1, PERCENT: 100}, {}, Want(What.GPU)),
        ({GPU: 1, PERCENT: 50}, {}, shared(memory("20Gi"))),
        ({GPU: 1, PERCENT: 50, CORES: 10}, {}, shared(memory("20Gi", cores=10))),
        ({GPU: 2}, {"hami.io/gpu-scheduler-policy": "spread"}, Want(What.GPU, 2)),
        ({GPU: 1, CORES: 30}, {}, Want(What.GPU)),
        ({GPU: 2, PERCENT: 100, CORES: 30}, {}, Want(What.GPU, 2)),
        ({CORES: 30}, {}, Want(What.GPU)),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-cores": 50}, {}, Want(What.GPU, 2)),
        ({GPU: 1, MEM: 1}, {"nvidia.com/use-gputype": "NVIDIA-Tesla T4"},
         shared(memory("1Mi"), 1, f"('NVIDIA-' + {A}.productName).upperAscii().contains('NVIDIA-TESLA T4')")),
        ({GPU: 1, MEM: 1}, {"nvidia.com/use-gputype": "A100,V100"},
         shared(memory("1Mi"), 1, f"{A}.productName.contains('A100') || {A}.productName.contains('V100')")),
        ({GPU: 1, MEM: 1}, {"nvidia.com/nouse-gputype": "Tesla"},
         shared(memory("1Mi"), 1, f"!({A}.productName.upperAscii().contains('TESLA'))")),
        ({GPU: 1, MEM: 1}, {"nvidia.com/nouse-gpuuuid": "GPU-1, GPU-2"},
         shared(memory("1Mi"), 1, f"!(has({A}.uuid) && {A}.uuid in ['GPU-1', 'GPU-2'])")),
        ({GPU: 1, MEM: 1, CORES: 5}, {"nvidia.com/vgpu-mode": "hami-core"}, shared(memory("1Mi", cores=5))),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8000, "volcano.sh/vgpu-cores": 50}, {},
         shared(memory("8000Mi", cores=50))),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 25}, {}, shared(memory("10Gi"))),
        ({"volcano.sh/vgpu-number": 2}, {}, Want(What.GPU, 2)),
        ({"volcano.sh/gpu-memory": 1024}, {}, shared(memory("1Gi"))),
        ({"volcano.sh/gpu-number": 2}, {}, Want(What.GPU, 2)),
        ({"aliyun.com/gpu-mem": 3}, {}, shared(memory("3Gi"))),
        ({"aliyun.com/gpu-mem": 4096}, {}, shared(memory("4Gi"))),
        ({"aliyun.com/gpu-mem": 3, "aliyun.com/gpu-core.percentage": 30, "aliyun.com/gpu-count": 1}, {},
         shared(memory("3Gi", cores=30))),
        ({"aliyun.com/gpu-core.percentage": 30}, {}, shared(DeviceShare(cores=30))),
        ({}, {"gpu-fraction": "0.5"}, shared(memory("20Gi"))),
        ({}, {"gpu-memory": "2000"}, shared(memory("2000Mi"))),
    ],
)  # fmt: skip
def test_parts_are_asked_for_as_parts(amounts: JsonObject, annotations: JsonObject, want: Want) -> None:
    obj = pod(limits(amounts), annotations=annotations)
    reading = read(obj, gpu_memory=Quantity.parse("40Gi"))
    assert [demand.want for demand in reading.demands] == [want]
    assert there(obj, reading)
    assert (reading.leave, reading.needs_claims is not None) == (None, True)
    taken = [path[-1] for demand in reading.demands for path in demand.removes]
    assert set(amounts) <= set(taken)
    assert ("M005" in codes(reading.claim_findings)) == (want.share is not None)
    assert "M005" not in codes(reading.findings)


@pytest.mark.parametrize(
    "amounts", [{GPU: 2, MEM: 3000}, {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 3000}]
)
def test_several_parts_are_of_different_gpus(amounts: JsonObject) -> None:
    reading = read(pod(limits(amounts)))
    want = Want(What.GPU, share=memory("3000Mi"), distinct=True)
    assert [demand.want for demand in reading.demands] == [want, want]
    assert [len(demand.removes) for demand in reading.demands] == [2, 0]


@pytest.mark.parametrize(
    ("prefix", "amounts"),
    [
        ("nvidia.com/", {GPU: 1, MEM: 8000, CORES: 50}),
        ("volcano.sh/", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8000, "volcano.sh/vgpu-cores": 50}),
    ],
)
def test_parts_that_were_mig_devices_are_left_because_a_claim_needs_a_profile(prefix: str, amounts: JsonObject) -> None:
    reading = read(pod(limits(amounts), annotations={f"{prefix}vgpu-mode": "mig"}))
    assert reading.leave is not None and "dractl new template --mig" in reading.leave
    assert "M025" in codes(reading.findings)


def test_models_are_found_by_a_part_of_their_name_in_whatever_case() -> None:
    annotations = {"nvidia.com/use-gputype": "a100,nvidia-tesla"}
    (want,) = wants(pod(limits({GPU: 1, MEM: 1}), annotations=annotations))
    selector = compile_selector(want.selectors[0])
    for product, matches in (("NVIDIA A100-SXM4-40GB", True), ("Tesla T4", True), ("NVIDIA H100", False)):
        device = Device(name="d", attributes={"productName": Attribute(string=product)})
        assert selector.matches(CelDevice(GPU_DRIVER, device)) == matches


@pytest.mark.parametrize("key", ["nvidia.com/use-gpuuuid", "volcano.sh/vgpu-use-gpuuuid"])
def test_certain_gpus_become_a_selector(key: str) -> None:
    amounts = (
        {GPU: 1, MEM: 1} if key.startswith("nvidia") else {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1}
    )
    obj = pod(limits(amounts), annotations={key: "GPU-1"})
    reading = read(obj)
    assert (reading.leave, "M017" in codes(reading.claim_findings)) == (None, True)
    assert reading.demands[0].want.selectors == (f"has({A}.uuid) && {A}.uuid in ['GPU-1']",)
    assert f"metadata.annotations[{key}]" in removed(reading.edits)


def test_percent_of_an_unknown_memory_is_said() -> None:
    reading = read(pod(limits({GPU: 1, PERCENT: 50})))
    assert reading.demands[0].want.share == DeviceShare(memory_percent=50)
    assert codes(reading.findings) == ["M004"]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"nvidia.com/gpu.memory": "40960"}},
            "status": {"allocatable": {GPU: "10"}}}  # fmt: skip
    known = read(pod(limits({GPU: 1, PERCENT: 50})), meaning_of(node))
    assert known.demands[0].want.share == memory("20Gi")
    assert [finding.severity for finding in known.claim_findings if finding.code.name == "M004"] == ["info"]


def test_all_memory_of_a_gpu_is_the_gpu_alone_and_the_limit_of_its_cores_is_told() -> None:
    """HAMi had given away all memory, so nobody else came to that GPU, whatever was left of its cores."""
    reading = read(pod(limits({GPU: 1, CORES: 30})))
    (finding,) = [finding for finding in reading.claim_findings if finding.code.name == "M025"]
    assert "its limit of 30 percent of the cores is gone" in finding.message
    assert "M005" not in codes(reading.claim_findings)
    assert "M025" not in codes(read(pod(limits({GPU: 1, CORES: 100}))).claim_findings)


def test_the_default_of_the_memory_counts_where_the_pod_says_nothing_of_memory() -> None:
    """Not beside a percentage, which HAMi reads first."""
    hami = Meaning(hami=Hami(default_memory=5000, installed=True))
    for amounts, share in (({GPU: 1}, memory("5000Mi")), ({GPU: 1, PERCENT: 50}, memory("20Gi"))):
        reading = read(pod(limits(amounts)), hami, gpu_memory=Quantity.parse("40Gi"))
        assert reading.demands[0].want.share == share


def test_names_and_defaults_of_hami_are_those_of_its_configuration() -> None:
    text = "nvidia: {resourceCountName: example.com/vgpu, resourceMemoryName: example.com/mem, memoryFactor: 10, "
    text += "resourceCoreName: example.com/cores, defaultMemory: 500, defaultCores: 20}\n"
    data = {"device-config.yaml": text}
    meaning = meaning_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    assert wants(pod(limits({"example.com/vgpu": 1, "example.com/mem": 100})), meaning) == [
        shared(memory("1000Mi", cores=20))
    ]
    assert wants(pod(limits({"example.com/vgpu": 1})), meaning) == [shared(memory("5000Mi", cores=20))]


def test_settings_without_a_counterpart_are_said_and_left() -> None:
    annotations = {"hami.io/gpu-scheduler-policy": "binpack", "nvidia.com/use-gputype": "A100"}
    reading = read(pod(limits({GPU: 1, MEM: 1, "nvidia.com/priority": 1}), annotations=annotations))
    assert [finding.code.name for finding in reading.findings].count("M025") == 2
    assert removed(reading.edits) == ["metadata.annotations[nvidia.com/use-gputype]"]
    assert "nvidia.com/priority" in {path[-1] for path in reading.demands[0].removes}


@pytest.mark.parametrize(
    ("scheduler", "gone"),
    [
        ("hami-scheduler", True),
        ("gpushare-scheduler", True),
        ("volcano", False),
        ("kai-scheduler", False),
        ("mine", False),
    ],
)
def test_schedulers_that_know_no_claims_are_left_behind(scheduler: str, gone: bool) -> None:
    reading = read(pod(limits({"volcano.sh/vgpu-number": 1}), schedulerName=scheduler))
    assert ("spec.schedulerName" in removed(reading.edits)) == gone
    assert [finding.fixed for finding in reading.claim_findings if finding.code.name == "M013"] == [gone]


@pytest.mark.parametrize(
    ("number", "amount", "severity"), [(8, "8Gi", Severity.INFO), (512, "512Mi", Severity.WARNING)]
)
def test_the_unit_of_aliyun_is_assumed(number: int, amount: str, severity: Severity) -> None:
    reading = read(pod(limits({"aliyun.com/gpu-mem": number})))
    assert [finding.severity for finding in reading.findings if finding.code.name == "M034"] == [severity]
    assert reading.demands[0].want.share == memory(amount)


@rows("resources", [{"nvidia.com/mps-core": 25, "nvidia.com/mps-memory": 4}, {"tencent.com/vcuda-core": 30}])
def test_amounts_of_other_systems_stay(resources: dict[str, int]) -> None:
    unknown = read(pod(limits(resources)))
    assert (unknown.demands, {*codes(unknown.findings)}, unknown.leave is None) == ((), {"M019"}, False)


@rows(
    "amounts, annotations",
    [
        ({"aliyun.com/gpu-count": 1}, {}),
        ({GPU: 1, PERCENT: 101}, {}),
        ({}, {"gpu-fraction": "1.5"}),
        ({}, {"gpu-fraction": "much"}),
        ({}, {"gpu-memory": "2Gi"}),
        ({}, {"gpu-memory": "²"}),
        ({}, {"gpu-memory": "9" * 5000}),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "none"}),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "²"}),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "nobody"}),
    ],
)
def test_parts_that_are_none_leave_the_pod_as_it_is(amounts: JsonObject, annotations: JsonObject) -> None:
    reading = read(pod(limits(amounts), annotations=annotations))
    assert reading.leave is not None
    assert {"M042", "M019"} & set(codes(reading.findings))


def test_fractions_are_of_the_container_that_is_named() -> None:
    annotations = {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2", "gpu-fraction-container-name": "model",
                   "mps": "true"}  # fmt: skip
    obj = pod(limits(None, name="proxy"), limits(None, name="model"), annotations=annotations, kind="Deployment")
    reading = read(obj, gpu_memory=Quantity.parse("80Gi"))
    assert [demand.containers[0].name for demand in reading.demands] == ["model", "model"]
    assert all(demand.want.distinct for demand in reading.demands)
    base = "spec.template.metadata.annotations"
    paths = removed((*reading.edits,))
    assert paths == [
        f"{base}.gpu-fraction-container-name",
        f"{base}.gpu-fraction-num-devices",
    ]
    assert all_codes(reading) == ["M004", "M005", "M025", "M031", "M041"]


def constraints(obj: JsonObject, **options: Any) -> list[JsonObject]:
    given = Options(**options)
    made = claims_for(pod_of(obj), read(obj, **options), given).template
    listed: list[JsonObject] = made["spec"]["spec"]["devices"].get("constraints", [])
    return listed


@pytest.mark.parametrize("resource", ["aliyun.com/gpu-mem", "volcano.sh/gpu-memory", "aliyun.com/gpu-core.percentage"])
def test_what_was_added_up_for_one_gpu_stays_on_one(resource: str) -> None:
    """Aliyun's and Volcano's older scheduler chose one GPU for all that the containers of a pod asked for."""
    both = pod(limits({resource: 3}, name="a"), limits({resource: 5}, name="b"))
    assert constraints(both) == [{"requests": ["gpu-a", "gpu-b"], "matchAttribute": "gpu.nvidia.com/uuid"}]
    (finding,) = [finding for finding in read(both).claim_findings if finding.code.name == "M041"]
    assert finding.message == "the shares of a, b are of one GPU, by a constraint"
    alone = pod(limits({resource: 3}, name="a"), limits(None, name="b"))
    assert constraints(alone) == []
    assert "M041" not in all_codes(read(alone))


def test_parts_of_several_gpus_that_a_label_asks_for_leave_the_pod_as_it_is() -> None:
    obj = pod(limits({"aliyun.com/gpu-mem": 8}))
    obj["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    reading = read(obj)
    assert (reading.leave is not None, codes(reading.findings)) == (True, ["M019", "M034"])
    obj["metadata"]["labels"] = {"aliyun.com/gpu-count": "1"}
    assert read(obj).leave is None


def test_parts_of_different_gpus_are_so_for_each_container() -> None:
    """HAMi gave a container parts of different GPUs; another container may have had parts of the same ones."""
    amounts: JsonObject = {GPU: 2, MEM: 3000}
    made = constraints(pod(limits(amounts, name="a"), limits(amounts, name="b")))
    attribute = {"distinctAttribute": "gpu.nvidia.com/uuid"}
    assert made == [
        {"requests": ["gpu-a-gpu-1", "gpu-a-gpu-2"], **attribute},
        {"requests": ["gpu-b-gpu-1", "gpu-b-gpu-2"], **attribute},
    ]


@pytest.mark.parametrize(
    ("amounts", "annotations", "message"),
    [
        ({GPU: 1}, {"gpu-fraction": "0.5"},
         "gpu-fraction stands beside nvidia.com/gpu, and KAI refuses a pod with both"),
        ({GPU: 1}, {"gpu-memory": "2000"}, "gpu-memory stands beside nvidia.com/gpu, and KAI refuses a pod with both"),
        (None, {"gpu-fraction": "0.5", "gpu-memory": "2000"},
         "gpu-fraction and gpu-memory are both there, and KAI refuses such a pod"),
    ],
)  # fmt: skip
def test_a_fraction_beside_another_amount_is_no_pod_of_kai(
    amounts: JsonObject | None, annotations: JsonObject, message: str
) -> None:
    reading = read(pod(limits(amounts), annotations=annotations), gpu_memory=Quantity.parse("40Gi"))
    assert reading.leave == message
    assert "M026" in codes(reading.findings)


def test_an_init_container_with_another_part_is_not_said_to_use_the_same() -> None:
    init = limits({GPU: 1, MEM: 8000}, name="pre")
    reading = read(pod(limits({GPU: 1, MEM: 3000}), initContainers=[init]))
    (finding,) = [finding for finding in reading.claim_findings if finding.code.name == "M016"]
    assert finding.message == "pre asks for other GPUs than the containers after it, and the pod holds both"


@pytest.mark.parametrize("amounts", [{GPU: 1, MEM: 1, "nvidia.com/priority": 0}, {GPU: 1, MEM: 1, CORES: 0}])
def test_zeros_beside_amounts_go_with_them(amounts: JsonObject) -> None:
    reading = read(pod(limits(amounts)))
    assert "M027" not in all_codes(reading)
    assert {path[-1] for path in reading.demands[0].removes} == set(amounts)
    assert removed(reading.edits) == []
