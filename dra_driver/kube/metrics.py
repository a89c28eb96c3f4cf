"""What Prometheus may know of calls to the API server: counted where they end, for `dra_driver.kube.client.Kube`."""

from prometheus_client import CollectorRegistry, Counter

from dra_driver.api.meta import Resource


class ApiCalls:
    """Counts answers. A watch is counted when it begins, and again, with `none`, when it breaks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "gpu_dra_api_requests",
            "Requests to the API server, by verb, resource and HTTP status; `none`: no answer.",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self._errors = Counter(
            "gpu_dra_api_errors",
            "Requests that the API server refused or did not answer; conflicts and what is not there are no errors.",
            ["verb", "code"],
            registry=registry,
        )

    def answered(self, verb: str, resource: Resource | None, status: int | None) -> None:
        """`status` None: there was no answer."""
        code = "none" if status is None else str(status)
        plural = "" if resource is None else resource.plural
        self._answers.labels(verb, plural, code).inc()
        if status is None or (status >= 400 and status not in (404, 409, 410)):
            self._errors.labels(verb, code).inc()
