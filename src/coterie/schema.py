"""The configuration of a run as frozen, typed models: what `config.yaml` holds and `coterie train --cfg job` prints."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, model_serializer

from coterie.curriculum.config import AdvanceConfig, CurriculumConfig, Samplers
from coterie.imitation.config import ImitationConfig
from coterie.rewards.config import RewardsConfig

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
MOST_THREADS = 8


def count(value: Any) -> Any:
    """A count as people write it: 1e6, 2_000_000, 20M, 500k. Anything else is handed on as it is."""
    if isinstance(value, str):
        match = re.fullmatch(r"([\d_]*\.?\d+(?:[eE]\d+)?)\s*([kKmMgGbB]?)", value.strip())
        if match:
            value = float(match[1].replace("_", "")) * _SUFFIXES.get(match[2].lower(), 1)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Count = Annotated[int, BeforeValidator(count)]
"""A whole number that may be written 1e6, 2_000_000, 20M or 500k."""


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return value


def _address(value: str) -> str:
    if not re.fullmatch(r"local|auto|(\[[\da-fA-F:]+\]|[\w.-]+):\d+", value):
        raise ValueError("expected local, auto or host:port")
    return value


def available_cores() -> int:
    """Cores that this process may use, by its affinity and its container's quota."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if _CGROUP_LIMIT.exists():
        quota, _, period = _CGROUP_LIMIT.read_text().strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            mine = min(mine, max(1, int(quota) // int(period)))
    return mine


def sensible_threads() -> int:
    """The cores at hand, at most 8: small networks gain nothing by more."""
    return min(available_cores(), MOST_THREADS)


class Model(BaseModel):
    """A frozen configuration: unknown keys are errors, a field's docstring is its help."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class FactoryParams(BaseModel):
    """Whatever a user's own environment factory takes; its own signature says what that is."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


class Choice(Model):
    """A name and the typed parameters of what it names; on disk one flat mapping: {name: mappo, lr: 0.0007, ...}."""

    name: str
    """Which one, e.g. `mappo`, `ippo/yardstick`, `particle/simple_spread`, `package.module:factory`."""
    params: SerializeAsAny[BaseModel]
    """The configuration of the class that the name stands for."""

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"name": self.name, **self.params.model_dump(mode="json")}


class TeamConfig(Model):
    """A team that differs from the rest: in its algorithm, a key of it, or in the roles that form it."""

    algo: Choice
    """The team's own algorithm, complete; where it is the top one, keys that were not given are the top one's."""
    rewards: RewardsConfig = RewardsConfig()
    """What the team is rewarded for; keys that were not given are the top section's, if the team learns."""
    imitation: ImitationConfig = ImitationConfig()
    """What the team's policy is fitted to; keys that were not given are the top section's, if the team learns."""
    roles: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Environment roles that form the team; by default the roles of the group that bears the team's name."""


class EvalConfig(Model):
    """Evaluation on copies of its own."""

    every: Count | None = Field(default=None, ge=0, le=10**15)
    """Environment steps between two evaluations; by default a twentieth of the run; 0 switches them off."""
    episodes: Count = Field(default=128, ge=1, le=10**7)
    """Episodes an evaluation, rounded up to the same number in every copy."""
    mode: Literal["auto", "greedy", "sample"] = "auto"
    """How actions are picked; `auto` is what the algorithm was published with."""
    copies: Count = Field(default=64, ge=1, le=10**6)
    """Copies of the environment for evaluation."""


class WorkersConfig(Model):
    """Processes that step copies of outside libraries' environments; worlds that come with Coterie need none."""

    count: int = Field(default=0, ge=0, le=1024)
    """Worker processes for training, and as many for evaluation; 0 steps all copies in the trainer's own process. The
    results are the same bits for any number.
    """
    kind: Literal["processes", "ray"] = "processes"
    """What workers are: processes of this machine, or actors of Ray, on this machine or a cluster (needs the extra
    `coterie[ray]`).
    """
    address: Annotated[str, AfterValidator(_address)] = "local"
    """Where Ray is: local starts one that ends with the trainer, auto finds the one that runs on this machine,
    host:port joins the one there.
    """
    overlap: bool = False
    """Steps one half of the copies while the policies act on the other, with `count` workers for each half. The results
    are the same bits for any number of workers, but may differ in the last bit from those without.
    """
    timeout: float = Field(default=60.0, gt=0, le=86_400)
    """Seconds that a step of all a worker's copies may take; a worker that takes longer is replaced."""
    restarts: int = Field(default=10, ge=0)
    """Workers that are replaced before the run ends. Episodes of a worker that fails are dropped."""


class SelfPlayConfig(Model):
    """Opponents from the learners' own past."""

    opponents: Literal["off", "latest", "uniform", "recency", "pfsp"] = "off"
    """Whom episodes are played against: off is no self-play; latest, always the present policy; uniform, any snapshot;
    recency, later ones more often, in proportion to their rank; pfsp, those more often that are hard to beat.
    """
    every: Count | None = Field(default=None, ge=1, le=10**15)
    """Environment steps between two snapshots; by default a twentieth of the run."""
    gate: float | None = Field(default=None, gt=0.5, le=1)
    """A snapshot that is due is made only if the policy wins at least this share of its games against the pool, draws
    counted half; null: always.
    """
    window: int = Field(default=10, ge=1, le=1000)
    """Snapshots that opponents are drawn from, the newest ones."""
    latest: float = Field(default=0.5, ge=0, le=1)
    """Share of episodes against the present policy; the rest are against snapshots."""
    power: float = Field(default=2.0, ge=0, le=100)
    """Of pfsp: chances are in proportion to (1 - win rate)^power."""
    memory: Count = Field(default=200, ge=1, le=10**9)
    """Episodes against one opponent that its win rate is a mean of, later ones counting more."""
    sides: Literal["auto", "both", "first", "turns"] = "auto"
    """Who learns: both, one policy that plays the first side in every other copy and the second in the rest; first, one
    policy that learns on the first side; turns, a policy a side, by turns (see `turns`); auto is both where the
    environment says that its sides are equal, else turns.
    """
    games: Count = Field(default=128, ge=2, le=10**7)
    """Episodes against the pool that rate a snapshot, rounded up to the same number in every evaluation copy."""

    @property
    def on(self) -> bool:
        """Whether there is any."""
        return self.opponents != "off"


class TurnsConfig(Model):
    """Teams that learn one after the other while the rest act as they are."""

    every: Count | None = Field(default=None, ge=1, le=10**15)
    """Environment steps of a turn, at most where `until` is given; null without `until`: all teams learn at once, in
    self-play by turns of a tenth of the run.
    """
    until: AdvanceConfig | None = None
    """What ends a turn: a logged metric past a threshold, e.g. {metric: "eval/{team}/return_mean", above: 20}, where
    {team} is the first team of the turn.
    """
    order: tuple[str | tuple[str, ...], ...] = ()
    """Who learns in each turn, a team or several; by default each team that learns, one after the other."""
    repeat: bool = True
    """After the last turn comes the first again; else the last one stays."""


class CheckpointConfig(Model):
    """What is kept to go on from."""

    every: Count | None = Field(default=None, ge=0, le=10**15)
    """Environment steps between two checkpoints; by default a twentieth of the run; 0 leaves only the last one."""
    keep: bool = False
    """Every checkpoint stays, not only `last`, the one before it, and `best`."""


class LogConfig(Model):
    """Where metrics go besides `metrics.jsonl`."""

    tensorboard: bool = True
    """Writes TensorBoard event files into the run folder."""
    wandb: bool = False
    """Sends metrics to Weights & Biases (needs the extra `coterie[wandb]`)."""
    mlflow: bool = False
    """Sends metrics to MLflow (needs the extra `coterie[mlflow]`)."""
    every: int = Field(default=1, ge=1, le=10**9)
    """Updates between two rows of metrics."""


class RunConfig(Model):
    """Everything that a run is made of."""

    algo: Choice
    """The algorithm of every team that has none of its own."""
    env: Choice
    """The environment."""
    teams: dict[str, TeamConfig] = Field(default_factory=dict)
    """Teams that differ from the rest, by name; teams that are not named here take the top `algo` and `rewards`."""
    rewards: RewardsConfig = RewardsConfig()
    """What teams are rewarded for."""
    imitation: ImitationConfig = ImitationConfig()
    """Demonstrations that policies are fitted to."""
    selfplay: SelfPlayConfig = SelfPlayConfig()
    """Self-play."""
    turns: TurnsConfig = TurnsConfig()
    """Teams that learn by turns."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Lessons."""
    randomise: Samplers = Field(default_factory=dict)
    """Parameters of the environment that every episode of every copy draws anew, by name; lessons go before them."""
    steps: Count = Field(default=1_000_000, ge=1, le=10**15)
    """Environment steps in all, over all copies; the run ends at the first window at or past them."""
    copies: Count = Field(default=128, ge=1, le=10**7)
    """Copies of the environment that are stepped together."""
    workers: WorkersConfig = WorkersConfig()
    """Worker processes."""
    horizon: Count | None = Field(default=None, ge=1, le=10**6)
    """Steps of every copy in one window; by default the algorithm's."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """The one number that all randomness comes from."""
    device: Annotated[str, AfterValidator(_device)] = "auto"
    """Where networks and built-in worlds live: auto (a GPU if there is one), cpu, cuda or cuda:N."""
    threads: int = Field(default_factory=sensible_threads, ge=1, le=1024)
    """Threads of PyTorch; by default the cores at hand, at most 8. Results are equal bits for equal threads only."""
    out: Path | None = None
    """The run folder; by default runs/<env>/<algo>/<date>-seed<k>."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    log: LogConfig = LogConfig()
    """Logs."""
    progress: Literal["auto", "rich", "lines", "off"] = "auto"
    """The display while training: rich on a terminal, lines elsewhere (auto), or off."""

    def algo_of(self, team: str) -> Choice:
        """The algorithm that trains `team`."""
        return self.teams[team].algo if team in self.teams else self.algo

    def rewards_of(self, team: str) -> RewardsConfig:
        """What `team` is rewarded for."""
        return self.teams[team].rewards if team in self.teams else self.rewards

    def imitation_of(self, team: str) -> ImitationConfig:
        """What `team`'s policy is fitted to."""
        return self.teams[team].imitation if team in self.teams else self.imitation

    def tree(self) -> dict[str, Any]:
        """The configuration as plain dicts, lists and scalars, in the order of the fields."""
        return self.model_dump(mode="json")
