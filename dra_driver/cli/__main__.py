"""Console script of `dractl`: what needs no command at once, and what to install where the extra `cli` is missing."""

import io
import os
import sys

from dra_driver.cli.overview import quick_answer


def main() -> None:
    """The console script: ends the process as soon as `dractl` has its exit status."""
    _prepare_streams()
    try:
        run_dractl()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            sys.stdout.flush()
            sys.stderr.flush()
            # Python would free all that was read of a large cluster, object by object, which takes up to a second.
            os._exit(end.code or 0)
        raise


def run_dractl() -> None:
    """Run `dractl`, or end with status 3 and a line when what only it needs is not installed."""
    answer = quick_answer(sys.argv)
    if answer is not None and _is_printed(answer):
        return
    try:
        from dra_driver.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(
            "error: dractl is not installed with all it needs: run pip install '.[cli]' in the driver's source code\n"
        )
        raise SystemExit(3) from None
    run()


def _prepare_streams() -> None:
    """Streams to which all characters can be written. The caller may have closed them; Python then has None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    out = sys.stdout
    if not isinstance(out, io.TextIOWrapper):
        return
    if out.isatty() and out.encoding.lower() not in ("utf-8", "utf8"):
        out.reconfigure(errors="replace")
    else:
        # As kubectl: files are the same in every locale. Names of files that are not UTF-8 stay what they are.
        out.reconfigure(encoding="utf-8", errors="surrogateescape")


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
