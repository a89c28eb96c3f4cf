"""The fixtures of `support.charts`, where there is a Helm: its wheel holds a library for Linux on x86-64 only."""

from importlib.util import find_spec

collect_ignore_glob: list[str] = []

if find_spec("helm_sdkpy") is not None:
    from support.charts import cluster, helm, real_server, render, server

    __all__ = ["cluster", "helm", "real_server", "render", "server"]
else:
    # What is generated can be compared without.
    collect_ignore_glob += ["test_[!g]*.py"]
