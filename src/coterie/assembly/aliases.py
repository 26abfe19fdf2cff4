"""Other names of settings: those of other libraries, and short ones.

Where meaning and unit are exactly those of a setting of Coterie, the name is accepted in its place (`EXACT`). Where
they differ, the error explains the difference (`DIFFERENT`). A setting of a section may be named without the section,
such as `lr` for `algo.lr`, if only one has the name. Settings of the algorithm come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coterie.algos import registry as algo_registry
from coterie.assembly.composition import named
from coterie.config import messages
from coterie.config.schema import RunConfig
from coterie.config.sources import Setting
from coterie.core.errors import UserError
from coterie.core.terminal import print_message
from coterie.envs import registry as env_registry

EXACT: dict[str, str] = {
    "steps": "total_timesteps total_env_steps env_steps t_max running_steps",
    "num_envs": "n_envs n_rollout_threads parallels batch_size_run",
    "seed": "random_seed",
    "log.tensorboard": "use_tensorboard",
    "log.wandb": "use_wandb",
    "out": "run_dir output_dir",
    "workers.count": "n_workers",
    "eval.every": "test_interval",
    "eval.episodes": "eval_episodes n_eval_episodes num_eval_episodes test_nepisode test_episode test_episodes",
    "checkpoint.every": "save_model_interval",
    "selfplay.latest_ratio": "play_against_latest_model_ratio",
    "env.episode_limit": "max_episode_steps max_cycles time_limit max_ep_len",
    "algo.rollout_length": "n_steps num_steps",
    "algo.lr": "learning_rate",
    "algo.lr_end": "end_factor_lr_decay",
    "algo.critic_lr": "lr_critic lr_c learning_rate_critic value_lr",
    "algo.gamma": "discount discount_factor",
    "algo.gae_lambda": "lambda lam lambda_ lambd gae_lam",
    "algo.td_lambda": "lambda lam lambda_ lambd",
    "algo.entropy_coef": "ent_coef ent_coeff entropy_coeff entropy_cost entropy_bonus beta",
    "algo.value_coef": "value_loss_coef",
    "algo.clip_eps": "clip_range clip_param clip_coef ppo_clip clip_epsilon epsilon_clip eps_clip clip_ratio epsilon",
    "algo.epochs": "n_epochs num_epochs num_epoch update_epochs ppo_epoch ppo_epochs num_sgd_iter",
    "algo.num_minibatches": "num_mini_batch n_minibatch n_minibatches nminibatches",
    "algo.max_kl": "kl_threshold",
    "algo.cg_iterations": "cg_max_steps cg_iters",
    "algo.line_search_steps": "ls_step line_search_max_iter backtrack_iters",
    "algo.line_search_decay": "backtrack_coeff line_search_shrinking_factor",
    "algo.buffer_size": "replay_buffer_size buffer_length buffer_capacity memory_capacity replay_size replay_capacity",
    "algo.learning_starts": "warmup_steps learning_start start_training num_steps_sampled_before_learning_starts",
    "algo.target_update_interval": "sync_frequency",
    "algo.tau": "target_tau soft_tau",
    "algo.epsilon_start": "start_greedy start_e initial_epsilon exploration_initial_eps",
    "algo.epsilon_end": "epsilon_finish end_greedy end_e final_epsilon epsilon_min exploration_final_eps",
    "algo.epsilon_decay_steps": "epsilon_anneal_time decay_step_greedy epsilon_timesteps",
    "algo.mixing_embed_dim": "hidden_dim_mixing_net mixer_embed_dim",
    "algo.hypernet_embed_dim": "hypernet_embed hidden_dim_hyper_net",
    "algo.hidden_sizes": "net_arch fcnet_hiddens",
    "algo.rnn_size": "rnn_hidden_dim recurrent_hidden_size lstm_cell_size",
    "algo.sequence_length": "max_seq_len data_chunk_length",
    "algo.max_grad_norm": "grad_norm_clip gradient_clip clip_grad_norm grad_norm grad_clip_norm",
    "algo.max_grad_value": "clip_grad_value grad_clip_value",
    "algo.normalize_obs": "use_obsnorm obs_norm normalize_observations normalize",
    "algo.normalize_advantage": "use_advnorm norm_adv normalize_advantages",
    "algo.normalize_value": "use_valuenorm use_value_norm",
    "algo.noise_std": "exploration_noise noise_scale",
    "algo.target_noise": "policy_noise target_policy_noise",
    "algo.target_noise_clip": "noise_clip",
    "algo.policy_delay": "policy_freq policy_frequency actor_update_delay",
    "algo.n_step": "n_steps multi_step nstep n_step_return",
    "algo.priority_alpha": "prioritized_replay_alpha per_alpha",
    "algo.priority_beta": "prioritized_replay_beta per_beta",
    "algo.obs_agent_id": "use_agent_id",
}
"""Settings, each with the names that mean exactly the same in PyMARL, EPyMARL, XuanCe, ML-Agents, Stable-Baselines3,
CleanRL, RLlib, on-policy MAPPO, HARL or Spinning Up.
"""

_STEP_UNIT = "Coterie counts environment steps, summed over all environments"
_FRAMES = "Frames count the repeats of actions elsewhere. Set steps, the environment steps of all environments."
_CLIPPING = "Libraries clip by norm or by value. Set algo.max_grad_norm, a limit of the norm, or algo.max_grad_value."
_SWITCH = "It is a switch elsewhere."
_ACTOR_LR = "It is the policy's alone. Set algo.lr, which the critic has, too, unless algo.critic_lr is set."
_WATCH = "Watch a run with `coterie watch RUN`, or play its policy with `coterie play RUN`."
_ALGORITHM = "It names the algorithm. Set algo, e.g. algo=mappo."
_ENVIRONMENT = "Set env, e.g. env=gym/CartPole-v1 or env=particle/simple_spread."
_NETWORKS = (
    "Networks follow from the spaces. Set algo.hidden_sizes and algo.rnn, or algo.network=package.module:factory."
)
_KL = "There is no KL loss. Set algo.target_kl, which stops the epochs early."
_DEVICE = "It is a switch elsewhere. Set device=cuda, cpu or auto."
_OUT = "out is the folder of the run itself, not the parent of all runs."
_PARTS = "Controller and learner are parts of an algorithm. Set algo, e.g. algo=qmix, or your own package.module:Class."
DIFFERENT: dict[str, str] = {
    "max_steps": "ML-Agents counts the steps of agents. Set steps, the environment steps of all environments.",
    "total_steps": "Libraries differ in what it counts. Set steps, the environment steps of all environments.",
    "num_steps_total": "Libraries differ in what it counts. Set steps, the environment steps of all environments.",
    "frames": _FRAMES,
    "num_frames": _FRAMES,
    "total_frames": _FRAMES,
    "max_frames": _FRAMES,
    "n_frames": _FRAMES,
    "num_envs_per_env_runner": "RLlib counts per runner. Set num_envs, the number of all environments.",
    "n_training_threads": "It is a number of threads. Set threads.",
    "logdir": _OUT,
    "log_dir": _OUT,
    "save_path": "out is the folder of the run; checkpoints are written into it.",
    "local_results_path": _OUT,
    "results_dir": _OUT,
    "model_dir": _OUT,
    "tensorboard_log": _OUT,
    "checkpoint_path": "Continue a run with `coterie resume RUN`, or act with its policy: algo=frozen algo.run=RUN.",
    "trial_at": f"It is the number of steps of each environment between evaluations. Set eval.every; {_STEP_UNIT}.",
    "save_at": f"It counts evaluations. Set checkpoint.every; {_STEP_UNIT}.",
    "trial": _WATCH,
    "render": _WATCH,
    "render_mode": _WATCH,
    "model": _ALGORITHM,
    "method": _ALGORITHM,
    "algorithm": _ALGORITHM,
    "alg": _ALGORITHM,
    "trainer_type": _ALGORITHM,
    "algorithm_name": _ALGORITHM,
    "policy": _NETWORKS,
    "policy_kwargs": _NETWORKS,
    "representation": _NETWORKS,
    "mac": _PARTS,
    "learner": _PARTS,
    "runner": "Environments are always stepped together. Set num_envs.",
    "agent": "PyMARL's agents are networks: set algo.rnn=gru for its rnn, or algo.network=package.module:factory. "
    "XuanCe's name the algorithm: set algo.",
    "icm": "It is a switch elsewhere. Set rewards.icm={} to add curiosity with its defaults.",
    "map_name": "It is a part of the environment's name. Set env, e.g. env=smac/3m.",
    "env_id": _ENVIRONMENT,
    "env_name": _ENVIRONMENT,
    "scenario": _ENVIRONMENT,
    "scenario_name": _ENVIRONMENT,
    "load_step": "Evaluate a checkpoint with `coterie evaluate RUN --checkpoint STEPS`, or continue the run with "
    "`coterie resume RUN`.",
    "evaluate": "Evaluate a run with `coterie evaluate RUN`.",
    "save_replay": "Save replays of a run with `coterie play RUN --replay FOLDER`.",
    "save_model": "Checkpoints are saved in any case. Set checkpoint.every, or checkpoint.keep=true to keep all.",
    "save_best": "The best checkpoint is kept in any case. Set eval.best, the metric of evaluations that chooses it.",
    "keep_checkpoints": "It is a number elsewhere. Set checkpoint.keep=true to keep all checkpoints.",
    "initialize_from": "It is the ID of a run. Set init.run, the folder of a run.",
    "init_path": "It is the file of a checkpoint. Set init.run, the folder of a run, and init.checkpoint.",
    "run_id": "out is the folder of the run itself. Set out=runs/ID.",
    "force": "Runs are not overwritten. Set another out, or remove the folder.",
    "overwrite": "It is an argument in Python: `coterie.train(overwrite=True)`. Set another out, or remove the folder.",
    "resume": "Continue a run with `coterie resume RUN`.",
    "inference": "Act with a trained policy with `coterie evaluate RUN` or `coterie play RUN`.",
    "summary_freq": "ML-Agents counts the steps of agents. Set log.every, the number of updates between log entries.",
    "runner_log_interval": "PyMARL counts steps. Set log.every, the number of updates between log entries.",
    "learner_log_interval": "PyMARL counts steps. Set log.every, the number of updates between log entries.",
    "memory_size": "ML-Agents' is twice the units of the LSTM. Set algo.rnn=lstm and algo.rnn_size, half of it.",
    "strength": "Set the weight of a reward signal, e.g. rewards.icm.weight.",
    "swap_steps": "Every episode draws its opponent. Set selfplay.window, the snapshots that it is drawn from.",
    "learning_rate_schedule": "ML-Agents' linear schedule ends at 0. Set algo.lr_schedule=linear and algo.lr_end.",
    "cuda": _DEVICE,
    "use_cuda": _DEVICE,
    "use_gpu": _DEVICE,
    "torch_device": "Set device=cuda, cpu or auto.",
    "gpu": "It is a switch or an index elsewhere. Set device=cuda, or device=cuda:N for the GPU N.",
    "num_env_runners": "RLlib's runners each hold environments of their own. Set workers.count, which share num_envs.",
    "num_gpus": "It is a number elsewhere. Set device=cuda, and ranks, the processes that train together.",
    "num_learners": "RLlib's learners each have a GPU. Set ranks, the processes that train together.",
    "num_workers": "In RLlib, each holds environments of its own. Set workers.count, which share num_envs.",
    "num_rollout_workers": "RLlib's workers each hold environments. Set workers.count, which share num_envs.",
    "workerports": "One number is that of the environments: set num_envs. Several are workers on other machines, which "
    "are actors of Ray: set workers.kind=ray and workers.address=HOST:PORT.",
    "selfport": "Machines that host environments run Ray: start `ray start --address=HOST:PORT` there, and set "
    "workers.kind=ray and workers.address=HOST:PORT here.",
    "eval_interval": f"Its unit differs between libraries. Set eval.every; {_STEP_UNIT}.",
    "eval_freq": f"Stable-Baselines3 counts the steps of each environment. Set eval.every; {_STEP_UNIT}.",
    "evaluation_interval": f"RLlib counts iterations. Set eval.every; {_STEP_UNIT}.",
    "evaluation_duration": "RLlib's unit can be episodes or steps. Set eval.episodes.",
    "test_greedy": "It is a switch elsewhere. Set eval.mode=greedy or eval.mode=sample.",
    "save_freq": f"Stable-Baselines3 counts the steps of each environment. Set checkpoint.every; {_STEP_UNIT}.",
    "save_interval": f"Its unit differs between libraries. Set checkpoint.every; {_STEP_UNIT}.",
    "checkpoint_interval": f"ML-Agents counts the steps of agents. Set checkpoint.every; {_STEP_UNIT}.",
    "checkpoint_freq": f"RLlib counts iterations. Set checkpoint.every; {_STEP_UNIT}.",
    "log_interval": "Its unit differs between libraries. Set log.every, the number of updates between log entries.",
    "save_steps": f"ML-Agents counts the steps of agents. Set selfplay.snapshot_interval; {_STEP_UNIT}.",
    "team_change": f"ML-Agents counts the steps of agents. Set alternate.every; {_STEP_UNIT}.",
    "episode_length": "In on-policy MAPPO it is the rollout length (algo.rollout_length), elsewhere env.episode_limit.",
    "time_horizon": "ML-Agents cuts trajectories there before they enter a buffer. Set algo.rollout_length.",
    "steps_per_epoch": "Spinning Up counts all environments. Set algo.rollout_length, the steps of each environment.",
    "train_freq": "It can count steps or episodes. Set algo.rollout_length, the steps of each environment between "
    "updates.",
    "rollout_fragment_length": "RLlib joins several fragments into a batch. Set algo.rollout_length.",
    "batch_size": "Coterie divides a rollout into a number of minibatches. Set algo.num_minibatches.",
    "minibatch_size": "It counts samples. Set algo.num_minibatches, the number of minibatches of a rollout.",
    "mini_batch_size": "It counts samples. Set algo.num_minibatches, the number of minibatches of a rollout.",
    "sgd_minibatch_size": "It counts samples. Set algo.num_minibatches, the number of minibatches of a rollout.",
    "train_batch_size_per_learner": "It is the size of a rollout. Set num_envs and algo.rollout_length.",
    "train_batch_size": "On-policy, RLlib's is the size of a rollout: set num_envs and algo.rollout_length. "
    "Off-policy, "
    "set algo.batch_size, which counts sequences for recurrent networks.",
    "buffer_size": "In ML-Agents it is the number of agent steps that are collected before an update. Set "
    "algo.rollout_length and num_envs; their product is the number of environment steps per update.",
    "vf_coef": "Coterie and CleanRL weigh half the squared error, Stable-Baselines3 and XuanCe all of it. Set "
    "algo.value_coef, for these two to twice that.",
    "vf_coeff": "Coterie weighs half the squared error. Set algo.value_coef.",
    "vf_loss_coeff": "Coterie weighs half the squared error, RLlib all of it. Set algo.value_coef to twice that.",
    "vf_clip_param": "RLlib clips the loss, Coterie the change of the value. Set algo.value_clip_eps.",
    "use_kl_loss": _KL,
    "kl_coeff": _KL,
    "use_gae": "Advantages are always those of GAE. Set algo.gae_lambda; with 1 they are returns minus values.",
    "q_nstep": "PPO and its relatives use GAE. Set algo.gae_lambda and algo.rollout_length.",
    "use_linear_lr_decay": f"{_SWITCH} Set algo.lr_schedule=linear and algo.lr_end.",
    "actor_lr": _ACTOR_LR,
    "lr_actor": _ACTOR_LR,
    "lr_a": _ACTOR_LR,
    "learning_rate_actor": _ACTOR_LR,
    "target_update_interval_or_tau": "In EPyMARL it is an interval above 1, and a factor below. Set "
    "algo.target_update_interval, in gradient steps, or algo.tau.",
    "utd": "It is a ratio. Set algo.gradient_steps, the gradient steps after every rollout.",
    "updates_per_step": "It is a ratio. Set algo.gradient_steps, the gradient steps after every rollout.",
    "n_updates": "It counts epochs or gradient steps elsewhere. Set algo.gradient_steps, the gradient steps after "
    "every rollout.",
    "target_network_update_freq": "It counts environment steps. Set algo.target_update_interval, in gradient steps.",
    "target_update_freq": "Its unit differs between libraries. Set algo.target_update_interval, in gradient steps.",
    "polyak": "It is the share of the old weights. Set algo.tau, the share of the new ones: 1 - polyak.",
    "exploration_fraction": "It is a fraction of the run. Set algo.epsilon_decay_steps, in environment steps.",
    "epsilon_decay": "Its meaning differs between libraries. Set algo.epsilon_decay_steps, in environment steps.",
    "hidden_dim": "It is one number for all layers elsewhere. Set algo.hidden_sizes, a list with the units of every "
    "layer, e.g. [64,64].",
    "hidden_size": "It is one number for all layers elsewhere. Set algo.hidden_sizes, a list with the units of every "
    "layer, e.g. [64,64].",
    "hidden_units": "ML-Agents has num_layers equal layers. Set algo.hidden_sizes, a list with the units of every "
    "layer, e.g. [128,128].",
    "num_layers": "ML-Agents has num_layers equal layers. Set algo.hidden_sizes, a list with the units of every "
    "layer, e.g. [128,128].",
    "hidden_layers": "Libraries differ in what it is. Set algo.hidden_sizes, a list with the units of every layer, "
    "e.g. [64,64].",
    "grad_clip": _CLIPPING,
    "clip_grad": _CLIPPING,
    "clip_type": "XuanCe clips entries with 0, and the norm with 1. Set algo.max_grad_value and "
    "algo.max_grad_norm=null, or algo.max_grad_norm.",
    "use_grad_clip": "It is a switch elsewhere. Set algo.max_grad_norm, a limit of the norm; null disables it.",
    "use_popart": "PopArt also rescales the last layer. Set algo.normalize_value for normalized values without it.",
    "standardise_returns": "EPyMARL standardizes targets. Set algo.normalize_value for normalized values.",
    "use_rewnorm": f"{_SWITCH} Set algo.reward_scale where the algorithm has it.",
    "use_sde": "gSDE is not included. Set algo.state_dependent_std for a learned standard deviation.",
    "use_actions_mask": "Masks that the environment provides are always used. Leave it out of `coterie train`.",
    "standardise_rewards": "EPyMARL standardizes rewards. Set algo.reward_scale where the algorithm has it.",
    "use_huber_loss": f"{_SWITCH} Set algo.huber_delta, the error from which the loss is linear; null for the squared "
    "error.",
    "huber_loss_delta": "It is used with a switch elsewhere. Set algo.huber_delta, the error from which the loss is "
    "linear; null for the squared error.",
    "start_noise": "XuanCe's noise decays per episode. Set algo.noise_std, algo.noise_schedule and algo.noise_end.",
    "use_global_state": f"{_SWITCH} Set algo.critic=state where it is true, algo.critic=joint where it is false.",
    "use_centralized_v": f"{_SWITCH} Set algo.critic=state or algo.critic=joint where it is true, algo.critic=own "
    "where it is false.",
    "use_parameter_sharing": "It is a switch elsewhere. Set algo.share_params=role, all or none.",
    "use_rnn": "It is a switch elsewhere. Set algo.rnn=gru, lstm or none.",
    "use_lstm": "It is a switch elsewhere. Set algo.rnn=lstm, gru or none.",
    "use_recurrent_policy": "It is a switch elsewhere. Set algo.rnn=gru, lstm or none.",
    "reward_shape": "Shaping is a setting of the environment, e.g. env.shaping. Evaluations do not include it.",
    "common_reward": "Value decomposition always sums the team's rewards, and MA-POCA uses group rewards.",
}
"""Names of other libraries whose meaning or unit differs, each with the difference and what to set instead."""

DIFFERENT_WITH: dict[str, dict[str, str]] = {
    "use_global_state": {
        "mixer_input": f"{_SWITCH} Set algo.mixer_input=state where it is true, algo.mixer_input=joint where it is "
        "false. By default the mixer reads the state if there is one.",
        "critic_loss_mask": f"{_SWITCH} Set algo.critic=state where it is true, algo.critic=own where it is false.",
    },
}
"""Names that mean something else for algorithms with a certain setting: that setting, and the explanation."""

_by_alias: dict[str, list[str]] = {}
for _key, _names in EXACT.items():
    for _name in _names.split():
        _by_alias.setdefault(_name, []).append(_key)
_reported: set[str] = set()


def translate(layers: Iterable[list[Setting]]) -> list[list[Setting]]:
    """Replaces exact aliases by Coterie's keys and reports each one on stderr, once per process.

    Raises:
        UserError: If a setting is given by two names, or a short name is that of several settings.
    """
    layers = [list(layer) for layer in layers]
    return [_translate_layer(layer, layers) for layer in layers]


def difference(key: str, known: Iterable[str]) -> str | None:
    """Explanation for an unknown key whose name has another meaning or unit elsewhere, None for other keys."""
    section, _, word = key.rpartition(".")
    known = set(known)
    own = {word, f"algo.{word}", f"{section}.{word}"}  # the same word in another section is no better suggestion
    if word not in DIFFERENT or not own.isdisjoint(known):
        return None
    of_algorithm = DIFFERENT_WITH.get(word, {}).items()
    return next((text for name, text in of_algorithm if f"{section or 'algo'}.{name}" in known), DIFFERENT[word])


def targets(key: str) -> list[str]:
    """Settings that the last word of a key means exactly, whether or not the configuration has them."""
    return _by_alias.get(key.rpartition(".")[2], [])


def named_exactly(word: str, value: str) -> str | None:
    """Returns the setting that a name elsewhere means exactly, with a value; None for other names."""
    meant = _by_alias.get(word, [])
    sections = {target.rpartition(".")[0] for target in meant}
    if len(meant) == 1:
        return f"{meant[0]}={value}"
    return f"{sections.pop()}.{word}={value}" if len(sections) == 1 else None  # the algorithm decides which it is


def _translate_layer(layer: list[Setting], layers: list[list[Setting]]) -> list[Setting]:
    given = {setting.key for setting in layer}
    translated = []
    for setting in layer:
        key = next(iter(_meanings(setting.key, layers)), None)
        if key is None:
            translated.append(setting)
            continue
        if key in given:
            raise UserError(f"{setting.key}: {key} is given, too, and means the same. Remove one of them.")
        given.add(key)
        _report(f"{setting.key} is called {key}: using {key}={messages.show(setting.value)}")
        translated.append(setting.moved(key))
    return translated


def _meanings(key: str, layers: list[list[Setting]]) -> Iterator[str]:
    """Keys of Coterie that an unknown key means exactly; at most one for a given algorithm."""
    section, _, word = key.rpartition(".")
    for target in _by_alias.get(word, ()):
        target_section, _, field = target.rpartition(".")
        if target_section == "algo":
            where = section or "algo"
            if where == "algo" or (where.startswith("teams.") and where.endswith(".algo")):
                fields = _algo_fields(where, layers)
                if field == "rollout_length" and "n_step" in fields:
                    continue  # n_steps and the like are n-step returns there
                if field in fields and word not in fields:
                    yield f"{where}.{field}"
        elif target_section == "env":
            if section == "env" and _is_builtin(layers):
                yield target
        elif section in ("", target_section) and word not in RunConfig.model_fields:
            yield target
    if not section and word not in RunConfig.model_fields:
        yield from _in_a_section(word, layers)


def _in_a_section(word: str, layers: list[list[Setting]]) -> Iterator[str]:
    """Yields the setting of a section that a short name means.

    Raises:
        UserError: If it is the name of several settings, with all of them.
    """
    if word in _algo_fields("algo", layers):
        yield f"algo.{word}"
        return
    if word in DIFFERENT or owners(word):  # explained, as the algorithm lacks it
        return
    sections = (key for key in messages.leaf_fields(RunConfig) if not key.startswith(("algo.", "env.", "teams.")))
    found = [key for key in sections if key.endswith(f".{word}")]
    found += [f"env.{word}"] * (word in _env_fields(layers))
    if len(found) > 1:
        raise UserError(f"{word}: the name of several settings. Write {' or '.join(found)}.")
    yield from found


def owners(word: str) -> list[str]:
    """Returns the algorithms that have a setting with this name."""
    return sorted(name for name in algo_registry.ALGOS if word in algo_registry.algorithm(name).Config.model_fields)


def _env_fields(layers: list[list[Setting]]) -> set[str]:
    """Names of the settings of the environment; none for an unknown environment."""
    name = named("env.name", layers, env_registry.DEFAULT_ENV)
    try:
        if env_registry.is_batch_factory(name):
            return set(env_registry.factory_parameters(name) or ())
        return set(env_registry.environment(name).Config.model_fields)
    except UserError:  # reported when names are checked
        return set()


def _algo_fields(section: str, layers: list[list[Setting]]) -> set[str]:
    """Settings of the algorithm of a section `algo` or `teams.NAME.algo`; none for an unknown algorithm."""
    top = named("algo.name", layers, algo_registry.DEFAULT_ALGO)
    name = top if section == "algo" else named(f"{section}.name", layers, top)
    try:
        return set(algo_registry.algorithm(name).Config.model_fields)
    except UserError:  # reported when names are checked
        return set()


def _is_builtin(layers: list[list[Setting]]) -> bool:
    """True for environments of Coterie, whose settings are all known; others may have such a parameter themselves."""
    name = named("env.name", layers, env_registry.DEFAULT_ENV)
    return name.partition("/")[0] in env_registry.FAMILIES


def _report(line: str) -> None:
    if line not in _reported:
        _reported.add(line)
        print_message(line)
