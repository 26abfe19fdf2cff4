"""The check of an environment by the first steps of a run: what `coterie check-env` finds without further episodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import final

from coterie.checks.environment.invariants import InvariantChecker, check_spec
from coterie.checks.environment.rules import CheckAborted, FindingCollector
from coterie.core.errors import ContractError
from coterie.core.types import Step, Timestep
from coterie.envs.contract.partial_step import env_parts, split_envs
from coterie.envs.contract.vector import VectorEnv

_STEPS = 32
"""Steps whose results are checked."""
_GROUP_REWARD_STEPS = 1000
"""Steps in which group rewards are looked for if the spec declares none. They may be given at ends of episodes only."""


@final
class FirstSteps:
    """Checks what the environment of a run returns at first against its spec, without calling it.

    A part of an environment that consists of parts is checked. The check ends where a worker failed.

    Args:
        env: The environment.
        name: Its name.
        refuses: Raise for errors. Otherwise they are printed, as warnings are.
        note: Prints a line.
        noted: Names of findings that were printed already, to which others are added.
    """

    def __init__(
        self, env: VectorEnv, name: str, *, refuses: bool, note: Callable[[str], None], noted: set[str] | None = None
    ):
        self._name, self._refuses, self._note = name, refuses, note
        self._sizes = [part.num_envs for part in env_parts(env)]
        self._findings, self._noted = FindingCollector(), set[str]() if noted is None else noted
        self._count, self._is_over = 0, False
        with suppress(CheckAborted):
            check_spec(env, env.num_envs, self._findings)
        self._report()
        self._invariants = InvariantChecker(env, self._findings, num_envs=self._sizes[0])

    def reset(self, timestep: Timestep) -> None:
        """Checks the first timestep of all environments. ContractError as in `step`."""
        self._check(lambda: self._invariants.check_reset(split_envs(timestep, self._sizes)[0]))

    def step(self, step: Step, timestep: Timestep) -> None:
        """Checks the result of a step and the timestep after it.

        Raises:
            ContractError: For an error that `refuses`.
        """
        self._count += 1
        self._is_over |= step.lost is not None
        if self._count <= _STEPS:
            self._check(lambda: self._invariants.check_step((step, timestep)))
        elif self._count <= _GROUP_REWARD_STEPS:
            self._check(lambda: self._invariants.check_group_reward(step))

    def _check(self, check: Callable[[], object]) -> None:
        if self._is_over:
            return
        try:
            check()
        except CheckAborted:
            self._is_over = True
        self._report()

    def _report(self) -> None:
        for finding in self._findings.findings():
            if finding.name == "non-finite":  # the collector stops the run, in any step
                continue
            line = f"environment '{self._name}': {finding.evidence}. {finding.fix}"
            if finding.severity == "error" and self._refuses:
                raise ContractError(f"{line} Set check=off to train without this check.")
            if finding.name not in self._noted and finding.severity != "note":
                self._noted.add(finding.name)
                self._note(line)
