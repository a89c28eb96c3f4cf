"""Runs `dractl` in a test as a user would."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dra_driver.api.meta import Resource
from dra_driver.cli.main import app
from dra_driver.errors import Rejected
from dra_driver.kube.client import Kube


async def dractl(*arguments: str) -> tuple[int, str]:
    """Exit status and standard output; the command has an event loop of its own, so it runs in a thread."""
    outcome = await asyncio.to_thread(run, *arguments)
    return outcome.exit_code, outcome.stdout


def forbid(monkeypatch: pytest.MonkeyPatch, *kinds: Resource, but_in: str = "") -> None:
    """From now on the user may list none of these kinds, but for those of namespace `but_in`."""
    listed = Kube.list

    async def forbidding(self: Kube, resource: Resource, **how: Any) -> Any:
        if resource in kinds and how.get("namespace") != but_in:
            raise Rejected(f"{resource.plural} is forbidden", status=403)
        return await listed(self, resource, **how)

    monkeypatch.setattr(Kube, "list", forbidding)


def decided(folder: Path, text: str) -> tuple[str, str]:
    """The flag of `dractl migrate` for a file with these decisions. Its name is none of a manifest."""
    file = folder / "decisions.txt"
    file.write_text(text)
    return "--decisions", str(file)


def troubles(text: str) -> set[str]:
    """`check/trouble` of what `dractl doctor -o json` does not call ok."""
    findings = json.loads(text)["findings"]
    return {f"{entry['check']}/{entry['trouble']}" for entry in findings if entry["verdict"] not in ("ok", "skipped")}


def run(*arguments: str, typed: str | None = None) -> Result:
    """Of a command that has no need of an event loop. Errors that users never meet are raised."""
    outcome = CliRunner().invoke(app, list(arguments), input=typed)
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome
