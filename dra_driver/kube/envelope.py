"""Objects in Kubernetes' protobuf form: four bytes that say so, then an envelope with the kind and the object.

In this form what is opaque in an object keeps its bytes from a read to a write, which in JSON it does not: there the
API server takes out white space and escapes some characters. Source: k8s.io/apimachinery, runtime/serializer/protobuf.
`dra_driver.kube.client` imports this when it is asked for such a message: the controller never is.
"""

from google.protobuf.message import DecodeError

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.kube.kubelet_api.generated.claim_v1_pb2 import Envelope, Refusal, TypeMeta

_MAGIC = b"k8s\x00"


def opened(content: bytes) -> bytes:
    """The object's message. Raises ValueError."""
    if not content.startswith(_MAGIC):
        raise ValueError(f"no object in protobuf: {content[:80]!r}")
    try:
        return Envelope.FromString(content[len(_MAGIC) :]).raw
    except DecodeError as error:
        raise ValueError(f"a broken object in protobuf: {error}") from error


def enveloped(resource: Resource, message: bytes) -> bytes:
    """An object's message as a body of a request."""
    type_meta = TypeMeta(api_version=resource.api_version, kind=resource.kind)
    return _MAGIC + Envelope(type_meta=type_meta, raw=message).SerializeToString()


def refusal(content: bytes) -> JsonObject:
    """What matters of a Status, as it is in JSON. Raises ValueError."""
    try:
        status = Refusal.FromString(opened(content))
    except DecodeError as error:
        raise ValueError(f"a broken refusal in protobuf: {error}") from error
    return {"message": status.message, "reason": status.reason}
