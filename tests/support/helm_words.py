"""Helm's command line, as far as plans and pages use it, over Helm's library: `helm` of a folder on the PATH.

Reads KUBECONFIG. Anything that it does not know ends with status 2.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import yaml
from support.helm import Helm, HelmError


def main() -> None:
    parser = argparse.ArgumentParser("helm")
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("upgrade", "uninstall", "test"):
        action = actions.add_parser(name)
        action.add_argument("release")
        action.add_argument("--namespace", required=True)
        if name == "upgrade":
            action.add_argument("chart", type=Path)
            action.add_argument("--install", action="store_true")
            action.add_argument("--create-namespace", action="store_true")
            action.add_argument("-f", dest="values", type=Path, required=True)
    _act(parser.parse_args())


def _act(options: argparse.Namespace) -> None:
    helm = Helm(Path(os.environ["KUBECONFIG"]), namespace=options.namespace, release=options.release)
    match options.action:
        case "upgrade":
            values: dict[str, Any] = yaml.safe_load(options.values.read_text()) or {}
            act = helm.install if options.install and not _installed(helm) else helm.upgrade
            act(values, chart=options.chart.resolve())
        case "uninstall":
            helm.uninstall(timeout_s=180)
        case "test":
            helm.test()


def _installed(helm: Helm) -> bool:
    try:
        helm.values()
    except HelmError:
        return False
    return True
