"""Settings come from flags and variables; a mistake ends the process with one line that says it."""

import json
from pathlib import Path

import pytest

from controller import main
from controller.classes import ProfileClasses
from controller.settings import read_settings
from dra_driver.errors import InvalidInput
from dra_driver.features import Feature, Gates
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.leader import LeaseTimes
from dra_driver.runtime.tracing import OFF


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


def test_gates_are_as_by_default_but_for_those_that_are_named() -> None:
    assert read_settings([], {}).feature_gates == Gates.DEFAULT
    settings = read_settings(["--feature-gates=DynamicMIG=false"], {"GPU_DRA_FEATURE_GATES": "DeviceStatus=false"})
    assert settings.feature_gates == Gates(Gates.DEFAULT.on - {Feature.DYNAMIC_MIG})


def test_resources_of_daemons_are_an_object() -> None:
    given = {"requests": {"memory": "96Mi"}}
    assert read_settings([f"--daemon-resources={json.dumps(given)}"], {}).daemons.resources == given
    assert read_settings([], {}).daemons.resources == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"claims": []}'])
def test_other_resources_of_daemons_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings([f"--daemon-resources={text}"], {})
    assert "--daemon-resources" in capsys.readouterr().err


def classes(words: str) -> ProfileClasses | None:
    return main._classes(Kube(Endpoint(server="http://localhost")), read_settings([words], {}), OFF)


def test_classes_of_profiles_are_made_by_gate() -> None:
    usual, more = classes("--workers=8"), classes("--feature-gates=MigExtendedResources=true")
    assert usual is not None and more is not None
    assert (usual._extended_resources, more._extended_resources) == (False, True)
    assert classes("--feature-gates=MigProfileClasses=false") is None


async def test_a_policy_that_asks_for_what_is_switched_off_ends_the_controller(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("{apiVersion: dra.gpu/v1alpha1, kind: PublishingPolicy, mig: [{mode: Dynamic}]}")
    settings = read_settings([f"--policy={file}", "--feature-gates=DynamicMIG=false"], {})
    with pytest.raises(InvalidInput, match=r"mig\[0\].mode: needs feature gate DynamicMIG"):
        await main.run(settings)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--feature-gates=MPS=true"], {}, "argument --feature-gates: there is no feature gate 'MPS'"),
        ([], {"GPU_DRA_FEATURE_GATES": "MigProfileClasses=false,MigExtendedResources=true"}, "which is off"),
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
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_there_is_no_webhook_unless_it_is_asked_for() -> None:
    assert read_settings([], {}).webhook is None


def test_the_webhook_has_defaults_and_exempts_our_own_namespace() -> None:
    webhook = read_settings(["--webhook-endpoint=:9443", "--lease-namespace=gpu-dra"], {}).webhook
    assert webhook is not None and (webhook.issued_here, webhook.failure_policy, webhook.timeout_s) == (True, "Fail", 5)
    assert webhook.exempt_namespaces == ("gpu-dra", "kube-system") and webhook.url is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--webhook-timeout=31"], "not between 1 and 30 seconds"),
        (["--webhook-url=http://x"], "calls only https:// URLs"),
        (["--webhook-failure-policy=Maybe"], "Maybe"),
    ],
)
def test_a_mistake_about_the_webhook_is_named(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--webhook-endpoint=:9443", *words], {})
    assert why in capsys.readouterr().err
