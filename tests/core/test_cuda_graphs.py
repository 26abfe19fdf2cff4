"""The setting `cuda_graphs` is refused in one line where it has no effect; for graphs see `tests/gpu`."""

import pytest
import torch

from coterie.algos import registry
from coterie.assembly.arithmetic import configure_arithmetic
from coterie.assembly.environment import load_teams
from coterie.assembly.learners import make_algorithms
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from fakecuda import fake_cuda

CPU = torch.device("cpu")
ABLE = "ppo, ippo, mappo, ia2c, maa2c, vdac, poca, coma, ddqn, iql, vdn, qmix, qplex, wqmix, qfix, ddpg, maddpg, td3"
ABLE += ", matd3, sac, masac, mappo/original"


@pytest.fixture(autouse=True)
def built_in(monkeypatch):
    """Only Coterie's own algorithms, whatever other tests have registered."""
    names = set(ABLE.split(", ")) | {"random", "scripted", "frozen"}
    for table in ("ALGOS", "VARIANTS"):
        known = getattr(registry, table)
        monkeypatch.setattr(registry, table, {name: known[name] for name in known if name in names})


def configured(*overrides):
    config = resolve(["env=particle/simple_spread", *overrides]).config
    with fake_cuda():
        configure_arithmetic(config)
    return config


def test_graphs_are_off_by_default():
    for algo in ("ippo", "poca", "coma", "qmix", "maddpg", "masac", "mappo/original"):
        for setting, expected in ((), False), (("cuda_graphs=on",), True):
            config = configured(f"algo={algo}", "device=cuda", "num_envs=8", *setting)
            (learner,) = make_algorithms(config, load_teams(config, CPU), CPU).values()
            assert learner.cuda_graphs == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("algo=ippo", "device=cpu"), "CUDA graphs need a GPU (device=cpu). Use cuda_graphs=off or device=cuda."),
        (
            ("algo=ippo", "device=cuda", "ranks=2"),
            "exchanges between ranks are not captured (ranks=2). Use cuda_graphs=off or ranks=1.",
        ),
        (
            ("algo=random", "teams.agent.algo=frozen", "device=cuda"),
            f"random, frozen cannot capture gradient steps, only {ABLE} can. Use cuda_graphs=off.",
        ),
        (
            ("algo=random", "device=cuda"),
            f"random cannot capture gradient steps, only {ABLE} can. Use cuda_graphs=off.",
        ),
    ],
    ids=["cpu", "ranks", "teams", "random"],
)
def test_graphs_that_cannot_be_used_are_refused(overrides, message):
    with pytest.raises(UserError) as error:
        configured(*overrides, "cuda_graphs=on")
    assert str(error.value) == f"cuda_graphs=on: {message}"


def test_the_message_names_the_device_that_auto_selects(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError) as error:
        configure_arithmetic(resolve(["env=particle/simple_spread", "algo=ippo", "cuda_graphs=on"]).config)
    assert str(error.value) == (
        "cuda_graphs=on: CUDA graphs need a GPU (device=auto, which is cpu here). Use cuda_graphs=off or device=cuda."
    )
