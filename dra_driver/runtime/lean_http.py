"""Keeps the system's certificate authorities out of the memory of the webhook's process, whose entry point imports this
before anything imports aiohttp. aiohttp makes two TLS contexts with all of them when it is imported: 2 MB and 40 ms of
the start. A server needs none. This module imports aiohttp while OpenSSL's variable names an empty file. It must be
imported before threads start.
"""

import os
import sys

_VARIABLE = "SSL_CERT_FILE"

if "aiohttp" not in sys.modules:
    authorities = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = os.devnull
    try:
        import aiohttp  # noqa: F401 - makes its contexts
    finally:
        if authorities is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = authorities
