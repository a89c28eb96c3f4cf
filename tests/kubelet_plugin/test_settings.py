"""Settings of the node plugin: where they come from, what they are without any, and what a mistake looks like."""

from pathlib import Path

import pytest

from kubelet_plugin.settings import NodePluginSettings, read_settings


def settings(*arguments: str, **environment: str) -> NodePluginSettings:
    return read_settings(["--node-name", "n", *arguments], environment)


def test_the_defaults_fit_a_daemonset_pod() -> None:
    defaults = settings()
    assert (defaults.kubelet_root, defaults.cdi_root, defaults.host_root) == (
        Path("/var/lib/kubelet"),
        Path("/var/run/cdi"),
        Path("/"),
    )
    assert defaults.state_dir == Path("/var/lib/kubelet/plugins/gpu.nvidia.com")
    assert defaults.driver_name == "gpu.nvidia.com"
    assert (defaults.kubeconfig, defaults.pod_uid, defaults.simulate, defaults.driver_root, defaults.http_endpoint) == (
        None,
    ) * 5
    assert defaults.publisher == "controller"


def test_the_state_folder_follows_kubelet_root_and_driver_name() -> None:
    moved = settings("--kubelet-root", "/k", "--driver-name", "gpu.example.com")
    assert moved.state_dir == Path("/k/plugins/gpu.example.com")


def test_every_setting_can_come_from_the_environment() -> None:
    from_environment = read_settings([], {"GPU_DRA_NODE_NAME": "from-env", "GPU_DRA_DISCOVERY_INTERVAL": "5"})
    assert (from_environment.node_name, from_environment.discovery_interval_s) == ("from-env", 5.0)


def test_a_flag_wins_over_the_environment() -> None:
    assert settings("--publisher=node", GPU_DRA_PUBLISHER="controller").publisher == "node"


def test_an_empty_variable_is_no_setting() -> None:
    """A pod's manifest often sets variables to nothing."""
    assert settings(GPU_DRA_POD_UID="", GPU_DRA_LOG_LEVEL="").pod_uid is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--node-name"),
        (["--node-name", "n", "--publisher", "both"], "both"),
        (["--node-name", "n", "--discovery-interval", "soon"], "soon"),
        (["--node-name", "n", "--discovery-interval", "0"], "0"),
        (["--node-name", "n", "--cleanup-interval", "nan"], "nan"),
        (["--node-name", "n", "--http-endpoint", "8080"], "8080"),
        (["--node-name", "n", "--http-endpoint", "host:99999"], "99999"),
        (["--node-name", "n", "--simulate", "t4:first"], "t4:first"),
        (["--node-name", "n", "--simul", "t4"], "--simul"),
        (["--node-name", "n", "--validation-command", "it's"], "it's"),
        (["--node-name", "n", "--driver-name", "gpu/../nvidia.com"], "gpu/../nvidia.com"),
        (["--node-name", "n", "--driver-name", "a" * 64], "63"),
        (["--node-name", "n", "--pod-uid", "../x"], "../x"),
    ],
)
def test_a_mistake_ends_with_status_2_and_one_line_that_names_it(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(arguments, {})
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert "--help" in line


def test_a_mistake_in_a_variable_is_found_by_the_same_rules(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings(GPU_DRA_LOG_FORMAT="xml")
    assert ended.value.code == 2
    assert "xml" in capsys.readouterr().err


def test_help_lists_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(["--help"], {})
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for field in NodePluginSettings.__dataclass_fields__:
        assert f"--{field.removesuffix('_s').replace('_', '-')}" in text
    assert "/var/lib/kubelet" in text
