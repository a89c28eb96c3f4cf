"""What the API server is told: nothing about anybody's objects before it has reached us, and then what concerns us."""

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.reviews import BAD, GOOD, KINDS, VERSIONS, an_object, config
from support.rows import rows

from controller.settings import WebhookSettings
from controller.webhook.certificates import Lifetimes, new_certificate
from controller.webhook.configuration import (
    MARK,
    OVERLAP,
    WebhookPlan,
    change,
    is_armed,
    is_refused_by_us,
    next_trust,
    probe,
    trusted_in,
    wanted_webhooks,
)
from controller.webhook.kinds import KINDS as ROWS
from controller.webhook.review import Reviewer, read_review
from dra_driver.api.meta import JsonObject
from dra_driver.checking.knowledge import Knowledge
from dra_driver.features import Gates
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from tests.controller.webhook.test_review import a_review, body_of

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SETTINGS = WebhookSettings(
    endpoint=":9443", service="controller", secret="s", configuration="gpu-dra-webhook", url=None, issued_here=True,
    failure_policy="Fail", timeout_s=5, exempt_namespaces=("gpu-dra", "kube-system"), drain_s=1.0,
)  # fmt: skip
PLAN = WebhookPlan(SETTINGS, "gpu-dra", GPU_DRIVER)
FIRST, SECOND = (new_certificate(("controller.gpu-dra.svc",), NOW, Lifetimes()) for _ in range(2))
SHELL: JsonObject = {"metadata": {"name": "gpu-dra-webhook", "resourceVersion": "1"}}


def written(observed: JsonObject, patch: JsonObject | None) -> JsonObject:
    """The configuration after a merge patch, with fields that a server fills in."""
    assert patch is not None and patch["metadata"]["resourceVersion"] == observed["metadata"]["resourceVersion"]
    metadata = {**observed["metadata"], "annotations": patch["metadata"]["annotations"]}
    metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
    return {"metadata": metadata, "webhooks": [{**webhook, "objectSelector": {}} for webhook in patch["webhooks"]]}


def armed(now: datetime = NOW) -> JsonObject:
    probing = written(SHELL, change(SHELL, PLAN, FIRST, now, proven=False))
    return written(probing, change(probing, PLAN, FIRST, now, proven=True))


# -- in two stages


def test_first_the_api_server_is_to_ask_about_the_probe_alone_and_to_go_on_without_an_answer() -> None:
    probing = written(SHELL, change(SHELL, PLAN, FIRST, NOW, proven=False))
    (webhook,) = probing["webhooks"]
    assert webhook["failurePolicy"] == "Ignore" and webhook["rules"][0]["resources"] == ["deviceclasses"]
    asked = [holds(webhook, obj) for obj in (probe(PLAN), an_object("DeviceClass", config(BAD)))]
    assert asked == [True, False]
    assert not is_armed(probing)
    assert change(probing, PLAN, FIRST, NOW, proven=False) is None, "it stays so until the probe came back"


def test_when_the_probe_came_back_it_is_to_ask_about_everything_and_stays_so() -> None:
    configuration = armed()
    assert is_armed(configuration)
    assert change(configuration, PLAN, FIRST, NOW, proven=False) is None, "another leader does not begin anew"


def test_the_probe_is_refused_by_us_and_only_that_counts() -> None:
    verdict = Reviewer(Knowledge()).answer(read_review(body_of(a_review(probe(PLAN)))))
    assert not verdict.allowed
    server = f'admission webhook "webhook-probe.gpu.nvidia.com" denied the request: {verdict.refusals[0]}'
    assert is_refused_by_us(server, PLAN)
    assert not is_refused_by_us('admission webhook "other.example.com" denied the request: no', PLAN)
    assert not is_refused_by_us("deviceclasses.resource.k8s.io is forbidden: User cannot create", PLAN)


def test_what_somebody_changed_is_put_right_and_what_a_server_adds_is_left() -> None:
    configuration = armed()
    configuration["webhooks"][0]["failurePolicy"] = "Ignore"
    again = written(configuration, change(configuration, PLAN, FIRST, NOW, proven=False))
    assert again["webhooks"][0]["failurePolicy"] == "Fail"
    del again["webhooks"][1]
    assert change(again, PLAN, FIRST, NOW, proven=False) is not None


def test_a_configuration_that_was_emptied_begins_with_the_probe() -> None:
    emptied = {**armed(), "webhooks": []}
    patch = change(emptied, PLAN, FIRST, NOW, proven=False)
    assert patch is not None and [webhook["name"] for webhook in patch["webhooks"]] == ["webhook-probe.gpu.nvidia.com"]


# -- trust


def bundles(configuration: JsonObject) -> set[str]:
    return {base64.b64decode(webhook["clientConfig"]["caBundle"]).decode() for webhook in configuration["webhooks"]}


def test_while_the_certificate_changes_both_authorities_are_trusted_and_later_the_new_one_alone() -> None:
    before = armed()
    assert trusted_in(before) == FIRST.authority
    during = written(before, change(before, PLAN, SECOND, NOW, proven=False))
    assert trusted_in(during) == (*SECOND.authority, *FIRST.authority) and len(bundles(during)) == 1
    almost = NOW + OVERLAP - timedelta(seconds=1)
    assert change(during, PLAN, SECOND, almost, proven=False) is None
    after = written(during, change(during, PLAN, SECOND, NOW + OVERLAP, proven=False))
    assert trusted_in(after) == SECOND.authority
    assert change(after, PLAN, SECOND, NOW + OVERLAP * 9, proven=False) is None


def test_the_overlap_counts_from_the_change_however_old_the_certificate_is() -> None:
    """As when somebody takes a Secret that cert-manager filled a month ago."""
    before, later = armed(), NOW + timedelta(days=30)
    during = written(before, change(before, PLAN, SECOND, later, proven=False))
    assert trusted_in(during) == (*SECOND.authority, *FIRST.authority)


def test_authorities_that_have_expired_are_not_carried_on() -> None:
    old = new_certificate(("x",), NOW - timedelta(days=100), Lifetimes())
    configuration = armed()
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = base64.b64encode(old.authority[0].encode()).decode()
    assert next_trust(FIRST, configuration, NOW).authorities == FIRST.authority


def test_an_authority_that_somebody_took_away_is_put_back_at_once() -> None:
    configuration = armed(NOW - OVERLAP * 2)
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = "nonsense"
    patch = change(configuration, PLAN, FIRST, NOW, proven=False)
    assert patch is not None and trusted_in(written(configuration, patch)) == FIRST.authority


@pytest.mark.parametrize("mark", ["", "x", "x y", None])
def test_a_mark_that_says_nothing_is_made_anew(mark: Any) -> None:
    configuration = armed()
    configuration["metadata"]["annotations"] = None if mark is None else {MARK: mark}
    patch = change(configuration, PLAN, FIRST, NOW, proven=False)
    assert patch is not None and patch["metadata"]["annotations"][MARK].endswith(NOW.isoformat())


# -- what is asked about


def test_each_kind_has_its_webhooks_with_the_policy_that_is_set_and_advice_never_holds_up() -> None:
    webhooks = {webhook["name"]: webhook for webhook in wanted_webhooks(PLAN, FIRST.authority)}
    for row in ROWS:
        refuse, advise = (webhooks.get(f"{word}.{row.plural}.gpu.nvidia.com") for word in ("refuse", "advise"))
        assert refuse is not None and refuse["failurePolicy"] == "Fail" and refuse["timeoutSeconds"] == 5
        assert (advise is None) == (row.advising is None)
        for webhook in filter(None, (refuse, advise)):
            (rule,) = webhook["rules"]
            assert rule["apiVersions"] == list(row.versions) and rule["resources"] == [row.plural]
            assert rule["operations"] == ["CREATE", "UPDATE"], "deleting never asks"
            assert webhook["sideEffects"] == "None" and webhook["admissionReviewVersions"] == ["v1"]
        assert advise is None or (advise["failurePolicy"], advise["timeoutSeconds"]) == ("Ignore", 2)
    assert len(webhooks) == len(wanted_webhooks(PLAN, ())), "names differ"


def test_what_a_cluster_needs_to_live_does_not_wait_for_us() -> None:
    webhooks = wanted_webhooks(PLAN, FIRST.authority)
    assert webhooks
    for webhook in webhooks:
        (term,) = webhook["namespaceSelector"]["matchExpressions"]
        assert term == {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["gpu-dra", "kube-system"]}


def test_an_api_server_outside_the_cluster_gets_a_url() -> None:
    plan = replace(PLAN, settings=replace(SETTINGS, url="https://host:9443", exempt_namespaces=()))
    (webhook, *_) = wanted_webhooks(plan, FIRST.authority)
    assert webhook["clientConfig"]["url"] == "https://host:9443/review" and webhook["namespaceSelector"] == {}


# -- conditions, by Google's evaluator


def holds(webhook: JsonObject, obj: JsonObject, old: JsonObject | None = None) -> bool:
    cel = pytest.importorskip("cel_expr_python.cel", reason="Google's evaluator is not installed")
    optional = pytest.importorskip("cel_expr_python.ext.ext_optional")
    any_map = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    variables = dict.fromkeys(("object", "oldObject", "request"), any_map)
    environment = cel.NewEnv(variables=variables, extensions=[optional.ExtOptional()])
    data = {"object": obj, "oldObject": old or {}, "request": {"operation": "CREATE" if old is None else "UPDATE"}}
    answers = []
    for condition in webhook["matchConditions"]:
        value = environment.compile(condition["expression"]).eval(data=data)
        assert value.type() != cel.Type.ERROR, (condition, value)
        answers.append(value.plain_value())
    return all(answers)


def webhooks_for(obj: JsonObject, old: JsonObject | None = None) -> list[str]:
    """Which are called about it."""
    plural = next(row.plural for row in ROWS if row.kind == obj["kind"])
    called = [
        webhook
        for webhook in wanted_webhooks(PLAN, ())
        if webhook["rules"][0]["resources"] == [plural] and holds(webhook, obj, old)
    ]
    return [webhook["name"].partition(".")[0] for webhook in called]


SELECTS = "device.attributes['gpu.nvidia.com'].productName == 'x'"


@rows("version", VERSIONS)
@rows("kind", KINDS)
def test_objects_that_name_our_drivers_are_asked_about_and_no_others(kind: str, version: str) -> None:
    def about(*configs: JsonObject, selectors: tuple[str, ...] = ()) -> list[str]:
        return webhooks_for(an_object(kind, *configs, version=version, selectors=selectors))

    other = config(GOOD, driver="gpu.example.com")
    assert about(config(GOOD)) == ["refuse"]
    assert about(other, config(GOOD), selectors=(SELECTS,)) == ["refuse"], "not both"
    assert about(config(GOOD, driver=COMPUTE_DOMAIN_DRIVER)) == ["refuse"]
    assert about(selectors=(SELECTS,)) == about(other, selectors=("true", SELECTS)) == ["advise"]
    assert about() == about(other) == about(selectors=("device.driver == 'gpu.example.com'",)) == []


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_selectors_of_alternatives_count(version: str) -> None:
    obj = an_object("ResourceClaim", version=version)
    subrequest = {"name": "a", "deviceClassName": "x", "selectors": [{"cel": {"expression": SELECTS}}]}
    obj["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": [subrequest]}]
    assert webhooks_for(obj) == ["advise"]


@rows("kind", KINDS)
@rows("spec", [None, {}, {"devices": {}}, {"spec": {}}, {"devices": {"requests": [{"name": "a"}]}}])
def test_conditions_hold_for_objects_with_next_to_nothing_in_them(kind: str, spec: Any) -> None:
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {}, **({} if spec is None else {"spec": spec})}
    assert webhooks_for(obj) == []


def test_every_domain_is_asked_about() -> None:
    obj = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {}, "spec": {}}
    assert webhooks_for(obj) == ["refuse"]
    assert webhooks_for(obj, {**obj, "metadata": {"labels": {"a": "b"}}}) == []


def test_where_others_keep_domains_nothing_of_theirs_waits_for_us_or_fails_with_us() -> None:
    on, off = (replace(PLAN, gates=Gates.parse(gates)) for gates in ("", "ComputeDomains=false"))
    assert on.drivers == (GPU_DRIVER, COMPUTE_DOMAIN_DRIVER) and off.drivers == (GPU_DRIVER,)

    def asked(plan: WebhookPlan) -> dict[str, tuple[str, int]]:
        return {
            webhook["name"]: (webhook["failurePolicy"], webhook["timeoutSeconds"])
            for webhook in wanted_webhooks(plan, ())
        }

    name = f"refuse.computedomains.{GPU_DRIVER}"
    assert asked(on)[name] == ("Fail", 5) and asked(off) == {**asked(on), name: ("Ignore", 2)}
    theirs = an_object("ResourceClaimTemplate", config(GOOD, driver=COMPUTE_DOMAIN_DRIVER))
    assert not any(
        holds(webhook, theirs, None) for webhook in wanted_webhooks(off, ()) if "Template" in str(webhook["rules"])
    )


def test_an_update_that_leaves_the_spec_does_not_ask() -> None:
    """So that finalizers go, and objects with them, while no replica answers."""
    old, new = (an_object("ResourceClaim", config(BAD), metadata={"labels": {"a": label}}) for label in "bc")
    assert webhooks_for(new, old) == []
    assert webhooks_for(an_object("ResourceClaim", config(GOOD)), old) == ["refuse"]
