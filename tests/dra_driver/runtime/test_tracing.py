"""Spans: where they go, what they are part of, and that a service which is not traced pays nothing."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from support.rows import rows
from support.spans import Recorder, collecting

from dra_driver.api.meta import NODES
from dra_driver.errors import InvalidInput, NotFound
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.runtime import otel
from dra_driver.runtime.tracing import OFF, OUTCOME, endpoint_asked_for, open_tracer
from dra_driver.simulation.apiserver.server import SimulatedApiServer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@rows(
    "setting, environment, endpoint",
    [
        ("", {}, None),
        ("http://a:4317", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4317"}, "http://a:4317"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4317"}, "http://b:4317"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "b", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "c"}, "c"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "b", "OTEL_SDK_DISABLED": "True"}, None),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "b", "OTEL_TRACES_EXPORTER": "none"}, None),
        ("http://a:4317", {"OTEL_TRACES_EXPORTER": "none"}, "http://a:4317"),
    ],
)
def test_the_setting_wins_over_the_standard_variables(
    setting: str, environment: dict[str, str], endpoint: str | None
) -> None:
    assert endpoint_asked_for(setting, environment) == endpoint


def test_programs_that_are_not_traced_import_nothing_for_it() -> None:
    script = (
        "import sys, kubelet_plugin.main, controller.main\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or name == 'dra_driver.runtime.otel'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_without_an_endpoint_there_is_the_tracer_that_does_nothing() -> None:
    async with open_tracer(None, "service") as tracer:
        assert tracer is OFF
        with tracer.span("a", {}) as span, tracer.request("get", "nodes") as headers:
            span.tell({"b": 1})
            assert headers == {}


async def test_without_the_packages_the_setting_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dra_driver.runtime.otel", None)
    with pytest.raises(InvalidInput, match="install opentelemetry-sdk and"):
        async with open_tracer("http://collector:4317", "service"):
            pass


async def test_an_exception_is_the_outcome_of_a_span_and_goes_on() -> None:
    recorder = Recorder()
    with pytest.raises(NotFound), recorder.tracer.span("look", {"a": "b"}) as span:
        span.tell({"c": 1})
        raise NotFound("no such thing", about="Node x")
    look = recorder.span("look")
    assert recorder.attributes("look") == {"a": "b", "c": 1, OUTCOME: "NotFound"}
    assert (look.status.status_code, look.status.description) == (StatusCode.ERROR, "Node x: no such thing")


async def test_requests_are_part_of_what_they_are_made_for_and_the_server_learns_of_it(
    api_server: SimulatedApiServer,
) -> None:
    recorder = Recorder()
    sent: list[dict[str, str]] = []

    def traced(verb: str, resource: str) -> Any:
        return _noting(recorder.tracer.request(verb, resource), sent)

    async with Kube(Endpoint(server=api_server.url), traced=traced) as kube:
        await kube.list(NODES)  # for nobody in particular
        with recorder.tracer.span("publish", {}):
            await kube.list(NODES)
            with pytest.raises(NotFound):
                await kube.get(NODES, "missing")
    publish = recorder.span("publish")
    assert recorder.below(publish) == ["list nodes", "get nodes"]
    assert recorder.attributes("get nodes")[OUTCOME] == "NotFound"
    assert recorder.span("list nodes").kind is SpanKind.CLIENT
    assert sent[0] == {}
    span = recorder.span("list nodes").context
    assert sent[1]["traceparent"].startswith(f"00-{span.trace_id:032x}-{span.span_id:016x}-")


class _noting:
    def __init__(self, inner: Any, sent: list[dict[str, str]]) -> None:
        self._inner, self._sent = inner, sent

    def __enter__(self) -> Any:
        headers = self._inner.__enter__()
        self._sent.append(dict(headers))
        return headers

    def __exit__(self, *error: Any) -> Any:
        return self._inner.__exit__(*error)


@pytest.mark.parametrize("parent", [None, "nonsense", "00-zz-yy-01", "00-" + 32 * "0" + "-b7ad6b7169203331-01"])
async def test_a_parent_that_makes_no_sense_changes_nothing(parent: str | None) -> None:
    recorder = Recorder()

    async def call() -> None:
        recorder.tracer.adopt(parent)
        with recorder.tracer.span("work", {}):
            pass

    await asyncio.create_task(call())
    assert recorder.span("work").parent is None


async def test_what_a_task_adopts_is_its_own_matter() -> None:
    recorder = Recorder()

    async def call(parent: str | None) -> None:
        recorder.tracer.adopt(parent)
        await asyncio.sleep(0)
        with recorder.tracer.span("with" if parent else "without", {}):
            pass

    await asyncio.gather(call(PARENT), call(None))
    assert recorder.span("without").parent is None
    parent = recorder.span("with").parent
    assert parent is not None
    assert f"00-{parent.trace_id:032x}-{parent.span_id:016x}-01" == PARENT


async def test_what_is_left_at_the_end_is_sent_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.namespace=gpus")
    with collecting() as collector:
        async with open_tracer(collector.url, "gpu-dra-kubelet-plugin", "node-1") as tracer:
            with tracer.span("publish", {"gpu_dra.pool": "node-1"}):
                tracer.ended("step", 0.5, "ok")
    ((resource_spans,),) = [request.resource_spans for request in collector.received]
    about = {attribute.key: attribute.value.string_value for attribute in resource_spans.resource.attributes}
    assert (about["service.name"], about["k8s.node.name"]) == ("gpu-dra-kubelet-plugin", "node-1")
    assert (about["deployment.environment.name"], about["service.namespace"]) == ("test", "gpus")
    step, publish = resource_spans.scope_spans[0].spans
    assert (step.name, step.parent_span_id, publish.name) == ("step", publish.span_id, "publish")
    assert step.end_time_unix_nano - step.start_time_unix_nano == 500_000_000


async def test_a_name_of_the_standard_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    recorder = Recorder()
    with recorder.tracer.span("a", {}):
        pass
    assert recorder.span("a").resource.attributes["service.name"] == "ours"


class Stuck(SpanProcessor):
    """One that cannot get rid of what it has, because its collector does not answer."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def shutdown(self) -> None:
        self.asked.set()
        self.answer.wait()


def test_a_collector_that_does_not_answer_keeps_no_service_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "_LAST_WORD_S", 0.05)
    stuck = Stuck()
    otel.OtelTracer(stuck, "service").close()
    assert stuck.asked.is_set() and not stuck.answer.is_set()
    stuck.answer.set()
