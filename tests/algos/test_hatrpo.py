"""HATRPO: steps against a direct solution, bounds that every step keeps, and Fisher information of all networks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.happo import AgentBatch
from coterie.algos.hatrpo import HATRPO, AgentProblem, hatrpo_objective
from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec, EnvSpec, RoleSpec
from coterie.core.tree import tree_map
from coterie.core.types import Action
from coterie.functional.trust_region import kl_divergence
from coterie.kernels import switch
from coterie.nets.config import NetworkConfig
from coterie.nets.stochastic_actor import StochasticActor
from learners import collect_rollout, learner_of

SMALL = {"hidden_sizes": (8,), "rnn_size": 4, "rollout_length": 6, "epochs": 1, "num_minibatches": 1}


def learner(world=None, **settings):
    return learner_of(HATRPO, HATRPO.Config(**SMALL | settings), env_of(world or Everything("discrete"), 6))


def agent_of(actor):
    """Returns what an `AgentProblem` reads of an agent."""
    return SimpleNamespace(actor=SimpleNamespace(module=actor), block=actor.blocks[0])


def problem_of(agent, batch, hidden_state=None, **settings):
    options = {"entropy_coef": 0.0, "damping": 0.0, "reduction": None, "average": lambda x: x} | settings
    return AgentProblem(agent, batch, hidden_state or {}, **options)


def test_the_objective_weights_ratios_with_factors_and_advantages():
    log_prob, valid = torch.tensor([[1.5], [0.5], [7.0]]).log(), torch.tensor([[True], [True], [False]])
    advantage, factor = torch.tensor([[1.0], [-2.0], [9.0]]), torch.tensor([[2.0], [3.0], [9.0]])
    batch = AgentBatch({}, {}, {}, torch.zeros(3, 1), advantage, factor, valid, first=None)
    entropy, divergence = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[0.5], [0.25], [9.0]])
    found = hatrpo_objective(log_prob, entropy, divergence, batch, 0.5)
    assert found.surrogate.item() == pytest.approx((3.0 - 3.0) / 2, abs=1e-6)
    assert found.entropy.item() == 2.0
    assert found.objective.item() == pytest.approx(1.0, abs=1e-6)
    assert found.kl.item() == 0.375


# -------------------------------------------------------------------------------------------------- Fisher information


def agent_and_batch(kind, rnn):
    """Returns an agent with random weights in float64, samples of two environments, and hidden states before them."""
    g = torch.Generator().manual_seed(0)
    space = Everything.KINDS[kind]
    role = RoleSpec("agent", "agent", ("a",), Everything("discrete").spec.roles[0].observation_space, space)
    (team,) = EnvSpec("one", (role,), {}).default_teams()
    config = NetworkConfig(hidden_sizes=(3,), activation="tanh", rnn=rnn, rnn_size=2, share_params="none")
    actor = StochasticActor(team, config, g, state_dependent_std=False, init_std=0.6).double()
    with torch.no_grad():
        for p in actor.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
    lead = (4, 1) if rnn == "none" else (3, 2, 1)
    spec = role.action
    mask = torch.ones(*lead, spec.mask_size, dtype=torch.bool)
    if spec.choices:
        mask[0, ..., 1] = False
    action = Action(
        torch.zeros(*lead, len(spec.choices), dtype=torch.int64) if spec.choices else None,
        torch.randn(*lead, spec.continuous, generator=g).double() if spec.continuous else None,
    )
    valid = torch.ones(lead, dtype=torch.bool)
    valid[-1] = False
    batch = AgentBatch(
        obs={"agent": torch.randn(*lead, 5, generator=g).double()},
        action_mask={"agent": mask} if spec.choices else {},
        action={"agent": action},
        log_prob=torch.zeros(lead).double(),
        advantage=torch.randn(lead, generator=g).double(),
        factor=torch.ones(lead).double(),
        valid=valid,
        first=None if rnn == "none" else torch.rand(lead, generator=g) < 0.3,
    )
    hidden_state = {} if rnn == "none" else {"h": torch.randn(2, 1, 2, generator=g).double()}
    return agent_of(actor), batch, hidden_state


def columns(function, size):
    return torch.stack([function(x) for x in torch.eye(size).double()], 1)


@pytest.mark.parametrize(("kind", "rnn"), [(kind, "none") for kind in Everything.KINDS] + [("hybrid", "gru")])
def test_the_fisher_information_is_the_second_derivative_of_the_mean_divergence(kind, rnn):
    agent, batch, hidden_state = agent_and_batch(kind, rnn)
    actor = agent.actor.module
    problem = problem_of(agent, batch, hidden_state, damping=0.25)
    parameters = list(actor.parameters())
    size = sum(p.numel() for p in parameters)
    start = torch.cat([p.detach().reshape(-1) for p in parameters])
    spec, mask = agent.block.action_spec, batch.action_mask.get("agent")
    found = columns(problem.fisher, size)

    def slope(weights):
        """Gradient of the mean divergence at other weights."""
        with torch.no_grad():
            for p, part in zip(parameters, weights.split([p.numel() for p in parameters]), strict=True):
                p.copy_(part.view_as(p))
        new = actor(batch.obs, batch.first, hidden_state)["agent"]
        mean = kl_divergence(spec, problem._old, new, mask)[batch.valid].mean()
        parts = torch.autograd.grad(mean, parameters, materialize_grads=True)
        return torch.cat([x.reshape(-1) for x in parts])

    eps = 1e-6
    expected = columns(lambda v: (slope(start + eps * v) - slope(start - eps * v)) / (2 * eps), size)
    torch.testing.assert_close(found, expected + 0.25 * torch.eye(size), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found, found.T)


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_kernels_give_the_same_gradients_and_products(rnn):
    found = {}
    for kernels in ("off", "on"):
        agent, batch, hidden_state = agent_and_batch("hybrid", rnn)
        agent.actor.module.float()
        batch, hidden_state = (
            tree_map(lambda x: x.float() if x.is_floating_point() else x, part) for part in (batch, hidden_state)
        )
        switch.configure(kernels)
        try:
            problem = problem_of(agent, batch, hidden_state)
            slope = problem.gradient(problem.start.objective)
            found[kernels] = (slope, problem.fisher(slope), problem.fisher(slope))
        finally:
            switch.configure("auto")
    for one, other in zip(found["off"], found["on"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert torch.equal(*found["on"][1:])


# --------------------------------------------------------------------------------------------------------------- steps


def test_gradient_and_information_of_two_choices_by_hand():
    """By the logits: g = p (1 - p) (A_1 - A_0) (-1, 1), F = p (1 - p) (1, -1; -1, 1)."""
    agent, batch = two_choices(p := 0.25, advantage=(-1.0, 3.0))
    problem = problem_of(agent, batch)
    gain = p * (1 - p) * 4
    torch.testing.assert_close(problem.gradient(problem.start.objective), gain * torch.tensor([-1.0, 1.0]).double())
    information = columns(problem.fisher, 2)
    torch.testing.assert_close(information, p * (1 - p) * torch.tensor([[1.0, -1], [-1, 1]]).double())


def two_choices(p, advantage):
    """Returns an agent whose only parameters are the logits of two choices, and 16 samples of exact frequencies."""

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Parameter(torch.tensor([1 - p, p]).double().log())

        def forward(self, obs, first, hidden_state):
            return {"agent": (self.logits.expand(*obs["agent"].shape[:-1], 2), None)}

    choice = (torch.arange(16) < round(16 * p)).long().view(16, 1, 1)
    batch = AgentBatch(
        obs={"agent": torch.ones(16, 1, 1).double()},
        action_mask={},
        action={"agent": Action(choice)},
        log_prob=torch.tensor([1 - p, p]).double().log()[choice[..., 0]],
        advantage=torch.tensor(advantage).double()[choice[..., 0]],
        factor=torch.ones(16, 1).double(),
        valid=None,
        first=None,
    )
    block = SimpleNamespace(name="agent", action_spec=ActionSpec(choices=(2,)))
    return SimpleNamespace(actor=SimpleNamespace(module=Logits()), block=block), batch


def taken(agent, batch, **settings):
    """Returns the probability of the second choice after a step, and the step's report by name."""
    algorithm, _ = learner(**settings)
    module = agent.actor.module
    agent.optimizer = SimpleNamespace(flat={"policy": module.logits.detach()})
    report = algorithm._trust_region_step(agent, batch, {}, 0.0)
    return module.logits.softmax(-1)[1].item(), dict(zip(algorithm.reported, report.tolist(), strict=True))


def test_a_step_reaches_the_divergence_of_the_direct_solution():
    """Damping makes F + 0.1 I invertible: s = (F + 0.1 I)^-1 g, step = sqrt(2 delta / s (F + 0.1 I) s) s."""
    p, delta = 0.25, 0.01
    agent, batch = two_choices(p, (-1.0, 3.0))
    information = p * (1 - p) * torch.tensor([[1.0, -1], [-1, 1]]) + 0.1 * torch.eye(2)
    slope = 0.75 * torch.tensor([-1.0, 1.0])
    direct = torch.linalg.solve(information, slope)
    step = (2 * delta / (direct @ slope)).sqrt() * direct
    logits = torch.tensor([1 - p, p]).log() + step
    expected = logits.softmax(-1)[1].item()  # 0.3053
    found, report = taken(agent, batch, max_kl=delta)
    assert found == pytest.approx(expected, abs=1e-6)
    assert report["policy/step_fraction"] == 1.0
    kl = 0.75 * math.log(0.75 / (1 - found)) + 0.25 * math.log(0.25 / found)
    assert report["policy/kl"] == pytest.approx(kl, abs=1e-6)
    assert report["policy/improvement"] == pytest.approx(4 * (found - p), abs=1e-6)  # J = (1 - q) A_0 + q A_1


@pytest.mark.parametrize(
    ("p", "delta", "advantage"),
    [
        *((0.0625, 0.1, (-1.0, 3.0)), (0.0625, 2.0, (-1.0, 3.0)), (0.25, 2.0, (2.0, -2.0))),
        *((0.5, 0.001, (-1.0, 3.0)), (0.9375, 0.1, (2.0, -2.0)), (0.9375, 2.0, (-1.0, 3.0))),
    ],
)
def test_no_step_exceeds_the_divergence_or_lowers_the_surrogate(p, delta, advantage):
    agent, batch = two_choices(p, advantage)
    found, report = taken(agent, batch, max_kl=delta)
    kl = (1 - p) * math.log((1 - p) / (1 - found)) + p * math.log(p / found)
    assert report["policy/kl"] == pytest.approx(kl, abs=1e-5)
    assert kl <= delta
    rise = (found - p) * (advantage[1] - advantage[0])
    assert report["policy/improvement"] == pytest.approx(rise, abs=1e-5)
    assert rise > 0 or report["policy/step_fraction"] == 0


def test_the_search_shortens_a_step_that_the_model_makes_too_long():
    agent, batch = two_choices(0.0625, (-1.0, 3.0))
    _, report = taken(agent, batch, max_kl=0.1, cg_damping=0.0)
    assert report["policy/step_fraction"] in [pytest.approx(0.8**k) for k in range(1, 10)]


def test_without_an_acceptable_step_the_policy_stays_to_the_bit():
    too_long = {"line_search_steps": 1, "max_kl": 0.1, "cg_damping": 0.0}
    for settings, advantage in (({}, (0.0, 0.0)), (too_long, (-1.0, 3.0))):
        agent, batch = two_choices(0.0625, advantage)
        before = agent.actor.module.logits.clone()
        _, report = taken(agent, batch, **settings)
        assert torch.equal(agent.actor.module.logits, before)
        assert [report[f"policy/{name}"] for name in ("kl", "improvement", "step_fraction")] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("kind", "rnn"), [("discrete", "gru"), ("hybrid", "none")])
def test_steps_of_networks_keep_the_bounds(kind, rnn):
    reports = []

    class Recording(HATRPO):
        def _trust_region_step(self, *arguments):
            reports.append(dict(zip(self.reported, super()._trust_region_step(*arguments).tolist(), strict=True)))
            return torch.tensor([*reports[-1].values()])

    config = Recording.Config(**SMALL | {"rnn": rnn, "rollout_length": 4, "cg_iterations": 4, "max_kl": 0.05})
    algorithm, collector = learner_of(Recording, config, env_of(Everything(kind), 6))
    for _ in range(2):
        metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert len(reports) == 6
    assert all(0 < report["policy/kl"] <= 0.05 and report["policy/improvement"] > 0 for report in reports)
    mean = sum(report["policy/kl"] for report in reports[3:]) / 3
    assert metrics["policy/kl"] == pytest.approx(mean, abs=1e-6)


def test_an_entropy_bonus_is_part_of_the_objective():
    agent, batch = two_choices(0.0625, (0.0, 0.0))
    algorithm, _ = learner()
    agent.optimizer = SimpleNamespace(flat={"policy": agent.actor.module.logits.detach()})
    algorithm._trust_region_step(agent, batch, {}, 0.1)
    assert agent.actor.module.logits.softmax(-1)[1] > 0.07


def test_settings_of_clipping_do_not_exist_and_overrides_without_effect_are_refused():
    assert {"clip_eps", "critic_lr", "target_kl"}.isdisjoint(HATRPO.Config.model_fields)

    class Own(HATRPO):
        def agent_terms(self, log_prob, entropy, batch):
            return super().agent_terms(log_prob, entropy, batch)

    with pytest.raises(UserError, match="agent_terms: has no effect in a class derived from HATRPO"):
        learner_of(Own, Own.Config(**SMALL), env_of(Everything("discrete"), 6))
