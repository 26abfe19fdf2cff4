"""Matrix games: repeated and one-shot games with tables of payoffs, and the two-step game.

In cooperative games the group receives the common payoff once, and agents' own rewards are zero: a team's return is the
sum of the payoffs. The other games have two groups, `row` and `column`, with rewards of their own. With
`teams.NAME.roles=[row,column]` one team plays both. The values `best_return`, `random_return`, `random_returns`,
`equilibria` and `equilibrium_returns` of a world are exact.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.matrix"

SCENARIOS: dict[str, str] = {
    "battle_of_sexes": f"{_HERE}.games:BattleOfSexes",
    "climbing": f"{_HERE}.games:Climbing",
    "coordination": f"{_HERE}.games:Coordination",
    "hawk_dove": f"{_HERE}.games:HawkDove",
    "matching_pennies": f"{_HERE}.games:MatchingPennies",
    "monotonic": f"{_HERE}.games:Monotonic",
    "penalty": f"{_HERE}.games:Penalty",
    "prisoners_dilemma": f"{_HERE}.games:PrisonersDilemma",
    "rock_paper_scissors": f"{_HERE}.games:RockPaperScissors",
    "stag_hunt": f"{_HERE}.games:StagHunt",
    "two_step": f"{_HERE}.games:TwoStep",
}
"""World to `module:Class`. The class has its settings as `Config`."""
