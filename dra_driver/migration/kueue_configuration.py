"""The configuration of Kueue's manager, wherever it is: as a document, in a ConfigMap, in a chart's values. Pure.

A text in an object is edited like a file: comments and indentation stay. It has no annotations, so the way back goes by
names: mappings whose name is ours go. Source: apis/config of Kueue 0.14 to 0.19; values of its chart.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.api.documents import Document, read_documents
from dra_driver.authoring.writing import Noted, written
from dra_driver.migration.changes import EditRefused
from dra_driver.migration.codes import NOT_EDITABLE, QUOTA, SERVER_TOO_OLD, Severity
from dra_driver.migration.counting import MENTION, Found, dicts
from dra_driver.migration.edit import rewritten
from dra_driver.migration.kueue import PREFIX, ClassMapping
from dra_driver.migration.model import Edit, Path, Put, Remove, Source, value_at
from dra_driver.migration.splices import spliced

GROUP = "config.kueue.x-k8s.io"
FILE = "kueue-configuration.yaml"
_MAPPINGS: Path = ("resources", "deviceClassMappings")
_CHART_GATES: Path = ("controllerManager", "featureGates")
"""Of the chart's values: what becomes its manager's command line."""
_OLD_GATE = "DynamicResourceAllocation"
"""Off unless switched on in 0.14 to 0.17; from 0.18 on another gate, which is on."""
_CAPACITY_GATE = "KueueDRAIntegrationConsumableCapacity"
"""Alpha in 0.19."""
_VERSION = re.compile(r"kueue:v?0\.([0-9]+)|kueue-v?0\.([0-9]+)\.")


@dataclass(frozen=True, slots=True, eq=False)
class Configuration:
    """`path` is of the text in `document`; empty where the document is the configuration. `inner` None: the text cannot
    be read."""

    document: Document
    path: Path
    inner: Document | None

    @property
    def classes(self) -> dict[str, str]:
        """Those that are mapped, to their names."""
        entries = dicts(value_at(self.inner.obj, _MAPPINGS)) if self.inner is not None else []
        return {
            name: str(one["name"])
            for one in entries
            for name in (one["deviceClassNames"] if isinstance(one.get("deviceClassNames"), list) else ())
            if isinstance(name, str) and isinstance(one.get("name"), str)
        }


def configurations(documents: Iterable[Document]) -> tuple[Configuration, ...]:
    return tuple(one for document in documents for one in configurations_in(document))


def configurations_in(document: Document) -> Iterator[Configuration]:
    if document.kind == "Configuration" and document.api_version.startswith(f"{GROUP}/"):
        yield Configuration(document, (), document)
        return
    if _is_chart_test(document):
        return
    for path, text in _texts(document.obj, ()):
        read = read_documents(text, document.file)
        whole = not read.problems and len(read.documents) == 1 and read.documents[0].kind == "Configuration"
        yield Configuration(document, path, read.documents[0] if whole else None)


def _is_chart_test(document: Document) -> bool:
    """Of helm-unittest: its values are of no release, and what it expects is of these values."""
    return not document.kind and isinstance(document.obj.get("tests"), list)


def _texts(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key != "annotations":
                yield from _texts(one, (*path, str(key)))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _texts(one, (*path, index))
    elif isinstance(value, str) and f"{GROUP}/" in value and re.search(r"^kind: Configuration\b", value, re.MULTILINE):
        yield path, value


def minor_version(documents: Iterable[Document]) -> int | None:
    """Of Kueue: 19 for 0.19.2, as images, labels of its chart, and values say; None: not known."""
    found: set[int] = set()
    for document in documents:
        labels = value_at(document.obj, ("metadata", "labels"))
        chart = labels.get("helm.sh/chart") if isinstance(labels, dict) else None
        containers = dicts(value_at(document.obj, ("spec", "template", "spec", "containers")))
        tag = value_at(document.obj, ("controllerManager", "manager", "image", "tag"))
        texts = [chart, *(one.get("image") for one in containers), f"kueue:{tag}" if isinstance(tag, str) else None]
        for text in texts:
            match = _VERSION.search(text) if isinstance(text, str) else None
            if match is not None:
                found.add(int(match[1] or match[2]))
    return min(found, default=None)


# -- what is written into it


def configure(found: Found, one: Configuration, mappings: Sequence[ClassMapping], minor: int | None) -> None:
    """With the mappings that are missing, and the feature gates that they need."""
    if one.inner is None:
        _unread(found, one, mappings)
        return
    _transformations(found, one)
    wanted = [mapping for mapping in mappings if mapping.name not in _names(one.inner)]
    refused = [
        mapping for mapping in wanted if mapping.source is not None and one.inner.api_version.endswith("v1beta1")
    ]
    for mapping in refused:
        message = f"{mapping.name} is counted by `sources`, which a configuration of v1beta1 does not have"
        advice = f"Write it as {GROUP}/v1beta2, which Kueue 0.15 and newer read, and migrate again."
        found.say(SERVER_TOO_OLD, one.path, message, advice=advice)
    wanted = [mapping for mapping in wanted if mapping not in refused]
    if not wanted:
        return
    edits = [*_mapping_edits(one.inner, wanted), *_gate_edits(found, one, wanted, minor)]
    if one.path:
        try:
            splices = rewritten({one.inner: edits}).splices
        except EditRefused as error:
            found.say(NOT_EDITABLE, one.path, f"the text is left as it is: {error}", advice=_add(wanted))
            return
        text = value_at(found.obj, one.path)
        found.edits.append(Put(one.path, spliced(text, splices)))
    else:
        found.edits += edits
    found.reason = "Kueue counts devices of claims under names of their own"
    for mapping in wanted:
        _say_mapped(found, one, mapping, minor)
    for gate in _gates(wanted, minor):
        message = f"feature gate {gate} of Kueue is switched on, without which it counts no such claims"
        advice = "Take it out before you upgrade to Kueue 0.18, which refuses it." if gate == _OLD_GATE else ""
        found.say(QUOTA, one.path or ("featureGates",), message, severity=Severity.INFO, fixed=True, advice=advice)


def _names(inner: Document) -> set[object]:
    return {one.get("name") for one in dicts(value_at(inner.obj, _MAPPINGS))}


def _mapping_edits(inner: Document, wanted: Sequence[ClassMapping]) -> Iterator[Edit]:
    there = len(dicts(value_at(inner.obj, _MAPPINGS)))
    for index, mapping in enumerate(wanted, there):
        yield Put((*_MAPPINGS, index), mapping.entry)


def _gate_edits(found: Found, one: Configuration, wanted: Sequence[ClassMapping], minor: int | None) -> Iterator[Edit]:
    """Gates of the command line and of the configuration exclude each other."""
    assert one.inner is not None
    gates = _gates(wanted, minor)
    listed = value_at(found.obj, _CHART_GATES) if one.path else None
    for gate in gates:
        if isinstance(listed, list) and listed:
            if not any(given.get("name") == gate for given in dicts(listed)):
                place: Path = (*_CHART_GATES, len(listed) + gates.index(gate))
                found.edits.append(Put(place, {"name": gate, "enabled": True}))
        elif not _is_on(one.inner, gate):
            yield Put(("featureGates", gate), True)


def _gates(wanted: Sequence[ClassMapping], minor: int | None) -> list[str]:
    gates = [_OLD_GATE] if minor is not None and minor < 18 else []
    if any(mapping.source is not None and "capacity" in mapping.source for mapping in wanted):
        gates.append(_CAPACITY_GATE)
    return gates


def _say_mapped(found: Found, one: Configuration, mapping: ClassMapping, minor: int | None) -> None:
    counted = "devices" if mapping.source is None else next(iter(mapping.source.values()))["name"]
    message = f"{mapping.name} counts {counted} of class {' and '.join(mapping.classes)}"
    advice = "" if minor is not None else VERSIONS
    if mapping.source is not None:
        advice = (
            f"Sources need Kueue 0.19{'; those of capacity are alpha there' if 'capacity' in mapping.source else ''}."
        )
    found.say(QUOTA, one.path or ("resources",), message, severity=Severity.INFO, fixed=True, advice=advice)


VERSIONS = (
    "Kueue counts claims from 0.18 on; 0.14 to 0.17 need their feature gate DynamicResourceAllocation for it. Restart "
    "its manager, which reads the configuration when it starts."
)


def _add(mappings: Iterable[ClassMapping]) -> str:
    entries = " ".join(f"`- {{name: {one.name}, deviceClassNames: [{', '.join(one.classes)}]}}`" for one in mappings)
    return f"Add under `resources.deviceClassMappings`: {entries}."


def _unread(found: Found, one: Configuration, mappings: Sequence[ClassMapping]) -> None:
    for mapping in mappings:
        message = f"{mapping.name} is to be mapped to class {' and '.join(mapping.classes)} in this text"
        found.say(NOT_EDITABLE, one.path, message, advice=_add([mapping]))


def _transformations(found: Found, one: Configuration) -> None:
    assert one.inner is not None
    for index, given in enumerate(dicts(value_at(one.inner.obj, ("resources", "transformations")))):
        if MENTION.search(str(given.get("input"))):
            message = f"the transformation of {given['input']} is of pods' resources; claims are counted by `sources`"
            advice = "Take it out when no pod asks for the resource any more."
            found.say(QUOTA, one.path or ("resources", "transformations", index), message, advice=advice)


# -- where there is none


def configuration_file(mappings: Sequence[ClassMapping], minor: int | None) -> Source:
    """What is to be merged into the configuration that is not among the files. `kubectl` cannot apply it."""
    note = (
        "What Kueue's configuration needs besides: merge it into the text controller_manager_config.yaml of ConfigMap "
        "kueue-manager-config, namespace kueue-system, or into managerConfig.controllerManagerConfigYaml of its "
        "chart's values; or migrate again with either among the files.\n" + VERSIONS
    )
    gates = _gates(mappings, minor)
    obj = {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": "Configuration",
        **({"featureGates": dict.fromkeys(gates, True)} if gates else {}),
        "resources": {"deviceClassMappings": [one.entry for one in mappings]},
    }
    return Source(FILE, written([Noted(note, obj)]))


def say_missing(found: Found, mappings: Collection[ClassMapping]) -> None:
    for mapping in mappings:
        message = f"Kueue counts {mapping.name} when its configuration maps class {' and '.join(mapping.classes)} to it"
        advice = f"Merge {FILE} into it, or migrate again with it among the files. {_add([mapping])}"
        found.say(QUOTA, (), message, advice=advice)


# -- the way back


def holds_configuration(document: Document) -> bool:
    return any(True for _ in configurations_in(document))


def unmapped(document: Document) -> Iterator[Edit]:
    """What takes out the mappings that the migration put in, and the gates that mappings need where none is left."""
    for one in configurations_in(document):
        if one.inner is None:
            continue
        entries = dicts(value_at(one.inner.obj, _MAPPINGS))
        ours = [index for index, entry in enumerate(entries) if str(entry.get("name")).startswith(PREFIX)]
        edits: list[Edit] = [Remove((*_MAPPINGS, index)) for index in ours]
        if edits and len(ours) == len(entries):
            gates = (_OLD_GATE, _CAPACITY_GATE)
            edits += [Remove(("featureGates", gate)) for gate in gates if _is_on(one.inner, gate)]
            listed = dicts(value_at(document.obj, _CHART_GATES))
            yield from (
                Remove((*_CHART_GATES, index)) for index, gate in enumerate(listed) if gate.get("name") in gates
            )
        if edits and one.path:
            text = value_at(document.obj, one.path)
            yield Put(one.path, spliced(text, rewritten({one.inner: edits}).splices))
        else:
            yield from edits


def _is_on(inner: Document, gate: str) -> bool:
    return value_at(inner.obj, ("featureGates", gate)) is True
