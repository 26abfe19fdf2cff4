"""`coterie bench`, and the scripts in benchmarks/ with tiny durations."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.__main__ import main
from coterie.assembly.resolve import resolve
from coterie.cli.app import run
from coterie.commands.benchmark import PHASES, Stopwatch, bench
from coterie.core.errors import UserError
from coterie.export.export import export
from coterie.reports import estimates
from places import ROOT

BENCHMARKS = ROOT / "benchmarks"
TINY = ["num_envs=2", "threads=1", "device=cpu"]


class InThisProcess(Executor):
    """Executes calls at once, in place of processes that would import PyTorch first."""

    def __init__(self, *_: Any) -> None:
        """Accepts the arguments of a ProcessPoolExecutor."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


# ---------------------------------------------------------------------------------------------------------------- bench


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["algo=mappo", "algo.rollout_length=4"],
        ["algo=ippo", "algo.rollout_length=4", "algo.rnn=gru", "algo.rnn_size=8", "algo.sequence_length=2"],
        ["env=particle/simple_tag", "algo.rollout_length=4", "teams.agent.algo=random"],
        [
            "env=particle/simple_tag",
            "algo.rollout_length=4",
            "teams.agent.algo=ippo",
            "teams.agent.algo.rollout_length=8",
        ],
        ["algo=random", "algo.rollout_length=4"],
    ],
    ids=["feed-forward", "recurrent", "two teams", "two rollout lengths", "no learner"],
)
def test_the_shares_of_the_phases_add_up_to_one(settings: list[str]):
    report = bench(resolve([*TINY, *settings]), 0.1)
    assert json.loads(json.dumps(report)) == report
    assert list(report["time"]) == list(PHASES)
    assert sum(phase["share"] for phase in report["time"].values()) == pytest.approx(1)
    world_by_kernel = settings[0] in ("algo=mappo", "algo=ippo")
    assert report["time"]["acting"]["share"] > 0
    assert (report["time"]["environment"]["share"] > 0) or world_by_kernel
    assert (report["time"]["targets"]["share"] > 0) == (settings[0] != "algo=random")
    assert report["steps_per_s"] > 0
    assert report["world"]["steps_per_s"] > report["steps_per_s"]
    assert report["memory"]["peak_mb"] > 50
    assert report["machine"]["cores"] >= 1
    assert (report["num_envs"], report["rollout_length"], report["threads"], report["device"]) == (2, 4, 1, "cpu")


@pytest.mark.slow
def test_bench_prints_json_or_tables(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert run(["bench", "--seconds", "0.1", "--json", "algo.rollout_length=4", *TINY]) == 0
    assert json.loads(capsys.readouterr().out)["algo"] == "mappo"
    assert run(["bench", "--seconds", "0.1", "algo.rollout_length=4", *TINY]) == 0
    output = capsys.readouterr().out
    assert "steps_per_s" in output
    assert "environment" in output
    assert not list(tmp_path.iterdir())


def test_a_stopwatch_sums_the_time_of_calls_and_keeps_their_results():
    class Sum:
        def of(self, *numbers: float) -> float:
            return sum(numbers)

    watch, timed = Stopwatch(torch.device("cpu")), Sum()
    watch.attach(timed, "of")
    assert timed.of(1, 2, 3) == 6
    first = watch.seconds
    assert first > 0
    assert timed.of() == 0
    assert watch.seconds > first


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.slow
def test_the_learning_benchmark_trains_resumes_and_gathers(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    learning: ModuleType = script("learning")
    monkeypatch.setattr(script("gathering"), "BASELINE_EPISODES", 400)
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    quick = ["--only", "simple-ppo", "--seeds", "0", *places]
    tiny = ["num_envs=4", "algo.rollout_length=26", "eval.every=100"]
    tiny += ["eval.episodes=4", "eval.num_envs=4", "eval.min_episodes=4"]
    assert learning.main([*quick, "steps=200", *tiny]) == 0
    assert learning.main([*quick, "steps=200", *tiny]) == 0
    assert "complete, 200 steps" in capsys.readouterr().out
    (job,) = (job for job in learning.JOBS if job.name == "simple-ppo")
    further = learning.plan(job, 0, learning._parser().parse_args([*quick, "steps=300", *tiny]))
    assert further.words == ["resume", str(tmp_path / "runs" / "simple-ppo" / "seed0"), "steps=300"]
    with pytest.raises(UserError, match=r"other settings \(algo.lr=.*, not 0.9\)\. Add --again"):
        learning.main([*quick, "steps=200", "algo.lr=0.9", *tiny])
    assert learning.main([*quick, "--collect", "--episodes", "20"]) == 0
    found = json.loads((tmp_path / "results" / "learning.json").read_text())
    job = found["jobs"]["simple-ppo"]
    assert job["seeds"]["0"]["steps"] == 200
    assert -60 < job["final"]["agent"]["sum"]["mean"] < 0
    assert -45 < job["baselines"]["random"] < -25
    assert "| simple-ppo | 1 | 200 |" in (tmp_path / "results" / "learning.md").read_text()
    assert (tmp_path / "results" / "learning-simple.png").stat().st_size > 1000


@pytest.mark.slow
def test_every_job_of_the_learning_benchmark_is_a_valid_configuration(script: Any):
    jobs = script("jobs")
    assert len({job.name for job in jobs.JOBS}) == len(jobs.JOBS)
    for job in jobs.JOBS:
        words = jobs.command(job, 3, "somewhere", ("steps=123",))
        assert len({word.partition("=")[0] for word in words}) == len(words)
        config = resolve(words).config
        assert (config.seed, config.steps, config.threads) == (3, 123, 1)


def test_the_scripted_policy_is_better_than_the_random_policy(script: Any, monkeypatch: pytest.MonkeyPatch):
    gathering, jobs = script("gathering"), script("jobs")
    monkeypatch.setattr(gathering, "BASELINE_EPISODES", 300)
    (job,) = (job for job in jobs.JOBS if job.name == "spread-openai-mappo")
    found = gathering.baselines(job)
    assert -245 < found["random"] / 3 < -218
    assert -125 < found["spread_greedily"] / 3 < -105


@pytest.mark.slow
def test_baselines_of_scripts_are_better_than_those_of_random_play(script: Any, tmp_path: Path):
    script("baselines").main(["--episodes", "100", "--battles", "20", "--results", str(tmp_path)])
    found = json.loads((tmp_path / "baselines.json").read_text())
    for world, policies in found["coop"].items():
        assert policies["script"]["return"] > policies["random"]["return"] + 0.5, world
        assert policies["script"]["steps"] < policies["random"]["steps"], world
    assert found["duels"]["attack nearest against random"]["3m_duel"]["left"] > 0.9
    assert "| `coop/pushblock` | script |" in (tmp_path / "baselines.md").read_text()


# ---------------------------------------------------------------------------------------------------------------- speed


@pytest.mark.slow
def test_the_yardstick_learns_and_reports_its_phases(script: Any, monkeypatch: pytest.MonkeyPatch):
    yardstick = script("yardstick")
    monkeypatch.setattr(yardstick, "NUM_ENVS", 4)
    monkeypatch.setattr(yardstick, "STEPS", 30)
    torch.manual_seed(0)
    training = yardstick.Yardstick()
    rows = training.collect()
    assert [tuple(x.shape) for x in rows] == [(4 * 30 * 3, 18), *[(4 * 30 * 3,)] * 5]
    before = [p.clone() for p in training.params]
    training.update(rows)
    assert all(not torch.equal(p, q) for p, q in zip(training.params, before, strict=True))
    found = yardstick.measure(0.01)
    assert set(found) == {"steps_per_s", "steps_per_s_quiet", "collect_ms", "update_ms"}
    assert min(found.values()) > 0


@pytest.mark.slow
def test_the_speed_benchmark_alternates_with_the_yardstick(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    speed = script("speed")
    stick = tmp_path / "stick.py"
    stick.write_text("print(1000)")
    rows = ["--only", "world-128", "--rounds", "1", "--seconds", "0.1", "--threads", "1"]
    assert speed.main([*rows, "--yardstick", str(stick), "--results", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert row["ratio"] == pytest.approx(row["steps_per_s"] / 1000)
    assert row["steps_per_s"] > 0
    assert "simple_spread alone, 128 environments" in capsys.readouterr().out
    assert (tmp_path / "speed.png").stat().st_size > 1000


def test_samples_with_a_slow_yardstick_are_discarded(script: Any):
    speed = script("speed")
    (row,) = (row for row in speed._cases() if row.name == "ippo")
    phases = dict.fromkeys(PHASES, 10.0)

    def taken(mine: float, stick: float) -> dict[str, Any]:
        beside = {"steps_per_s_quiet": stick, "collect_ms": 20.0, "update_ms": 40.0}
        return {"steps_per_s": mine, "phases_ms": phases, "memory": {"peak_mb": 100.0}, "yardstick": beside}

    found = speed.summarize(row, [taken(50, 100), taken(60, 100), taken(5, 20), taken(70, 120), taken(40, 90)])
    assert (found["discarded"], found["steps_per_s"], found["yardstick"], found["range"]) == (1, 55, 100, [40, 70])
    assert found["ratio"] == pytest.approx((0.5 + 70 / 120) / 2)
    content = {**speed.origin(), "rows": [found]}
    page = speed.page(content | {"threads": 1, "yardstick": "", "rounds": 5, "seconds": 1.0})
    assert "| ratio |  |  |  |  |  | 1.50 | 0.50 |" in page


def test_coterie_and_jaxmarl_take_turns_and_each_round_is_saved(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The processes are replaced by their results: yardsticks 100, 100 and 20, which discards the third round."""
    beside, speed = script("jaxmarl_speed"), script("speed")
    versions = {"jax": "1", "jaxlib": "2", "jaxmarl": "3", "commit": None}
    calls: list[str] = []
    stick, mine, theirs = iter([100.0, 100.0, 20.0]), iter([300.0, 200.0, 10.0]), iter([50.0, 150.0, 200.0, 10.0])

    def last_line(words: list[str], threads: int) -> Any:
        calls.append(Path(words[1]).stem)
        if calls[-1] == "yardstick":
            return dict.fromkeys(("steps_per_s", "steps_per_s_quiet"), next(stick))
        if calls[-1] == "speed":
            return {"steps_per_s": 1.0, "mean_steps_per_s": next(mine)}
        return {"steps_per_s": next(theirs), "versions": versions, "words": words[2:]}

    monkeypatch.setattr(speed, "last_line", last_line)
    (tmp_path / "baselines").mkdir()
    places = ["--jaxmarl", str(tmp_path), "--jax-python", "python", "--results", str(tmp_path)]
    given = beside._parser().parse_args([*places, "--rounds", "3", "--seconds", "2"])
    (row,) = (row for row in beside.WORKLOADS if row.name == "rqmix")
    rounds = [beside.summarize(row, list(samples[row])) for samples in beside.measure([row], given)]
    assert calls == ["jaxmarl_baseline", *["yardstick", "speed", "jaxmarl_baseline"] * 3]
    assert [len(found["samples"]) for found in rounds] == [1, 2, 3]
    assert rounds[0]["samples"][0]["jaxmarl"]["words"][1:] == [row.script, row.config, "100", "LEARNING_STARTS=1000"]
    found = rounds[-1]
    assert (found["discarded"], found["ratio"]) == (1, (300 / 150 + 200 / 200) / 2)
    assert found["coterie"] == {"median": 250, "lowest": 200, "highest": 300, "yardsticks": 2.5}
    assert found["jaxmarl"]["yardsticks"] == 1.75

    stick, mine, theirs = iter([100.0]), iter([300.0]), iter([50.0, 150.0])
    assert beside.main([*places, "--rounds", "1", "--only", "rqmix"]) == 0
    saved = (tmp_path / "jaxmarl.md").read_text()
    assert capsys.readouterr().out == f"{saved}\n"
    assert "| 300 (300 to 300) | 150 (150 to 150) | **2.00** | 3.00 | 0.7 | 0 |" in saved
    assert "JaxMARL 3 (commit unknown), jax 1, jaxlib 2" in saved
    (tmp_path / "jaxmarl.md").unlink()
    beside.main(["--page", "--results", str(tmp_path)])
    assert (tmp_path / "jaxmarl.md").read_text() == saved
    content = json.loads((tmp_path / "jaxmarl.json").read_text())
    assert content["jaxmarl"] == versions
    assert [bar["meaning"] for bar in beside.bars(content)] == ["recurrent QMIX, Coterie", "recurrent QMIX, JaxMARL"]


def test_without_jaxmarl_only_coterie_is_measured(script: Any, tmp_path: Path):
    beside = script("jaxmarl_speed")
    sample = {"mean_steps_per_s": 30.0, "yardstick": {"steps_per_s": 10.0, "steps_per_s_quiet": 10.0}}
    rows = [beside.summarize(row, [sample]) for row in beside.WORKLOADS]
    content = {**beside.origin(), "threads": 2, "rounds": 1, "seconds": 1.0, "rows": rows}
    assert "| 30 (30 to 30) | not measured |  | 3.00 | 2.6 | 0 |" in beside.page(content)
    assert len(beside.bars(content)) == len(beside.WORKLOADS)
    beside.main(["--page", "--results", str(tmp_path)])
    assert "Nothing is measured yet." in (tmp_path / "jaxmarl.md").read_text()
    with pytest.raises(UserError, match=r"only one of them is given\. Give both"):
        beside.main(["--jax-python", "python"])
    with pytest.raises(UserError, match=r"no folder baselines in it\. Give a checkout"):
        beside.main(["--jax-python", "python", "--jaxmarl", str(tmp_path)])
    with pytest.raises(UserError, match="--rounds 0: expected at least 1"):
        beside.main(["--rounds", "0"])
    with pytest.raises(UserError, match=r"--only vdm: no such row\. Did you mean 'vdn'\?"):
        beside.main(["--only", "vdm"])


def test_both_libraries_collect_rollouts_of_the_same_size(script: Any):
    speed, beside = script("speed"), script("jaxmarl_speed")
    sizes = {}
    for row in beside.WORKLOADS:
        config = resolve(["env=particle/simple_spread", *speed.case_named(row.case).overrides]).config
        sizes[row.name] = (config.num_envs, config.algo.model_dump()["rollout_length"])
    assert sizes == {"ippo": (128, 128), "rmappo": (128, 128), "rqmix": (8, 26), "vdn": (32, 16), "pqn-vdn": (256, 16)}


@pytest.mark.slow
def test_the_time_to_a_level_is_measured_from_the_start_of_the_command(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The runs train in this process. The first one seems to go on until it is interrupted."""
    measured, signals, polls = script("time_to_level"), [], iter([None] * 9)
    monkeypatch.setattr(measured, "EVALUATION", ("eval.every=100k", "eval.episodes=8", "eval.min_episodes=8"))

    def started(words: list[str], **_: Any) -> Any:
        assert main([*words[3:], *TINY]) == 0
        poll = (lambda: 0) if "steps=100" in words else (lambda: 0 if signals else next(polls, 0))
        return SimpleNamespace(poll=poll, returncode=0, wait=lambda: 0, send_signal=signals.append)

    monkeypatch.setattr(measured, "subprocess", SimpleNamespace(Popen=started))
    measured.main(["--seeds", "1", "--level=-1000", "--steps", "10", "--results", str(tmp_path)])
    (run,) = json.loads((tmp_path / "time_to_level.json").read_text())["runs"]
    assert run["steps"] == 0
    assert run["seconds"] > 0
    assert signals == [signal.SIGINT]
    measured.main(["--seeds", "1", "--level=0", "--steps", "100", "--results", str(tmp_path)])
    assert "| 1 | not reached |  |  |" in (tmp_path / "time_to_level.md").read_text()


@pytest.mark.slow
def test_the_listener_search_is_at_least_as_good_as_the_script(script: Any, capsys: pytest.CaptureFixture[str]):
    script("listener").main(["--episodes", "20", "--width", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert float(lines[2].split()[3]) >= 0


@pytest.mark.slow
@pytest.mark.usefixtures("curves")
def test_the_selfplay_benchmark_writes_all_parts(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The curves of the runs are empty files, because the script looks for them."""

    def plot(runs: Any, out: Path) -> list[Path]:
        out.touch()
        return [out]

    monkeypatch.setattr("coterie.runs.plots.plot", plot)
    selfplay = script("selfplay")
    monkeypatch.setattr(selfplay, "BALL", (*selfplay.BALL, "env.episode_limit=20"))
    monkeypatch.setattr(selfplay, "TAG", selfplay.TAG[:2])
    selfplay.main(["--quick", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)])
    page = (tmp_path / "selfplay.md").read_text()
    assert page.count("\n## ") == 3
    assert (tmp_path / "selfplay_tag.png").stat().st_size > 1000


def test_wider_intervals_contain_the_true_value_more_often(script: Any, monkeypatch: pytest.MonkeyPatch):
    coverage = script("interval_coverage")
    monkeypatch.setattr(coverage, "EXPERIMENTS", 150)
    monkeypatch.setattr(coverage, "SAMPLES", 200)
    few, many = (coverage.coverage(seeds, 1, estimates.mean) for seeds in (2, 20))
    assert few < 0.75
    assert 0.85 < many <= 1


@pytest.mark.slow
def test_the_latency_of_exported_policies_is_measured(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    latency = script("export_latency")
    monkeypatch.setattr(latency, "ROUNDS", 1)
    monkeypatch.setattr(latency, "CALLS", 2)
    monkeypatch.setattr(latency, "NETWORKS", latency.NETWORKS[1:])
    monkeypatch.setattr(latency, "export", lambda run, out, form: export(run, out, "numpy"))  # a graph takes seconds
    latency.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith("us")]
    assert [row[-3] for row in rows] == ["PyTorch", "onnx", "numpy"]
    assert all(float(row[-2]) > 0 for row in rows)


@pytest.mark.slow
def test_all_reduces_are_measured_and_compared_with_the_cost_model_of_a_ring(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A single rank measures in this process. The times of two are those of a ring, to two of which it is fitted."""
    ranks = script("ranks")
    ranks.rank("gloo", 1, tmp_path, 0)
    assert min(json.loads((tmp_path / "found.json").read_text()).values()) > 0
    assert ranks.ring_seconds(4, 1000, 2e-3, 1e5) == pytest.approx(6 * (2e-3 + 1000 / 4e5))
    times = {nbytes: ranks.ring_seconds(2, nbytes, 1e-3, 1e8) for nbytes in ranks._BYTES}
    assert ranks.fitted(2, times) == pytest.approx((1e-3, 1e8))
    monkeypatch.setattr(ranks, "measure_reduces", lambda n, kind: times)
    ranks.main(["--reduce", "2", "--results", str(tmp_path)])
    content = json.loads((tmp_path / "ranks.json").read_text())
    rows = content["model"]["rows"]
    assert [row["bytes"] for row in rows] == list(ranks._BYTES)
    assert [row["model_s"] for row in rows] == pytest.approx([row["gloo_s"] for row in rows])
    assert len(content["model"]["network"]) == 12
    page = (tmp_path / "ranks.md").read_text()
    assert page.count("\n| 2 |") == 5
    assert page.count("\n| 64 |") == 3


@pytest.mark.slow
def test_curves_of_ranks_are_trained_once_and_compared(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The run of two ranks is one of a single rank, in this process, whose settings say that there were two."""
    rank_curves = script("rank_curves")
    monkeypatch.setattr(rank_curves, "RANKS", (1, 2))

    def train(words: list[str], **_: Any) -> None:
        assert main([word for word in words[3:] if not word.startswith("ranks=")]) == 0
        config = Path(words[-1].removeprefix("out=")) / "config.yaml"
        config.write_text(config.read_text().replace("ranks: 1 ", "ranks: 2 " if "ranks=2" in words else "ranks: 1 "))

    monkeypatch.setattr(rank_curves, "subprocess", SimpleNamespace(run=train, DEVNULL=None))
    tiny = ["num_envs=4", "algo.rollout_length=10", "eval.episodes=4", "eval.num_envs=4", "algo.hidden_sizes=[8]"]
    words = ["--seeds", "0", "--steps", "200", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    for _ in range(2):
        assert rank_curves.main([*words, *tiny]) == 0
    assert capsys.readouterr().out.count("complete") == 2
    content = json.loads((tmp_path / "rank_curves.json").read_text())
    assert list(content["ranks"]) == ["1", "2"]
    assert [pair["ranks"] for pair in content["pairs"]] == [[1, 2]]
    for found in content["ranks"].values():
        assert found["mean"] == found["scores"]["0"] == found["curves"]["0"][-1]
    assert "| 1 and 2 | " in (tmp_path / "rank_curves.md").read_text()
    with pytest.raises(UserError, match=r"trained with other settings \(.*rollout_length"):
        rank_curves.main([*words, *tiny, "algo.rollout_length=20"])


# ------------------------------------------------------------------------------------------------------------- defaults


def test_tasks_of_choice_and_report_exist_and_share_none(script: Any):
    tasks = script("default_tasks")
    assert not {task.env for task in tasks.CHOICE} & {task.env for task in tasks.REPORT}
    assert min(len(tasks.CHOICE), len(tasks.REPORT)) >= 10
    for task in (*tasks.CHOICE, *tasks.REPORT):
        others = [f"teams.{team}.algo=random" for team in task.others]
        config = resolve([f"env={task.env}", "algo=ippo", *task.settings, *others]).config
        assert config.env.name == task.env


@pytest.mark.slow
def test_defaults_are_trained_without_presets_of_the_task_and_only_once(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    defaults, tasks = script("defaults"), script("default_tasks")
    task = tasks.Task("matrix/climbing", "agent", steps=100)
    monkeypatch.setitem(defaults.STUDIES, "choice", ((task,), (1000,)))
    monkeypatch.setattr(defaults, "ProcessPoolExecutor", InThisProcess)
    words = ["--choice", "--algos", "mappo", "--seeds", "1000", "--runs", str(tmp_path)]
    for _ in range(2):
        defaults.main(words)
    assert capsys.readouterr().out.count("1/1 default | mappo | matrix/climbing | 1000: ") == 1
    defaults.main([*words, "--variant", "short", "algo.gamma=0.5"])
    found = json.loads((tmp_path / "choice.json").read_text())
    assert [("score" in run, run["command"][-1]) for run in found.values()] == [
        (True, "seed=1000"),
        (True, "algo.gamma=0.5"),
    ]
    defaults.main(["--choice", "--table", "--runs", str(tmp_path)])
    assert "| mappo | short |" in capsys.readouterr().out
