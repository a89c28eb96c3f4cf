"""What `dractl new` writes is accepted, means what was asked, and can be satisfied."""

import itertools
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.allocation import published
from support.configs import decode_config
from support.rows import examples, rows
from support.shipped import classes

from dra_driver.allocation.search import Allocated, allocate
from dra_driver.allocation.snapshot import Catalog, Snapshot
from dra_driver.api.config import GpuConfig, MigDeviceConfig
from dra_driver.api.documents import read_documents
from dra_driver.api.meta import DEVICE_CLASSES, NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, JsonObject
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.authoring.intent import Intent, MpsWish, ObjectForm, Same, WorkloadKind
from dra_driver.authoring.objects import objects_of
from dra_driver.authoring.refusals import refusals
from dra_driver.authoring.writing import plain, written
from dra_driver.cel.device import compile_selector
from dra_driver.checking.check import check
from dra_driver.checking.codes import Severity
from dra_driver.checking.knowledge import Knowledge, SampleNode, sites_of_models
from dra_driver.cli.new import known_gpus
from dra_driver.kube.client import Kube

KNOWN = known_gpus()
SITES = sites_of_models(())
KINDS = {kind.kind: kind for kind in (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, PODS)}
CLASSES = {
    **classes(),
    "dranet": DeviceClass.of(
        {"metadata": {"name": "dranet"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.net'"}}]}}
    ),
}
MODELS = ("h100", "a100", "h200", "b200", "l40s", "t4", "a30", "rtx-pro-6000", "x900")
PROFILES = ("1g.10gb", "3g.40gb", "1c.3g.40gb", "1g.6gb", "7g.80gb", "9x")

INTENTS = st.builds(
    Intent,
    form=st.sampled_from(ObjectForm),
    gpu=st.none() | st.sampled_from(MODELS),
    prefer=st.just(()) | st.lists(st.sampled_from(MODELS), min_size=1, max_size=3).map(tuple),
    count=st.none() | st.integers(0, 17),
    same=st.none() | st.sampled_from(Same),
    memory=st.none() | st.sampled_from(["1Gi", "40Gi", "100Gi", "900Gi"]),
    mig=st.none() | st.sampled_from(PROFILES),
    share=st.none() | st.sampled_from([{}, {"cores": "50", "memory": "8Gi"}, {"shares": "1"}, {"memory": "200Gi"}]),
    nic=st.booleans(),
    mps=st.none() | st.sampled_from([MpsWish(), MpsWish(50, "8Gi"), MpsWish(memory="1Gi")]),
    interval=st.none() | st.sampled_from(["Default", "Long"]),
    isolated=st.booleans(),
    admin=st.booleans(),
    vm=st.booleans(),
    tolerate=st.sampled_from([(), ("gpu.nvidia.com/xid",), ("a=b", "c"), ("-",)]),
    workload=st.none() | st.sampled_from(WorkloadKind),
    replicas=st.integers(1, 3),
    image=st.none() | st.just("x:1"),
    command=st.sampled_from([(), ("python", "train.py")]),
)


def sparse() -> st.SearchStrategy[Intent]:
    """Intents with few options, most of which go together."""

    def chosen(names: set[str]) -> st.SearchStrategy[Intent]:
        return INTENTS.map(lambda full: Intent(full.form, **{name: getattr(full, name) for name in names}))

    names = [name for name in Intent.__dataclass_fields__ if name not in ("form", "name", "nic_class", "replicas")]
    return st.sets(st.sampled_from(names), min_size=1, max_size=4).flatmap(chosen)


def written_objects(intent: Intent) -> list[JsonObject]:
    text = written(objects_of(intent))
    documents = list(yaml.safe_load_all(text))
    assert documents == [plain(obj) for obj in objects_of(intent)]
    return documents


def claim_spec(obj: JsonObject) -> JsonObject:
    spec: JsonObject = obj["spec"]["spec"] if obj["kind"] == "ResourceClaimTemplate" else obj["spec"]
    return spec


@given(INTENTS | sparse())
@settings(max_examples=examples(150))
def test_whatever_is_not_refused_has_selectors_that_compile_and_configs_that_decode(intent: Intent) -> None:
    if refusals(intent, KNOWN):
        return
    obj = written_objects(intent)[0]
    devices = obj["spec"] if obj["kind"] == "DeviceClass" else claim_spec(obj)["devices"]
    for expression in _expressions(obj):
        compile_selector(expression)
    for config in devices.get("config") or ():
        parameters = config["opaque"]["parameters"]
        kind = {"GpuConfig": GpuConfig, "MigDeviceConfig": MigDeviceConfig}[parameters["kind"]]
        decoded = decode_config(parameters, kind, field="parameters")
        assert isinstance(decoded, GpuConfig | MigDeviceConfig)
        assert decoded.sharing is not None
        assert (decoded.sharing.strategy == "MPS") == (intent.mps is not None)


def _expressions(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["expression"]] if "expression" in value else []
        return own + [expression for below in value.values() for expression in _expressions(below)]
    return [expression for item in value for expression in _expressions(item)] if isinstance(value, list) else []


@given(sparse())
@settings(max_examples=examples(25))
def test_check_finds_nothing_wrong_with_whatever_is_not_refused(intent: Intent) -> None:
    if refusals(intent, KNOWN):
        return
    findings = check(read_documents(written(objects_of(intent)), "-"), Knowledge(sites=SITES, classes=CLASSES))
    # That no known GPU fits is for the user to judge; it may be of a model that is newer.
    wrong = {finding.code for finding in findings if finding.severity is not Severity.INFO} - {"never-fits"}
    assert not wrong, findings


@given(intents=st.lists(sparse(), min_size=6, max_size=6))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_api_server_accepts_whatever_is_not_refused(kube: Kube, intents: list[Intent]) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await kube.merge_patch(NAMESPACES, "default", label)
    for intent in intents:
        if refusals(intent, KNOWN):
            continue
        for obj in written_objects(intent):
            if (resource := KINDS.get(obj["kind"])) is None:
                continue
            namespace = "default" if resource.namespaced else None
            created = await kube.create(resource, obj, namespace=namespace)
            assert _is_part(obj["spec"], created["spec"])
            await kube.delete(resource, obj["metadata"]["name"], namespace=namespace)


def _is_part(wanted: Any, got: Any) -> bool:
    """Whether the server dropped nothing: no field was misspelled or in the wrong place."""
    if isinstance(wanted, dict):
        return all(name in got and _is_part(value, got[name]) for name, value in wanted.items())
    if isinstance(wanted, list):
        return len(wanted) == len(got) and all(itertools.starmap(_is_part, zip(wanted, got, strict=True)))
    return bool(wanted == got)


# -- what can be satisfied


def with_nics(site: SampleNode) -> Snapshot:
    """The node with an RDMA device of DRANET below each PCIe root of a GPU, and one interface that has none."""
    gpus = [candidate for pool in site.catalog.pools(site.node) for candidate in pool.candidates]
    roots = sorted(
        {
            root.string
            for candidate in gpus
            if (root := candidate.device.attributes.get("resource.kubernetes.io/pcieRoot"))
        }
    )
    nics = [
        {
            "name": f"nic-{number}",
            "attributes": {"dra.net/rdma": {"bool": True}, "resource.kubernetes.io/pcieRoot": {"string": root}},
        }
        for number, root in enumerate(roots)
    ]
    bridge = {"name": "cni0", "attributes": {"dra.net/ifName": {"string": "cni0"}}}
    network = published(bridge, *nics, node=site.node.name, driver="dra.net", pool="nics")
    slices = [slice_ for of_pool in site.catalog._known.values() for slice_ in of_pool]
    return Snapshot(Catalog([*slices, network], site.catalog.behavior), CLASSES)


SNAPSHOTS: dict[int, Snapshot] = {}


def fitting(intent: Intent) -> str | None:
    """The first simulated node, in whatever way its GPUs are published, on which the claim fits."""
    obj = plain(objects_of(intent)[0])
    claim = ResourceClaim.of({"metadata": {"name": "c", "namespace": "default", "uid": "u"}, "spec": claim_spec(obj)})
    for index, site in enumerate(SITES):
        if index not in SNAPSHOTS:
            SNAPSHOTS[index] = with_nics(site)
        if isinstance(allocate([claim], site.node, SNAPSHOTS[index]), Allocated):
            return site.title
    return None


@rows(
    "intent, node",
    [
        (Intent(count=1), "a10"),
        (Intent(gpu="h100", count=4, same=Same.NVLINK), "dgx-h100"),
        (Intent(gpu="h100", count=4, same=Same.NVLINK, nic=True), "dgx-h100"),
        (Intent(gpu="h100", nic=True), "dgx-h100"),
        (Intent(memory="100Gi"), "dgx-b200"),
        (Intent(mig="1g.10gb"), "a100-pcie-40"),
        (Intent(mig="1g.10gb", count=7, same=Same.GPU), "a100-pcie-80"),
        (Intent(mig="1c.3g.40gb"), None),
        (Intent(share={"cores": "50", "memory": "8Gi"}), "a10"),
        (Intent(share={"cores": "50", "memory": "8Gi"}, gpu="l40s", isolated=True), "l40s"),
        (Intent(share={"cores": "50", "memory": "8Gi"}, mig="1g.10gb"), "a100-pcie-40"),
        (Intent(prefer=("x900", "h200", "h100")), "dgx-h100"),
        (Intent(gpu="a100", memory="70Gi"), "a100-pcie-80"),
        (Intent(gpu="x900"), None),
        (Intent(gpu="h100", admin=True), "dgx-h100"),
        (Intent(gpu="h100", vm=True), "dgx-h100"),
        (Intent(gpu="a100", isolated=True), "a100-pcie-40"),
        (Intent(gpu="h100", mps=MpsWish(50, "8Gi")), "dgx-h100"),
        (Intent(gpu="h100", interval="Long", count=2, same=Same.NUMA), "dgx-h100"),
        (Intent(gpu="h100", tolerate=("gpu.nvidia.com/xid",)), "dgx-h100"),
    ],
)
def test_the_first_node_that_can_satisfy_it_is_the_one_that_was_meant(intent: Intent, node: str | None) -> None:
    assert refusals(intent, KNOWN) == ()
    assert fitting(intent) == node


@given(sparse())
@settings(max_examples=examples(40))
def test_any_accepted_intent_of_known_models_fits_somewhere_or_asks_for_more_than_a_node_has(intent: Intent) -> None:
    models = {*([intent.gpu] if intent.gpu else []), *intent.prefer}
    if intent.form is ObjectForm.CLASS or "x900" in models or refusals(intent, KNOWN):
        return
    if fitting(intent) is None:
        # Parts of GPU instances are published where a policy asks for them, which none of these do.
        large = intent.devices > 4 or (intent.mig is not None and "c." in intent.mig)
        large = large or intent.memory == "900Gi" or intent.share == {"memory": "200Gi"}
        combined = intent.same is not None or intent.nic or intent.isolated or intent.share is not None
        assert large or (combined and (intent.mig is not None or intent.share is not None or intent.memory is not None))
