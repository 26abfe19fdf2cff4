"""Matrix games: repeated and one-shot games with tables of payoffs, and the two-step game.

In cooperative games the group receives the common payoff once, and agents' own rewards are zero: a team's return is the
sum of the payoffs. The other games have two groups, `row` and `column`, with rewards of their own. With
`teams.NAME.roles=[row,column]` one team plays both. The values `best_return`, `random_return`, `random_returns`,
`equilibria` and `equilibrium_returns` of a world are exact.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.matrix"

SCENARIOS: dict[str, str] = {
    "battle_of_sexes": f"{_HERE}.general_sum:BattleOfSexes",
    "climbing": f"{_HERE}.cooperative:Climbing",
    "coordination": f"{_HERE}.cooperative:Coordination",
    "hawk_dove": f"{_HERE}.general_sum:HawkDove",
    "matching_pennies": f"{_HERE}.general_sum:MatchingPennies",
    "monotonic": f"{_HERE}.cooperative:Monotonic",
    "penalty": f"{_HERE}.cooperative:Penalty",
    "prisoners_dilemma": f"{_HERE}.general_sum:PrisonersDilemma",
    "rock_paper_scissors": f"{_HERE}.general_sum:RockPaperScissors",
    "stag_hunt": f"{_HERE}.general_sum:StagHunt",
    "two_step": f"{_HERE}.two_step:TwoStep",
}
"""World to `module:Class`. The class has its settings as `Config`."""
