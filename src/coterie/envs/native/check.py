"""The check of any environment by its name: first what it is by itself, then as Coterie steps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import BaseModel

from coterie import registry
from coterie.envs import check as contract
from coterie.envs.adapters.cast import AgentsConfig
from coterie.envs.findings import Broken, Finding, Notebook, Report
from coterie.envs.make import make
from coterie.envs.native.faces import Face, Unlike, face_of
from coterie.envs.native.fit import same
from coterie.envs.native.life import Life, Past
from coterie.envs.native.rules import ALL
from coterie.envs.rules import told
from coterie.envs.trials import global_states

_STEPS = 200
_TWINS = 60  # steps in which lives are compared


def check_named(name: str, params: BaseModel) -> Report:
    """What testing the named environment found. params: its validated keys.

    A user's own of Gymnasium's or PettingZoo's kind is held to its interface first, one copy by itself. Where that
    finds an error, the report ends there; else it goes on with many copies behind Coterie's contract.
    """
    found: tuple[Finding, ...] = ()
    if registry.is_factory(name) and not registry.is_batch_factory(name):
        alone = _Alone(registry.factory(name), params)
        report = alone.report(name)
        if not report.ok:
            return report
        found = report.findings
    report = contract.check(lambda copies, seed: make(name, params, copies, seed, with_state=True))
    if not report.facts:  # it could not be made or stepped, and nobody knows the name that it has in its spec
        report = Report(name, report.findings)
    if not found:
        return report
    order = ("error", "warning", "note")
    findings = sorted((*found, *report.findings), key=lambda finding: order.index(finding.severity))
    return Report(report.name, tuple(findings), report.facts)


class _Alone:
    """Makes copies with the factory and lives with them. factory: called with the keys that are its own."""

    def __init__(self, factory: Callable[..., Any], params: BaseModel):
        shared = AgentsConfig.model_fields
        given = {key: value for key, value in params.model_dump().items() if key not in shared}
        self._make: Callable[[], Any] = lambda: factory(**given)
        self._limit = getattr(params, "episode_limit", None)
        self._slots = getattr(params, "max_agents", None) is not None
        self._book = Notebook(ALL)
        self._steps = 0

    def report(self, name: str) -> Report:
        try:
            self._trials()
        except Broken:
            pass
        except Exception as error:  # whatever an environment returns, it is told and not raised
            self._book.note("raises", f"the check of it was stopped by {told(error)}")
        said = f"one copy by itself, {self._steps} steps with random actions; what is found is to be mended first"
        return Report(name, self._book.findings(), {"tested": said})

    def _trials(self) -> None:
        face = self._face()
        if face is None:
            return
        before = global_states()
        life = self._live(face, _STEPS)
        drawn = [name for name, state in global_states().items() if not np.array_equal(state, before[name])]
        for name in drawn:
            self._book.note(
                "global-random", f"the environment draws from, or seeds, the global generator of {name}", name
            )
        life.kept()
        life.spaces_again(face, f"after {_STEPS} steps")
        self._lengths(life.past)
        self._picture(face)
        face.close()
        again = self._face()
        if again is None or again.env is face.env:
            self._book.note("factory-same", "the factory returned the same object when it was called again")
            return
        life.spaces_again(again, "in another environment of the same factory")
        if not drawn:
            self._twins(again)

    def _face(self) -> Face | None:
        """A new environment; None for one of PyMARL's kind, which is checked behind the contract only."""
        try:
            env = self._make()
        except Exception as error:
            self._book.note("raises", f"making the environment raised {told(error)}")
            raise Broken from error
        face = face_of(env, self._book)
        if not isinstance(face, Unlike):
            return face
        if hasattr(env, "get_avail_actions"):
            return None
        self._book.note("factory", f"the factory returned a {type(env).__name__}, which has no `reset` and `step`")
        raise Broken

    def _live(self, face: Face, steps: int, seed: int = 0, beside: Life | None = None) -> Life:
        """A life of `steps` steps; `beside` is stepped in between."""
        life = Life(face, self._book, self._limit, self._slots)
        life.begin(seed)
        if beside is not None:
            beside.begin(seed + 1)
        others = None if beside is None else beside.steps(steps)
        for _ in life.steps(steps):
            self._steps += 1
            if others is not None:
                next(others, None)
        return life

    def _twins(self, face: Face) -> None:
        """The same seed gives the same life, also where another environment is stepped beside it."""
        one = self._first_episode(face)
        other = self._first_episode(self._another())
        differs = _difference(one, other)
        if differs is not None:
            self._book.note("determinism", f"with the same seed and actions, {differs}")
            return
        beside = Life(self._another(), self._book, self._limit, self._slots, seed=1)
        differs = _difference(one, self._first_episode(self._another(), beside))
        if differs is not None:
            self._book.note("instances-share", f"where another environment is stepped beside it, {differs}")

    def _another(self) -> Face:
        face = self._face()
        assert face is not None
        return face

    def _first_episode(self, face: Face, beside: Life | None = None) -> list[Any]:
        """What one copy shows from a seed on; closed at the end."""
        try:
            return self._live(face, _TWINS, seed=3, beside=beside).past.seen
        finally:
            face.close()
            if beside is not None:
                beside.face.close()

    def _lengths(self, past: Past) -> None:
        if len(past.lengths) >= 5 and set(past.lengths) == {1}:
            self._book.note("one-step", f"all {len(past.lengths)} episodes ended with their first step")

    def _picture(self, face: Face) -> None:
        picture = face.render()
        if picture is None:
            return
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3):
            form = f"a {type(picture).__name__}"
            if isinstance(picture, np.ndarray):
                form = f"an array of {picture.dtype} {list(picture.shape)}"
            self._book.note("picture", f"render() returned {form}, expected uint8 [height, width, 3]")
        elif picture.shape[2] != 3:
            self._book.note("picture", f"render() returned a picture of {list(picture.shape)}, expected 3 colours")


def _difference(one: list[Any], other: list[Any]) -> str | None:
    for t, (a, b) in enumerate(zip(one, other, strict=False)):
        if not same(a, b):
            return f"what is returned differs {'from the reset on' if t == 0 else f'at step {t}'}"
    return None if len(one) == len(other) else "episodes end at other steps"
