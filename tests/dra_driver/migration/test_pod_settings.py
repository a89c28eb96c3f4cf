"""Settings of pods that are about GPUs: variables, mounts, the runtime class, the scheduler, tolerations."""

from typing import Any

import pytest
from support.migration import GPU, codes, documents_of, limits, meaning_of, pod, read, removed, there
from support.rows import rows

from dra_driver.api.meta import JsonObject
from dra_driver.migration.demands.pod_settings import scheduler_of
from dra_driver.migration.model import PodReading, PodSpecAt, Put

A = "device.attributes['gpu.nvidia.com']"
PLAIN = meaning_of("version: v1\nflags: {migStrategy: mixed}\n")
UUID = "GPU-0e9d5d7f-88a5-4e7c-a3fb-1de0a24de37f"
TOLERATION = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


def env(**variables: str) -> list[JsonObject]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def reading_of(container: JsonObject | None = None, options: JsonObject | None = None, **spec: Any) -> PodReading:
    obj = pod(container or limits({GPU: 1}), **spec)
    result = read(obj, PLAIN, **(options or {}))
    assert there(obj, result)
    assert len(result.demands) == 1
    return result


def using(options: JsonObject | None = None, **variables: str) -> PodReading:
    return reading_of(limits({GPU: 1}, env=env(**variables)), options)


# -- variables


def test_visible_devices_are_for_the_claim_to_say() -> None:
    result = using(A="1", NVIDIA_VISIBLE_DEVICES="all")
    assert removed(result.edits) == ["spec.containers[0].env[1]"]
    assert "M031" in codes(result.claim_findings)
    assert codes(result.findings) == []
    assert result.needs_claims is None


def test_a_pod_that_stays_is_told_that_it_no_longer_sees_all_gpus() -> None:
    assert codes(using(NVIDIA_VISIBLE_DEVICES="all").extended_findings) == ["M032"]
    assert codes(using(NVIDIA_VISIBLE_DEVICES="void").extended_findings) == []


@pytest.mark.parametrize("value", ["none", "void", ""])
def test_opting_out_is_left(value: str) -> None:
    result = using(NVIDIA_VISIBLE_DEVICES=value)
    assert (removed(result.edits), codes(result.findings)) == ([], [])


def test_visible_devices_from_elsewhere_are_left_and_said() -> None:
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
    result = reading_of(limits({GPU: 1}, env=[variable]))
    assert (removed(result.edits), codes(result.findings)) == ([], ["M032"])


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_one_particular_gpu_becomes_a_selector(name: str) -> None:
    result = using(**{name: UUID})
    assert (result.leave, result.needs_claims is None) == (None, False)
    assert result.demands[0].want.selectors == (f"has({A}.uuid) && {A}.uuid in ['{UUID}']",)
    assert "M017" in codes(result.claim_findings)


@pytest.mark.parametrize("value", ["0", "0,1", "-1", ""])
def test_indexes_count_the_containers_own_gpus(value: str) -> None:
    result = using(CUDA_VISIBLE_DEVICES=value)
    assert (codes(result.findings), result.leave, removed(result.edits)) == ([], None, [])


@pytest.mark.parametrize("name", ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS"])
def test_rights_beyond_a_device_are_said(name: str) -> None:
    assert codes(using(**{name: "all"}).findings) == ["M025"]
    assert codes(read(pod(limits(None, env=env(**{name: "0"})))).findings) == ["M025"]


# -- conditions of images


# -- MPS by hand

MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
       "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G"}  # fmt: skip


def _by_hand(options: JsonObject | None = None, amounts: JsonObject | None = None) -> PodReading:
    mounts = [{"name": "cache", "mountPath": "/c"}, {"name": "mps", "mountPath": "/tmp/nvidia-mps"}]
    volumes = [{"name": "cache", "emptyDir": {}}, {"name": "mps", "hostPath": {"path": "/tmp/nvidia-mps/"}}]
    container = limits(amounts or {GPU: 1}, env=env(**MPS), volumeMounts=mounts)
    return reading_of(container, options, volumes=volumes, hostIPC=True)


def test_a_daemon_of_the_host_is_left_and_said() -> None:
    result = _by_hand()
    assert (removed(result.edits), codes(result.findings)) == ([], ["M033"])


def test_the_beginning_of_a_uuid_names_a_gpu_too() -> None:
    """CUDA takes as much of it as tells the GPU from the others of its node."""
    whole = "GPU-11111111-2222-3333-4444-555555555555"
    (demand,) = using(CUDA_VISIBLE_DEVICES=f"GPU-8932f937,{whole}").demands
    uuid = "device.attributes['gpu.nvidia.com'].uuid"
    assert demand.want.selectors == (f"has({uuid}) && ({uuid} in ['{whole}'] || {uuid}.startsWith('GPU-8932f937'))",)


def test_limits_of_mps_without_a_daemon_of_the_host_are_kept_as_they_are() -> None:
    result = using(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert (result.needs_claims, removed(result.edits)) == (None, [])
    assert "M032" in codes(result.claim_findings)


def test_the_hosts_ipc_is_only_about_mps_where_there_is_mps() -> None:
    result = reading_of(None, hostIPC=True, hostPID=True)
    assert (removed(result.edits), codes(result.findings)) == ([], [])


# -- the host


@rows(
    "path, reported",
    [
        ("/dev/nvidia0", True),
        ("/dev", True),
        ("/usr/local/nvidia/lib64", True),
        ("/run/nvidia/driver", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", True),
        ("/dev/shm", False),
        ("/data", False),
        ("/var/lib/kubelet/pod-resources", False),
    ],
)
def test_devices_and_libraries_of_the_host_are_said(path: str, reported: bool) -> None:
    volumes = [{"name": "v", "hostPath": {"path": path}}]
    assert ("M006" in codes(reading_of(volumes=volumes).findings)) == reported
    assert ("M006" in codes(read(pod(limits(None), volumes=volumes)).findings)) == reported


def test_privileged_containers_with_gpus_are_said() -> None:
    assert codes(reading_of(limits({GPU: 1}, securityContext={"privileged": True})).findings) == ["M006"]
    assert codes(read(pod(limits(None, securityContext={"privileged": True}))).findings) == []


# -- the pod


def test_the_runtime_class_is_kept_or_taken_out_as_one_says() -> None:
    staying = reading_of(runtimeClassName="nvidia")
    assert (removed(staying.edits), "M032" in codes(staying.claim_findings)) == ([], True)
    gone = reading_of(None, {"remove_runtime_class": True}, runtimeClassName="nvidia")
    assert (removed(gone.edits), "M031" in codes(gone.claim_findings)) == (["spec.runtimeClassName"], True)
    assert removed(reading_of(None, {"remove_runtime_class": True}, runtimeClassName="kata").edits) == []


def test_a_node_by_name_becomes_a_node_by_label() -> None:
    result = reading_of(nodeName="n1")
    assert removed(result.edits) == ["spec.nodeName"]
    assert Put(("spec", "nodeSelector", "kubernetes.io/hostname"), "n1") in result.edits
    assert "M024" in codes(result.claim_findings)
    assert result.needs_claims is not None


@rows(
    "tolerations, added",
    [
        (None, True),
        ([{"key": "other", "operator": "Exists"}], True),
        ([{"key": GPU, "operator": "Equal", "value": "true", "effect": "NoSchedule"}], False),
        ([{"operator": "Exists"}], False),
        ([{"key": GPU, "operator": "Exists"}], False),
        ([{"key": GPU, "operator": "Exists", "effect": "NoExecute"}], True),
        ([{"operator": "Exists", "effect": "NoExecute"}], True),
    ],
)
def test_the_toleration_that_admission_added_is_written_out(tolerations: Any, added: bool) -> None:
    result = reading_of(**({"tolerations": tolerations} if tolerations is not None else {}))
    puts = [edit for edit in result.edits if isinstance(edit, Put)]
    expected = [Put(("spec", "tolerations", len(tolerations or ())), TOLERATION)] if added else []
    assert puts == expected
    assert ("M015" in codes(result.claim_findings)) == added


@pytest.mark.parametrize(("amounts", "added"), [({f"{GPU}.shared": 1}, True), ({"nvidia.com/mig-1g.5gb": 1}, False)])
def test_only_the_taint_of_gpus_has_the_name_of_a_resource(amounts: JsonObject, added: bool) -> None:
    assert ("M015" in codes(reading_of(limits(amounts)).claim_findings)) == added


# -- schedulers that look for extended resources in what nodes have


@pytest.mark.parametrize(
    ("scheduler", "severities", "prefers"),
    [("volcano", ["error"], True), ("bin-packing", ["warning"], False), ("kai-scheduler", [], False),
     ("default-scheduler", [], False)],
)  # fmt: skip
def test_what_stays_needs_a_scheduler_that_knows_device_classes(
    scheduler: str, severities: list[str], prefers: bool
) -> None:
    result = reading_of(schedulerName=scheduler)
    assert [finding.severity for finding in result.extended_findings] == severities
    assert (result.prefers_claims is not None) == prefers
    assert result.needs_claims is None


def test_a_scheduler_that_finds_no_resource_names_all_of_the_pod_in_their_order() -> None:
    resources = {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-3g.20gb": 1, GPU: 1}
    result = read(pod(limits(resources), schedulerName="volcano"))
    listed = " or ".join(sorted(resources))
    assert any(f"Volcano finds no {listed} on nodes" in finding.message for finding in result.extended_findings)


@pytest.mark.parametrize(
    ("api_version", "kind", "more"),
    [
        ("batch.volcano.sh/v1alpha1", "Job", {}),
        ("batch.volcano.sh/v1alpha1", "Job", {"schedulerName": "volcano"}),
        ("batch.volcano.sh/v1alpha1", "CronJob", {"jobTemplate": {"spec": {"schedulerName": "volcano"}}}),
        ("sparkoperator.k8s.io/v1beta2", "SparkApplication", {"batchScheduler": "volcano"}),
    ],
)
def test_objects_name_the_scheduler_of_their_pods(api_version: str, kind: str, more: JsonObject) -> None:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "n"}, "spec": more}
    (document,) = documents_of(obj)
    assert scheduler_of(PodSpecAt(document, ("spec", "pod"), {}))[0] == "volcano"
    own = PodSpecAt(document, ("spec", "pod"), {"schedulerName": "default-scheduler"})
    assert scheduler_of(own)[0] is None
