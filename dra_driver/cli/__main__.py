"""Console script of `dractl`: says what to install where the extra `cli` is missing."""

import sys


def main() -> None:
    """Run `dractl`, or end with status 3 and a line when what only it needs is not installed."""
    try:
        from dra_driver.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write("error: dractl is not installed with all it needs: pip install 'gpu-dra-driver[cli]'\n")
        raise SystemExit(3) from None
    run()


if __name__ == "__main__":
    main()
