"""kubectl itself against both servers: get, describe, apply, patch, label, delete and watch, without special flags.

GPU_DRA_TEST_KUBECTL   the program, instead of the one on the PATH
"""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from support.api import Api
from support.dra_objects import (
    CLASSES,
    SLICES,
    allocation,
    claim,
    claim_spec,
    claims,
    crd,
    device,
    pod,
    request,
    resource_slice,
)

type Kubectl = Callable[..., Awaitable[str]]


@pytest.fixture
def kubectl(api: Api, tmp_path: Path) -> Kubectl:
    """Runs kubectl and answers what it printed; fails the test when kubectl fails."""
    program = os.environ.get("GPU_DRA_TEST_KUBECTL") or shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    cluster: dict[str, str] = {"server": api.url}
    if api.ca_file is not None:
        cluster["certificate-authority"] = str(api.ca_file)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": api.token} if api.token else {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))

    async def run(*arguments: str, stdin: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--kubeconfig={kubeconfig}",
            f"--cache-dir={tmp_path / 'cache'}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate(stdin.encode())
        assert process.returncode == 0, f"kubectl {' '.join(arguments)}: {errors.decode()}"
        return output.decode()

    return run


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


async def test_manifests_are_applied_changed_and_deleted(kubectl: Kubectl, api: Api, unique: str) -> None:
    # Written out in full: a kubectl that does not know resource.k8s.io/v1 takes defaults in lists for changes.
    spec = claim_spec(request(allocationMode="ExactCount", count=1))
    documents = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one", "namespace": unique},
            "spec": {"spec": spec},
        },
        claim("shared", spec, namespace=unique),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": unique},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
        },
        {**pod("p", resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}])},
    ]
    documents[-1]["metadata"]["namespace"] = unique
    text = yaml.safe_dump_all(documents)
    first = await kubectl("apply", "-f", "-", stdin=text)
    assert all(line.endswith(" created") for line in first.splitlines())
    again = await kubectl("apply", "-f", "-", stdin=text)
    assert [line for line in again.splitlines() if not line.endswith(" unchanged")] == []
    documents[3]["spec"] = {"selectors": []}
    changed = await kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    assert [line for line in changed.splitlines() if line.endswith(" configured")] == [
        f"deviceclass.resource.k8s.io/{unique} configured"
    ]
    assert (await api.get(f"{CLASSES}/{unique}"))["spec"] == {}
    backwards = yaml.safe_dump_all(reversed(documents))
    gone = await kubectl("delete", "--wait=false", "-f", "-", stdin=backwards)
    assert len(gone.splitlines()) == len(documents)


async def test_server_side_apply(kubectl: Kubectl, api: Api, namespace: str) -> None:
    text = yaml.safe_dump(claim("a", namespace=namespace))
    assert "serverside-applied" in await kubectl("apply", "--server-side", "-f", "-", stdin=text)
    labelled = yaml.safe_dump(claim("a", namespace=namespace, labels={"l": "1"}))
    await kubectl("apply", "--server-side", "-f", "-", stdin=labelled)
    assert (await api.get(f"{claims(namespace)}/a"))["metadata"]["labels"] == {"l": "1"}
    await kubectl("apply", "--server-side", "-f", "-", stdin=text)
    assert "labels" not in (await api.get(f"{claims(namespace)}/a"))["metadata"]


async def test_a_mistake_in_a_manifest_is_named(kubectl: Kubectl, namespace: str) -> None:
    wrong = claim("a", namespace=namespace)
    wrong["spec"]["devices"]["requsts"] = wrong["spec"]["devices"].pop("requests")
    with pytest.raises(AssertionError, match=r'unknown field "spec\.devices\.requsts"'):
        await kubectl("apply", "-f", "-", stdin=yaml.safe_dump(wrong))


async def test_a_kind_that_is_not_served_is_named(kubectl: Kubectl, namespace: str) -> None:
    manifest = yaml.safe_dump({"apiVersion": "example.com/v1", "kind": "Wonder", "metadata": {"name": "a"}})
    with pytest.raises(AssertionError, match=r'no matches for kind "Wonder" in version "example.com/v1"'):
        await kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)


async def test_lists_are_shown_as_tables(kubectl: Kubectl, api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    await api.patch(f"{claims(namespace)}/a/status", {"status": {"allocation": allocation()}})
    await api.post(SLICES, resource_slice(namespace, device()))
    shown = rows(await kubectl("get", "resourceclaims", "-n", namespace))
    assert (shown[0], shown[1][:2]) == (["NAME", "STATE", "AGE"], ["a", "allocated"])
    shown = rows(await kubectl("get", "resourceslices", namespace))
    assert shown[0] == ["NAME", "NODE", "DRIVER", "POOL", "AGE"]
    assert shown[1][:4] == [namespace, "node-1", "gpu.nvidia.com", "node-1"]


async def test_custom_types_are_shown_by_their_short_name_with_their_columns(
    kubectl: Kubectl, api: Api, unique: str
) -> None:
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
    definition = crd(f"{unique}s", {"additionalPrinterColumns": columns})
    definition["spec"]["names"]["shortNames"] = [f"{unique}x"]
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump(definition))
    await api.until_served(definition)
    thing = {
        "apiVersion": "contract.dra.gpu/v1",
        "kind": unique.capitalize(),
        "metadata": {"name": "a"},
        "spec": {"size": 3},
    }
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump(thing))
    assert rows(await kubectl("get", f"{unique}x")) == [["NAME", "SIZE"], ["a", "3"]]
    described = await kubectl("describe", f"{unique}s", "a")
    assert "Size:  3" in described
    assert f"customresourcedefinition.apiextensions.k8s.io/{unique}s" in await kubectl("get", "crd", "-o", "name")


@pytest.mark.parametrize("kind", ["pod", "resourceclaim", "resourceslice", "deviceclass", "node", "namespace"])
async def test_objects_are_described(kubectl: Kubectl, api: Api, namespace: str, kind: str) -> None:
    bodies = {
        "pod": (f"/api/v1/namespaces/{namespace}/pods", pod(namespace)),
        "resourceclaim": (claims(namespace), claim(namespace)),
        "resourceslice": (SLICES, resource_slice(namespace, device())),
        "deviceclass": (CLASSES, {"metadata": {"name": namespace}, "spec": {}}),
        "node": ("/api/v1/nodes", {"metadata": {"name": namespace}}),
    }
    if kind in bodies:
        await api.post(*bodies[kind])
    described = await kubectl("describe", kind, namespace, "-n", namespace)
    assert ["Name:", namespace] in rows(described)


async def test_patches_and_labels(kubectl: Kubectl, api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    here = ("-n", namespace, "resourceclaim", "a")
    await kubectl("label", *here, "x=y")
    await kubectl("annotate", *here, "note=text")
    await kubectl("patch", *here, "--type=merge", "-p", '{"metadata":{"labels":{"m":"1"}}}')
    status = json.dumps({"status": {"allocation": allocation()}})
    await kubectl("patch", *here, "--subresource=status", "--type=merge", "-p", status)
    obj = await api.get(f"{claims(namespace)}/a")
    assert (obj["metadata"]["labels"], obj["metadata"]["annotations"]) == ({"m": "1", "x": "y"}, {"note": "text"})
    assert obj["status"] == {"allocation": allocation()}


async def test_a_deletion_is_waited_for(kubectl: Kubectl, api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a", finalizers=["x.example/hold"]))
    waiting = asyncio.create_task(kubectl("delete", "resourceclaim", "-n", namespace, "a", "--timeout=20s"))

    async def going() -> bool:
        return "deletionTimestamp" in (await api.get(f"{claims(namespace)}/a"))["metadata"]

    await api.eventually(going)
    assert not waiting.done()
    await api.patch(f"{claims(namespace)}/a", {"metadata": {"finalizers": None}})
    assert "deleted" in await waiting


async def test_a_condition_is_waited_for(kubectl: Kubectl, api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    await api.post(path, pod("a"))
    waiting = asyncio.create_task(kubectl("wait", "-n", namespace, "pod/a", "--for=condition=Ready", "--timeout=20s"))
    await asyncio.sleep(0)
    await api.patch(f"{path}/a/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert "condition met" in await waiting


async def test_changes_are_watched(kubectl: Kubectl, api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    watching = asyncio.create_task(
        kubectl(
            "get", "resourceclaims", "-n", namespace, "-w", "--no-headers", "--output-watch-events",
            "--request-timeout=4s",
        )
    )  # fmt: skip
    await asyncio.sleep(1.5)  # it says nothing of having begun; later it would not see the claim go
    await api.delete(f"{claims(namespace)}/a")
    assert [row[:2] for row in rows(await watching)] == [["ADDED", "a"], ["DELETED", "a"]]


async def test_types_are_listed_and_permissions_asked(kubectl: Kubectl) -> None:
    listed = rows(await kubectl("api-resources", "--api-group=resource.k8s.io", "--no-headers"))
    assert [row[0] for row in listed] == [
        "deviceclasses",
        "resourceclaims",
        "resourceclaimtemplates",
        "resourceslices",
    ]
    assert "v1" in (await kubectl("api-versions")).split()
    assert (await kubectl("auth", "can-i", "create", "resourceslices.resource.k8s.io")).strip() == "yes"


async def test_namespaces_and_config_maps_are_created_by_command(kubectl: Kubectl, api: Api, unique: str) -> None:
    """These commands send protobuf."""
    await kubectl("create", "namespace", unique)
    await kubectl("create", "configmap", "a", "-n", unique, "--from-literal=k=v")
    await kubectl("create", "secret", "generic", "a", "-n", unique, "--from-literal=k=v")
    assert (await api.get(f"/api/v1/namespaces/{unique}/configmaps/a"))["data"] == {"k": "v"}
    assert (await api.get(f"/api/v1/namespaces/{unique}/secrets/a"))["data"] == {"k": "dg=="}


async def test_fields_are_explained(kubectl: Kubectl) -> None:
    explained = await kubectl("explain", "resourceclaim.spec.devices.requests", "--api-version=resource.k8s.io/v1")
    assert "firstAvailable" in explained
