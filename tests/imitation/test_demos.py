"""Demonstrations: what is written is what was played, round trips are exact, and every fault is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from gymnasium import spaces

from algos.worlds import Everything, Probe, env_of
from coterie.errors import UserError
from coterie.imitation.demos import KEY, Demos, misfits
from coterie.imitation.faults import faults, returns_of
from coterie.imitation.recording import record
from coterie.policy import Policy, RandomPolicy
from coterie.types import RoleSpec

CPU = torch.device("cpu")


def recorded(world, episodes=7, copies=4, seed=0):
    env = env_of(world, copies)
    policies: dict[str, Policy] = {team.name: RandomPolicy(team, CPU) for team in env.spec.default_teams()}
    return record(env, policies, episodes, dict.fromkeys(policies, "sample"), seed, "some/world", {"size": 3}, {})


def clock(length=3):
    """One agent that sees the age of its episode and is paid one more than it."""
    see, pay = (lambda x, age: age.view(-1, 1, 1)), (lambda x, age, d, c: age.view(-1, 1) + 1)
    return Probe(see, pay, length=length)


# ---------------------------------------------------------------------------------------------------------- recording


def test_rows_are_the_acted_ones_of_whole_episodes_in_order():
    demos = recorded(clock(), episodes=6)
    assert demos.tensors["agent/obs"].flatten().tolist() == [0.0, 1.0, 2.0] * 6
    assert demos.tensors["agent/reward"].flatten().tolist() == [1.0, 2.0, 3.0] * 6
    assert demos.tensors["agent/terminated"].flatten().tolist() == [False, False, True] * 6
    assert demos.tensors["episode/offset"].tolist() == [0, 3, 6, 9, 12, 15]
    assert demos.tensors["episode/length"].tolist() == [3] * 6
    assert demos.tensors["episode/return"].tolist() == [[6.0]] * 6
    assert demos.tensors["episode/terminated"].all()


def test_short_episodes_are_not_favoured():
    """Half the episodes have 2 rows, half 40: as many of each are kept, though short ones end twenty times as fast."""

    class Halves(Probe):
        def step(self, state, action, noise):
            state, outcome = super().step(state, action, noise)
            return state, replace(outcome, ended=state["age"] >= torch.where(state["x"] > 0, 40, 2))

    see, pay = (lambda x, age: x.view(-1, 1, 1)), (lambda x, age, d, c: x.view(-1, 1))
    demos = recorded(Halves(see, pay, length=40), episodes=400, copies=100)
    long = demos.tensors["episode/length"] == 40
    assert demos.episodes == 400
    assert 0.4 < long.float().mean() < 0.6


@pytest.mark.parametrize("kind", [*Everything.KINDS])
def test_death_masks_roles_groups_and_all_actions_are_written_soundly(kind):
    demos = recorded(Everything(kind), episodes=9)
    assert faults(demos) == []
    assert demos.episodes == 9
    assert not demos.tensors["guard/alive"].all(), "somebody dies"
    assert all(bool(x.isfinite().all()) for x in demos.tensors.values()), "nothing is written of what the dead saw"
    assert torch.equal(demos.tensors["episode/return"], returns_of(demos))


def test_the_same_seed_records_the_same_bits_and_another_others(tmp_path):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        recorded(Everything(), seed=seed).write(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "same").read_bytes()
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()


def test_a_world_without_end_is_one_line():
    endless = Probe(lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: age.view(-1, 1), length=10**9)
    env = env_of(endless, 2)
    policies: dict[str, Policy] = {"agent": RandomPolicy(env.spec.default_teams()[0], CPU)}
    with pytest.raises(UserError, match="2 of 2 copies did not finish their episodes within 64 steps"):
        record(env, policies, 2, {"agent": "sample"}, 0, "some/world", {}, {}, most_steps=64)


# ------------------------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize("kind", [*Everything.KINDS])
def test_a_round_trip_is_exact(kind, tmp_path):
    demos = recorded(Everything(kind))
    demos.write(tmp_path / "a")
    again = Demos.read(tmp_path / "a")
    again.write(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (again.env, again.params, again.roles, again.seed) == (demos.env, demos.params, demos.roles, demos.seed)
    for name, x in demos.tensors.items():
        assert x.dtype == again.tensors[name].dtype
        assert x.numpy().tobytes() == again.tensors[name].numpy().tobytes()


def test_a_failed_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "demos"
    recorded(clock()).write(path)
    before = path.read_bytes()

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.imitation.demos.os.replace", fails)
    with pytest.raises(UserError, match=r"cannot write the demonstrations .*No space left"):
        recorded(Everything()).write(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["demos"]


def _said(path: Path, change) -> None:
    """Rewrites a file with other metadata."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    said = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][KEY])
    change(said)
    path.write_bytes(safetensors.torch.save(safetensors.torch.load(content), {KEY: json.dumps(said)}))


def _put_role(key, value):
    return lambda said: said["roles"][0].update({key: value})


FILES = {
    "there are no demonstrations .*nowhere: record some": lambda path: path.rename(path.parent / "nowhere2"),
    "is cut off or no safetensors file": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "is cut off or no safetensors file ": lambda path: path.write_bytes(b"not a file of tensors"),
    "is cut off or no safetensors file  ": lambda path: path.write_bytes(b""),
    "holds no demonstrations: its metadata has no entry": lambda path: path.write_bytes(
        safetensors.torch.save({"x": torch.zeros(1)})
    ),
    "has format 9, this version of coterie reads 1: update": lambda path: _said(path, lambda s: s.update(format=9)),
    "has format 'x', .*record it again": lambda path: _said(path, lambda s: s.update(format="x")),
    "cannot be understood .KeyError: 'environment'": lambda path: _said(path, lambda s: s.pop("environment")),
    "cannot be understood .*it names no roles": lambda path: _said(path, lambda s: s.update(roles=[])),
    "role 'agent': its agents are to be a list of names": lambda path: _said(path, _put_role("agents", [])),
    "role 'agent': its agents are to be a list of names ": lambda path: _said(path, _put_role("agents", "agent_0")),
    "role 'agent': its choices are to be a list of counts": lambda path: _said(path, _put_role("choices", [-2])),
    "role 'agent': continuous is to be a count, low and high": lambda path: _said(path, _put_role("continuous", 2)),
    "role 'agent' has neither choices nor numbers": lambda path: _said(path, _put_role("choices", [])),
    "role 'agent': its observation is to be": lambda path: _said(path, _put_role("observation", {"shape": "x"})),
    "role 'agent': its observation is to be ": lambda path: _said(path, _put_role("observation", {"sensors": {}})),
    "role 4: its name and group are to be words": lambda path: _said(path, _put_role("name", 4)),
    "cannot be understood .*unexpected keyword": lambda path: _said(path, lambda s: s["roles"][0].update(colour=1)),
}


@pytest.mark.parametrize("line", FILES)
def test_a_file_that_cannot_be_read_is_one_line(line, tmp_path):
    path = tmp_path / "nowhere"
    recorded(clock()).write(path)
    assert Demos.read(path).episodes == 7, "the negative control: untouched it reads"
    FILES[line](path)
    with pytest.raises(UserError, match=line.strip()) as caught:
        Demos.read(path)
    assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------------------------------------- faults


def _put(name, value, *place):
    def change(tensors):
        tensors[name] = tensors[name].clone()
        tensors[name][place] = value

    return change


def _forbid(tensors):
    """The first guard that is alive and may choose 2 does not, though it does 2."""
    row = int((tensors["guard/alive"][:, 0]).nonzero()[0])
    tensors["guard/discrete"][row, 0, 0] = 2
    tensors["guard/action_mask"][row, 0] = torch.tensor([True, True, False])


def _dead_end(tensors):
    row, agent = (~tensors["guard/alive"]).nonzero()[0].tolist()
    tensors["guard/terminated"][row, agent] = True


def _outlives(tensors):
    last = tensors["episode/offset"] + tensors["episode/length"] - 1
    row = last[tensors["guard/alive"][last].any(-1)][0]
    for flag in ("terminated", "truncated"):
        tensors[f"guard/{flag}"][row] = False


def _lives_on(tensors):
    row, agent = tensors["guard/alive"][:-1].logical_not().nonzero()[0].tolist()
    tensors["guard/alive"][row, agent] = True


SEEDED = {
    "the tensor guard/alive is missing": lambda t: t.pop("guard/alive"),
    "the tensor scout/obs is missing": lambda t: t.pop("scout/obs"),
    "there is a tensor thief/obs": lambda t: t.update({"thief/obs": t["scout/obs"]}),
    "guard/reward is float64: expected float32": lambda t: t.update({"guard/reward": t["guard/reward"].double()}),
    r"guard/obs has the shape \[\d+, 2, 4\]: expected \[R, 2, 5\]": lambda t: t.update(
        {"guard/obs": t["guard/obs"][..., :4]}
    ),
    "different numbers of rows": lambda t: t.update({"guard/obs": t["guard/obs"][:-1]}),
    "different numbers of episodes": lambda t: t.update({"episode/return": t["episode/return"][:-1]}),
    "there are no episodes": lambda t: t.update({k: x[:0] for k, x in t.items() if k.startswith("episode/")}),
    "episode 1 has 0 rows: expected at least 1": _put("episode/length", 0, 1),
    "episode/offset of episode 2 is 1: expected": _put("episode/offset", 1, 2),
    "adds up to .* rows, and there are": lambda t: t.update(
        {k: x[:-1] for k, x in t.items() if k.startswith("episode/")}
    ),
    r"guard/obs is NaN or infinite: episode 0, step 0, agent guard_1 \(1 such": _put("guard/obs", torch.nan, 0, 1, 3),
    "scout/reward is NaN or infinite: episode 0, step 0, agent scout_0": _put("scout/reward", torch.inf, 0, 0),
    "group_reward is NaN or infinite: episode 0, step 0": _put("group_reward", torch.nan, 0, 0),
    "guard/discrete is none of 3 choices: episode 0, step 0, agent guard_0": _put("guard/discrete", 3, 0, 0, 0),
    "guard/discrete is a choice that its mask forbids: episode 0": _forbid,
    "guard/action_mask leaves no choice: episode 0, step 0, agent guard_0": _put("guard/action_mask", False, 0, 0),
    "a life of guard ends where nobody is alive": _dead_end,
    "guard/terminated and guard/truncated are both True": lambda t: t.update(
        {"guard/truncated": t["guard/terminated"].clone()}
    ),
    "guard outlives its episode": _outlives,
    "guard is alive in the row after its end": _lives_on,
    "episode/return of episode 3 is 99 for all: its rewards add up to": _put("episode/return", 99.0, 3),
}


@pytest.mark.parametrize("line", SEEDED)
def test_every_seeded_fault_is_found(line, tmp_path):
    demos = recorded(Everything())
    assert faults(demos) == [], "the negative control: without the fault there is none"
    tensors = {name: x.clone() for name, x in demos.tensors.items()}
    SEEDED[line](tensors)
    found = faults(replace(demos, tensors=tensors))
    assert any(re.search(line, fault) for fault in found), found
    replace(demos, tensors=tensors).write(tmp_path / "bad")
    with pytest.raises(UserError, match="are not sound: "):
        Demos.read(tmp_path / "bad")


def test_numbers_beyond_their_range_are_found():
    demos = recorded(Everything("continuous"))
    assert faults(demos) == []
    demos.tensors["guard/continuous"][0, 1, 0] = 1.5
    assert faults(demos) == ["guard/continuous lies outside [-1, 1]: episode 0, step 0, agent guard_1 (1 such places)"]


# ----------------------------------------------------------------------------------------------- another environment


def _role(spec, **changes) -> RoleSpec:
    return replace(spec.roles[0], **changes)


def test_other_environments_roles_and_spaces_are_told_apart():
    demos = recorded(Everything())
    spec = Everything().spec
    assert misfits(demos, "some/world", spec.roles) == [], "the negative control"
    cases = {
        "they are of some/world, and this is other/world": ("other/world", spec),
        "they have no role 'thief', only guard, scout": (
            "some/world", replace(spec, roles=(_role(spec, name="thief"), spec.roles[1]))
        ),
        "role 'guard': 2 agents in the demonstrations, 3 in the environment": (
            "some/world", replace(spec, roles=(_role(spec, agents=("a", "b", "c")), spec.roles[1]))
        ),
        "role 'guard': it observes 5 numbers in the demonstrations, 6 numbers now": (
            "some/world", replace(spec, roles=(_role(spec, observation_space=spaces.Box(-9, 9, (6,))), spec.roles[1]))
        ),
        "role 'guard': it acts in 3 choices in the demonstrations, 1 numbers (-1 to 1) now": (
            "some/world", replace(spec, roles=(_role(spec, action_space=spaces.Box(-1, 1, (1,))), spec.roles[1]))
        ),
    }  # fmt: skip
    for line, (name, other) in cases.items():
        (found,) = misfits(demos, name, other.roles)
        assert found.startswith(line)
    narrowed = replace(spec, roles=(_role(spec, name="thief"), spec.roles[1]))
    assert misfits(demos, "some/world", narrowed.roles[1:]) == [], "roles that nobody asks for do not matter"
