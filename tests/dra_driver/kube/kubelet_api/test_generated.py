"""The committed messages are what the `.proto` files say, and those say what kubelet documents."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

from dra_driver.kube.kubelet_api import generate
from dra_driver.kube.kubelet_api.generated import (
    claim_v1_pb2,
    dra_v1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pod_resources_v1_pb2,
    registration_pb2,
)

COMMITTED = (
    claim_v1_pb2,
    dra_v1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pod_resources_v1_pb2,
    registration_pb2,
)

_PRINT_DESCRIPTORS = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    print(name, importlib.import_module(name).DESCRIPTOR.serialized_pb.hex())
"""


def test_generated_code_says_the_same_as_the_proto_files(tmp_path: Path) -> None:
    """Compared as descriptors: the text around them differs from one release of protoc to the next."""
    assert generate.generate(tmp_path) == 0
    committed = {module.__name__.rpartition(".")[2]: module.DESCRIPTOR.serialized_pb.hex() for module in COMMITTED}
    # In another process: two modules with the same messages cannot be in one.
    printed = subprocess.run(
        [sys.executable, "-c", _PRINT_DESCRIPTORS, str(tmp_path), *committed],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert dict(line.split() for line in printed.splitlines()) == committed


def test_every_proto_file_has_its_generated_module(tmp_path: Path) -> None:
    folder = Path(generate.__file__).parent
    protos = {path.stem for path in (folder / "protos").glob("*.proto")}
    assert {module.__name__.rpartition(".")[2] for module in COMMITTED} == {f"{name}_pb2" for name in protos}


STRING, BYTES, INT32 = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_INT32
BOOL, INT64 = FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_INT64
MESSAGE, ENUM = FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_ENUM

_DRA = {
    "Claim": {"namespace": (1, STRING), "uid": (2, STRING), "name": (3, STRING)},
    "NodePrepareResourcesRequest": {"claims": (1, MESSAGE)},
    "NodePrepareResourcesResponse": {"claims": (1, MESSAGE)},
    "NodePrepareResourceResponse": {"devices": (1, MESSAGE), "error": (2, STRING)},
    "NodeUnprepareResourcesRequest": {"claims": (1, MESSAGE)},
    "NodeUnprepareResourcesResponse": {"claims": (1, MESSAGE)},
    "NodeUnprepareResourceResponse": {"error": (1, STRING)},
}
_DEVICE = {
    "request_names": (1, STRING),
    "pool_name": (2, STRING),
    "device_name": (3, STRING),
    "cdi_device_ids": (4, STRING),
}
_HEALTH = {
    "NodeWatchResourcesRequest": {},
    "NodeWatchResourcesResponse": {"devices": (1, MESSAGE)},
    "DeviceIdentifier": {"pool_name": (1, STRING), "device_name": (2, STRING)},
    "DeviceHealth": {
        "device": (1, MESSAGE),
        "health": (2, ENUM),
        "last_updated_time": (3, INT64),
        "health_check_timeout_seconds": (4, INT64),
        "message": (5, STRING),
    },
}


@pytest.mark.parametrize(
    ("module", "package", "messages"),
    [
        pytest.param(
            dra_v1_pb2,
            "k8s.io.kubelet.pkg.apis.dra.v1",
            _DRA | {"Device": _DEVICE | {"share_id": (5, STRING)}},
            id="dra-v1",
        ),
        pytest.param(health_v1_pb2, "v1", _HEALTH, id="health-v1"),
        pytest.param(health_v1alpha1_pb2, "v1alpha1", _HEALTH, id="health-v1alpha1"),
        pytest.param(
            pod_resources_v1_pb2,
            "v1",
            {
                "ListPodResourcesRequest": {},
                "ListPodResourcesResponse": {"pod_resources": (1, MESSAGE)},
                "PodResources": {"name": (1, STRING), "namespace": (2, STRING), "containers": (3, MESSAGE)},
                "ContainerResources": {"name": (1, STRING), "dynamic_resources": (5, MESSAGE)},
                "DynamicResource": {"claim_name": (2, STRING), "claim_namespace": (3, STRING)},
            },
            id="pod-resources",
        ),
        pytest.param(
            registration_pb2,
            "pluginregistration",
            {
                "InfoRequest": {},
                "PluginInfo": {
                    "type": (1, STRING),
                    "name": (2, STRING),
                    "endpoint": (3, STRING),
                    "supported_versions": (4, STRING),
                },
                "RegistrationStatus": {"plugin_registered": (1, BOOL), "error": (2, STRING)},
                "RegistrationStatusResponse": {},
            },
            id="registration",
        ),
        pytest.param(
            claim_v1_pb2,
            "k8s.io.api.resource.v1",
            {
                "ResourceClaim": {"metadata": (1, MESSAGE), "status": (3, MESSAGE)},
                "Metadata": {"uid": (5, STRING)},
                "ResourceClaimStatus": {"devices": (4, MESSAGE)},
                "AllocatedDeviceStatus": {
                    "driver": (1, STRING),
                    "pool": (2, STRING),
                    "device": (3, STRING),
                    "conditions": (4, MESSAGE),
                    "data": (5, MESSAGE),
                    "share_id": (7, STRING),
                },
                "Condition": {
                    "type": (1, STRING),
                    "status": (2, STRING),
                    "observed_generation": (3, INT64),
                    "last_transition_time": (4, MESSAGE),
                    "reason": (5, STRING),
                    "message": (6, STRING),
                },
                "Time": {"seconds": (1, INT64), "nanos": (2, INT32)},
                "Json": {"raw": (1, BYTES)},
                "Envelope": {"type_meta": (1, MESSAGE), "raw": (2, BYTES)},
                "TypeMeta": {"api_version": (1, STRING), "kind": (2, STRING)},
                "Refusal": {"message": (3, STRING), "reason": (4, STRING)},
            },
            id="claim",
        ),
    ],
)
def test_messages_have_the_field_numbers_that_kubernetes_documents(
    module: object, package: str, messages: dict[str, dict[str, tuple[int, int]]]
) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    numbers = {
        message.name: {field.name: (field.number, field.type) for field in message.field}
        for message in file.message_type
    }
    assert file.package == package
    assert numbers == messages


@pytest.mark.parametrize("module", [health_v1_pb2, health_v1alpha1_pb2])
def test_health_words_have_kubelets_numbers(module: object) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    enums = [*file.enum_type, *(enum for message in file.message_type for enum in message.enum_type)]
    assert [[(value.name, value.number) for value in enum.value] for enum in enums] == [
        [("UNKNOWN", 0), ("HEALTHY", 1), ("UNHEALTHY", 2)]
    ]


def test_a_missing_share_id_is_told_from_an_empty_one() -> None:
    assert dra_v1_pb2.Device.DESCRIPTOR.fields_by_name["share_id"].has_presence
