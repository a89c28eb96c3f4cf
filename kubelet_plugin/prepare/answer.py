"""What kubelet is told about a prepared claim.

The service answers in these values; `kubelet_plugin.rpc` turns them into protobuf messages of either API version.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim, as `Device` of NodePrepareResourceResponse has it.

    `request_names` are top-level request names, never `request/alternative`: kubelet gives the CDI devices only to
    containers that reference one of them. `cdi_ids` are `vendor/class=name`, unique to the claim.
    `share_id` exists in v1 only and names one of several allocations of a device that allows many.
    """

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None
