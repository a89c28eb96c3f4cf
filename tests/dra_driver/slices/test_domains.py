"""What a node offers to ComputeDomains."""

from dataclasses import replace
from typing import Any

from support.inventories import gpu, inventory_spec

from dra_driver.api.gpupolicy import GpuPolicy, combined
from dra_driver.api.inventory import DOMAIN_SUBJECT, FabricFacts, ImexFacts, NodeInventorySpec, Problem
from dra_driver.api.policy import PublishingPolicy, rules_of
from dra_driver.api.resource import Device
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish.decisions import decided
from dra_driver.slices.domains import FABRIC_TAINT, domain_devices
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures

RACK = "11111111-2222-4333-8444-555555555555"


def tray(*, channels: int = 2048, **fabric: Any) -> NodeInventorySpec:
    facts = FabricFacts.model_validate({"state": "Completed", "clusterUUID": RACK, "cliqueID": 3, **fabric})
    spec = inventory_spec("tray-1", [gpu(0, fabric=facts), gpu(1, fabric=facts)])
    return spec.model_copy(update={"imex": ImexFacts(channels=channels, program=True)})


def values(device: Device) -> dict[str, object]:
    attributes = device.to_wire().get("attributes", {})
    return {name: next(iter(value.values())) for name, value in attributes.items()}


def offered(
    spec: NodeInventorySpec,
    policy: PublishingPolicy = PublishingPolicy.EVERYTHING,
    labels: dict[str, str] | None = None,
    features: ServerFeatures = ALL_FEATURES,
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    described = domain_devices(spec, policy, labels or {}, COMPUTE_DOMAIN_DRIVER, features)
    return described.devices, tuple(map(str, described.notes))


def names(spec: NodeInventorySpec, policy: PublishingPolicy, labels: dict[str, str] | None = None) -> list[str]:
    return [device.name for device in offered(spec, policy, labels)[0]]


def test_a_tray_offers_a_daemon_and_one_channel() -> None:
    devices, notes = offered(tray())
    clique = {"clique": f"{RACK}.3", "clusterUUID": RACK, "cliqueID": 3}
    assert [(device.name, values(device)) for device in devices] == [
        ("daemon-0", {"type": "daemon", "id": 0, **clique}),
        ("channel-0", {"type": "channel", "id": 0, **clique}),
    ]
    assert notes == ()


def test_a_node_whose_gpus_are_all_left_to_a_device_plugin_still_takes_part() -> None:
    policies = [GpuPolicy.read({"metadata": {"name": "x"}, "spec": {"gpus": {"products": ["*"]}, "publish": False}})]
    node = decided(combined(policies), policies, tray(), {})
    assert node.publish and [group.publish for group in node.gpus] == [False]
    assert names(tray(), rules_of(node)) == ["daemon-0", "channel-0"]


def test_policy_gives_channels_by_node_and_the_driver_bounds_them() -> None:
    rules = [
        {"channels": 2},
        {"nodes": {"labelSelector": {"matchLabels": {"rack": "b"}}}, "channels": 4},
        {"nodes": {"names": ["login-*"]}, "channels": 0},
    ]
    policy = PublishingPolicy.of({"computeDomains": rules})
    assert policy.several_channels
    assert policy.asks_for_labels
    assert len(names(tray(), policy)) == 1 + 2
    assert len(names(tray(), policy, {"rack": "b"})) == 1 + 4
    assert len(names(tray(channels=3), policy, {"rack": "b"})) == 1 + 3
    login = tray().model_copy(update={"node_name": "login-1"})
    assert names(login, policy) == ["daemon-0"]


def test_a_node_in_a_domain_says_so_on_each_device() -> None:
    labels = {"resource.nvidia.com/computeDomain": "uid-1"}
    devices, _ = offered(tray(), labels=labels)
    assert [values(device)["domain"] for device in devices] == ["uid-1", "uid-1"]


def test_an_incomplete_fabric_keeps_pods_away_and_says_why() -> None:
    broken = tray(state="InProgress")
    devices, notes = offered(broken)
    for device in devices:
        assert device.taints is not None
        (taint,) = device.taints
        assert (taint.key, taint.value, taint.effect) == (
            f"{COMPUTE_DOMAIN_DRIVER}/{FABRIC_TAINT}",
            "FabricNotRegistered",
            "NoSchedule",
        )
        assert "clique" not in values(device)
    assert "InProgress" in notes[0]
    without_taints, notes = offered(broken, features=ServerFeatures())
    assert without_taints == ()
    assert "not offered" in notes[0]


def test_a_node_whose_nvlink_stays_inside_has_channels_and_no_clique() -> None:
    devices, _ = offered(tray(clusterUUID=None, cliqueID=None))
    assert [values(device) for device in devices] == [{"type": "daemon", "id": 0}, {"type": "channel", "id": 0}]


def test_without_imex_channels_or_programs_there_is_nothing_to_offer() -> None:
    plain = inventory_spec("node", [gpu(0)])
    assert offered(plain) == ((), ())
    for imex in (ImexFacts(channels=0, program=True), ImexFacts(channels=2048, program=False)):
        assert offered(plain.model_copy(update={"imex": imex})) == ((), ())


def test_channels_wait_for_the_daemon_where_everyone_takes_part_and_the_daemon_itself_does_not() -> None:
    prepares = tray().model_copy(update={"prepares_for_binding": True})
    without = replace(ALL_FEATURES, binding=False)
    for spec, features, binds in (
        (prepares, ALL_FEATURES, True),
        (prepares, without, False),
        (tray(), ALL_FEATURES, False),
    ):
        daemon, channel = offered(spec, features=features)[0]
        assert (channel.binding_conditions == ["BindingReady"]) is binds
        assert (channel.binding_failure_conditions == ["BindingFailed"]) is binds
        assert daemon.binding_conditions is None


def test_a_node_that_gave_up_a_channel_is_avoided_but_its_daemon_may_start() -> None:
    problem = Problem(subject=DOMAIN_SUBJECT, reason="ChannelNotPrepared", message="not ready")
    daemon, channel = offered(tray().model_copy(update={"problems": [problem]}))[0]
    assert [(taint.key, taint.value, taint.effect) for taint in channel.taints or ()] == [
        ("compute-domain.nvidia.com/daemon", "NotReady", "NoSchedule")
    ]
    assert daemon.taints is None
    other = Problem(subject="driver", reason="x", message="y")
    assert offered(tray().model_copy(update={"problems": [other]}))[0][1].taints is None
    without = offered(tray().model_copy(update={"problems": [problem]}), features=ServerFeatures())
    assert without[0][1].taints is None
