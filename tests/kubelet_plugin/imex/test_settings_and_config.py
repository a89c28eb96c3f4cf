"""What the supervisor of an IMEX daemon is told, and what it tells the daemon."""

from pathlib import Path

import pytest

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.objects import DaemonSettings, daemon_set
from kubelet_plugin.imex.probe import ProbeFolder, config_text
from kubelet_plugin.imex.settings import read_settings
from kubelet_plugin.simulation.programs.imex_config import read_config

UID = "11111111-2222-4333-8444-555555555555"
POD = {"GPU_DRA_NODE_NAME": "tray-1", "GPU_DRA_POD_IP": "10.0.0.7"}


def test_what_the_controller_writes_into_the_daemon_set_is_understood() -> None:
    domain = ComputeDomain.of(
        {
            "metadata": {"name": "train", "namespace": "team", "uid": UID},
            "spec": {"channel": {"resourceClaimTemplate": {"name": "train"}}},
        }
    )
    (container,) = daemon_set(domain, DaemonSettings("gpu", "image", max_nodes=9))["spec"]["template"]["spec"][
        "containers"
    ]
    assert {variable["name"] for variable in container["env"]} == POD.keys()
    settings = read_settings(container["args"], POD)
    assert (settings.namespace, settings.name, settings.uid) == ("team", "train", UID)
    assert (settings.node_name, settings.address, settings.max_nodes) == ("tray-1", "10.0.0.7", 9)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(settings.folder), "/var/run/nvidia-imex"} <= mounts


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--domain is needed"),
        (["--domain=train"], "is not NAMESPACE/NAME"),
        (["--domain=a/b/c"], "is not NAMESPACE/NAME"),
        (["--domain=a/b"], "--domain-uid is needed"),
        (["--domain=a/b", f"--domain-uid={UID}", "--node-name="], "--node-name is needed"),
    ],
)
def test_a_mistake_in_the_settings_is_said(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(arguments, {"GPU_DRA_POD_IP": "10.0.0.7"})
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_the_daemon_accepts_its_configuration_and_finds_itself_in_it(tmp_path: Path, address: str) -> None:
    place = ProbeFolder(tmp_path)
    place.config.write_text(config_text(place, address))
    read = read_config(str(place.config))
    assert read["BIND_INTERFACE_IP"] == address
    assert read["DAEMONIZE"] == "0"
    assert read["LOG_FILE_NAME"] == ""
    assert read["IMEX_NODE_CONFIG_FILE"] == str(place.nodes)
    assert (read["IMEX_CMD_ENABLED"], read["IMEX_CMD_UNIX_DOMAIN_PATH"]) == ("1", str(place.control_socket))
