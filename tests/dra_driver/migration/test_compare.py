"""Devices against what was asked for, by values: right is said nothing of, and each way to be wrong is said."""

from dataclasses import replace
from typing import Any

import pytest
from support.rows import rows

from dra_driver.api.resource import AllocatedDevice, Attribute, Capacity, Device
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import DeviceShare, ManifestText, MigratedWorkload, Options, StrategyOption
from dra_driver.migration.verify.trial import Piece, problems

SHARES = """\
version: v1
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 4}]
---
"""
DAEMON_SET = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: watch}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      containers:
      - name: c
        image: i
        env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
"""


def pod(*containers: str) -> str:
    head = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
    return head + "".join(containers)


def containers(**limits: str) -> str:
    each = (f"  - {{name: {name}, image: i, resources: {{limits: {{{asked}}}}}}}\n" for name, asked in limits.items())
    return "  containers:\n" + "".join(each)


def workload(text: str) -> MigratedWorkload:
    result = migrate([ManifestText("a.yaml", text)], Options(strategy=StrategyOption.CLAIMS))
    (converted,) = result.workloads
    return converted


def gpu(name: str = "gpu-0", **result: Any) -> Piece:
    capacity = {"memory": Capacity(value="80Gi"), "cores": Capacity(value="100"), "shares": Capacity(value="4")}
    device = Device(name=name, attributes={"type": Attribute(string="gpu")}, capacity=capacity)
    return Piece(AllocatedDevice(request="r", driver="gpu.nvidia.com", pool="n", device=name, **result), device)


def share(name: str = "gpu-0", number: str = "0", **consumed: str) -> Piece:
    return gpu(name, share_id=number, consumed_capacity=consumed)


def problems_of(text: str, **pieces: tuple[Piece, ...]) -> list[str]:
    return list(problems(workload(text), pieces))


ONE = pod(containers(c="nvidia.com/gpu: 1"))
TWO = pod(containers(c="nvidia.com/gpu: 2"))


@rows(
    "text, pieces",
    [
        (ONE, (gpu(),)),
        (TWO, (gpu(), gpu("gpu-1"))),
        (ONE, (share(memory="80Gi"),)),
        (SHARES + ONE, (share(shares="1"),)),
        (SHARES + ONE, (share(shares="1", memory="20Gi"),)),
        (DAEMON_SET, (gpu(admin_access=True), gpu("gpu-1", admin_access=True))),
    ],
)
def test_what_was_meant_has_no_problems(text: str, pieces: tuple[Piece, ...]) -> None:
    assert problems_of(text, c=pieces) == []


@rows(
    "text, pieces, says",
    [
        (ONE, (), "asked for 1 x GPU and gets nothing"),
        (TWO, (gpu(),), "asked for 2 x GPU"),
        (ONE, (gpu(), gpu("gpu-1")), "gets gpu-1, which it did not ask for"),
        (ONE, (share(memory="20Gi"),), "shared with others"),
        (SHARES + ONE, (gpu(),), "not shared"),
        (SHARES + ONE, (share(shares="0"),), "with fewer shares"),
        (DAEMON_SET, (gpu(admin_access=True), gpu("gpu-1")), "takes GPUs from other pods"),
    ],
)
def test_what_was_not_meant_is_said(text: str, pieces: tuple[Piece, ...], says: str) -> None:
    messages = problems_of(text, c=pieces)
    assert messages and any(says in message for message in messages), messages


def test_a_share_that_takes_all_of_an_amount_that_it_does_not_name_leaves_nothing_for_others() -> None:
    memory = pod(containers(c="nvidia.com/gpu: 1, nvidia.com/gpumem: 3000"))
    assert problems_of(memory, c=(share(memory="3000Mi", cores="0"),)) == []
    assert "with all cores of it" in problems_of(memory, c=(share(memory="3000Mi", cores="100"),))[0]


def test_units_of_an_init_container_go_to_the_containers_after_it_and_are_not_counted_again() -> None:
    init = "  initContainers:\n  - {name: first, image: i, resources: {limits: {nvidia.com/gpu: 2}}}\n"
    text = pod(init, containers(c="nvidia.com/gpu: 1"))
    both = (gpu(), gpu("gpu-1"))
    assert problems_of(text, first=both, c=(gpu(),)) == []
    assert problems_of(text, first=(gpu(),), c=(gpu(),)) != []


def test_what_is_hardest_to_please_chooses_first() -> None:
    """A share as large as its GPU would do for a whole one, but a whole one is no share."""
    converted = workload(ONE)
    (whole,) = converted.reading.demands
    shared = replace(whole, want=replace(whole.want, share=DeviceShare(number=1)))
    both = replace(converted, reading=replace(converted.reading, demands=(whole, shared)))
    pieces = {"c": (share(shares="4"), gpu("gpu-1"))}
    assert [problem for problem in problems(both, pieces) if "asked for 1 and gets 2" not in problem] == []


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_in_the_manifest_counts_whatever_was_read_in_it(count: int) -> None:
    converted = workload(TWO)
    (demand,) = converted.reading.demands
    misread = replace(demand, want=replace(demand.want, count=count))
    wrong = replace(converted, reading=replace(converted.reading, demands=(misread,)))
    pieces = {"c": tuple(gpu(f"gpu-{index}") for index in range(count))}
    assert list(problems(wrong, pieces)) == [f"c asked for 2 and gets {count}"]


def test_shares_of_one_gpu_and_of_different_ones_are_so_again() -> None:
    together = pod(containers(a="aliyun.com/gpu-mem: 3", b="aliyun.com/gpu-mem: 3"))
    mine, beside, other = (share(memory="3Gi"), share(number="1", memory="3Gi"), share("gpu-1", "1", memory="3Gi"))
    assert problems_of(together, a=(mine,), b=(beside,)) == []
    assert problems_of(together, a=(mine,), b=(other,)) == ["a, b had shares of one GPU, and get them of gpu-0, gpu-1"]
    apart = pod(containers(a="nvidia.com/gpu: 2, nvidia.com/gpumem: 3072"))
    assert problems_of(apart, a=(mine, other)) == []
    assert problems_of(apart, a=(mine, beside)) == ["a had shares of 2 different GPUs, and gets them of 1"]
