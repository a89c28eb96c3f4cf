"""URLs: absolute ones, and absolute paths. Source: Kubernetes' URL library, which reads like Go's net/url."""

import re
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from dra_driver.cel.overloads import Failed, Library, function, method
from dra_driver.cel.types import BOOL, STRING, URL, list_of, map_of
from dra_driver.cel.values import Url

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_HOST = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"%]|[^\x00-\x7f])*")
_HOST_ESCAPE = re.compile(r"%(?!25)[0-7]")
_PORT = re.compile(r"(?::[0-9]*)?")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9\-_.~!$&'()*+,;=:@/\[\]%]*")
_KEPT_IN_PATH = "$&+,/:;=@-_.~"


def is_url(text: str) -> bool:
    try:
        read(text)
    except Failed:
        return False
    return True


def read(text: str) -> Url:
    """An absolute URL or path. Raises Failed."""
    _parts(text, "")
    before, _, fragment = text.partition("#")
    _need_escapes(fragment)
    return _parts(before, fragment)


def _failed(text: str, why: str) -> Failed:
    return Failed(f"{text!r} is no URL: {why}")


def _need_escapes(text: str) -> None:
    if _NO_ESCAPE.search(text):
        raise _failed(text, "a percent sign without two hexadecimal digits")


def _parts(text: str, fragment: str) -> Url:
    if not text or _CONTROL.search(text) or text.startswith(":"):
        raise _failed(text, "it is empty, begins with a colon or has control characters")
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    rest, _, query = text[match.end() if match else 0 :].partition("?")
    if not rest.startswith("/") and scheme:
        return Url(scheme, "", "", "", query, fragment)
    if not rest.startswith("/") and text != "*":
        raise _failed(text, "neither a scheme nor an absolute path")
    user = host = ""
    if scheme and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        user, _, host = authority.rpartition("@")
        host, rest = _host(text, host), slash + path
    if not _USER.fullmatch(user):
        raise _failed(text, "the user's name has characters that need an escape")
    _need_escapes(user)
    _need_escapes(rest)
    return Url(scheme, user, host, _escaped_path(rest), query, fragment)


def _host(text: str, host: str) -> str:
    """The host with its port, its escapes replaced."""
    _, bracket, port = host.rpartition("]") if host.startswith("[") else ("", "", host)
    if host.startswith("[") and not bracket:
        raise _failed(text, "an opening bracket is not closed")
    if not bracket:
        port = host[len(host.partition(":")[0]) :]
    if not _PORT.fullmatch(port):
        raise _failed(text, f"`{port}` is no port")
    if not _HOST.fullmatch(host) or _HOST_ESCAPE.search(host) or "%" in port:
        raise _failed(text, "the host has characters that it cannot have")
    _need_escapes(host)
    return unquote_to_bytes(host).decode(errors="replace")


def _escaped_path(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else quote(unquote_to_bytes(path), safe=_KEPT_IN_PATH)


def _split_host(url: Url) -> tuple[str, str]:
    """The host without brackets, and the port."""
    name, colon, port = url.host.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]*", port):
        name, port = url.host, ""
    return (name[1:-1] if name.startswith("[") and name.endswith("]") else name), port


def _query(url: Url) -> dict[object, object]:
    """The values of each key in their order. Pieces that cannot be read are left out."""
    found: dict[object, tuple[str, ...]] = {}
    for piece in url.query.split("&"):
        if not piece or ";" in piece or _NO_ESCAPE.search(piece):
            continue
        key, _, value = piece.partition("=")
        found[unquote_plus(key)] = (*found.get(unquote_plus(key), ()), unquote_plus(value))
    return dict(found)


URLS: Library = {
    "url": [function(URL, read, STRING)],
    "isURL": [function(BOOL, is_url, STRING)],
    "getScheme": [method(STRING, lambda url: url.scheme, URL)],
    "getHost": [method(STRING, lambda url: url.host, URL)],
    "getHostname": [method(STRING, lambda url: _split_host(url)[0], URL)],
    "getPort": [method(STRING, lambda url: _split_host(url)[1], URL)],
    "getEscapedPath": [method(STRING, lambda url: url.path, URL)],
    "getQuery": [method(map_of(STRING, list_of(STRING)), _query, URL)],
}
