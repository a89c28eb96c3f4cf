"""What the claims are for that pods have already, and that pods keep them when their GPUs are migrated besides."""

import json
from collections.abc import Mapping
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.migration import GPU, documents_of, limits, meaning_of, pod, pod_of, read
from support.rows import examples, rows

from dra_driver.api.meta import JsonObject
from dra_driver.checking.codes import Severity
from dra_driver.migration.codes import ALREADY_DRA
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, Purpose, StrategyOption
from dra_driver.migration.understand.purposes import Purposes

CLAIMS = Options(strategy=StrategyOption.CLAIMS)
ENTRY = {"name": "other", "resourceClaimTemplateName": "t"}
DOMAIN = """\
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: d, namespace: team}
spec: {channel: {resourceClaimTemplate: {name: t}}}
"""


def device_class(name: str, *expressions: str) -> JsonObject:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    spec = {"selectors": selectors} if selectors else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def template(*requests: JsonObject, name: str = "t", namespace: str | None = "team") -> JsonObject:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def claim(*requests: JsonObject, name: str = "t") -> JsonObject:
    made = template(*requests, name=name)
    return {**made, "kind": "ResourceClaim", "spec": made["spec"]["spec"]}


def of(class_name: str, *expressions: str) -> JsonObject:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": "r", "exactly": {"deviceClassName": class_name, **({"selectors": selectors} if selectors else {})}}


def purposes(obj: JsonObject, *given: str | JsonObject, **options: Any) -> list[Purpose]:
    held = Purposes.of(documents_of(*given)).held(pod_of(obj), Options(**options))
    return [entry.purpose for entry in held]


def purpose(*given: str | JsonObject, entry: JsonObject = ENTRY, **options: Any) -> Purpose:
    (sole_purpose,) = purposes(pod(limits({GPU: 1}), resourceClaims=[entry]), *given, **options)
    return sole_purpose


# -- what selectors say


@rows(
    "expression, wanted",
    [
        ("device.driver == 'gpu.nvidia.com'", Purpose.GPUS),
        ("'gpu.nvidia.com' == device.driver && device.attributes['gpu.nvidia.com'].type == 'mig'", Purpose.GPUS),
        ("device.driver in ['dra.net', 'gpu.nvidia.com']", Purpose.GPUS),
        ("device.driver == 'dra.net' || device.attributes['gpu.nvidia.com'].type == 'gpu'", Purpose.GPUS),
        ("device.driver == 'dra.net'", Purpose.OTHERS),
        ("device.driver == 'dra.net' && device.attributes['dra.net'].rdma", Purpose.OTHERS),
        ("device.driver == 'dra.net' && true || true", Purpose.UNKNOWN),
        ('"dra.net" == device.driver', Purpose.UNKNOWN),
        ("device.driver in ['dra.net', 'nic.example.com']", Purpose.OTHERS),
        ("device.driver == 'dra.net' || device.driver == 'nic.example.com'", Purpose.UNKNOWN),
        ("device.driver != 'gpu.nvidia.com'", Purpose.GPUS),
        ("device.attributes['dra.net'].rdma", Purpose.OTHERS),
        ("device.attributes['dra.net']['rdma'] == true", Purpose.OTHERS),
        ("device.capacity['nic.example.com'].bandwidth.compareTo(quantity('1')) > 0", Purpose.OTHERS),
        ("has(device.attributes['dra.net'].rdma)", Purpose.UNKNOWN),
        ("'rdma' in device.attributes['dra.net']", Purpose.UNKNOWN),
        ("device.attributes['compute-domain.nvidia.com'].type == 'channel'", Purpose.UNKNOWN),
        ("!has(device.attributes['dra.net'].rdma)", Purpose.UNKNOWN),
        ("!(device.driver == 'dra.net')", Purpose.UNKNOWN),
        ("device.driver != 'dra.net'", Purpose.UNKNOWN),
        ("!('rdma' in device.attributes['dra.net'])", Purpose.UNKNOWN),
        ("device.attributes['dra.net'].?rdma.orValue(true)", Purpose.UNKNOWN),
        ("device.driver.endsWith('.com')", Purpose.UNKNOWN),
        ("device.driver == 'dra.net' || device.attributes['resource.kubernetes.io'].numaNode == 0", Purpose.UNKNOWN),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'", Purpose.UNKNOWN),
        ("device.driver == 'dra.net' ? true : true", Purpose.UNKNOWN),
        ("device.driver ==", Purpose.UNKNOWN),
        ("true", Purpose.UNKNOWN),
    ],
)
def test_a_class_is_of_gpus_if_it_names_their_driver_and_of_others_if_it_requires_another_one(
    expression: str, wanted: Purpose
) -> None:
    assert purpose(template(of("own")), device_class("own", expression)) is wanted
    # In a request it says the same.
    assert purpose(template(of("own", expression)), device_class("own")) is wanted


def test_drivers_of_gpus_are_nvidias_and_the_one_that_is_migrated_to() -> None:
    given = (template(of("own")), device_class("own", "device.driver == 'gpu.example.com'"))
    assert purpose(*given) is Purpose.OTHERS
    assert purpose(*given, driver="gpu.example.com") is Purpose.GPUS
    of_nvidia = (template(of("own")), device_class("own", "device.driver == 'gpu.nvidia.com'"))
    assert purpose(*of_nvidia, driver="gpu.example.com") is Purpose.GPUS


@rows(
    "name, wanted",
    [
        ("gpu.nvidia.com", Purpose.GPUS),
        ("shared.gpu.nvidia.com", Purpose.GPUS),
        ("1g.10gb.mig.nvidia.com", Purpose.GPUS),
        ("ours", Purpose.GPUS),
        ("compute-domain-default-channel.nvidia.com", Purpose.OTHERS),
        ("nic.example.com", Purpose.UNKNOWN),
    ],
)
def test_classes_of_the_drivers_charts_are_known_by_name(name: str, wanted: Purpose) -> None:
    assert purpose(template(of(name)), gpu_class="ours") is wanted


def test_a_class_that_was_given_says_more_than_its_name() -> None:
    given = device_class("gpu.nvidia.com", "device.driver == 'dra.net'")
    assert purpose(template(of("gpu.nvidia.com")), given) is Purpose.OTHERS


# -- what claims say


def test_one_request_for_gpus_makes_it_a_claim_of_gpus() -> None:
    nic = device_class("nic", "device.driver == 'dra.net'")
    alternatives = {"name": "r", "firstAvailable": [of("nic")["exactly"], of("gpu.nvidia.com")["exactly"]]}
    assert purpose(template(of("nic")), nic) is Purpose.OTHERS
    assert purpose(template(of("nic"), of("unheard-of")), nic) is Purpose.UNKNOWN
    assert purpose(template(of("nic"), of("unheard-of"), of("gpu.nvidia.com")), nic) is Purpose.GPUS
    assert purpose(template(alternatives), nic) is Purpose.GPUS
    assert purpose(template(), nic) is Purpose.UNKNOWN
    assert purpose(template({"name": "r"}), nic) is Purpose.UNKNOWN
    # As in v1beta1, where the class stands in the request itself.
    assert purpose(template({"name": "r", "deviceClassName": "gpu.nvidia.com"})) is Purpose.GPUS


def test_names_are_those_of_the_pods_namespace() -> None:
    assert purpose(template(of("gpu.nvidia.com"), namespace="team")) is Purpose.GPUS
    assert purpose(template(of("gpu.nvidia.com"), namespace=None)) is Purpose.GPUS
    assert purpose(template(of("gpu.nvidia.com"), namespace="others")) is Purpose.UNKNOWN
    both = (template(of("gpu.nvidia.com"), namespace="others"), template(of("compute-domain-channel.nvidia.com")))
    assert purpose(*both) is Purpose.OTHERS
    assert purpose(DOMAIN) is Purpose.OTHERS
    assert purpose(DOMAIN.replace("team", "others")) is Purpose.UNKNOWN


def test_claims_that_pods_share_are_looked_up_as_claims() -> None:
    shared = {"name": "other", "resourceClaimName": "t"}
    assert purpose(claim(of("gpu.nvidia.com")), entry=shared) is Purpose.GPUS
    assert purpose(template(of("gpu.nvidia.com")), entry=shared) is Purpose.UNKNOWN
    # A ComputeDomain makes a template, and no claim.
    assert purpose(DOMAIN, entry=shared) is Purpose.UNKNOWN
    assert purpose(DOMAIN, entry={"name": "other"}) is Purpose.UNKNOWN


def test_nim_services_name_claims_in_a_field_of_their_own() -> None:
    def service(entry: JsonObject) -> JsonObject:
        spec = {"resources": {"limits": {GPU: 1}}, "draResources": [entry]}
        metadata = {"name": "n", "namespace": "team"}
        return {"apiVersion": "apps.nvidia.com/v1alpha1", "kind": "NIMService", "metadata": metadata, "spec": spec}

    assert purposes(service({"resourceClaimTemplateName": "t"}), template(of("gpu.nvidia.com"))) == [Purpose.GPUS]
    assert purposes(service({"claimCreationSpec": {"devices": [{"name": "d"}]}})) == [Purpose.UNKNOWN]


def test_argo_templates_that_have_the_field_for_claims_get_theirs_there() -> None:
    workflow_template = {"name": "a", "container": limits({GPU: 1}), "resourceClaims": [ENTRY]}
    workflow = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "w", "namespace": "team"},
        "spec": {"templates": [workflow_template]},
    }
    result = migrated(CLAIMS, DOMAIN, workflow)
    (after,) = parsed(result)["Workflow"]["spec"]["templates"]
    assert [entry["name"] for entry in after["resourceClaims"]] == ["other", "gpu"]
    assert "podSpecPatch" not in str([after, *(finding.message for finding in result.findings)])


# -- what becomes of pods


def migrated(options: Options, *objects: str | JsonObject) -> Migration:
    return migrate([ManifestText("f.yaml", text_of(*objects))], options)


def text_of(*objects: str | JsonObject) -> str:
    return "---\n".join(obj if isinstance(obj, str) else yaml.safe_dump(obj, sort_keys=False) for obj in objects)


def parsed(result: Migration) -> Mapping[str, Any]:
    """By kind; the last one of each."""
    return {obj["kind"]: obj for obj in yaml.safe_load_all(result.files[0].after)}


def test_the_way_is_chosen_as_for_others() -> None:
    obj = pod(limits({GPU: 1}), resourceClaims=[ENTRY])
    stays = migrated(Options(), DOMAIN, obj)
    assert ([workload.choice.target for workload in stays.workloads], stays.changed) == (
        [MigrationTarget.EXTENDED],
        False,
    )
    near = pod(limits({GPU: 1}), resourceClaims=[ENTRY], nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"})
    changed = migrated(Options(), DOMAIN, near)
    assert [workload.choice.target for workload in changed.workloads] == [MigrationTarget.CLAIMS]
    assert all(
        "claims for other devices stay" in workload.choice.reason for workload in (*stays.workloads, *changed.workloads)
    )


@rows("given", [template(of("gpu.nvidia.com")), template(of("unheard-of")), ""])
@rows("strategy", list(StrategyOption))
def test_where_it_may_have_gpus_already_it_is_an_error_and_nothing_is_changed(
    given: str | JsonObject, strategy: StrategyOption
) -> None:
    obj = pod(limits({GPU: 1}), resourceClaims=[ENTRY, {"name": "c", "resourceClaimTemplateName": "t2"}])
    nic = template(of("compute-domain-channel.nvidia.com"), name="t2")
    result = migrated(Options(strategy=strategy), *([given] if given else []), nic, obj)
    findings = [finding for finding in result.findings if finding.code is ALREADY_DRA]
    assert ([workload.choice.target for workload in result.workloads], result.changed) == (
        [MigrationTarget.LEAVE],
        False,
    )
    assert [(finding.severity, finding.place.path) for finding in findings] == [
        (Severity.ERROR, "spec.resourceClaims[0]")
    ]
    assert findings[0].advice


def test_pods_that_ask_for_no_gpus_are_left_whatever_their_claims_are_for() -> None:
    reading = read(pod(limits(None), resourceClaims=[ENTRY]), meaning_of(DOMAIN))
    assert ([finding.severity for finding in reading.findings], reading.leave) == ([Severity.INFO], None)


def test_who_watches_all_gpus_and_has_a_claim_of_others_gets_admin_access_besides() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    watcher = pod({"name": "w", "image": "i", "env": env}, kind="DaemonSet", resourceClaims=[ENTRY])
    spec = parsed(migrated(Options(), DOMAIN, watcher))["DaemonSet"]["spec"]["template"]["spec"]
    assert [entry["name"] for entry in spec["resourceClaims"]] == ["other", "gpu"]
    assert not migrated(Options(), template(of("gpu.nvidia.com")), watcher).changed
    assert not migrated(Options(), watcher).changed


NAMES = st.sampled_from(["gpu", "gpu-2", "channel", "nic"])


@st.composite
def pods(draw: st.DrawFn) -> JsonObject:
    """With claims of others in any order; containers use some of them, and some ask for GPUs."""
    held = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    entries = [
        {"name": name, draw(st.sampled_from(["resourceClaimTemplateName", "resourceClaimName"])): "t"} for name in held
    ]
    containers = []
    for number in range(draw(st.integers(1, 3))):
        resources: JsonObject = {}
        if used := draw(st.lists(st.sampled_from(held), unique=True)):
            resources["claims"] = [{"name": name} for name in used]
        if (gpus := draw(st.integers(0, 3))) or number == 0:
            resources["limits"] = {"memory": "1Gi", GPU: gpus or 1}
        containers.append({"name": f"c{number}", "image": "i", **({"resources": resources} if resources else {})})
    init = [containers.pop()] if len(containers) > 1 and draw(st.booleans()) else []
    return pod(*containers, resourceClaims=entries, **({"initContainers": init} if init else {}))


@settings(max_examples=examples(60), deadline=None)
@given(pods())
def test_what_pods_have_stays_and_gpus_come_behind_it_under_a_name_of_their_own(obj: JsonObject) -> None:
    """Also: a second run changes nothing."""
    others = (template(of("compute-domain-channel.nvidia.com")), claim(of("compute-domain-channel.nvidia.com")))
    before = text_of(*others, obj)
    result = migrate([ManifestText("f.yaml", before)], CLAIMS)
    spec = parsed(result)["Pod"]["spec"]
    was = obj["spec"]
    *entries, new = spec["resourceClaims"]
    assert entries == was["resourceClaims"]
    assert new["name"] not in {entry["name"] for entry in entries}
    olds, news = ([*pod_spec.get("initContainers", ()), *pod_spec["containers"]] for pod_spec in (was, spec))
    for old, now in zip(olds, news, strict=True):
        held = (old.get("resources") or {}).get("claims", [])
        claims = (now.get("resources") or {}).get("claims", [])
        asked = int((old.get("resources") or {}).get("limits", {}).get(GPU, 0))
        assert claims[: len(held)] == held
        assert {entry["name"] for entry in claims[len(held) :]} == ({new["name"]} if asked else set())
    assert GPU not in json.dumps([container.get("resources") for container in news])
    after = result.files[0].after
    assert migrate([ManifestText("f.yaml", after)], CLAIMS).files[0].after == after
