"""Records what the real engine and the package's own wrappers say, for the tests that have no engine.

python tests/football/record.py        # writes tests/envs/football.json
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parents[1] / "envs" / "football.json"
PLAYERS = {"academy_3_vs_1_with_keeper": (3, 1), "1_vs_1_easy": (1, 1), "5_vs_5": (4, 4)}
KEPT = ("left_team", "left_team_direction", "right_team", "right_team_direction", "ball", "ball_direction")
KEPT += ("ball_owned_team", "ball_owned_player", "game_mode", "score", "steps_left")
KEPT += ("left_agent_controlled_player", "right_agent_controlled_player")


def record(scenario: str, players: tuple[int, int], steps: int, every: int) -> list[dict[str, Any]]:
    """One row every so many steps: the raw observation, what both sides' players see, and checkpoints paid on the way.

    Everybody shoots as soon as the ball is before the goal, and runs there otherwise, so that goals are among it.
    """
    from gfootball.env.config import Config
    from gfootball.env.football_env import FootballEnv
    from gfootball.env.wrappers import CheckpointRewardWrapper, Simple115StateWrapper

    left, right = players
    definition = f"agent:left_players={left},right_players={right}"
    env = FootballEnv(Config({"level": scenario, "players": [definition], "game_engine_random_seed": 7}))
    wrapper = CheckpointRewardWrapper(env)
    seen, rows = env.reset(), []
    walks: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    done = False
    for t in range(steps):
        if done:
            break
        ball = env._env.observation()["ball"]
        choice = 12 if abs(ball[0]) > 0.75 else (5, 13)[t % 2]
        seen, reward, done, _ = env.step([choice] * (left + right))
        before = [wrapper._collected_checkpoints.get(i, 0) for i in range(left + right)]
        own = wrapper.reward(reward.copy())
        for name, part in (("left", slice(0, left)), ("right", slice(left, left + right))):
            first = seen[part][0]
            walk = {
                "scored": bool(reward[part][0] == 1),
                "owns": bool(first["ball_owned_team"] == 0),
                "owner": int(first["ball_owned_player"]),
                "active": [int(o["active"]) for o in seen[part]],
                "ball": [float(x) for x in first["ball"][:2]],
                "before": before[part],
                "paid": [float(x) for x in (own - reward)[part]],
            }
            if any(walk["paid"]) or t % every == 0:
                walks[name].append(walk)
        if t % every == 0 or done:
            raw = env._env.observation()
            shown = Simple115StateWrapper.convert_observation(seen, True)
            rows.append(
                {
                    "task": scenario,
                    "raw": {key: np.asarray(raw[key]).tolist() for key in KEPT},
                    "left": [[float(f"{x:.9g}") for x in row] for row in shown[:left]],
                    "right": [[float(f"{x:.9g}") for x in row] for row in shown[left:]],
                    "walks": {name: list(found) for name, found in walks.items()},
                }
            )
            walks = {"left": [], "right": []}
    env.close()
    return rows


def main() -> None:
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import gfootball  # noqa: F401
    rows = [row for name, players in PLAYERS.items() for row in record(name, players, 200, 60)]
    FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    print(FILE, len(rows), sum(any(w["paid"]) for r in rows for own in r["walks"].values() for w in own))


if __name__ == "__main__":
    main()
