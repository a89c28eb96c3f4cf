"""Runs the command lines of a page where that is cheap: Helm's library, dractl in this process, a few words of kubectl.

A line that is not understood is a failure, not a line that is left out: what cannot be run has to say so on the page.
"""

import asyncio
import json
import re
import shlex
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart_values import merged
from support.pages import ROOT
from typer.testing import CliRunner

from controller.settings import read_settings as controller_settings
from dra_driver.api.meta import CRDS, JsonObject, Resource
from dra_driver.cli.main import app
from dra_driver.errors import AlreadyExists, NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import plain_errors
from kubelet_plugin.settings import read_settings as plugin_settings
from release.chart import CHART, chart_package, metadata

PLACEHOLDERS = {"NODE": "gpu-node-1", "REGISTRY": "registry.example", "NAMESPACE": "team-a"}
"""What people put in the place of capital letters."""

LASTING = ("cluster", "demo", "simulate", "tour")
"""Commands of dractl that start a cluster of processes, or need one: other tests run them. Here their options are seen
to exist."""

RUNNABLE = ("dractl", "kubectl-dra", "helm", "make", "pip", "gpu-dra-controller", "gpu-dra-kubelet-plugin")
"""Programs whose lines are run or parsed; of kubectl, the words of `_KUBECTL`."""

_KUBECTL = (
    "get", "describe", "label", "annotate", "apply", "create", "delete", "taint", "cordon", "uncordon", "drain",
    "rollout", "patch", "dra",
)  # fmt: skip

_SHORT = {"no": "nodes", "ns": "namespaces", "po": "pods", "ds": "daemonsets", "deploy": "deployments", "crd": "crds"}


def is_runnable(line: str) -> bool:
    words = shlex.split(line, comments=True)
    return bool(words) and (words[0] in RUNNABLE or (words[0] == "kubectl" and words[1] in _KUBECTL))


@dataclass
class Shell:
    """`folder` is where files of the page lie; relative paths that are not there are those of the repository."""

    folder: Path
    kubeconfig: Path
    helm: "HelmLine | None" = None

    def run(self, line: str) -> str:
        """What the last program of the line says. Fails when one of them does."""
        line = re.sub(r"\b([A-Z]{4,})\b", lambda match: PLACEHOLDERS.get(match[1], match[1]), line)
        words = _words(line)
        target = None
        if ">" in words:
            words, target = words[: words.index(">")], words[words.index(">") + 1]
        text = ""
        while words:
            end = words.index("|") if "|" in words else len(words)
            text = self._program(words[:end], text)
            words = words[end + 1 :]
        if target is not None:
            (self.folder / target).write_text(text)
        return text

    def _program(self, words: list[str], stdin: str) -> str:
        program, rest = words[0], words[1:]
        if program == "kubectl" and rest[:1] == ["dra"]:
            program, rest = "kubectl-dra", rest[1:]
        if program in ("dractl", "kubectl-dra"):
            given = [self._path(word) for word in rest]
            with chdir(self.folder):  # where the files lie that it makes
                return run_dractl(given, stdin, KUBECONFIG=str(self.kubeconfig))
        if program == "kubectl":
            return asyncio.run(self._kubectl(rest))
        if program == "helm":
            assert self.helm is not None, "this page has no cluster"
            return self.helm.run(rest, self.folder)
        if program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert {word for word in rest if "=" not in word} <= set(targets), rest
            return ""
        if program == "pip":
            (wanted,) = re.findall(r"\[([a-z,]+)\]", " ".join(rest))
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert set(wanted.split(",")) <= project["optional-dependencies"].keys(), rest
            return ""
        if program == "gpu-dra-controller":
            controller_settings(rest, {})
            return ""
        if program == "gpu-dra-kubelet-plugin":
            plugin_settings(rest, {})
            return ""
        raise AssertionError(f"{program}: not known here; the block says `no-run: WHY` if no test can run it")

    def _path(self, word: str) -> str:
        own, shipped = self.folder / word, ROOT / word
        if word.endswith("/") and not shipped.exists():
            return str(own)
        if "/" in word or "." in word:
            for path in (own, shipped):
                if path.exists():
                    return str(path)
        return word

    # -- kubectl

    async def _kubectl(self, words: list[str]) -> str:
        options, plain = _options(words)
        async with Kube(endpoint_from(self.kubeconfig)) as kube:
            return await _Kubectl(kube, options, self._path).run(plain)


def run_dractl(words: list[str], stdin: str = "", **environment: str) -> str:
    """Output and error as a person sees them. Exit status 0 and 1 are answers; everything else fails."""
    if words[0] in LASTING:
        known = CliRunner().invoke(app, [words[0], "--help"]).output
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        assert all(re.search(rf"(^|\s){option}\b", known) for option in options), words
        return ""
    outcome = CliRunner().invoke(app, words, input=stdin, env=environment)
    if outcome.exception is None or isinstance(outcome.exception, SystemExit):
        assert outcome.exit_code in (0, 1), outcome.output
        return outcome.stdout
    with pytest.raises(SystemExit), plain_errors():
        raise outcome.exception
    return f"error: {outcome.exception}\n"


class HelmLine:
    """Helm's command line, as far as pages use it, by its library."""

    _FLAGS = ("--create-namespace", "--reuse-values", "--reset-then-reuse-values", "--install", "--take-ownership")

    def __init__(self, kubeconfig: Path) -> None:
        from support.helm import Cluster, Helm

        self._cluster = Cluster(kubeconfig)
        self._helm = Helm(kubeconfig)
        self._values: list[dict[str, Any]] = []
        """Of each revision."""

    def run(self, words: list[str], folder: Path) -> str:
        verb, plain, given = words[0], *self._parsed(words[1:], folder)
        if verb == "pull":
            self._chart(plain[0], words, folder)
            return ""
        assert plain[0] == "gpu-dra-driver", words
        chart = self._chart(plain[1], words, folder) if verb in ("install", "upgrade", "template") else CHART
        if verb == "template":
            return self._template(given)
        if verb == "install":
            self._values.append(given)
            return self._helm.install(given, chart=chart).notes
        if not self._values:
            # A page on what comes later is for people who have a release.
            self._values.append({})
            self._helm.install({})
        if verb == "upgrade":
            keeps = "--reuse-values" in words or "--reset-then-reuse-values" in words
            self._values.append(merged(self._values[-1], given) if keeps else given)
            adopts = "--take-ownership" in words
            return self._helm.upgrade(self._values[-1], chart=chart, take_ownership=adopts).notes
        if verb == "rollback":
            return self._rollback()
        if verb == "uninstall":
            return self._uninstall()
        assert verb in ("test", "status"), words
        return ""

    @staticmethod
    def _chart(place: str, words: list[str], folder: Path) -> Path:
        """That of the source, or as a release or `make chart` packages it."""
        if place == "charts/gpu-dra-driver":
            return CHART
        version = metadata()["version"]
        if place != f"build/gpu-dra-driver-{version}.tgz":
            assert place == "oci://registry.example/charts/gpu-dra-driver", words
            assert words[words.index("--version") + 1] == version, words
        package = folder / "packaged.tgz"
        package.write_bytes(chart_package({"image.repository": "registry.example/gpu-dra-driver"}))
        return package

    def _parsed(self, words: list[str], folder: Path) -> tuple[list[str], dict[str, Any]]:
        plain: list[str] = []
        values: dict[str, Any] = {}
        rest = list(words)
        while rest:
            word, _, value = rest.pop(0).partition("=")
            if word in ("--set", "--values", "-f", "--namespace", "-n", "--timeout", "--version") and not value:
                value = rest.pop(0)
            if word == "--set":
                values = merged(values, _set(value))
            elif word in ("--values", "-f"):
                values = merged(values, yaml.safe_load((folder / value).read_text()))
            elif word in ("--namespace", "-n"):
                assert value == "gpu-dra", words
            elif not word.startswith("-"):
                plain.append(word)
            else:
                assert word in (*self._FLAGS, "--timeout", "--version"), word
        return plain, values

    def _template(self, values: Mapping[str, Any]) -> str:
        from support.helm import Helm, simulated_server

        with simulated_server() as server:
            return yaml.safe_dump_all(Helm(server.kubeconfig).install(values).objects)

    def _rollback(self) -> str:
        # The package's own rollback lacks a setting that the library asks for; this renders the same objects.
        self._values.append(self._values[-2])
        return self._helm.upgrade(self._values[-1]).notes

    def _uninstall(self) -> str:
        from support.helm import jobs_run

        with jobs_run(self._cluster, lambda arguments: None):
            self._helm.uninstall()
        self._values.clear()
        return ""


def _set(setting: str) -> dict[str, Any]:
    path, _, value = setting.partition("=")
    # Helm's own rule (strvals): `yes` is a text.
    typed = value in ("true", "false", "null") or re.fullmatch(r"0|-?[1-9]\d*", value)
    nested: Any = yaml.safe_load(value) if typed else value
    for key in reversed(re.split(r"(?<!\\)\.", path)):
        nested = {key.replace("\\.", "."): nested}
    values: dict[str, Any] = nested
    return values


def _words(line: str) -> list[str]:
    """With `|` and `>` as words of their own, unless they are quoted."""
    marked = re.sub(r" (\||>) ", lambda match: f" '\\0{match[1]}' ", line)
    return [word.removeprefix("\\0") for word in shlex.split(marked, comments=True)]


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """kubectl's options that have a value, by name without dashes; a flag's value is empty."""
    valued = ("-n", "--namespace", "-o", "--output", "-f", "--filename", "-l", "--selector", "-p", "--patch", "--type")
    long = {"-A": "--all-namespaces", **dict(zip(valued[:10:2], valued[1:10:2], strict=True))}
    options: dict[str, str] = {}
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        flag, equals, value = word.partition("=")
        if flag in valued and not equals:
            value = rest.pop(0)
        options[long.get(flag, flag)] = value
    return options, plain


_FLAGS = (
    "--namespace", "--output", "--filename", "--selector", "--patch", "--type", "--all-namespaces", "--overwrite",
    "--ignore-not-found", "--ignore-daemonsets", "--delete-emptydir-data", "--server-side", "--all",
)  # fmt: skip


class _Kubectl:
    """A few of kubectl's verbs, on the server that the page is run against."""

    def __init__(self, kube: Kube, options: Mapping[str, str], path: Callable[[str], str]) -> None:
        assert options.keys() <= set(_FLAGS), options
        self._kube = kube
        self._options = options
        self._path = path
        self._namespace = options.get("--namespace", "default")

    async def run(self, words: list[str]) -> str:
        verb, rest = words[0], words[1:]
        if verb in ("apply", "create", "delete") and "--filename" in self._options:
            return await self._files(verb)
        if verb == "create":
            assert rest[0] == "namespace", words
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": rest[1]}}
            await self._kube.create(await self._resource("namespaces"), body)
            return ""
        if verb == "rollout":
            assert rest[0] in ("status", "restart", "undo"), words
            rest = rest[1:]
        if verb in ("taint", "cordon", "uncordon", "drain"):
            rest = rest if verb == "taint" else ["nodes", *rest]
        acts: Mapping[str, Callable[[Resource, list[str]], Awaitable[str]]] = {
            "get": self._get, "describe": self._get, "rollout": self._get, "label": self._metadata("labels"),
            "annotate": self._metadata("annotations"), "delete": self._delete, "taint": self._taint,
            "cordon": self._get, "uncordon": self._get, "drain": self._get, "patch": self._patch,
        }  # fmt: skip
        output = ""
        kinds, _, name = rest[0].partition("/")
        for kind in kinds.split(","):
            output += await acts[verb](await self._resource(kind), [name, *rest[1:]] if name else rest[1:])
        return output

    async def _resource(self, word: str) -> Resource:
        word = _SHORT.get(word.lower(), word.lower())
        known = [type_.resource for type_ in SimulatedApiServer().registry]
        for crd in (await self._kube.list(CRDS)).items:
            spec = crd["spec"]
            version = spec["versions"][0]["name"]
            names = spec["names"]
            known.append(
                Resource(spec["group"], version, names["plural"], names["kind"], spec["scope"] == "Namespaced")
            )
        for resource in known:
            if word in (resource.plural, resource.kind.lower(), f"{resource.plural}.{resource.group}"):
                return resource
        raise AssertionError(f"kubectl: the server has no resource {word}")

    def _place(self, resource: Resource) -> str | None:
        return self._namespace if resource.namespaced else None

    async def _get(self, resource: Resource, names: list[str]) -> str:
        if names:
            objects = [await self._kube.get(resource, name, self._place(resource)) for name in names]
        else:
            place = None if "--all-namespaces" in self._options else self._place(resource)
            selector = self._options.get("--selector")
            objects = (await self._kube.list(resource, namespace=place, label_selector=selector)).items
        return yaml.safe_dump_all(objects)

    def _metadata(self, field: str) -> Callable[[Resource, list[str]], Awaitable[str]]:
        async def change(resource: Resource, words: list[str]) -> str:
            values: dict[str, str | None] = {
                word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word
            }
            values |= {word[:-1]: None for word in words if word.endswith("-") and "=" not in word}
            names = [word for word in words if "=" not in word and not word.endswith("-")]
            if "--all" in self._options or "--selector" in self._options:
                listed = await self._kube.list(resource, label_selector=self._options.get("--selector"))
                names = [obj["metadata"]["name"] for obj in listed.items]
            assert names and values, words
            for name in names:
                await self._kube.merge_patch(
                    resource, name, {"metadata": {field: values}}, namespace=self._place(resource)
                )
            return ""

        return change

    async def _delete(self, resource: Resource, names: list[str]) -> str:
        assert names
        for name in names:
            try:
                await self._kube.delete(resource, name, namespace=self._place(resource))
            except NotFound:
                assert "--ignore-not-found" in self._options, name
        return ""

    async def _taint(self, resource: Resource, words: list[str]) -> str:
        name, *taints = words
        assert taints and all(re.fullmatch(r"[a-z0-9./-]+(=[\w.-]*)?(:[A-Za-z]+)?-?", taint) for taint in taints), words
        await self._kube.get(resource, name)
        return ""

    async def _patch(self, resource: Resource, names: list[str]) -> str:
        assert self._options.get("--type") == "merge", "a merge patch is what people can read"
        (name,) = names
        patch = json.loads(self._options["--patch"])
        await self._kube.merge_patch(resource, name, patch, namespace=self._place(resource))
        return ""

    async def _files(self, verb: str) -> str:
        path = Path(self._path(self._options["--filename"]))
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        assert files and all(file.exists() for file in files), path
        for file in files:
            for document in yaml.safe_load_all(file.read_text()):
                if document:
                    await self._object(verb, document)
        return ""

    async def _object(self, verb: str, document: JsonObject) -> None:
        resource = await self._resource(document["kind"])
        metadata = document["metadata"]
        if resource.namespaced:
            metadata.setdefault("namespace", self._namespace)
        if verb == "delete":
            await self._kube.delete(resource, metadata["name"], namespace=metadata.get("namespace"))
        else:
            place = metadata.get("namespace")
            try:
                await self._kube.create(resource, document, namespace=place)
            except AlreadyExists:
                await self._kube.merge_patch(resource, metadata["name"], document, namespace=place)
