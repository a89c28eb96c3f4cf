"""What is answered to the API server: the verdict of `dractl check`, in its words, for every kind and version."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import configs as good_configs
from support.configs import encode_config
from support.reviews import BAD, CLASSES, GOOD, KINDS, VERSIONS, a_review, an_object, body_of, config
from support.rows import rows
from support.wrong_configs import TABLE

from controller.webhook.review import NotAReview, ReviewAnswer, Reviewer, answered, is_quick, read_review
from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelCostError
from dra_driver.checking.check import check
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import sentence
from dra_driver.checking.knowledge import Knowledge, sites_of_kinds, sites_of_models
from dra_driver.features import Gates
from dra_driver.simulation.apiserver.decode import copy_json

JUDGE = Reviewer(Knowledge(36, sites_of_kinds(), CLASSES))
OFFLINE = Knowledge(36, sites_of_models(()), CLASSES)
"""What `dractl check` judges by when it is given nothing but files."""


def answer(obj: JsonObject, old: JsonObject | None = None, *, judge: Reviewer = JUDGE, **request: Any) -> ReviewAnswer:
    return judge.answer(read_review(body_of(a_review(obj, old, **request))))


def said_by_check(obj: JsonObject, severity: Severity = Severity.ERROR) -> tuple[str, ...]:
    findings = check(read_documents(json.dumps(obj), "f"), OFFLINE)
    chosen = sorted(
        (finding for finding in findings if finding.severity is severity), key=lambda finding: finding.field
    )
    return tuple(dict.fromkeys(map(sentence, chosen)))


# -- verdicts


@rows("version", VERSIONS)
@rows("kind", KINDS)
def test_a_right_config_is_admitted_and_a_wrong_one_refused_in_the_words_of_check(kind: str, version: str) -> None:
    assert answer(an_object(kind, config(GOOD), version=version)) == ReviewAnswer(UID)
    wrong = an_object(kind, config(BAD), version=version)
    refused = answer(wrong)
    assert refused.refusals == said_by_check(wrong) != ()
    place = {"ResourceClaim": "spec.devices", "ResourceClaimTemplate": "spec.spec.devices", "DeviceClass": "spec"}[kind]
    assert refused.refusals[0].startswith(f"{place}.config[0].opaque.parameters.sharing.mpsConfig: is for strategy")


@rows("row", TABLE)
def test_of_the_table_of_wrong_configs_those_are_refused_that_check_refuses(row: dict[str, Any]) -> None:
    """What depends on the GPU or on the class that a claim gets is for the node to say."""
    header = {} if row.get("bare") else {"apiVersion": "resource.nvidia.com/v1beta1"}
    entries = [
        {"opaque": {"driver": "gpu.nvidia.com", "parameters": {**header, **parameters}}}
        for parameters in row.get("claim", ())
    ]
    obj = an_object("ResourceClaim", *entries)
    assert answer(obj).refusals == said_by_check(obj)


def test_most_of_the_table_is_refused() -> None:
    """Otherwise the test above says little."""
    refused = [
        row
        for row in TABLE
        if "for" not in row and "class" not in row and not row.get("bare")
        and said_by_check(an_object("ResourceClaim", *map(config, row.get("claim", ()))))
    ]  # fmt: skip
    assert len(refused) > 25


@pytest.mark.parametrize("version", VERSIONS)
def test_paths_are_those_of_the_version_that_was_written(version: str) -> None:
    wrong = an_object("ResourceClaim", version=version, selectors=("device.drivr == 'x'",))
    exactly = "" if version == "v1beta1" else "exactly."
    assert answer(wrong).refusals[0].startswith(f"spec.devices.requests[0].{exactly}selectors[0].cel.expression: ")
    assert answer(wrong).refusals == said_by_check(wrong)


def test_all_mistakes_are_said_together() -> None:
    obj = an_object("ResourceClaim", config(BAD), config({"kind": "GpuConfg"}), selectors=("device.drivr == 'x'",))
    assert len(answer(obj).refusals) == 3
    message = answered(answer(obj))["response"]["status"]["message"]
    assert message.count("\n- ") == 3


def test_a_config_for_other_devices_than_its_request_can_get_is_refused() -> None:
    mig = config({"kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}, requests=["gpu"])
    assert answer(an_object("ResourceClaim", mig)).refusals == said_by_check(an_object("ResourceClaim", mig)) != ()
    assert answer(an_object("ResourceClaim", mig, class_name="mig.nvidia.com")).allowed


def test_what_excludes_each_other_is_refused_over_several_configs_of_one_claim() -> None:
    both = [config({"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}, requests=["gpu"])]
    both.append(config({"kind": "GpuConfig", "sharing": {"mpsConfig": {"multiUser": True}}}, requests=["gpu"]))
    obj = an_object("ResourceClaim", *both)
    assert answer(obj).refusals == said_by_check(obj)
    assert "is for strategy `MPS`, but the strategy is `TimeSlicing`" in answer(obj).refusals[0]


def test_a_class_of_the_cluster_has_its_say_in_the_claims_of_it() -> None:
    of_class = an_object("DeviceClass", config({"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}))
    typed = type(CLASSES["gpu.nvidia.com"]).of({**of_class, "metadata": {"name": "slow"}})
    expression = CLASSES["gpu.nvidia.com"].spec.selectors
    slow = typed.model_copy(update={"spec": typed.spec.model_copy(update={"selectors": expression})})
    judge = replace(JUDGE, knowledge=replace(JUDGE.knowledge, classes={**CLASSES, "slow": slow}))
    mps = config({"kind": "GpuConfig", "sharing": {"mpsConfig": {}}}, requests=["gpu"])
    obj = an_object("ResourceClaim", mps, class_name="slow")
    assert not answer(obj, judge=judge).allowed
    assert answer(obj).allowed, "a class that nobody knows has no say"


@pytest.mark.parametrize("kind", KINDS)
def test_the_driver_of_others_is_nobodys_business(kind: str) -> None:
    assert answer(
        an_object(kind, config({"kind": "GpuConfig", "nonsense": 1}, driver="other.example"))
    ) == ReviewAnswer(UID)


@rows("kind", KINDS)
@rows(
    "parameters, allowed",
    [
        ({"kind": "ComputeDomainChannelConfig", "domainID": "8e2a2a70-9b0b-4a6f-8a43-2f7b3f6f0c11"}, True),
        ({"kind": "ComputeDomainChannelConfig", "domainID": "8e2a2a70-9b0b-4a6f-8a43-2f7b3f6f0c11", "x": 1}, False),
        ({"kind": "ComputeDomainDaemonConfig", "domainID": 5}, False),
        ({"kind": "GpuConfig"}, False),
    ],
)
def test_configs_of_the_driver_of_domains_are_judged_too(kind: str, parameters: JsonObject, allowed: bool) -> None:
    obj = an_object(kind, config(parameters, driver="compute-domain.nvidia.com"), class_name="other")
    assert answer(obj).allowed == allowed and answer(obj).refusals == said_by_check(obj)


@rows(
    "spec, allowed",
    [
        ({"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "train-channel"}}}, True),
        ({"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "Train_Channel"}}}, False),
        ({"numNodes": 2, "chanel": {"resourceClaimTemplate": {"name": "train"}}}, False),
        ({"numNodes": -1, "channel": {"resourceClaimTemplate": {"name": "train"}}}, False),
        ([], False),
        (None, False),
    ],
)
def test_domains_are_judged_as_a_whole(spec: Any, allowed: bool) -> None:
    named = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "train"}}
    obj = named if spec is None else {**named, "spec": spec}
    assert answer(obj).allowed == allowed and answer(obj).refusals == said_by_check(obj)
    assert answer(obj, obj).allowed, "an update that leaves the spec"


# -- warnings


@rows("kind", KINDS)
@rows("strategy, gate", [("TimeSlicing", "TimeSlicingSettings"), ("MPS", "MPSSupport")])
def test_what_a_feature_gate_switches_off_is_refused_and_nothing_else(kind: str, strategy: str, gate: str) -> None:
    """As the node refuses it, in its words."""
    obj = an_object(kind, config({"kind": "GpuConfig", "sharing": {"strategy": strategy}}))
    off, others = (
        Reviewer(replace(JUDGE.knowledge, gates=Gates.parse(text))) for text in (f"{gate}=false", OTHERS_OFF[gate])
    )
    (refusal,) = answer(obj, judge=off).refusals
    assert f"opaque.parameters.sharing.strategy: sharing.strategy {strategy} is switched off" in refusal
    assert f"by feature gate {gate};" in refusal
    assert answer(obj, judge=others).allowed
    assert answer(an_object(kind, config({"kind": "GpuConfig"})), judge=off).allowed


OTHERS_OFF = {"TimeSlicingSettings": "MPSSupport=false", "MPSSupport": "TimeSlicingSettings=false,ComputeDomains=false"}


DOMAIN: JsonObject = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "train", "namespace": "team-a"},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "train"}}},
}
OURS_ALONE = {name: device_class for name, device_class in CLASSES.items() if not name.startswith("compute-domain-")}
"""The classes that the chart makes with the gate off."""
OFF = replace(JUDGE.knowledge, gates=Gates.parse("ComputeDomains=false"), classes=OURS_ALONE)


def test_a_domain_is_refused_where_nobody_would_keep_it_and_an_old_one_can_be_let_go() -> None:
    assert answer(DOMAIN).allowed
    (refusal,) = answer(DOMAIN, judge=Reviewer(OFF)).refusals
    assert "by feature gate ComputeDomains;" in refusal
    old = {**DOMAIN, "metadata": {**DOMAIN["metadata"], "finalizers": ["a/b"]}}
    assert answer(DOMAIN, old, judge=Reviewer(OFF)).allowed


@rows("theirs", sorted(CLASSES.keys() - OURS_ALONE.keys()))
@rows("spec", [DOMAIN["spec"], {"numNodes": 0, "someFieldOfTheirs": True}])
def test_domains_of_another_driver_are_its_own_business(theirs: str, spec: JsonObject) -> None:
    """Its classes tell that there is one; with the gate on there are classes, too, and the domains are ours."""
    beside = Reviewer(replace(OFF, classes={**OURS_ALONE, theirs: CLASSES[theirs]}))
    assert answer({**DOMAIN, "spec": spec}, judge=beside) == ReviewAnswer(UID)
    assert answer({**DOMAIN, "spec": spec}).allowed == (spec is DOMAIN["spec"])


@pytest.mark.parametrize("kind", KINDS)
def test_configs_for_the_driver_of_domains_are_those_of_another_driver_with_the_gate_off(kind: str) -> None:
    theirs = config(
        {"kind": "ComputeDomainChannelConfig", "domainID": "x", "new": 1}, driver="compute-domain.nvidia.com"
    )
    obj = an_object(kind, theirs, config(BAD), class_name="other")
    (refusal,) = answer(obj, judge=Reviewer(OFF)).refusals
    assert ".config[1].opaque.parameters.sharing.mpsConfig" in refusal
    assert len(answer(obj).refusals) > 1
    mistyped = an_object(kind, config(GOOD, driver="compute-domain.nvidia.co"))
    assert "compute-domain.nvidia.com" in "".join(answer(mistyped, judge=Reviewer(OFF)).warnings)


def test_what_check_warns_of_is_a_warning_and_refuses_nothing() -> None:
    reads = "device.attributes['gpu.nvidia.com'].productNam == 'x'"
    obj = an_object("ResourceClaim", config(GOOD, driver="gpu.nvida.com"), selectors=(reads,))
    verdict = answer(obj)
    check_messages = {*said_by_check(obj, Severity.WARNING), *said_by_check(obj, Severity.ERROR)}
    assert verdict.allowed and set(verdict.warnings) <= check_messages
    assert ["productNam" in warning for warning in verdict.warnings].count(True) >= 1
    assert any("did you mean `gpu.nvidia.com`?" in warning for warning in verdict.warnings)
    assert answered(verdict)["response"]["warnings"] == list(verdict.warnings)


def test_what_the_server_warns_of_itself_is_not_said_again() -> None:
    old = an_object("ResourceClaim", config(GOOD), version="v1beta1")
    assert any("old version" in warning for warning in said_by_check(old, Severity.WARNING))
    assert answer(old).warnings == ()


# -- who is asked about what


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_leaves_the_spec_is_admitted_whatever_is_in_it(kind: str) -> None:
    """Whoever takes a finalizer or a label from an object that was bad before must be able to."""
    old = an_object(kind, config(BAD), metadata={"finalizers": ["example.com/x"], "labels": {"a": "b"}})
    new = an_object(kind, config(BAD), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert answer({**new, "status": {"reservedFor": []}}, old) == ReviewAnswer(UID)
    other = an_object(kind, config({"kind": "GpuConfg"}))
    assert not answer(other, old).allowed
    assert answer(an_object(kind, config(GOOD)), old).allowed


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_other_operations_are_admitted(operation: str) -> None:
    assert answer(an_object("ResourceClaim", config(BAD)), operation=operation).allowed


def test_a_dry_run_is_reviewed_like_anything_else() -> None:
    assert not answer(an_object("ResourceClaim", config(BAD)), dryRun=True).allowed


def test_kinds_that_this_release_does_not_know_are_admitted() -> None:
    """While replicas are replaced, an older one may be asked about what a newer one has asked for."""
    obj = {"apiVersion": "resource.nvidia.com/v9", "kind": "Novelty", "metadata": {"name": "x"}, "spec": 1}
    assert answer(obj).allowed


def test_a_version_that_is_not_known_cannot_be_judged() -> None:
    refused = answer({**an_object("ResourceClaim", config(GOOD)), "apiVersion": "resource.k8s.io/v2"})
    assert refused.refusals == ("resource.k8s.io/v2 ResourceClaim cannot be judged; known are v1, v1beta2, v1beta1",)


def test_what_the_server_has_judged_by_its_own_rules_is_left_to_it() -> None:
    """It may be newer than this release, and have fields that are not known here."""
    obj = an_object("ResourceClaim", config(GOOD))
    obj["spec"]["devices"]["requests"][0]["exactly"]["novelty"] = {"a": 1}
    obj["spec"]["devices"]["novelties"] = []
    assert said_by_check(obj) != ()
    assert answer(obj).allowed


def test_selectors_are_refused_only_where_the_cel_of_the_server_is_known() -> None:
    obj = an_object("DeviceClass", selectors=("device.novelty(1)",))
    assert answer(obj).refusals == said_by_check(obj) != ()
    newer = replace(JUDGE, knows_server=False)
    assert answer(obj, judge=newer).allowed
    assert not answer(an_object("DeviceClass", config(BAD)), judge=newer).allowed, "configs are ours in every version"


def test_selectors_that_would_keep_a_processor_busy_are_not_tried_on_devices() -> None:
    attributes = "device.attributes['gpu.nvidia.com']"
    dear = f"{attributes}.all(a, {attributes}.all(b, {attributes}.all(c, a + b != c || true)))"
    mig = config({"kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}, requests=["gpu"])
    assert not answer(an_object("ResourceClaim", mig, selectors=("true",))).allowed
    assert answer(an_object("ResourceClaim", mig, selectors=(dear,))).allowed, "of which kind it is was not looked for"
    assert not answer(an_object("ResourceClaim", config(BAD), selectors=(dear,))).allowed


def test_a_search_that_takes_long_is_not_tried_on_devices() -> None:
    """A regular expression takes time in proportion to the text times its own size."""
    pattern = "|".join(f"a[ab]{{{count}}}c" for count in range(990, 1000))
    for text in ("device.driver", f"'{'ab' * 1000}'", f"('{'ab' * 1000}' + device.driver)"):
        assert not is_quick([f"{text}.matches('{pattern}')"], JUDGE.knowledge)
    assert is_quick(["device.driver.matches('^gpu[.]nvidia[.]com$')"] * 50, JUDGE.knowledge)


@pytest.mark.parametrize("count, compiled", [(64, True), (65, False)])
def test_more_regular_expressions_than_any_object_has_are_not_compiled(count: int, compiled: bool) -> None:
    searches = " || ".join(["device.driver.matches('a')", *["device.driver.find('a') == 'a'"] * (count - 2)])
    assert answer(an_object("DeviceClass", selectors=(f"{searches} || device.driver.matches('a')",))).allowed
    given = answer(an_object("DeviceClass", selectors=(f"{searches} || device.drivr.matches('a')",)))
    assert given.allowed != compiled


@pytest.mark.parametrize("expression", ["nothing > 1", "(", "google.protobuf.Any{}"])
def test_selectors_that_do_not_compile_are_the_most_expensive(expression: str) -> None:
    assert not is_quick([expression], JUDGE.knowledge)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 200 + "true" + ")" * 200,
        "1" + " + 1" * 240 + " > 0",
        "!" * 9000 + "true",
        "google.protobuf.Any{}",
        r"device.driver.matches(r'\pL{999}')",
    ],
)
def test_no_limit_of_ours_refuses_a_selector_that_a_server_stores(expression: str) -> None:
    given = answer(an_object("DeviceClass", selectors=(expression,)))
    assert given.allowed
    assert any("not judged" in warning for warning in given.warnings) == (not expression.startswith("!"))


def test_what_is_too_complex_by_our_estimate_is_left_to_the_server_and_configs_are_judged() -> None:
    ones = ", ".join(["1"] * 800)
    expression = f"sets.contains([{ones}], [{ones}])"
    with pytest.raises(CelCostError):
        compile_selector(expression)
    assert answer(an_object("DeviceClass", selectors=(expression,))).allowed
    assert not answer(an_object("DeviceClass", config(BAD), selectors=(expression,))).allowed


# -- what is sent


UID = a_review(an_object("ResourceClaim"))["request"]["uid"]


def test_answers_have_the_form_of_the_api() -> None:
    assert answered(ReviewAnswer("u")) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": True},
    }
    refused = answered(ReviewAnswer("u", ("because",), ("and mind",)))["response"]
    assert refused == {
        "uid": "u",
        "allowed": False,
        "status": {"status": "Failure", "code": 422, "reason": "Invalid", "message": "because"},
        "warnings": ["and mind"],
    }


def test_nobody_reads_a_thousand_mistakes() -> None:
    text = answered(ReviewAnswer("u", tuple(f"{number}: wrong" for number in range(2000))))["response"]["status"][
        "message"
    ]
    assert len(text) < 8_100 and text.endswith("… (2000 mistakes)")


GOOD_REVIEW = a_review(an_object("ResourceClaim", config(GOOD)))
NOT_REVIEWS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"1",
    "not a number": body_of(GOOD_REVIEW).replace(b"false", b"NaN"),
    "a number with too many digits": body_of(GOOD_REVIEW).replace(b"false", b"1" * 5000),
    "an abyss": b"[" * 100_000,
    "a deep object": body_of(GOOD_REVIEW).replace(b"false", b'{"a":' * 300 + b"1" + b"}" * 300),
    "a quarter of a million values": body_of(GOOD_REVIEW).replace(b"false", b"[" + b"0," * 250_000 + b"0]"),
    "more requests than an API server stores": body_of(
        a_review({**an_object("ResourceClaim"), "spec": {"devices": {"requests": [{"name": "a"}] * 65}}})
    ),
    "half of a surrogate pair": body_of(GOOD_REVIEW).replace(b"false", b'"\\uD800"'),
    "another version": body_of({**GOOD_REVIEW, "apiVersion": "admission.k8s.io/v1beta1"}),
    "another kind": body_of({**GOOD_REVIEW, "kind": "TokenReview"}),
    "no request": body_of({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
    "a request of nothing": body_of({**GOOD_REVIEW, "request": {}}),
    "no uid": body_of(a_review(an_object("ResourceClaim"), uid=None)),
    "an empty uid": body_of(a_review(an_object("ResourceClaim"), uid="")),
    "no operation": body_of(a_review(an_object("ResourceClaim"))).replace(b'"CREATE"', b"{}"),
    "a kind that is a word": body_of(a_review(an_object("ResourceClaim"), kind="ResourceClaim")),
    "no object": body_of(a_review(an_object("ResourceClaim"), object=None)),
    "an object of another kind": body_of(a_review(an_object("ResourceClaim"), object=an_object("DeviceClass"))),
    "an object of another version": body_of(
        a_review(an_object("ResourceClaim"), object=an_object("ResourceClaim", version="v1beta1"))
    ),
    "an update of nothing": body_of(a_review(an_object("ResourceClaim"), operation="UPDATE")),
    "an update of a word": body_of(a_review(an_object("ResourceClaim"), oldObject="x")),
}


@rows("body", NOT_REVIEWS.values())
def test_what_is_no_review_is_named_and_not_answered(body: bytes) -> None:
    with pytest.raises(NotAReview) as caught:
        read_review(body)
    assert caught.value.message


def test_a_long_list_in_parameters_of_another_driver_is_no_reason_to_refuse() -> None:
    theirs = config({"kind": "Other", "numbers": list(range(1000))}, driver="other.example")
    assert answer(an_object("ResourceClaim", theirs)) == ReviewAnswer(UID)


# -- whatever comes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(
    ["TimeSlicing", "MPS", "GpuConfig", "MigDeviceConfig", "sharing", "strategy", "mpsConfig", "0", "*", "8Gi", "gpu"]
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything in an object."""
    if isinstance(value, dict):
        return [path, *(place for key, inner in value.items() for place in places(inner, (*path, key)))]
    if isinstance(value, list):
        return [path, *(place for index, inner in enumerate(value) for place in places(inner, (*path, index)))]
    return [path]


@st.composite
def mutations(draw: st.DrawFn, value: Any) -> Any:
    """Something replaced, added, renamed or taken away, up to three times."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(0, 3))):
        paths = [path for path in places(value) if path]
        if not paths:
            break
        *way, last = draw(st.sampled_from(paths))
        holder = value
        for step in way:
            holder = holder[step]
        change = draw(st.sampled_from(["replace", "drop", "add", "rename"]))
        if change == "replace":
            holder[last] = draw(JSON | WORDS)
        elif change == "drop":
            del holder[last]
        elif isinstance(holder, dict):
            held = holder[last] if change == "add" else holder.pop(last)
            holder[draw(st.text(max_size=5) | WORDS)] = held
        else:
            holder.append(draw(JSON | WORDS))
    return value


@st.composite
def objects_with_changed_configs(draw: st.DrawFn) -> JsonObject:
    whole = encode_config(draw(good_configs))
    kind = draw(st.sampled_from(KINDS))
    name = {"MigDeviceConfig": "mig.nvidia.com", "VfioDeviceConfig": "vfio.gpu.nvidia.com"}.get(whole["kind"])
    requests = draw(st.sampled_from([{}, {"requests": ["gpu"]}])) if kind != "DeviceClass" else {}
    return an_object(
        kind,
        config(draw(mutations(whole)), **requests),
        version=draw(st.sampled_from(VERSIONS)),
        class_name=name or "gpu.nvidia.com",
    )


@given(objects_with_changed_configs())
def test_a_config_is_admitted_if_and_only_if_check_finds_no_error(obj: JsonObject) -> None:
    assert answer(obj).refusals == said_by_check(obj)


@given(st.data())
def test_a_review_of_any_shape_is_answered_or_named_and_a_wrong_config_in_it_is_never_admitted(
    data: st.DataObject,
) -> None:
    """Whatever is done to the rest of the review, as long as it is about this object."""
    kind, version = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(VERSIONS))
    wrong = an_object(kind, config(BAD), version=version)
    review = data.draw(mutations(a_review(wrong)))
    try:
        read = read_review(body_of(review))
    except NotAReview:
        return
    verdict = JUDGE.answer(read)
    json.loads(json.dumps(answered(verdict)))
    request = review["request"]
    about_it = request["object"] == wrong and request["operation"] in ("CREATE", "UPDATE")
    unchanged = (request.get("oldObject") or {}).get("spec") == wrong["spec"]
    if about_it and request["kind"] == a_review(wrong)["request"]["kind"] and not unchanged:
        assert not verdict.allowed


@given(st.binary(max_size=200) | JSON.map(body_of) | mutations(GOOD_REVIEW).map(body_of))
def test_any_body_is_answered_or_named(body: bytes) -> None:
    try:
        answered(JUDGE.answer(read_review(body)))
    except NotAReview as error:
        assert error.message


@given(mutations(an_object("ResourceClaim", config(GOOD, requests=["gpu"]), selectors=("device.driver == 'a'",))))
def test_an_object_of_any_shape_is_answered(obj: JsonObject) -> None:
    """Even one that no API server would store."""
    before = copy_json(obj)
    review = {**a_review(an_object("ResourceClaim")), "request": {**a_review(an_object("ResourceClaim"))["request"]}}
    review["request"]["object"] = {**obj, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    verdict = JUDGE.answer(read_review(body_of(review)))
    assert set(verdict.refusals) <= set(said_by_check(review["request"]["object"]))
    assert obj == before
