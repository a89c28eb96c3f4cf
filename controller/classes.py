"""A DeviceClass for each MIG profile that a node publishes: `1g.10gb.mig.nvidia.com` instead of a selector.

Profiles depend on the GPUs of the cluster, so these classes cannot be files. The publisher reports what it publishes
(`published`); `run` creates missing classes and restores changed ones. A class stays when its last device disappears,
so that a waiting claim reports a missing device rather than a missing class. An administrator may delete such a class;
it returns when a node publishes the profile again. The controller manages only classes with its label, and does not
change a class of the same name without it.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence

import structlog

from dra_driver.api.meta import DEVICE_CLASSES, JsonObject
from dra_driver.api.resource import Device
from dra_driver.errors import AlreadyExists, ClusterError, Conflict, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff, Mirror, MirrorChange
from dra_driver.runtime.tracing import OFF, Tracer

_log = structlog.get_logger(__name__)

LABEL = "app.kubernetes.io/managed-by"
OWNER = "gpu-dra-controller"

_DOMAIN = "mig.nvidia.com"
_PROFILE = re.compile(r"([1-8]c\.)?[1-8]g\.\d{1,5}gb([+-][a-z]+(\.[a-z]+)*)*")
_LONGEST = 59
"""With `mig-` before it, a profile is the name of an extended resource, which has 63 characters."""
MOST_CLASSES = 512
"""Several times what all GPU models have. Profiles come from nodes, classes stay, and a node may be compromised."""


def class_name(profile: str) -> str:
    """`1g.10gb+me` to `1g.10gb-me.mig.nvidia.com`, `1g.10gb-me` to `1g.10gb-nome.mig.nvidia.com`: an object's name."""
    return profile.replace("-", "-no").replace("+", "-") + f".{_DOMAIN}"


def profiles_of(devices: Iterable[Device]) -> frozenset[str]:
    """The MIG profiles among published devices."""
    results = set()
    for device in devices:
        kind, profile = device.attributes.get("type"), device.attributes.get("profile")
        if kind is not None and kind.string == "mig" and profile is not None and profile.string is not None:
            results.add(profile.string)
    return frozenset(profile for profile in results if len(profile) <= _LONGEST and _PROFILE.fullmatch(profile))


def wanted_class(profile: str, driver: str, *, extended_resource: bool) -> JsonObject:
    """The class of one profile. With `extended_resource`, pods can also request it as `nvidia.com/mig-1g.10gb`."""
    expression = (
        f"device.driver == '{driver}' && device.attributes['{driver}'].type == 'mig'"
        f" && device.attributes['{driver}'].profile == '{profile}'"
    )
    spec: JsonObject = {"selectors": [{"cel": {"expression": expression}}]}
    if extended_resource:
        # The device plugin's spelling; `+` cannot be part of a resource's name.
        spec["extendedResourceName"] = f"nvidia.com/mig-{profile.replace('+', '.')}"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": class_name(profile), "labels": {LABEL: OWNER}},
        "spec": spec,
    }


def is_profile_class(observed: JsonObject, driver: str) -> bool:
    """Whether the server's object is one of the classes that this module creates for `driver`."""
    if (observed["metadata"].get("labels") or {}).get(LABEL) != OWNER:
        return False
    selectors = (observed.get("spec") or {}).get("selectors") or ()
    return any(
        f"device.driver == '{driver}'" in selector.get("cel", {}).get("expression", "") for selector in selectors
    )


class ProfileClasses:
    """Maintains the classes of published profiles, in one event loop; `run` runs until cancelled."""

    def __init__(self, kube: Kube, driver: str, *, extended_resources: bool, tracer: Tracer = OFF) -> None:
        self._kube = kube
        self._tracer = tracer
        self._driver = driver
        self._extended_resources = extended_resources
        self._published: dict[str, frozenset[str]] = {}
        self._news = asyncio.Event()
        self._classes = Mirror(kube, DEVICE_CLASSES, keep=_needed_parts, on_change=self._changed)
        self._retry = Backoff(first_s=1.0, longest_s=60.0)
        self._logged: set[str] = set()
        self._full = False

    def published(self, pool: str, devices: Sequence[Device]) -> None:
        """Reports the current devices of a pool."""
        profiles = profiles_of(devices)
        if self._published.get(pool, frozenset()) != profiles:
            self._published[pool] = profiles
            self._news.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._classes.run())
            await self._classes.synced.wait()
            while True:
                try:
                    with self._tracer.span("keep classes", {}):
                        await self._settle()
                except ClusterError as error:
                    wait_s = max(self._retry.next_s(), error.retry_after_s or 0.0)
                    _log.warning("cannot update the DeviceClasses of MIG profiles", error=str(error), retry_s=wait_s)
                    await asyncio.sleep(wait_s)
                    continue
                self._retry.reset()
                await self._news.wait()
                self._news.clear()

    def _changed(self, change: MirrorChange[JsonObject]) -> None:
        self._news.set()

    async def _settle(self) -> None:
        """Raises ClusterError: at once if the API server is unreachable, at the end if it refused a class."""
        refused: Rejected | None = None
        room = MOST_CLASSES - sum(map(_is_ours, self._classes.objects.values()))
        for profile in sorted(frozenset().union(*self._published.values())):
            wanted = wanted_class(profile, self._driver, extended_resource=self._extended_resources)
            observed = self._classes.objects.get(("", wanted["metadata"]["name"]))
            try:
                if observed is None and room <= 0:
                    self._tell_full(profile)
                elif observed is None:
                    room -= 1
                    await self._kube.create(DEVICE_CLASSES, wanted)
                    _log.info("class made", name=wanted["metadata"]["name"])
                elif not _is_ours(observed):
                    self._leave(wanted["metadata"]["name"])
                elif observed["spec"] != wanted["spec"]:
                    metadata = {**wanted["metadata"], "resourceVersion": observed["metadata"]["resourceVersion"]}
                    await self._kube.replace(DEVICE_CLASSES, {**wanted, "metadata": metadata})
                    _log.info("DeviceClass restored", name=wanted["metadata"]["name"])
            except (AlreadyExists, Conflict, NotFound):
                continue  # the watch will report the change, and then this runs again
            except Rejected as error:
                refused = refused or error  # classes of the other profiles come first
        if refused is not None:
            raise refused

    def _leave(self, name: str) -> None:
        if name not in self._logged:
            self._logged.add(name)
            _log.info("a DeviceClass of this name does not belong to this driver and stays unchanged", name=name)

    def _tell_full(self, profile: str) -> None:
        """Once, because there may be thousands of profiles."""
        if not self._full:
            self._full = True
            _log.error(
                f"there are {MOST_CLASSES} DeviceClasses of MIG profiles, and no more are made; delete those of"
                " profiles that no node has",
                profile=profile,
            )


def _needed_parts(obj: JsonObject) -> JsonObject:
    """The parts of a class that are needed; the mirror drops the rest."""
    metadata = obj["metadata"]
    return {
        "metadata": {
            "name": metadata["name"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": metadata.get("labels") or {},
        },
        "spec": obj.get("spec") or {},
    }


def _is_ours(observed: Mapping[str, JsonObject]) -> bool:
    return bool(observed["metadata"]["labels"].get(LABEL) == OWNER)
