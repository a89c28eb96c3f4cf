"""IP addresses and networks in CIDR notation. Source: Kubernetes' IP and CIDR libraries, which read like Go's netip."""

import re
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from typing import Any

from dra_driver.cel.overloads import Failed, Library, accepts, function, method
from dra_driver.cel.types import BOOL, CIDR, INT, IP, STRING

_BITS = re.compile(r"0|[1-9][0-9]{0,2}")
_LOCAL_GROUPS = IPv4Network("224.0.0.0/24")
_GROUPS = IPv6Network("ff00::/8")
_LOCAL_HOSTS = IPv6Network("fe80::/10")
_EVERYBODY = IPv4Address("255.255.255.255")


type _Address = IPv4Address | IPv6Address
type _Prefix = IPv4Interface | IPv6Interface
"""Its later bits need not be 0."""


def _address(text: str) -> _Address:
    try:
        address = ip_address(text)
    except ValueError:
        raise Failed(f"IP address {text!r} cannot be read") from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise Failed(f"IP address {text!r} with zone value is not allowed")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise Failed(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def _prefix(text: str) -> _Prefix:
    before, slash, bits = text.rpartition("/")
    if not slash or not _BITS.fullmatch(bits):
        raise Failed(f"{text!r} is not a network: an address, a slash and a number of bits")
    address = _address(before)
    if int(bits) > address.max_prefixlen:
        raise Failed(f"{text!r} is not a network: an address of {address.max_prefixlen} bits has no /{bits}")
    return ip_interface(text)


def _is_link_local_group(address: _Address) -> bool:
    if isinstance(address, IPv4Address):
        return address in _LOCAL_GROUPS
    return int(address) >> 112 & 0xFF0F == 0xFF02


def _is_link_local(address: _Address) -> bool:
    return address.is_link_local if isinstance(address, IPv4Address) else address in _LOCAL_HOSTS


def _is_global(address: _Address) -> bool:
    """Also addresses of private networks, as Go has it."""
    group = address.is_multicast if isinstance(address, IPv4Address) else address in _GROUPS
    special = group or address.is_unspecified or address.is_loopback or _is_link_local(address)
    return not (special or address == _EVERYBODY)


def _contains(prefix: Any, inner: Any) -> Any:
    return prefix.version == inner.version and inner.network.subnet_of(prefix.network)


NETWORK: Library = {
    "ip": [function(IP, _address, STRING), method(IP, lambda prefix: prefix.ip, CIDR)],
    "isIP": [function(BOOL, accepts(_address), STRING)],
    "ip.isCanonical": [function(BOOL, lambda text: str(_address(text)) == text, STRING)],
    "family": [method(INT, lambda address: address.version, IP)],
    "isUnspecified": [method(BOOL, lambda address: address.is_unspecified, IP)],
    "isLoopback": [method(BOOL, lambda address: address.is_loopback, IP)],
    "isLinkLocalMulticast": [method(BOOL, _is_link_local_group, IP)],
    "isLinkLocalUnicast": [method(BOOL, _is_link_local, IP)],
    "isGlobalUnicast": [method(BOOL, _is_global, IP)],
    "cidr": [function(CIDR, _prefix, STRING)],
    "isCIDR": [function(BOOL, accepts(_prefix), STRING)],
    "containsIP": [
        method(BOOL, lambda prefix, text: _address(text) in prefix.network, CIDR, STRING),
        method(BOOL, lambda prefix, address: address in prefix.network, CIDR, IP),
    ],
    "containsCIDR": [
        method(BOOL, lambda prefix, text: _contains(prefix, _prefix(text)), CIDR, STRING),
        method(BOOL, _contains, CIDR, CIDR),
    ],
    "prefixLength": [method(INT, lambda prefix: prefix.network.prefixlen, CIDR)],
    "masked": [method(CIDR, lambda prefix: ip_interface(prefix.network), CIDR)],
    "string": [function(STRING, str, IP), function(STRING, str, CIDR)],
}
