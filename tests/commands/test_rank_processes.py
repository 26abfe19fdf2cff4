from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.commands import train as training
from coterie.commands.rank_processes import joined, require_supported, with_launched_ranks
from coterie.config.resolve import resolve
from coterie.core.errors import UserError
from coterie.training.hooks import Callback

_SPREAD = ("env=particle/simple_spread", "algo=ippo", "num_envs=6")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ranks=4",), r"num_envs=6: cannot be divided among 4 ranks. Set num_envs=4"),
        (
            ("ranks=2", "algo=masac", "algo.buffer_storage=disk"),
            r"algo.buffer_storage=disk: not available with",
        ),
        (("ranks=2", "workers.count=2", "workers.kind=ray"), r"workers.kind=ray: not available with several ranks"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused(words: tuple[str, ...], message: str) -> None:
    config = resolve([*_SPREAD, *words]).config
    with pytest.raises(UserError, match=message):
        require_supported(config)
    require_supported(config.model_copy(update={"ranks": 1}))


def test_torchrun_decides_the_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert with_launched_ranks(resolve(_SPREAD)).config.ranks == 3
    with pytest.raises(UserError, match="ranks=2: torchrun started 3"):
        with_launched_ranks(resolve([*_SPREAD, "ranks=2"]))


def test_a_rank_without_a_gpu_says_so_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    config = resolve([*_SPREAD, "ranks=2", "device=cuda"]).config
    with pytest.raises(UserError, match="ranks=2: rank 1 has no GPU, there are 1 on this machine"), joined(config):
        pass


def test_callbacks_cannot_be_passed_to_other_processes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="callbacks: cannot be passed to the 2 processes"):
        training.train(resolve([*_SPREAD, "ranks=2", f"out={tmp_path / 'run'}"]), [Callback(on_end=print)])
    assert not (tmp_path / "run").exists()
