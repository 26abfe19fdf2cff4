"""Self-play as a callback: makes snapshots, samples opponents and rates the snapshots.

In a symmetric game one team learns and the other acts as the learner and its snapshots do. In other games the teams
alternate: the team that does not learn acts as its own policy and its snapshots do.

Sources: Bansal et al. 2018 (opponents from the past), Vinyals et al. 2019 (prioritized by win rate), Baker et al. 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.config.schema import SelfPlayConfig
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.functional.ratings import pfsp_probs, recency_probs, uniform_probs
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import RemappedPolicy
from coterie.ranks.ranks import ONE, Ranks
from coterie.runs.progress import PeriodicProgress
from coterie.training.callback import ActiveTeams, TrainerCallback
from coterie.training.collector import Collector
from coterie.training.episodes import FinishedEpisodes
from coterie.training.evaluation import PATIENCE, Evaluator, evaluate
from coterie.training.opponents import (
    CURRENT_POLICY,
    EloLadder,
    OpponentPolicy,
    RatedSnapshot,
    SnapshotPool,
    score_by_opponent,
    win_scores,
)
from coterie.training.rank_episodes import episodes_of_first_rank

declare(
    Metric("selfplay/elo", "Elo", "rating of the newest snapshot; the untrained policy has 0", "up"),
    Metric("selfplay/elo_error", "Elo", "standard error of that rating", "down"),
    Metric("selfplay/win_rate", "share", "win rate since the last log entry; draws count half", "up"),
    Metric("selfplay/pool", "", "snapshots that opponents are sampled from", better=None, combine="last"),
)


@dataclass(frozen=True)
class SelfPlayTeams:
    """The two teams that play against each other.

    Attributes:
        policies: The policies that learn, by team.
        behavior_policies: The policies that collect the rollouts of teams that learn.
        modes: Action selection of opponents in training, by team.
        rating_modes: Action selection of both teams in rating games.
        shared_policy: True if the second team acts with the policy of the first.
    """

    policies: dict[str, Policy]
    behavior_policies: dict[str, Policy]
    modes: dict[str, Mode]
    rating_modes: dict[str, Mode]
    shared_policy: bool

    def opponent_of(self, team: str) -> str:
        """Returns the other team."""
        first, second = self.policies
        return second if team == first else first

    def snapshot_owners(self) -> dict[str, str]:
        """Returns whose snapshots each team acts as when it does not learn."""
        first, second = self.policies
        return {second: first} if self.shared_policy else {first: first, second: second}


class SelfPlayCallback(TrainerCallback):
    """Trains one team at a time against the current policy and past snapshots of the other team.

    Args:
        config: Settings, with a snapshot interval.
        teams: The two teams.
        active_teams: Decides which team learns.
        collector: Its policies are replaced by opponents.
        evaluator: Rating games are played in its environments.
        seed: Seed of the rating games.
        ranks: Ranks that train together.
    """

    name = "selfplay"

    def __init__(
        self,
        config: SelfPlayConfig,
        teams: SelfPlayTeams,
        *,
        active_teams: ActiveTeams,
        collector: Collector,
        evaluator: Evaluator,
        seed: int,
        ranks: Ranks = ONE,
    ):
        assert config.snapshot_interval is not None
        self._config, self._snapshot_interval = config, config.snapshot_interval
        self._teams, self._active_teams, self._seed = teams, active_teams, seed
        self._collector, self._evaluator, self._ranks = collector, evaluator, ranks
        self._owners = teams.snapshot_owners()
        # One more than opponents are sampled from: the oldest finishes the episodes that it has started.
        self._pools = {
            name: SnapshotPool(teams.policies[name], config.window + 1) for name in dict.fromkeys(self._owners.values())
        }
        current_only = config.opponents == "latest"
        self.opponents = {team: self._opponent_policy(team, teams.modes, current_only) for team in self._owners}
        """Policies that act in training, by team that does not learn."""
        self.rating_opponents = {team: self._opponent_policy(team, teams.rating_modes, False) for team in self._owners}
        """Policies that act in rating games and evaluations, by team that does not learn."""
        self.ladder = EloLadder()
        # Score and number of games against each snapshot, discounted, by owner of the snapshot.
        self._win_rates: dict[str, dict[int, list[float]]] = {name: {} for name in self._pools}
        self._recent = [0.0, 0.0]  # score and number of games since the last log entry
        self._last_snapshot = 0  # environment steps
        self._learner = ""

    def _opponent_policy(self, team: str, modes: dict[str, Mode], current_only: bool) -> OpponentPolicy:
        owner = self._owners[team]
        remapped = RemappedPolicy(self._spec(team), self._teams.policies[owner], modes[owner])
        return OpponentPolicy(self._pools[owner], remapped, current_only)

    # ---------------------------------------------------------------------------------------------------- callback

    def on_training_start(self) -> Sequence[str]:
        for name in self._pools:
            self._add_snapshot(name, 0)
        self._set_policies()
        return ()

    def on_update(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        learner = self._learner
        opponent = self._teams.opponent_of(learner)
        self._update_win_rates(learner, opponent, finished)
        if self._teams.shared_policy:
            self._pools[learner].refresh()
        is_due = steps // self._snapshot_interval > self._last_snapshot // self._snapshot_interval
        if not is_due or self.waits_for_episodes(learner, opponent):
            return ()
        self._last_snapshot = steps
        return self._rate_and_add_snapshot(learner, steps)

    def on_rollout_end(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        if self._active_teams.learning[0] != self._learner:
            self._pools[self._learner].refresh()
            self._set_policies()
        self._set_probabilities(self._teams.opponent_of(self._learner))
        return ()

    def on_metrics(self, steps: int, metrics: Mapping[str, float]) -> Sequence[str]:
        return ()

    def metrics(self, steps: int, entry: Mapping[str, float]) -> dict[str, float]:
        score, games = self._recent
        self._recent = [0.0, 0.0]
        found = {"selfplay/win_rate": score / games} if games else {}
        rating, error = self.ladder.ratings()
        for name, pool in self._pools.items():
            team = "" if len(self._pools) == 1 else f"{name}/"
            newest = self.ladder.index(name, pool.created - 1)
            found[f"selfplay/{team}elo"] = float(rating[newest])
            found[f"selfplay/{team}elo_error"] = float(error[newest])
            found[f"selfplay/{team}pool"] = min(len(pool.numbers) - 1, self._config.window)
        return found

    # --------------------------------------------------------------------------------------------------- opponents

    def _set_policies(self) -> None:
        """Makes the learning team act with its policy and the other team with opponents."""
        self._learner = self._active_teams.learning[0]
        if len(self._active_teams.learning) > 1:
            raise UserError(
                f"self-play trains one team at a time, but {' and '.join(self._active_teams.learning)} learn at the "
                "same time. Set alternate.every=STEPS."
            )
        opponent = self._teams.opponent_of(self._learner)
        teams, learner = self._teams, self._learner
        self._collector.set_policies({learner: teams.behavior_policies[learner], opponent: self.opponents[opponent]})
        self._evaluator.set_policies({learner: teams.policies[learner], opponent: self.rating_opponents[opponent]})
        self._set_probabilities(opponent)

    def waits_for_episodes(self, learner: str, opponent: str) -> bool:
        """Returns True if an episode against the snapshot that the next one replaces is not finished yet."""
        slot = self._pools[learner].next_replaced_slot
        if not self._teams.shared_policy or slot is None:
            return False
        return self._ranks.any(self.opponents[opponent].is_playing(slot, self._collector.hidden_state(opponent)))

    def _set_probabilities(self, team: str) -> None:
        """Sets the probabilities of a team's opponents: as configured in training, uniform in rating games."""
        pool, config = self._pools[self._owners[team]], self._config
        order = pool.oldest_first()[-config.window :]
        probabilities = torch.zeros(len(pool.numbers))
        probabilities[order] = uniform_probs(len(order))
        self.rating_opponents[team].probabilities = probabilities.to(pool.device)
        if config.opponents == "latest":
            probabilities = torch.zeros(len(pool.numbers))
            probabilities[0] = 1.0
        else:
            if config.opponents == "recency":
                probabilities[order] = recency_probs(len(order))
            elif config.opponents == "pfsp":
                win_rate = self._win_rate(self._owners[team], [pool.numbers[slot] for slot in order])
                probabilities[order] = pfsp_probs(win_rate, config.pfsp_exponent)
            probabilities = probabilities * (1 - config.latest_ratio)
            probabilities[0] = config.latest_ratio
        self.opponents[team].probabilities = probabilities.to(pool.device)

    def _win_rate(self, owner: str, numbers: Sequence[int]) -> Tensor:
        """Returns the learner's win rate against snapshots; 0.5 against those that it has not met."""
        rates = self._win_rates[owner]
        return torch.tensor([rates[n][0] / rates[n][1] if n in rates else 0.5 for n in numbers])

    def _update_win_rates(self, learner: str, opponent: str, finished: FinishedEpisodes) -> None:
        """Adds the learner's results against each opponent; recent episodes have more weight."""
        if not len(finished):
            return
        score = win_scores(finished, self._spec(learner), self._spec(opponent))
        rates = self._win_rates[self._owners[opponent]]
        for number, total, games in score_by_opponent(finished.labels[opponent], score):
            self._recent = [self._recent[0] + total, self._recent[1] + games]
            if number != CURRENT_POLICY:
                kept = (1 - 1 / self._config.win_rate_episodes) ** games
                before = rates.get(number, [0.5, 1.0])
                rates[number] = [before[0] * kept + total, before[1] * kept + games]

    def _spec(self, team: str) -> TeamSpec:
        return self._collector.policies[team].team

    # --------------------------------------------------------------------------------------------------- snapshots

    def _rate_and_add_snapshot(self, learner: str, steps: int) -> Sequence[str]:
        """Plays rating games and makes a snapshot of the learner if its win rate suffices."""
        opponent = self._teams.opponent_of(learner)
        play = partial(
            evaluate,
            self._evaluator.env,
            self._evaluator.policies,
            episodes=self._config.rating_episodes,
            modes=self._teams.rating_modes,
            seed=seed_of(self._seed, "ladder", steps),
            patience=PATIENCE,
            on_progress=PeriodicProgress(self.notify, "rating games"),
        )
        games = episodes_of_first_rank(lambda: play().episodes, self._ranks)
        score = win_scores(games, self._spec(learner), self._spec(opponent))
        win_rate, required = float(score.mean()), self._config.promotion_win_rate
        if required is not None and win_rate < required:
            return [f"no snapshot at {steps:,} steps: win rate {win_rate:.2f} is below selfplay.promotion_win_rate"]
        number = self._add_snapshot(learner, steps)
        index = self.ladder.index(learner, number)
        for other, total, count in score_by_opponent(games.labels[opponent], score):
            other_index = self.ladder.index(self._owners[opponent], other)
            self.ladder.add_result(index, other_index, score=total, games=count)
        return ()

    def _add_snapshot(self, team: str, steps: int) -> int:
        number = self._pools[team].add()
        self.ladder.add(RatedSnapshot(team, number, steps))
        return number

    def ratings(self) -> dict[str, Callable[[], float]]:
        """Returns the functions that return the rating of each team's newest snapshot, to choose best checkpoints."""
        return {name: partial(self._rating, name) for name in self._pools}

    def _rating(self, team: str) -> float:
        rating, _ = self.ladder.ratings()
        return float(rating[self.ladder.index(team, self._pools[team].created - 1)])

    def state_dict(self) -> dict[str, Any]:
        return {
            "pools": {name: pool.state_dict() for name, pool in self._pools.items()},
            "ladder": self.ladder.state_dict(),
            "win_rates": {name: [[n, *rate] for n, rate in rates.items()] for name, rates in self._win_rates.items()},
            "recent": self._recent,
            "last_snapshot": self._last_snapshot,
            "learner": self._learner,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, pool in self._pools.items():
            pool.load_state_dict(state["pools"][name])
        self.ladder.load_state_dict(state["ladder"])
        self._win_rates = {name: {int(n): [w, g] for n, w, g in rates} for name, rates in state["win_rates"].items()}
        self._recent, self._last_snapshot = list(state["recent"]), state["last_snapshot"]
        self._active_teams.activate([state["learner"]])
        self._set_policies()
