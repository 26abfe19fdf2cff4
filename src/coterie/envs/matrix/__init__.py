"""Matrix games: repeated and one-shot games of a table of payoffs, and the two-step game.

Where all share a payoff, the group is paid it once and agents' own rewards are zero: a team's return is the sum of the
payoffs. The others have two groups, `row` and `column`, with rewards of their own; with `teams.NAME.roles=[row,column]`
one team plays both. `best_return`, `random_return`, `random_returns`, `equilibria` and `equilibrium_returns` of a world
are exact.
"""

from __future__ import annotations

_HERE = "coterie.envs.matrix"

SCENARIOS: dict[str, str] = {
    "battle_of_sexes": f"{_HERE}.opponents:BattleOfSexes",
    "climbing": f"{_HERE}.cooperative:Climbing",
    "coordination": f"{_HERE}.cooperative:Coordination",
    "hawk_dove": f"{_HERE}.opponents:HawkDove",
    "matching_pennies": f"{_HERE}.opponents:MatchingPennies",
    "monotonic": f"{_HERE}.cooperative:Monotonic",
    "penalty": f"{_HERE}.cooperative:Penalty",
    "prisoners_dilemma": f"{_HERE}.opponents:PrisonersDilemma",
    "rock_paper_scissors": f"{_HERE}.opponents:RockPaperScissors",
    "stag_hunt": f"{_HERE}.opponents:StagHunt",
    "two_step": f"{_HERE}.two_step:TwoStep",
}
"""World to `module:Class`; the class bears its configuration as `Config`."""
