"""As `lean`, for the services with metrics: prometheus_client has HTTP servers and a client of its own, for which it
imports Python's.
"""

from dra_driver.runtime.lean import import_without

import_without(
    "prometheus_client",
    "http.server",
    "socketserver",
    "urllib.error",
    "urllib.request",
    "wsgiref.simple_server",
)
