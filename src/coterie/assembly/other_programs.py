"""Command lines and files of other programs that are given to Coterie, as Coterie's command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.algos.registry import ALGOS
from coterie.assembly import aliases
from coterie.config import messages
from coterie.config.sources import Setting
from coterie.core.text import coterie_command, shell_word, shorten

_PYMARL_FAMILIES = {"sc2": "smac", "sc2_beta": "smac", "sc2v2": "smacv2", "smaclite": "smaclite"}
"""Families of the environments of PyMARL's and EPyMARL's files `--env-config`, which name a map."""
_GYMMA_FAMILIES = ("lbforaging", "rware")
"""Packages of EPyMARL's `env_args.key` that are families of Coterie, too."""
_PYMARL_UNITS = ("batch_size", "buffer_size", "target_update_interval")
"""Settings of PyMARL that count episodes where those of Coterie of the same name count something else."""
_BY_HAND = "Set by hand, because units or meanings differ"
_MLAGENTS_SIGNALS = {"curiosity": "icm", "rnd": "rnd", "gail": "gail"}


def pymarl_answer(argv: Sequence[str]) -> str | None:
    """Returns the answer to a command line of PyMARL, such as `--config=qmix --env-config=sc2 with t_max=1e6`.

    None for other command lines. Settings whose unit or meaning differs are named, to be set by hand.
    """
    config, env_config = _option(argv, "--config"), _option(argv, "--env-config")
    is_algo = config is not None and not Path(config).exists() and config.partition("_")[0] in ALGOS
    of_environment = any(word.startswith("env_args.") for word in argv)
    if env_config is None and not is_algo and not of_environment and not (config and "with" in argv):
        return None
    after = argv[argv.index("with") + 1 :] if "with" in argv else [word for word in argv if "=" in word[1:]]
    given = {key: value for key, _, value in (word.partition("=") for word in after if not word.startswith("-"))}
    algo = config.partition("_")[0] if config and is_algo else given.pop("algo", config or "NAME")
    words = [f"algo={algo}", f"env={_pymarl_env(env_config, given)}"]
    limit = given.pop("env_args.time_limit", None)
    words += [] if limit is None else [f"env.episode_limit={limit}"]
    own = {key: value for key, value in given.items() if not key.startswith("env_args.")}
    others = [key for key in own if key in aliases.DIFFERENT or key in _PYMARL_UNITS]
    words += [aliases.named_exactly(key, own[key]) or f"{key}={own[key]}" for key in own if key not in others]
    command = coterie_command("train", *words)
    by_hand = f". {_BY_HAND}: {', '.join(others)}." if others else ""
    return f"{shorten(' '.join(argv), 120)}: a command line of PyMARL. Write: {command}{by_hand}"


def _pymarl_env(env_config: str | None, given: dict[str, str]) -> str:
    name = given.get("env_args.map_name")
    if env_config in _PYMARL_FAMILIES or (name is not None and env_config is None):
        return f"{_PYMARL_FAMILIES.get(env_config or 'sc2', 'smac')}/{name or 'MAP'}"
    package, _, key = given.get("env_args.key", "").rpartition(":")
    family = package.partition(".")[0]
    return f"{family}/{key}" if family in _GYMMA_FAMILIES else "FAMILY/NAME"


def _option(argv: Sequence[str], name: str) -> str | None:
    """Returns the value of `--name=VALUE` or `--name VALUE`; None if it is not given."""
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def mlagents_answer(path: Path, settings: Sequence[Setting]) -> str | None:
    """Returns the answer to a configuration file of ML-Agents, None for other files.

    It has the settings of the first behavior whose meaning is equal here, and names those to set by hand.
    """
    keys = [setting.key.split(".") for setting in settings]
    behavior = next((key[1] for key in keys if key[0] == "behaviors" and len(key) > 2), None)
    if behavior is None:
        return None
    own = {
        ".".join(key[2:]): setting.value
        for key, setting in zip(keys, settings, strict=True)
        if key[:2] == ["behaviors", behavior]
    }
    words, others = [f"algo={own.pop('trainer_type', 'ppo')}"], []
    layers, units = (own.pop(f"network_settings.{name}", None) for name in ("num_layers", "hidden_units"))
    if layers is not None and units is not None:
        words.append(f"algo.hidden_sizes=[{','.join([str(units)] * int(layers))}]")
    if any(key.startswith("self_play.") for key in own):
        words.append("selfplay.opponents=uniform")
    for key, value in own.items():
        translated = _mlagents_setting(key.split("."), value)
        if translated is None:
            others.append(key.rpartition(".")[2])
        else:
            words.append(translated)
    by_hand = f" {_BY_HAND}: {', '.join(dict.fromkeys(others))}." if others else ""
    command = coterie_command("train", *words, "env=unity/BUILD")
    return f"{shell_word(path)}: a configuration of ML-Agents. Write: {command}.{by_hand}"


def _mlagents_setting(parts: list[str], value: Any) -> str | None:
    """Returns Coterie's setting for one of a behavior, None if its meaning differs."""
    name, text = parts[-1], messages.format_value(value)
    if parts[0] == "reward_signals" and len(parts) == 3:
        signal = _MLAGENTS_SIGNALS.get(parts[1])
        if parts[1] == "extrinsic" and name == "gamma":
            return f"algo.gamma={text}"
        return f"rewards.{signal}.{name}={text}" if signal and name == "gamma" else None
    if parts[0] == "self_play":
        return f"selfplay.{name}={text}" if name == "window" else aliases.named_exactly(name, text)
    return aliases.named_exactly(name, text)
