"""A DeviceClass for each MIG profile that a node publishes: `1g.10gb.mig.nvidia.com` instead of a selector.

Profiles depend on the GPUs of the cluster, so these classes cannot be files. The publisher reports what it publishes
(`published`); `run` creates missing classes and restores changed ones. A class stays when its last device disappears,
so that a waiting claim reports a missing device rather than a missing class. An administrator may delete such a class;
it returns when a node publishes the profile again. The controller manages only classes with its label, and does not
change a class of the same name without it.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence

import structlog

from dra_driver.api.meta import DEVICE_CLASSES, JsonObject
from dra_driver.api.resource import Device
from dra_driver.errors import AlreadyExists, ClusterError, Conflict, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff, Mirror
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
    selectors = (observed.get("spec") or {}).get("selectors") or ()
    expressions = [selector.get("cel", {}).get("expression", "") for selector in selectors]
    return _is_ours(observed) and any(f"device.driver == '{driver}'" in expression for expression in expressions)


class ProfileClasses:
    """Maintains the classes of published profiles, in one event loop; `run` runs until cancelled."""

    def __init__(self, kube: Kube, driver: str, *, extended_resources: bool, tracer: Tracer = OFF) -> None:
        self._kube = kube
        self._tracer = tracer
        self._driver = driver
        self._extended_resources = extended_resources
        self._published: dict[str, frozenset[str]] = {}
        self._news = asyncio.Event()
        self._classes = Mirror(kube, DEVICE_CLASSES, keep=_needed_parts, on_change=lambda _: self._news.set())
        self._retry = Backoff(first_s=1.0, longest_s=60.0)
        self._left: set[str] = set()
        """Names of classes of others, each logged once."""
        self._full = False
        """Whether it was logged that there are too many: once, because there may be thousands of profiles."""

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

    async def _settle(self) -> None:
        """Raises ClusterError: at once if the API server is unreachable, at the end if it refused a class."""
        refused: Rejected | None = None
        room = MOST_CLASSES - sum(map(_is_ours, self._classes.objects.values()))
        for profile in sorted(frozenset().union(*self._published.values())):
            wanted = wanted_class(profile, self._driver, extended_resource=self._extended_resources)
            name = wanted["metadata"]["name"]
            observed = self._classes.objects.get(("", name))
            try:
                if observed is None and room <= 0:
                    if not self._full:
                        _log.error(
                            f"there are {MOST_CLASSES} DeviceClasses of MIG profiles, and no more are made; delete"
                            " those of profiles that no node has",
                            profile=profile,
                        )
                    self._full = True
                elif observed is None:
                    room -= 1
                    await self._kube.create(DEVICE_CLASSES, wanted)
                    _log.info("class made", name=name)
                elif not _is_ours(observed):
                    if name not in self._left:
                        _log.info("a DeviceClass of this name is not this driver's and stays unchanged", name=name)
                    self._left.add(name)
                elif observed["spec"] != wanted["spec"]:
                    metadata = {**wanted["metadata"], "resourceVersion": observed["metadata"]["resourceVersion"]}
                    await self._kube.replace(DEVICE_CLASSES, {**wanted, "metadata": metadata})
                    _log.info("DeviceClass restored", name=name)
            except (AlreadyExists, Conflict, NotFound):
                continue  # the watch will report the change, and then this runs again
            except Rejected as error:
                refused = refused or error  # classes of the other profiles come first
        if refused is not None:
            raise refused


def _needed_parts(obj: JsonObject) -> JsonObject:
    """The parts of a class that are needed; the mirror drops the rest."""
    metadata = {name: obj["metadata"].get(name) for name in ("name", "resourceVersion", "labels")}
    return {"metadata": metadata, "spec": obj.get("spec") or {}}


def _is_ours(observed: JsonObject) -> bool:
    return bool((observed["metadata"].get("labels") or {}).get(LABEL) == OWNER)
