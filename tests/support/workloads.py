"""A small world that carries out what workload controllers decide, in steps, without a server."""

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

from dra_driver.api.meta import wire_time
from dra_driver.simulation.apiserver.patch import merge_patch
from dra_driver.simulation.workloads.controller import WORKLOADS

type Obj = dict[str, Any]

DECIDE = {(resource.api_version, resource.kind): decide for resource, decide in WORKLOADS.items()}
TEMPLATE = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "one"}]},
}


class WorkloadWorld:
    """Objects by kind and name. Pods run and are ready in the step after they are made, unless `sick` says no, and they
    are gone two steps after their deletion."""

    def __init__(self, kind: str, sick: Callable[[Obj], bool] = lambda pod: False, **spec: Any) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.sick = sick
        self.objects: dict[tuple[str, str], Obj] = {}
        self._made = 0
        self._seen_ending: set[str] = set()
        version = next(version for version, known in DECIDE if known == kind)
        self.owner = self.add(
            {"apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": "n", "generation": 1}}
            | {"spec": {"template": deepcopy(TEMPLATE), "selector": {"matchLabels": {"app": "a"}}, **spec}}
        )

    def add(self, obj: Obj) -> Obj:
        self._made += 1
        metadata = obj["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}{self._made}"
        assert (obj["kind"], name) not in self.objects, f"{name} is made twice"
        metadata |= {"name": name, "uid": f"u{self._made}", "creationTimestamp": wire_time(self.now)}
        metadata.setdefault("resourceVersion", "1")
        self.objects[obj["kind"], name] = obj
        return obj

    def of(self, kind: str) -> list[Obj]:
        return [obj for (known, _), obj in self.objects.items() if known == kind]

    @property
    def pods(self) -> list[Obj]:
        return [pod for pod in self.of("Pod") if "deletionTimestamp" not in pod["metadata"]]

    @property
    def ending(self) -> list[Obj]:
        return [pod for pod in self.of("Pod") if "deletionTimestamp" in pod["metadata"]]

    def ready(self) -> list[Obj]:
        return [pod for pod in self.pods if pod.get("status", {}).get("conditions")]

    def step(self) -> bool:
        """Every workload decides once, and pods go on; whether anything changed."""
        before = deepcopy(self.objects)
        for pod in self.ending:
            if pod["metadata"]["uid"] in self._seen_ending:
                del self.objects["Pod", pod["metadata"]["name"]]
        self._seen_ending = {pod["metadata"]["uid"] for pod in self.ending}
        for obj in list(self.objects.values()):
            if (obj["apiVersion"], obj["kind"]) in DECIDE and (obj["kind"], obj["metadata"]["name"]) in self.objects:
                self._decide(obj)
        for pod in self.pods:
            if not pod.get("status") and not self.sick(pod):
                pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return before != self.objects or bool(self.ending)

    def settle(self, each: Callable[[], None] = lambda: None) -> None:
        for _ in range(200):
            changed = self.step()
            each()
            if not changed:
                return
        raise AssertionError("the workload never settles")

    def end(self, pod: Obj, phase: str) -> None:
        pod["status"] = {"phase": phase}
        self.now += timedelta(seconds=1)

    def change_template(self, image: str) -> None:
        self.owner["spec"]["template"]["spec"]["containers"][0]["image"] = image
        self.owner["metadata"]["generation"] += 1

    def _decide(self, obj: Obj) -> None:
        uid = obj["metadata"]["uid"]
        children = [
            item
            for item in self.objects.values()
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or ())
        ]
        plan = DECIDE[obj["apiVersion"], obj["kind"]](deepcopy(obj), deepcopy(children), self.now)
        for item in plan.delete:
            self._remove(item["metadata"]["uid"])
        for item, patch in plan.patch:
            key = item["kind"], item["metadata"]["name"]
            self._put(key, merge_patch(self.objects[key], patch))
        for item in plan.create:
            self.add(deepcopy(item))
        key = obj["kind"], obj["metadata"]["name"]
        if plan.status is not None and key in self.objects:
            self._put(key, merge_patch(self.objects[key], {"status": plan.status}))

    def _put(self, key: tuple[str, str], obj: Obj) -> None:
        self.objects[key].clear()
        self.objects[key].update(obj)

    def _remove(self, uid: str) -> None:
        for key, item in list(self.objects.items()):
            owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()]
            if item["metadata"]["uid"] == uid and item["kind"] == "Pod":
                item["metadata"]["deletionTimestamp"] = wire_time(self.now)
            elif item["metadata"]["uid"] == uid:
                del self.objects[key]
            elif uid in owners:
                self._remove(item["metadata"]["uid"])
