"""The environment checker: a sound environment has no findings, and each seeded fault is found by its rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.envs.check import Report, check
from coterie.envs.findings import RULES
from coterie.envs.make import make
from coterie.envs.particle import SCENARIOS
from coterie.envs.vector import VectorEnv
from coterie.envs.world import Outcome, State, View, World, WorldEnv
from coterie.errors import UserError
from coterie.types import Action, EnvSpec, RoleSpec, Row, Step, to_bounds, tree_map

LIMIT = 8


@pytest.fixture(autouse=True)
def _steady_clock_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Speed is told by a clock that ticks a tenth of a millisecond a look, so that no test depends on the machine."""
    monkeypatch.setattr("coterie.envs.trials.perf_counter", lambda ticks=count(): next(ticks) * 1e-4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Pond(World):
    """Frogs (hybrid actions, they can drown and come back) are hunted by a stork (masked choices) until it is full."""

    def __init__(self) -> None:
        see = spaces.Box(-4, 4, (3,), np.float32)
        leap = spaces.Tuple((spaces.Discrete(2), spaces.Box(-0.5, 0.5, (1,), np.float32)))
        self.spec = EnvSpec(
            name="pond",
            roles=(
                RoleSpec("stork", "birds", ("stork",), spaces.Dict({"eye": see, "sky": see}), spaces.Discrete(3)),
                RoleSpec("frog", "frogs", ("frog_0", "frog_1"), see, leap),
            ),
            state_sizes={"global": 3, "frogs": 2},
            mortal=True,
            paid_by_group=True,
            metrics=("eaten",),
            episode_limit=LIMIT,
        )
        self.restart_noise, self.step_noise = 3, 2

    def restart(self, noise: Tensor) -> State:
        nothing = torch.zeros(len(noise))
        return {"at": 2 * noise - 1, "gone": torch.zeros(len(noise), 2, dtype=torch.int64), "eaten": nothing}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        assert noise is not None
        alive = self.view(state).alive
        frogs, stork = action["frog"], action["stork"]
        assert alive is not None
        assert frogs.discrete is not None
        assert frogs.continuous is not None
        assert stork.discrete is not None
        leap = to_bounds(frogs.continuous, self.spec.roles[1].action)[..., 0] * frogs.discrete[..., 0]
        living = alive[:, 1:]
        at = state["at"] + 0.1 * torch.cat((stork.discrete[:, 0] - 1, leap * living), 1)
        caught = living & (noise < 0.1)
        eaten = state["eaten"] + caught.sum(1)
        gone = torch.where(caught, 2, (state["gone"] - 1).clamp(min=0))
        reward = torch.cat((caught.sum(1, keepdim=True).float(), -caught.float()), 1)
        group_reward = torch.stack((torch.zeros(len(at)), 0.1 * living.sum(1)), 1)
        now = {"at": at.clamp(-2, 2), "gone": gone, "eaten": eaten}
        return now, Outcome(
            reward, group_reward, eaten >= 4, torch.cat((caught[:, :1] & False, caught), 1), {"eaten": eaten}
        )

    def view(self, state: State) -> View:
        alive = torch.cat((torch.ones(len(state["gone"]), 1, dtype=torch.bool), state["gone"] == 0), 1)
        at = state["at"]
        mask = torch.stack((at[:, :1] > -1, torch.ones_like(at[:, :1], dtype=torch.bool), at[:, :1] < 1), -1)
        frogs = at[:, 1:, None] * torch.tensor([1.0, 0.5, -1.0])
        obs: dict[str, Any] = {"stork": {"eye": at[:, None], "sky": -at[:, None]}, "frog": frogs}
        return View(obs, {"stork": mask}, {"global": at, "frogs": at[:, 1:]}, alive)

    def render(self, state: State, size: int) -> np.ndarray:
        return np.zeros((size // 2, size, 3), np.uint8)


class Plain(World):
    """One agent that walks for ever as it is told; it draws nothing but where it begins."""

    def __init__(self, limit: int | None = LIMIT) -> None:
        see, walk = spaces.Box(-9, 9, (1,), np.float32), spaces.MultiDiscrete([3, 2])
        role = RoleSpec("walker", "walkers", ("walker",), see, walk)
        self.spec = EnvSpec("plain", (role,), {}, episode_limit=limit)
        self.restart_noise = 1

    def restart(self, noise: Tensor) -> State:
        return {"at": noise}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        chosen = action["walker"].discrete
        assert chosen is not None
        at = (state["at"] + 0.1 * (chosen[:, :, 0] - 1)).clamp(-8, 8)
        return {"at": at}, Outcome(-at.abs())

    def view(self, state: State) -> View:
        return View({"walker": state["at"][..., None]})

    def render(self, state: State, size: int) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)


class Wrapped(VectorEnv):
    """An environment as it is; a fault changes one thing of it."""

    def __init__(self, world: World, copies: int, seed: int):
        self.inner = WorldEnv(world, copies, seed)
        self.spec, self.copies, self.device = self.inner.spec, copies, self.inner.device
        self.closed = 0
        self.before: Row

    def reset(self, seed: int | None = None) -> Row:
        self.before = self.changed_row(self.inner.reset(seed))
        return self.before

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        before = self.before
        step, row = self.inner.step(self.changed_action(action))
        row = self.changed_row(row)
        self.before = row
        return self.changed_step(step, before, row), row

    def changed_action(self, action: dict[str, Action]) -> dict[str, Action]:
        return action

    def changed_row(self, row: Row) -> Row:
        return row

    def changed_step(self, step: Step, before: Row, row: Row) -> Step:
        return step

    def state_dict(self) -> dict[str, Any]:
        # `before` is what the faults look at; it has to come back as well.
        return {"inner": self.inner.state_dict(), "acted": self.before.acted, "alive": self.before.alive}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.before = Row({}, {}, {}, state["alive"], state["alive"], state["acted"])

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        return self.inner.render(copy, size)

    def close(self) -> None:
        self.closed += 1


def found(fault: type[Wrapped], world: Callable[[], World] = Pond, steps: int = 24) -> Report:
    return check(lambda copies, seed: fault(world(), copies, seed), steps=steps)


def rules(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


# ------------------------------------------------------------------------------------------------------ nothing found


@pytest.mark.parametrize("world", [Pond, Plain])
def test_a_sound_environment_has_no_findings(world: Callable[[], World]):
    report = found(Wrapped, world, steps=100)
    assert report.findings == (), report.render()
    assert report.ok


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_particle_scenario_keeps_the_contract(name: str, actions: str):
    params = {"episode_limit": LIMIT, "actions": actions}
    report = check(lambda n, seed: make(f"particle/{name}", params, n, seed, with_state=True), steps=20, copies=4)
    assert report.findings == (), report.render()


def test_the_report_tells_what_there_is_to_know():
    report = found(Wrapped)
    facts = report.facts
    assert "2 agents of group frogs" in facts["role frog"]
    assert "frogs [2]" in facts["states"]
    assert f"limit {LIMIT}" in facts["episodes"]
    assert "24 steps of 8 copies" in facts["tested"]
    assert "group birds 0, frogs" in facts["random return"]
    assert "steps/s" in facts["speed"]
    assert "pond: keeps the contract" in report.render()


def test_the_random_return_is_the_mean_over_finished_episodes():
    class Paid(Wrapped):
        def changed_step(self, step: Step, before: Row, row: Row) -> Step:
            return replace(step, reward=before.acted[:, None].float())

    assert found(Paid, Plain).facts["random return"] == f"an agent of walker {LIMIT}"


def test_too_few_steps_or_copies_are_refused():
    with pytest.raises(UserError, match="copies=1"):
        check(lambda copies, seed: Wrapped(Plain(), copies, seed), copies=1)


# -------------------------------------------------------------------------------------------------------- seeded faults


def on_rows(change: Callable[[Row], Row]) -> type[Wrapped]:
    return type("OnRows", (Wrapped,), {"changed_row": lambda self, row: change(row)})


def on_steps(change: Callable[[Step, Row, Row], Step]) -> type[Wrapped]:
    return type("OnSteps", (Wrapped,), {"changed_step": lambda self, step, before, row: change(step, before, row)})


def on_spec(**changes: Any) -> type[Wrapped]:
    def init(self: Wrapped, world: World, copies: int, seed: int) -> None:
        Wrapped.__init__(self, world, copies, seed)
        self.spec = replace(self.spec, **changes)

    return type("OnSpec", (Wrapped,), {"__init__": init})


def method(name: str, function: Callable[..., Any]) -> type[Wrapped]:
    return type("OnMethod", (Wrapped,), {name: function})


def frogs(row: Row, change: Callable[[Tensor], Tensor]) -> Row:
    return replace(row, obs=row.obs | {"frog": change(row.obs["frog"])})


def raising(*_: Any) -> Any:
    raise RuntimeError("the pond is dry")


def ended(step: Step) -> Tensor:
    return step.episode_terminated | step.episode_truncated


def role(**changes: Any) -> tuple[RoleSpec, ...]:
    stork, frog = Pond().spec.roles
    return stork, replace(frog, **changes)


def filled(value: Tensor, at: Any, number: float) -> Tensor:
    value = value.clone()
    value[at] = number
    return value


def draws_from(draw: Callable[[], Any]) -> type[Wrapped]:
    return on_rows(lambda row: (draw(), row)[1])


def same_buffer(self: Wrapped, row: Row) -> Row:
    if not hasattr(self, "buffer"):
        self.buffer = tree_map(torch.clone, row)
    tree_map(lambda old, new: old.copy_(new), self.buffer, row)
    return self.buffer


def clamp_in_place(self: Wrapped, action: dict[str, Action]) -> dict[str, Action]:
    continuous = action["frog"].continuous
    assert continuous is not None
    continuous.mul_(0.5)
    return action


def unclipped(self: Wrapped, step: Step, before: Row, row: Row) -> Step:
    return replace(step, reward=step.reward + self.wide[:, None] * before.acted[:, None])  # type: ignore[attr-defined]


def remember_width(self: Wrapped, action: dict[str, Action]) -> dict[str, Action]:
    continuous = action["frog"].continuous
    assert continuous is not None
    self.wide = (continuous.abs() > 1).any(-1).any(-1).float()  # type: ignore[attr-defined]
    return action


def pays_for_action(who: Callable[[Row], Tensor]) -> type[Wrapped]:
    """A stork that is paid, one step late, for what the frogs of `who` [B, 2] did."""

    def act(self: Any, action: dict[str, Action]) -> dict[str, Action]:
        continuous = action["frog"].continuous
        assert continuous is not None
        self.due, self.paid = (continuous[..., 0] * who(self.before)).sum(1), getattr(self, "due", torch.zeros(()))
        return action

    def pay(self: Any, step: Step, before: Row, row: Row) -> Step:
        own = self.paid * before.acted
        return replace(step, reward=step.reward + own[:, None] * before.alive)

    return type("PaysForAction", (Wrapped,), {"changed_action": act, "changed_step": pay})


def leaking(step: Step, before: Row, row: Row) -> Step:
    shared = row.obs["frog"][0].sum()
    return replace(step, group_reward=step.group_reward + torch.where(before.acted, shared, 0.0)[:, None])


class Unseeded(Wrapped):
    def __init__(self, world: World, copies: int, seed: int):
        super().__init__(world, copies, seed)
        self.own = seed

    def reset(self, seed: int | None = None) -> Row:
        return super().reset(self.own if seed is None else seed)


class SeedForgotten(Wrapped):
    def __init__(self, world: World, copies: int, seed: int):
        super().__init__(world, copies, 0)


class SeedOfResetIgnored(Wrapped):
    def reset(self, seed: int | None = None) -> Row:
        return super().reset()


class AllCopiesAlike(Wrapped):
    def reset(self, seed: int | None = None) -> Row:
        row = super().reset(seed)
        self.inner._state = {name: value[:1].expand_as(value).clone() for name, value in self.inner._state.items()}
        return replace(row, **{n: tree_map(lambda x: x[:1].expand_as(x), getattr(row, n)) for n in ("obs", "state")})


class ForgetsItsGenerator(Wrapped):
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "inner": {**state["inner"], "generator": torch.Generator().get_state()}}


class ForgetsItsClock(Wrapped):
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "inner": {**state["inner"], "age": torch.zeros_like(state["inner"]["age"])}}


class SavesAnObject(Wrapped):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "tool": range(3)}


class ClosesOnce(Wrapped):
    def close(self) -> None:
        super().close()
        assert self.closed < 2, "already closed"


class RenderSteps(Wrapped):
    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        self.inner._state = {**self.inner._state, "at": self.inner._state["at"] * 0.5}
        return super().render(copy, size)


class RestartsAtOnce(Wrapped):
    def changed_row(self, row: Row) -> Row:
        return replace(row, acted=torch.ones_like(row.acted))


class LongerThanDeclared(Wrapped):
    def __init__(self, world: World, copies: int, seed: int):
        super().__init__(world, copies, seed)
        self.spec = replace(self.spec, episode_limit=5)


class BreaksWithOneCopy(Wrapped):
    def changed_row(self, row: Row) -> Row:
        return frogs(row, torch.squeeze)


FAULTS: dict[str, tuple[str, type[Wrapped]]] = {
    # calls
    "reset raises": ("raises", method("reset", raising)),
    "step raises": ("raises", method("step", raising)),
    "render raises": ("raises", method("render", raising)),
    "state_dict raises": ("raises", method("state_dict", raising)),
    "reset returns a pair": ("returns", method("reset", lambda self, seed=None: (self.inner.reset(seed), {}))),
    "step returns five things": ("returns", method("step", lambda self, action: (1, 2, 3, 4, 5))),
    "close fails the second time": ("close", ClosesOnce),
    "render returns floats": ("render", method("render", lambda self, copy, size: np.zeros((size, size, 3)))),
    "render ignores size": ("render", method("render", lambda self, c, s: np.zeros((99, 99, 3), np.uint8))),
    "render changes the state": ("render-touches", RenderSteps),
    # spec
    "no spec": ("spec", method("__init__", lambda self, world, copies, seed: None)),
    "two roles of one name": ("spec-roles", on_spec(roles=role(name="stork"))),
    "two agents of one name": ("spec-agents", on_spec(roles=role(agents=("stork", "frog")))),
    "groups out of order": ("spec-groups", on_spec(roles=(*role(), *role(name="toad", group="birds")[1:]))),
    "discrete observations": ("spec-observations", on_spec(roles=role(observation_space=spaces.Discrete(3)))),
    "observations in float64": (
        "spec-observations",
        on_spec(roles=role(observation_space=spaces.Box(0, 1, (3,), float))),
    ),
    "text as action": ("spec-actions", on_spec(roles=role(action_space=spaces.Text(3)))),
    "a state of an unknown group": ("spec-states", on_spec(state_sizes={"global": 3, "toads": 2})),
    "a metric named twice": ("spec-metrics", on_spec(metrics=("eaten", "eaten"))),
    "a limit of nothing": ("spec-limit", on_spec(episode_limit=0)),
    # form
    "a role without observations": ("names", on_rows(lambda row: replace(row, obs={"stork": row.obs["stork"]}))),
    "an undeclared metric": ("names", on_spec(metrics=())),
    "numpy in place of tensors": ("type", on_rows(lambda row: replace(row, acted=row.acted.numpy()))),  # type: ignore
    "agents before copies": ("shape", on_rows(lambda row: replace(row, alive=row.alive.T))),
    "observations in double precision": ("dtype", on_rows(lambda row: frogs(row, torch.Tensor.double))),
    "flags as numbers": ("dtype", on_steps(lambda step, *_: replace(step, terminated=step.terminated.float()))),
    "another device": ("device", on_rows(lambda row: replace(row, first=row.first.to("meta")))),
    "squeezed with one copy": ("shape", BreaksWithOneCopy),
    # values
    "NaN is observed": (
        "finite",
        on_rows(lambda row: frogs(row, lambda x: filled(x, (0, 0, 0), float("nan")).where(row.alive[:, 1:, None], x))),
    ),
    "infinite reward": (
        "finite",
        on_steps(
            lambda step, before, _: replace(
                step, reward=filled(step.reward, (1, 0), float("inf")).where(before.acted[:, None], 0)
            )
        ),
    ),
    "observations outside of the space": ("range", on_rows(lambda row: frogs(row, lambda x: x * 10))),
    "a mask with nothing": (
        "mask-empty",
        on_rows(lambda row: replace(row, action_mask={"stork": row.action_mask["stork"] & False})),
    ),
    "a mask of the dead": (
        "mask-dead",
        on_rows(
            lambda row: replace(
                row, action_mask=row.action_mask | {"frog": (row.alive[:, 1:, None] | torch.tensor([True, False]))}
            )
        ),
    ),
    "mortal not declared": ("mortal", on_spec(mortal=False)),
    "group rewards not declared": ("group-reward", on_spec(paid_by_group=False)),
    # ends and restarts
    "done is both": (
        "both-ends",
        on_steps(lambda step, *_: replace(step, episode_terminated=ended(step), episode_truncated=ended(step))),
    ),
    "an agent ends twice over": (
        "both-ends",
        on_steps(lambda step, *_: replace(step, truncated=step.truncated | step.terminated)),
    ),
    "no closing rows": ("acted", RestartsAtOnce),
    "closing rows without an end": ("acted", on_rows(lambda row: replace(row, acted=filled(row.acted, 2, 0)))),
    "rewards after closing rows": ("closing-earns", on_steps(lambda step, *_: replace(step, reward=step.reward + 1))),
    "metrics after closing rows": (
        "closing-earns",
        on_steps(lambda step, *_: replace(step, metrics={"eaten": step.metrics["eaten"] + 1})),
    ),
    "ends after closing rows": (
        "closing-ends",
        on_steps(lambda step, before, _: replace(step, episode_truncated=step.episode_truncated | ~before.acted)),
    ),
    "actions of closing rows count": ("closing-action", pays_for_action(lambda row: ~row.acted[:, None])),
    "closing rows hide who was cut": (
        "closing-hides",
        on_rows(lambda row: replace(row, alive=row.alive & row.acted[:, None], first=row.first & row.acted[:, None])),
    ),
    "first is never True": ("first", on_rows(lambda row: replace(row, first=row.first & False))),
    "first is always True": ("first", on_rows(lambda row: replace(row, first=row.alive))),
    "first of the dead": ("first", on_rows(lambda row: replace(row, first=row.first | ~row.alive))),
    "agents outlive their episode": (
        "end-leaves-agents",
        on_steps(lambda step, *_: replace(step, truncated=step.truncated & False)),
    ),
    "agents cut by an end": (
        "end-kind",
        on_steps(
            lambda step, *_: replace(
                step, terminated=step.terminated & False, truncated=step.terminated | step.truncated
            )
        ),
    ),
    "longer than declared": ("limit", LongerThanDeclared),
    "cut without a declared limit": ("limit-undeclared", on_spec(episode_limit=None)),
    # the dead
    "the dead are paid": (
        "dead-earns",
        on_steps(
            lambda step, before, _: replace(step, reward=step.reward + (~before.alive & before.acted[:, None]).float())
        ),
    ),
    "the dead end again": (
        "dead-ends",
        on_steps(
            lambda step, before, _: replace(step, terminated=step.terminated | (~before.alive & before.acted[:, None]))
        ),
    ),
    "actions of the dead count": ("dead-action", pays_for_action(lambda row: ~row.alive[:, 1:] & row.acted[:, None])),
    "slots fill at once": ("slot-empty", on_rows(lambda row: replace(row, alive=torch.ones_like(row.alive)))),
    "agents vanish": (
        "vanished",
        on_steps(lambda step, *_: replace(step, terminated=step.terminated & step.episode_terminated[:, None])),
    ),
    # seeds and state
    "chance without a seed": ("determinism", on_rows(lambda row: frogs(row, lambda x: x * random.Random().random()))),
    "the seed is forgotten": ("seed-ignored", SeedForgotten),
    "every reset is the same": ("reset-repeats", Unseeded),
    "the seed of a reset is ignored": ("reset-seed", SeedOfResetIgnored),
    "copies live one life": ("copies-alike", AllCopiesAlike),
    "copies know of each other": ("copies-leak", on_steps(leaking)),
    "torch's global generator": ("global-random", draws_from(lambda: torch.rand(()))),
    "numpy's global generator": ("global-random", draws_from(lambda: np.random.rand())),  # noqa: NPY002
    "python's global generator": ("global-random", draws_from(random.random)),
    "rows share one buffer": ("fresh", method("changed_row", same_buffer)),
    "actions are changed in place": ("action-modified", method("changed_action", clamp_in_place)),
    "actions are not clipped": (
        "clip",
        type("Unclipped", (Wrapped,), {"changed_action": remember_width, "changed_step": unclipped}),
    ),
    "a state with an object": ("state-kinds", SavesAnObject),
    "a state without generator": ("resume", ForgetsItsGenerator),
    "a state without clock": ("resume", ForgetsItsClock),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found_by_its_rule(fault: str):
    rule, broken = FAULTS[fault]
    report = found(broken)
    assert rule in rules(report), report.render()
    for finding in report.findings:
        assert finding.what
        assert "\n" not in finding.what + finding.mend
        assert finding.mend in report.render(width=10_000)


def test_an_environment_that_cannot_be_made_is_a_finding():
    report = check(raising)
    assert [finding.rule for finding in report.findings] == ["raises"]
    assert "making the environment raised RuntimeError: the pond is dry" in report.findings[0].what
    assert not report.ok


def test_a_factory_of_something_else_is_a_finding():
    report = check(lambda copies, seed: object())  # type: ignore[arg-type,return-value]
    assert rules(report) == {"returns"}


def test_a_render_that_is_not_offered_is_a_warning():
    def no_pictures(*_: Any) -> Any:
        raise UserError("this environment draws nothing")

    report = found(method("render", no_pictures))
    assert rules(report) == {"render-missing"}
    assert report.ok


def test_episodes_that_do_not_end_are_told():
    report = found(Wrapped, lambda: Plain(limit=None))
    assert rules(report) == {"no-end"}
    assert report.facts["episodes"] == "none ended"


def test_a_slow_environment_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.envs.trials.perf_counter", lambda ticks=count(): float(next(ticks)))
    assert "slow" in rules(found(Wrapped))


def test_an_environment_without_exact_resume_is_not_held_to_it():
    class Inexact(ForgetsItsGenerator):
        def __init__(self, world: World, copies: int, seed: int):
            super().__init__(world, copies, seed)
            self.spec = replace(self.spec, exact_resume=False)

    assert found(Inexact).findings == ()


def test_a_finding_names_step_copy_and_agent():
    def change(step: Step, before: Row, row: Row) -> Step:
        return replace(step, reward=filled(step.reward, (3, 2), float("nan")).where(before.acted[:, None], 0))

    def range_change(row: Row) -> Row:
        return frogs(row, lambda x: filled(x, (3, 1), 7.0))

    assert "copy 3" in found(on_steps(change)).findings[0].what
    what = next(f.what for f in found(on_rows(range_change)).findings if f.rule == "range")
    assert "step 0, copy 3, agent frog_1: obs['frog'] holds values from 7 to 7" in what
    assert "seen" in what


def test_errors_come_before_warnings():
    report = found(on_spec(episode_limit=None, paid_by_group=False))
    assert [finding.severity for finding in report.findings] == ["error", "warning"]
    assert "breaks the contract (1 error, 1 warning)" in report.render()


def test_every_rule_but_speed_has_a_seeded_fault():
    apart = {"render-missing", "no-end", "slow"}
    assert {rule for rule, _ in FAULTS.values()} | apart == set(RULES)
