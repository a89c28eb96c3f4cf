"""The chart's part of the webhook: what it makes, what it leaves to the controller, and what it takes away when."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart_values import VARIANTS
from support.foreign_types import EVERYTHING_SERVED
from support.helm import CHART, NAMESPACE, Cluster, Helm, HelmError, Object, ServerThread
from support.permissions import faults
from support.ports import free_port
from support.reviews import BAD, an_object, config
from support.rows import slow_but

from controller import uninstall
from controller.settings import WebhookSettings, read_settings
from controller.webhook.configuration import CONFIGURATIONS, WebhookPlan, wanted_webhooks
from controller.webhook.worker import MEMORY_BYTES
from dra_driver.api.meta import Resource
from dra_driver.errors import Rejected
from dra_driver.kube.client import Kube
from tests.charts.test_permissions import CONTROLLER, done_by, granted, names_in, ours
from tests.charts.test_settings import given

type Render = Any

NAME = "gpu-dra-driver-webhook"
ON = VARIANTS["webhook"]
FILLED = [
    {
        "name": "refuse.resourceclaims.gpu.nvidia.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/review"},
        "rules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["v1"],
                "resources": ["resourceclaims"],
                "operations": ["CREATE"],
            }
        ],
    }
]


def settings_of(release: Any) -> WebhookSettings:
    words = [f"{flag}={value}" for flag, value in given(release, "Deployment").items() if "webhook" in flag]
    webhook_settings = read_settings([*words, f"--lease-namespace={NAMESPACE}"], {}).webhook
    assert webhook_settings is not None
    return webhook_settings


def test_the_controller_is_told_of_the_objects_that_the_chart_makes(render: Render) -> None:
    release = render(ON)
    settings = settings_of(release)
    assert release.object("ValidatingWebhookConfiguration")["metadata"]["name"] == settings.configuration
    assert release.object("Secret")["metadata"]["name"] == settings.secret
    plan = WebhookPlan(settings, NAMESPACE, "gpu.nvidia.com")
    (asked, *_) = wanted_webhooks(plan, ())
    assert asked["clientConfig"]["service"] == {"namespace": NAMESPACE, "name": NAME, "port": 443, "path": "/review"}
    assert plan.names == (f"{NAME}.{NAMESPACE}.svc",)
    service = release.object("Service", NAME)
    (port,) = service["spec"]["ports"]
    pod = release.object("Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {exposed["name"]: exposed["containerPort"] for exposed in pod["spec"]["containers"][0]["ports"]}
    assert port["port"] == 443 and settings.endpoint == f":{ports[port['targetPort']]}"
    assert settings.exempt_namespaces == (NAMESPACE, "kube-system")
    assert settings.drain_s + 5 < pod["spec"]["terminationGracePeriodSeconds"]


def test_as_installed_nobody_is_asked_anything_and_the_certificate_is_not_there_yet(render: Render) -> None:
    release = render(ON)
    assert "webhooks" not in release.object("ValidatingWebhookConfiguration")
    assert "data" not in release.object("Secret")


@pytest.mark.parametrize("variant", ["webhook-cert-manager", "webhook-own-authority"])
def test_cert_manager_fills_the_secret_that_the_controller_reads(variant: str, render: Render) -> None:
    release = render(VARIANTS[variant], before=EVERYTHING_SERVED)
    settings = settings_of(release)
    assert not settings.issued_here and release.all("Secret") == []
    certificate = release.object("Certificate", NAME)["spec"]
    assert certificate["secretName"] == settings.secret
    assert tuple(certificate["dnsNames"]) == WebhookPlan(settings, NAMESPACE, "gpu.nvidia.com").names
    issuer = certificate["issuerRef"]
    if variant == "webhook-cert-manager":
        assert issuer == {"name": "company", "kind": "ClusterIssuer"} and release.all("Issuer") == []
    else:
        authority = release.object("Certificate", f"{NAME}-authority")["spec"]
        assert release.object("Issuer", issuer["name"])["spec"]["ca"]["secretName"] == authority["secretName"]
        assert authority["isCA"] and release.object("Issuer", authority["issuerRef"]["name"])["spec"] == {
            "selfSigned": {}
        }
    (rule,) = release.object("Role", NAME)["rules"]
    assert rule["verbs"] == ["list", "watch"] and rule["resourceNames"] == [settings.secret]
    (job,) = [hook for hook in release.hooks if hook["kind"] == "Job"]
    left = uninstall.read_settings(job["spec"]["template"]["spec"]["containers"][0]["args"], {}).secrets
    made = {issued["spec"]["secretName"] for issued in release.all("Certificate")}
    assert set(left) == made, "cert-manager leaves them behind, and the cleanup does not"
    (role,) = [hook for hook in release.hooks if hook["kind"] == "Role"]
    assert made == {
        name for rule in role["rules"] if rule["resources"] == ["secrets"] for name in rule["resourceNames"]
    }


def test_settings_reach_the_controller(render: Render) -> None:
    settings = settings_of(render(VARIANTS["webhook-cert-manager"], before=EVERYTHING_SERVED))
    assert (settings.failure_policy, settings.timeout_s, settings.drain_s) == ("Ignore", 3, 5.0)
    assert settings.endpoint == ":8443" and "monitoring" in settings.exempt_namespaces


def test_without_it_there_is_a_service_without_endpoints_and_nothing_else(render: Render) -> None:
    """Else the Service would go before the configuration that names it, whenever it is switched off."""
    release = render()
    assert release.object("Service", NAME)["spec"]["ports"][0]["targetPort"] == "webhook"
    ports = release.object("Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert [port["name"] for port in ports] == ["http"]
    left = [obj["kind"] for obj in release.objects if obj["metadata"]["name"].endswith("-webhook")]
    assert left == ["Service"]
    assert not [flag for flag in given(release, "Deployment") if "webhook" in flag]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"publisher": "node"}, "does not exist with publisher=node"),
        ({"controller": {"terminationGracePeriodSeconds": 15}}, "terminationGracePeriodSeconds must be more"),
    ],
)
def test_what_cannot_work_is_refused(values: Object, why: str, render: Render) -> None:
    with pytest.raises(HelmError, match=why):
        render({**ON, **values})


def webhooks(server: ServerThread) -> list[Object]:
    configurations = server.objects("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
    return [webhook for configuration in configurations for webhook in configuration.get("webhooks") or ()]


@pytest.mark.slow
def test_upgrades_leave_what_the_controller_filled_in_and_switching_off_takes_it_away_at_once(
    server: ServerThread, helm: Helm
) -> None:
    name = settings_of(helm.install(ON)).configuration

    async def fill(kube: Kube) -> None:
        await kube.merge_patch(CONFIGURATIONS, name, {"webhooks": FILLED})

    server.kube(fill)
    helm.upgrade({**ON, "logLevel": "debug"})
    assert [webhook["name"] for webhook in webhooks(server)] == [FILLED[0]["name"]]
    helm.upgrade({})
    assert webhooks(server) == []
    helm.upgrade(ON)
    assert webhooks(server) == [], "it begins anew"


def test_uninstalling_takes_the_configuration_away_before_whom_it_names(server: ServerThread, helm: Helm) -> None:
    helm.install({**ON, "cleanup": {"install": False}})
    server.server.writes.clear()
    helm.uninstall()
    gone = [write.path for write in server.server.writes if write.verb == "delete"]
    first = {kind: next(index for index, path in enumerate(gone) if f"/{kind}/" in path) for kind in KINDS}
    assert first["validatingwebhookconfigurations"] < first["services"] < first["deployments"]
    assert webhooks(server) == []


KINDS = ("validatingwebhookconfigurations", "services", "deployments")


CERT_MANAGER = {"webhook": {"install": True, "certificates": "cert-manager"}}
COMPANYS = {"webhook": {**CERT_MANAGER["webhook"], "issuerRef": {"name": "company", "kind": "ClusterIssuer"}}}
SECRET = "gpu-dra-driver-webhook"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("later", "left"),
    [
        ({}, set()),
        (COMPANYS, {f"{SECRET}-certificate"}),
        *slow_but(
            [
                (ON, {SECRET}),
                ({"publisher": "node"}, set()),
                (CERT_MANAGER, {f"{SECRET}-certificate", f"{SECRET}-authority"}),
            ]
        ),
    ],
    ids=["off", "another issuer", "self-managed", "no controller", "as before"],
)
def test_keys_that_cert_manager_leaves_behind_go_when_nobody_needs_them(
    later: Object, left: set[str], server: ServerThread, helm: Helm
) -> None:
    for served in EVERYTHING_SERVED:
        server.create(served)
    release = helm.install(CERT_MANAGER)
    for certificate in release.all("Certificate"):
        made_by_cert_manager(server, certificate["spec"]["secretName"], certificate["metadata"]["name"])
    made_by_cert_manager(server, "somebody-elses", SECRET)
    helm.upgrade(later)
    names = {
        secret["metadata"]["name"]
        for secret in server.objects("v1", "Secret")
        if secret["type"] != "helm.sh/release.v1"
    }
    assert names - {"somebody-elses"} == left and "somebody-elses" in names


@pytest.mark.slow
def test_a_secret_of_that_name_that_cert_manager_has_not_made_stays(server: ServerThread, helm: Helm) -> None:
    helm.install()
    made_by_cert_manager(server, f"{SECRET}-certificate", "another")
    helm.upgrade({"logLevel": "debug"})
    assert f"{SECRET}-certificate" in {secret["metadata"]["name"] for secret in server.objects("v1", "Secret")}


def made_by_cert_manager(server: ServerThread, name: str, certificate: str) -> None:
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": {"cert-manager.io/certificate-name": certificate}}
    server.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls"})


# -- the program, with what the chart made


@contextmanager
def controller(kubeconfig: Path, release: Any) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """As its Deployment starts it, but that the API server reaches it by a URL; the port of probes and metrics, too."""
    (container,) = release.object("Deployment")["spec"]["template"]["spec"]["containers"]
    port, status_port = free_port(), free_port()
    otherwise = {
        "kubeconfig": kubeconfig,
        "lease-namespace": NAMESPACE,
        "policy": "",
        "http-endpoint": f"127.0.0.1:{status_port}",
        "webhook-endpoint": f"127.0.0.1:{port}",
        "webhook-url": f"https://127.0.0.1:{port}",
        "webhook-drain": 0.2,
    }
    words = [*container["args"], *(f"--{name}={value}" for name, value in otherwise.items())]
    process = subprocess.Popen([sys.executable, "-m", "controller.main", *words], stderr=subprocess.PIPE)
    try:
        yield process, status_port
    finally:
        process.kill()
        process.wait()


def as_the_pod(cluster: Cluster, release: Any, folder: Path) -> Path:
    """A kubeconfig with what the controller's service account may do; the simulated server knows no identities."""
    if isinstance(cluster, ServerThread):
        return cluster.kubeconfig
    accounts = Resource("", "v1", "serviceaccounts", "ServiceAccount", True)
    wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    account = ours(release, "Deployment")
    answer = cluster.kube(lambda kube: kube.create_subresource(accounts, account, "token", wish, namespace=NAMESPACE))
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    kubeconfig = folder / "controller"
    kubeconfig.write_text(yaml.safe_dump(config))
    return kubeconfig


def until(true: Callable[[], bool], process: subprocess.Popen[bytes], what_is: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert process.poll() is None and process.stderr is not None, process.communicate()
        assert time.monotonic() < deadline, what_is()
        time.sleep(0.05)


def refusal(cluster: Cluster, obj: Object) -> str:
    """Empty where the object is stored."""
    try:
        cluster.create(obj)
    except Rejected as error:
        return str(error)
    cluster.delete(obj)
    return ""


def page(port: int, path: str) -> str:
    """Also of a probe that fails: it says why."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        return str(refused.read().decode())
    except OSError as error:
        return str(error)


DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "train"}}},
}


@pytest.mark.slow
def test_with_domains_off_those_of_another_driver_pass_and_those_of_nobody_are_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    files = (CHART / "files" / "crds" / "computedomain.yaml", CHART / "files/deviceclasses" / THEIR_CLASS)
    definition, device_class = (obj for file in files for obj in yaml.safe_load_all(file.read_text()))
    helm, values = Helm(cluster.kubeconfig), {**ON, "featureGates": {"ComputeDomains": False}}
    cluster.create(definition)
    release = helm.install({**values, "cleanup": {"install": False}})
    with controller(as_the_pod(cluster, release, tmp_path), release) as (process, _):
        until(lambda: "by feature gate ComputeDomains" in refusal(cluster, DOMAIN), process)
        cluster.create(device_class)
        until(lambda: refusal(cluster, DOMAIN) == "", process)
    assert refusal(cluster, DOMAIN) == "", "while nobody answers"
    helm.uninstall()
    for obj in (device_class, definition):
        cluster.delete(obj)


THEIR_CLASS = "compute-domain-daemon.nvidia.com.yaml"

WATCHED = ("secrets", "validatingwebhookconfigurations", "deviceclasses")


def test_the_program_fills_in_what_the_chart_made_with_the_permissions_of_the_chart(
    cluster: Cluster, tmp_path: Path
) -> None:
    helm, values = Helm(cluster.kubeconfig), {**ON, "featureGates": {"MigProfileClasses": False}}
    release = helm.install({**values, "cleanup": {"install": False}})
    bad = an_object("DeviceClass", config(BAD), metadata={"name": "bad"})
    assert refusal(cluster, bad) == ""
    with controller(as_the_pod(cluster, release, tmp_path), release) as (process, port):
        until(lambda: "refuse.deviceclasses.gpu.nvidia.com" in refusal(cluster, bad), process)
        # Slices, lease and webhook get ready each in its own time.
        until(lambda: page(port, "/readyz") == "ok", process, lambda: page(port, "/readyz"))
        until(lambda: "gpu_dra_webhook_armed 1.0" in page(port, "/metrics").splitlines(), process)
        refused = 'gpu_dra_webhook_reviews_total{kind="DeviceClass",result="refused"}'
        until(lambda: refused in page(port, "/metrics"), process)
        if isinstance(cluster, ServerThread):
            may = [grant for grant in granted(release, ours(release, "Deployment")) if grant.resource in WATCHED]
            did = [access for access in done_by(cluster.server.accesses, CONTROLLER) if access.resource in WATCHED]
            assert faults(may, did, names=names_in(release), namespace=NAMESPACE) == []
        helm.upgrade({"cleanup": {"install": False}})
        until(lambda: refusal(cluster, bad) == "", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    configurations = cluster.objects("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
    assert not [configuration for configuration in configurations if "gpu-dra" in configuration["metadata"]["name"]]
    helm.uninstall()


@pytest.mark.slow
def test_the_webhooks_process_stays_small_comes_back_and_goes_with_the_controller_which_notices_nothing(
    server: ServerThread, helm: Helm, tmp_path: Path
) -> None:
    """1,000 half requests and 64 bodies of 8 MiB, while the controller leads; after that the same process answers."""
    release = helm.install({**ON, "cleanup": {"install": False}})
    bad = an_object("DeviceClass", config(BAD), metadata={"name": "bad"})
    with controller(as_the_pod(server, release, tmp_path), release) as (process, port):
        until(lambda: page(port, "/readyz") == "ok", process, lambda: page(port, "/readyz"))
        until(lambda: "refuse.deviceclasses.gpu.nvidia.com" in refusal(server, bad), process)
        worker = worker_of(process)
        limits = Path(f"/proc/{worker}/limits").read_text()
        assert re.search(rf"^Max data size +{MEMORY_BYTES} +{MEMORY_BYTES} ", limits, re.M), limits
        asked = urllib.parse.urlsplit(webhooks(server)[0]["clientConfig"]["url"]).port
        before = lease(server)
        assert asked is not None
        with ExitStack() as open_connections, ThreadPoolExecutor(16) as clients:
            for number in range(1000):
                open_connections.callback(half_a_request(asked, number).close)
            assert page(port, "/healthz") == "ok"
            list(clients.map(large_body, [asked] * 64))
            assert page(port, "/healthz") == "ok"
            until(lambda: lease(server)["renewTime"] > before["renewTime"], process)
            until(lambda: "refuse.deviceclasses.gpu.nvidia.com" in refusal(server, bad), process)
        assert worker_of(process) == worker, "it was not started again"
        assert peak_bytes(worker) < MEMORY_BYTES, peak_bytes(worker)
        assert peak_bytes(process.pid) < 256 * 2**20
        os.kill(worker, signal.SIGKILL)
        until(lambda: worker_of(process) not in (0, worker), process)
        worker = worker_of(process)
        until(lambda: page(port, "/readyz") == "ok", process, lambda: page(port, "/readyz"))
        assert "refuse.deviceclasses.gpu.nvidia.com" in refusal(server, bad)
        after = lease(server)
        assert (after["holderIdentity"], after["leaseTransitions"]) == (
            before["holderIdentity"],
            before["leaseTransitions"],
        )
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not Path(f"/proc/{worker}").exists(), "it ends with the controller"


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """0 while there is none."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0


def lease(server: ServerThread) -> Object:
    (stored,) = server.objects("coordination.k8s.io/v1", "Lease")
    spec: Object = stored["spec"]
    return spec


def peak_bytes(process: int) -> int:
    status = dict(line.split(":\t") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def half_a_request(port: int, number: int) -> socket.socket:
    """Every tenth one has shaken hands and sent half a header."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    if number % 10:
        return connection
    with suppress(OSError):
        connection = unchecked().wrap_socket(connection)
        connection.sendall(b"POST /review HTTP/1.1\r\nHost: x\r\n")
    return connection


def large_body(port: int) -> int:
    """The status that it gets; 0 where the connection is closed before."""
    body = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":[' + b"[]," * 2_700_000 + b"[]]}"
    request = urllib.request.Request(f"https://127.0.0.1:{port}/review", data=body)
    try:
        urllib.request.urlopen(request, timeout=60, context=unchecked())
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
    return 200
