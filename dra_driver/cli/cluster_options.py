"""Which cluster a command asks: the options, as all commands have them.

Apart from `dra_driver.cli.session`, whose HTTP client takes longer to import than files take to explain.
"""

from pathlib import Path
from typing import Annotated

import typer

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="Which cluster to ask; default: $KUBECONFIG, then ~/.kube/config.", show_default=False
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", help="Context of the kubeconfig; default: its current one.", show_default=False),
]
