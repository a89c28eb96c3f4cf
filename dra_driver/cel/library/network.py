"""IP addresses and networks in CIDR notation. Source: Kubernetes' IP and CIDR libraries, which read like Go's netip."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from dra_driver.cel.overloads import Failed, Library, accepts, function, method
from dra_driver.cel.types import BOOL, CIDR, INT, IP, STRING, Address, Prefix

_BITS = re.compile(r"0|[1-9][0-9]{0,2}")
_LOCAL_GROUPS = IPv4Network("224.0.0.0/24")
_GROUPS = IPv6Network("ff00::/8")
_LOCAL_HOSTS = IPv6Network("fe80::/10")
_EVERYBODY = IPv4Address("255.255.255.255")


def _known(text: str) -> IPv4Address | IPv6Address:
    try:
        address = ip_address(text)
    except (AddressValueError, ValueError):
        raise Failed(f"IP address {text!r} cannot be read") from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise Failed(f"IP address {text!r} with zone value is not allowed")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise Failed(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def _address(text: str) -> Address:
    return Address(_known(text))


def _prefix(text: str) -> Prefix:
    before, slash, bits = text.rpartition("/")
    if not slash or not _BITS.fullmatch(bits):
        raise Failed(f"{text!r} is not a network: an address, a slash and a number of bits")
    address = _known(before)
    if int(bits) > address.max_prefixlen:
        raise Failed(f"{text!r} is not a network: an address of {address.max_prefixlen} bits has no /{bits}")
    return Prefix(address, int(bits))


def _is_link_local_group(item: Address) -> bool:
    address = item.address
    if isinstance(address, IPv4Address):
        return address in _LOCAL_GROUPS
    return int(address) >> 112 & 0xFF0F == 0xFF02


def _is_link_local(item: Address) -> bool:
    address = item.address
    return address.is_link_local if isinstance(address, IPv4Address) else address in _LOCAL_HOSTS


def _is_loopback(address: Address) -> bool:
    return address.address.is_loopback


def _is_global(item: Address) -> bool:
    """Also addresses of private networks, as Go has it."""
    address = item.address
    group = address.is_multicast if isinstance(address, IPv4Address) else address in _GROUPS
    return not (group or address.is_unspecified or _is_loopback(item) or _is_link_local(item) or address == _EVERYBODY)


def _network(prefix: Prefix, bits: int) -> int:
    """The first `bits` of the address."""
    return int(prefix.address) >> (prefix.address.max_prefixlen - bits)


def _contains(prefix: Prefix, inner: Prefix) -> bool:
    same_family = prefix.address.version == inner.address.version
    return same_family and prefix.bits <= inner.bits and _network(prefix, prefix.bits) == _network(inner, prefix.bits)


def _whole(address: Address) -> Prefix:
    return Prefix(address.address, address.address.max_prefixlen)


def _masked(prefix: Prefix) -> Prefix:
    rest = prefix.address.max_prefixlen - prefix.bits
    return Prefix(type(prefix.address)(_network(prefix, prefix.bits) << rest), prefix.bits)


NETWORK: Library = {
    "ip": [function(IP, _address, STRING), method(IP, lambda prefix: Address(prefix.address), CIDR)],
    "isIP": [function(BOOL, accepts(_known), STRING)],
    "ip.isCanonical": [function(BOOL, lambda text: str(_known(text)) == text, STRING)],
    "family": [method(INT, lambda item: item.address.version, IP)],
    "isUnspecified": [method(BOOL, lambda item: item.address.is_unspecified, IP)],
    "isLoopback": [method(BOOL, _is_loopback, IP)],
    "isLinkLocalMulticast": [method(BOOL, _is_link_local_group, IP)],
    "isLinkLocalUnicast": [method(BOOL, _is_link_local, IP)],
    "isGlobalUnicast": [method(BOOL, _is_global, IP)],
    "cidr": [function(CIDR, _prefix, STRING)],
    "isCIDR": [function(BOOL, accepts(_prefix), STRING)],
    "containsIP": [
        method(BOOL, lambda prefix, text: _contains(prefix, _whole(_address(text))), CIDR, STRING),
        method(BOOL, lambda prefix, item: _contains(prefix, _whole(item)), CIDR, IP),
    ],
    "containsCIDR": [
        method(BOOL, lambda prefix, text: _contains(prefix, _prefix(text)), CIDR, STRING),
        method(BOOL, _contains, CIDR, CIDR),
    ],
    "prefixLength": [method(INT, lambda prefix: prefix.bits, CIDR)],
    "masked": [method(CIDR, _masked, CIDR)],
    "string": [
        function(STRING, lambda item: str(item.address), IP),
        function(STRING, lambda prefix: f"{prefix.address}/{prefix.bits}", CIDR),
    ],
}
