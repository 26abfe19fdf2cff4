"""Configurations of the kill campaign: every algorithm and every mode of training, each as a run of about a second."""

from __future__ import annotations

from pathlib import Path

SMALL = (
    *("num_envs=4", "steps=240", "algo.rollout_length=10", "threads=1", "device=cpu", "progress=off"),
    *(
        "eval.every=80",
        "eval.episodes=4",
        "eval.min_episodes=4",
        "eval.num_envs=4",
        "checkpoint.every=40",
        "log.tensorboard=false",
    ),
)
"""Settings of every run. Later settings replace earlier ones."""

SPREAD = ("env=particle/simple_spread", "env.episode_limit=10")
CONTINUOUS = (*SPREAD, "env.actions=continuous")
TAG = ("env=particle/simple_tag", "env.episode_limit=10")
SCISSORS = ("env=matrix/rock_paper_scissors", "env.episode_limit=5", "algo=ippo")
CARTPOLE = ("env=gym/CartPole-v1", "env.episode_limit=25")
PLATES = ("env=sparse/plates", "env.episode_limit=12")
NET = ("algo.hidden_sizes=[8]",)
EPOCHS = ("algo.epochs=2", "algo.num_minibatches=2")
REPLAY = ("algo.learning_starts=40", "algo.batch_size=4", "algo.buffer_size=200", "algo.gradient_steps=2")
PLAIN = ("algo.rnn=none",)
PLAIN_Q = (*PLAIN, "algo.obs_last_action=false")  # last actions require a recurrent network
GRU = ("algo.rnn=gru", "algo.rnn_size=4")
MAPPO, IPPO = ("algo=mappo", *NET, *EPOCHS), ("algo=ippo", *NET, *EPOCHS)
QMIX = ("algo=qmix", *NET, *REPLAY)
SNAPSHOTS = ("selfplay.snapshot_interval=60", "selfplay.rating_episodes=4")
LESSONS = (
    "curriculum.lessons=[{name: slow, parameters: {prey_speed: 0.25}, advance: {metric: progress, above: 0.25}},"
    "{name: fast, parameters: {prey_speed: {uniform: [0.5, 1]}},"
    " advance: {metric: rollout/agent/return_mean, above: -1e9, smoothing: 0.5, patience: 2, episodes: 10}},"
    "{name: full, parameters: {prey_speed: 1}}]"
)


def preparations(folder: Path) -> list[list[str]]:
    """Returns the commands that write what some configurations read: demonstrations, and a run with a policy."""
    policy = merged((*SMALL, *TAG, *MAPPO, "steps=40"))
    return [
        [
            "record",
            "--algo",
            "scripted",
            "--env",
            "sparse/plates",
            PLATES[1],
            "--out",
            str(folder / "demos.safetensors"),
        ],
        ["train", *policy, f"out={folder / 'policy'}"],
    ]


def configurations(folder: Path) -> dict[str, list[str]]:
    """Returns the settings of every configuration by name.

    Args:
        folder: Folder of the files that `preparations` writes.
    """
    found = _algorithms() | _modes() | _prepared(folder)
    return {name: merged((*SMALL, *settings)) for name, settings in found.items()}


def experiments() -> dict[str, list[str]]:
    """Returns the commands that start several runs, by name. `{out}` stands for their folder.

    They are not resumed by `coterie resume`, but by the same command.
    """
    settings = merged((*SMALL, *SPREAD, *IPPO, "steps=120"))
    return {
        "sweep, two jobs": ["train", "-m", *settings, "seed=0,1", "algo.lr=0.001,0.01", "out={out}", "--jobs", "2"],
        "search for settings": [
            *("tune", *settings, "algo.lr=log(1e-4,1e-2)", "algo.gamma=uniform(0.9,1)", "--trials", "3"),
            *("--seeds", "2", "--no-pruning", "--out", "{out}"),
        ],
    }


def merged(settings: tuple[str, ...]) -> list[str]:
    """Returns the settings without those that a later one replaces."""
    return list({setting.partition("=")[0]: setting for setting in settings}.values())


def _algorithms() -> dict[str, tuple[str, ...]]:
    """Every algorithm: feed-forward, with a GRU and, where it applies, with continuous actions."""
    found: dict[str, tuple[str, ...]] = {}
    sable = ("sable", "ff_sable")
    pqn = ("pqn", "pqn_vdn", "pqn_qmix")
    sequential = ("happo", "haa2c", "hatrpo")
    clipped = (
        *("ppo", "ippo", "mappo", "ia2c", "maa2c", *sequential),
        *("vdac", "seac", "pac", "poca", "mat", "mat_dec", *sable, "magpo"),
    )
    on_policy = {**dict.fromkeys((*clipped, *pqn), EPOCHS), "coma": ()}
    values = ("ddqn", "iql", "vdn", "qmix", "qplex", "qfix", "wqmix")
    off_policy = (*values, "ddpg", "maddpg", "td3", "matd3", "sac", "masac", "hasac")
    q_learning = {*values, *pqn}
    for algo, own in (on_policy | dict.fromkeys(off_policy, REPLAY)).items():
        settings = (f"algo={algo}", *NET, *own)
        found[algo] = (*SPREAD, *settings, *(PLAIN_Q if algo in q_learning else PLAIN))
        if algo not in ("mat", "sable", "ff_sable"):
            found[f"{algo}, GRU"] = (*SPREAD, *settings, *GRU)
        if algo not in {"coma", "pac", *q_learning}:
            found[f"{algo}, continuous"] = (*CONTINUOUS, *settings, *PLAIN)
    return found


def _modes() -> dict[str, tuple[str, ...]]:
    """Everything else that a run may contain."""
    return {
        "mappo/original": (
            *(*SPREAD, "algo=mappo/original", *NET, "algo.critic_hidden_sizes=[8]", "algo.num_minibatches=2"),
            *("algo.critic_time_chunks=1", "algo.sequence_length=5", "algo.batch_size=8"),
        ),
        "no learner": (*SPREAD, "algo=random"),
        "LSTM in sequences": (*SPREAD, *IPPO, "algo.rnn=lstm", "algo.rnn_size=4", "algo.sequence_length=5"),
        "normalized observations, unshared": (
            *(*SPREAD, *IPPO, "algo.share_params=none", "algo.normalize_obs=true", "algo.lr_schedule=linear"),
        ),
        "replay buffer on disk, priorities": (
            *(*SPREAD, *QMIX, *PLAIN_Q, "algo.buffer_storage=disk", "algo.priority_alpha=0.6"),
        ),
        "TensorBoard, metrics pending": (*SPREAD, *MAPPO, "log.tensorboard=true", "log.every=3"),
        "every checkpoint kept": (*SPREAD, *MAPPO, "checkpoint.keep=true"),
        "one checkpoint at the end": (*SPREAD, *MAPPO, "checkpoint.every=0"),
        "several teams": (
            *(*TAG, *MAPPO, "teams.agent.algo=ippo", "teams.agent.algo.hidden_sizes=[5]"),
            *("teams.agent.algo.rollout_length=20", "teams.adversary.algo.rollout_length=40"),
        ),
        "several teams, one scripted": (*TAG, *MAPPO, "teams.agent.algo=scripted"),
        "teams in turns": (*TAG, *MAPPO, "alternate.every=100"),
        "self-play, both sides": (*SCISSORS, *NET, *EPOCHS, *SNAPSHOTS, "selfplay.opponents=uniform"),
        "self-play, prioritized, GRU": (
            *(*SCISSORS, *NET, *EPOCHS, *SNAPSHOTS, *GRU, "selfplay.sides=first", "selfplay.opponents=pfsp"),
            *("selfplay.latest_ratio=0.2", "selfplay.window=2"),
        ),
        "self-play, alternating": (*TAG, *MAPPO, *SNAPSHOTS, "alternate.every=100", "selfplay.opponents=recency"),
        "curriculum": (*TAG, *MAPPO, "env.episode_limit=5", LESSONS),
        "random parameters": (*SPREAD, *MAPPO, "randomize={speed: {uniform: [0.5, 1.5]}}"),
        "curiosity and novelty, streams": (*SPREAD, *MAPPO, "rewards.icm={}", "rewards.rnd={}"),
        "curiosity and novelty, mixed": (*SPREAD, *QMIX, *PLAIN_Q, "rewards.icm={}", "rewards.rnd={}"),
        "Gymnasium": (*CARTPOLE, "algo=ppo", *NET, *EPOCHS),
        "worker processes": (*CARTPOLE, "algo=ppo", *NET, *EPOCHS, "workers.count=2"),
        "worker processes, double-buffered": (
            *(*CARTPOLE, "algo=ddqn", *NET, *REPLAY, "workers.count=1", "workers.overlap=true"),
        ),
        "Ray workers": (*CARTPOLE, "algo=ppo", *NET, *EPOCHS, "workers.count=2", "workers.kind=ray"),
        "two ranks": (*SPREAD, *MAPPO, "ranks=2"),
        "two ranks, GRU, replay buffer on disk": (*SPREAD, *QMIX, *GRU, "ranks=2", "algo.buffer_storage=disk"),
    }


def _prepared(folder: Path) -> dict[str, tuple[str, ...]]:
    """Demonstrations and policies of other runs."""
    demos = folder / "demos.safetensors"
    cloned = (f"imitation.demos={demos}", "imitation.steps=20", "imitation.batch_size=16", "imitation.weight=0.5")
    return {
        "several teams, one frozen": (
            *(*TAG, *MAPPO, f"teams.agent.run={folder / 'policy'}", "teams.agent.algo.checkpoint=last"),
        ),
        "GAIL": (*PLATES, *MAPPO, f"rewards.gail.demos={demos}", "rewards.gail.hidden_sizes=[8]"),
        "behavior cloning": (*PLATES, *MAPPO, *cloned),
        "behavior cloning, Q-learning": (*PLATES, *QMIX, *PLAIN_Q, *cloned),
    }
