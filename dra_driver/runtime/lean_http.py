"""Keeps the system's certificate authorities out of a service's memory; the services' `main` imports this before
anything imports aiohttp. aiohttp makes two TLS contexts with all of them when it is imported: 2 MB and 40 ms of each
start. `dra_driver.kube` gives each connection a context of its own. This module imports aiohttp while OpenSSL's
variable names an empty file. Services only: it must run before threads start.
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
