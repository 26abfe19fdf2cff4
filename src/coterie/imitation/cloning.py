"""Behavior cloning: trains policies on demonstrations before the first rollout and after every update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from coterie.algos.algorithm import Algorithm, CloningLearner
from coterie.config.imitation import ImitationConfig
from coterie.core.errors import NonFiniteError, UserError
from coterie.core.metrics import Metric, declare
from coterie.functional.statistics import masked_mean
from coterie.imitation.demo_batches import DemoBatches, require_same_demos
from coterie.imitation.demonstrations import Demos
from coterie.policies.network_policy import CloningOptions, NetworkPolicy
from coterie.runs.progress import PeriodicProgress
from coterie.training.callback import ActiveTeams, TrainerCallback
from coterie.training.episodes import FinishedEpisodes

declare(
    Metric("imitation/loss", "", "behavior-cloning loss after updates, mean over gradient steps", "down"),
    Metric("imitation/accuracy", "share", "demonstrated actions that are the policy's most likely ones", "up"),
    Metric(
        "imitation/weight",
        "",
        "learning rate of the steps after updates relative to the full one",
        better=None,
        combine="last",
    ),
)

_MAX_EVALUATED = 65_536
"""Timesteps on which the accuracy after pretraining is computed; a batch if there are more."""
_CHECK_INTERVAL = 100
"""Gradient steps between two checks of the loss during pretraining."""


class BehaviorCloner:
    """Trains one team's policy on demonstrations.

    Args:
        algorithm: The team's algorithm, a `CloningLearner`.
        config: Settings.
        demos: The demonstrations.
        default_lr: Learning rate if the settings have none.
        seed: Seed of the sampling.
        device: Device of the policy.
    """

    def __init__(
        self,
        algorithm: Any,
        config: ImitationConfig,
        demos: Demos,
        *,
        default_lr: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.config, self.lr = config, config.lr or default_lr
        self.policy = cast(NetworkPolicy, algorithm.policy)
        self._learner = cast(CloningLearner, algorithm)
        self._optimizer = self._learner.cloning_optimizer()
        self.batches = DemoBatches(
            demos,
            self.policy.team,
            recurrent=bool(algorithm.policy.initial_hidden_state(1)),
            timesteps=config.batch_size,
            seed=seed,
            device=device,
        )
        self._digest = demos.digest
        self._manner = CloningOptions(config.margin, config.fit_std)

    def pretrain(self, on_progress: Callable[[int, int], None]) -> str:
        """Trains before the first rollout and returns a line about the result.

        Args:
            on_progress: Called now and then with the gradient steps taken and the total.
        """
        batches, steps = self.batches, self.config.pretraining_steps(self.batches.timesteps)
        self.policy.obs_normalizer.update(batches.obs, batches.valid)
        for step in range(steps):
            report = self.step(1.0)
            if step % _CHECK_INTERVAL == _CHECK_INTERVAL - 1 or step == steps - 1:
                self._require_finite(report)
                on_progress(step + 1, steps)
        self._optimizer.update_targets()
        with torch.no_grad():
            batch = batches.all() if batches.timesteps <= _MAX_EVALUATED else batches.draw()
            accuracy = float(masked_mean(self._learner.cloning_loss(batch, self._manner)[1].float(), batch.valid))
        return (
            f"imitation: {steps:,} gradient steps on {batches.episodes:,} episodes ({batches.timesteps:,} timesteps), "
            f"accuracy {accuracy:.1%}"
        )

    def step(self, weight: float) -> Tensor:
        """Takes one gradient step with a learning rate scaled by `weight`. Returns loss and accuracy [2]."""
        batch = self.batches.draw()
        losses, matches = self._learner.cloning_loss(batch, self._manner)
        loss = masked_mean(losses, batch.valid)
        self._optimizer.step(loss, self.lr * weight)
        return torch.stack([loss.detach(), masked_mean(matches.float(), batch.valid)])

    def _require_finite(self, report: Tensor) -> None:
        if not bool(report.isfinite().all()):
            raise NonFiniteError(
                f"imitation of team {self.policy.team.name}: the loss is NaN or infinite. Try a smaller imitation.lr."
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns everything needed to resume besides the policy."""
        return {
            "optimizer": self._optimizer.optimizer.state_dict(),
            "batches": self.batches.state_dict(),
            "digest": self._digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`.

        Raises:
            UserError: If the demonstrations are not those that the run was started with.
        """
        require_same_demos(self.config.demos, state["digest"], self._digest)
        self._optimizer.optimizer.load_state_dict(state["optimizer"])
        self.batches.load_state_dict(state["batches"])


class BehaviorCloningCallback(TrainerCallback):
    """Trains policies on demonstrations: before the first rollout, and after every update.

    Args:
        cloners: Behavior cloning by team.
        active_teams: Teams that do not learn currently are not trained.
        total_steps: Environment steps of the run.
        with_team_names: True if metrics contain the team's name.
    """

    name = "imitation"

    def __init__(
        self,
        cloners: dict[str, BehaviorCloner],
        active_teams: ActiveTeams,
        *,
        total_steps: int,
        with_team_names: bool,
    ) -> None:
        self.cloners, self._active_teams = cloners, active_teams
        self._total_steps, self._with_team_names = total_steps, with_team_names
        self._reports: dict[str, list[Tensor]] = {name: [] for name in cloners}
        self._weight: dict[str, float] = {}

    def on_training_start(self) -> Sequence[str]:
        lines = []
        for name, cloner in self.cloners.items():
            line = cloner.pretrain(PeriodicProgress(self.notify, "imitation before the first rollout", unit="steps"))
            lines.append(f"team {name}: {line}" if self._with_team_names else line)
        return lines

    def on_update(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        for name, cloner in self.cloners.items():
            weight = cloner.config.weight_at(min(1.0, steps / self._total_steps))
            self._weight[name] = weight
            if weight > 0 and name in self._active_teams.learning:
                self._reports[name] += [cloner.step(weight) for _ in range(cloner.config.gradient_steps)]
        return ()

    def on_rollout_end(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        return ()

    def on_metrics(self, steps: int, metrics: Mapping[str, float]) -> Sequence[str]:
        return ()

    def metrics(self, steps: int, entry: Mapping[str, float]) -> dict[str, float]:
        """Returns means since the last log entry. One transfer to the host."""
        found = {}
        for name, reports in self._reports.items():
            area = f"imitation/{name}" if self._with_team_names else "imitation"
            if self.cloners[name].config.weight > 0:
                found[f"{area}/weight"] = self._weight.get(name, 0.0)
            if not reports:
                continue
            loss, accuracy = torch.stack(reports).mean(0).tolist()
            if not abs(loss) < float("inf"):
                raise NonFiniteError(
                    f"imitation of team {name}: the loss is NaN or infinite. Try a smaller imitation.lr or "
                    "imitation.weight."
                )
            found |= {f"{area}/loss": loss, f"{area}/accuracy": accuracy}
        self._reports = {name: [] for name in self.cloners}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "cloners": {name: cloner.state_dict() for name, cloner in self.cloners.items()},
            "reports": self._reports,
            "weight": self._weight,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, cloner in self.cloners.items():
            cloner.load_state_dict(state["cloners"][name])
        self._reports, self._weight = state["reports"], state["weight"]


def require_cloneable(team: str, algo: str, algorithm: Algorithm) -> None:
    """Raises UserError if the policy of a team's algorithm does not support behavior cloning."""
    if not (isinstance(algorithm, CloningLearner) and isinstance(algorithm.policy, NetworkPolicy)):
        why = "does not learn" if not algorithm.capabilities.learns else "does not support behavior cloning"
        raise UserError(
            f"team '{team}' has imitation.demos, but algo={algo} {why}. Remove imitation.demos and "
            f"teams.{team}.imitation.demos, or choose an algorithm that learns (coterie list algos)."
        )
