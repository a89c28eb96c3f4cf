"""Templates are there when the pods that name them are: hooks and waves wait for what comes later."""

from support.rows import rows

from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Options, StrategyOption

OPTIONS = Options(strategy=StrategyOption.CLAIMS)
JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: convert
  annotations: {ANNOTATIONS}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def annotations_of_templates(*jobs: str) -> list[dict[str, str] | None]:
    text = "---\n".join(JOB.replace("{ANNOTATIONS}", f"{{{annotations}}}") for annotations in jobs)
    migration = migrate([ManifestText("jobs.yaml", text)], OPTIONS)
    (after,) = migration.files
    again = migrate([ManifestText("jobs.yaml", after.after)], OPTIONS)
    assert again.files[0].after == after.after
    return [new.obj["metadata"].get("annotations") for new in migration.objects]


@rows(
    "given, expected",
    [
        ("note: x", None),
        ("argocd.argoproj.io/sync-wave: '-5', note: x", {"argocd.argoproj.io/sync-wave": "-5"}),
        ("argocd.argoproj.io/sync-wave: -5", {"argocd.argoproj.io/sync-wave": "-5"}),
        (
            "argocd.argoproj.io/hook: PreSync, argocd.argoproj.io/hook-delete-policy: HookSucceeded",
            {"argocd.argoproj.io/hook": "PreSync", "argocd.argoproj.io/hook-delete-policy": "HookSucceeded"},
        ),
        ("helm.sh/hook: pre-install", {"helm.sh/hook": "pre-install", "helm.sh/hook-weight": "-1"}),
        (
            "helm.sh/hook: post-install, helm.sh/hook-weight: '10'",
            {"helm.sh/hook": "post-install", "helm.sh/hook-weight": "9"},
        ),
        ("helm.sh/hook-weight: '10'", None),
    ],
)
def test_a_template_is_applied_with_what_names_it_or_before(given: str, expected: dict[str, str] | None) -> None:
    assert annotations_of_templates(given) == [expected]


def test_who_is_applied_at_another_time_has_a_template_of_its_own() -> None:
    """A hook's may be taken away when the hook is done."""
    hook = "argocd.argoproj.io/hook: PreSync, argocd.argoproj.io/hook-delete-policy: HookSucceeded"
    assert len(annotations_of_templates(hook, "note: x")) == 2
    assert len(annotations_of_templates("note: y", "note: x")) == 1
