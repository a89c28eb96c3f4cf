"""Regular expressions in expressions. The API server runs them with Go's `regexp`, and we run them with RE2.

Both read the same syntax and take time linear in the text, whatever the pattern. RE2 accepts a few things that Go
refuses; they are refused here, too.
"""

import re
from functools import lru_cache
from typing import Any

import re2

_BYTE_CLASS = re.compile(r"\\(?:Q.*?(?:\\E|$)|(?P<byte>C)|.)", re.DOTALL)
"""`\\C` is one byte in RE2 and unknown to Go. A quoted `\\Q…\\E` is text."""

_MEMORY_BYTES = 64 * 1024**2
"""For one pattern. Go has no limit at this size."""


class Unsupported(Exception):
    """Not a regular expression that an API server accepts."""


@lru_cache(maxsize=512)
def compiled(pattern: str) -> Any:
    """The pattern, with the methods of Python's `re.Pattern`. Raises Unsupported."""
    if any(match["byte"] for match in _BYTE_CLASS.finditer(pattern)):
        raise Unsupported(r"invalid regular expression: `\C` is not supported")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise Unsupported(f"invalid regular expression: {_text(error)}") from None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
