"""Records outputs of the real engine and the package's wrappers, for tests without the engine.

python tests/helpers/football_record.py        # writes tests/helpers/football.json
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import coterie
from coterie.core.types import Action

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "helpers" / "football.json"
PICTURES = ROOT / "docs" / "pictures" / "football"
SHOWN = {"academy_3_vs_1_with_keeper": 14, "5_vs_5": 60}
"""Tasks with an image, and the number of steps of dribbling to the right before it."""
PLAYERS = {"academy_3_vs_1_with_keeper": (3, 1), "1_vs_1_easy": (1, 1), "5_vs_5": (4, 4)}
KEPT = ("left_team", "left_team_direction", "right_team", "right_team_direction", "ball", "ball_direction")
KEPT += ("ball_owned_team", "ball_owned_player", "game_mode", "score", "steps_left")
KEPT += ("left_agent_controlled_player", "right_agent_controlled_player")


def record(scenario: str, players: tuple[int, int], steps: int, every: int) -> list[dict[str, Any]]:
    """Records raw observations, observations of both sides, and checkpoint rewards every `every` steps.

    All players run to the goal and shoot when the ball is near it, so that goals occur.
    """
    from gfootball.env.config import Config
    from gfootball.env.football_env import FootballEnv
    from gfootball.env.wrappers import CheckpointRewardWrapper, Simple115StateWrapper

    left, right = players
    definition = f"agent:left_players={left},right_players={right}"
    env = FootballEnv(Config({"level": scenario, "players": [definition], "game_engine_random_seed": 7}))
    wrapper = CheckpointRewardWrapper(env)
    seen, records = env.reset(), []
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
                "reward": [float(x) for x in (own - reward)[part]],
            }
            if any(walk["reward"]) or t % every == 0:
                walks[name].append(walk)
        if t % every == 0 or done:
            raw = env._env.observation()
            shown = Simple115StateWrapper.convert_observation(seen, True)
            records.append(
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
    return records


def picture(scenario: str, steps: int) -> Path:
    env = coterie.make(f"football/{scenario}", seed=1)
    env.reset()
    for _ in range(steps):
        env.step({"left": Action(torch.full((1, env.spec.n, 1), 5))})
    path = PICTURES / f"{scenario}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = Image.fromarray(env.render(0, 640)).quantize(96, dither=Image.Dither.NONE)
    drawn.save(path, optimize=True)
    env.close()
    return path


def main() -> None:
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import gfootball  # noqa: F401
    records = [row for name, players in PLAYERS.items() for row in record(name, players, 200, 60)]
    FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in records) + "\n]\n", encoding="utf-8")
    print(FILE, *(picture(name, steps) for name, steps in SHOWN.items()), sep="\n")


if __name__ == "__main__":
    main()
