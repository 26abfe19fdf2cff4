from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.rank_threads import on_ranks

from coterie.algos import registry
from coterie.algos.optimizer import mean_metrics
from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.core.errors import NonFiniteError
from coterie.core.serialize import Parts, encode
from coterie.envs.make import make
from coterie.envs.worlds.world import WorldEnv
from coterie.imitation.recorder import DemoSource, record
from coterie.kernels import switch
from coterie.policies.base import Policy, RandomPolicy
from coterie.ranks.ranks import ONE, Ranks
from coterie.training.collector import Collector
from coterie.training.rank_states import RanksDifferError, join_states, num_ranks, own_state, pack, state_for, unpack
from coterie.training.run_parts import RunComponents
from places import ROOT

_SPREAD = "env=particle/simple_spread env.agents=2 env.episode_limit=6"
_BATTLE = "env=skirmish/3m env.episode_limit=8"
_PLAIN_Q = "algo.rnn=none algo.obs_last_action=false"
_REPLAY = "algo.learning_starts=1 algo.gradient_steps=3 algo.batch_size=6"

_CASES = {
    "ippo": f"{_SPREAD} algo=ippo algo.num_minibatches=3",
    "mappo": f"{_BATTLE} algo=mappo algo.normalize_obs=true",
    "mappo/original": f"{_SPREAD} algo=mappo/original algo.critic_hidden_sizes=[8] algo.sequence_length=4 "
    "algo.num_minibatches=2 algo.critic_time_chunks=1",
    "happo": f"{_BATTLE} algo=happo algo.num_minibatches=3",
    "happo gru": f"{_BATTLE} algo=happo algo.rnn=gru algo.sequence_length=4 algo.num_minibatches=2",
    "happo target_kl": f"{_SPREAD} algo=happo algo.target_kl=1e-4",
    "hatrpo": f"{_BATTLE} algo=hatrpo algo.num_minibatches=2",
    "mappo gru": f"{_BATTLE} algo=mappo algo.rnn=gru algo.sequence_length=4 algo.num_minibatches=5",
    "mappo kernels": f"{_BATTLE} algo=mappo kernels=auto",
    "mappo target_kl": f"{_SPREAD} algo=mappo algo.target_kl=1e-4",
    "mappo/original target_kl": f"{_SPREAD} algo=mappo/original algo.critic_hidden_sizes=[8] algo.sequence_length=4 "
    "algo.critic_time_chunks=1 algo.lr=3e-3 algo.target_kl=0.005 algo.epochs=20",
    "mat": f"{_BATTLE} algo=mat algo.num_minibatches=3 algo.agent_order=random",
    "mat_dec": f"{_BATTLE} algo=mat_dec algo.num_minibatches=3",
    "sable": f"{_BATTLE} algo=sable algo.num_minibatches=3",
    "magpo gru": f"{_BATTLE} algo=magpo algo.rnn=gru algo.sequence_length=4 algo.num_minibatches=3",
    "coma": f"{_BATTLE} algo=coma algo.num_minibatches=3",
    "poca": f"{_BATTLE} algo=poca algo.num_minibatches=2",
    "iql gru": f"{_BATTLE} algo=iql algo.rnn=gru algo.sequence_length=4 algo.sequence_start=rollout {_REPLAY}",
    "qmix priorities": f"{_BATTLE} algo=qmix algo.rnn=none algo.priority_alpha=0.6 algo.reward_scale=rms {_REPLAY}",
    "vdac gru": f"{_BATTLE} algo=vdac algo.rnn=gru algo.sequence_length=4",
    "seac": f"{_SPREAD} algo=seac",
    "seac target_kl": f"{_SPREAD} algo=seac algo.epochs=5 algo.target_kl=1e-4",
    "pac": f"{_SPREAD} algo=pac",
    "wqmix": f"{_BATTLE} algo=wqmix {_PLAIN_Q} {_REPLAY}",
    "pqn gru": f"{_BATTLE} algo=pqn algo.rnn=gru algo.sequence_length=4 algo.num_minibatches=3",
    "pqn_qmix": f"{_BATTLE} algo=pqn_qmix algo.num_minibatches=3 algo.share_params=none",
    "maddpg": f"{_SPREAD} algo=maddpg {_REPLAY}",
    "matd3": f"{_SPREAD} env.actions=continuous algo=matd3 {_REPLAY}",
    "masac": f"{_SPREAD} algo=masac algo.reward_scale=standardize {_REPLAY}",
    "hasac": f"{_BATTLE} algo=hasac {_REPLAY}",
    "icm": f"{_SPREAD} algo=ippo rewards.icm.weight=0.1",
    "rnd": f"{_SPREAD} algo=ippo rewards.rnd.weight=0.1",
    "replay on disk": f"{_BATTLE} algo=qmix algo.rnn=none algo.buffer_storage=disk {_REPLAY}",
    "mixed teams": "env=particle/simple_tag env.episode_limit=6 algo=ippo teams.adversary.algo=maddpg "
    + _REPLAY.replace("algo.", "teams.adversary.algo."),
}


def _algorithm_cases() -> dict[str, str]:
    """Returns the first case of every algorithm that has one, by the algorithm's name."""
    found: dict[str, str] = {}
    for case, words in _CASES.items():
        (name, *_) = (word.removeprefix("algo=") for word in words.split() if word.startswith("algo="))
        found.setdefault(name, case)
    return found


_ALGORITHMS = _algorithm_cases()
_STEEP = ("sable", "magpo gru")
"""Cases with large rounding errors. Sable, also as MAGPO's guider, divides what a query retains by its norm, however
small that is, so that those of float32 become differences of 1e-3.
"""
_FLOAT64 = ("mappo target_kl", "mappo/original", "poca", "iql gru", "hasac", "mat", *_STEEP)
"""Cases that are compared in float64, one for each update. Some have parts that are always float32."""


def _updated(words: str, ranks: Ranks, updates: int = 2, num_envs: int = 6) -> tuple[RunComponents, dict[str, float]]:
    """Returns the parts of a run after some updates, and the metrics of the last one."""
    small = [] if "kernels=" in words else ["kernels=off"]
    for prefix in ("algo", *(["teams.adversary.algo"] if "teams." in words else [])):
        small += [f"{prefix}.hidden_sizes=[8]", f"{prefix}.rollout_length=16"]
    run = resolve([*words.split(), *small, "eval.every=0", f"num_envs={num_envs}"])
    components = build(run.config, ranks)
    metrics: dict[str, float] = {}
    for _ in range(updates):
        rollouts, _ = components.collector.advance(16)
        ranks.start_batch()
        for name, algorithm in components.algorithms.items():
            metrics |= {f"{name} {key}": x for key, x in algorithm.update(rollouts[name], 0.5).items()}
    return components, metrics


def _numbers(state: Any) -> dict[str, torch.Tensor]:
    """Returns the floating-point tensors of a state by place, without those of environments and replay buffers."""
    parts = Parts()
    encode(state, "", parts)
    own = ("hidden_state", "buffer/pieces", "buffer/sampler/acted", "returns")
    return {
        place: x.double()
        for place, x in parts.tensors.items()
        if x.is_floating_point() and not any(o in place for o in own)
    }


def _largest_difference(words: str, size: int, **options: int) -> float:
    """Returns the largest difference of any parameter or statistic, relative above 1, between one rank and several."""
    alone, metrics = _updated(words, ONE, **options)
    started = _updated(words, ONE, **options | {"updates": 0})[0]
    for name, algorithm in alone.algorithms.items():
        before, after = (_numbers(a.policy.state_dict()) for a in (started.algorithms[name], algorithm))
        assert any(not x.equal(after[k]) for k, x in before.items()), "nothing was learned"
    together = on_ranks(size, lambda ranks: _updated(words, ranks, **options))
    worst = 0.0
    for components, found in together:
        assert found.keys() == metrics.keys()
        assert found == pytest.approx(metrics, rel=1e-3, abs=1e-4)
        for name, algorithm in alone.algorithms.items():
            expected, state = (_numbers(a.state_dict()) for a in (algorithm, components.algorithms[name]))
            assert expected.keys() == state.keys()
            worst = max(
                [
                    worst,
                    *(
                        float(((state[k] - x) / x.abs().clamp(min=1)).abs().max())
                        for k, x in expected.items()
                        if x.numel()
                    ),
                ]
            )
    bits = [{n: _numbers(a.policy.state_dict()) for n, a in c.algorithms.items()} for c, _ in together]
    for other in bits[1:]:
        assert all(bool(x.equal(other[n][k])) for n, own in bits[0].items() for k, x in own.items())
    return worst


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", [case for case in _CASES if case not in _FLOAT64])
def test_updates_of_two_ranks_equal_those_of_one(case: str) -> None:
    assert _largest_difference(_CASES[case], 2) < (2e-6 if case == "coma" else 1e-6)  # COMA: 1.2e-6 on one machine


def test_every_class_of_algorithms_that_learns_has_a_case() -> None:
    """Other algorithms are presets of these classes."""
    classes = {registry.algorithm(name) for name in (*registry.ALGOS, *registry.VARIANTS)}
    learners = {cls for cls in classes if cls.capabilities.learns}
    assert learners - {registry.algorithm(name) for name in _ALGORITHMS} == set()


def _update_of(name: str) -> object:
    """Returns the method that updates an algorithm, which derived classes share."""
    return registry.algorithm(name).update


def test_every_update_that_can_stop_early_has_a_case_with_it() -> None:
    able = {_update_of(name) for name in _ALGORITHMS if "target_kl" in registry.algorithm(name).Config.model_fields}
    stopping = {case.partition(" ")[0] for case, words in _CASES.items() if "algo.target_kl=" in words}
    assert {_update_of(name) for name in stopping} == able


_STOPPING = {
    _update_of(name): case
    for name, case in _ALGORITHMS.items()
    if "target_kl" in registry.algorithm(name).Config.model_fields
}
"""One case for each method that updates an algorithm and can stop early."""


@pytest.mark.parametrize("case", list(_STOPPING.values()))
def test_ranks_stop_early_together(case: str) -> None:
    """The limit is the mean of the ranks' divergences in the second pass, that of one rank is above it. With sequential
    updates each agent has a divergence of its own, and the limits are below and above all of them.
    """
    words = f"{_CASES[case]} algo.num_minibatches=1 algo.lr=1e-3"
    words += " algo.batch_size=null" if "original" in case else ""

    def updated(more: str) -> dict[str, float]:
        first, second = on_ranks(2, lambda ranks: _updated(f"{words} {more}", ranks, updates=1)[1])
        assert first == second
        return {name.rpartition(" ")[-1]: x for name, x in first.items()}

    divergence = 2 * updated("algo.epochs=2")["policy/kl"]  # the first pass has the policy that collected the rollout
    below, above = (1e-6, 1e6) if "algo=happo" in words or "algo=haa2c" in words else (0.999, 1.001)
    for limit, epochs in ((below, 2), (above, 3)):
        assert updated(f"algo.epochs=3 algo.target_kl={limit * divergence}")["policy/epochs"] == epochs


@pytest.fixture
def _kernels() -> Iterator[None]:
    """Turns the kernels on. Of the updates below, one of POCA has a gradient so close to zero that Adam makes 1e-5 of
    the rounding errors of PyTorch's sums; in float64 it is compared without kernels, too.
    """
    before = switch.on
    switch.configure("auto", before=True)
    yield
    switch.configure("auto", before=before)


@pytest.mark.slow
@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("case", ["mappo gru", "poca", "qmix priorities"])
def test_updates_of_128_environments_on_two_ranks_equal_those_of_one(case: str) -> None:
    assert _largest_difference(_CASES[case], 2, updates=1, num_envs=128) < 1e-6


def test_updates_with_demonstrations_equal_those_of_one_rank(tmp_path: Path) -> None:
    env = make("particle/simple_spread", {"agents": 2, "episode_limit": 6}, num_envs=2)
    (team,) = env.spec.default_teams()
    teacher: dict[str, Policy] = {team.name: RandomPolicy(team, torch.device("cpu"))}
    source = DemoSource("particle/simple_spread", {})
    record(env, teacher, source, episodes=4, modes={team.name: "sample"}, seed=0).write(tmp_path / "demos")
    gail = f"rewards.gail.demos={tmp_path / 'demos'} rewards.gail.num_minibatches=3 rewards.gail.hidden_sizes=[8]"
    assert _largest_difference(f"{_SPREAD} algo=ippo rewards.gail.weight=0.5 {gail}", 2) < 1e-6


def test_updates_of_an_own_algorithm_equal_those_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    assert _largest_difference(f"{_SPREAD} algo=own_algorithm:ActorCritic", 2) < 1e-6


@pytest.mark.parametrize("case", ["mappo gru", "qmix priorities"])
def test_updates_of_three_ranks_equal_those_of_one(case: str) -> None:
    assert _largest_difference(_CASES[case], 3) < 1e-6


@pytest.mark.parametrize("case", _FLOAT64)
def test_ranks_are_equal_to_the_last_bits_of_float64(case: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert _largest_difference(_CASES[case], 2) < (1e-8 if case in _STEEP else 1e-12)
    finally:
        torch.set_default_dtype(torch.float32)


def test_ranks_that_do_not_share_gradients_differ_from_one() -> None:
    words = _CASES["ippo"]

    def separately(ranks: Ranks) -> dict[str, torch.Tensor]:
        components, _ = _updated(words, ONE, num_envs=3)
        del ranks
        return _numbers(components.algorithms["agent"].policy.state_dict())

    expected = _numbers(_updated(words, ONE)[0].algorithms["agent"].policy.state_dict())
    found = on_ranks(2, separately)[0]
    assert max(float((found[k] - x).abs().max()) for k, x in expected.items()) > 1e-6


@pytest.mark.parametrize("case", ["mappo gru", "qmix priorities"])
def test_a_state_of_two_ranks_resumes_with_the_same_bits(case: str, tmp_path: Path) -> None:
    words = _CASES[case]
    straight = on_ranks(2, lambda ranks: _state(_updated(words, ranks, updates=4)[0]))
    saved = on_ranks(2, lambda ranks: join_states(_state(_updated(words, ranks)[0]), ranks))[0]
    assert saved is not None
    assert num_ranks(saved) == 2
    content = pack(saved, whole=True)

    def resumed(ranks: Ranks) -> dict[str, Any]:
        components, _ = _updated(words, ranks, updates=0)
        state = own_state(unpack(content), ranks, dict)
        for name, algorithm in components.algorithms.items():
            algorithm.load_state_dict(state["algorithms"][name])
        components.collector.load_state_dict(state["collector"])
        for _ in range(2):
            rollouts, _ = components.collector.advance(16)
            ranks.start_batch()
            for name, algorithm in components.algorithms.items():
                algorithm.update(rollouts[name], 0.5)
        return _state(components)

    for expected, found in zip(straight, on_ranks(2, resumed), strict=True):
        before, after = _tensors(expected), _tensors(found)
        assert before.keys() == after.keys()
        assert [place for place, x in before.items() if not x.equal(after[place])] == []


def test_worlds_of_all_ranks_resume_with_the_earliest_start_of_any() -> None:
    def resumed(ranks: Ranks) -> int:
        env = make("particle/simple_spread", num_envs=2, ranks=ranks)
        env.reset()
        assert isinstance(env, WorldEnv)
        state = env.state_dict()
        env.load_state_dict({**state, "age": state["age"] + 3 + ranks.rank})
        return env._starts.earliest

    assert on_ranks(2, resumed) == [-4, -4]


@pytest.mark.parametrize(("name", "exchanges"), [("particle/simple_spread", {0}), ("skirmish/3m", {*range(20, 31)})])
def test_ranks_exchange_ends_of_episodes_only_where_the_task_ends_them(name: str, exchanges: set[int]) -> None:
    def stepped(ranks: Ranks) -> int:
        env = make(name, {"episode_limit": 7}, num_envs=2, ranks=ranks)
        timestep = env.reset()
        policies: dict[str, Policy] = {team.name: RandomPolicy(team, env.device) for team in env.spec.default_teams()}
        ranks.traffic.pop()
        collector = Collector(env, policies, seed=0)
        assert bool(timestep.first.any())
        collector.advance(30)
        return ranks.traffic.calls

    assert set(on_ranks(2, stepped)) <= exchanges


def test_states_of_ranks_differ_in_single_numbers_of_large_arrays() -> None:
    def state(rank: int) -> dict[str, Any]:
        grid = np.zeros((60, 60), np.float32)
        grid[30, 30] = rank
        return {"env": [{"grid": grid}, np.array([1 + rank * 1e-12])], "same": np.ones(3)}

    saved = on_ranks(3, lambda ranks: join_states(state(ranks.rank), ranks))[0]
    assert saved is not None
    content = pack(saved, whole=True)
    for rank, found in enumerate(on_ranks(3, lambda ranks: own_state(unpack(content), ranks, dict))):
        assert pack(found) == pack(state(rank))


def test_states_of_ranks_hold_one_number_of_any_stride() -> None:
    """PyTorch calls one number contiguous, whatever its stride."""

    def state(rank: int) -> dict[str, Any]:
        return {"env": [torch.arange(8).reshape(2, 4)[rank : rank + 1, 0]], "same": torch.zeros(1, 2).double()[:, 0]}

    saved = on_ranks(2, lambda ranks: join_states(state(ranks.rank), ranks))[0]
    assert saved is not None
    for rank, found in enumerate(on_ranks(2, lambda ranks: own_state(unpack(pack(saved)), ranks, dict))):
        assert found["env"][0].tolist() == [4 * rank]


def test_another_parameter_on_one_rank_is_named() -> None:
    def saved(ranks: Ranks) -> str:
        components, _ = _updated(_CASES["ippo"], ranks, updates=0)
        state = _state(components)
        weight = next(name for name in state["algorithms"]["agent"]["policy"]["module"] if name.endswith("weight"))
        if ranks.rank == 1:
            state["algorithms"]["agent"]["policy"]["module"][weight][0, 0] += 1e-6
            with pytest.raises(RanksDifferError) as error:
                join_states(state, ranks)
            assert f"policy.module.{weight} of team agent" in str(error.value)
            ranks.collect(pack({}))
            return str(error.value)
        join_states(state, ranks)
        return ""

    assert on_ranks(2, saved)[1].startswith("rank 1: policy.module.")


def test_each_rank_gets_its_own_state_of_a_checkpoint() -> None:
    words = _CASES["qmix priorities"]
    saved = on_ranks(2, lambda ranks: join_states(_state(_updated(words, ranks)[0]), ranks))[0]
    assert saved is not None
    content = pack(saved, whole=True)
    for rank in range(2):
        whole = on_ranks(2, lambda ranks: own_state(unpack(content), ranks, dict))[rank]
        sent = unpack(pack(state_for(unpack(content), rank, 2), whole=True))
        own = on_ranks(2, lambda ranks, sent=sent: own_state(sent, ranks, dict))[rank]
        assert num_ranks(sent) == 2
        assert pack(own, whole=True) == pack(whole, whole=True)
    for_three = state_for(unpack(content), 1, 3)
    assert num_ranks(for_three) == 2
    assert [state["buffer"] for state in for_three["algorithms"].values()] == [None]


def test_another_number_of_ranks_starts_environments_with_new_seeds() -> None:
    words = _CASES["ippo"]
    saved = on_ranks(2, lambda ranks: join_states(_state(_updated(words, ranks)[0]), ranks))[0]
    assert saved is not None

    def first_observations(resumes: bool) -> torch.Tensor:
        components, _ = _updated(words, ONE, updates=0)
        if resumes:
            components.collector.load_state_dict(own_state(saved, ONE, lambda: _state(components))["collector"])
        return components.collector.advance(16)[0]["agent"].obs["agent"][0]

    assert not bool((first_observations(True) == first_observations(False)).flatten(1).all(1).any())
    assert first_observations(True).equal(first_observations(True))


def test_another_number_of_ranks_keeps_networks_and_starts_environments_again() -> None:
    words = _CASES["qmix priorities"]
    saved = on_ranks(2, lambda ranks: join_states(_state(_updated(words, ranks)[0]), ranks))[0]
    assert saved is not None
    components, _ = _updated(words, ONE, updates=0)
    state = own_state(unpack(pack(saved, whole=True)), ONE, lambda: _state(components))
    (name,) = components.algorithms
    components.algorithms[name].load_state_dict(state["algorithms"][name])
    components.collector.load_state_dict(state["collector"])
    before, after = saved["algorithms"][name], components.algorithms[name].state_dict()
    assert _tensors(before["policy"]).keys() == _tensors(after["policy"]).keys()
    assert all(bool(x.equal(_tensors(after["module"])[k])) for k, x in _tensors(before["module"]).items())
    assert after["buffer"]["head"] == 0
    assert components.collector.advance(16)[1] > 0


def _state(components: RunComponents) -> dict[str, Any]:
    return {
        "algorithms": {name: algorithm.state_dict() for name, algorithm in components.algorithms.items()},
        "collector": components.collector.state_dict(),
        "pending": {},
    }


def _tensors(state: Any) -> dict[str, torch.Tensor]:
    parts = Parts()
    encode(state, "", parts)
    return parts.tensors


def test_a_nan_names_the_rank_on_which_it_arose() -> None:
    def report(ranks: Ranks) -> str:
        reports = torch.tensor([[1.0, 2.0], [float("nan") if ranks.rank == 1 else 1.0, 2.0]])
        with pytest.raises(NonFiniteError) as error:
            mean_metrics(reports, ("loss/policy", "policy/grad_norm"), "red", ranks=ranks)
        return str(error.value)

    expected = "rank 1: team red: loss/policy became NaN or infinite in minibatch 1 of the update."
    assert all(message.startswith(expected) for message in on_ranks(2, report))
