"""Policies as a file, from a ConfigMap for instance; read once, when its host starts.

A file has GpuPolicies, or one PublishingPolicy, as the chart makes it of its value `policy`.
"""

from pathlib import Path

from dra_driver.api.documents import read_documents
from dra_driver.api.gpupolicy import FILE_KIND, INSTALLED, GpuPolicy, is_policy, policies_among, rules_among
from dra_driver.api.meta import GPU_POLICIES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import InvalidInput, UnreadableFile
from dra_driver.features import Feature, Gates


def read_policy(path: Path | None, gates: Gates = Gates.DEFAULT) -> PublishingPolicy:
    """The rules in `path`; without one everything is published. Raises InvalidInput that names file and fields, also
    when the policy asks for what a feature gate has switched off."""
    if path is None:
        return PublishingPolicy.EVERYTHING
    return rules_among(_objects(path, gates), about=f"policy {path}")


def read_policies(path: Path | None, gates: Gates = Gates.DEFAULT) -> list[GpuPolicy]:
    """The same as GpuPolicies, as an installation makes them."""
    return [] if path is None else policies_among(_objects(path, gates), INSTALLED, about=f"policy {path}")


def decode_policy(text: str, *, about: str) -> PublishingPolicy:
    """From YAML or JSON. Raises InvalidInput that lists every problem with its field; `about` names the file."""
    return rules_among(_decoded(text, about), about=about)


def _decoded(text: str, about: str) -> list[JsonObject]:
    objects = [document.obj for document in read_documents(text, about).raise_problems()]
    if not objects or not all(map(is_policy, objects)):
        kinds = f"{GPU_POLICIES.kind} or {FILE_KIND}"
        raise InvalidInput(
            f"each document must have apiVersion {GPU_POLICIES.api_version} and kind {kinds}", about=about
        )
    return objects


def _objects(path: Path, gates: Gates) -> list[JsonObject]:
    about = f"policy {path}"
    try:
        objects = _decoded(path.read_text(encoding="utf-8"), about)
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror}", about=about) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"cannot be read: {error}", about=about) from error
    features: list[tuple[str, Feature]] = []
    for obj in objects:
        if obj["kind"] == FILE_KIND:
            features += PublishingPolicy.of(obj, about=about).features
        else:
            policy = GpuPolicy.read(obj)
            features += [(f"{field} of GpuPolicy {policy.name}", feature) for field, feature in policy.spec.features]
    refused = [
        f"{field}: needs feature gate {feature}, which is off; switch it on (--feature-gates {feature}=true), or leave"
        " this out"
        for field, feature in features
        if feature not in gates
    ]
    if refused:
        raise InvalidInput("; ".join(refused), about=about, problems=refused)
    return objects
