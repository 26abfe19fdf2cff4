"""How players are paid beside goals: checkpoints on the way to the goal, and a ball that lies well."""

from __future__ import annotations

from collections.abc import Sequence

CHECKPOINTS = 10
CHECKPOINT = 0.1


class Checkpoints:
    """What each of n players of a side has collected.

    A player who has the ball collects a checkpoint, worth 0.1, for each of ten distances to the other goal's middle,
    from 0.99 down to 0.19, that it gets within for the first time; when its side scores, it collects those that are
    left. Source: Kurach et al. 2020, section 3.3; thresholds as in the package's CheckpointRewardWrapper.
    """

    def __init__(self, n: int):
        self.collected = [0] * n

    def reset(self) -> None:
        self.collected = [0] * len(self.collected)

    def step(self, scored: bool, owns: bool, owner: int, active: Sequence[int], ball: tuple[float, float]) -> list[int]:
        """Checkpoints that each player collects in a step.

        scored: the side did in this step; owns, owner: whether it has the ball, and which of its players; active: the
        player that each one controls; ball: seen from the side.
        """
        away = ((ball[0] - 1) ** 2 + ball[1] ** 2) ** 0.5  # as the package rounds it
        new = []
        for i, player in enumerate(active):
            had = reached = self.collected[i]
            if scored:
                reached = CHECKPOINTS
            elif owns and player == owner:
                while reached < CHECKPOINTS and away <= 0.99 - 0.8 / (CHECKPOINTS - 1) * reached:
                    reached += 1
            self.collected[i] = reached
            new.append(reached - had)
        return new


def ball_value(x: float, y: float) -> float:
    """How well the ball at (x, y) lies for the side that plays towards positive x.

        max(x - |y|, x / 2) for x > 0, else min(x + |y|, x / 2)

    Between -1 and 1 on the field; odd in x.
    """
    return max(x - abs(y), x / 2) if x > 0 else min(x + abs(y), x / 2)
