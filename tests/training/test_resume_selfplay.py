"""Resumed self-play is bit-identical, including its pool and ratings."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.commands import train as training
from tinyruns import assert_same, checkpoint_state, log_entries, stop_at, train

RPS = (
    "env=matrix/rock_paper_scissors",
    "env.episode_limit=5",
    "selfplay.snapshot_interval=40",
    "selfplay.rating_episodes=8",
)
TAG = (
    "env=particle/simple_tag",
    "selfplay.snapshot_interval=40",
    "selfplay.rating_episodes=4",
    "alternate.every=100",
    "env.episode_limit=10",
)
CASES = {
    "one policy for both sides": (*RPS, "algo=ippo", "selfplay.opponents=uniform"),
    "prioritized, recurrent, on one side": (
        *(*RPS, "algo=ippo", "algo.rnn=gru", "algo.rnn_size=6", "selfplay.sides=first"),
        *("selfplay.opponents=pfsp", "selfplay.latest_ratio=0.2", "selfplay.window=2"),
    ),
    "alternating": (*TAG, "algo=mappo", "selfplay.opponents=recency"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_resumed_self_play_is_bit_identical(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, "steps=260", *CASES[case])
    with monkeypatch.context() as patch:
        stop_at(patch, 130)
        train(parts, "steps=260", *CASES[case])
    training.resume(parts, [])
    one, other = checkpoint_state(whole), checkpoint_state(parts)
    assert len(one["callbacks"]["selfplay"]["ladder"]["snapshots"]) >= 5
    assert_same(one, other)
    assert log_entries(whole) == log_entries(parts)
