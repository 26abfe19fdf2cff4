"""Warm start: the teams of a new run begin with weights and normalizers of another run's checkpoint.

Only the checkpoint's tensors, names and settings are read. No code that the other run names is imported.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.algos.algorithm import Algorithm
from coterie.assembly.checkpoint_choice import find_checkpoint
from coterie.assembly.environment import recorded_agents
from coterie.config.messages import show
from coterie.config.schema import Choice, InitConfig, RunConfig
from coterie.core.errors import UserError, nearest
from coterie.envs.external.agents import AgentsConfig
from coterie.envs.make import spec_of
from coterie.nets.config import NetworkConfig
from coterie.runs.checkpoints import LoadedCheckpoint, decoding, digest
from coterie.runs.folder import RunFolder

_OWN_ENTRIES = frozenset({"hidden_state", "buffer", "rewards"})
"""Entries of an algorithm's state that belong to the run: experience, and the signals that reward it."""

_MOST_LAYERS = 3
"""Layers that do not fit and are listed for each team; of others the number is given."""


@dataclass(frozen=True)
class WarmStart:
    """Weights that were taken from another run.

    Attributes:
        record: Entry of the manifest: the run, the steps and SHA-256 of its checkpoint, and its team by own team.
        lines: What was taken, and what was not, for the user.
    """

    record: dict[str, Any]
    lines: tuple[str, ...]


@dataclass
class _Transfer:
    """State of one team's algorithm after the transfer.

    Attributes:
        state: The state.
        taken: Entries of the state with at least one layer that was taken.
        missing: A line for each layer that was not taken, by name.
        same_kind: True if the policies have layers of the same names.
        takes_policy: True if a layer of the policy was taken.
    """

    state: dict[str, Any]
    taken: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    same_kind: bool = True
    takes_policy: bool = False


def warm_start(
    config: RunConfig, algorithms: Mapping[str, Algorithm], recorded: Mapping[str, Any] | None = None
) -> WarmStart | None:
    """Loads the weights that `config.init` asks for into the algorithms of a run.

    Args:
        config: Configuration of the run.
        algorithms: Algorithms by team, which change.
        recorded: The `record` of an earlier start of the same run, whose checkpoint is taken again.

    Returns:
        None without `config.init`.

    Raises:
        UserError: If the run, the checkpoint or a team does not exist, or a policy does not fit.
    """
    init = config.init
    if init is None:
        return None
    found = _find(init, recorded)
    with decoding(found):
        theirs, settings = dict(found.state["algorithms"]), dict(found.metadata["config"])
        title = f"{settings['algo.name']} on {settings['env.name']}"
    own = {name: algorithm for name, algorithm in algorithms.items() if algorithm.capabilities.learns}
    sources = _source_teams(init, own, theirs)
    lines = [f"init: {init.run}, {found.steps:,} steps, {title}"]
    for name, source in sources.items():
        team = f"init: team {name}" if len(own) > 1 else "init"
        if source is None:
            lines.append(f"{team}: random weights, because {_why_random(init, name)}")
            continue
        team += f" (there {source})" if source != name else ""
        differing = _differing_settings(
            settings, source, config.algo_of(name).params.model_dump(mode="json"), config.algo_key(name)
        )
        with decoding(found):
            transfer = _transfer(own[name].state_dict(), theirs[source])
            _require_fit(init, transfer, name, differing)
            if init.optimizer:
                _take_optimizers(init, transfer, theirs[source], name)
            own[name].load_state_dict(transfer.state)
        lines += [f"{team}: {line}" for line in _report(transfer, differing, init.optimizer)]
    record = {"run": str(init.run), "checkpoint": found.steps, "sha256": digest(found.path), "teams": sources}
    return WarmStart(record, tuple(lines))


def agents_of_init(init: InitConfig | None, env: Choice) -> list[str] | None:
    """Returns the agents of the run that weights are taken from, in its order, if they are those of this environment.

    Otherwise, and without `init`, None: agents are matched in order.
    """
    if init is None or not isinstance(env.params, AgentsConfig):
        return None
    try:
        recorded = recorded_agents(RunFolder.open(init.run).read_manifest())
        own = spec_of(env.name, env.params).agents
    except UserError:  # reported when the weights are read
        return None
    return recorded if recorded is not None and set(recorded) == set(own) else None


def _find(init: InitConfig, recorded: Mapping[str, Any] | None) -> LoadedCheckpoint:
    """Returns the checkpoint to load. UserError if there is none, or not the one that the run was started with."""
    which = init.checkpoint if recorded is None else str(recorded.get("checkpoint"))
    try:
        folder = RunFolder.open(init.run)
    except UserError as error:
        raise UserError(f"init.run={error}") from error
    try:
        found = find_checkpoint(folder, which, "init.checkpoint").found
    except UserError as error:
        raise UserError(f"init.checkpoint={which}: {error}") from error
    if recorded is not None and recorded.get("sha256") != digest(found.path):
        raise UserError(
            f"init.run={init.run}: its checkpoint of {which} steps is not the one that this run was started with. "
            "Restore it, or start a new run."
        )
    return found


def _source_teams(init: InitConfig, own: Mapping[str, Algorithm], theirs: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the team of the other run by each own team that learns; None for random weights."""
    sources: dict[str, str | None] = {}
    for name, source in init.teams.items():
        if name not in own:
            raise UserError(
                f"init.teams.{name}={show(source)}: no team that learns is called '{name}'. {nearest(name, own)}"
            )
        if source is not None and source not in theirs:
            raise UserError(f"init.teams.{name}={source}: {init.run} has no such team. {nearest(source, theirs)}")
    only = next(iter(theirs)) if len(own) == len(theirs) == 1 else None
    for name in own:
        sources[name] = init.teams.get(name, name if name in theirs else only)
    if not any(sources.values()):
        raise UserError(
            f"init.run={init.run}: it has the teams {', '.join(theirs)}, and those that learn here are "
            f"{', '.join(own) or 'none'}. Set init.teams={{{next(iter(own), 'TEAM')}: {next(iter(theirs), 'TEAM')}}}."
        )
    return sources


def _why_random(init: InitConfig, team: str) -> str:
    return f"init.teams.{team}=null" if team in init.teams else f"that run has no team {team}"


# -------------------------------------------------------------------------------------------------------------- tensors


def _transfer(own: dict[str, Any], found: Mapping[str, Any]) -> _Transfer:
    """Replaces tensors of a state by those of another one: all tensors of a layer or normalizer, or none of them."""
    here, there = dict(_weights(own)), dict(_weights(found))
    roles = _role_names(here, there)
    there = {_rename(path, roles): tensor for path, tensor in there.items()}
    transfer, values = _Transfer(own), {}
    transfer.same_kind = any(path in there for path in here if _is_of_policy_network(path))
    by_layer: dict[str, list[str]] = {}
    for path in dict.fromkeys((*here, *there)):
        by_layer.setdefault(re.sub(r"[./][^./]*$", "", path), []).append(path)
    for layer, paths in by_layer.items():
        differences = [path for path in paths if _shape(here.get(path)) != _shape(there.get(path))]
        if not differences:
            values |= {path: there[path].to(here[path]) for path in paths}
            transfer.taken.append(layer.partition("/")[0])
            transfer.takes_policy |= _is_of_policy_network(paths[0])
        elif layer.partition("/")[0] in own:
            path = differences[0]
            transfer.missing[layer] = f"{path}: {_shape(here.get(path))} here, {_shape(there.get(path))} there"
    # An entry may contain another one's tensors, such as a mixer's those of the policy, and is loaded after it.
    shared = {here[path].data_ptr(): value for path, value in values.items()}
    for path, tensor in here.items():
        if path not in values and tensor.numel() and tensor.data_ptr() in shared:
            values[path] = shared[tensor.data_ptr()].reshape(tensor.shape)
    transfer.state = _replaced(own, values)
    transfer.taken = list(dict.fromkeys(transfer.taken))
    return transfer


def _weights(state: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the path and value of all tensors of networks and normalizers; generators' states are uint8."""
    for key, value in state.items():
        if not place and (key in _OWN_ENTRIES or key.endswith("optimizer")):
            continue
        if isinstance(value, Mapping):
            yield from _weights(value, f"{place}{key}/")
        elif isinstance(value, Tensor) and value.dtype != torch.uint8:
            yield f"{place}{key}", value


def _is_of_policy_network(path: str) -> bool:
    """True for tensors of the policy except statistics of observations, which policies of all kinds share."""
    return path.startswith("policy/") and not path.startswith("policy/moments/")


def _role_names(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns the own name of each role of the other run, matched in order, from the names of the policy's networks."""

    def roles(paths: Mapping[str, Tensor]) -> list[str]:
        found = (re.search(r"\bnetworks\.([^./]+)\.", path) for path in paths if path.startswith("policy/"))
        return list(dict.fromkeys(match[1] for match in found if match))

    own, others = roles(here), roles(there)
    return dict(zip(others, own, strict=True)) if len(own) == len(others) else {}


def _rename(path: str, roles: Mapping[str, str]) -> str:
    """Returns a path with the own names of roles."""
    return "".join(roles.get(part, part) for part in re.split(r"([./])", path))


def _replaced(state: Any, values: Mapping[str, Tensor], place: str = "") -> Any:
    """Returns the nested state with other tensors at some paths."""
    if isinstance(state, Mapping):
        return {key: _replaced(value, values, f"{place}/{key}" if place else key) for key, value in state.items()}
    return values.get(place, state)


def _shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else str(list(tensor.shape))


# ------------------------------------------------------------------------------------------------------------ agreement


def _require_fit(init: InitConfig, transfer: _Transfer, team: str, differing: Mapping[str, tuple[Any, Any]]) -> None:
    """Raises UserError if the policy does not fit, or with `init.partial` if no layer of it does."""
    misfits = [line for layer, line in transfer.missing.items() if layer.partition("/")[0] == "policy"]
    if transfer.takes_policy and (init.partial or not misfits):
        return
    fixes = [f"{key}={show(there)}" for key, (there, _) in differing.items()]
    where = f"init.run={init.run}: the policy of team '{team}' does not fit"
    if not transfer.same_kind:
        raise UserError(
            f"{where}, because that run's has networks of other names. Choose a run of the same kind of algorithm, or "
            f"set init.teams.{team}=null."
        )
    more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
    same = f"Set {' '.join(fixes)} as in that run" if fixes else ""
    partial = "init.partial=true to take the layers that fit" if transfer.takes_policy else ""
    choose = f"{same}, or {partial}" if same and partial else same or (f"Set {partial}" if partial else "")
    raise UserError(f"{where} ({misfits[0]}{more}). {choose or 'Choose a run with policies of the same shapes'}.")


def _differing_settings(
    settings: Mapping[str, Any], source: str, own: Mapping[str, Any], key: str
) -> dict[str, tuple[Any, Any]]:
    """Returns settings of networks that differ, by own key, as values (there, here).

    Args:
        settings: Settings of the other run by dotted key.
        source: Team of the other run.
        own: Settings of the own team's algorithm.
        key: Their section.
    """
    prefix = f"teams.{source}.algo." if f"teams.{source}.algo.name" in settings else "algo."
    fields = [f.name for f in dataclasses.fields(NetworkConfig) if f.name != "init"]  # which random weights have
    names = [name for name in (*fields, "network") if name in own and f"{prefix}{name}" in settings]
    return {
        f"{key}.{name}": (settings[f"{prefix}{name}"], own[name])
        for name in names
        if settings[f"{prefix}{name}"] != own[name]
    }


def _take_optimizers(init: InitConfig, transfer: _Transfer, found: Mapping[str, Any], team: str) -> None:
    """Takes the state of all optimizers. UserError if not all of their networks were taken."""
    names = [name for name in transfer.state if name.endswith("optimizer")]
    fits = not transfer.missing and all(
        isinstance(found.get(name), Mapping) and found[name].keys() == transfer.state[name].keys() for name in names
    )
    if not fits:
        raise UserError(
            f"init.optimizer=true: team '{team}' does not take all networks of {init.run}, and the state of its "
            "optimizers does not fit. Set init.optimizer=false."
        )
    transfer.state |= {name: found[name] for name in names}


def _report(transfer: _Transfer, differing: Mapping[str, tuple[Any, Any]], optimizer: bool) -> list[str]:
    """Returns lines that state what was taken and what was not."""
    optimizers = [name for name in transfer.state if name.endswith("optimizer")]
    new = list(dict.fromkeys(layer.partition("/")[0] for layer in transfer.missing))
    partly = [name for name in transfer.taken if name in new]
    whole = [name for name in transfer.taken if name not in new]
    untouched = [name for name in new if name not in partly]
    taken = [*whole, *(f"{name} in part" for name in partly), *(optimizers if optimizer else ())]
    left = [*untouched, *(() if optimizer else optimizers)]
    lines = [f"{', '.join(taken)}" + (f"; not taken: {', '.join(left)}" if left else "")]
    misfits = list(transfer.missing.values())
    lines += [f"not taken: {line}" for line in misfits[:_MOST_LAYERS]]
    if misfits[_MOST_LAYERS:]:
        lines.append(f"not taken: {len(misfits) - _MOST_LAYERS} more layers")
    return [*lines, *(f"{key} was {show(there)} and is {show(here)}" for key, (there, here) in differing.items())]
