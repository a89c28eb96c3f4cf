"""Definitions of other projects' kinds on a real kube-apiserver: what their own schemas take, refuse and drop.

GPU_DRA_TEST_CRDS names a folder with CustomResourceDefinitions of those projects, in `*.yaml` at any depth, as their
repositories or releases have them. Nothing of them is kept here.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from support.real_api_server import RealApiServer

from dra_driver.api.meta import JsonObject

CRDS = "GPU_DRA_TEST_CRDS"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def crds_folder() -> Path:
    """Skips the test when the variable is not set, or names no folder."""
    folder = os.environ.get(CRDS)
    if not folder:
        pytest.skip(f"{CRDS} is not set: no definitions of other projects' kinds to try results on")
    if not Path(folder).is_dir():
        pytest.skip(f"{CRDS}={folder} is no folder")
    return Path(folder)


def crds_in(folder: Path) -> tuple[JsonObject, ...]:
    """One for each name; what two projects define under one name (kubeflow.org/MPIJob) has the versions of both.

    Versions are not converted: nobody is there to do that, and no object is kept in another version than it was given.
    """
    crds: dict[str, JsonObject] = {}
    for path in sorted(folder.rglob("*.yaml")):
        for obj in yaml.load_all(path.read_text(), _LOADER):
            if not isinstance(obj, dict) or obj.get("kind") != "CustomResourceDefinition":
                continue
            name = obj["metadata"]["name"]
            if name in crds:
                _join(crds[name], obj)
            else:
                obj["metadata"] = {"name": name, "annotations": _approved(obj)}
                obj["spec"]["conversion"] = {"strategy": "None"}
                obj["spec"].pop("preserveUnknownFields", None)
                obj.pop("status", None)
                crds[name] = obj
    assert crds, f"{folder} has no CustomResourceDefinition"
    return tuple(crds.values())


def _approved(obj: JsonObject) -> JsonObject:
    """Groups of Kubernetes itself want the annotation that names the review."""
    given = obj["metadata"].get("annotations") or {}
    return {key: value for key, value in given.items() if key == "api-approved.kubernetes.io"}


def _join(first: JsonObject, other: JsonObject) -> None:
    there = {version["name"] for version in first["spec"]["versions"]}
    for version in other["spec"]["versions"]:
        if version["name"] not in there:
            first["spec"]["versions"].append({**version, "storage": False})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Mapping[str, Any]

    @property
    def taken(self) -> bool:
        return self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Server:
    """A real API server that has other projects' kinds. Objects are tried, and never kept."""

    def __init__(self, server: RealApiServer) -> None:
        self._server = server
        self._context = server.ssl_context()
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    def define(self, crds: Iterable[JsonObject]) -> None:
        """Raises AssertionError for a definition that the server does not take."""
        names = []
        for crd in crds:
            answer = self._send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
            assert answer.taken, f"{crd['metadata']['name']}: {answer.message}"
            names.append(crd["metadata"]["name"])
        for name in names:
            self._wait_until_served(name)
        self._kinds = dict(self._discovered())

    def knows(self, obj: JsonObject) -> bool:
        return (obj["apiVersion"], obj["kind"]) in self._kinds

    def tried(self, obj: JsonObject) -> Answer:
        """What the server says to its creation: unknown and double fields are refused, and nothing is kept."""
        plural, namespaced = self._kinds[obj["apiVersion"], obj["kind"]]
        root = "/apis/" if "/" in obj["apiVersion"] else "/api/"
        where = f"{root}{obj['apiVersion']}/"
        if namespaced:
            namespace = (obj.get("metadata") or {}).get("namespace") or "default"
            self._make_namespace(namespace)
            where += f"namespaces/{quote(namespace)}/"
        return self._send("POST", f"{where}{plural}?dryRun=All&fieldValidation=Strict", obj)

    def _make_namespace(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        answer = self._send("POST", "/api/v1/namespaces", body)
        assert answer.taken or answer.status == 409, answer.message

    def _wait_until_served(self, name: str) -> None:
        """Established, and in the server's own list of what it serves."""
        for _ in range(600):
            got = self._send("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", None).body
            conditions = {
                condition["type"]: condition["status"]
                for condition in (got.get("status") or {}).get("conditions") or ()
            }
            if conditions.get("Established") == "True":
                spec = got["spec"]
                path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}?limit=1"
                if self._send("GET", path, None).taken or not spec["versions"][0]["served"]:
                    return
        raise AssertionError(f"{name} is not served")

    def _discovered(self) -> Iterator[tuple[tuple[str, str], tuple[str, bool]]]:
        versions = ["v1"]
        for group in self._send("GET", "/apis", None).body["groups"]:
            versions += [version["groupVersion"] for version in group["versions"]]
        for version in versions:
            root = "/apis/" if "/" in version else "/api/"
            for resource in self._send("GET", f"{root}{version}", None).body.get("resources", ()):
                if "/" not in resource["name"]:
                    yield (version, resource["kind"]), (resource["name"], resource["namespaced"])

    def _send(self, method: str, path: str, body: JsonObject | None) -> Answer:
        request = urllib.request.Request(
            f"{self._server.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._server.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=60) as response:
                return Answer(response.status, json.load(response))
        except urllib.error.HTTPError as error:
            return Answer(error.code, _status(error.read()))


def _status(body: bytes) -> Mapping[str, Any]:
    try:
        status = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace")}
    return status if isinstance(status, dict) else {}


def lost(sent: Any, answered: Any, path: str = "") -> Iterator[str]:
    """Paths of what was sent and is not in the answer: what the server dropped. Defaults that it added do not count."""
    if isinstance(sent, dict):
        if not isinstance(answered, dict):
            yield path
            return
        for key, value in sent.items():
            if key in answered:
                yield from lost(value, answered[key], f"{path}.{key}")
            elif value not in (None, {}, []):
                yield f"{path}.{key}"
    elif isinstance(sent, list):
        if not isinstance(answered, list) or len(answered) < len(sent):
            yield path
            return
        for index, (value, other) in enumerate(zip(sent, answered, strict=False)):
            yield from lost(value, other, f"{path}[{index}]")
