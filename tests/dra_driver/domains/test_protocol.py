"""The protocol of ComputeDomains under random schedules: users, nodes, daemons, kubelets and controllers, one step of
anybody at a time; controllers decide on what they saw some steps ago, and end in the middle of what they decided."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from support.domain_world import MAX_NODES, NOW, DomainObject, NodeObject, Stale, World

from dra_driver.domains.domain_plan import DomainPlan, decide
from dra_driver.domains.observed import ObservedDomain

NODES = ("a", "b", "c", "d", "e")
CLIQUES = ("rack-1.0", "rack-1.1", "")


class Protocol(RuleBasedStateMachine):
    domains = Bundle("domains")

    @initialize(
        target=domains,
        cliques=st.lists(st.sampled_from(CLIQUES), min_size=len(NODES), max_size=len(NODES)),
        sizes=st.lists(st.sampled_from([0, 0, 2]), min_size=2, max_size=3),
        places=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(NODES)), max_size=8),
    )
    def begin(self, cliques: list[str], sizes: list[int], places: list[tuple[int, str]]) -> Any:
        self.world = World()
        self.world.nodes = {name: NodeObject(clique) for name, clique in zip(NODES, cliques, strict=True)}
        self.count = 0
        self.held: list[tuple[ObservedDomain, dict[str, int], DomainPlan, int]] = []
        uids = [self.create(size) for size in sizes]
        self.world.settle()
        for which, node in places:
            self.pod_is_given_a_node(uids[which % len(uids)], node, attribute_known=False)
        return multiple(*uids)

    @rule(target=domains, num_nodes=st.sampled_from([0, 0, 2]))
    def user_makes_a_domain(self, num_nodes: int) -> Any:
        return self.create(num_nodes) if len(self.world.domains) < 3 else multiple()

    def create(self, num_nodes: int) -> str:
        self.count += 1
        uid = f"domain-{self.count}"
        self.world.domains[uid] = DomainObject(uid, num_nodes)
        return uid

    @rule(domain=domains)
    def delete(self, domain: str) -> None:
        target = self.world.domains.get(domain)
        if target is not None and not target.finalizer:
            del self.world.domains[domain]
        elif target is not None:
            target.deleting = True
            target.version += 1

    @rule(domain=domains, node=st.sampled_from(NODES), attribute_known=st.booleans())
    def pod_is_given_a_node(self, domain: str, node: str, attribute_known: bool) -> None:
        if node in self.world.nodes:
            self.count += 1
            self.world.schedule(f"pod-{self.count}", domain, node, attribute_known=attribute_known)

    @rule()
    def pods_start(self) -> None:
        for pod in self.world.pods:
            self.world.start(pod)

    @rule(which=st.integers(0, 7))
    def pod_goes(self, which: int) -> None:
        if which < len(self.world.pods):
            del self.world.pods[sorted(self.world.pods)[which]]

    @rule(node=st.sampled_from(NODES), clique=st.sampled_from(CLIQUES))
    def node_goes_or_comes(self, node: str, clique: str) -> None:
        if node in self.world.nodes:
            del self.world.nodes[node]
            self.world.pods = {name: pod for name, pod in self.world.pods.items() if pod.node != node}
        else:
            self.world.nodes[node] = NodeObject(clique)

    @rule(node=st.sampled_from(NODES))
    def fabric_breaks_or_heals(self, node: str) -> None:
        if node in self.world.nodes:
            self.world.nodes[node].fabric = not self.world.nodes[node].fabric
            self.world.nodes[node].version += 1

    @rule(node=st.sampled_from(NODES))
    def daemon_pod_is_replaced(self, node: str) -> None:
        for daemon in self.world.daemons:
            if daemon.node == node:
                daemon.deleting, daemon.ready = True, False

    @rule(node=st.sampled_from(NODES))
    def somebody_tends_daemons(self, node: str) -> None:
        self.world.tend(node)

    @rule(domain=domains)
    def a_controller_looks(self, domain: str) -> None:
        if domain in self.world.domains:
            observed, versions = self.world.observe(domain)
            self.held.append((observed, versions, decide(observed, NOW, max_nodes=MAX_NODES), 0))

    @rule(domain=domains)
    def a_controller_does_all_that_it_sees(self, domain: str) -> None:
        self.world.reconcile(domain)

    @rule()
    def everybody_works_for_a_while(self) -> None:
        for _ in range(4):
            for uid in list(self.world.domains):
                self.world.reconcile(uid)
            for node in NODES:
                self.world.tend(node)

    @rule(data=st.data())
    def a_controller_does_one_thing_or_ends(self, data: st.DataObject) -> None:
        if not self.held:
            return
        index = data.draw(st.integers(0, len(self.held) - 1))
        observed, versions, decision, done = self.held.pop(index)
        things = [*([decision.status] if decision.status is not None else []), *decision.actions]
        if done >= len(things) or data.draw(st.integers(0, 9)) == 0:
            return
        try:
            if done == 0 and decision.status is not None:
                self.world.write_status(observed, decision.status)
            else:
                self.world.act(observed.uid, decision.actions[done - (decision.status is not None)], versions)
        except Stale:
            return
        self.held.append((observed, versions, decision, done + 1))

    @invariant()
    def no_node_runs_programs_of_two_domains(self) -> None:
        for node in NODES:
            running = {pod.domain for pod in self.world.pods.values() if pod.running and pod.node == node}
            assert len(running) <= 1, f"node {node} runs {running}"

    @invariant()
    def no_node_has_two_daemons_that_run(self) -> None:
        for node in NODES:
            assert sum(daemon.node == node and daemon.device for daemon in self.world.daemons) <= 1

    @invariant()
    def peers_of_a_clique_have_different_indices(self) -> None:
        for domain in self.world.domains.values():
            places = [(node.clique_id, node.index) for node in domain.status.nodes]
            assert len(set(places)) == len(places), places

    @invariant()
    def no_two_daemons_run_in_one_place(self) -> None:
        places = [(daemon.domain, *daemon.place) for daemon in self.world.daemons if daemon.place is not None]
        assert len(set(places)) == len(places), places

    @invariant()
    def a_ready_domain_names_no_node_that_is_not_ready(self) -> None:
        for domain in self.world.domains.values():
            if domain.status.status == "Ready":
                assert domain.status.ready_nodes.split("/")[0] == domain.status.ready_nodes.split("/")[1]

    def teardown(self) -> None:
        """It comes to rest, then the truth is in the status; and when all domains are deleted nothing is left."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.settle()
        for domain in world.domains.values():
            self._status_is_true(domain)
        world.pods.clear()
        for uid in list(world.domains):
            self.delete(uid)
        world.settle()
        assert not world.domains
        assert not world.daemons
        assert all(node.label is None for node in world.nodes.values())

    def _status_is_true(self, domain: DomainObject) -> None:
        wanted = {pod.node for pod in self.world.pods.values() if pod.domain == domain.uid}
        serving = {daemon.node for daemon in self.world.daemons if daemon.domain == domain.uid and daemon.ready}
        sound = {name for name, node in self.world.nodes.items() if node.fabric and node.label == domain.uid}
        expected = bool(wanted) and wanted <= serving & sound and len(wanted) >= domain.num_nodes
        expected = expected and domain.template and not domain.deleting
        assert (domain.status.status == "Ready") == expected, domain.status


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(stateful_step_count=60)
