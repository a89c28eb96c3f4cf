"""What frameworks make of limits, and of claims."""

from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, MigrationFinding, Options, StrategyOption


def said(text: str, code: str, strategy: str = "claims", **options: object) -> list[MigrationFinding]:
    given = Options(strategy=StrategyOption(strategy), mig_strategy="mixed", replicas=1, **options)  # type: ignore[arg-type]
    found = migrate([ManifestText("a.yaml", text)], given)
    return [one for one in found.findings if one.code.name == code]


def pod(resource: str = "nvidia.com/gpu", extra: str = "", labels: str = "kai.scheduler/queue: vision") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: p, labels: {{{labels}}}}}
spec:
  {extra}
  containers:
  - {{name: c, image: i, resources: {{limits: {{{resource}: 1}}}}}}
"""


def test_kai_of_old_keeps_extended_resources_from_nodes_of_a_driver() -> None:
    (one,) = said(pod(), "M013", "extended")
    assert "KAI 0.17 or newer" in one.advice
    assert said(pod(labels="a: b"), "M013", "extended") == []


RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {{name: torch}}
spec:
  mlPolicy: {{numNodes: 2, torch: {torch}}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          spec:
            template:
              spec:
                containers:
                - {{name: node, image: i, resources: {{limits: {{nvidia.com/gpu: 4}}}}}}
"""


def test_a_runtime_of_trainer_has_its_processes_counted_by_its_jobs() -> None:
    (one,) = said(RUNTIME.format(torch="{}"), "M011")
    assert "spec.trainer.numProcPerNode: 4" in one.advice
    (older,) = said(RUNTIME.format(torch="{numProcPerNode: auto}"), "M011")
    assert older.fixed
    assert said(RUNTIME.format(torch="{numProcPerNode: 4}"), "M011") == []
    assert said(RUNTIME.format(torch="null"), "M011") == []
