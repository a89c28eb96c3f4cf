"""Objects in Kubernetes' protobuf form: four magic bytes, then an envelope with the kind and the object. This form
preserves the bytes of opaque parts from a read to a write; in JSON, the API server removes whitespace and escapes some
characters. Source: k8s.io/apimachinery, runtime/serializer/protobuf. `dra_driver.kube.client` imports this at the first
such message; the controller uses none.
"""

from google.protobuf.message import DecodeError

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.kube.kubelet_api.generated.claim_v1_pb2 import Envelope, Refusal, TypeMeta

_MAGIC = b"k8s\x00"


def opened(content: bytes) -> bytes:
    """The object's message. Raises ValueError."""
    if not content.startswith(_MAGIC):
        raise ValueError(f"not a protobuf object: {content[:80]!r}")
    try:
        return Envelope.FromString(content[len(_MAGIC) :]).raw
    except DecodeError as error:
        raise ValueError(f"invalid protobuf object: {error}") from error


def enveloped(resource: Resource, message: bytes) -> bytes:
    """An object's message as the body of a request."""
    type_meta = TypeMeta(api_version=resource.api_version, kind=resource.kind)
    return _MAGIC + Envelope(type_meta=type_meta, raw=message).SerializeToString()


def refusal(content: bytes) -> JsonObject:
    """The used fields of a Status, in JSON form. Raises ValueError."""
    try:
        status = Refusal.FromString(opened(content))
    except DecodeError as error:
        raise ValueError(f"invalid protobuf Status: {error}") from error
    return {"message": status.message, "reason": status.reason}
