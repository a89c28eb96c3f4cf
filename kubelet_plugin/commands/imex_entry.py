"""The command `gpu-dra-imex-daemon`: a probe with `--live` or `--ready`, else `kubelet_plugin.commands.imex_daemon`.

Probes come every few seconds on each node of a domain, so they do not pay for what the supervisor is made of.
"""

import os
import sys
from pathlib import Path

from kubelet_plugin.imex import probe
from kubelet_plugin.imex.probe import FOLDER, ProbeFolder

_PROBES = {"--live": probe.live, "--ready": probe.ready}


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[-1] in _PROBES:
        sys.exit(_probe(arguments))
    from kubelet_plugin.commands import imex_daemon

    imex_daemon.main()


def _probe(arguments: list[str]) -> int:
    """The folder is the only setting that a probe needs."""
    given = [word.removeprefix("--folder=") for word in arguments if word.startswith("--folder=")]
    folder = given[-1] if given else os.environ.get("GPU_DRA_FOLDER", FOLDER)
    problem = _PROBES[arguments[-1]](ProbeFolder(Path(folder)))
    if problem is not None:
        print(problem, file=sys.stderr)  # noqa: T201 - kubelet shows it in the event of a failed probe
    return 0 if problem is None else 1


if __name__ == "__main__":
    main()
