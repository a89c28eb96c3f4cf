"""Whatever is misspelt or makes no sense in the values is refused before anything is changed."""

import json
import re
from ipaddress import ip_network
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chart_values import POLICY, VARIANTS, Values, combinations, merged
from support.helm import CHART, Helm, HelmError, ServerThread
from support.rows import examples, rows, slow_but

from dra_driver.errors import InvalidInput
from dra_driver.publish.policy_file import decode_policy
from kubelet_plugin.simulation.profiles import profile_names

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def problems(values: Values) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(merged(DEFAULTS, values))]


WRONG: dict[str, Values] = {
    "misspelt": {"publsher": "node"},
    "misspelt below": {"kubeletPlugin": {"kubeletroot": "/x"}},
    "misspelt in a toleration": {"kubeletPlugin": {"tolerations": [{"key": "a", "effekt": "NoSchedule"}]}},
    "misspelt in an affinity": {"kubeletPlugin": {"affinity": {"nodeAffinities": {}}}},
    "misspelt in resources": {"controller": {"resources": {"limit": {"memory": "1Gi"}}}},
    "misspelt in a class": {"deviceClasses": {"extra": [{"name": "a", "spec": {"selector": []}}]}},
    "a class without a spec": {"deviceClasses": {"extra": [{"name": "a"}]}},
    "a class that does not exist": {"deviceClasses": {"extendedResources": {"gpu.nvidia.con": "x/y"}}},
    "neither": {"publisher": "both"},
    "a number that is none": {"controller": {"replicas": "two"}},
    "too few": {"controller": {"replicas": 0}},
    "too many": {"controller": {"workers": 65}},
    "a port": {"kubeletPlugin": {"httpPort": 70000}},
    "a relative path": {"kubeletPlugin": {"kubeletRoot": "var/lib/kubelet"}},
    "a path that ends with a slash": {"kubeletPlugin": {"kubeletRoot": "/var/lib/kubelet/"}},
    "no driver's name": {"driverName": "GPU"},
    "the name of our other driver": {"driverName": "compute-domain.nvidia.com"},
    "no object's name": {"fullnameOverride": "GPU"},
    "a label that selectors need": {"commonLabels": {"app.kubernetes.io/name": "x"}},
    "no extended resource": {"deviceClasses": {"extendedResources": {"gpu.nvidia.com": "gpu"}}},
    "Kubernetes' own resource": {"deviceClasses": {"extendedResources": {"gpu.nvidia.com": "kubernetes.io/gpu"}}},
    "no digest": {"image": {"digest": "latest"}},
    "a boolean for a word": {"devicePluginGuard": False},
    "no policy's field": {"policy": {"publishing": []}},
    "the policy's kind": {"policy": {"kind": "PublishingPolicy"}},
    "a rule": {"policy": {"publish": [{"gpu": {"products": ["x"]}}]}},
    "an empty list of rules": {"policy": {"publish": []}},
    "a MIG mode": {"policy": {"mig": [{"mode": "dynamic"}]}},
    "two ways to share": {"policy": {"sharing": [{"strategy": "MPS", "replicas": 2, "unlimited": True}]}},
    "shares of what is not shared": {"policy": {"sharing": [{"strategy": "Exclusive", "replicas": 2}]}},
    "no limit of what is not shared": {"policy": {"sharing": [{"strategy": "Exclusive", "unlimited": True}]}},
    "no way to share": {"policy": {"sharing": [{"strategy": "MPS"}]}},
    "an Xid": {"policy": {"health": {"ignoreXids": ["94"]}}},
    "no label's value": {"commonLabels": {"team": "b c"}},
    "no label's key": {"kubeletPlugin": {"podLabels": {"a b": "c"}}},
    "no annotation's key": {"controller": {"podAnnotations": {"a b": "c"}}},
    "no label of nodes": {"kubeletPlugin": {"nodeSelector": {"pool": "a b"}}},
    "a label of ours": {"metrics": {"labels": {"app.kubernetes.io/name": "mine"}}},
    "no label of a class": {"deviceClasses": {"extra": [{"name": "a", "spec": {}, "labels": {"a b": "c"}}]}},
    "no name of a class to test": {"test": {"deviceClassName": "A class"}},
    "no image": {"image": {"repository": ""}},
    "an image with its tag": {"image": {"repository": "registry.example/gpu-dra-driver:1.0"}},
    "an image with upper case": {"image": {"repository": "registry.example/GPU"}},
    "no tag": {"image": {"tag": "one two"}},
    "a way up": {"kubeletPlugin": {"kubeletRoot": "/var/lib/../kubelet"}},
    "no port": {"networkPolicy": {"apiServerPorts": []}},
    "no port of a collector": {"tracing": {"endpoint": "http://collector:123456"}},
    "no account's name": {"serviceAccounts": {"controller": "Bad_Name"}},
    "no class's name": {"deviceClasses": {"extra": [{"name": "X_y", "spec": {}}]}},
    "no priority class's name": {"controller": {"priorityClassName": "High!"}},
    "no quantity": {"controller": {"resources": {"requests": {"cpu": "lots"}}}},
    "no address": {"networkPolicy": {"apiServerCIDRs": ["10.0.0.999/32"]}},
    "no size of a range": {"networkPolicy": {"apiServerCIDRs": ["10.0.0.1/33"]}},
    "no address of metrics' readers": {"networkPolicy": {"metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0"}}]}},
    "no Secret's name": {"imagePullSecrets": [{"name": "Registry Key"}]},
    "a Secret without a name": {"imagePullSecrets": [{}]},
    "a Secret's name alone": {"imagePullSecrets": ["registry-key"]},
    "two namespaces in one": {"webhook": {"exemptNamespaces": ["a,b"]}},
    "an attribute": {"policy": {"attributes": [{"values": {"a": [1]}}]}},
}


@rows("name", WRONG)
def test_the_schema_has_a_problem_with_it(name: str) -> None:
    assert problems(WRONG[name])


@pytest.mark.slow
@rows("name", WRONG)
def test_it_is_refused(name: str, server: ServerThread, helm: Helm) -> None:
    before = len(server.server.writes)
    with pytest.raises(HelmError, match="schema"):
        helm.install(WRONG[name], create_namespace=False)
    assert [write for write in server.server.writes[before:] if write.verb == "create"] == []


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"kubeletPlugin": {"podLabels": {"app.kubernetes.io/name": "x"}}}, "/kubeletPlugin/podLabels/app.kubernetes"),
        ({"commonLabels": {"a b": "c"}}, "'/commonLabels': additional properties 'a b' not allowed"),
        ({"controller": {"podAnnotations": {"a": 1}}}, "'/controller/podAnnotations/a': got number, want string"),
        ({"controller": {"nodeSelector": {"a/b/c": "d"}}}, "'/controller/nodeSelector': additional properties 'a/b/c'"),
    ],
)
def test_a_key_that_is_refused_is_named_with_its_place(values: Values, place: str, helm: Helm) -> None:
    with pytest.raises(HelmError) as refused:
        helm.install(values)
    assert place in str(refused.value)


@rows("name", VARIANTS)
def test_what_is_documented_is_accepted(name: str) -> None:
    assert problems(VARIANTS[name]) == []


_CIDRS = st.one_of(
    st.ip_addresses(v=4).flatmap(lambda address: st.integers(0, 33).map(lambda size: f"{address}/{size}")),
    st.ip_addresses(v=6).flatmap(lambda address: st.integers(0, 129).map(lambda size: f"{address}/{size}")),
    st.from_regex(r"[0-9a-f]{0,4}(:[0-9a-f]{0,4}){2,8}/[0-9]{1,2}", fullmatch=True),
    st.from_regex(r"[0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2}", fullmatch=True),
    st.sampled_from(["::/0", "fd00::/8", "::1/128", "1::/16", "10.0.0.1", "", "::", ":/1", "1:2/3", "1::2::3/4"]),
)


def _is_cidr(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    # The third: an address of the one family written as one of the other, which API servers are ceasing to take.
    return "/" in text and not re.search("/0[0-9]", text) and "." not in text.partition(":")[2]


@settings(max_examples=examples(400))
@given(text=_CIDRS)
def test_a_range_of_addresses_is_one_that_an_api_server_takes(text: str) -> None:
    assert (problems({"networkPolicy": {"apiServerCIDRs": [text]}}) == []) == _is_cidr(text)


@rows(
    "repository",
    [
        *("gpu-dra-driver", "localhost/gpu-dra-driver", "localhost:5000/a/b", "[fd00::1]:5000/a", "Registry.Example/a"),
        *("123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/gpu_dra", "europe-docker.pkg.dev/project-1/repo/a.b--c"),
    ],
)
def test_an_image_may_be_in_any_registry(repository: str) -> None:
    assert problems({"image": {"repository": repository, "tag": "v0.1.0-rc.1_x"}}) == []


def _paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Of every mapping of fixed keys in the values."""
    paths = [path]
    for key, child in value.get("properties", {}).items():
        if child.get("additionalProperties") is False and "patternProperties" not in child:
            paths += _paths(child, (*path, key))
    return paths


@settings(max_examples=examples(60))
@given(path=st.sampled_from(_paths(SCHEMA)), name=st.text("abcdefgh", min_size=3, max_size=6), values=combinations())
def test_a_typo_anywhere_is_refused(path: tuple[str, ...], name: str, values: Values) -> None:
    typo: Values = {name: True}
    for key in reversed(path):
        typo = {key: typo}
    assert problems(merged(values, typo))


_PATTERNS = st.lists(st.text("ab*-", min_size=1, max_size=4), min_size=1, max_size=2)
_RULE = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.fixed_dictionaries({}, optional={"names": _PATTERNS}),
        "gpus": st.fixed_dictionaries({}, optional={"products": _PATTERNS, "uuids": _PATTERNS, "names": _PATTERNS}),
    },
)
_POLICY = st.fixed_dictionaries(
    {},
    optional={
        "publish": st.lists(_RULE, max_size=2),
        "withhold": st.lists(_RULE, max_size=2),
        "passthrough": st.lists(_RULE, max_size=2),
        "sharing": st.lists(
            st.fixed_dictionaries(
                {"strategy": st.sampled_from(["MPS", "TimeSlicing", "Exclusive"])},
                optional={
                    "replicas": st.integers(0, 200),
                    "unlimited": st.booleans(),
                    "capacity": st.lists(st.sampled_from(["memory", "cores", "x"]), max_size=2),
                },
            ),
            max_size=2,
        ),
        "health": st.fixed_dictionaries(
            {}, optional={"ignoreXids": st.lists(st.integers(-1, 10_000), max_size=2), "evict": st.booleans()}
        ),
    },
)


@given(policy=_POLICY)
@settings(max_examples=examples(150))
def test_the_schema_says_of_policies_what_the_programs_say(policy: Values) -> None:
    """Which are refused by Helm would be refused by the controller, and the other way round."""
    text = yaml.safe_dump({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **policy})
    try:
        decode_policy(text, about="policy")
        understood = True
    except InvalidInput:
        understood = False
    assert (problems({"policy": policy}) == []) == understood


def test_a_policy_that_uses_everything_is_accepted() -> None:
    assert problems({"policy": POLICY}) == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"controller": {"leaderElection": {"leaseDuration": 10, "renewDeadline": 10}}},
            "leaseDuration must be longer than renewDeadline",
        ),
        ({"serviceAccounts": {"kubeletPlugin": "one", "controller": "one"}}, "need different accounts"),
        ({"image": {"tag": "0.2.0", "digest": f"sha256:{'1a' * 32}"}}, 'remove image.tag, or set image.digest=""'),
        (
            {"deviceClasses": {"extendedResources": {"gpu.nvidia.com": "a/b", "mig.nvidia.com": "a/b"}}},
            "gpu.nvidia.com and mig.nvidia.com cannot both be a/b",
        ),
        ({"serviceAccounts": {"imexDaemon": "one", "controller": "one"}}, "need different accounts"),
        (
            {"deviceClasses": {"extra": [{"name": "mig.nvidia.com", "spec": {}}]}},
            "class mig.nvidia.com already exists",
        ),
        (
            {"deviceClasses": {"extra": [{"name": "any", "spec": {"extendedResourceName": "nvidia.com/gpu"}}]}},
            "gpu.nvidia.com and another class cannot both be nvidia.com/gpu",
        ),
        ({"webhook": {"install": True, "port": 8080}}, "controller.httpPort already uses this port"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: Values, says: str, helm: Helm) -> None:
    with pytest.raises(HelmError, match=says):
        helm.install(values)


ASKING: dict[str, Values] = {
    "everything": {**POLICY, "computeDomains": [{"channels": 4}]},
    "nothing": {"withhold": POLICY["withhold"], "mig": [{"mode": "Static"}], "health": {"evict": False}},
    "of nothing to share": {"sharing": [{"strategy": "Exclusive"}], "health": {"ignoreXids": []}},
    "evictions": {"health": {"evict": True}},
    "time slices of the second rule": {"sharing": [POLICY["sharing"][1], POLICY["sharing"][0]]},
}


@pytest.mark.parametrize("title", slow_but(ASKING, "everything"))
def test_a_policy_that_asks_for_what_a_gate_switches_off_is_refused_with_the_fields(
    title: str, server: ServerThread
) -> None:
    """The same as by the programs, which would say it when they start."""
    policy = ASKING[title]
    manifest = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **policy}
    asked = decode_policy(json.dumps(manifest), about="values").features
    off = {str(feature): False for _, feature in asked} or {"PassthroughSupport": False}
    values = {"policy": policy, "crds": {"install": False}, "deviceClasses": {"install": False}}
    helm, before = Helm(server.kubeconfig), server.names()
    if not asked:
        assert helm.install({**values, "featureGates": off}).objects
        return
    with pytest.raises(HelmError) as refused:
        helm.install({**values, "featureGates": off})
    lines = {line.strip("; .") for line in str(refused.value).splitlines() if line.startswith("policy.")}
    assert lines == {f"policy.{field} needs featureGates.{feature}, which is off" for field, feature in asked}
    assert server.names() == before and helm.install(values).objects


def test_the_schema_knows_the_hardware_that_can_be_simulated() -> None:
    def refused(simulate: str) -> bool:
        return bool(problems({"kubeletPlugin": {"simulate": simulate}}))

    assert not [name for name in ("", *profile_names()) if refused(name) or (name and refused(f"{name}:12"))]
    assert all(refused(name) for name in ("nosuch", "t", "t4x", "t4:x", ":1"))
