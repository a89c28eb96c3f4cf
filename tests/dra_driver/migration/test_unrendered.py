"""Texts that are not what will be applied are recognised, named where they speak of GPUs, and left as they are."""

import pytest
from support.rows import rows

from dra_driver.checking.codes import Severity
from dra_driver.migration.codes import NOT_EDITABLE, UNREADABLE
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, StrategyOption
from dra_driver.migration.report.markdown import findings_of

CLAIMS = Options(strategy=StrategyOption.CLAIMS)
RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: llm, namespace: ml}
spec:
  values:
    resources: {limits: {nvidia.com/gpu: 1}}
"""
APPLICATION = """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: llm}
spec:
  source:
    helm:
      parameters: [{name: 'resources.limits.nvidia\\.com/gpu', value: '1'}]
      values: |
        resources: {limits: {nvidia.com/gpu: 1}}
    kustomize:
      patches:
      - target: {kind: Deployment}
        patch: |-
          - {op: replace, path: /spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu, value: 2}
"""
FLUX = """\
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: apps}
spec:
  path: ./apps
  patches:
  - patch: |
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: web}
      spec: {template: {spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 2}}}]}}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: a, image: b, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def migrated(text: str, file: str = "all.yaml") -> Migration:
    return migrate([ManifestText(file, text)], CLAIMS)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (RELEASE, ["spec.values.resources.limits[nvidia.com/gpu]"]),
        (
            APPLICATION,
            [
                "spec.source.helm.parameters[0].name",
                "spec.source.helm.values",
                "spec.source.kustomize.patches[0].patch",
            ],
        ),
        (FLUX, ["spec.patches[0].patch"]),
        (RELEASE.replace("HelmRelease", "HelmChartConfig").replace("toolkit.fluxcd.io/v2", "cattle.io/v1"), None),
    ],
)
def test_what_delivers_others_is_named_where_it_speaks_of_gpus(text: str, paths: list[str] | None) -> None:
    result = migrated(text)
    assert not result.changed
    assert {finding.code for finding in result.findings} == {NOT_EDITABLE}
    assert [finding.place.path for finding in result.findings] == (
        paths or ["spec.values.resources.limits[nvidia.com/gpu]"]
    )
    assert all("rendered" in finding.message or "patched" in finding.message for finding in result.findings)


def test_what_delivers_others_and_says_nothing_of_gpus_is_passed_over() -> None:
    assert migrated(RELEASE.replace("nvidia.com/gpu", "cpu")).findings == ()


def test_a_kustomization_of_flux_is_none_of_kustomize_whatever_its_file_is_called() -> None:
    result = migrate([ManifestText("kustomization.yaml", FLUX), ManifestText("pod.yaml", POD)], CLAIMS)
    assert result.files[0].before == result.files[0].after
    assert result.files[1].before != result.files[1].after


def test_what_sops_has_a_checksum_of_is_left_as_it_is() -> None:
    sealed = f"{POD}sops: {{mac: 'ENC[AES256_GCM,data:x,type:str]', version: 3.9.0}}\n"
    result = migrated(sealed)
    assert not result.changed
    (finding,) = result.findings
    assert "SOPS" in finding.message
    assert "sops --decrypt" in finding.advice
    assert migrated(f"{sealed}---\n{POD}").changed


def test_one_sentence_of_many_places_is_one_line_of_the_report() -> None:
    result = migrated("---\n".join(RELEASE.replace("name: llm", f"name: llm-{number}") for number in range(5)))
    lines = [line for line in findings_of(result.findings, Severity.WARNING) if line.startswith("-")]
    assert len(lines) == 1
    assert lines[0].endswith("In 5 places: all.yaml:6,13,20,27,34")


def test_a_shape_that_a_known_kind_does_not_have_is_named() -> None:
    pod = "{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 4}}}]}}"
    old = f"apiVersion: kubeflow.org/v1alpha1\nkind: MPIJob\nmetadata: {{name: m}}\nspec: {{template: {pod}}}\n"
    (finding,) = migrated(old).findings
    assert finding.place.path == "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]"
    assert "no pod of a MPIJob is known" in finding.message


ALERTS = """\
apiVersion: v1
kind: Secret
metadata: {name: alertmanager}
stringData:
  alertmanager.yaml: |
    receivers:
    - name: chat
      slack_configs:
      - title: '{{ template "chat.title" . }}'
  chat.tmpl: |
    {{ define "chat.title" }}{{ .CommonLabels.alertname }}{{ end }}
---
apiVersion: monitoring.coreos.com/v1alpha1
kind: AlertmanagerConfig
metadata: {name: chat}
spec:
  receivers:
  - name: chat
    slackConfigs:
    - {title: '{{ template "chat.title" . }}'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: charts}
data:
  pod.yaml: |
    nodes: {{ .Values.nodes }}
---
"""


def test_what_helm_has_rendered_may_have_templates_of_other_programs() -> None:
    migration = migrated(ALERTS + POD)
    (file,) = migration.files
    assert [workload.choice.target for workload in migration.workloads] == [MigrationTarget.CLAIMS]
    assert file.after.startswith(ALERTS)


@rows(
    "text",
    [
        POD.replace("name: p}", "name: '{{ .Release.Name }}'}"),
        POD.replace("name: p}", "name: \"{{ include 'p.name' . }}\"}"),
        POD.replace("gpu: 1", "gpu: '{{ .Values.gpus }}'"),
        "# {{- if .Values.pod }}\n" + POD + "# {{- end }}\n",
        ALERTS + POD.replace("name: p}", "name: '{{ .Release.Name }}'}"),
        POD + "---\nreplicas: {{ .Values.replicas }}\n",
    ],
)
def test_a_template_that_happens_to_be_yaml_is_refused(text: str) -> None:
    migration = migrated(text)
    assert [file.after for file in migration.files] == [text]
    (finding,) = [finding for finding in migration.findings if finding.code is NOT_EDITABLE]
    assert "is a template" in finding.message


STACK = "AWSTemplateFormatVersion: '2010-09-09'\nResources:\n  Bucket: {Properties: {Name: !Sub 'b-${Id}'}}\n"


def test_what_is_no_manifest_and_mentions_no_gpus_need_not_be_read() -> None:
    assert not migrated(STACK).findings
    assert [finding.code for finding in migrated(f"{STACK}# nvidia.com/gpu\n").findings] == [UNREADABLE]
    broken = "apiVersion: v1\nkind: Pod\n  metadata: {}\n"
    assert [finding.code for finding in migrated(broken).findings] == [UNREADABLE]
