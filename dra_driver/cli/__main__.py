"""Console script of `dractl`: what needs no command at once, and what to install where the extra `cli` is missing."""

import sys

from dra_driver.cli.overview import quick_answer


def main() -> None:
    """Run `dractl`, or end with status 3 and a line when what only it needs is not installed."""
    answer = quick_answer(sys.argv)
    if answer is not None and _is_printed(answer):
        return
    try:
        from dra_driver.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write("error: dractl is not installed with all it needs: pip install 'gpu-dra-driver[cli]'\n")
        raise SystemExit(3) from None
    run()


def _is_printed(text: str) -> bool:
    """False if it cannot be written: Typer, which tries again, says why."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
