"""Keeps rich out of a service's memory; the services' `main` imports this before anything else, and so does `dractl`
before it runs a command. structlog imports rich, if it is installed, for colored tracebacks: 8 MB in every plugin,
because the image contains `dractl` and therefore rich. This module imports structlog while rich appears to be missing,
and then makes rich available again.
"""

import sys

if "rich" not in sys.modules and "structlog" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment] # importing it then fails
    import structlog  # noqa: F401 - detects that rich is missing

    del sys.modules["rich"]
