"""Keeps out of a service's memory what only a terminal needs; imported before anything else by the services' `main`.

structlog imports rich when it is installed, for tracebacks in colour: 8 MB in every plugin of a cluster, because the
image has `dractl` and so has rich. Here structlog is imported while rich seems to be missing; afterwards it is there
again for whoever wants it.
"""

import sys

if "rich" not in sys.modules and "structlog" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment] # importing it then fails
    import structlog  # noqa: F401 - which takes note of that

    del sys.modules["rich"]
