"""Whether the devices that the result gets are those that the old request meant, found out by our own allocator. Pure.

Each workload is tried alone, on nodes on which nothing is in use. Then its containers are looked at one by one: how
many devices, of which kind and profile, alone or shared, with how much memory, on what product; what was asked for
comes from the old manifest, what was got from the allocation.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from dra_driver.allocation.placement import Placement, highest_score, place_on
from dra_driver.allocation.snapshot import Snapshot
from dra_driver.api.documents import Document, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import AllocatedDevice, Device, DeviceClass, ResourceClaim
from dra_driver.checking.fit import class_expressions, expressions_of, selected
from dra_driver.checking.knowledge import Site
from dra_driver.errors import DriverError
from dra_driver.migration.compare import Piece, name_of, problems, shown
from dra_driver.migration.cutover import MIG_RESOURCE, kept_resources
from dra_driver.migration.gfd import labels_of, refused_by
from dra_driver.migration.ground import Ground, Publication
from dra_driver.migration.model import (
    ContainerAt,
    Form,
    Migration,
    ObjectRef,
    PodSpecAt,
    Role,
    Target,
    Workload,
    value_at,
)
from dra_driver.names import GPU_DRIVER


class Verdict(StrEnum):
    SAME = "same"
    """The devices are what was meant."""
    DIFFERS = "differs"
    """They are not."""
    NOWHERE = "nowhere"
    """None of the nodes has them."""
    UNKNOWN = "unknown"
    """Not looked at."""


@dataclass(frozen=True, slots=True)
class Got:
    """What one container gets."""

    container: str
    devices: tuple[str, ...]
    """For people: `gpu-5a7b8d0e (NVIDIA L40S), memory 3000Mi`."""


@dataclass(frozen=True, slots=True)
class Matching:
    """How many devices satisfy one request, of all that these nodes publish."""

    request: str
    by_node: tuple[tuple[str, int], ...]
    """Nodes, or GPU models, that have any."""


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    workload: Workload
    verdict: Verdict
    why: tuple[str, ...] = ()
    """Sentences: what differs, why it fits nowhere, or why it was not looked at."""
    node: str = ""
    got: tuple[Got, ...] = ()
    matching: tuple[Matching, ...] = ()
    needs: JsonObject | None = None
    """Rules that a PublishingPolicy must have for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    title: str
    certain: bool
    checked: tuple[Checked, ...]


# -- looking


def verify(migration: Migration, ground: Ground, classes: Mapping[str, DeviceClass]) -> Verification:
    """Each workload that asks for devices of the driver now. `classes` are those that come with the driver."""
    trial = _Trial(migration, ground, classes)
    checked = [trial.checked(one) for one in migration.workloads if one.choice.target is not Target.LEAVE]
    return Verification(ground.title, ground.certain, tuple(checked))


class _NotLookedAt(Exception):
    """Why."""


@dataclass(frozen=True, slots=True)
class _Use:
    """What a container names: a claim of its pod, and one request of it or None for all."""

    claim: str
    request: str | None


@dataclass(frozen=True, slots=True, eq=False)
class _Pod:
    """One pod as it would be created: its claims by their names in the pod, and who uses what."""

    obj: JsonObject
    claims: Mapping[str, ResourceClaim]
    uses: Mapping[str, tuple[_Use, ...]]
    """By container."""
    conditions: JsonObject
    """The pod's spec, as far as it says what it asks of its node."""


class _Trial:
    def __init__(self, migration: Migration, ground: Ground, classes: Mapping[str, DeviceClass]) -> None:
        self._ground = ground
        self._templates: dict[tuple[str, str], JsonObject] = {}
        self._claims: dict[tuple[str, str], JsonObject] = {}
        self._classes = dict(classes)
        new = [one.obj for one in migration.objects]
        after = {result.file: _read(result.after, result.file) for result in migration.files}
        for obj in (*(one.obj for documents in after.values() for one in documents), *new):
            self._learn(obj)
        self._results = _pairs(migration, after, new)
        # The controller makes one for each profile; the values that we write let them answer to these resources.
        kept = (one for one in kept_resources(migration) if one.startswith(MIG_RESOURCE))
        made = [] if ground.real_nodes else [_profile_class(one) for one in sorted(kept)]
        self._of_profiles = {one.metadata.name: one for one in made}

    def _learn(self, obj: JsonObject) -> None:
        metadata = obj.get("metadata") or {}
        key = (str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
        if obj.get("kind") == "ResourceClaimTemplate":
            self._templates[key] = obj
        elif obj.get("kind") == "ResourceClaim":
            self._claims[key] = obj
        elif obj.get("kind") == "DeviceClass":
            self._classes[key[1]] = DeviceClass.of(obj)

    def checked(self, workload: Workload) -> Checked:
        try:
            pod = self._pod(workload)
        except _NotLookedAt as why:
            return Checked(workload, Verdict.UNKNOWN, (str(why),))
        reasons: dict[str, None] = {}
        differing: Checked | None = None
        for publication in self._ground.publications:
            best = self._best(workload, pod, publication, reasons)
            if best is None:
                continue
            found = self._judged(workload, pod, *best, publication)
            if found.verdict is Verdict.SAME:
                return found
            differing = differing or found
        if differing is not None:
            return differing
        matching = self._matching(pod, self._ground.publications[0])
        return Checked(workload, Verdict.NOWHERE, tuple(reasons)[:2] or ("there are no nodes",), matching=matching)

    def _best(
        self, workload: Workload, pod: _Pod, publication: Publication, reasons: dict[str, None]
    ) -> tuple[Site, Placement] | None:
        """The node that a scheduler prefers; None where none has the devices, and why is added to `reasons`."""
        most = highest_score(list(pod.claims.values()))
        best: tuple[Site, Placement] | None = None
        for make in publication.sites:
            site = make()
            placed = self._not_selected(pod, site) or self._placed(pod, site)
            if not isinstance(placed, Placement):
                reasons.setdefault(f"{site.title}: {placed}")
            elif best is None or placed.score > best[1].score:
                best = site, placed
            if best is not None and best[1].score == most:
                break
        return best

    def _not_selected(self, pod: _Pod, site: Site) -> str | None:
        """Whatever the pod still asks of its node; these nodes have the labels that go with their GPUs."""
        if self._ground.real_nodes:
            return None
        found = (one for pool in site.catalog.pools(site.node) for one in pool.candidates)
        whole = next((one.device for one in found if _is_whole(one.device)), None)
        refused = refused_by(pod.conditions, labels_of(whole)) if whole is not None else None
        return f"not selected by {refused}" if refused is not None else None

    def _placed(self, pod: _Pod, site: Site) -> Placement | str:
        snapshot = Snapshot(site.catalog, {**self._classes, **self._of_profiles})
        try:
            return place_on(pod.obj, list(pod.claims.values()), site.node, snapshot)
        except DriverError as error:
            return str(error)

    def _matching(self, pod: _Pod, publication: Publication) -> tuple[Matching, ...]:
        found = []
        for claim in pod.claims.values():
            for request in claim.spec.devices.requests:
                exactly = request.exactly
                if exactly is None or exactly.device_class_name not in self._classes:
                    continue
                own = expressions_of([one.to_wire() for one in exactly.selectors or ()])
                expressions = (*class_expressions(self._classes[exactly.device_class_name]), *own)
                sites = [make() for make in publication.sites]
                counts = [(site.title, len(selected(site, expressions).matching)) for site in sites]
                found.append(Matching(request.name, tuple(one for one in counts if one[1])))
        return tuple(found)

    # -- the pod as it would be created

    def _pod(self, workload: Workload) -> _Pod:
        at = workload.pod
        if workload.choice.target is Target.EXTENDED:
            return _Pod(self._shell(at, at.spec, with_resources=True), {}, {}, at.spec)
        document = self._results.get(id(at.document))
        if document is None:
            return self._by_templates(workload)
        entries, uses = _named(at, document)
        namespace = document.namespace or ""
        claims = {name: self._claim(namespace, name, entry) for name, entry in entries.items()}
        if not claims:
            raise _NotLookedAt("its framework makes the claims, by fields of its own")
        spec = value_at(document.obj, at.path)
        spec = spec if isinstance(spec, dict) else {}
        return _Pod(self._shell(at, spec, with_resources=False), claims, uses, spec)

    def _by_templates(self, workload: Workload) -> _Pod:
        """Of a manifest inside of another text, of which only the templates are at hand."""
        at = workload.pod
        users = {id(one): one for demand in workload.reading.demands for one in demand.containers}
        if len(users) != 1 or not workload.templates:
            raise _NotLookedAt("the result could not be told apart from other objects")
        claims = {}
        for index, ref in enumerate(workload.templates):
            entry = {"resourceClaimTemplateName": ref.name}
            claims[f"claim-{index}"] = self._claim(ref.namespace or "", f"claim-{index}", entry)
        names = {id(one): name_of(one, index) for index, one in enumerate(at.containers)}
        (user,) = users
        uses = {names[user]: tuple(_Use(name, None) for name in claims)}
        return _Pod(self._shell(at, {}, with_resources=False), claims, uses, {})

    def _shell(self, at: PodSpecAt, spec: JsonObject, *, with_resources: bool) -> JsonObject:
        """What of a pod a scheduler looks at for its devices. Nodes that nobody described are asked nothing."""
        containers = [_container(one, index, with_resources) for index, one in enumerate(at.containers)]
        kept = ("nodeSelector", "affinity", "tolerations") if self._ground.real_nodes else ()
        init = (Role.INIT, Role.SIDECAR)
        name = at.document.name or "pod"
        return {
            "metadata": {"name": name, "namespace": at.document.namespace or "default", "uid": name},
            "spec": {
                **{key: spec[key] for key in kept if key in spec},
                **({} if self._ground.real_nodes else {"tolerations": [{"operator": "Exists"}]}),
                "containers": [one for one, own in containers if own.role not in (*init, Role.EPHEMERAL)],
                "initContainers": [one for one, own in containers if own.role in init],
            },
        }

    def _claim(self, namespace: str, name: str, entry: JsonObject) -> ResourceClaim:
        template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        known, wanted = (self._templates, template) if template else (self._claims, claim)
        obj = known.get((namespace, str(wanted)))
        if obj is None:
            raise _NotLookedAt(f"{wanted!r}, which it names, is not among the files")
        spec = obj["spec"]["spec"] if template else obj["spec"]
        return ResourceClaim.of({"metadata": {"name": name, "namespace": namespace or "default"}, "spec": spec})

    # -- what it got

    def _judged(
        self, workload: Workload, pod: _Pod, site: Site, placed: Placement, publication: Publication
    ) -> Checked:
        devices = {
            (pool.name, one.id.device): one.device for pool in site.catalog.pools(site.node) for one in pool.candidates
        }
        pieces = _pieces(workload, pod, placed, devices)
        wrong = tuple(problems(workload, pieces))
        return Checked(
            workload,
            Verdict.DIFFERS if wrong else Verdict.SAME,
            wrong,
            site.title,
            tuple(Got(name, tuple(map(shown, found))) for name, found in pieces.items() if found),
            self._matching(pod, publication),
            publication.needs,
        )


def _profile_class(resource: str) -> DeviceClass:
    """As the controller's, but for how it finds the profile: `.me` stands for `+me`."""
    profile = re.sub(r"(gb)\.", r"\1+", resource.removeprefix(MIG_RESOURCE))
    attributes = f"device.attributes['{GPU_DRIVER}']"
    expression = f"device.driver == '{GPU_DRIVER}' && {attributes}.type == 'mig' && {attributes}.profile == '{profile}'"
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": resource}
    return DeviceClass.of({"metadata": {"name": f"{profile.replace('+', '-')}.mig.nvidia.com"}, "spec": spec})


def _is_whole(device: Device) -> bool:
    kind = device.attributes.get("type")
    return kind is not None and kind.string == "gpu"


def _read(text: str, file: str) -> Sequence[Document]:
    return read_documents(text, file).documents


def _pairs(
    migration: Migration, after: Mapping[str, Sequence[Document]], new: Sequence[JsonObject]
) -> dict[int, Document]:
    """By the identity of old documents: what became of them. New objects may stand anywhere among the others."""
    ours = {_ref(one) for one in new}
    old: dict[str, dict[int, Document]] = {}
    for workload in migration.workloads:
        document = workload.pod.document
        old.setdefault(document.file, {})[id(document)] = document
    found: dict[int, Document] = {}
    for file, documents in old.items():
        left = _by_ref(one for one in after.get(file, ()) if _ref(one.obj) not in ours)
        for ref, twins in _by_ref(documents.values()).items():
            same = left.get(ref, [])
            if len(same) >= len(twins):
                found |= {id(was): now for was, now in zip(twins, same, strict=False)}
    return found


def _by_ref(documents: Iterable[Document]) -> dict[ObjectRef, list[Document]]:
    found: dict[ObjectRef, list[Document]] = {}
    for document in documents:
        found.setdefault(_ref(document.obj), []).append(document)
    return found


def _ref(obj: JsonObject) -> ObjectRef:
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName") or ""
    return ObjectRef(str(obj.get("kind")), metadata.get("namespace"), str(name))


def _container(at: ContainerAt, index: int, with_resources: bool) -> tuple[JsonObject, ContainerAt]:
    amounts: JsonObject = {}
    if with_resources:
        for key in ("limits", "requests"):
            given = at.resources.get(key)
            if isinstance(given, dict):
                amounts[key] = {name: str(amount) for name, amount in given.items() if "/" in str(name)}
    always = {"restartPolicy": "Always"} if at.role is Role.SIDECAR else {}
    return {"name": name_of(at, index), "resources": amounts, **always}, at


def _named(at: PodSpecAt, document: Document) -> tuple[dict[str, JsonObject], dict[str, tuple[_Use, ...]]]:
    """The claims that a pod lists, by their names in it; and those that its containers name."""
    spec = value_at(document.obj, at.path)
    spec = spec if isinstance(spec, dict) else {}
    listed = spec.get("resourceClaims")
    patched: JsonObject = {}
    if at.form is Form.NIM:
        listed = [{"name": f"claim-{index}", **one} for index, one in enumerate(spec.get("draResources") or ())]
    elif at.form is Form.ARGO and listed is None and isinstance(spec.get("podSpecPatch"), str):
        patched = _mapping(spec["podSpecPatch"])
        listed = patched.get("resourceClaims")
    entries = {str(one.get("name")): one for one in listed or () if isinstance(one, dict)}
    uses: dict[str, tuple[_Use, ...]] = {}
    for index, container in enumerate(at.containers):
        if at.form is Form.NIM:
            uses[name_of(container, index)] = tuple(_Use(name, None) for name in entries)
            continue
        resources = value_at(document.obj, container.resources_path)
        claims = resources.get("claims") if isinstance(resources, dict) else None
        claims = claims or _patched_claims(patched, container.name)
        found = [one for one in claims or () if isinstance(one, dict)]
        uses[name_of(container, index)] = tuple(_Use(str(one.get("name")), one.get("request")) for one in found)
    return entries, uses


def _mapping(text: str) -> JsonObject:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _patched_claims(patch: JsonObject, container: str) -> Any:
    for one in (*(patch.get("containers") or ()), *(patch.get("initContainers") or ())):
        # Argo calls the container of a template `main`, whatever it is called there.
        if isinstance(one, dict) and one.get("name") in (container or "main", "main"):
            return (one.get("resources") or {}).get("claims")
    return None


# -- from an allocation to containers


def _pieces(
    workload: Workload, pod: _Pod, placed: Placement, devices: Mapping[tuple[str, str], Device]
) -> dict[str, tuple[Piece, ...]]:
    """By container."""
    if placed.extended is not None:
        results = placed.allocations[-1].devices.results
        requests: dict[str, list[str]] = {}
        for mapping in placed.extended.mappings:
            requests.setdefault(mapping.container, []).append(mapping.request)
        return {
            name: tuple(_piece(one, devices) for one in results if one.request in wanted)
            for name, wanted in requests.items()
        }
    by_claim = dict(zip(pod.claims, placed.allocations, strict=False))
    found: dict[str, tuple[Piece, ...]] = {}
    for container, uses in pod.uses.items():
        found[container] = tuple(
            _piece(one, devices)
            for use in uses
            if use.claim in by_claim
            for one in by_claim[use.claim].devices.results
            if use.request is None or one.request.split("/")[0] == use.request
        )
    return found


def _piece(result: AllocatedDevice, devices: Mapping[tuple[str, str], Device]) -> Piece:
    return Piece(result, devices[(result.pool, result.device)])
