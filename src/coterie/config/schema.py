"""Configuration of a run as frozen, typed models: the content of `config.yaml` and `coterie train --cfg job`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, model_serializer
from pydantic.config import JsonDict

from coterie.config.curriculum import AdvanceConfig, CurriculumConfig, Samplers
from coterie.config.imitation import ImitationConfig
from coterie.config.needs import Needs
from coterie.config.rewards import RewardsConfig
from coterie.core.precision import Setting as Precision
from coterie.core.text import shorten
from coterie.kernels.setting import Setting as KernelsSetting

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


def parse_count(value: Any) -> Any:
    """Returns the integer for a count such as 1e6, 2_000_000, 20M or 500k; any other value unchanged."""
    if isinstance(value, str):
        match = re.fullmatch(
            r"((?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][0-9]+)?)\s*([kKmMgGbB]?)", value.strip()
        )
        if match:
            value = float(match[1].replace("_", "")) * _SUFFIXES.get(match[2].lower(), 1)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Count = Annotated[int, BeforeValidator(parse_count)]
"""An integer that may be written as 1e6, 2_000_000, 20M or 500k."""


def _check_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", value):
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return value


def _parse_checkpoint(value: Any) -> Any:
    count = parse_count(value)
    return str(count) if isinstance(count, int) and not isinstance(count, bool) else value


def _check_checkpoint(value: str) -> str:
    if not re.fullmatch(r"auto|best|best:.+|last|[0-9]+", value):
        raise ValueError("expected auto, best, best:TEAM, last or a number of steps")
    return value


CheckpointName = Annotated[str, BeforeValidator(_parse_checkpoint), AfterValidator(_check_checkpoint)]
"""Checkpoint of a run: auto, best, best:TEAM, last, or a number of steps such as 1e6 or 500k."""


def _check_address(value: str) -> str:
    if not re.fullmatch(r"local|auto|(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]+", value):
        raise ValueError("expected local, auto or host:port")
    return value


class Model(BaseModel):
    """Base class of frozen configurations. Unknown keys are errors, and a field's docstring is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class FactoryParams(BaseModel):
    """Keyword arguments of a user's environment factory, which its signature defines."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


FOREIGN: JsonDict = {"foreign": True}
"""`json_schema_extra` of the fields that a constructor outside Coterie defines."""


def is_foreign(model: type[BaseModel], key: str) -> bool:
    """True if code outside Coterie defines the setting, as the constructor of an environment does."""
    field = model.model_fields.get(key.partition(".")[0])
    return field is None or field.json_schema_extra == FOREIGN


class Choice(Model):
    """A name and its typed parameters, saved as one flat mapping: {name: mappo, lr: 0.0007, ...}."""

    name: str
    """Name, e.g. `mappo`, `ippo/yardstick`, `particle/simple_spread`, `package.module:factory`."""
    base: str | None = None
    """Algorithm of Coterie whose presets an algorithm of your own starts from, or `none`; null for Coterie's own."""
    params: SerializeAsAny[BaseModel]
    """Configuration of the class with that name."""

    @model_serializer
    def _serialize(self) -> dict[str, Any]:
        base = {} if self.base is None else {"base": self.base}
        return {"name": self.name, **base, **self.params.model_dump(mode="json")}


class TeamConfig(Model):
    """A team with settings of its own: its algorithm, some of the algorithm's keys, or its roles."""

    algo: Choice
    """Algorithm of the team. Keys that are not set are inherited from the top-level `algo` if both have the same name.
    """
    rewards: RewardsConfig = RewardsConfig()
    """Reward signals of the team. A team that learns inherits unset keys from the top-level section."""
    imitation: Annotated[ImitationConfig, Needs("imitation.demos!=null")] = ImitationConfig()
    """Behavior cloning of the team. A team that learns inherits unset keys from the top-level section."""
    roles: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Environment roles that form the team. Default: the roles of the environment's group with the team's name."""


class EvalConfig(Model):
    """Evaluation in separate environments."""

    every: Count | None = Field(default=None, ge=0, le=10**15)
    """Environment steps between evaluations; 0 disables them. Default: 1/20 of the run."""
    episodes: Annotated[Count, Needs("every!=0")] = Field(default=128, ge=1, le=10**7)
    """Episodes per evaluation, rounded up to the same number in each environment."""
    mode: Annotated[Literal["auto", "greedy", "sample"], Needs("every!=0")] = "auto"
    """Action selection; `auto` follows the algorithm's publication."""
    num_envs: Annotated[Count, Needs("every!=0", "selfplay.opponents!=off")] = Field(default=64, ge=1, le=10**6)
    """Environments for evaluation."""
    best: Annotated[str, Needs("every!=0", "selfplay.opponents!=off")] = Field(
        default="auto", pattern=r"^(auto|-?[^/\s]+(/[^/\s]+)*)$"
    )
    """Metric of evaluations whose highest value marks the best checkpoint: METRIC or TEAM/METRIC, such as
    adversary/return_mean or metric/won; -METRIC marks the lowest. auto: the mean return of the first team that learns,
    or with self-play the sum of the Elo ratings. If several teams learn, each also keeps its own best checkpoint, by
    its mean return or rating.
    """
    min_episodes: Annotated[Count, Needs("every!=0")] = Field(default=20, ge=1, le=10**7)
    """Episodes that an evaluation needs for its checkpoint to be marked as best. Only evaluations after the first
    update count.
    """


class WorkersConfig(Model):
    """Processes that step environments of external libraries. Coterie's built-in environments do not use them."""

    count: int = Field(default=0, ge=0, le=1024)
    """Worker processes for training, and as many again for evaluation; 0 steps all environments in the trainer's
    process. Results are bit-for-bit equal for any number.
    """
    kind: Annotated[Literal["processes", "ray"], Needs("count!=0")] = "processes"
    """Type of worker: local processes, or Ray actors on this machine or a cluster (requires the extra `coterie[ray]`).
    """
    address: Annotated[str, AfterValidator(_check_address), Needs("count!=0"), Needs("kind=ray")] = "local"
    """Address of Ray: local starts an instance that ends with the trainer, auto connects to the one running on this
    machine, and host:port to the one at that address.
    """
    overlap: Annotated[bool, Needs("count!=0")] = False
    """Step one half of the environments while the policies act in the other, with `count` workers per half. Results
    are bit-for-bit equal for any number of workers, but may differ in the last bit from those without overlap.
    """
    timeout: Annotated[float, Needs("count!=0", "external_env=true")] = Field(default=60.0, gt=0, le=86_400)
    """Seconds allowed per step of all of a worker's environments. A worker that takes longer is replaced. Making them,
    and making one environment in the trainer's process, may take five times as long, and at least 20 s.
    """
    restarts: Annotated[int, Needs("count!=0")] = Field(default=10, ge=0, le=10**9)
    """Workers that are replaced before the run ends. Episodes of a failed worker are dropped."""

    @property
    def start_timeout(self) -> float:
        """Seconds allowed to make environments: all of a worker, or one in the trainer's process."""
        return max(20.0, 5 * self.timeout)


class InitConfig(Model):
    """Warm start: weights and normalizers of another run."""

    run: Annotated[Path, AfterValidator(Path.absolute)]
    """Folder of the run whose weights a new run starts with."""
    checkpoint: CheckpointName = "auto"
    """Checkpoint of that run: auto (the best, or an intact one), best, best:TEAM, last, or a number of steps, which
    takes the nearest checkpoint at or below it.
    """
    teams: dict[str, str | None] = Field(default_factory=dict)
    """Team of that run by team of the new one, e.g. {adversary: agent}; null: random weights. Default: the team of the
    same name, or the only one.
    """
    partial: bool = False
    """Take the layers of a policy that fit and initialize the others. Otherwise a policy that does not fit is an error.
    """
    optimizer: bool = False
    """Take the state of the optimizers too, such as Adam's moments."""


def _require_section(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"expected null or a section. Set init.run={shorten(value, 200)}")
    return value


class SelfPlayConfig(Model):
    """Self-play against past snapshots of the policy."""

    opponents: Literal["off", "latest", "uniform", "recency", "pfsp"] = "off"
    """Opponents of episodes: off disables self-play; latest is always the current policy; uniform draws any snapshot;
    recency draws snapshots with a probability proportional to their rank by age, the newest most often; pfsp
    (prioritized fictitious self-play) draws snapshots that are hard to beat more often.
    """
    snapshot_interval: Count | None = Field(default=None, ge=1, le=10**15)
    """Environment steps between snapshots. Default: 1/20 of the run."""
    promotion_win_rate: float | None = Field(default=None, gt=0.5, le=1)
    """Minimum win rate against the pool for a new snapshot, where a draw is half a win; null: no minimum."""
    window: int = Field(default=10, ge=1, le=1000)
    """Number of latest snapshots that opponents are drawn from."""
    latest_ratio: Annotated[float, Needs("opponents=uniform|recency|pfsp")] = Field(default=0.5, ge=0, le=1)
    """Fraction of episodes against the current policy; the others are against snapshots."""
    pfsp_exponent: Annotated[float, Needs("opponents=pfsp")] = Field(default=2.0, ge=0, le=100)
    """Exponent of pfsp: probabilities are proportional to (1 - win rate)^exponent."""
    win_rate_episodes: Count = Field(default=200, ge=1, le=10**9)
    """Episodes in the running mean of the win rate against an opponent, in which recent episodes have more weight."""
    sides: Literal["auto", "both", "first", "alternate"] = "auto"
    """Sides that learn: both trains one policy, which plays the first side in every other environment and the second
    side in the rest; first trains one policy on the first side; alternate trains one policy per side, one after the
    other (see `alternate`); auto is both if the environment's sides are symmetric, and alternate otherwise.
    """
    rating_episodes: Count = Field(default=128, ge=2, le=10**7)
    """Episodes against the pool that determine a snapshot's rating, rounded up to the same number in each evaluation
    environment.
    """

    @property
    def enabled(self) -> bool:
        """True if the run uses self-play."""
        return self.opponents != "off"


_ALTERNATES = Needs("every!=null", "until!=null", "selfplay.opponents!=off")


class AlternateConfig(Model):
    """Alternating training: in each phase some teams learn while the policies of the others are fixed."""

    every: Count | None = Field(default=None, ge=1, le=10**15)
    """Environment steps per phase, or the most if `until` is set. null without `until`: all teams learn at the same
    time, or in self-play alternate in phases of 1/10 of the run.
    """
    until: AdvanceConfig | None = None
    """Condition that ends a phase: a logged metric passes a threshold, e.g. {metric: "eval/{team}/return_mean", above:
    20}, where {team} is the first team that learns in the phase.
    """
    order: Annotated[tuple[str | tuple[str, ...], ...], _ALTERNATES] = ()
    """Team or teams that learn in each phase. Default: each team that learns, one after the other."""
    repeat: Annotated[bool, _ALTERNATES] = True
    """Start again with the first phase after the last; otherwise the last phase lasts until the end of the run."""


class CheckpointConfig(Model):
    """Checkpoints to resume from."""

    every: Count | None = Field(default=None, ge=0, le=10**15)
    """Environment steps between checkpoints; 0 saves only the last. Default: 1/20 of the run."""
    keep: Annotated[bool, Needs("every!=0")] = False
    """Keep all checkpoints, not only `last`, the one before it, and the best ones."""
    policy_seconds: float = Field(default=10.0, ge=0, le=86_400)
    """Seconds between snapshots of the policies for `coterie watch`, which take at most 1% of the time; 0: none, and
    watching follows the checkpoints.
    """


_TRACKED = Needs("wandb=true", "mlflow=true")


class LogConfig(Model):
    """Metric loggers in addition to `metrics.jsonl`."""

    tensorboard: bool = True
    """Write TensorBoard event files to the run folder."""
    wandb: bool = False
    """Log metrics to Weights & Biases (requires the extra `coterie[wandb]`)."""
    mlflow: bool = False
    """Log metrics to MLflow (requires the extra `coterie[mlflow]`)."""
    project: Annotated[str | None, _TRACKED] = Field(default=None, min_length=1)
    """W&B project, or MLflow experiment. Default: coterie for W&B, the name of the environment for MLflow."""
    group: Annotated[str | None, _TRACKED] = Field(default=None, min_length=1)
    """Group of the run in W&B, for example the seeds of one setting; in MLflow, the value of the tag `group`."""
    name: Annotated[str | None, _TRACKED] = Field(default=None, min_length=1)
    """Name of the run in W&B and MLflow. Default: the name of the run folder."""
    tags: Annotated[tuple[str, ...], _TRACKED] = ()
    """Tags of the run in W&B, e.g. [baseline,paper]; in MLflow, tags with the value true."""
    mlflow_uri: Annotated[str | None, Needs("mlflow=true")] = Field(default=None, min_length=1)
    """Tracking server or store of MLflow, any URI it supports, e.g. `sqlite:///mlflow.db`. Default: the environment
    variable MLFLOW_TRACKING_URI, or the folder `mlruns` in the current folder, which all runs share.
    """
    every: int = Field(default=1, ge=1, le=10**9)
    """Updates between log entries."""
    video_every: Count | None = Field(default=None, ge=0, le=10**15)
    """Environment steps between videos of an episode, which are recorded after evaluations, written to `videos/` and
    sent to W&B; 0: none. Default: with W&B one at the end, otherwise none.
    """
    git_patch: bool = True
    """Record changes in the git repository of the run's code in `manifest.json`: a patch of at most 100,000 bytes, and
    the names of untracked files.
    """


class RunConfig(Model):
    """Complete configuration of a run."""

    algo: Choice
    """Algorithm of every team that has none of its own."""
    env: Choice
    """Environment."""
    teams: dict[str, TeamConfig] = Field(default_factory=dict)
    """Settings of single teams, by name. Other teams use the top-level `algo`, `rewards` and `imitation`."""
    rewards: RewardsConfig = RewardsConfig()
    """Reward signals."""
    imitation: Annotated[ImitationConfig, Needs("imitation.demos!=null")] = ImitationConfig()
    """Behavior cloning on demonstrations."""
    init: Annotated[InitConfig | None, BeforeValidator(_require_section)] = None
    """Warm start; null: random weights."""
    selfplay: Annotated[SelfPlayConfig, Needs("selfplay.opponents!=off")] = SelfPlayConfig()
    """Self-play."""
    alternate: AlternateConfig = AlternateConfig()
    """Alternating training of teams."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Curriculum of lessons."""
    randomize: Samplers = Field(default_factory=dict)
    """Environment parameters by name that are sampled at the start of each episode, separately in each environment.
    Parameters of lessons take precedence.
    """
    steps: Count = Field(default=1_000_000, ge=1, le=10**15)
    """Total environment steps, summed over all environments. The run ends after the first rollout that reaches them."""
    num_envs: Count = Field(default=128, ge=1, le=10**7)
    """Environments that are stepped together."""
    ranks: int = Field(default=1, ge=1, le=4096)
    """Processes that train together on this machine, each with num_envs / ranks environments. torchrun sets it."""
    rank_timeout: Annotated[float, Needs("ranks!=1")] = Field(default=120.0, ge=1, le=86_400)
    """Seconds to wait for a rank that does not respond before all ranks end."""
    workers: WorkersConfig = WorkersConfig()
    """Worker processes."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of all random numbers."""
    device: Annotated[str, AfterValidator(_check_device)] = "auto"
    """Device of networks and built-in environments: auto (a GPU if available), cpu, cuda or cuda:N."""
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads of PyTorch. Results are bit-for-bit equal only for the same number. auto: OMP_NUM_THREADS if it is set,
    else the fastest number of at most 8 and the available cores, measured when a run starts and kept by its manifest.
    """
    kernels: KernelsSetting = "auto"
    """Fused C++ kernels on the CPU: on, off, or auto, which uses them if they can be compiled. Their results
    differ from those of PyTorch in the last bits.
    """
    precision: Precision = "float32"
    """Type in which linear, convolutional and recurrent layers multiply: float32 or bfloat16. Everything else, losses
    and parameters included, is float32.
    """
    cuda_graphs: Literal["off", "on"] = "off"
    """Captures rollouts in built-in environments on a GPU as CUDA graphs, and targets and gradient steps of all
    algorithms: on or off.
    """
    check: Literal["on", "off"] = "on"
    """Checks what an environment that Coterie does not include returns in the first steps of a run: types, dtypes and
    ranges, flags, and that group rewards are declared. Errors of your own environment end the run; warnings, and errors
    of a library's, are printed once. `coterie check-env` checks more. off: no check.
    """
    out: Path | None = None
    """Run folder. Default: runs/<env>/<algo>/<date>-seed<k>."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    log: LogConfig = LogConfig()
    """Logging."""
    progress: Literal["auto", "rich", "lines", "off"] = "auto"
    """Progress display: rich (a live table), lines, or off; auto is rich in a terminal or notebook and lines otherwise.
    """

    def algo_of(self, team: str) -> Choice:
        """Returns the algorithm of `team`."""
        return self.teams[team].algo if team in self.teams else self.algo

    def algo_key(self, team: str) -> str:
        """Returns the section with the algorithm of `team`: `algo` or `teams.NAME.algo`."""
        return f"teams.{team}.algo" if team in self.teams else "algo"

    def team(self, name: str) -> TeamConfig:
        """Returns the settings of the team `name`: its own, or those of the run."""
        return self.teams.get(name) or TeamConfig(algo=self.algo, rewards=self.rewards, imitation=self.imitation)

    def rollout_length_of(self, team: str) -> int:
        """Returns the rollout length that `team` asks for, see `algorithm_contexts`."""
        return vars(self.algo_of(team).params)["rollout_length"]

    def with_algo_params(self, team: str, values: Mapping[str, Any]) -> RunConfig:
        """Returns the configuration with other values of settings of the algorithm of `team`, which are not checked."""
        algo = self.algo_of(team)
        algo = algo.model_copy(update={"params": algo.params.model_copy(update=values)})
        if team not in self.teams:
            return self.model_copy(update={"algo": algo})
        own = self.teams[team].model_copy(update={"algo": algo})
        return self.model_copy(update={"teams": self.teams | {team: own}})

    def tree(self) -> dict[str, Any]:
        """Returns the configuration as nested dicts, lists and scalars, in the order of the fields."""
        return self.model_dump(mode="json")
