"""What settings are called elsewhere: names that people bring from other libraries, and which keys they mean here."""

from __future__ import annotations

from collections.abc import Iterable

NAMES: dict[str, str] = {
    "steps": "total_timesteps total_steps max_steps num_steps_total t_max env_steps total_env_steps",
    "copies": "num_envs n_envs n_rollout_threads num_envs_per_env_runner batch_size_run n_training_threads parallels",
    "out": "logdir log_dir output_dir save_path results_dir run_dir",
    "device": "cuda use_cuda use_gpu gpu",
    "workers.count": "num_workers n_workers num_env_runners num_rollout_workers",
    "eval.every": "eval_interval eval_freq evaluation_interval test_interval",
    "eval.episodes": "eval_episodes n_eval_episodes test_nepisode evaluation_duration test_episode",
    "checkpoint.every": "save_freq save_interval save_model_interval checkpoint_freq checkpoint_interval",
    "env.episode_limit": "max_episode_steps max_cycles time_limit episode_length max_ep_len",
    "algo.horizon": "n_steps num_steps rollout_length rollout_fragment_length time_horizon steps_per_epoch train_freq",
    "algo.n_step": "n_steps multi_step nstep",
    "algo.lr": "learning_rate actor_lr lr_actor lr_a learning_rate_actor",
    "algo.critic_lr": "lr_critic lr_c learning_rate_critic value_lr",
    "algo.gamma": "discount discount_factor",
    "algo.gae_lambda": "lambda lam lambda_ gae_lam",
    "algo.td_lambda": "lambda lam lambda_ lambd",
    "algo.entropy_coef": "ent_coef ent_coeff entropy_coeff entropy_cost beta",
    "algo.value_coef": "vf_coef vf_loss_coeff value_loss_coef vf_coeff",
    "algo.clip_eps": "clip_range clip_param clip_coef ppo_clip clip_epsilon epsilon_clip eps_clip",
    "algo.epochs": "n_epochs num_epochs num_epoch update_epochs ppo_epoch num_sgd_iter ppo_epochs",
    "algo.minibatches": "batch_size minibatch_size mini_batch_size num_minibatches num_mini_batch sgd_minibatch_size",
    "algo.batch": "batch_size train_batch_size",
    "algo.replay": "buffer_size replay_buffer_size buffer_length buffer_capacity memory_capacity replay_size",
    "algo.learning_starts": "warmup_steps learning_start start_training num_steps_sampled_before_learning_starts",
    "algo.updates": "gradient_steps n_updates utd updates_per_step",
    "algo.target_every": "target_update_interval target_network_update_freq target_update_freq sync_frequency",
    "algo.tau": "polyak target_tau soft_tau",
    "algo.epsilon": "epsilon_start start_greedy start_e initial_epsilon",
    "algo.epsilon_end": "epsilon_finish end_greedy end_e final_epsilon epsilon_min",
    "algo.epsilon_steps": "epsilon_anneal_time exploration_fraction decay_step_greedy epsilon_timesteps epsilon_decay",
    "algo.mixer_size": "mixing_embed_dim",
    "algo.mixer_hidden": "hypernet_embed hidden_dim_hyper_net",
    "algo.hidden": "hidden_dim hidden_size hidden_sizes net_arch hidden_units fcnet_hiddens hidden_layers",
    "algo.memory_size": "rnn_hidden_dim recurrent_hidden_size lstm_cell_size",
    "algo.max_grad_norm": "grad_norm_clip grad_clip gradient_clip clip_grad_norm",
    "algo.normalise_obs": "normalize_obs use_obsnorm normalize_observations obs_norm",
    "algo.normalise_advantage": "normalize_advantage use_advnorm",
    "algo.normalise_value": "use_valuenorm use_popart normalize_value standardise_returns",
    "algo.huber_delta": "huber_loss_delta",
    "algo.noise_std": "noise_scale start_noise exploration_noise policy_noise",
    "algo.policy_delay": "policy_freq actor_update_delay",
    "algo.last_action": "obs_last_action",
    "algo.agent_id": "obs_agent_id use_agent_id",
}
"""Keys, and what PyMARL, XuanCe, ML-Agents, Stable-Baselines3, CleanRL, RLlib and others call the like."""


def meant(word: str, known: Iterable[str]) -> list[str]:
    """The keys among `known` that a name from elsewhere means; those of a team's own algorithm too."""
    keys = [key for key, names in NAMES.items() if word in names.split()]
    return [c for c in known for key in keys if c == key or ("." in key and c.endswith(f".{key}"))]
