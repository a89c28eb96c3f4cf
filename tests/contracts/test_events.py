"""Our Events against both servers: accepted, continued as a series, and shown by the core group, too."""

from dataclasses import replace

from support.api import Api

from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.events import EVENTS_V1, EventRecorder, News, Regarding
from dra_driver.names import ClaimRef


async def test_events_on_claims_pods_and_nodes_are_accepted(api: Api, namespace: str, unique: str) -> None:
    header = f"Bearer {api.token}" if api.token else None
    async with Kube(Endpoint(api.url, api.ssl, lambda: header)) as kube:
        events = EventRecorder(kube, controller="gpu.nvidia.com/kubelet-plugin", instance=unique)
        of_node = News(Regarding.node(unique), "Warning", "GpuUnhealthy", "Watch", "GPU gpu-1: Xid 79.")
        claim = Regarding.claim(ClaimRef(namespace, "train", "uid-of-train"))
        of_claim = News(claim, "Normal", "Prepared", "Prepare", "ä" * 3000)
        for _ in range(2):
            events.tell(of_node)
            events.tell(of_claim)
            await events.write()
        of_pod = replace(of_claim, regarding=Regarding.pod(namespace, "train-0", "uid-of-train-0"))
        for _ in range(2):
            await events.write_once(of_pod, "the same news")
        assert not events.dropped
        (about_pod, stored) = sorted(
            (await kube.list(EVENTS_V1, namespace=namespace)).items, key=lambda event: event["regarding"]["kind"]
        )
        assert (about_pod["regarding"]["uid"], "series" in about_pod) == ("uid-of-train-0", False)
        assert (stored["series"]["count"], stored["reportingInstance"]) == (2, unique)
        listed = (await kube.list(EVENTS_V1, namespace="default")).items
        (about_node,) = [event for event in listed if event["regarding"]["name"] == unique]
        assert about_node["series"]["count"] == 2
    core = (await api.get(f"/api/v1/namespaces/{namespace}/events"))["items"]
    assert {(event["involvedObject"]["name"], event["reason"]) for event in core} == {
        ("train", "Prepared"), ("train-0", "Prepared"),
    }  # fmt: skip
