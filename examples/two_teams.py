"""Two teams with an algorithm each; then one trains against the other's frozen policy.

python examples/two_teams.py [STEPS]
"""

import sys

import coterie

steps = sys.argv[1] if len(sys.argv) > 1 else "500k"
tag = {"env": "particle/simple_tag", "env.episode_limit": 50, "rollout_length": 51, "steps": steps}

together = coterie.train(algo="mappo", **tag, **{"teams.agent.algo": "ippo", "teams.agent.algo.lr": 1e-3})
alone = coterie.train(algo="ippo", **tag, **{"teams.adversary": {"algo": "frozen", "run": str(together.run)}})

for name, run in (("both learning", together), ("prey against frozen pursuers", alone)):
    teams = coterie.evaluate(run, episodes=200)["teams"]
    print(name, {team: round(result["return_mean"], 1) for team, result in teams.items()})
