from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import yaml
from PIL import Image

from coterie.core.errors import UserError
from coterie.runs.curves import Run, group_runs
from coterie.runs.plots import PlotOptions, draw, mean_and_band, plot, sparkline


def make(path: Path, seed: int = 0, algo: str = "mappo", env: str = "particle/simple_spread", **more) -> Path:
    """Writes a run with one point per 1,000 steps. more: points, teams, levels, config, area."""
    points, teams = more.get("points", 5), more.get("teams", ("",))
    path.mkdir(parents=True)
    config = {"algo": {"name": algo, "lr": 1e-3}, "env": {"name": env}, "seed": seed, "steps": 10**6}
    config.update(more.get("config", {}))
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "manifest.json").write_text(json.dumps({"seed": seed, "levels": more.get("levels", {})}))
    with open(path / "metrics.jsonl", "w") as file:
        for i in range(points):
            row: dict = {"steps": i * 1000, "time/wall_s": i * (10 + seed)}
            for team in teams:
                name = "/".join(word for word in (more.get("area", "eval"), team, "return_mean") if word)
                row[name] = i + seed * 10.0
            file.write(json.dumps(row) + "\n")
    return path


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def load(*paths: Path) -> list[Run]:
    return [Run.load(path) for path in paths]


# ------------------------------------------------------------------------------------------------------------ sparkline


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1], "▁"),
        ([2, 2, 2], "▁▁▁"),
        ([0, 7], "▁█"),
        (list(range(8)), "▁▂▃▄▅▆▇█"),
        ([0, math.nan, 7], "▁ █"),
        ([math.nan, math.inf], "  "),
        (list(range(80)), "▁▂▃▄▅▆▇█"),
    ],
)
def test_a_sparkline_scales_values_to_eight_bars(values, bars):
    assert sparkline(values, 8) == bars


# ------------------------------------------------------------------------------------------------------------- grouping


def test_runs_that_differ_only_in_seed_and_logging_are_one_group(tmp_path):
    first = make(tmp_path / "a", seed=0, config={"log": {"wandb": True}, "eval": {"every": 10, "mode": "greedy"}})
    second = make(tmp_path / "b", seed=1, config={"out": "x", "threads": 1, "eval": {"every": 20, "mode": "greedy"}})
    assert list(group_runs(load(first, second))) == ["mappo"]


def test_groups_are_named_by_the_settings_that_differ(tmp_path):
    plain = make(tmp_path / "a")
    ippo = make(tmp_path / "b", algo="ippo")
    slow = make(tmp_path / "c", config={"algo": {"name": "mappo", "lr": 1e-4, "epochs": 3}})
    greedy = make(tmp_path / "d", config={"eval": {"mode": "greedy"}})
    other_env = make(tmp_path / "e", env="particle/simple_tag")
    groups = group_runs(load(plain, ippo, slow, greedy, other_env))
    assert {label: [run.path.name for run in runs] for label, runs in groups.items()} == {
        "mappo lr=0.001": ["a"],
        "ippo": ["b"],
        "mappo lr=0.0001 epochs=3": ["c"],
        "mappo lr=0.001 eval.mode=greedy": ["d"],
        "mappo": ["e"],
    }


def test_groups_with_equal_shortened_labels_are_not_merged(tmp_path):
    runs = [make(tmp_path / str(i), config={"a": 1, "b": 1, "c": 1, "d": i, "e": {}}) for i in range(2)]
    more = make(tmp_path / "m", config={"a": 2, "b": 2, "c": 2, "d": 2})
    assert list(group_runs(load(*runs, more))) == ["mappo a=1 b=1 c=1", "mappo a=1 b=1 c=1'", "mappo a=2 b=2 c=2"]


# -------------------------------------------------------------------------------------------------------- mean and band


def test_the_band_of_up_to_four_seeds_is_their_minimum_and_maximum():
    x = np.array([0.0, 1.0, 2.0])
    grid, mean, low, high = mean_and_band([(x, np.array([0.0, 1, 2])), (x, np.array([2.0, 3, 10]))])  # type: ignore[misc]
    assert grid.tolist() == [0, 1, 2]
    assert mean.tolist() == [1, 2, 6]
    assert low.tolist() == [0, 1, 2]
    assert high.tolist() == [2, 3, 10]


def test_different_grids_are_interpolated_where_all_seeds_have_data():
    first = (np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    second = (np.array([4.0, 20.0]), np.array([0.0, 16.0]))
    grid, mean, low, high = mean_and_band([first, second])  # type: ignore[misc]
    assert (grid[0], grid[-1], len(grid)) == (4.0, 10.0, 300)
    assert mean[[0, -1]].tolist() == [2.0, 8.0]
    assert low[[0, -1]].tolist() == [0.0, 6.0]
    assert high[[0, -1]].tolist() == [4.0, 10.0]


def test_the_band_of_more_seeds_is_the_bootstrap_interval_of_their_mean():
    x = np.array([0.0, 1.0])
    values = np.random.default_rng(1).normal(size=(20, 2))
    grid, mean, low, high = mean_and_band([(x, row) for row in values])  # type: ignore[misc]
    assert grid.tolist() == [0, 1]
    np.testing.assert_allclose(mean, values.mean(axis=0))
    half = 1.96 * values.std(axis=0) / math.sqrt(20)
    np.testing.assert_allclose(low, mean - half, atol=0.1)
    np.testing.assert_allclose(high, mean + half, atol=0.1)
    np.testing.assert_allclose(high - low, 2 * half, rtol=0.1)  # an interval of 90% would be 16% narrower


def test_five_seeds_have_a_bootstrap_interval_within_their_minimum_and_maximum():
    x, values = np.array([0.0]), np.array([[0.0], [1], [2], [3], [4]])
    _, _, low, high = mean_and_band([(x, row) for row in values])  # type: ignore[misc]
    assert 0 < low[0] < 2 < high[0] < 4


def test_curves_that_do_not_overlap_have_no_mean():
    assert mean_and_band([(np.array([0.0, 1.0]), np.zeros(2)), (np.array([2.0, 3.0]), np.zeros(2))]) is None


# --------------------------------------------------------------------------------------------------------------- curves


def test_a_curve_is_sorted_finite_and_without_duplicates(tmp_path):
    path = make(tmp_path / "a", points=0)
    lines = [
        {"steps": 20, "time/wall_s": 2, "eval/return_mean": 1},
        {"steps": 10, "time/wall_s": 1, "eval/return_mean": 5},
        {"steps": 30, "eval/return_mean": None},
        {"steps": 20, "time/wall_s": 3, "eval/return_mean": 2},
        {"steps": 40, "eval/return_mean": 7, "eval/return_mean/agent_0": 99},
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    curve = Run.load(path).curve("", "eval/return_mean")
    assert curve is not None
    assert curve.steps.tolist() == [10, 20, 40]
    assert curve.value.tolist() == [5, 2, 7]
    assert curve.wall_s[:2].tolist() == [1, 3]
    assert math.isnan(curve.wall_s[2])
    assert Run.load(path).curve("", "rollout/return_mean") is None
    assert Run.load(path).curve("red", "eval/return_mean") is None


def test_a_long_curve_is_downsampled_by_averaging(tmp_path):
    complete = Run.load(make(tmp_path / "a", points=2000)).curve("", "eval/return_mean")
    assert complete is not None
    assert len(complete.steps) == 2000
    curve = complete.downsampled()
    assert len(curve.steps) == 500
    assert curve.value.mean() == pytest.approx(999.5)
    assert (np.diff(curve.steps) > 0).all()


# --------------------------------------------------------------------------------------------------------------- figure


def test_the_figure_groups_seeds_and_its_legend_explains_the_bands(tmp_path):
    levels = {"random": {"agent": -1.0}, "published": {"agent": 30.0}}
    runs = [make(tmp_path / f"m{seed}", seed, levels=levels) for seed in range(3)]
    runs += [make(tmp_path / f"i{seed}", seed, algo="ippo") for seed in range(6)]
    runs += [make(tmp_path / "p", algo="ppo", seed=7)]
    figure = draw(load(*runs))
    assert texts(figure) == [
        "mappo (3 seeds: mean, min to max)",
        "ippo (6 seeds: mean, 95% CI)",
        "ppo (seed 7)",
        "random policy",
        "published score",
    ]
    left, right = figure.axes
    assert left.get_title(loc="left") == "particle/simple_spread"
    assert (left.get_xlabel(), right.get_xlabel()) == ("environment steps (thousands)", "wall time (seconds)")
    assert left.get_ylabel() == "team return in evaluation"
    for panel in (left, right):
        assert len(panel.collections) == 2
        colors = {line.get_color() for line in panel.get_lines()}
        assert colors == {"#0072B2", "#D55E00", "#009E73", "0.35"}
    thick = [line for line in left.get_lines() if line.get_linewidth() == 1.8]
    assert len(thick) == 3
    assert thick[0].get_xdata().tolist() == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    assert thick[0].get_ydata().tolist() == [10, 11, 12, 13, 14]  # type: ignore[union-attr]


def test_training_and_evaluation_returns_are_not_mixed(tmp_path):
    trained = make(tmp_path / "a", area="rollout")
    both = make(tmp_path / "b", seed=1)
    with open(both / "metrics.jsonl", "a") as file:
        file.write('{"steps": 9000, "time/wall_s": 1, "rollout/return_mean": 3}\n')
        file.write('{"steps": 9500, "time/wall_s": 2, "rollout/return_mean": 4}\n')
    figure = draw(load(trained, both))
    assert figure.axes[0].get_ylabel() == "team return in training"
    assert draw(load(both)).axes[0].get_ylabel() == "team return in evaluation"


def test_random_policies_of_several_runs_are_one_line(tmp_path):
    runs = [make(tmp_path / str(k), seed=k, levels={"random": {"agent": float(k)}}) for k in range(3)]
    runs.append(make(tmp_path / "i", algo="ippo", levels={"random": {"agent": 5.0}}))
    figure = draw(load(*runs))
    lines = [line for line in figure.axes[0].get_lines() if line.get_color() == "0.35"]
    assert [np.asarray(line.get_ydata()).tolist() for line in lines] == [[2.0, 2.0]]  # the mean of 0, 1, 2 and 5
    larger = {"env": {"name": "particle/simple_spread", "n": 9}}
    runs.append(make(tmp_path / "n", levels={"random": {"agent": -9.0}}, config=larger))
    lines = [line for line in draw(load(*runs)).axes[0].get_lines() if line.get_color() == "0.35"]
    assert len(lines) == 2  # another task has a random policy of its own


def test_metrics_axis_and_smoothing_are_selected(tmp_path):
    path = make(tmp_path / "a", points=0)
    rows = [{"steps": 10 * i, "time/wall_s": 2.0 * i, "loss/policy": float(i * i)} for i in range(6)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = PlotOptions(metrics=("loss/policy",), x="seconds", smooth=3)
    (panel,) = draw(load(path), options).axes
    assert panel.get_xlabel() == "wall time (seconds)"
    assert panel.get_ylabel() == "loss/policy\n(mean of 3 log entries)"
    (line,) = panel.get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [0, 2, 4, 6, 8, 10]
    expected = [0, 1 / 2, 5 / 3, 14 / 3, 29 / 3, 50 / 3]  # means of 0, 0-1, 0-4, 1-9, 4-16, 9-25
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx(expected)


def test_runs_are_grouped_by_a_setting(tmp_path):
    runs = [
        make(tmp_path / f"{algo}{lr}", algo=algo, config={"algo": {"name": algo, "lr": lr}})
        for algo in ("mappo", "ippo") for lr in (0.1, 0.2)
    ]  # fmt: skip
    figure = draw(load(*runs), PlotOptions(group_by="algo.lr"))
    assert texts(figure) == ["algo.lr=0.1 (2 runs: mean, min to max)", "algo.lr=0.2 (2 runs: mean, min to max)"]
    assert [text.split(" ")[0] for text in texts(draw(load(*runs), PlotOptions(group_by="algo")))] == ["mappo", "ippo"]
    with pytest.raises(UserError, match=r"--group-by algo.l: not a setting of these runs. Did you mean 'algo.lr'"):
        draw(load(*runs), PlotOptions(group_by="algo.l"))


# ---------------------------------------------------------------------------------------------------------------- files


def test_the_table_contains_the_values_of_the_log(tmp_path):
    run = make(tmp_path / "a", teams=("adversary", "agent"), seed=3)
    files = plot([run], options=PlotOptions(csv=True, pdf=True, smooth=2))
    assert [file.name for file in files] == ["curves.png", "curves.svg", "curves.pdf", "curves.csv"]
    assert files[2].read_bytes().startswith(b"%PDF-")
    assert files[2].read_bytes().rstrip().endswith(b"%%EOF")
    with open(files[3], newline="") as file:
        lines = list(csv.DictReader(file))
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for team in ("adversary", "agent"):
        own = [line for line in lines if line["team"] == team]
        assert [int(line["steps"]) for line in own] == [row["steps"] for row in logged]
        assert [float(line["seconds"]) for line in own] == [row["time/wall_s"] for row in logged]
        values = [row[f"eval/{team}/return_mean"] for row in logged]
        assert [float(line["value"]) for line in own] == values
        assert [float(line["smoothed"]) for line in own] == [
            values[0], *((a + b) / 2 for a, b in itertools.pairwise(values))
        ]  # fmt: skip
    assert {(line["env"], line["algo"], line["seed"], line["metric"]) for line in lines} == {
        ("particle/simple_spread", "mappo", "3", "eval/return_mean")
    }


@pytest.mark.slow
def test_png_and_svg_are_written_to_the_folder_of_the_run(tmp_path):
    run = make(tmp_path / "a")
    files = plot([run])
    assert files == [run / "curves.png", run / "curves.svg"]
    with Image.open(files[0]) as picture:
        assert picture.width == 1840
        assert len(picture.convert("L").getcolors() or [0] * 99) > 50
    assert files[1].read_text().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("out", "names"),
    [
        ("x", ["x.png", "x.svg"]),
        ("deep/er/x.svg", ["deep/er/x.png", "deep/er/x.svg"]),
        ("x.pdf", ["x.pdf"]),
        ("runs", ["runs/curves.png", "runs/curves.svg"]),
    ],
)
def test_figures_are_written_to_the_requested_path(tmp_path, monkeypatch, out, names):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "runs" / "a"), make(tmp_path / "runs" / "b", seed=1)
    files = plot([Path("runs")], None if out is None else Path(out))
    assert [str(file) for file in files] == names
    assert all(file.stat().st_size > 1000 for file in files)


def test_runs_that_cannot_be_plotted_raise_one_line_errors(tmp_path):
    run = make(tmp_path / "a")
    with pytest.raises(UserError, match=r"no such run"):
        plot([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="not a run"):
        plot([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"x.jpg: unsupported file type .jpg. Expected .png, .svg or .pdf.$"):
        plot([run], tmp_path / "x.jpg")
    with pytest.raises(UserError, match=r"^cannot write the figure .*\. Choose another folder"):
        plot([run], run / "config.yaml" / "x.png")
    with pytest.raises(UserError, match=r"b: no returns to plot yet. Train longer.$"):
        plot([make(tmp_path / "b", points=0)])
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"config.yaml:1: invalid YAML: expected the node content"):
        plot([run])
    with pytest.raises(UserError, match="plot: no returns to plot yet"):
        plot([])


@pytest.mark.slow
def test_plotting_does_not_change_the_global_settings_of_matplotlib(tmp_path):
    def settings() -> dict:
        return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}

    before = settings()
    plot([make(tmp_path / "a")])
    assert settings() == before


def test_values_that_are_too_large_to_draw_are_one_line(tmp_path):
    run = make(tmp_path / "run")
    with open(run / "metrics.jsonl", "a") as file:
        for i, value in enumerate((1e308, -1e308)):
            file.write(json.dumps({"steps": 9000 + i, "eval/return_mean": value}) + "\n")
    with pytest.raises(UserError, match=r"cannot be drawn, its log contains values beyond 1e\+300"):
        plot([run], tmp_path / "plot.png")


def write_returns(run: Path, values: list[float], **more: float) -> Path:
    """Replaces the log of a run by these evaluations."""
    rows = [{"steps": 1000 * k, "time/wall_s": float(k), "eval/return_mean": v, **more} for k, v in enumerate(values)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_the_curve_of_a_single_run_has_a_band_of_its_standard_error(tmp_path):
    run = write_returns(make(tmp_path / "a"), [1.0, 2.0, 3.0], **{"eval/return_error": 0.5})
    figure = draw(load(run))
    (band,) = figure.axes[0].collections
    corners = np.asarray(band.get_paths()[0].vertices)
    assert corners[:, 1].min() == pytest.approx(1.0 - 1.96 * 0.5, abs=1e-3)
    assert corners[:, 1].max() == pytest.approx(3.0 + 1.96 * 0.5, abs=1e-3)
    assert texts(figure)[0] == "mappo (seed 0: 95% CI over episodes)"
    smoothed = draw(load(run), PlotOptions(smooth=2)).axes[0].collections[0]
    corners = np.asarray(smoothed.get_paths()[0].vertices)
    assert corners[:, 1].max() == pytest.approx(2.5 + 1.96 * 0.5 / math.sqrt(2), abs=1e-3)


def test_an_early_outlier_does_not_squeeze_a_curve(tmp_path):
    learned = [-80.0, -9000.0, *np.linspace(-60, -20, 18)]
    axes = draw(load(write_returns(make(tmp_path / "a"), learned))).axes[0]
    low, high = axes.get_ylim()
    assert -100 < low < -80
    assert -20 < high < 0
    assert [text.get_text() for text in axes.texts] == ["↓ -9000"]


@pytest.mark.parametrize("values", [[-80.0, -60, -50, -40, -35, -30, -28, -26, -25, -24], [0.0] * 9 + [-900.0]])
def test_a_fast_rise_and_a_late_fall_are_shown(tmp_path, values: list[float]):
    axes = draw(load(write_returns(make(tmp_path / "a"), values))).axes[0]
    assert axes.get_ylim()[0] < min(values)
    assert not axes.texts
