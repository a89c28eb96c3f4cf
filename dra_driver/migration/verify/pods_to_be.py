"""The pods that the result of a migration makes: their claims, which container uses which, and what they ask of a node.

Read back from the texts that were written, not from what was meant to be written, so that a mistake in between is found
by `dra_driver.migration.verify.trial`. Pure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dra_driver.api.documents import Document, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.api.untyped import map_in, maps_in, value_at
from dra_driver.errors import InvalidInput
from dra_driver.grouping import grouped
from dra_driver.migration.claims.publishing import kept_resources
from dra_driver.migration.model import (
    ClaimForm,
    ContainerAt,
    MigratedWorkload,
    Migration,
    MigrationTarget,
    ObjectRef,
    PodSpecAt,
    Role,
    ref_of,
)
from dra_driver.migration.understand.labels import restored_profile
from dra_driver.migration.understand.plugin_config import MIG_RESOURCE
from dra_driver.migration.verify.ground import Ground
from dra_driver.names import GPU_DRIVER


def name_of(at: ContainerAt, index: int) -> str:
    """Of a container, also in kinds that give it none."""
    return at.name or f"container-{index}"


class NotLookedAt(Exception):
    """Why."""


type UsesOfClaims = Mapping[str, Sequence[tuple[str, str | None]]]
"""By container: claims of its pod that it names, each with one of its requests, or None for all."""


@dataclass(frozen=True, slots=True, eq=False)
class PodToBe:
    """One pod as it would be created: its claims by their names in the pod, and who uses what."""

    obj: JsonObject
    claims: Mapping[str, ResourceClaim]
    uses: UsesOfClaims
    conditions: JsonObject
    """The pod's spec, as far as it says what it asks of its node."""

    @property
    def wishes(self) -> str:
        """All that decides where it fits: two pods with the same wishes fit the same nodes."""
        claims = {name: claim.spec.to_wire() for name, claim in self.claims.items()}
        asked = {key: self.conditions.get(key) for key in ("nodeSelector", "affinity")}
        return json.dumps([claims, self.obj["spec"], asked], sort_keys=True)


class PodsToBe:
    """Of one migration. `classes` are those there will be, besides those that the controller makes of MIG profiles."""

    def __init__(self, migration: Migration, ground: Ground, classes: Mapping[str, DeviceClass]) -> None:
        self._real_nodes = ground.real_nodes
        self._templates: dict[tuple[str, str], JsonObject] = {}
        self._claims: dict[tuple[str, str], JsonObject] = {}
        self.classes = dict(classes)
        after = {result.file: read_documents(result.after, result.file).documents for result in migration.files}
        for documents in after.values():
            for document in documents:
                self._learn(ref_of(document), document.obj)
        for new in migration.objects:
            self._learn(new.ref, new.obj)
        self._results = _pairs(migration, after)
        # The controller makes one for each profile; the values that we write let them answer to these resources.
        resources = (resource for resource in kept_resources(migration) if resource.startswith(MIG_RESOURCE))
        made = [] if ground.real_nodes else [_profile_class(text) for text in sorted(resources)]
        self.all_classes = {**self.classes, **{device_class.metadata.name: device_class for device_class in made}}

    def _learn(self, ref: ObjectRef, obj: JsonObject) -> None:
        key = (ref.namespace or "", ref.name)
        if ref.kind == "ResourceClaimTemplate":
            self._templates[key] = obj
        elif ref.kind == "ResourceClaim":
            self._claims[key] = obj
        elif ref.kind == "DeviceClass":
            with suppress(InvalidInput):  # which the report says
                self.classes[ref.name] = DeviceClass.of(obj)

    def of(self, workload: MigratedWorkload) -> PodToBe:
        """Raises NotLookedAt."""
        at = workload.pod
        if workload.choice.target is MigrationTarget.EXTENDED:
            asked = ((demand.resource, *(path[-1] for path in demand.removes)) for demand in workload.reading.demands)
            wanted = {name for names in asked for name in names}
            shell = self._shell(at, at.spec, lambda name: self._real_nodes or name in wanted)
            return PodToBe(shell, {}, {}, at.spec)
        document = self._results.get(id(at.document))
        if document is None:
            raise NotLookedAt("the result could not be distinguished from other objects")
        entries, uses = _named(at, document)
        # Of claims that it had already the driver has no devices to try.
        for held in workload.reading.held:
            entries.pop(held.name, None)
        namespace = document.namespace or ""
        claims = {name: self._claim(namespace, name, entry) for name, entry in entries.items()}
        if not claims:
            raise NotLookedAt("its framework makes the claims, by fields of its own")
        own = map_in(value_at(document.obj, at.path))
        spec = {**{name: at.spec[name] for name in at.inherited}, **own}
        return PodToBe(self._shell(at, spec), claims, uses, spec)

    def _shell(
        self, at: PodSpecAt, spec: JsonObject, is_asked: Callable[[str], bool] = lambda _name: False
    ) -> JsonObject:
        """The parts of a pod that a scheduler reads for its devices. Nodes of GPU models are asked for GPUs only: they
        have no network cards or other devices."""
        containers = [(_container(item, index, is_asked), item.role) for index, item in enumerate(at.containers)]
        fields = ("nodeSelector", "affinity", "tolerations") if self._real_nodes else ()
        init = (Role.INIT, Role.SIDECAR)
        name = at.document.name or "pod"
        return {
            "metadata": {"name": name, "namespace": at.document.namespace or "default", "uid": name},
            "spec": {
                **{key: spec[key] for key in fields if key in spec},
                **({} if self._real_nodes else {"tolerations": [{"operator": "Exists"}]}),
                "containers": [item for item, role in containers if role not in (*init, Role.EPHEMERAL)],
                "initContainers": [item for item, role in containers if role in init],
            },
        }

    def _claim(self, namespace: str, name: str, entry: JsonObject) -> ResourceClaim:
        template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        known, wanted = (self._templates, template) if template else (self._claims, claim)
        obj = known.get((namespace, str(wanted)))
        if obj is None:
            raise NotLookedAt(f"{wanted!r}, which it names, is not among the files")
        spec = obj["spec"]["spec"] if template else obj["spec"]
        return ResourceClaim.of({"metadata": {"name": name, "namespace": namespace or "default"}, "spec": spec})


def _profile_class(resource: str) -> DeviceClass:
    """As the controller's, but for how it finds the profile: `.me` stands for `+me`."""
    name = resource.removeprefix(MIG_RESOURCE)
    profile = restored_profile(name) or name
    attributes = f"device.attributes['{GPU_DRIVER}']"
    expression = f"device.driver == '{GPU_DRIVER}' && {attributes}.type == 'mig' && {attributes}.profile == '{profile}'"
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": resource}
    return DeviceClass.of({"metadata": {"name": f"{profile.replace('+', '-')}.mig.nvidia.com"}, "spec": spec})


def _pairs(migration: Migration, after: Mapping[str, Sequence[Document]]) -> dict[int, Document]:
    """By the identity of old documents: what became of them. New objects may stand anywhere among the others."""
    ours = {new.ref for new in migration.objects}
    old: dict[str, dict[int, Document]] = {}
    for workload in migration.workloads:
        document = workload.document
        old.setdefault(document.file, {})[id(document)] = document
    pairs: dict[int, Document] = {}
    for file, documents in old.items():
        left = grouped((document for document in after.get(file, ()) if ref_of(document) not in ours), ref_of)
        for ref, twins in grouped(documents.values(), ref_of).items():
            same = left.get(ref, [])
            if len(same) >= len(twins):
                pairs |= {id(was): now for was, now in zip(twins, same, strict=False)}
    return pairs


def _container(at: ContainerAt, index: int, is_asked: Callable[[str], bool]) -> JsonObject:
    amounts: JsonObject = {}
    for key in ("limits", "requests"):
        given = map_in(at.resources.get(key))
        asked = {name: str(amount) for name, amount in given.items() if "/" in str(name) and is_asked(str(name))}
        amounts |= {key: asked} if asked else {}
    always = {"restartPolicy": "Always"} if at.role is Role.SIDECAR else {}
    return {"name": name_of(at, index), "resources": amounts, **always}


def _named(at: PodSpecAt, document: Document) -> tuple[dict[str, JsonObject], UsesOfClaims]:
    """The claims that a pod lists, by their names in it; and those that its containers name."""
    spec = map_in(value_at(document.obj, at.path))
    containers = [(name_of(container, index), container) for index, container in enumerate(at.containers)]
    if at.form is ClaimForm.NIM:
        entries = {f"claim-{index}": item for index, item in enumerate(maps_in(spec.get("draResources")))}
        return entries, {name: [(claim, None) for claim in entries] for name, _ in containers}
    entries = {str(item.get("name")): item for item in maps_in(spec.get("resourceClaims"))}
    uses: UsesOfClaims = {
        name: [
            (str(claim.get("name")), claim.get("request"))
            for claim in maps_in(value_at(document.obj, (*container.resources_path, "claims")))
        ]
        for name, container in containers
    }
    return entries, uses
