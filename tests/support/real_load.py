"""Claims that come and go all the time on a real cluster; see tests/e2e."""

import threading
from types import TracebackType
from typing import Self

import yaml
from support.real_cluster import IMAGE, get, kubectl, until

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
"""


def pod(name: str, command: str = "sleep 100000", node: str | None = None) -> str:
    """On any node, or on this."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-c", command],
                        "resources": {"claims": [{"name": "gpu"}]},
                    }
                ],
            },
        }
    )


class Load:
    """Pods on a node that claim a GPU by template `one`, one after the other: each prepares and unprepares a claim.

    Leaving fails when one of them did not get to its end.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.done = 0
        self.trouble: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self.trouble, self.trouble

    def more(self, pods: int) -> None:
        """Until as many more have come and gone, or one could not."""
        wanted = self.done + pods
        until(lambda: self.trouble or self.done >= wanted, "claims come and go", 120)

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                name = f"load-{self._node}-{self.done}"
                kubectl("apply", "-f", "-", content=pod(name, "ls /dev/nvidiactl", self._node))
                until(lambda name=name: phase(name) in ("Succeeded", "Failed"), f"{name} ends", 90)  # type: ignore[misc]
                assert phase(name) == "Succeeded", kubectl("describe", "pod", name)
                kubectl("delete", "pod", name)
                self.done += 1
        except AssertionError as error:
            self.trouble.append(str(error))


def phase(name: str) -> str:
    return str(get("pod", name).get("status", {}).get("phase"))


def refused_prepares() -> list[str]:
    reasons = ("FailedPrepareDynamicResources", "PrepareFailed")
    return [
        event.get("message", event.get("note", ""))
        for event in get("events", "-A")["items"]
        if event["reason"] in reasons
    ]
