"""One answer for a cluster: which file says what resources mean, and what a person is told of the others."""

from collections.abc import Mapping

import yaml
from support.migration import GPU, limits, pod

from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import MIG_LAYOUT, NOT_TAKEN
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, Options

POD = yaml.safe_dump(pod(limits({GPU: 1})))


def shared(replicas: int, strategy: str = "none") -> JsonObject:
    resources = [{"name": GPU, "replicas": replicas}]
    return {"version": "v1", "flags": {"migStrategy": strategy}, "sharing": {"timeSlicing": {"resources": resources}}}


def config_map(name: str, **configs: JsonObject) -> str:
    data = {key: yaml.safe_dump(config) for key, config in configs.items()}
    metadata = {"name": name, "namespace": "gpu"}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def operator(config: str | None = None, strategy: str = "none") -> str:
    plugin = {"config": {"name": config, "default": "default"}} if config is not None else {}
    spec = {"devicePlugin": plugin, "mig": {"strategy": strategy}}
    metadata = {"name": "p"}
    return yaml.safe_dump({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": metadata, "spec": spec})


def migrated(files: Mapping[str, str], side: Mapping[str, str] | None = None) -> Migration:
    sources = [ManifestText(name, text) for name, text in files.items()]
    return migrate(sources, Options(), [ManifestText(name, text) for name, text in (side or {}).items()])


def replicas(migration: Migration) -> list[int]:
    return [rule["replicas"] for rule in (migration.policy or {}).get("sharing", ())]


def not_taken(migration: Migration) -> list[str]:
    return [finding.message for finding in migration.findings if finding.code is NOT_TAKEN]


PLAIN = yaml.safe_dump(shared(4))


def test_what_is_given_for_what_it_says_goes_before_what_is_found() -> None:
    migration = migrated({"pod.yaml": POD, "plugin.yaml": PLAIN}, {"tests/mine.yaml": yaml.safe_dump(shared(8))})
    assert replicas(migration) == [8]
    assert not_taken(migration) == [
        "the device plugin's configuration is taken from tests/mine.yaml; plugin.yaml says otherwise"
    ]
    other = migrated(
        {"plugin.yaml": config_map("a", here=shared(4))}, {"mine.yaml": config_map("b", default=shared(8))}
    )
    assert replicas(other) == [8]
    assert len(not_taken(other)) == 1
    (unnamed,) = not_taken(migrated({"plugin.yaml": PLAIN}, {"mine.yaml": config_map("b", default=shared(8))}))
    where = "ConfigMap gpu/b in mine.yaml:1"
    assert unnamed == f"the device plugin's configuration is taken from {where}; plugin.yaml says otherwise"


def test_of_configurations_with_one_name_the_last_counts_and_the_others_are_named() -> None:
    files = {name: config_map("plugin", default=shared(number)) for name, number in (("a", 2), ("b", 3), ("c", 4))}
    migration = migrated({**files, "pod.yaml": POD})
    assert replicas(migration) == [4]
    places = [f"ConfigMap gpu/plugin in {name}:1" for name in "cab"]
    assert not_taken(migration) == [
        f"configuration default is taken from {places[0]}; {places[1]}, {places[2]} say otherwise"
    ]
    assert migration.reasons[0] == f"The meaning of resources was read from {places[0]}."


def test_where_they_say_the_same_nothing_is_told() -> None:
    migration = migrated(
        {"a.yaml": config_map("plugin", default=shared(2)), "b.yaml": config_map("plugin", default=shared(2))}
    )
    assert (replicas(migration), not_taken(migration)) == ([2], [])


def test_the_operator_says_which_one_counts() -> None:
    files = {"a.yaml": config_map("one", default=shared(2)), "b.yaml": config_map("two", default=shared(3))}
    migration = migrated({**files, "policy.yaml": operator("one")})
    assert (replicas(migration), not_taken(migration)) == ([2], [])


def test_two_operators_that_differ_are_named() -> None:
    migration = migrated(
        {"dev.yaml": operator(strategy="mixed"), "prod.yaml": operator(strategy="single"), "pod.yaml": POD}
    )
    where = ("ClusterPolicy p in prod.yaml:1", "ClusterPolicy p in dev.yaml:1")
    assert not_taken(migration) == [f"the MIG strategy is taken from {where[0]}; {where[1]} says otherwise"]


def layout(profile: str, **more: JsonObject) -> str:
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {profile: 2}}
    return yaml.safe_dump({"version": "v1", "mig-configs": {"half": [entry], **more}})


def told_of_layouts(migration: Migration) -> list[str]:
    return [finding.message for finding in migration.findings if finding.code is MIG_LAYOUT]


def test_of_layouts_with_one_name_that_differ_one_counts_and_the_others_are_named() -> None:
    migration = migrated({"a.yaml": layout("1g.10gb"), "b.yaml": layout("3g.40gb"), "pod.yaml": POD})
    assert not_taken(migration) == ["layout half is taken from b.yaml; a.yaml says otherwise"]
    assert told_of_layouts(migration) == ["layout half has MIG devices: 3g.40gb"]
    given = migrated({"b.yaml": layout("3g.40gb"), "pod.yaml": POD}, {"a.yaml": layout("1g.10gb")})
    assert not_taken(given) == ["layout half is taken from a.yaml; b.yaml says otherwise"]
    same = migrated({"a.yaml": layout("1g.10gb"), "b.yaml": layout("1g.10gb"), "pod.yaml": POD})
    assert not_taken(same) == []
