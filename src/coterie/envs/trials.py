"""What one batch of an environment cannot show: twins, other seeds, other actions, saved states, pictures, speed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.envs.findings import Broken, Notebook
from coterie.envs.paths import Actions, Path, difference, leaves, on_host, other_actions, random_actions
from coterie.envs.rules import Watch, check_spec, guarded, told
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError
from coterie.types import EnvSpec, Row, tree_map

Make = Callable[[int, int], VectorEnv]


class Trials:
    """Runs an environment again and again beside what its first batch lived through.

    make: called with (copies, seed); book: where findings go; every trial notes and returns, whatever happens.
    """

    def __init__(self, make: Make, copies: int, book: Notebook):
        self._make, self._copies, self._book = make, copies, book
        self.path = Path()
        self.name = "the environment"

    @contextmanager
    def environment(self, seed: int = 0, copies: int | None = None) -> Iterator[VectorEnv]:
        """A new environment that is closed at the end, twice."""
        env = guarded(self._book, "making the environment", self._make, copies or self._copies, seed)
        if not isinstance(env, VectorEnv):
            said = f"the factory made a {type(env).__name__}, expected a coterie.envs.vector.VectorEnv"
            self._book.note("returns", said, "make")
            raise Broken
        try:
            yield env
        finally:
            self._close(env, "close()")
            self._close(env, "close() a second time")

    def _close(self, env: VectorEnv, call: str) -> None:
        try:
            env.close()
        except Exception as error:
            self._book.note("close", f"{call} raised {told(error)}")

    def take(self, env: VectorEnv, actions: Actions, when: str = "") -> Any:
        """What `env.step` returns on actions that are brought to its device and kept from it."""
        given = tree_map(lambda leaf: leaf.to(env.device, copy=True), actions)
        result = guarded(self._book, f"{when}step()", env.step, given)
        if difference(tree_map(torch.Tensor.cpu, given), actions):
            self._book.note("action-modified", f"{when}step() wrote into the actions that it was given")
        return result

    def replay(self, env: VectorEnv, start: int = 0, stop: int | None = None, when: str = "") -> Iterator[tuple]:
        """Steps through the actions of the path; yields its step number with the Step and Row of this time."""
        end = len(self.path.steps)
        for t in range(start, end if stop is None else min(stop, end)):
            yield t, *on_host(self.take(env, self.path.actions[t], when))

    # ------------------------------------------------------------------------------------------- the first batch

    def first(self, steps: int) -> tuple[EnvSpec, Watch]:
        """Lives through `steps` steps, or so many that episodes can end twice, with every rule looked at."""
        book = self._book
        with self.environment() as env:
            self.name = str(getattr(getattr(env, "spec", None), "name", self.name))
            check_spec(env, self._copies, book)
            spec, watch = env.spec, Watch(env, book)
            generator = torch.Generator().manual_seed(0)
            if spec.episode_limit is not None:
                steps = min(max(steps, 2 * spec.episode_limit + 3), 5 * steps)
            before = global_states()
            kept = guarded(book, "reset()", env.reset)
            self.path.rows.append(watch.begin(kept))
            held = [kept]
            for _ in range(steps):
                actions = random_actions(spec, self.path.rows[-1], generator)
                result = self.take(env, actions)
                step, row = watch.step(result)
                held += result
                self.path.actions.append(actions)
                self.path.steps.append(step)
                self.path.rows.append(row)
            self._global(before)
            self._fresh(held)
        if not watch.lengths:
            book.note("no-end", f"no episode ended within {steps} steps of {self._copies} copies")
        return spec, watch

    def _global(self, before: dict[str, Any]) -> None:
        after = global_states()
        for name in [name for name, state in before.items() if not np.array_equal(state, after[name])]:
            self._book.note("global-random", f"the environment draws from the global generator of {name}", name)

    def _fresh(self, held: list[Any]) -> None:
        """held: what was returned, reset's row first, then step, row, step, row."""
        for i, record in enumerate(held):
            ours = self.path.steps[i // 2] if i % 2 else self.path.rows[i // 2]
            name = difference(on_host(record), ours)
            if name is not None:
                said = f"{name}, returned at step {(i + 1) // 2}, changed when the environment was stepped on"
                self._book.note("fresh", said, name)

    # ------------------------------------------------------------------------------------------------- the others

    def twin(self) -> None:
        """The same seed and actions give the same rows."""
        with self.environment() as env:
            self._compare(
                "determinism", "with the same seed and actions", env, guarded(self._book, "reset()", env.reset)
            )

    def _compare(self, rule: str, how: str, env: VectorEnv, row: Row) -> None:
        name = difference(on_host(row), self.path.rows[0])
        if name is not None:
            self._book.note(rule, f"{how}, {name} differs in the first row")
            return
        for t, *now in self.replay(env):
            name = difference(now[0], self.path.steps[t]) or difference(now[1], self.path.rows[t + 1])
            if name is not None:
                self._book.note(rule, f"{how}, {name} differs at step {t + 1}")
                return

    def seeds(self) -> None:
        """Other seeds and other copies live other episodes."""
        with self.environment(seed=1) as env:
            row = on_host(guarded(self._book, "reset()", env.reset))
            if difference(row, self.path.rows[0]) is None:
                if all(difference(now, self.path.rows[t + 1]) is None for t, _, now in self.replay(env)):
                    self._book.note("seed-ignored", f"seeds 0 and 1 gave the same {len(self.path.rows)} rows")
                return  # the first rows are the same whatever the seed, so copies and resets may be alike too
            if self._copies > 1 and all((leaf == leaf[:1]).all() for leaf in leaves(row.obs).values()):
                self._book.note("copies-alike", f"all {self._copies} copies begin with the same observations")
            if difference(on_host(guarded(self._book, "reset()", env.reset)), row) is None:
                self._book.note("reset-repeats", "a second reset() brought the same rows as the first")

    def reset(self, spec: EnvSpec, seed: int = 5) -> None:
        """A reset in the middle of episodes begins new ones; with a seed, everything is a function of it."""
        after = []
        for first_seed, steps in ((0, 3), (1, 7)):
            with self.environment(first_seed) as env:
                watch = Watch(env, self._book, "with a reset() in the middle, ")
                generator = torch.Generator().manual_seed(1)
                row = watch.begin(guarded(self._book, "reset()", env.reset))
                for _ in range(steps):
                    _, row = watch.step(self.take(env, random_actions(spec, row, generator)))
                watch.begin(guarded(self._book, "reset() in the middle", env.reset))
                row = watch.begin(guarded(self._book, "reset(seed)", env.reset, seed))
                records, generator = [row], torch.Generator().manual_seed(2)
                for _ in range(_AFTERWARDS):
                    step, row = watch.step(self.take(env, random_actions(spec, row, generator)))
                    records += [step, row]
                after.append(records)
        for i, (one, other) in enumerate(zip(*after, strict=True)):
            name = difference(one, other)
            if name is not None:
                said = f"two environments differ in {name}, {(i + 1) // 2} steps after reset({seed})"
                self._book.note("reset-seed", said)
                return

    def ignored(self, spec: EnvSpec) -> None:
        """What is done on closing rows, and by agents that are not alive, changes nothing."""
        for rule in ("closing-action", "dead-action"):
            where = [
                row.acted[:, None] & ~row.alive if rule == "dead-action" else ~row.acted[:, None].expand_as(row.alive)
                for row in self.path.rows
            ]
            if not any(mask.any() for mask in where):
                continue
            with self.environment() as env:
                guarded(self._book, "reset()", env.reset)
                for t, actions in enumerate(self.path.actions):
                    who = "a closing row" if rule == "closing-action" else "an agent that is not alive"
                    now = on_host(self.take(env, other_actions(actions, spec, where[t]), f"another action of {who}: "))
                    name = difference(now[0], self.path.steps[t]) or difference(now[1], self.path.rows[t + 1])
                    if name is not None:
                        self._book.note(rule, f"{name} at step {t + 1} depends on the action of {who}")
                        break

    def leak(self, spec: EnvSpec) -> None:
        """Until an episode ends (then draws may shift), what copy 0 does changes nothing in the others."""
        mine = torch.arange(self._copies) == 0
        with self.environment() as env:
            row, generator = on_host(guarded(self._book, "reset()", env.reset)), torch.Generator().manual_seed(3)
            for t, actions in enumerate(self.path.actions):
                mixed = tree_map(
                    lambda own, old: torch.where(mine[:, None, None], own, old),
                    random_actions(spec, row, generator),
                    actions,
                )
                step, row = on_host(self.take(env, mixed, "copy 0 acting otherwise, "))
                if (step.episode_terminated | step.episode_truncated | self.path.ended(t)).any():
                    return
                name = difference(step, self.path.steps[t], ~mine) or difference(row, self.path.rows[t + 1], ~mine)
                if name is not None:
                    self._book.note("copies-leak", f"{name} of other copies changes when copy 0 acts otherwise")
                    return

    def clip(self, spec: EnvSpec) -> None:
        """Numbers outside of [-1, 1] act like the nearest inside."""
        if not any(role.action.continuous for role in spec.roles):
            return
        with self.environment() as inside, self.environment() as outside:
            row, generator = on_host(guarded(self._book, "reset()", inside.reset)), torch.Generator().manual_seed(4)
            guarded(self._book, "reset()", outside.reset)
            for t in range(_AFTERWARDS):
                actions = random_actions(spec, row, generator)
                wide = tree_map(lambda leaf: 5 * leaf if leaf.is_floating_point() else leaf, actions)
                tame = tree_map(lambda leaf: leaf.clamp(-1, 1) if leaf.is_floating_point() else leaf, wide)
                step, row = on_host(self.take(inside, tame))
                name = difference((step, row), on_host(self.take(outside, wide, "with numbers outside of [-1, 1], ")))
                if name is not None:
                    self._book.note("clip", f"{name} at step {t + 1} changes when actions exceed [-1, 1]")
                    return

    def resume(self, spec: EnvSpec) -> None:
        """A state that was taken and loaded has the same future."""
        # Early in the second half, so that the first half's ends and the second's draws both count.
        middle = len(self.path.steps) // 2
        with self.environment() as env:
            guarded(self._book, "reset()", env.reset)
            for _ in self.replay(env, stop=middle):
                pass
            state = guarded(self._book, "state_dict()", env.state_dict)
            odd = sorted({type(leaf).__name__ for leaf in _plain(state) if leaf is not None})
            if odd:
                self._book.note("state-kinds", f"state_dict() holds {', '.join(odd)}")
            if not spec.exact_resume:
                return
            state = copy.deepcopy(state)
            self._same_future(env, middle, "after state_dict() was called, ")
            guarded(self._book, "load_state_dict()", env.load_state_dict, copy.deepcopy(state))
            self._same_future(env, middle, "after load_state_dict() in the same environment, ")
        with self.environment(seed=77) as env:
            guarded(self._book, "load_state_dict() before reset()", env.load_state_dict, state)
            self._same_future(env, middle, "after load_state_dict() in a new environment, ")

    def _same_future(self, env: VectorEnv, start: int, when: str) -> None:
        for t, *now in self.replay(env, start, when=when):
            name = difference(now[0], self.path.steps[t]) or difference(now[1], self.path.rows[t + 1])
            if name is not None:
                self._book.note("resume", f"{when}{name} differs {t + 1 - start} steps on", when)
                return

    def render(self) -> None:
        """Pictures have the right form, and taking them changes nothing."""
        with self.environment() as env:
            guarded(self._book, "reset()", env.reset)
            for t, *now in self.replay(env, stop=_AFTERWARDS):
                name = difference(now[0], self.path.steps[t]) or difference(now[1], self.path.rows[t + 1])
                if name is not None:
                    self._book.note("render-touches", f"after render(), {name} differs at step {t + 1}")
                    return
                if t < 3 and not self._picture(env, (0, self._copies - 1, 0)[t], (480, 200, 64)[t]):
                    return

    def _picture(self, env: VectorEnv, which: int, size: int) -> bool:
        try:
            picture = env.render(which, size)
        except UserError as error:
            self._book.note("render-missing", f"render() says: {error}")
            return False
        except Exception as error:
            self._book.note("raises", f"render({which}, {size}) raised {told(error)}", "render")
            return False
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3):
            form = (
                f"{picture.dtype} {list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
            )
            self._book.note("render", f"render({which}, {size}) returned {form}")
            return False
        if picture.shape[2] != 3 or max(picture.shape[:2]) != size:
            self._book.note("render", f"render({which}, {size}) returned a picture of {list(picture.shape)}")
        return True

    def single(self, spec: EnvSpec) -> None:
        """One copy alone keeps the contract as well."""
        with self.environment(copies=1) as env:
            watch, generator = Watch(env, self._book, "with one copy, "), torch.Generator().manual_seed(6)
            row = watch.begin(guarded(self._book, "reset() of one copy", env.reset))
            for _ in range(_AFTERWARDS):
                _, row = watch.step(self.take(env, random_actions(spec, row, generator), "with one copy, "))

    def speed(self, seconds: float = 0.5) -> float:
        """Steps a second of the whole batch, measured for about `seconds`; actions are those of the path."""
        with self.environment() as env:
            guarded(self._book, "reset()", env.reset)
            given = [tree_map(lambda leaf: leaf.to(env.device), actions) for actions in self.path.actions]
            for actions in given[:5]:
                env.step(actions)
            done, start = 0, perf_counter()
            for actions in given[5:]:
                env.step(actions)
                done += 1
                if perf_counter() - start > seconds:
                    break
            if env.device.type == "cuda":
                torch.cuda.synchronize(env.device)
            speed = done * self._copies / (perf_counter() - start)
        if speed < _SLOW:
            self._book.note(
                "slow", f"{speed:,.0f} steps/s with {self._copies} copies; training wants {_SLOW:,} or more"
            )
        return speed


_AFTERWARDS = 20  # steps of the short trials
_SLOW = 1000  # steps a second


def _plain(state: Any) -> Iterator[Any]:
    """What of a saved state is neither a tensor nor a plain value."""
    if isinstance(state, dict):
        for key, value in state.items():
            if not isinstance(key, str):
                yield key
            yield from _plain(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _plain(value)
    elif not isinstance(state, Tensor | bool | int | float | str | None):
        yield state


def global_states() -> dict[str, Any]:
    """What the global generators stand at. Taken to be compared, never to be set."""
    _, words, at, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    python = np.array(random.getstate()[1], dtype=object)
    return {"torch": torch.get_rng_state().numpy(), "numpy": np.append(words, at), "python": python}
