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

LEAN = """
import os, ssl, sys
from importlib import import_module
before = os.environ.get("SSL_CERT_FILE")
import_module(sys.argv[1])
import aiohttp.connector
assert os.environ.get("SSL_CERT_FILE") == before
assert "rich" not in sys.modules
contexts = [value for value in vars(aiohttp.connector).values() if isinstance(value, ssl.SSLContext)]
print(len(contexts), sum(context.cert_store_stats()["x509_ca"] for context in contexts))
print(ssl.create_default_context().cert_store_stats()["x509_ca"])
"""


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("named", [True, False])
def test_services_keep_the_authorities_of_the_system_out_of_memory_and_can_still_read_them(
    service: str, named: bool, tmp_path: Path
) -> None:
    authorities = tmp_path / "ca.crt"
    new = f"openssl {NEW_KEY} -subj /CN=authority -keyout {tmp_path}/key -out {authorities}"
    subprocess.run(shlex.split(new), check=True, capture_output=True)
    variables = {"PYTHONPATH": ":".join(sys.path)} | ({"SSL_CERT_FILE": str(authorities)} if named else {})
    command = [sys.executable, "-c", LEAN, service]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    of_library, of_others = done.stdout.splitlines()
    assert of_library == "2 0", "aiohttp makes its contexts in another way now; see dra_driver.runtime.lean_http"
    assert not named or of_others == "1"
