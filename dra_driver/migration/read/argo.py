"""What pods of Argo's templates have from elsewhere in the workflow: where they run, and patches. Pure.

A template without a field has its defaults' or the workflow's, or that of the template whose step it is; one that has
the field has nothing of the others'. So whoever gives a template tolerations of its own repeats those that it had.
Source: Argo Workflows, workflow/controller: addSchedulingConstraints, mergedTemplateDefaultsInto, processPodSpecPatch.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Path, value_at
from dra_driver.migration.read.unrendered import asks_for_gpus, gpu_keys

_FIELDS = ("nodeSelector", "affinity", "schedulerName")
_STEPS = ("steps", "dag")
_CHOOSES = re.compile(r"nvidia\.com/(?:gpu|cuda|mig)[.-]|NVIDIA_VISIBLE_DEVICES")
"""Labels of nodes, and the variable; not a toleration."""


def inherited(workflow: JsonObject, template: JsonObject) -> JsonObject:
    """Fields of a template's pod that the template does not have. `workflow` is the spec with all templates."""
    sources = _sources(workflow)
    found = {}
    for name in _FIELDS:
        values = [source[name] for source in sources if source.get(name)]
        if values and not template.get(name):
            found[name] = values[0]
    if not template.get("tolerations") and not _defaults(workflow).get("tolerations"):
        steps = [item for item in _listed(workflow.get("templates")) if any(name in item for name in _STEPS)]
        listed = [each for item in (workflow, *steps) for each in _listed(item.get("tolerations"))]
        if listed:
            found["tolerations"] = [item for index, item in enumerate(listed) if item not in listed[:index]]
    return found


def asks_by_patch(workflow: JsonObject, template: JsonObject) -> bool:
    """Whether a patch of its pod has amounts of GPUs, which would come to those of a claim."""
    patches = (template.get("podSpecPatch") or _defaults(workflow).get("podSpecPatch"), workflow.get("podSpecPatch"))
    return any(isinstance(patch, str) and _has_amounts(patch) for patch in patches)


def choosing_patches(workflow: JsonObject, path: Path) -> Iterator[Path]:
    """Where patches of pods choose GPUs without asking for them. `path` is that of the workflow's spec."""
    templates = enumerate(_listed(workflow.get("templates")))
    places: list[tuple[Path, Mapping[str, Any]]] = [
        (path, workflow),
        ((*path, "templateDefaults"), _defaults(workflow)),
        *(((*path, "templates", index), one) for index, one in templates),
    ]
    for where, item in places:
        patch = item.get("podSpecPatch")
        if isinstance(patch, str) and _CHOOSES.search(patch) is not None and not asks_for_gpus(patch):
            yield (*where, "podSpecPatch")


def _sources(workflow: JsonObject) -> tuple[Mapping[str, Any], ...]:
    return _defaults(workflow), workflow


def _defaults(workflow: JsonObject) -> JsonObject:
    found = workflow.get("templateDefaults")
    return found if isinstance(found, dict) else {}


def _listed(value: object) -> Sequence[JsonObject]:
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []


def _has_amounts(patch: str) -> bool:
    try:
        found = yaml.safe_load(patch)
    except yaml.YAMLError:
        return asks_for_gpus(patch)
    return any(path[-2:-1] in (("limits",), ("requests",)) for path in gpu_keys(found))


def workflow_of(obj: JsonObject, where: str) -> JsonObject:
    found = value_at(obj, tuple(where.split(".")))
    return found if isinstance(found, dict) else {}
