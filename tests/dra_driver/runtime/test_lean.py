import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SERVICES = (
    "kubelet_plugin.main",
    "controller.main",
    "controller.webhook.worker",
    "kubelet_plugin.commands.imex_daemon",
)

NEW_KEY = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

LOADED = """
import sys
from importlib import import_module
import_module(sys.argv[1])
print(*{"rich", "aiohttp", "grpc", "kubernetes", "typer"} & sys.modules.keys())
"""

OF_PYTHON = """
import sys
from importlib import import_module
import_module(sys.argv[1])
print(*{"http.server", "socketserver", "urllib.request", "wsgiref", "email", "importlib.metadata"} & sys.modules.keys())
import http.server, importlib.metadata, urllib.request, wsgiref.simple_server
assert issubclass(http.server.HTTPServer, http.server.socketserver.TCPServer)
assert wsgiref.simple_server.make_server.__module__ == "wsgiref.simple_server"
assert urllib.request.Request("http://gpu-0").host == "gpu-0"
assert importlib.metadata.version("pydantic")
"""

PLUGIN_OF_PYDANTIC = """
import controller.main
from pydantic import BaseModel
from pydantic.plugin import _loader
class Model(BaseModel):
    name: str
Model(name="gpu-0")
print(*_loader.get_plugins())
"""

CONTEXTS = """
import os, ssl
before = os.environ.get("SSL_CERT_FILE")
import controller.webhook.worker
import aiohttp.connector
assert os.environ.get("SSL_CERT_FILE") == before
contexts = [value for value in vars(aiohttp.connector).values() if isinstance(value, ssl.SSLContext)]
print(len(contexts), sum(context.cert_store_stats()["x509_ca"] for context in contexts))
print(ssl.create_default_context().cert_store_stats()["x509_ca"])
"""


def run(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-c", *arguments]
    environment = {"PYTHONPATH": ":".join(sys.path)} | variables
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_loads_no_library_that_only_others_need(service: str) -> None:
    assert run(LOADED, service).split() == (["aiohttp"] if service == "controller.webhook.worker" else [])


@pytest.mark.parametrize("service", [service for service in SERVICES if service != "controller.webhook.worker"])
def test_a_service_loads_no_modules_of_python_that_only_unused_parts_of_libraries_need(service: str) -> None:
    assert run(OF_PYTHON, service).split() == []


def test_pydantic_finds_no_plugins_in_a_service() -> None:
    assert run(PLUGIN_OF_PYDANTIC).split() == []


@pytest.mark.parametrize("named", [True, False])
def test_the_webhook_keeps_the_authorities_of_the_system_out_of_memory_and_can_still_read_them(
    named: bool, tmp_path: Path
) -> None:
    authorities = tmp_path / "ca.crt"
    new = f"openssl {NEW_KEY} -subj /CN=authority -keyout {tmp_path}/key -out {authorities}"
    subprocess.run(shlex.split(new), check=True, capture_output=True)
    of_library, of_others = run(CONTEXTS, **({"SSL_CERT_FILE": str(authorities)} if named else {})).splitlines()
    assert of_library == "2 0", "aiohttp makes its contexts in another way now; see dra_driver.runtime.lean_http"
    assert not named or of_others == "1"
