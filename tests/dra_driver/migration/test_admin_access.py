"""What the claim of a DaemonSet gets that looks at all GPUs (M046), beside MIG devices that are made on demand.

Kubernetes checks counters for admin access, too, though its allocations count for none (`allocateDevice` of
dynamic-resource-allocation, in all releases to 1.37). A GPU of which a part is in use has no counters left for the
whole of it, and a request for all devices gets all of them or nothing.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver import bundled
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.placement import Placement, place_on
from dra_driver.allocation.snapshot import Snapshot, Usage
from dra_driver.api.core import Pod
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.checking.knowledge import SampleNode, site_of_model
from dra_driver.errors import InvalidInput
from dra_driver.migration.codes import ADMIN_ACCESS
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Options
from dra_driver.names import GPU_DRIVER

EXPORTER = (Path(__file__).parent / "manifests" / "workloads" / "daemonset-gpu-exporter.yaml").read_text()
DYNAMIC: dict[str, Any] = {"mig": [{"mode": "Dynamic"}]}
CLASSES = {
    device_class.metadata.name: device_class
    for path in bundled.DEVICE_CLASSES_FOLDER.glob("*.yaml")
    for device_class in [DeviceClass.of(yaml.safe_load(path.read_text()))]
}
POD = Pod.of({"metadata": {"name": "p", "namespace": "n", "uid": "p"}, "spec": {"containers": [{"name": "c"}]}})


def node_with(rules: dict[str, Any]) -> SampleNode:
    """Two GPUs."""
    policy = PublishingPolicy.of({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **rules})
    return site_of_model(policy, "dgx-h100", 2, Behavior.of(36), GPU_DRIVER)


def claim(**request: Any) -> ResourceClaim:
    spec = {"devices": {"requests": [{"name": "r", "exactly": request}]}}
    return ResourceClaim.of({"metadata": {"name": "c", "namespace": "n"}, "spec": spec})


def watching() -> ResourceClaim:
    """As the migration writes it."""
    result = migrate([ManifestText("f.yaml", EXPORTER)], Options())
    (template,) = (new.obj for new in result.objects if new.obj["kind"] == "ResourceClaimTemplate")
    return ResourceClaim.of({"metadata": {"name": "c", "namespace": "n"}, "spec": template["spec"]["spec"]})


def placed(site: SampleNode, *claims: ResourceClaim) -> list[list[str] | None]:
    """One after the other: what each gets; None: nothing."""
    usage, placed_devices = Usage(), list[list[str] | None]()
    for asking in claims:
        got: Placement | str | None = None
        with suppress(InvalidInput):  # more devices than a claim can have
            got = place_on(POD, [asking], site.node, Snapshot(site.catalog, CLASSES, usage))
        if isinstance(got, Placement):
            usage = usage.plus(*got.allocations)
            placed_devices.append([each.device for each in got.allocations[0].devices.results])
        else:
            placed_devices.append(None)
    return placed_devices


WHOLE = claim(deviceClassName="gpu.nvidia.com")
PART = claim(deviceClassName="mig.nvidia.com")


@pytest.mark.parametrize("rules", [{}, DYNAMIC])
def test_it_looks_at_gpus_that_others_have(rules: dict[str, Any]) -> None:
    """Where MIG devices can be made on demand, a GPU that somebody has is one whose counters are used up."""
    _, seen = placed(node_with(rules), WHOLE, watching())
    assert (len(seen) if seen is not None else 0) == (0 if rules else 2)


def test_it_gets_nothing_while_a_part_of_a_gpu_is_in_use() -> None:
    assert placed(node_with(DYNAMIC), PART, watching())[1] is None


def test_what_it_got_before_it_keeps_and_others_get_all_that_they_want_beside_it() -> None:
    site = node_with(DYNAMIC)
    alone = placed(site, WHOLE, PART, PART)
    seen, *others = placed(site, watching(), WHOLE, PART, PART)
    assert len(seen or ()) == 2
    assert others == alone and None not in others


@pytest.mark.parametrize(
    "request_of_it",
    [
        {"deviceClassName": "mig.nvidia.com", "allocationMode": "All"},
        {"deviceClassName": "gpu.nvidia.com", "count": 2},
        {"deviceClassName": "isolated.gpu.nvidia.com", "allocationMode": "All"},
    ],
    ids=["MIG devices", "a number of GPUs", "all that there is"],
)
def test_no_other_request_with_admin_access_sees_all_gpus_either(request_of_it: dict[str, Any]) -> None:
    assert placed(node_with(DYNAMIC), PART, claim(**request_of_it, adminAccess=True))[1] is None


def slices(*, counters: bool) -> str:
    consumed = [{"counterSet": "g", "counters": {"memory": {"value": "80Gi"}}}]
    device = {
        "name": "gpu-0",
        "attributes": {"type": {"string": "gpu"}},
        **({"consumesCounters": consumed} if counters else {}),
    }
    spec = {"driver": GPU_DRIVER, "nodeName": "n", "pool": {"name": "n"}, "devices": [device]}
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    return yaml.safe_dump(obj)


@pytest.mark.parametrize(
    ("options", "around", "stays"),
    [
        (Options(), "", False),
        (Options(), slices(counters=False), False),
        (Options(dynamic_mig=True), "", True),
        (Options(), slices(counters=True), True),
    ],
)
def test_where_mig_devices_are_known_to_be_made_on_demand_it_stays(options: Options, around: str, stays: bool) -> None:
    result = migrate(
        [ManifestText("f.yaml", EXPORTER)], options, [ManifestText("around.yaml", around)] if around else []
    )
    (finding,) = (finding for finding in result.findings if finding.code is ADMIN_ACCESS)
    assert (result.changed, finding.message.endswith("so it stays as it is")) == (not stays, stays)


def test_a_device_plugin_whose_image_has_another_name_gets_no_claim() -> None:
    """Known by kubelet's folder; with a claim it would wait for the driver that takes its place."""
    sockets = {"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/device-plugins/"}}
    obj = yaml.safe_load(EXPORTER)
    spec = obj["spec"]["template"]["spec"]
    spec["volumes"] = [*spec.get("volumes", []), sockets]
    result = migrate([ManifestText("f.yaml", yaml.safe_dump(obj))], Options())
    assert (result.changed, result.workloads) == (False, ())
