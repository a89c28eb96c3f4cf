"""Settings come from flags and variables; a mistake ends the process with one line that says it."""

from pathlib import Path

import pytest

from controller.settings import read_settings
from dra_driver.kube.leader import LeaseTimes


def test_the_defaults_publish_everything_with_leader_election() -> None:
    settings = read_settings([], {})
    assert (settings.driver_name, settings.policy, settings.leader_election) == ("gpu.nvidia.com", None, True)
    assert settings.lease_times == LeaseTimes(15.0, 10.0, 2.0)
    assert (settings.kubeconfig, settings.http_endpoint, settings.workers) == (None, None, 16)
    assert (settings.lease_namespace, settings.lease_name) == ("default", "gpu-dra-controller")


def test_every_replica_is_somebody_else() -> None:
    assert read_settings([], {}).identity != read_settings([], {}).identity
    assert read_settings(["--identity=me"], {}).identity == "me"


def test_a_variable_is_a_flag_and_the_flag_wins() -> None:
    environment = {"GPU_DRA_POLICY": "/etc/policy.yaml", "GPU_DRA_WORKERS": "4", "GPU_DRA_LEADER_ELECTION": "false"}
    settings = read_settings(["--workers=8"], environment)
    assert (settings.policy, settings.workers, settings.leader_election) == (Path("/etc/policy.yaml"), 8, False)
    assert read_settings(["--leader-election"], environment).leader_election
    assert not read_settings(["--no-leader-election"], {"GPU_DRA_LEADER_ELECTION": "true"}).leader_election


def test_an_empty_variable_is_no_setting() -> None:
    """A chart writes variables whether or not the value is set."""
    assert read_settings([], {"GPU_DRA_POLICY": "", "GPU_DRA_WORKERS": ""}).workers == 16


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--workers=0"], {}, "--workers 0 is not between 1 and 64"),
        (["--workers=many"], {}, "argument --workers: invalid int value: 'many'"),
        (["--lease-duration=5"], {}, "--lease-duration must be longer than --renew-deadline"),
        (["--retry-period=0"], {}, "0 is not between 0.1 and 86400 seconds"),
        (["--http-endpoint=8080"], {}, "'8080' is not HOST:PORT"),
        (["--log-level=loud"], {}, "invalid choice: 'loud'"),
        (["--work=3"], {}, "unrecognized arguments: --work=3"),
        ([], {"GPU_DRA_LEADER_ELECTION": "perhaps"}, "GPU_DRA_LEADER_ELECTION: 'perhaps' is neither true nor false"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str], environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings(arguments, environment)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
