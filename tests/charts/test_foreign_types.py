"""What the chart makes of other projects' kinds, by the schemas of those projects, on a real API server.

GPU_DRA_TEST_CRDS names a folder with the definitions of cert-manager, prometheus-operator and OpenShift's
SecurityContextConstraints (`support.real_crds`); a kind that is not among them is skipped.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from support import real_api_server
from support.chart_values import VARIANTS
from support.foreign_types import EVERYTHING_SERVED
from support.helm import Object
from support.real_crds import CRDS, Server, crds_folder, crds_in, lost

type Render = Any

KINDS = {
    "PodMonitor": "defaults",
    "ServiceMonitor": "service-monitors",
    "PrometheusRule": "defaults",
    "SecurityContextConstraints": "defaults",
    "Certificate": "webhook-own-authority",
    "Issuer": "webhook-own-authority",
}
"""Each with the variant of the values that has it."""
GROUPS = ("monitoring.coreos.com", "cert-manager.io", "security.openshift.io")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: on the one of the other tests, these kinds take anything."""
    folder = crds_folder()
    running = real_api_server.start(real_api_server.assets_folder(), tmp_path_factory.mktemp("foreign"))
    try:
        server = Server(running)
        server.define(crd for crd in crds_in(folder) if crd["spec"]["group"] in GROUPS)
        yield server
    finally:
        running.stop()


def made(render: Render, variant: str, kind: str) -> list[Object]:
    objects: list[Object] = render(VARIANTS[variant], before=EVERYTHING_SERVED).all(kind)
    assert objects
    return objects


@pytest.mark.parametrize("kind", KINDS)
def test_their_definitions_take_what_the_chart_makes_and_drop_nothing(
    kind: str, foreign: Server, render: Render
) -> None:
    for obj in made(render, KINDS[kind], kind):
        if not foreign.knows(obj):
            pytest.skip(f"no definition of {kind} in {CRDS}")
        answer = foreign.tried(obj)
        assert answer.taken, answer.message
        assert list(lost(obj, answer.body)) == []


def test_an_issuer_of_the_users_is_taken_as_it_is_given(foreign: Server, render: Render) -> None:
    (obj,) = made(render, "webhook-cert-manager", "Certificate")
    if not foreign.knows(obj):
        pytest.skip(f"no definition of Certificate in {CRDS}")
    answer = foreign.tried(obj)
    assert answer.taken, answer.message
    assert list(lost(obj, answer.body)) == []


def test_a_field_that_they_do_not_know_is_refused(foreign: Server, render: Render) -> None:
    """So the tests above can fail."""
    (obj, *_) = made(render, "defaults", "PodMonitor")
    if not foreign.knows(obj):
        pytest.skip(f"no definition of PodMonitor in {CRDS}")
    answer = foreign.tried({**obj, "spec": {**obj["spec"], "podMetricsEndpoint": []}})
    assert not answer.taken and "podMetricsEndpoint" in answer.message
