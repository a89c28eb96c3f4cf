"""What frameworks make of limits, and of claims."""

from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, MigrationFinding, Options, StrategyOption


def findings(text: str, code: str, strategy: str = "claims", **options: object) -> list[MigrationFinding]:
    given = Options(strategy=StrategyOption(strategy), mig_strategy="mixed", replicas=1, **options)  # type: ignore[arg-type]
    migration = migrate([ManifestText("a.yaml", text)], given)
    return [finding for finding in migration.findings if finding.code.name == code]


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
    (finding,) = findings(pod(), "M013", "extended")
    assert "KAI 0.17 or newer" in finding.advice
    assert findings(pod(labels="a: b"), "M013", "extended") == []


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
    (finding,) = findings(RUNTIME.format(torch="{}"), "M011")
    assert "spec.trainer.numProcPerNode: 4" in finding.advice
    (older,) = findings(RUNTIME.format(torch="{numProcPerNode: auto}"), "M011")
    assert older.fixed
    assert findings(RUNTIME.format(torch="{numProcPerNode: 4}"), "M011") == []
    assert findings(RUNTIME.format(torch="null"), "M011") == []
