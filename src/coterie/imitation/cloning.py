"""Behavioural cloning: policies fitted to demonstrations before the first window, and beside their learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from coterie.algos.algorithm import Algorithm
from coterie.algos.student import Fitting, Student
from coterie.episodes import Finished
from coterie.errors import NonFiniteError, UserError
from coterie.fittable import Fittable, Manner
from coterie.guide import Guide, Roster
from coterie.imitation.batches import DemoBatches
from coterie.imitation.config import ImitationConfig
from coterie.imitation.demos import Demos
from coterie.math.losses import masked_mean
from coterie.metrics import Metric, declare
from coterie.progress import Waiting

declare(
    Metric("imitation/loss", "", "loss of a policy on demonstrations beside its learner, mean over the steps", "down"),
    Metric("imitation/agreement", "share", "demonstrated actions that a policy finds likeliest, beside its learner"),
    Metric("imitation/strength", "", "learning rate beside the learner as a share of the full one", None, "last"),
)

_MANY = 65_536
"""Rows of which a warm start tells the agreement: all, if there are no more."""


class Pupil:
    """One team's policy, the demonstrations that it is fitted to, and the steps that do it."""

    def __init__(
        self, learner: Any, config: ImitationConfig, lr: float, demos: Demos, seed: int, device: torch.device
    ) -> None:
        """learner: a `Student`; lr: where the configuration names none."""
        self.config, self.lr = config, config.lr or lr
        self.policy = cast(Fittable, learner.policy)
        self.fitting: Fitting = cast(Student, learner).fitting()
        remembers = bool(learner.policy.start(1))
        self.batches = DemoBatches(demos, self.policy.team, remembers, config.batch, seed, device)
        self.digest = demos.digest
        self._manner = Manner(config.margin, config.fit_spread)

    def warm_up(self, told: Callable[[int, int], None]) -> str:
        """The warm start, and a line that tells of it; told: hears now and then how many steps of how many are done."""
        batches, steps = self.batches, self.config.warm_steps(self.batches.rows)
        self.policy.scale.observe(batches.obs, batches.live)
        for step in range(steps):
            report = self.step(1.0)
            if step % 100 == 99 or step == steps - 1:
                self._require_finite(report)
                told(step + 1, steps)
        self.fitting.arrive()
        with torch.no_grad():
            seen = batches.all() if batches.rows <= _MANY else batches.draw()
            agreement = float(masked_mean(self.policy.misfit(seen, self._manner)[1].float(), seen.live))
        return (
            f"imitation: {steps:,} steps on {batches.episodes:,} episodes ({batches.rows:,} rows): "
            f"{agreement:.1%} of the demonstrated actions are the policy's likeliest"
        )

    def step(self, strength: float) -> Tensor:
        """One gradient step; returns its loss and agreement [2]."""
        batch = self.batches.draw()
        loss, same = self.policy.misfit(batch, self._manner)
        loss = masked_mean(loss, batch.live)
        self.fitting.step(loss, self.lr * strength)
        return torch.stack([loss.detach(), masked_mean(same.float(), batch.live)])

    def _require_finite(self, report: Tensor) -> None:
        if not bool(report.isfinite().all()):
            raise NonFiniteError(
                f"imitation of team {self.policy.team.name}: the loss became NaN or infinite; a smaller imitation.lr "
                "often mends this"
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimiser": self.fitting.optimiser.state_dict(),
            "batches": self.batches.state_dict(),
            "digest": self.digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """UserError if the demonstrations are not those that the run was started with."""
        if state["digest"] != self.digest:
            raise UserError(
                f"the demonstrations {self.config.demos} have changed since the run was started: put back the ones "
                "that it was started with"
            )
        self.fitting.optimiser.load_state_dict(state["optimiser"])
        self.batches.load_state_dict(state["batches"])


class Cloning(Guide):
    """Fits policies to demonstrations: once before the first window, and after every window beside their learners.

    pupils: by team; steps: of the whole run; named: whether metrics name their team.
    """

    name = "imitation"

    def __init__(self, pupils: dict[str, Pupil], steps: int, roster: Roster, named: bool) -> None:
        self.pupils, self._steps, self._roster, self._named = pupils, steps, roster, named
        self._reports: dict[str, list[Tensor]] = {name: [] for name in pupils}
        self._strength: dict[str, float] = {}

    def begin(self) -> Sequence[str]:
        lines = []
        for name, pupil in self.pupils.items():
            line = pupil.warm_up(Waiting(self.say, "imitation before the first window", unit="steps"))
            lines.append(f"team {name}: {line}" if self._named else line)
        return lines

    def after_window(self, steps: int, finished: Finished) -> Sequence[str]:
        for name, pupil in self.pupils.items():
            strength = pupil.config.strength_at(min(1.0, steps / self._steps))
            self._strength[name] = strength
            if strength > 0 and name in self._roster.learning:
                self._reports[name] += [pupil.step(strength) for _ in range(pupil.config.updates)]
        return ()

    def hear(self, steps: int, row: Mapping[str, float]) -> Sequence[str]:
        return ()

    def metrics(self) -> dict[str, float]:
        """Means since the last row. The one read by the host."""
        found = {}
        for name, reports in self._reports.items():
            place = f"imitation/{name}" if self._named else "imitation"
            if self.pupils[name].config.strength > 0:
                found[f"{place}/strength"] = self._strength.get(name, 0.0)
            if not reports:
                continue
            loss, agreement = torch.stack(reports).mean(0).tolist()
            if not abs(loss) < float("inf"):
                raise NonFiniteError(
                    f"imitation of team {name}: the loss became NaN or infinite; a smaller imitation.lr or "
                    "imitation.strength often mends this"
                )
            found |= {f"{place}/loss": loss, f"{place}/agreement": agreement}
        self._reports = {name: [] for name in self.pupils}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "pupils": {name: pupil.state_dict() for name, pupil in self.pupils.items()},
            "reports": self._reports,
            "strength": self._strength,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, pupil in self.pupils.items():
            pupil.load_state_dict(state["pupils"][name])
        self._reports, self._strength = state["reports"], state["strength"]


def require_student(team: str, algo: str, learner: Algorithm) -> Algorithm:
    """The team's learner, beneath its reward signals. UserError if its policy cannot be fitted to demonstrations."""
    learner = getattr(learner, "learner", learner)
    if not (isinstance(learner, Student) and isinstance(learner.policy, Fittable)):
        what = "learns nothing" if not learner.capabilities.learns else "cannot be fitted to demonstrations"
        raise UserError(
            f"team '{team}' is given imitation.demos, and algo={algo} {what}: leave out imitation.demos and "
            f"teams.{team}.imitation.demos, or choose an algorithm that learns (coterie list algos)"
        )
    return learner
