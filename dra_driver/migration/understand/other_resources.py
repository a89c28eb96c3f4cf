"""Resources that look like GPUs of NVIDIA by their names, and are something else: GPUs of others, network cards, and
what a person says is no GPU. They stay with their device plugins, and nothing is said of them. Pure.
"""

import re
from collections.abc import Collection

_OTHER_VENDORS = re.compile(r"(amd\.com|gpu\.intel\.com|habana\.ai|aws\.amazon\.com|google\.com|huawei\.com)/.*")
_NETWORK = re.compile(
    r"nvidia\.com/(?!.*(gpu|mig|mps))(hostdev.*|.*(nic|rdma|sriov|roce|mlnx|infiniband|resibs|bluefield|connectx).*)"
)
"""Network cards. Source: the NVIDIA Network Operator, whose examples have `nvidia.com/hostdev`, `mlnxnics`, `resibs_…`:
the SR-IOV device plugin has this prefix there, and names that somebody chose."""


def is_other(resource: str, named: Collection[str] = ()) -> bool:
    """`named` are those of which a person says so."""
    return resource in named or _OTHER_VENDORS.fullmatch(resource) is not None or is_network_card(resource)


def is_network_card(resource: str) -> bool:
    return _NETWORK.fullmatch(resource) is not None
