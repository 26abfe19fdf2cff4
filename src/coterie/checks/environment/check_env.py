"""Checks an environment by name: its native interface first, then Coterie's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from pydantic import BaseModel

from coterie.checks import global_generators
from coterie.checks.environment import contract
from coterie.checks.environment.episode_check import EpisodeCheck, equal
from coterie.checks.environment.interfaces import EnvInterface, interface_of
from coterie.checks.environment.rules import CheckAborted, FindingCollector, Report
from coterie.checks.findings import Finding, worst_first
from coterie.envs import registry
from coterie.envs.external.agents import AgentsConfig
from coterie.envs.external.hosting.factory import making
from coterie.envs.make import make

_STEPS = 200
_COMPARED_STEPS = 60  # steps of the runs that are compared with each other


def check_env(name: str, params: BaseModel) -> Report:
    """Checks the named environment.

    A user's own environment with Gymnasium's or PettingZoo's interface is checked on its own first. If that finds an
    error, the report ends there. Otherwise several environments are checked through Coterie's interface.

    Args:
        name: Name of the environment, or `package.module:factory`.
        params: Its validated settings.

    Returns:
        The report, with the fix for every finding.
    """
    found: tuple[Finding, ...] = ()
    if registry.is_factory(name) and not registry.is_batch_factory(name):
        report = _FactoryCheck(name, registry.factory(name), params).report(name)
        if not report.ok:
            return report
        found = report.findings
    report = contract.check(lambda num_envs, seed: make(name, params, num_envs, seed, with_state=True))
    if not report.summary:  # it could not be made or stepped, so the name in its spec is unknown
        report = Report(name, report.findings)
    return Report(report.name, worst_first((*found, *report.findings)), report.summary)


class _FactoryCheck:
    """Makes environments with a user's factory and checks their native interface.

    Args:
        name: Name of the environment.
        factory: Called with the settings that are its own parameters.
        params: All settings of the environment.
    """

    def __init__(self, name: str, factory: Callable[..., Any], params: BaseModel):
        self._name = name
        shared = AgentsConfig.model_fields
        own = {key: value for key, value in params.model_dump().items() if key not in shared}
        self._make: Callable[[], Any] = lambda: factory(**own)
        self._limit = getattr(params, "episode_limit", None)
        self._has_slots = getattr(params, "max_agents", None) is not None
        self._findings = FindingCollector()
        self._steps = 0

    def report(self, name: str) -> Report:
        with suppress(CheckAborted), self._findings.calling("the check"):  # whatever an environment returns
            self._run()
        tested = f"one environment, {self._steps} steps with random actions; fix these findings first"
        return Report(name, self._findings.findings(), {"tested": tested})

    def _run(self) -> None:
        interface = self._make_interface()
        if interface is None:
            return
        with global_generators.watched() as drawn:
            episodes = self._play(interface, _STEPS)
        for name in drawn:
            message = f"the environment draws from, or seeds, the global generator of {name}"
            self._findings.add("global-rng", message, name)
        episodes.check_reuse()
        episodes.check_spaces_again(interface, f"after {_STEPS} steps")
        self._check_lengths(episodes.lengths)
        self._check_image(interface)
        interface.close()
        second = self._make_interface()
        if second is None or second.env is interface.env:
            self._findings.add("factory-reuses-env", "the factory returned the same object when it was called again")
            return
        episodes.check_spaces_again(second, "in another environment of the same factory")
        if not drawn:
            self._check_determinism(second)

    def _make_interface(self) -> EnvInterface | None:
        """Makes an environment; None for PyMARL's interface, which is checked through Coterie's only."""
        with self._findings.calling("making the environment"), making(self._name):
            env = self._make()
        return interface_of(env, self._findings)

    def _episodes(self, interface: EnvInterface, seed: int = 0) -> EpisodeCheck:
        return EpisodeCheck(interface, self._findings, limit=self._limit, has_slots=self._has_slots, seed=seed)

    def _play(
        self, interface: EnvInterface, steps: int, seed: int = 0, other: EpisodeCheck | None = None
    ) -> EpisodeCheck:
        """Takes `steps` steps; `other` is stepped in between."""
        episodes = self._episodes(interface)
        episodes.reset(seed)
        if other is not None:
            other.reset(seed + 1)
        other_steps = iter(()) if other is None else other.steps(steps)
        for _ in episodes.steps(steps):
            self._steps += 1
            next(other_steps, None)
        return episodes

    def _check_determinism(self, interface: EnvInterface) -> None:
        """Equal seeds and actions have equal results, even if another environment is stepped in between."""
        first = self._record(interface)
        difference = _difference(first, self._record())
        if difference is not None:
            self._findings.add("determinism", f"with the same seed and actions, {difference}")
            return
        other = self._make_interface()
        assert other is not None
        difference = _difference(first, self._record(other=self._episodes(other, seed=1)))
        if difference is not None:
            self._findings.add("shared-state", f"if another environment is stepped in between, {difference}")

    def _record(self, interface: EnvInterface | None = None, other: EpisodeCheck | None = None) -> list[Any]:
        """Returns the results from a fixed seed on, by default of a new environment, and closes the environments."""
        interface = interface or self._make_interface()
        assert interface is not None
        try:
            return self._play(interface, _COMPARED_STEPS, seed=3, other=other).results
        finally:
            interface.close()
            if other is not None:
                other.interface.close()

    def _check_lengths(self, lengths: list[int]) -> None:
        if len(lengths) >= 5 and set(lengths) == {1}:
            self._findings.add("one-step-episodes", f"all {len(lengths)} episodes ended with their first step")

    def _check_image(self, interface: EnvInterface) -> None:
        image = interface.render()
        if image is None or contract.is_image(image):
            return
        array = isinstance(image, np.ndarray)
        what = f"an array of {image.dtype} {list(image.shape)}" if array else f"a {type(image).__name__}"
        self._findings.add("render-output", f"render() returned {what}, expected uint8 [height, width, 3]")


def _difference(one: list[Any], other: list[Any]) -> str | None:
    for t, (a, b) in enumerate(zip(one, other, strict=False)):
        if not equal(a, b):
            return f"results differ {'from the reset on' if t == 0 else f'at step {t}'}"
    return None if len(one) == len(other) else "episodes end at other steps"
