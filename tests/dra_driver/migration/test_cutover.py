"""At every moment of the way there and back, at most one of device plugin and driver offers a GPU.

The commands of the plan are interpreted here, by a cluster in which everything happens as late, or as early, as it
may: a device plugin whose node selector matches no more goes on to offer until somebody has waited for its end, pods
that are told to go stay, and new ones come wherever somebody still offers.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helm import CHART
from support.rows import examples

from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.migration.claims.publishing import final_values, kept_resources, values_for_cutover
from dra_driver.migration.cutover.commands import Act, CutoverPlan, Results, Stage
from dra_driver.migration.cutover.cutover_plan import cutover
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, ObjectRef, Options, StrategyOption
from dra_driver.migration.report.markdown import way, way_back
from dra_driver.migration.understand.offering import (
    DRIVER_RUNS,
    OFFERED_BY,
    DevicePlugin,
    GpuHolder,
    GpuNode,
    Installed,
    Offering,
    PluginSettings,
    offering_of,
    plugin_settings,
)
from dra_driver.names import GPU_DRIVER


class Doubled(AssertionError):
    """Both offer a GPU, or one offers what a pod of the other has."""


@dataclass
class Node:
    """What may be true of it; `old` and `new` are pods that have GPUs by the device plugin, or by claims."""

    labels: dict[str, str]
    plugin: bool
    driver: bool
    old: bool
    new: bool
    driver_pod: bool
    damaged: bool
    """Whether both offered before the plan began: then it must end that, and nothing else is asked of it until."""
    drained: bool = False


@dataclass
class Cluster:
    nodes: dict[str, Node]
    fenced: bool
    """Whether the device plugin heeds our label: DaemonSets after they are patched."""
    operator: bool
    fence_values: bool = False
    """Whether the driver was installed with the values of the cut-over."""
    installed: bool = False
    seen: list[str] = field(default_factory=list)

    def run(self, command: str) -> None:
        self.seen.append(command)
        for pattern, act in _COMMANDS:
            if match := pattern.fullmatch(command):
                act(self, *match.groups())
                self.settle()
                return
        raise AssertionError(f"not a command that is known here: {command}")

    # -- what commands do

    def label(self, rest: str) -> None:
        words = [word for word in shlex.split(rest) if word != "--overwrite"]
        names = [word for word in words if word in self.nodes]
        for name in names:
            for word in words[len(names) :]:
                if word.endswith("-"):
                    self.nodes[name].labels.pop(word[:-1], None)
                else:
                    key, value = word.split("=")
                    self.nodes[name].labels[key] = value

    def patch(self, daemon_set: str, patch: str) -> None:
        selector = json.loads(patch)["spec"]["template"]["spec"]["nodeSelector"]
        self.fenced = selector[OFFERED_BY] is not None

    def helm(self, verb: str, values: str) -> None:
        self.installed, self.fence_values = True, values.endswith("values-cutover.yaml")
        for name, node in self.nodes.items():
            assert not (node.plugin and DRIVER_RUNS in node.labels), f"the chart refuses: a device plugin is on {name}"

    def amount(self, name: str, resource: str, amount: str) -> None:
        node = self.nodes[name]
        if amount == "= 0":
            assert not self.wants_plugin(node), f"waits for ever: the device plugin stays on {name}"
            node.plugin = False
        else:
            assert self.wants_plugin(node), f"waits for ever: nobody starts the device plugin on {name}"

    def unpublished(self, name: str) -> None:
        node = self.nodes[name]
        assert not self.wants_to_publish(node), f"waits for ever: the driver publishes {name}"
        assert node.drained or not node.new, f"waits for ever: what claims have on {name} is published"
        node.driver = False

    def drain(self, name: str) -> None:
        self.nodes[name].drained = True

    def uncordon(self, name: str) -> None:
        self.nodes[name].drained = False

    def published(self, name: str) -> None:
        assert self.wants_to_publish(self.nodes[name]), f"waits for ever: nobody publishes {name}"

    def no_holders(self, name: str) -> None:
        """Who comes after the look is put back by `settle`. Those with claims of extended resources count here, too."""
        self.nodes[name].old = False

    def no_claims(self, name: str) -> None:
        node = self.nodes[name]
        assert not node.new or node.driver_pod, f"waits for ever: nobody takes back the devices of claims on {name}"
        node.new = False

    def driver_gone(self, name: str) -> None:
        node = self.nodes[name]
        assert DRIVER_RUNS not in node.labels
        node.driver_pod = False

    # -- what follows by itself, whenever it likes

    def wants_plugin(self, node: Node) -> bool:
        by_label = node.labels.get(OFFERED_BY) == "device-plugin" if self.fenced else True
        by_operator = node.labels.get("nvidia.com/gpu.deploy.device-plugin") != "false" if self.operator else True
        by_gke = "gke-no-default-nvidia-gpu-device-plugin" not in node.labels
        return by_label and by_operator and by_gke

    def wants_to_publish(self, node: Node) -> bool:
        runs = self.installed and (DRIVER_RUNS in node.labels or not self.fence_values)
        return runs and (node.labels.get(OFFERED_BY) == "driver" or not self.fence_values)

    def settle(self) -> None:
        """All that may have happened by now."""
        for name, node in self.nodes.items():
            node.plugin |= self.wants_plugin(node) and not node.damaged
            node.driver_pod |= self.installed and DRIVER_RUNS in node.labels
            node.driver |= self.wants_to_publish(node) and not node.damaged
            node.old |= node.plugin
            node.new |= node.driver
            node.damaged &= node.plugin or node.driver or node.old or node.new
            if not node.damaged and ((node.plugin or node.old) and (node.driver or node.new)):
                raise Doubled(f"{name} after {self.seen}")


_NAME = "([a-z0-9-]+)"
_COMMANDS = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (r"kubectl label node (.+)", Cluster.label),
        (rf"kubectl -n [a-z-]+ patch daemonset {_NAME} --type merge -p '(.+)'", Cluster.patch),
        (r"helm (upgrade(?: --install)?) .* -f (\S+)", Cluster.helm),
        (
            rf"for .*now=.*kubectl get node {_NAME} -o jsonpath='\{{.status.allocatable\.(\S+)\}}'.* (!?= \d+) \] .*",
            Cluster.amount,
        ),
        (rf"for .*; do now=\$\(kubectl get resourceslices .*nodeName={_NAME},.*", Cluster.unpublished),
        (rf"for .*; do kubectl get resourceslices .*nodeName={_NAME},.*done", Cluster.published),
        (rf"now=\$\(kubectl describe node {_NAME}\) && .*", Cluster.no_holders),
        (rf"for .*; do now=\$\(kubectl get resourceclaims .*'gpu.nvidia.com {_NAME};'.*done", Cluster.no_claims),
        (rf".* wait pod --for=delete --field-selector spec.nodeName={_NAME} .*", Cluster.driver_gone),
        (rf"kubectl drain {_NAME} .*", Cluster.drain),
        (rf"kubectl uncordon {_NAME}", Cluster.uncordon),
        (r"kubectl (?:cordon|apply|get pods) .*|state=.*|found=.*", lambda cluster: None),
        (r"kubectl -n \S+ (?:delete pod|get pods|rollout status) .*|helm test .*", lambda cluster: None),
    )
)

OPERATOR = DevicePlugin(Installed.OPERATOR, "", "cluster-policy")
DAEMON_SET = DevicePlugin(Installed.DAEMON_SET, "kube-system", "nvidia-device-plugin")
GKE = DevicePlugin(Installed.GKE, "kube-system", "nvidia-gpu-device-plugin-large-cos")


@st.composite
def offerings(draw: st.DrawFn) -> Offering:
    nodes = []
    for index in range(draw(st.integers(1, 4))):
        resources = draw(
            st.sampled_from([{}, {"nvidia.com/gpu": 8}, {"nvidia.com/mig-1g.10gb": 14, "nvidia.com/gpu": 4}])
        )
        driver = draw(st.sampled_from([False, False, True]))
        holders = tuple(
            GpuHolder("team", f"pod-{index}-{number}", draw(st.sampled_from(OWNERS)), by_claim=not resources)
            for number in range(draw(st.integers(0, 3)))
        )
        mig = draw(st.sampled_from([None, "all-1g.10gb"]))
        # What a plan that somebody gave up leaves behind: the driver's label, or a node that nobody offers.
        left = draw(st.booleans()) and not driver
        nodes.append(GpuNode(f"node-{index}", resources, driver, holders, mig, left, left and bool(resources)))
    plugin = draw(st.sampled_from([OPERATOR, DAEMON_SET, GKE]))
    return Offering(tuple(nodes), (plugin,), draw(st.booleans()))


OWNERS = (None, ObjectRef("Deployment", "team", "web"), ObjectRef("DaemonSet", "team", "watch"))


def simulated(offering: Offering) -> Cluster:
    nodes = {}
    for node in offering.nodes:
        plugin, both = bool(node.resources), bool(node.resources) and node.driver
        labels = {OFFERED_BY: "driver", DRIVER_RUNS: "yes"} if node.driver and not plugin else {}
        if offering.plugins[0] == OPERATOR and not plugin:
            labels["nvidia.com/gpu.deploy.device-plugin"] = "false"
        if offering.plugins[0] == GKE and not plugin:
            labels["gke-no-default-nvidia-gpu-device-plugin"] = "true"
        nodes[node.name] = Node(labels, plugin, node.driver, plugin, node.driver, node.driver, both)
        if not plugin:
            labels.setdefault(OFFERED_BY, "nobody")
        if node.driver_label:
            labels[DRIVER_RUNS] = "yes"
    driver_there = any(node.driver for node in offering.nodes)
    # Where the driver is there already, somebody has kept it from the other nodes, by labels as ours.
    return Cluster(nodes, not plugin_everywhere(offering), offering.plugins[0] == OPERATOR, driver_there, driver_there)


def plugin_everywhere(offering: Offering) -> bool:
    return all(node.resources for node in offering.nodes)


def commands(stages: tuple[Stage, ...], until: Act | None = None) -> Iterator[str]:
    for stage in stages:
        for step in stage.steps:
            if step.act is until:
                return
            yield from step.commands


def node_object(name: str, allocatable: Mapping[str, str], labels: Mapping[str, str] | None = None) -> JsonObject:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def daemon_set_object(name: str, *containers: JsonObject, owner: JsonObject | None = None) -> JsonObject:
    metadata = {"name": name, "namespace": "nvidia", "ownerReferences": [owner] if owner is not None else []}
    return {"kind": "DaemonSet", "metadata": metadata, "spec": {"template": {"spec": {"containers": [*containers]}}}}


def plan_of(offering: Offering) -> CutoverPlan:
    policy = {"mig": [{"mode": "Dynamic"}]} if offering.mig_manager else None
    return cutover(offering, Migration((), (), (), (), (), policy=policy), GPU_DRIVER, Results())


@given(offerings())
@settings(max_examples=examples(60))
def test_nobody_ever_gets_a_gpu_twice_on_the_way_to_the_driver(offering: Offering) -> None:
    plan, cluster = plan_of(offering), simulated(offering)
    for command in commands(plan.forward, until=Act.REMOVE_PLUGIN):
        cluster.run(command)
    for gpu_node in offering.nodes:
        if gpu_node.resources or (gpu_node.begun and not plan.empty):
            node = cluster.nodes[gpu_node.name]
            assert (node.plugin, node.driver, node.damaged) == (False, True, False)


@given(offerings(), st.data())
@settings(max_examples=examples(80))
def test_nor_on_the_way_back_from_wherever_one_stopped(offering: Offering, data: st.DataObject) -> None:
    plan, cluster = plan_of(offering), simulated(offering)
    if plan.empty:
        return
    there = list(commands(plan.forward, until=Act.REMOVE_PLUGIN))
    # The driver is there, and the device plugin heeds the label; before that there is nothing to go back from.
    first = next(index for index, line in enumerate(there) if line.startswith("helm upgrade")) + 1
    for command in there[: data.draw(st.integers(first, len(there)))]:
        cluster.run(command)
    for command in commands(plan.back, until=Act.UNINSTALL):
        cluster.run(command)
    for gpu_node in offering.nodes:
        if gpu_node.resources or gpu_node.begun:
            node = cluster.nodes[gpu_node.name]
            assert (node.plugin, node.driver) == (True, False)


@pytest.mark.parametrize("left_out", [Act.AWAIT_PLUGIN_GONE, Act.AWAIT_FREE, Act.STOP_PLUGIN])
def test_a_plan_without_one_of_its_steps_would_be_found_out(left_out: Act) -> None:
    """That is to say, these tests can fail."""
    offering = Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, False),), (DAEMON_SET,))
    cluster = simulated(offering)
    with pytest.raises(AssertionError):
        for stage in plan_of(offering).forward:
            for step in stage.steps:
                for command in step.commands if step.act not in (left_out, Act.REMOVE_PLUGIN, Act.LIFT_FENCE) else ():
                    cluster.run(command)


@pytest.mark.parametrize("left_out", [Act.AWAIT_NOT_OFFERED, Act.AWAIT_NO_CLAIMS, Act.STOP_OFFERING])
def test_nor_could_one_of_the_way_back_be_left_out(left_out: Act) -> None:
    offering = Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, False),), (OPERATOR,))
    plan, cluster = plan_of(offering), simulated(offering)
    for command in commands(plan.forward, until=Act.REMOVE_PLUGIN):
        cluster.run(command)
    with pytest.raises(AssertionError):
        for stage in plan.back:
            for step in stage.steps:
                for command in step.commands if step.act not in (left_out, Act.UNINSTALL) else ():
                    cluster.run(command)


def test_nodes_where_both_offer_come_first_then_those_with_the_fewest_pods() -> None:
    held = GpuHolder("team", "a", None, by_claim=False)
    offering = Offering(
        (
            GpuNode("busy", {"nvidia.com/gpu": 8}, False, (held, held)),
            GpuNode("over", {}, True),
            GpuNode("empty", {"nvidia.com/gpu": 8}, False),
            GpuNode("both", {"nvidia.com/gpu": 8}, True, (held,)),
        ),
        (DAEMON_SET,),
    )
    plan = plan_of(offering)
    assert [stage.node for stage in plan.forward] == [None, "both", "empty", "busy", None]
    assert plan.conflicts == ("both",)
    assert [stage.node for stage in plan.back] == ["busy", "empty", "both", None]


def test_the_driver_is_tried_on_the_first_node_before_pods_that_wait_take_its_gpus() -> None:
    """Its pod comes to a node that is cordoned, for it tolerates what the chart's values say."""
    offering = Offering(tuple(GpuNode(name, {"nvidia.com/gpu": 8}, False) for name in "ab"), (DAEMON_SET,))
    first, second = (list(stage.steps) for stage in plan_of(offering).forward[1:3])
    tried = [index for index, step in enumerate(first) if "helm test" in "".join(step.commands)]
    opened = [index for index, step in enumerate(first) if step.act is Act.UNCORDON]
    assert len(tried) == len(opened) == 1 and tried < opened
    assert not [step for step in second if "helm test" in "".join(step.commands)]
    assert yaml.safe_load((CHART / "values.yaml").read_text())["test"]["tolerations"] == [{"operator": "Exists"}]


def test_there_is_no_plan_where_no_device_plugin_offers_anything() -> None:
    assert plan_of(Offering((GpuNode("over", {}, True),))).empty


def test_where_a_plan_brought_every_node_over_that_is_left_its_end_is_the_plan() -> None:
    """Of two nodes one went over, and the other has left the cluster; so nobody ever came to the end."""
    by_plan = {OFFERED_BY: "driver", DRIVER_RUNS: "yes"}
    slices = {"kind": "ResourceSlice", "spec": {"driver": GPU_DRIVER, "nodeName": "over"}}
    for labels, ends in ((by_plan, True), ({}, False)):
        read = offering_of([node_object("over", {}, labels), slices], GPU_DRIVER)
        assert plan_of(read).empty, "no device plugin is left"
        plan = plan_of(Offering(read.nodes, (DAEMON_SET,)))
        assert plan.has_only_its_end is ends
        assert [step.act for stage in plan.forward for step in stage.steps] == [
            Act.REMOVE_PLUGIN,
            Act.LIFT_FENCE,
        ] * ends
        assert "only its end is left" in "\n".join(way(plan, ())) or not ends
        assert not list(way_back(plan))


def test_a_device_plugin_whose_pods_start_anew_is_waited_for() -> None:
    plan = plan_of(Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, False),), (DAEMON_SET,)))
    for stages in plan.forward, plan.back:
        steps = [
            step.commands for stage in stages for step in stage.steps if "patch daemonset" in "".join(step.commands)
        ]
        assert steps and all("rollout status daemonset" in step[-1] for step in steps)


def test_pods_that_nobody_makes_anew_are_named() -> None:
    held = GpuHolder("team", "precious", None, by_claim=False)
    offering = Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, False, (held,)),), (DAEMON_SET,))
    evict = next(step for step in plan_of(offering).forward[1].steps if step.act is Act.EVICT)
    delete = "kubectl -n team delete pod --field-selector metadata.name=precious,spec.nodeName=node-0"
    assert delete in evict.commands
    assert "team/precious" in evict.note
    # Made anew with claims, it has its old name, and would keep the node from being drained on the way back.
    back = next(step for step in plan_of(offering).back[0].steps if step.act is Act.EVICT)
    assert delete in back.commands


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_pods_of_a_daemon_set_are_found_by_their_owner_since_their_names_change(tmp_path: Path) -> None:
    held = tuple(GpuHolder("team", name, ObjectRef("DaemonSet", "team", "watch"), by_claim=False) for name in "ab")
    offering = Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, False, held),), (DAEMON_SET,))
    evict = next(step for step in plan_of(offering).forward[1].steps if step.act is Act.EVICT)
    (line,) = [line for line in evict.commands if "watch" in line]
    shell(line, f'echo "$*" >> {tmp_path}/typed\n[ "$3" = get ] && echo watch-x watch-y', tmp_path)
    asked, deleted = (tmp_path / "typed").read_text().splitlines()
    assert 'ownerReferences[0].name=="watch"' in asked
    assert deleted == "-n team delete pod watch-x watch-y"


def test_the_mig_manager_goes_where_the_driver_makes_partitions_and_nowhere_else() -> None:
    node = GpuNode("node-0", {"nvidia.com/gpu": 8}, False, mig_config="all-balanced")
    for mode, goes in (("Dynamic", True), ("Static", False)):
        policy = {"mig": [{"mode": mode}]}
        plan = cutover(
            Offering((node,), (OPERATOR,), True), Migration((), (), (), (), (), policy=policy), GPU_DRIVER, Results()
        )
        assert any("mig-manager=false" in command for command in commands(plan.forward)) == goes
        assert any('"migManager":{"enabled":false}' in command for command in commands(plan.forward)) == goes


@pytest.mark.parametrize(
    "policy",
    [
        None,
        {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", "mig": [{"mode": "Dynamic"}]},
        {"publish": [{"gpus": {"products": ["Tesla T4"]}}, {"nodes": {"names": ["a"]}}]},
    ],
)
def test_until_the_end_the_driver_publishes_only_where_the_label_says_so(policy: dict[str, object] | None) -> None:
    values = values_for_cutover(
        Migration((), (), (), (), (), policy=policy, chart_values={"kubeletPlugin": {"nodeSelector": {"a": "b"}}})
    )
    assert values["kubeletPlugin"]["nodeSelector"] == {"a": "b", DRIVER_RUNS: "yes"}
    written = PublishingPolicy.of(values["policy"])
    assert not written.publishes_node("a", {}) and not written.publishes_node("a", {OFFERED_BY: "nobody"})
    assert written.publishes_node("a", {OFFERED_BY: "driver"})


DESCRIBED = """\
Name:               node-0
Capacity:
  nvidia.com/gpu:     8
Allocatable:
  nvidia.com/gpu:     0
Allocated resources:
  (Total limits may be over 100 percent, i.e., overcommitted.)
  Resource           Requests     Limits
  --------           --------     ------
  cpu                2150m (26%)  100m (1%)
  nvidia.com/gpu     {used}            {used}
Events:              <none>
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("used", "status"), [(0, 0), (3, 1)])
def test_whether_somebody_is_left_is_seen_in_what_kubectl_says(used: int, status: int, tmp_path: Path) -> None:
    offering = Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, False),), (DAEMON_SET,))
    (free,) = next(step.commands for step in plan_of(offering).forward[1].steps if step.act is Act.AWAIT_FREE)
    assert shell(free, f"cat <<'END'\n{DESCRIBED.format(used=used)}END", tmp_path).returncode == status


def shell(command: str, kubectl: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a command comes to where `kubectl` is this script; a loop that goes on ends with status 124."""
    (folder / "kubectl").write_text(f"#!/bin/sh\n{kubectl}\n")
    (folder / "sleep").write_text("#!/bin/sh\nkill $PPID\n")
    for name in ("kubectl", "sleep"):
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], env=environment, check=False, capture_output=True, text=True)


CONFLICT = Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, True),), (DAEMON_SET,))
LOOKS = (Act.AWAIT_PLUGIN_GONE, Act.AWAIT_NOT_OFFERED, Act.AWAIT_FREE, Act.AWAIT_NO_CLAIMS)


def looks(plan: CutoverPlan) -> list[str]:
    stages = (*plan.forward, *plan.back)
    return [command for stage in stages for step in stage.steps if step.act in LOOKS for command in step.commands]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_kubectl_that_fails_is_never_taken_for_there_is_none(tmp_path: Path) -> None:
    """The API server may be away for a moment: whoever then goes on gives GPUs away twice."""
    wanted = looks(plan_of(CONFLICT))
    assert len(wanted) >= 7
    for command in wanted:
        assert shell(command, "exit 1", tmp_path).returncode != 0, command
        assert shell(command, "exit 0", tmp_path).returncode == 0, f"{command} does not end where there is nothing"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_no_wait_is_for_ever_and_each_says_where_to_look() -> None:
    plan = plan_of(CONFLICT)
    waits = {line for line in (*commands(plan.forward), *commands(plan.back)) if "sleep" in line}
    assert len(waits) >= 5
    for command in waits:
        asked = f"kubectl() {{ return 1; }}; sleep() {{ echo $1; }}; {command}"
        done = subprocess.run(["bash", "-c", asked], check=False, capture_output=True, text=True)
        assert done.returncode != 0, command
        assert 9 * 60 < sum(map(int, done.stdout.split())) <= 10 * 60
        assert done.stderr.startswith("Not yet. ") and "node-0" in done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("answer", "ends"), [("", True), ("0", True), ("8", False)])
def test_kubelet_may_say_that_it_has_none_or_nothing_at_all(answer: str, ends: bool, tmp_path: Path) -> None:
    (command,) = next(step.commands for step in plan_of(CONFLICT).back[0].steps if step.act is Act.AWAIT_PLUGIN_GONE)
    assert (shell(command, f"echo -n '{answer}'", tmp_path).returncode == 0) == ends


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("claims", "ends"),
    [("gpu.nvidia.com node-0;", False), ("gpu.nvidia.com node-01;", True), ("nic.example.com node-0;", True)],
)
def test_claims_of_other_drivers_and_nodes_are_not_waited_for(claims: str, ends: bool, tmp_path: Path) -> None:
    command = next(step.commands[0] for step in plan_of(CONFLICT).back[0].steps if step.act is Act.AWAIT_NO_CLAIMS)
    assert (shell(command, f"echo -n '{claims}'", tmp_path).returncode == 0) == ends


PODS = """\
team asks  [{"name":"main","resources":{"limits":{"nvidia.com/gpu":"1"}}}]
team claims [{"name":"gpu","resourceClaimTemplateName":"t"}] {}
team other  {"limits":{"cpu":"1"}}"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_only_pods_that_have_gpus_are_moved(tmp_path: Path) -> None:
    for stage in (plan_of(CONFLICT).forward[1], plan_of(CONFLICT).back[0]):
        mark, drain = next(step.commands for step in stage.steps if step.act is Act.EVICT)
        typed = tmp_path / "typed"
        typed.write_text("")
        shell(mark, f"[ $1 = get ] && cat <<'END'\n{PODS}\nEND\nprintf '%s\\n' \"$*\" >> {typed}", tmp_path)
        marked = [line for line in typed.read_text().splitlines() if " label " in line]
        assert marked == [f"-n team label pod {name} dra.gpu/leaves=yes --overwrite" for name in ("asks", "claims")]
        assert "--pod-selector dra.gpu/leaves=yes" in drain


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_network_cards_and_what_a_person_says_is_no_gpu_are_not_waited_for_and_their_pods_stay(tmp_path: Path) -> None:
    """NVIDIA's Network Operator gives its cards names of the same prefix."""
    beside = {"nvidia.com/hostdev": "4", "nvidia.com/license-x": "9"}
    nodes = [node_object("node-0", {"nvidia.com/gpu": "8", **beside}), node_object("cards", beside)]

    def held(name: str, resource: str) -> JsonObject:
        spec = {"nodeName": "node-0", "containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}]}
        return {"kind": "Pod", "metadata": {"name": name, "namespace": "t"}, "spec": spec}

    pods = [held("gpu", "nvidia.com/gpu"), held("card", "nvidia.com/hostdev"), held("lic", "nvidia.com/license-x")]
    read = offering_of([*nodes, *pods], GPU_DRIVER, ["nvidia.com/license-x"])
    (gpu_node,) = read.nodes
    assert (gpu_node.resources, [holder.name for holder in gpu_node.holders]) == ({"nvidia.com/gpu": 8}, ["gpu"])
    plan = plan_of(Offering(read.nodes, (DAEMON_SET,)))
    assert not any("hostdev" in command for command in commands(plan.forward) if "allocatable" in command)

    (free,) = next(step.commands for step in plan.forward[1].steps if step.act is Act.AWAIT_FREE)
    cards = "".join(f"  {name}    1     1\n" for name in beside)
    for used, status in (("0", 0), ("3", 1)):
        described = DESCRIBED.format(used=used).replace("Events:", f"{cards}Events:")
        assert "hostdev" in described
        assert shell(free, f"cat <<'END'\n{described}END", tmp_path).returncode == status, free

    mark = next(command for command in commands(plan.forward) if "dra.gpu/leaves=yes --overwrite" in command)
    typed = tmp_path / "typed"
    more = "".join(f'\nteam {name[11:]} {{"limits":{{"{name}":"1"}}}}' for name in beside)
    both = '\nteam both {"limits":{"nvidia.com/gpu":"1","nvidia.com/hostdev":"1"}}'
    shell(mark, f"[ $1 = get ] && cat <<'END'\n{PODS}{more}{both}\nEND\nprintf '%s\\n' \"$*\" >> {typed}", tmp_path)
    marked = [line.split()[4] for line in typed.read_text().splitlines() if " label " in line]
    assert marked == ["asks", "claims", "both"]


def test_what_an_earlier_plan_left_behind_is_taken_up() -> None:
    """A driver's label beside a device plugin, which the chart refuses, and a node that nobody offers."""
    labels = {DRIVER_RUNS: "yes", OFFERED_BY: "device-plugin"}
    nodes = [
        node_object("label", {"nvidia.com/gpu": "8"}, labels),
        node_object("nobody", {"nvidia.com/gpu": "0"}, {OFFERED_BY: "nobody"}),
        node_object("plain", {"nvidia.com/gpu": "8"}),
    ]
    read = offering_of(nodes, GPU_DRIVER)
    plan = plan_of(Offering(read.nodes, (DAEMON_SET,)))
    assert {stage.node for stage in plan.forward} == {None, "label", "nobody", "plain"}
    first = plan.forward[0].steps[0]
    assert first.act is Act.CLEAN and first.commands[-2] == "kubectl label node label dra.gpu/driver-"
    assert "resourceclaims" in first.commands[-3]
    assert [step.act for step in plan.forward[0].steps].count(Act.CLEAN) == 1
    assert {node.name for node in read.nodes if plan_of(read).empty} == set(), "nobody is left out"


def test_there_is_no_plan_beside_nvidias_own_dra_driver() -> None:
    """Its slices have the name of ours: nobody could say whose they are."""
    node = node_object("n", {"nvidia.com/gpu": "8"})
    cluster = {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "gpu-cluster"}}
    plugin = {"image": "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v26.8.0", "name": "gpus"}
    daemon_set = daemon_set_object("kubelet-plugin", plugin)
    for other, name in ((cluster, "GPUCluster gpu-cluster"), (daemon_set, "DaemonSet nvidia/kubelet-plugin")):
        offering = offering_of([node, other], GPU_DRIVER)
        plan = plan_of(offering)
        assert plan.empty and not plan.back and plan.refusal.startswith(name)
    domains = daemon_set_object("kubelet-plugin", {**plugin, "name": "compute-domains"})
    for parts, refused in (
        ({"enabled": False}, False),
        ({"gpus": {"enabled": False}, "computeDomains": {"enabled": True}}, False),
        ({"gpus": {"enabled": True}}, True),
        ({"gpus": None, "computeDomains": {"enabled": False}}, True),
    ):
        cluster_policy = {**cluster, "spec": {"draDriver": parts}}
        assert bool(plan_of(offering_of([node, cluster_policy, domains], GPU_DRIVER)).refusal) is refused


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_every_command_is_one_for_a_shell() -> None:
    held = GpuHolder("team", "precious", None, by_claim=False)
    for plugin in (OPERATOR, DAEMON_SET, GKE):
        nodes = (GpuNode("node-0", {"nvidia.com/gpu": 8}, True, (held,), "all-balanced"), GpuNode("node-1", {}, True))
        plan = plan_of(Offering(nodes, (plugin,), True))
        text = "\n".join([*commands(plan.forward), *commands(plan.back)])
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.fixture
def chart() -> JsonObject:
    """The schema of its values."""
    schema: JsonObject = json.loads((CHART / "values.schema.json").read_text())
    return schema


def test_the_chart_takes_the_values(chart: JsonObject) -> None:
    for policy in (None, {"mig": [{"mode": "Dynamic"}], "sharing": [{"strategy": "MPS", "replicas": 4}]}):
        migration = Migration((), (), (), (), (), policy=policy)
        jsonschema.validate(values_for_cutover(migration), chart)
        jsonschema.validate(final_values(migration), chart)


def test_the_chart_takes_the_values_where_pods_go_on_to_ask_for_mig_devices(chart: JsonObject) -> None:
    pod = """
apiVersion: v1
kind: Pod
metadata: {name: asks}
spec: {containers: [{name: main, image: cuda, resources: {limits: {nvidia.com/mig-1g.10gb: 1}}}]}
"""
    migration = migrate([ManifestText("pod.yaml", pod)], Options(strategy=StrategyOption.EXTENDED))
    assert kept_resources(migration) == {"nvidia.com/mig-1g.10gb"}
    values = final_values(migration)
    assert values["featureGates"] == {"MigExtendedResources": True}
    jsonschema.validate(values, chart)


def test_what_offers_is_read_from_nodes_pods_slices_and_who_is_installed() -> None:
    allocatable = {"cpu": "8", "nvidia.com/gpu": "8", "nvidia.com/gpu.shared": "0"}
    node = node_object("n", allocatable, {"nvidia.com/mig.config": "all-disabled"})
    other = node_object("cpu", {"cpu": "8"})
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    owner: dict[str, object] = {"kind": "ReplicaSet", "name": "web-5d9", "controller": True}
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "web-1",
            "namespace": "t",
            "ownerReferences": [owner],
            "labels": {"pod-template-hash": "5d9"},
        },
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": limits}]},
    }
    ended = {**pod, "metadata": {"name": "ended"}, "status": {"phase": "Succeeded"}}
    waiting = {**pod, "metadata": {"name": "waiting"}, "spec": {"containers": pod["spec"]["containers"]}}
    daemon_set = daemon_set_object("nvdp", {"image": "registry.local:5000/k8s-device-plugin:v0.18.0"})
    slice_ = {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"driver": GPU_DRIVER, "nodeName": "n"}}
    offering = offering_of([node, other, pod, ended, waiting, daemon_set, slice_], GPU_DRIVER)
    holder = GpuHolder("t", "web-1", ObjectRef("Deployment", "t", "web"), by_claim=False)
    assert offering.nodes == (GpuNode("n", {"nvidia.com/gpu": 8}, True, (holder,), "all-disabled"),)
    assert offering.plugins == (DevicePlugin(Installed.DAEMON_SET, "nvidia", "nvdp"),)
    assert not offering.mig_manager


def test_feature_discovery_stays_although_it_has_the_image_of_the_device_plugin() -> None:
    """The device plugin's chart runs both from one image, each beside a sidecar that brings its configuration."""
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"

    def daemon_set(name: str, command: str) -> JsonObject:
        sidecar = {"image": image, "command": ["config-manager"]}
        program = {"image": image, "command": [command], "env": [{"name": "MIG_STRATEGY", "value": "mixed"}]}
        return daemon_set_object(name, sidecar, program)

    plugin = daemon_set("nvdp", "nvidia-device-plugin")
    discovery = daemon_set("nvdp-gpu-feature-discovery", "/usr/bin/gpu-feature-discovery")
    offering = offering_of([plugin, discovery], GPU_DRIVER)
    assert offering.plugins == (DevicePlugin(Installed.DAEMON_SET, "nvidia", "nvdp"),)
    assert plugin_settings(discovery) is None
    assert plugin_settings(plugin) == PluginSettings(1, "mixed"), "of the plugin's own container"


def test_who_manages_the_daemon_set_must_change_it() -> None:
    offering = Offering((GpuNode("node-0", {"nvidia.com/gpu": 8}, False),), (DAEMON_SET,))
    steps = [step for stage in plan_of(offering).forward for step in stage.steps]
    (fence,) = [step for step in steps if step.act is Act.FENCE_PLUGIN]
    assert "Argo CD, Flux or an operator manages the DaemonSet, set the node selector there" in fence.note


def test_a_cluster_policy_stands_for_the_daemon_sets_that_it_owns() -> None:
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cp"}, "spec": {}}
    kyverno = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "metadata": {"name": "other"}}
    plugin = {"image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"}
    daemon_set = daemon_set_object("d", plugin, owner={"kind": "ClusterPolicy"})
    offering = offering_of([policy, kyverno, daemon_set], GPU_DRIVER)
    assert offering.plugins == (DevicePlugin(Installed.OPERATOR, "", "cp"),)
    assert offering.mig_manager
    off = {**policy, "spec": {"devicePlugin": {"enabled": False}, "migManager": {"enabled": False}}}
    assert offering_of([off], GPU_DRIVER) == Offering((), slices=False)


def test_the_operator_is_known_by_what_its_cluster_policy_owns_if_that_was_not_given() -> None:
    """`kubectl get daemonsets` does not show the ClusterPolicy. A patch of the DaemonSet would be undone."""
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cp", "controller": True}

    def owned(name: str, image: str) -> JsonObject:
        return daemon_set_object(name, {"image": f"nvcr.io/nvidia/{image}"}, owner=owner)

    plugin = owned("nvidia-device-plugin-daemonset", "k8s-device-plugin:v0.18.0")
    offering = offering_of([plugin, owned("nvidia-dcgm", "cloud-native/dcgm:4")], GPU_DRIVER)
    assert offering.plugins == (DevicePlugin(Installed.OPERATOR, "", "cp"),)
    assert not offering.mig_manager
    manager = owned("nvidia-mig-manager", "cloud-native/k8s-mig-manager:v0.12.0")
    assert offering_of([plugin, manager], GPU_DRIVER).mig_manager


@pytest.mark.parametrize(
    ("limits", "claims", "status", "by_claim"),
    [
        ({"nvidia.com/gpu": "4"}, [], {}, False),
        ({}, [{"name": "gpu"}], {}, True),
        ({"nvidia.com/gpu": "4"}, [{"name": "channel"}], {}, False),
        (
            {"nvidia.com/gpu": "4"},
            [{"name": "channel"}],
            {"extendedResourceClaimStatus": {"requestMappings": []}},
            True,
        ),
    ],
    ids=["device plugin", "claim", "device plugin beside a channel", "driver beside a channel"],
)
def test_a_pod_has_gpus_of_the_device_plugin_whatever_claims_it_has_besides(
    limits: dict[str, str], claims: list[dict[str, str]], status: dict[str, object], by_claim: bool
) -> None:
    node = node_object("n", {"nvidia.com/gpu": "8"})
    spec = {"nodeName": "n", "resourceClaims": claims, "containers": [{"name": "c", "resources": {"limits": limits}}]}
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "t"}, "spec": spec, "status": status}
    (gpu_node,) = offering_of([node, pod], GPU_DRIVER).nodes
    assert [holder.by_claim for holder in gpu_node.holders] == [by_claim]
