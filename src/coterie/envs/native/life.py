"""One copy's life with random actions, held to the interface at every step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.envs.adapters.cast import MASK, holds_mask, without_mask
from coterie.envs.adapters.spaces import Actuator
from coterie.envs.findings import Broken, Notebook
from coterie.envs.native.faces import Face, Parts
from coterie.envs.native.fit import flag, misfits, number, same, useless
from coterie.types import ActionSpec

_ALL = "__all__"


@dataclass
class Past:
    """What was lived through. seen: copies of what every step returned; lengths: of finished episodes."""

    seen: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Life:
    """Steps one environment with actions that its masks allow, and notes what breaks its interface.

    limit: steps after which an episode is begun anew, None for the environment's own ends; slots: agents may be others
    than `possible_agents`; seed: of the actions.
    """

    def __init__(self, face: Face, book: Notebook, limit: int | None, slots: bool, seed: int = 0):
        self.face, self._book, self._slots = face, book, slots
        self._limit: float = float("inf") if limit is None else limit
        self._random = np.random.default_rng(seed)
        self._spaces: dict[Any, tuple[Any, Any]] = {}
        self._shows: set[Any] = set()  # agents that show masks
        self._held: list[tuple[Any, Any, int]] = []
        self._age = self._at = 0
        self._ended: set[Any] = set()  # in this episode, and not there again
        self._kept: set[Any] = set()  # ended, and not yet taken out of `agents`
        self.past = Past()

    # ------------------------------------------------------------------------------------------------------ stepping

    def begin(self, seed: int | None) -> None:
        """A new episode. Broken if the environment cannot be stepped then."""
        begun = self.face.reset(seed)
        self._age, self._ended, self._kept = 0, set(), set()
        living = self._living()
        if not living:
            self._note("agents-none", "`agents` is empty after reset(): an episode needs one agent at least")
            raise Broken
        for agent in living:
            self.spaces(agent)
        self._each(begun, "observations", living, "reset()")
        self._look(begun, living, "reset()")
        self._shown = begun
        self.past.seen.append(copy.deepcopy(begun["observations"]))

    def steps(self, count: int) -> Iterator[None]:
        """Takes `count` steps, with new episodes where they end; yields after each."""
        for _ in range(count):
            self._at += 1
            if not self._step():
                self.past.lengths.append(self._age)
                self.begin(self._next_seed())
            elif self._age >= self._limit:
                self.begin(self._next_seed())
            yield

    def _next_seed(self) -> int | None:
        """Of a later episode, as Coterie gives it."""
        return int(self._random.integers(2**31)) if self.face.reads_masks else None

    def _step(self) -> bool:
        """Whether the episode goes on."""
        before = self._living()
        movers = [agent for agent in self.face.movers() if agent in before]
        actions = {agent: self._action(agent) for agent in movers}
        given = copy.deepcopy(actions)
        brought = self.face.step(actions)
        self._age += 1
        if not same(actions, given):
            self._note("action-modified", "step() wrote into the action that it was given")
        ends = self._ends(brought, before)
        self._all(brought, [agent for agent in before if agent not in ends])
        self._rewards(brought, before)
        after = self._living() if self.face.reads_masks else [agent for agent in before if agent not in ends]
        if self.face.reads_masks:
            self._company(before, after, ends)
        self._kept = {agent for agent in self.face.living() if agent in ends or agent in self._kept}
        on = [agent for agent in after if agent not in ends]
        if on:
            self._each(brought, "observations", on, "step()")
            self._infos(brought, on)
        else:  # values are taken beyond a cut: what was seen last is needed
            cut = [agent for agent in before if not flag(brought["terminations"][agent])]
            self._each(brought, "observations", cut, "step()")
        if not self.face.turns:  # there everybody is told of everybody
            self._surplus(brought, {*before, *after})
        self._ended |= ends.keys()
        self._ended -= set(on)
        self._look(
            brought, [agent for agent in {**dict.fromkeys(on), **ends} if agent in brought["observations"]], "step()"
        )
        self.spaces_again(self.face, f"at step {self._at}", on)
        self._shown = brought
        self.past.seen.append(copy.deepcopy({name: brought[name] for name in ("observations", "rewards")}))
        return bool(on)

    def _action(self, agent: Any) -> Any:
        """One of those that the mask allows, as Coterie gives it."""
        _, acts = self.spaces(agent)
        spec = ActionSpec.of(acts)
        mask = self._mask(agent, self._shown, spec)
        picks, at = [], 0
        for size in spec.choices:
            part = np.flatnonzero(mask[at : at + size]) if mask is not None else np.arange(size)
            picks.append(int(self._random.choice(part)) if part.size else 0)
            at += size
        numbers = self._random.uniform(-1, 1, (1, spec.continuous)).astype(np.float32)
        return Actuator(acts)(np.array([picks], np.int64), numbers)[0]

    # ------------------------------------------------------------------------------------------------------- looking

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        """An agent's spaces, looked at once. Broken if they cannot be used."""
        if agent not in self._spaces:
            found = self.face.spaces(agent)
            wrong = list(useless(without_mask(found[0]), found[1]))
            for rule, said in wrong:
                self._note(rule, self.face.who(agent) + said, placed=False)
            if wrong:
                raise Broken
            self._spaces[agent] = copy.deepcopy(found)
        return self._spaces[agent]

    def spaces_again(self, face: Face, when: str, agents: list[Any] | None = None) -> None:
        """Notes where an environment's spaces are others than at first; agents: None for all that were looked at.

        Broken where it goes on with others in the middle of an episode.
        """
        for agent in self._spaces if agents is None else agents:
            found, first = face.spaces(agent), self.spaces(agent)
            for name, one, now in zip(("observation_space", "action_space"), first, found, strict=True):
                if one != now:
                    said = f"{self.face.who(agent)}{name} is {now} {when}, at first it was {one}"
                    self._note("space-changes", said, placed=False)
                    if agents is not None:
                        raise Broken

    def kept(self) -> None:
        """Notes observations that changed after they had been returned."""
        for shown, then, at in self._held:
            if not same(shown, then):
                self._note("observation-reused", f"the observation of step {at} changed in later steps", placed=False)
                return

    def _look(self, brought: Parts, agents: list[Any], call: str) -> None:
        for agent in agents:
            shown = brought["observations"][agent]
            self._held.append((shown, copy.deepcopy(shown), self._at))
            if self.face.reads_masks:
                self._check_mask(agent, brought, call)
            space, seen = self.spaces(agent)[0], shown
            if self.face.reads_masks and holds_mask(space):
                space = without_mask(space)
                if isinstance(seen, dict):
                    seen = {key: part for key, part in seen.items() if key != MASK}
                    seen = seen if isinstance(space, spaces.Dict) else next(iter(seen.values()), None)
            for rule, said in misfits(space, seen):
                self._note(rule, f"{self.face.who(agent)}{said}, returned by {call}")

    def _mask(self, agent: Any, brought: Parts, spec: ActionSpec) -> np.ndarray | None:
        """The mask that was shown, flat; None without one, or one that cannot be read."""
        if not self.face.reads_masks or not spec.choices:
            return None
        shown = brought["observations"].get(agent)
        info = brought["infos"].get(agent)
        mask = shown.get(MASK) if isinstance(shown, dict) else info.get(MASK) if isinstance(info, dict) else None
        if mask is None:
            return None
        try:
            return np.concatenate(
                [np.ravel(part) for part in mask] if isinstance(mask, tuple | list) else [np.ravel(mask)]
            )
        except ValueError:
            return None

    def _check_mask(self, agent: Any, brought: Parts, call: str) -> None:
        spec = ActionSpec.of(self.spaces(agent)[1])
        mask, who = self._mask(agent, brought, spec), self.face.who(agent)
        if mask is None:
            return
        if call == "reset()":
            self._shows.add(agent)
        elif agent not in self._shows:
            self._note("mask-late", f"{who}step() shows an action mask, and reset() showed none")
        if mask.size != spec.mask_size:
            self._note("mask-size", f"{who}the action mask has {mask.size} entries, expected {spec.mask_size}")
            raise Broken
        if not ((mask == 0) | (mask == 1)).all():
            self._note("mask-kind", f"{who}the action mask holds {np.unique(mask)[:4].tolist()}, expected 0 and 1")
            raise Broken
        if agent not in self.face.movers():
            return
        for i, part in enumerate(np.split(mask, np.cumsum(spec.choices)[:-1])):
            if not part.any():
                self._note("mask-nothing", f"{who}the action mask allows nothing in component {i}")

    # ------------------------------------------------------------------------------------------ rewards, ends, agents

    def _rewards(self, brought: Parts, before: list[Any]) -> None:
        self._each(brought, "rewards", before, "step()")
        for agent in before:
            value, who = brought["rewards"][agent], self.face.who(agent)
            earned = number(value)
            if earned is None:
                shape = f" of shape {list(value.shape)}" if isinstance(value, np.ndarray) else ""
                said = f"{who}the reward is a {type(value).__name__}{shape} ({value!r:.40}), expected a number"
                self._note("reward-kind", said)
            elif not np.isfinite(earned):
                self._note("finite", f"{who}the reward is {earned}")

    def _ends(self, brought: Parts, before: list[Any]) -> dict[Any, bool]:
        """Who ended."""
        ends: dict[Any, bool] = {}
        for name in ("terminations", "truncations"):
            self._each(brought, name, before, "step()")
            for agent in before:
                value = brought[name][agent]
                over = flag(value)
                if over is None:
                    one = {"terminations": "terminated", "truncations": "truncated"}[name]
                    said = f"{one} is a {type(value).__name__} ({value!r:.40}), expected True or False"
                    self._note("end-kind-of", self.face.who(agent) + said)
                    raise Broken
                if over:
                    ends[agent] = True
        return ends

    def _all(self, brought: Parts, on: list[Any]) -> None:
        """RLlib's key for all agents. on: who has not ended. Broken where it says that they have."""
        for name in ("terminations", "truncations"):
            if _ALL not in brought[name]:
                continue
            said = f"step() returned {name} of '{_ALL}'"
            if on and flag(brought[name][_ALL]):
                self._note("all-over", f"{said}, which is {brought[name][_ALL]!r:.40}, and agent '{on[0]}' goes on")
                raise Broken
            if not on:
                self._note("all-key", f"{said}, which is not read", name)

    def _living(self) -> list[Any]:
        living = self.face.living()
        twice = {agent for agent in living if living.count(agent) > 1}
        known = self.face.known()
        twice |= {agent for agent in known if known.count(agent) > 1}
        if twice:
            self._note("agents-twice", f"{sorted(map(str, twice))} stands more than once in the list of agents")
            raise Broken
        unknown = [agent for agent in living if known and agent not in known]
        if unknown and not self._slots:
            self._note("agents-unknown", f"agent '{unknown[0]}' is in `agents`, and not in `possible_agents` {known}")
            raise Broken
        return [agent for agent in living if agent not in self._kept]

    def _company(self, before: list[Any], after: list[Any], ends: dict[Any, bool]) -> None:
        gone = [agent for agent in before if agent not in after and agent not in ends]
        if gone:
            self._note("agents-vanish", f"agent '{gone[0]}' left `agents`, and nothing said that it ended")
            raise Broken
        kept = [agent for agent in ends if agent in after]
        if kept and len(after) > len(kept):
            self._note("agents-kept", f"agent '{kept[0]}' ended, and is in `agents` after the step, while others go on")

    def _each(self, brought: Parts, name: str, agents: list[Any], call: str) -> None:
        lacks = [agent for agent in agents if agent not in brought[name]]
        if lacks:
            self._note("missing", f"{call} returned no {name} of agent '{lacks[0]}'", name)
            raise Broken

    def _infos(self, brought: Parts, agents: list[Any]) -> None:
        lacks = [agent for agent in agents if agent not in brought["infos"]]
        if lacks:
            self._note("info-missing", f"step() returned no info of agent '{lacks[0]}'")

    def _surplus(self, brought: Parts, there: set[Any]) -> None:
        for name in ("observations", "rewards"):
            more = [agent for agent in brought[name] if agent not in there]
            if more:
                when = "ended before" if more[0] in self._ended else "is not in `agents`"
                self._note("surplus", f"step() returned {name} of agent '{more[0]}', which {when}", name)

    def _note(self, rule: str, said: str, subject: str = "", placed: bool = True) -> None:
        self._book.note(rule, f"step {self._at}: {said}" if placed else said, subject)
