"""The policy's file: dra_driver/publish/policy_file.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import InvalidInput
from dra_driver.features import Feature, Gates
from dra_driver.publish.policy_file import read_policies, read_policy

EVERYTHING = """\
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
mig: [{mode: Dynamic}]
sharing: [{strategy: MPS, replicas: 2}, {strategy: TimeSlicing, unlimited: true}]
passthrough: [{}]
health: {validate: true}
"""
ASKED = (
    Feature.DYNAMIC_MIG,
    Feature.SHARES,
    Feature.MPS,
    Feature.TIME_SLICING,
    Feature.PASSTHROUGH,
    Feature.HEALTH,
)


def test_without_a_file_everything_is_published() -> None:
    assert read_policy(None) is PublishingPolicy.EVERYTHING


def test_a_file_becomes_the_policies_of_an_installation(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(EVERYTHING)
    assert read_policies(None) == []
    names = [policy.name for policy in read_policies(file)]
    assert names and all(name.startswith("installed") for name in names)


@pytest.mark.parametrize("text", ["", EVERYTHING + "---\napiVersion: v1\nkind: ConfigMap\n"])
def test_a_file_has_policies_and_nothing_else(text: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"each document must have apiVersion dra\.gpu/v1alpha1 and kind GpuPolicy"):
        read_policies(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"policy {tmp_path}/none: cannot be read"):
        read_policy(tmp_path / "none")
    (tmp_path / "latin").write_bytes("# für alle\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match=f"policy {tmp_path}/latin: cannot be read: 'utf-8' codec"):
        read_policy(tmp_path / "latin")


@pytest.mark.parametrize("feature", ASKED)
def test_what_a_gate_has_switched_off_cannot_be_asked_for(feature: Feature, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(EVERYTHING)
    assert read_policy(file).passthrough
    with pytest.raises(InvalidInput) as refused:
        read_policy(file, Gates.parse(f"{feature}=false"))
    assert refused.value.about == f"policy {file}"
    assert all(f"needs feature gate {feature}, which is off" in problem for problem in refused.value.problems)
    assert len(refused.value.problems) == (2 if feature is Feature.SHARES else 1)


def test_who_only_reads_policies_does_not_import_the_client_of_the_api_server() -> None:
    """`dractl policy convert` starts faster without it."""
    ask = "import sys, dra_driver.publish.policy_file, dra_driver.publish.preview; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.split())
    assert "dra_driver.publish.preview" in modules
    assert not {"aiohttp", "dra_driver.kube.client"} & modules
