"""Self-play as a guide of a run: makes snapshots, draws opponents, rates what was made.

In a game of equal sides one team learns and the other acts as the learner and its snapshots do. In other games the
teams take turns: whoever does not learn at present acts as its own policy and its snapshots do.

Sources: Bansal et al. 2018 (opponents from the past), Vinyals et al. 2019 (prioritised by win rate), Baker et al. 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coterie.borrowed import Borrowed
from coterie.collect import Collector
from coterie.episodes import Finished
from coterie.errors import UserError
from coterie.evaluation import Evaluator, evaluate
from coterie.guide import Guide, Roster
from coterie.math.ratings import prioritised, recency, uniform
from coterie.metrics import Metric, declare
from coterie.policy import Mode, Policy
from coterie.progress import Waiting
from coterie.schema import SelfPlayConfig
from coterie.seeds import seed_of
from coterie.selfplay.ladder import Ladder, Player, outcome, tally
from coterie.selfplay.opponents import Opponents
from coterie.selfplay.pool import LIVE, Pool
from coterie.types import TeamSpec

declare(
    Metric("selfplay/elo", "Elo", "rating of the newest snapshot on the ladder; the untrained policy's is 0", "up"),
    Metric("selfplay/elo_error", "Elo", "standard error of that rating", "down"),
    Metric("selfplay/win_rate", "share", "share won of the episodes since the last row, draws half", "up"),
    Metric("selfplay/pool", "", "snapshots that opponents are drawn from", None, "last"),
)


class SelfPlay(Guide):
    """See the module. One team learns at a time, its opponent is the other of the two teams."""

    name = "selfplay"

    def __init__(
        self,
        config: SelfPlayConfig,
        every: int,
        policies: dict[str, Policy],
        modes: dict[str, Mode],
        judging: dict[str, Mode],
        equal: bool,
        roster: Roster,
        collector: Collector,
        evaluator: Evaluator,
        seed: int,
    ):
        """policies: of both teams, as they learn; modes, judging: how actions are picked by opponents, and by all in
        games that rate snapshots; equal: the second team acts as the first does; evaluator: where these games are
        played; seed: of them.
        """
        self._config, self._every, self._policies = config, every, policies
        self._modes, self._judging = modes, judging
        self._equal, self._roster, self._seed = equal, roster, seed
        self._collector, self._evaluator = collector, evaluator
        first, second = policies
        owners = {second: first} if equal else {first: first, second: second}
        self._owner = owners  # whose snapshots a team acts as when it does not learn
        # One more than are drawn from: the oldest plays the episodes out that it has begun.
        self._pools = {name: Pool(policies[name], config.window + 1) for name in dict.fromkeys(owners.values())}
        self._opponents = {team: self._build(team, modes, config.opponents == "latest") for team in owners}
        self._judges = {team: self._build(team, judging, False) for team in owners}
        self.ladder = Ladder()
        self._rates: dict[str, dict[int, list[float]]] = {name: {} for name in self._pools}
        self._recent = [0.0, 0.0]  # won and played since the last row
        self._last = 0  # steps at the last snapshot
        self._learner = ""

    def _build(self, team: str, modes: dict[str, Mode], live_only: bool) -> Opponents:
        owner = self._owner[team]
        spec = self._collector.policies[team].team
        return Opponents(self._pools[owner], Borrowed(spec, self._policies[owner], modes[owner]), live_only)

    # ------------------------------------------------------------------------------------------------------- a run

    def begin(self) -> Sequence[str]:
        for name in self._pools:
            self._snapshot(name, 0)
        self._seat()
        return ()

    def after_window(self, steps: int, finished: Finished) -> Sequence[str]:
        lines: list[str] = []
        learner = self._learner
        other = self._other(learner)
        self._count(learner, other, finished)
        if self._equal:
            self._pools[learner].refresh()
        if steps // self._every > self._last // self._every and not self._needed(learner, other):
            self._last = steps
            lines += self._due(learner, steps)
        if self._roster.learning[0] != learner:
            self._pools[learner].refresh()
            self._seat()
        self._weigh(self._other(self._learner))
        return lines

    def hear(self, steps: int, row: Mapping[str, float]) -> Sequence[str]:
        return ()

    def metrics(self) -> dict[str, float]:
        won, played = self._recent
        self._recent = [0.0, 0.0]
        found = {"selfplay/win_rate": won / played} if played else {}
        rating, error = self.ladder.ratings()
        for name, pool in self._pools.items():
            team = "" if len(self._pools) == 1 else f"{name}/"
            place = self.ladder.place(name, pool.made - 1)
            found[f"selfplay/{team}elo"] = float(rating[place])
            found[f"selfplay/{team}elo_error"] = float(error[place])
            found[f"selfplay/{team}pool"] = min(len(pool.numbers) - 1, self._config.window)
        return found

    # ------------------------------------------------------------------------------------------------- its members

    def _other(self, team: str) -> str:
        first, second = self._policies
        return second if team == first else first

    def _seat(self) -> None:
        """Puts who acts in their places: the learner's policy as it is, the other team as opponents."""
        self._learner = self._roster.learning[0]
        if len(self._roster.learning) > 1:
            raise UserError(
                f"self-play trains one team at a time, and {' and '.join(self._roster.learning)} learn at once: "
                "set turns.every=STEPS"
            )
        other = self._other(self._learner)
        mine = {self._learner: self._policies[self._learner]}
        self._collector.seat(mine | {other: self._opponents[other]})
        self._evaluator.seat(mine | {other: self._judges[other]})
        self._weigh(other)

    def _needed(self, learner: str, other: str) -> bool:
        """Whether an episode is under way against the snapshot that the next one replaces: it is waited for."""
        slot = self._pools[learner].replaced
        return self._equal and slot is not None and self._opponents[other].plays(slot, self._collector.memory(other))

    def _weigh(self, team: str) -> None:
        """Sets the chances of a team's opponents, as configured, and of its judges, all snapshots alike."""
        pool, config = self._pools[self._owner[team]], self._config
        order = pool.oldest_first()[-config.window :]
        chances = torch.zeros(len(pool.numbers))
        chances[order] = uniform(len(order))
        self._judges[team].chances = chances.to(pool.device)
        if config.opponents == "latest":
            chances = torch.zeros(len(pool.numbers))
            chances[0] = 1.0
        else:
            if config.opponents == "recency":
                chances[order] = recency(len(order))
            elif config.opponents == "pfsp":
                rates = self._rates[self._owner[team]]
                won = [rates[n][0] / rates[n][1] if n in rates else 0.5 for n in (pool.numbers[i] for i in order)]
                chances[order] = prioritised(torch.tensor(won), config.power)
            chances = chances * (1 - config.latest)
            chances[0] = config.latest
        self._opponents[team].chances = chances.to(pool.device)

    def _count(self, learner: str, other: str, finished: Finished) -> None:
        """Notes how the learner did against each opponent; later episodes count more."""
        if not len(finished.length):
            return
        won = outcome(finished, self._spec(learner), self._spec(other))
        rates = self._rates[self._owner[other]]
        for number, wins, games in tally(finished.labels[other], won):
            self._recent = [self._recent[0] + wins, self._recent[1] + games]
            if number != LIVE:
                kept = (1 - 1 / self._config.memory) ** games
                before = rates.get(number, [0.5, 1.0])
                rates[number] = [before[0] * kept + wins, before[1] * kept + games]

    def _spec(self, team: str) -> TeamSpec:
        return self._collector.policies[team].team

    def _due(self, learner: str, steps: int) -> Sequence[str]:
        """A snapshot of whoever learns, if it passes the gate, rated by games against the other's snapshots."""
        other = self._other(learner)
        seed = seed_of(self._seed, "ladder", steps)
        arena, games = self._evaluator.env, self._config.games
        told = Waiting(self.say, "games that rate a snapshot")
        games = evaluate(arena, self._evaluator.policies, games, self._judging, seed, told=told).episodes
        won = outcome(games, self._spec(learner), self._spec(other))
        if self._config.gate is not None and float(won.mean()) < self._config.gate:
            return [f"no snapshot at {steps:,} steps: won {float(won.mean()):.2f} of the games, less than the gate"]
        number = self._snapshot(learner, steps)
        mine = self.ladder.place(learner, number)
        for opponent, wins, played in tally(games.labels[other], won):
            self.ladder.record(mine, self.ladder.place(self._owner[other], opponent), wins, played)
        return ()

    def _snapshot(self, team: str, steps: int) -> int:
        number = self._pools[team].add()
        self.ladder.enter(Player(team, number, steps))
        return number

    def strength(self) -> float:
        """What the best checkpoint is best at: the ratings of every team's newest snapshot, added up."""
        rating, _ = self.ladder.ratings()
        return sum(float(rating[self.ladder.place(name, pool.made - 1)]) for name, pool in self._pools.items())

    def state_dict(self) -> dict[str, Any]:
        return {
            "pools": {name: pool.state_dict() for name, pool in self._pools.items()},
            "ladder": self.ladder.state_dict(),
            "rates": {name: [[n, *rate] for n, rate in rates.items()] for name, rates in self._rates.items()},
            "recent": self._recent,
            "last": self._last,
            "learner": self._learner,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, pool in self._pools.items():
            pool.load_state_dict(state["pools"][name])
        self.ladder.load_state_dict(state["ladder"])
        self._rates = {name: {int(n): [w, g] for n, w, g in rates} for name, rates in state["rates"].items()}
        self._recent, self._last = list(state["recent"]), state["last"]
        self._roster.let([state["learner"]])
        self._seat()
