"""aiohttp, without the certificates of the system.

aiohttp reads them twice when it is imported, which takes every program 30 ms. No request of this project uses those:
each has the TLS context of its endpoint, and `dra_driver.kube.endpoint` reads the system's certificates where a
kubeconfig names none.
"""

import ssl

_load_default_certs = ssl.SSLContext.load_default_certs
ssl.SSLContext.load_default_certs = lambda self, purpose=ssl.Purpose.SERVER_AUTH: None  # type: ignore[method-assign]
try:
    import aiohttp
finally:
    ssl.SSLContext.load_default_certs = _load_default_certs  # type: ignore[method-assign]

__all__ = ["aiohttp"]
