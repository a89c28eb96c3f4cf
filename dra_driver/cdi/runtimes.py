"""CDI versions of container runtimes: the highest version that each release reads, and specs reduced to it. Pure. A
runtime rejects a whole spec file of an unknown version, and then no container of its claim starts.
"""

from collections.abc import Sequence
from dataclasses import replace

from dra_driver.cdi.model import VERSIONS, CdiSpec, ContainerEdits, spec_of

GROUPS_SINCE = "0.7.0"
"""The CDI version that added `additionalGids`."""
_ANNOTATIONS_SINCE = "0.6.0"

_RELEASES: dict[str, Sequence[tuple[tuple[int, ...], str]]] = {
    "containerd": (
        ((1, 7), "0.5.0"),
        ((1, 7, 12), "0.6.0"),
        ((1, 7, 16), "0.7.0"),
        ((1, 7, 27), "0.8.0"),
        ((2, 0, 5), "1.0.0"),
        ((2, 2, 1), "1.1.0"),
    ),
    "cri-o": (
        ((1, 23), "0.3.0"),
        ((1, 25), "0.5.0"),
        ((1, 28), "0.6.0"),
        ((1, 30), "0.7.0"),
        ((1, 31), "0.8.0"),
        ((1, 33), "1.0.0"),
        ((1, 35), "1.1.0"),
    ),
}
"""The first release that reads a version, oldest first. Source: go.mod of all release tags of containerd and CRI-O, and
`CurrentVersion` of the CDI library that it names."""


def readable_version(runtime: str) -> str | None:
    """The highest CDI version that `runtime` reads; None if unknown.

    `runtime` is `containerd://1.7.27-k3s1`, as in a Node's `status.nodeInfo.containerRuntimeVersion`.
    """
    name, _, version = runtime.partition("://")
    numbers = release_numbers(version)
    if len(numbers) < 2:
        return None
    readable = [cdi for since, cdi in _RELEASES.get(name, ()) if numbers >= since]
    return readable[-1] if readable else None


def release_numbers(version: str) -> tuple[int, ...]:
    """(1, 7, 27) for `1.7.27-k3s1`; empty if the text does not begin with numbers."""
    numbers = []
    for part in version.removeprefix("v").partition("-")[0].partition("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def reads(readable: str | None, version: str) -> bool:
    """Whether a runtime whose highest version is `readable` reads `version`. An unknown runtime reads all."""
    return readable is None or VERSIONS.index(readable) >= VERSIONS.index(version)


def fitted(spec: CdiSpec, readable: str | None) -> CdiSpec:
    """`spec` reduced to the version `readable`. Removes newer fields that containers do not need: annotations, which
    are for people, and groups. Without the groups, a restricted device node still belongs to the user that the
    container starts as (CDI library, since 0.5), so only programs that change their user in the container lose access.
    """
    if reads(readable, spec.cdi_version):
        return spec
    if not reads(readable, GROUPS_SINCE):
        devices = tuple(
            replace(device, container_edits=_without_groups(device.container_edits)) for device in spec.devices
        )
        spec = replace(spec, devices=devices, container_edits=_without_groups(spec.container_edits))
    annotations = spec.annotations if reads(readable, _ANNOTATIONS_SINCE) else {}
    return spec_of(spec.kind, spec.devices, spec.container_edits, annotations)


def _without_groups(edits: ContainerEdits) -> ContainerEdits:
    return replace(edits, additional_gids=()) if edits.additional_gids else edits
