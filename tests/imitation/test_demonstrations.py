"""Demonstrations: recording, exact round trips, and error messages for every kind of error."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from algo_worlds import Everything, Probe, env_of
from coterie.commands.demos import describe
from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec
from coterie.imitation.demo_checks import episode_returns, find_errors
from coterie.imitation.demonstrations import METADATA_KEY, Demos, mismatches
from coterie.imitation.recorder import DemoSource, record
from coterie.policies.base import Policy, RandomPolicy
from mutations import FUZZ, assert_one_line, mutate

CPU = torch.device("cpu")


def recorded(world, episodes=7, num_envs=4, seed=0):
    env = env_of(world, num_envs)
    policies: dict[str, Policy] = {team.name: RandomPolicy(team, CPU) for team in env.spec.default_teams()}
    return record(
        env,
        policies,
        DemoSource("some/world", {"size": 3}),
        episodes=episodes,
        modes=dict.fromkeys(policies, "sample"),
        seed=seed,
    )


def clock(length=3):
    """One agent that observes the age of its episode and gets it plus one as reward."""
    see, pay = (lambda x, age: age.view(-1, 1, 1)), (lambda x, age, d, c: age.view(-1, 1) + 1)
    return Probe(see, pay, length=length)


# ---------------------------------------------------------------------------------------------------------- recording


def test_timesteps_are_those_of_complete_episodes_in_order():
    demos = recorded(clock(), episodes=6)
    assert demos.tensors["agent/obs"].flatten().tolist() == [0.0, 1.0, 2.0] * 6
    assert demos.tensors["agent/reward"].flatten().tolist() == [1.0, 2.0, 3.0] * 6
    assert demos.tensors["agent/terminated"].flatten().tolist() == [False, False, True] * 6
    assert demos.tensors["episode/offset"].tolist() == [0, 3, 6, 9, 12, 15]
    assert demos.tensors["episode/length"].tolist() == [3] * 6
    assert demos.tensors["episode/return"].tolist() == [[6.0]] * 6
    assert demos.tensors["episode/terminated"].all()


def test_short_episodes_are_not_preferred():
    """Half the episodes have 2 timesteps, half 40: equal numbers are kept, though short ones end 20 times as fast."""

    class ShortOrLong(Probe):
        def step(self, state, action, noise):
            state, outcome = super().step(state, action, noise)
            return state, replace(outcome, terminated=state["age"] >= torch.where(state["x"] > 0, 40, 2))

    see, pay = (lambda x, age: x.view(-1, 1, 1)), (lambda x, age, d, c: x.view(-1, 1))
    demos = recorded(ShortOrLong(see, pay, length=40), episodes=400, num_envs=100)
    long = demos.tensors["episode/length"] == 40
    assert demos.episodes == 400
    assert 0.4 < long.float().mean() < 0.6


@pytest.mark.parametrize("kind", [*Everything.KINDS])
def test_recordings_with_death_masks_roles_groups_and_all_actions_are_valid_and_read_exactly(kind, tmp_path):
    demos = recorded(Everything(kind), episodes=9)
    assert find_errors(demos) == []
    assert demos.episodes == 9
    assert not demos.tensors["guard/alive"].all(), "some agents die"
    assert all(bool(x.isfinite().all()) for x in demos.tensors.values()), "observations of dead agents are not recorded"
    assert torch.equal(demos.tensors["episode/return"], episode_returns(demos))
    demos.write(tmp_path / "a")
    again = Demos.read(tmp_path / "a")
    again.write(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (again.env, again.params, again.roles, again.seed) == (demos.env, demos.params, demos.roles, demos.seed)
    for name, x in demos.tensors.items():
        assert x.dtype == again.tensors[name].dtype
        assert x.numpy().tobytes() == again.tensors[name].numpy().tobytes()


def test_recordings_are_a_function_of_the_seed(tmp_path):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        recorded(Everything(), seed=seed).write(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "same").read_bytes()
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()


def test_an_environment_without_end_is_a_one_line_error():
    endless = Probe(lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: age.view(-1, 1), length=10**9)
    env = env_of(endless, 2)
    policies: dict[str, Policy] = {"agent": RandomPolicy(env.spec.default_teams()[0], CPU)}
    with pytest.raises(UserError, match="2 of 2 environments did not finish their episodes within 64 steps"):
        record(env, policies, DemoSource("some/world", {}), episodes=2, modes={"agent": "sample"}, seed=0, max_steps=64)


# ------------------------------------------------------------------------------------------------------------ the file


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "demos"
    recorded(clock()).write(path)
    before = path.read_bytes()

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.core.files.os.replace", fails)
    with pytest.raises(UserError, match=r"cannot write the demonstrations .*No space left"):
        recorded(Everything()).write(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["demos"]


def _edit_metadata(path: Path, change) -> None:
    """Rewrites a file with other metadata."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    entry = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][METADATA_KEY])
    change(entry)
    _write(path, json.dumps(entry))


def _write(path: Path, metadata: str) -> None:
    """Replaces the metadata of a file, and the checksum if it still has one."""
    content = safetensors.torch.save(safetensors.torch.load(path.read_bytes()), {METADATA_KEY: metadata})
    stated = re.search(rb'sha256\\": \\"([0-9a-f]{64})', content)
    if stated:
        content = content.replace(stated[1], b"0" * 64, 1)
        content = content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)
    path.write_bytes(content)


def _put_role(key, value):
    return lambda entry: entry["roles"][0].update({key: value})


FILES = {
    "there are no demonstrations .*nowhere. Record some": lambda path: path.rename(path.parent / "nowhere2"),
    "is incomplete or not a safetensors file": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "is incomplete or not a safetensors file ": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "is incomplete or not a safetensors file  ": lambda path: path.write_bytes(b"not a file of tensors"),
    "is incomplete or not a safetensors file   ": lambda path: path.write_bytes(b""),
    "contains no demonstrations: its metadata has no entry": lambda path: path.write_bytes(
        safetensors.torch.save({"x": torch.zeros(1)})
    ),
    "has format 9, but this version of coterie reads format 2. Update": lambda path: _edit_metadata(
        path, lambda s: s.update(format=9)
    ),
    "has format 'x', .*Record it again": lambda path: _edit_metadata(path, lambda s: s.update(format="x")),
    "is invalid .KeyError: 'environment'": lambda path: _edit_metadata(path, lambda s: s.pop("environment")),
    "is invalid .*expected roles, and an environment": lambda path: _edit_metadata(path, lambda s: s.update(roles=[])),
    "role 'agent': expected a list of names as agents": lambda path: _edit_metadata(path, _put_role("agents", [])),
    "role 'agent': expected a list of names as agents ": lambda path: _edit_metadata(
        path, _put_role("agents", "agent_0")
    ),
    "role 'agent': expected a list of positive integers as choices": lambda path: _edit_metadata(
        path, _put_role("choices", [-2])
    ),
    "role 'agent': expected an integer as continuous, and as many numbers as low and high": lambda path: _edit_metadata(
        path, _put_role("continuous", 2)
    ),
    "role 'agent': expected choices or continuous actions": lambda path: _edit_metadata(path, _put_role("choices", [])),
    "role 'agent': expected .* as observation": lambda path: _edit_metadata(
        path, _put_role("observation", {"shape": "x"})
    ),
    "role 'agent': expected .* as observation ": lambda path: _edit_metadata(
        path, _put_role("observation", {"sensors": {}})
    ),
    "role 4: expected strings as name and group": lambda path: _edit_metadata(path, _put_role("name", 4)),
    "is invalid .*unexpected keyword": lambda path: _edit_metadata(path, lambda s: s["roles"][0].update(color=1)),
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A small file and its metadata."""
    path = tmp_path_factory.mktemp("demos") / "demos"
    recorded(clock(), episodes=2).write(path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return path, content, json.loads(content[8 : 8 + size])["__metadata__"][METADATA_KEY]


@pytest.mark.parametrize("line", FILES)
def test_an_unreadable_file_is_a_one_line_error(line, recording, tmp_path):
    path = tmp_path / "nowhere"
    path.write_bytes(recording[1])
    assert Demos.read(path).episodes == 2, "negative control: the unchanged file can be read"
    FILES[line](path)
    with pytest.raises(UserError, match=line.strip()) as caught:
        Demos.read(path)
    assert "\n" not in str(caught.value)


def test_a_change_anywhere_in_a_file_is_detected(tmp_path):
    path = tmp_path / "demos"
    recorded(Everything(), episodes=2).write(path)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    assert Demos.read(path).digest.encode() in content[:header], "negative control"
    places = [*range(0, header, 29), *range(header, len(content), 1 + len(content) // 30), len(content) - 1]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(UserError, match=r"demos.*(record it again|Record it again|Update|Record some)") as refusal:
            Demos.open(path)
        assert_one_line(str(refusal.value))


def test_a_changed_tensor_names_the_file_and_the_fix(recording, tmp_path):
    path, content = tmp_path / "demos", recording[1]
    path.write_bytes(content[:-1] + bytes([1 - content[-1]]))
    with pytest.raises(
        UserError, match=r"demos is corrupt, it does not match its checksum\. Copy it again, or record it again\.$"
    ):
        Demos.open(path)


@pytest.mark.slow
@settings(FUZZ, max_examples=200)  # reading takes much longer than parsing
@given(seed=st.integers(0, 2**64 - 1))
def test_mutated_metadata_is_read_or_refused_in_one_line(seed, recording):
    """The checksum is that of the mutated file, as an attacker would write it."""
    path, content, metadata = recording
    path.write_bytes(content)
    _write(path, mutate(metadata.encode(), random.Random(seed)).decode(errors="replace"))
    try:
        demos = Demos.open(path)
    except UserError as error:
        assert_one_line(str(error))
    else:
        if not find_errors(demos):
            json.dumps(describe(demos), allow_nan=False)


# -------------------------------------------------------------------------------------------------------------- faults


def _put(name, value, *place):
    def change(tensors):
        tensors[name] = tensors[name].clone()
        tensors[name][place] = value

    return change


def _forbid(tensors):
    """Masks the choice 2 of a living guard that chose it."""
    timestep = int((tensors["guard/alive"][:, 0]).nonzero()[0])
    tensors["guard/discrete"][timestep, 0, 0] = 2
    tensors["guard/action_mask"][timestep, 0] = torch.tensor([True, True, False])


def _ends_while_dead(tensors):
    timestep, agent = (~tensors["guard/alive"]).nonzero()[0].tolist()
    tensors["guard/terminated"][timestep, agent] = True


def _has_no_end(tensors):
    last = tensors["episode/offset"] + tensors["episode/length"] - 1
    timestep = last[tensors["guard/alive"][last].any(-1)][0]
    for flag in ("terminated", "truncated"):
        tensors[f"guard/{flag}"][timestep] = False


def _is_revived(tensors):
    timestep, agent = tensors["guard/alive"][:-1].logical_not().nonzero()[0].tolist()
    tensors["guard/alive"][timestep, agent] = True
    tensors["guard/terminated"][timestep - 1, agent] = False
    tensors["guard/truncated"][timestep - 1, agent] = True


ERRORS = {
    "the tensor guard/alive is missing": lambda t: t.pop("guard/alive"),
    "the tensor scout/obs is missing": lambda t: t.pop("scout/obs"),
    "the tensor thief/obs does not belong to a role": lambda t: t.update({"thief/obs": t["scout/obs"]}),
    "guard/reward is float64: expected float32": lambda t: t.update({"guard/reward": t["guard/reward"].double()}),
    r"guard/obs has shape \[\d+, 2, 4\]: expected \[R, 2, 5\]": lambda t: t.update(
        {"guard/obs": t["guard/obs"][..., :4]}
    ),
    "different numbers of timesteps": lambda t: t.update({"guard/obs": t["guard/obs"][:-1]}),
    "different numbers of episodes": lambda t: t.update({"episode/return": t["episode/return"][:-1]}),
    "there are no episodes": lambda t: t.update({k: x[:0] for k, x in t.items() if k.startswith("episode/")}),
    "episode 1 has 0 timesteps: expected at least 1": _put("episode/length", 0, 1),
    "episode/offset of episode 2 is 1: expected": _put("episode/offset", 1, 2),
    "the sum of episode/length is .*: expected": lambda t: t.update(
        {k: x[:-1] for k, x in t.items() if k.startswith("episode/")}
    ),
    r"guard/obs is NaN or infinite: episode 0, step 0, agent guard_1 \(1 in all": _put("guard/obs", torch.nan, 0, 1, 3),
    "scout/reward is NaN or infinite: episode 0, step 0, agent scout_0": _put("scout/reward", torch.inf, 0, 0),
    "group_reward is NaN or infinite: episode 0, step 0": _put("group_reward", torch.nan, 0, 0),
    "guard/discrete is not one of 3 choices: episode 0, step 0, agent guard_0": _put("guard/discrete", 3, 0, 0, 0),
    "guard/discrete is a masked choice: episode 0": _forbid,
    "guard/action_mask leaves no choice: episode 0, step 0, agent guard_0": _put("guard/action_mask", False, 0, 0),
    "guard is terminated or truncated while not alive": _ends_while_dead,
    "guard/terminated and guard/truncated are both True": lambda t: t.update(
        {"guard/truncated": t["guard/terminated"].clone()}
    ),
    "guard is neither terminated nor truncated at the end": _has_no_end,
    "guard is alive in the timestep after its end": _is_revived,
    "episode/return of episode 3 is 99 for all: expected .*, the sum of its rewards": _put("episode/return", 99.0, 3),
}


@pytest.fixture(scope="module")
def everything():
    """Valid demonstrations, which tests copy before they change them."""
    demos = recorded(Everything())
    assert find_errors(demos) == []
    return demos


@pytest.mark.parametrize("line", ERRORS)
def test_every_error_is_found(line, everything, tmp_path):
    demos = everything
    tensors = {name: x.clone() for name, x in demos.tensors.items()}
    ERRORS[line](tensors)
    found = find_errors(replace(demos, tensors=tensors))
    assert any(re.search(line, error) for error in found), found
    replace(demos, tensors=tensors).write(tmp_path / "bad")
    with pytest.raises(UserError, match="are invalid: "):
        Demos.read(tmp_path / "bad")


def test_numbers_outside_their_range_are_found():
    demos = recorded(Everything("continuous"))
    assert find_errors(demos) == []
    demos.tensors["guard/continuous"][0, 1, 0] = 1.5
    assert find_errors(demos) == ["guard/continuous is outside [-1, 1]: episode 0, step 0, agent guard_1 (1 in all)"]


# ----------------------------------------------------------------------------------------------- another environment


def _role(spec, **changes) -> RoleSpec:
    return replace(spec.roles[0], **changes)


def test_mismatches_of_environment_roles_and_spaces_are_described():
    demos = recorded(Everything())
    spec = Everything().spec
    assert mismatches(demos, "some/world", spec.roles) == [], "negative control"
    cases = {
        "they were recorded in some/world, but the environment is other/world": ("other/world", spec),
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
        (found,) = mismatches(demos, name, other.roles)
        assert found.startswith(line)
    narrowed = replace(spec, roles=(_role(spec, name="thief"), spec.roles[1]))
    assert mismatches(demos, "some/world", narrowed.roles[1:]) == [], "other roles do not matter"
