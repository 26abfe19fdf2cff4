"""Checks an environment by name: its native interface first, then Coterie's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import BaseModel

from coterie.config import registry
from coterie.core.errors import LimitExceededError
from coterie.envs.contract import check as contract
from coterie.envs.contract.consistency_checks import global_rng_states
from coterie.envs.contract.invariants import describe_error
from coterie.envs.contract.report import CheckAborted, Finding, FindingCollector, Report
from coterie.envs.external.agents import AgentsConfig
from coterie.envs.external.checking.episode_check import EpisodeCheck
from coterie.envs.external.checking.interface_rules import ALL_RULES
from coterie.envs.external.checking.interfaces import EnvInterface, UnknownInterface, interface_of
from coterie.envs.external.checking.spaces_fit import equal
from coterie.envs.external.hosting.factory import making
from coterie.envs.external.multi_agent_env import is_multiagent
from coterie.envs.external.returned import described
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
    if not found:
        return report
    order = ("error", "warning", "note")
    findings = sorted((*found, *report.findings), key=lambda finding: order.index(finding.severity))
    return Report(report.name, tuple(findings), report.summary)


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
        self._findings = FindingCollector(ALL_RULES)
        self._steps = 0

    def report(self, name: str) -> Report:
        try:
            self._run()
        except CheckAborted:
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever an environment returns leads to a finding
            self._findings.add("raises", f"the check was stopped by {describe_error(error)}")
        tested = f"one environment, {self._steps} steps with random actions; fix these findings first"
        return Report(name, self._findings.findings(), {"tested": tested})

    def _run(self) -> None:
        interface = self._make_interface()
        if interface is None:
            return
        before = global_rng_states()
        episodes = self._play(interface, _STEPS)
        drawn = [name for name, state in global_rng_states().items() if not np.array_equal(state, before[name])]
        for name in drawn:
            message = f"the environment draws from, or seeds, the global generator of {name}"
            self._findings.add("global-rng", message, name)
        episodes.check_reuse()
        episodes.check_spaces_again(interface, f"after {_STEPS} steps")
        self._check_lengths(episodes.history.lengths)
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
        try:
            with making(self._name):
                env = self._make()
        except LimitExceededError as error:
            self._findings.add("raises", str(error))
            raise CheckAborted from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._findings.add("raises", f"making the environment raised {describe_error(error)}")
            raise CheckAborted from error
        interface = interface_of(env, self._findings)
        if not isinstance(interface, UnknownInterface):
            return interface
        if is_multiagent(env):
            return None
        message = f"the factory returned {described(env)}, which has no `reset` and `step`"
        self._findings.add("factory", message)
        raise CheckAborted

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
        other_steps = None if other is None else other.steps(steps)
        for _ in episodes.steps(steps):
            self._steps += 1
            if other_steps is not None:
                next(other_steps, None)
        return episodes

    def _check_determinism(self, interface: EnvInterface) -> None:
        """Equal seeds and actions have equal results, even if another environment is stepped in between."""
        first = self._record(interface)
        difference = _difference(first, self._record(self._another()))
        if difference is not None:
            self._findings.add("determinism", f"with the same seed and actions, {difference}")
            return
        other = self._episodes(self._another(), seed=1)
        difference = _difference(first, self._record(self._another(), other))
        if difference is not None:
            self._findings.add("shared-state", f"if another environment is stepped in between, {difference}")

    def _another(self) -> EnvInterface:
        interface = self._make_interface()
        assert interface is not None
        return interface

    def _record(self, interface: EnvInterface, other: EpisodeCheck | None = None) -> list[Any]:
        """Returns the results from a fixed seed on, and closes the environments."""
        try:
            return self._play(interface, _COMPARED_STEPS, seed=3, other=other).history.results
        finally:
            interface.close()
            if other is not None:
                other.interface.close()

    def _check_lengths(self, lengths: list[int]) -> None:
        if len(lengths) >= 5 and set(lengths) == {1}:
            self._findings.add("one-step-episodes", f"all {len(lengths)} episodes ended with their first step")

    def _check_image(self, interface: EnvInterface) -> None:
        image = interface.render()
        if image is None:
            return
        if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3):
            what = f"a {type(image).__name__}"
            if isinstance(image, np.ndarray):
                what = f"an array of {image.dtype} {list(image.shape)}"
            self._findings.add("render-output", f"render() returned {what}, expected uint8 [height, width, 3]")
        elif image.shape[2] != 3:
            self._findings.add("render-output", f"render() returned {list(image.shape)}, expected 3 channels")


def _difference(one: list[Any], other: list[Any]) -> str | None:
    for t, (a, b) in enumerate(zip(one, other, strict=False)):
        if not equal(a, b):
            return f"results differ {'from the reset on' if t == 0 else f'at step {t}'}"
    return None if len(one) == len(other) else "episodes end at other steps"
