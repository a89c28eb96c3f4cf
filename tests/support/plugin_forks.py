"""Starts node plugins quickly: a process that has imported the plugin and forks itself for each.

Run as a program by `support.plugin_process`, with names of modules to import first; reads one JSON order a line and
answers with one JSON line: a process id to `start`, and to `ended` the exit status or null. What it forks is the real
`main`, with kill points around it when the order names a number.
"""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORTED_LATER = (
    "dra_driver.kube.endpoint",
    "dra_driver.kube.envelope",
    "dra_driver.publish.metrics",
    "dra_driver.publish.policy_file",
    "grpc._utilities",
    "importlib.metadata._adapters",
    "kubelet_plugin.simulation.nvfm",
    "kubelet_plugin.simulation.nvml",
    "kubelet_plugin.simulation.recorded.nvml",
    "kubernetes.config",
    "support.refusals",
)
"""What a plugin imports only when it needs it."""


def start(order: dict[str, Any], main: Callable[[], None]) -> int:
    """Fork a plugin; answers its process id. Never returns in the child."""
    pid = os.fork()
    if pid:
        return pid
    try:
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, descriptor in ((0, null), (1, output), (2, output)):
            os.dup2(descriptor, target)
        sys.argv = ["gpu-dra-kubelet-plugin", *order["arguments"]]
        if order["refusals"]:
            from support.refusals import Refusals

            Refusals({Path(folder): Path(switch) for folder, switch in order["refusals"].items()}).arm()
        if order["kill_log"] is not None:
            from support.kill_points import KillPoints

            folders = [Path(folder) for folder in order["folders"]]
            KillPoints(folders, Path(order["kill_log"]), order["kill_after"]).arm()
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def descendants(model: type[Any]) -> Iterator[type[Any]]:
    for child in model.__subclasses__():
        yield child
        yield from descendants(child)


def serve() -> None:
    # Everything that a plugin imports and builds on its way, once for all of them.
    from pydantic import BaseModel

    from dra_driver.api.config import DEVICE_CONFIGS, adapter
    from kubelet_plugin.main import main

    for name in (*_IMPORTED_LATER, *sys.argv[1:]):
        import_module(name)
    for model in descendants(BaseModel):
        if model.__module__.startswith(("dra_driver.", "kubelet_plugin.")):
            model.model_rebuild()
    for kind in DEVICE_CONFIGS:
        adapter(kind.kind)
    # What is here stays: no child walks it to find garbage, nor copies the pages that it would write on meanwhile.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            answer: int | None = start(order, main)
        else:
            ended, status = os.waitpid(order["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
