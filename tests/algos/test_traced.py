"""Gradient steps by traces are those without, bit by bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algo_worlds import Everything, env_of
from coterie.algos import learner as learner_module
from coterie.algos import traced as traced_module
from coterie.algos.algorithm import Capabilities
from coterie.algos.optimizer import Optimizer, TargetNetwork
from coterie.algos.ppo import PPO, PPOConfig
from coterie.algos.sac import SAC, SACConfig
from coterie.algos.traced import TracedStep
from coterie.config import callables
from coterie.core.tree import tree_map
from coterie.kernels import native, switch
from coterie.kernels.tracing import equal
from graph_training import Training, copied
from learners import collect_rollout, learner_of
from two_teams import TwoSides, against_random

HARD, SOFT = {"target_update_interval": 3}, {"target_update_interval": "null"}
RATES = {"lr_schedule": "linear", "lr_end": 0.1}
ENTROPY = {"entropy_schedule": "linear", "entropy_end": 0.5}
SCALED = {"reward_scale": "standardize", "normalize_obs": "true"}
PRIORITIZED = {"priority_alpha": 0.6}
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "VDN": ("vdn", "none", "discrete", RATES | HARD),
    "QMIX": ("qmix", "gru", "discrete", PRIORITIZED | SCALED | HARD),
    "MASAC": ("masac", "gru", "hybrid", PRIORITIZED | SCALED | RATES),
    "MATD3": ("matd3", "none", "continuous", SOFT | RATES),
    "COMA": ("coma", "none", "discrete", HARD | RATES | ENTROPY | {"num_minibatches": 4, "critic_time_chunks": 2}),
    "MAPPO": ("mappo", "gru", "hybrid", RATES | ENTROPY | {"entropy_decay": "null", "sequence_length": 4}),
    "MA-POCA": ("poca", "none", "discrete", RATES | ENTROPY | {"clip_schedule": "linear", "num_minibatches": 4}),
    "PQN-VDN": ("pqn_vdn", "none", "discrete", RATES | {"num_minibatches": 4}),
    "PAC": ("pac", "none", "discrete", HARD | {"num_minibatches": 4}),
    "original MAPPO": ("mappo/original", "none", "discrete", {"sequence_length": 4, "num_minibatches": 3}),
    "MAGPO": ("magpo", "none", "discrete", {"num_minibatches": 4}),
}
TURNS = {
    "HAPPO": ("happo", "none", "discrete", RATES | ENTROPY | {"num_minibatches": 4}),
    "HASAC": ("hasac", "none", "discrete", {}),
}
"""Name, recurrent layer, kind of actions, and settings."""


@pytest.fixture(autouse=True)
def _traced_at_once(monkeypatch: pytest.MonkeyPatch):
    """Traces the first step of a kind, with kernels."""
    monkeypatch.setattr(traced_module, "STEPS_BEFORE", 0)
    switch.configure("on")
    yield
    switch.configure("auto")


def training_of(case: str, traced: bool = True, **more: Any) -> Training:
    name, rnn, kind, settings = (CASES | TURNS)[case]
    with pytest.MonkeyPatch.context() as patch:
        if not traced:
            patch.setattr(learner_module, "TracedStep", lambda step, **_: step)
        return Training(name, rnn, "cpu", kind, **settings | more)


class Steps:
    """Counts the steps of a learner, those among them that the learner itself took, and its traces."""

    def __init__(self, learner: Any):
        self.taken = self.by_python = 0
        self.function = learner._step_function
        assert isinstance(self.function, TracedStep)
        step = self.function._step

        def call(*args: Any) -> Any:
            self.taken += 1
            return self.function(*args)

        def counted(*args: Any) -> Any:
            self.by_python += 1
            return step(*args)

        self.function._step, learner._step_function = counted, call

    @property
    def traces(self) -> list[Any]:
        return [x for x in self.function._traced.values() if x.repeat is not None]

    def assert_repeated(self) -> None:
        """Checks that the learner took two steps per trace, if at all, and traces the others."""
        assert len(self.traces) == len(self.function._traced)
        assert any(x.is_checked for x in self.traces)
        assert self.by_python == len(self.traces) + sum(x.is_checked for x in self.traces) <= self.taken - 2


@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_without_traces(case: str):
    """Metrics, parameters, moments of Adam, targets and statistics, with schedules that change coefficients."""
    traced, plain = training_of(case), training_of(case, False)
    steps = Steps(traced.learner)
    for k in range(4):
        assert traced.update(k / 4) == plain.update(k / 4)
    assert equal(traced.tensors(), plain.tensors())
    assert traced.counts() == plain.counts()
    assert steps.taken >= 6
    steps.assert_repeated()


def test_agents_in_turn_have_traces_of_their_own():
    """HAPPO's agents of a role use one module in turn, in a new order in each update."""
    traced, plain = training_of("HAPPO"), training_of("HAPPO", False)
    for k in range(4):
        assert traced.update(k / 4) == plain.update(k / 4)
    assert equal(traced.tensors(), plain.tensors())
    learner: Any = traced.learner
    for step in (*learner._agent_steps, learner._critic_step_function):
        assert any(x.is_checked for x in step._traced.values())


@pytest.mark.parametrize("case", ["VDN", "MAPPO"])
def test_a_learner_that_resumes_traces_its_new_tensors_and_continues_bit_by_bit(case: str):
    whole, resumed = training_of(case), training_of(case)
    for k in range(2):
        whole.update(k / 8)
        resumed.update(k / 8)
    steps = Steps(resumed.learner)
    before = steps.traces
    assert any(x.is_checked for x in before)
    resumed.learner.load_state_dict(tree_map(copied, resumed.learner.state_dict()))
    for k in range(2, 4):
        assert whole.update(k / 8) == resumed.update(k / 8)
    assert steps.by_python >= 2  # traced, and compared
    assert any(x.is_checked and x not in before for x in steps.traces)
    assert equal(whole.tensors(), resumed.tensors())


def test_epsilon_of_zero_is_another_trace():
    """COMA's step computes something else if choices are not mixed with uniform ones."""
    traced, plain = (training_of("COMA", is_traced, epochs=1, num_minibatches=2) for is_traced in (True, False))
    for k in range(6):
        for training in (traced, plain):
            training.learner.policy.epsilon = 0.5 if k < 2 else 0.25 if k < 4 else 0.0
        assert traced.update(0.0) == plain.update(0.0)
    steps = traced.learner._step_function
    assert equal(traced.tensors(), plain.tensors())
    assert {key[1] for key in steps._traced} == {False, True}
    assert all(x.is_checked for x in steps._traced.values())


def test_a_step_that_draws_the_order_of_agents_is_taken_as_usual():
    """HASAC's critics require no gradient while actors take steps, also if a trace ends there."""
    traced, plain = training_of("HASAC"), training_of("HASAC", False)
    for _ in range(3):
        assert traced.update(0.1) == plain.update(0.1)
    assert equal(traced.tensors(), plain.tensors())
    assert [x.repeat for x in traced.learner._step_function._traced.values()] == [None]


def test_without_kernels_nothing_is_traced():
    switch.configure("off")
    for case in ("VDN", "MAPPO"):
        assert not isinstance(training_of(case).learner._step_function, TracedStep)


def test_steps_of_critics_that_read_other_teams_through_their_policies_are_not_traced():
    """A policy of a user may draw nothing and depend on Python values. On-policy critics read rollouts only."""
    small = {"hidden_sizes": (8,), "rollout_length": 12, "critic": "global"}
    sac, _ = against_random(SAC, SACConfig(**small), TwoSides())
    assert sac.others.roles
    assert not isinstance(sac._step_function, TracedStep)
    ppo, _ = against_random(PPO, PPOConfig(**small), TwoSides())
    assert ppo.others.roles
    assert isinstance(ppo._step_function, TracedStep)


@pytest.mark.parametrize("case", ["MAPPO", "VDN"])
def test_a_copy_of_a_learner_does_not_train_the_networks_of_the_original(case: str):
    training = training_of(case)
    for k in range(3):
        training.update(k / 8)
    assert any(x.is_checked for x in training.learner._step_function._traced.values())
    before, rollout = training.tensors(), training.collect()
    copy.deepcopy(training.learner).update(rollout, 0.5)
    assert equal(training.tensors(), before)


# ------------------------------------------------------------------------------------------------ classes of users


class Plain(PPO):
    """Scales a term by a Python number that changes between steps, and promises nothing."""

    factor = 1.0

    def loss_terms(self, *args: Any) -> Any:
        terms = super().loss_terms(*args)
        return terms._replace(policy=self.factor * terms.policy)


class Promises(Plain):
    capabilities = PPO.capabilities


class PromisesNoGraphs(Plain):
    capabilities = Capabilities(actions=PPO.capabilities.actions)


class Inherits(Promises):
    """Its base class promises something for itself only."""


def test_algorithms_of_users_are_traced_if_they_promise_it_themselves():
    small = PPOConfig(hidden_sizes=(8,), rollout_length=8)
    traced = {}
    for kind in (PPO, Plain, Promises, PromisesNoGraphs, Inherits):
        algorithm, _ = learner_of(kind, small, env_of(Everything(), 4))
        traced[kind] = isinstance(algorithm._step_function, TracedStep)
    assert traced == {PPO: True, Plain: False, Promises: True, PromisesNoGraphs: False, Inherits: False}


def test_a_python_number_of_a_users_algorithm_acts_at_once():
    config = PPOConfig(hidden_sizes=(8,), rollout_length=8, entropy_coef=0.0, weight_decay=0.0)
    algorithm, collector = learner_of(Plain, config, env_of(Everything(), 4))
    for _ in range(3):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert algorithm.update(collect_rollout(algorithm, collector), 0.0)["policy/grad_norm"] > 0
    algorithm.factor = 0.0
    assert algorithm.update(collect_rollout(algorithm, collector), 0.0)["policy/grad_norm"] == 0


class Summed(nn.Module):
    """A mixer of a user."""

    def __init__(self, agents: int, state_size: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, q: Tensor, state: Tensor | None) -> Tensor:
        return self.scale * q.sum(-1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mappo", {"critic_network": "torch.nn:Identity"}),
        ("pac", {"critic_network": "torch.nn:Identity"}),
        ("masac", {"critic_network": "torch.nn:Identity"}),
        ("coma", {"network": "torch.nn:Identity"}),
        ("vdn", {"mixer": Summed}),
        ("pqn_vdn", {"mixer": Summed}),
    ],
)
def test_networks_and_mixers_of_users_are_not_traced(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """They may depend on Python values, which a callback may change at any time."""
    monkeypatch.setattr(callables, "_functions", {})
    settings = {key: x if isinstance(x, str) else callables.name_of(x) for key, x in settings.items()}
    assert isinstance(Training(name, "none", "cpu").learner._step_function, TracedStep)
    assert not isinstance(Training(name, "none", "cpu", **settings).learner._step_function, TracedStep)


# ------------------------------------------------------------------------------------------------------- single steps


class Regression:
    """Steps of a linear network towards a target network, and their number.

    Args:
        change: Changes the loss of a step, from the loss, this object and the sample.
        traced: Take steps by traces.
        freezes: The step leaves it to its caller which parameters require gradients.
        **parts: More arguments of `TracedStep`.
    """

    def __init__(self, change: Any = None, *, traced: bool = True, freezes: bool = False, **parts: Any):
        self.net, draw = nn.Linear(3, 2), torch.Generator().manual_seed(0)
        for p in self.net.parameters():
            p.data.normal_(generator=draw)
        self.optimizer = Optimizer({"net": self.net}, 1e-5, 0.0, 0.5)
        self.target = TargetNetwork(self.net, 1.0, 3)
        self.noise, self.statistic = torch.Generator().manual_seed(1), torch.ones(())
        self.calls, self.fails = 0, False
        self._change, self._freezes = change or (lambda loss, *_: loss), freezes
        own = {"optimizers": (self.optimizer,), "modules": (self.net,), "targets": (self.target,)}
        self.step: Any = TracedStep(self._step, **own, **parts) if traced else self._step

    def _step(self, x: Tensor, coefficients: Any, *flags: bool) -> Tensor:
        self.calls += 1
        loss = (self.net(x) - self.target.module(x) + 1).square().mean()
        if not self._freezes:
            self.net.requires_grad_(False)  # as SAC's critics in the step of the policy
        loss = self._change(loss, self, x)
        if not self._freezes:
            self.net.requires_grad_(True)
        norm = self.optimizer.step((-1 if flags and flags[0] else 1) * coefficients["weight"] * loss, coefficients)
        self.target.update()
        return torch.stack([loss.detach(), norm[0]])

    def take(self, count: int = 6, rows: Any = (4,), flags: Any = ((),)) -> list[Any]:
        """Takes steps; returns the report, the parameters, moments and targets after each of them."""
        draw, found = torch.Generator().manual_seed(2), []
        for k in range(count):
            x = torch.rand(rows[k % len(rows)], 3, generator=draw)
            report = self.step(x, {"net": 0.1 / (k + 1), "weight": 1.0 + k}, *flags[k % len(flags)])
            state = [*self.optimizer.tensors(), *self.target.tensors(), self.noise.get_state()]
            found.append([report, *(x.detach().clone() for x in state)])
        return found


def assert_taken_as_usual(change: Any, calls: int, **options: Any) -> Regression:
    """Checks the results of steps against those without traces, and how often the step itself was called."""
    traced, plain = Regression(change), Regression(change, traced=False)
    found, expected = traced.take(**options), plain.take(**options)
    assert equal(found, expected)
    assert traced.calls == calls
    return traced


def test_the_first_step_is_traced_the_second_compared_and_later_ones_are_repeated():
    assert_taken_as_usual(None, 2)


def test_the_first_steps_of_a_kind_are_taken_as_usual(monkeypatch: pytest.MonkeyPatch):
    """Tracing takes longer than a few steps. Each kind is counted by itself."""
    monkeypatch.setattr(traced_module, "STEPS_BEFORE", 3)
    regression, calls = Regression(), []
    for rows in (4, 5, 4, 5, 4, 5, 4, 4, 4, 5, 5, 5):
        before = regression.calls
        regression.take(1, rows=(rows,))
        calls.append(regression.calls - before)
    assert calls == [1] * 8 + [0] + [1, 1, 0]


def test_hard_updates_of_targets_are_at_the_right_steps():
    regression, due = Regression(), []
    for _ in range(8):
        regression.take(1)
        due.append(torch.equal(regression.net.weight, regression.target.module.weight))
    assert regression.calls == 2
    assert due == [False, False, True, False, False, True, False, False]


def test_samples_of_other_shapes_and_flags_have_traces_of_their_own():
    assert_taken_as_usual(None, 2 * 2, count=10, rows=(4, 5))
    assert_taken_as_usual(None, 2 * 2, count=10, flags=((True,), (False,)))


def test_samples_of_another_layout_or_type_have_traces_of_their_own():
    """A trace of a contiguous sample has a view where the step copies another one."""
    regression = Regression(lambda loss, _, x: loss * x.reshape(-1)[0])
    first = torch.rand(4, 3)
    for x in (*[first] * 3, *[torch.rand(3, 4).t()] * 3):
        regression.step(x, {"net": 0.1, "weight": 1.0})
    assert regression.calls == 2 * 2


def test_only_so_many_shapes_are_traced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traced_module, "_MOST_KINDS", 8)
    rows = tuple(range(1, 12))
    regression = assert_taken_as_usual(None, 2 * 8 + 2 * 3 + 3, count=33, rows=rows)
    assert len(regression.step._traced) == 8
    calls = regression.calls
    regression.take(1, rows=(8,))
    assert regression.calls == calls
    regression.take(1, rows=(9,))
    assert regression.calls == calls + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda loss, own, x: loss if loss.item() > 0.5 else 2 * loss,
        lambda loss, own, x: loss * x[0].tolist()[0],
        lambda loss, own, x: loss * float(x.numpy()[0, 0]),
        lambda loss, own, x: loss * (x[x > 0.5].sum() + 1),
        lambda loss, own, x: loss * len(torch.unique(x)),
        lambda loss, own, x: loss * torch.rand((), generator=own.noise),
        lambda loss, own, x: loss * own.statistic.add_(1),
    ],
    ids=["item", "tolist", "numpy", "mask", "unique", "random", "changes"],
)
def test_what_cannot_be_traced_is_taken_as_usual(change: Any):
    """Each step once: no random number is lost, and the network requires gradients again afterward."""
    regression = assert_taken_as_usual(change, 6)
    assert all(p.requires_grad for p in regression.net.parameters())
    assert [x.repeat for x in regression.step._traced.values()] == [None]


def test_parameters_that_require_no_gradient_any_more_do_not_change():
    """As a callback freezes a part of a network."""
    traced, plain = Regression(freezes=True), Regression(freezes=True, traced=False)
    for frozen in (False, True, False):
        for regression in (traced, plain):
            regression.net.weight.requires_grad_(not frozen)
        assert equal(traced.take(3), plain.take(3))
    assert traced.calls == 2 * 2


def test_hooks_of_modules_are_called():
    regression, called = Regression(), []
    regression.take(3)
    assert regression.calls == 2
    handle = regression.net.register_forward_hook(lambda *_: called.append(1))
    regression.take(3)
    assert (regression.calls, len(called)) == (5, 3)
    handle.remove()
    regression.take(3)
    assert (regression.calls, len(called)) == (5, 3)


def test_a_step_whose_trace_differs_is_taken_as_usual():
    regression = assert_taken_as_usual(lambda loss, own, x: loss * own.calls, 6)
    assert [x.repeat for x in regression.step._traced.values()] == [None]


@pytest.mark.parametrize("before", [0, 1])
def test_an_error_of_the_step_is_raised(before: int):
    """In the first step, and in the second one, which is compared."""

    def change(loss: Tensor, own: Regression, x: Tensor) -> Tensor:
        if own.fails:
            raise RuntimeError("an error of its own")
        return loss

    regression = Regression(change)
    regression.take(before)
    regression.fails = True
    with pytest.raises(RuntimeError, match="an error of its own"):
        regression.take(1)


def test_steps_by_kernels_use_one_thread_of_pytorch_unless_samples_are_large():
    counts = []

    def count(loss: Tensor, *_: Any) -> Tensor:
        counts.append((torch.get_num_threads(), native.num_threads()))
        return loss

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Regression(count, by_kernels=True).take(1)
        Regression(count, by_kernels=True).take(1, rows=(100_000,))
        Regression(count).take(1)
        after = torch.get_num_threads(), native.num_threads()
    finally:
        torch.set_num_threads(before)
    assert [*counts, after] == [(1, 2), (2, 2), (2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("name", "settings", "by_kernels"),
    [
        ("mappo", {}, True),
        ("poca", {}, True),
        ("qmix", {}, True),
        ("mappo", {"network": "tarmac"}, False),
        ("mappo", {"network": "graph"}, False),
        ("mat", {}, False),
        ("sable", {}, False),
    ],
)
def test_steps_are_by_kernels_unless_networks_multiply_matrices_by_pytorch(
    name: str, settings: dict[str, Any], by_kernels: bool
):
    learner = Training(name, "none", "cpu", **settings).learner
    assert learner._step_function._by_kernels is by_kernels


def test_declared_random_numbers_are_those_without_a_trace():
    change = lambda loss, own, x: loss * torch.rand((), generator=own.noise)  # noqa: E731
    traced, plain = Regression(change), Regression(change, traced=False)
    own = {"optimizers": (traced.optimizer,), "modules": (traced.net,), "targets": (traced.target,)}
    traced.step = TracedStep(traced._step, **own, generators=(traced.noise,))
    assert equal(traced.take(), plain.take())
    assert traced.calls == 2


def test_other_constants_and_tensors_that_are_read_lead_to_new_traces():
    factor, tensors = [1.0], [torch.ones(())]
    change = lambda loss, *_: loss * factor[0] * tensors[0]  # noqa: E731
    parts = {"constants": lambda: factor[0], "reads": lambda: [tensors[0]]}
    traced, plain = Regression(change, **parts), Regression(change, traced=False)
    for values in ((1.0, 1.0), (2.0, 1.0), (2.0, 3.0)):
        factor[0], tensors[0] = values[0], torch.full((), values[1])
        assert equal(traced.take(3), plain.take(3))
    assert traced.calls == 3 * 2
