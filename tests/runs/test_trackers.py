"""Loggers of experiment trackers, with replacements that have the interface of the real clients."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.envs.video import write_video
from coterie.runs.summary import summarize
from coterie.runs.trackers import Labels, MlflowLogger, WandbLogger, trackers

ROW = {"steps": 10, "eval/adversary/return_mean": 1.5}
LABELS = Labels("coterie", "my run", "seeds", ("paper", "small"))


class FakeWandb(ModuleType):
    """A replacement for the wandb package that records calls."""

    def __init__(self):
        super().__init__("wandb")
        self.calls = []
        self.run = SimpleNamespace(
            define_metric=lambda *a, **k: self.calls.append(("define_metric", a, k)),
            log=lambda row: self.calls.append(("log", row)),
            finish=lambda: self.calls.append(("finish",)),
        )

    def Settings(self, **settings):
        return settings

    def init(self, **arguments):
        self.calls.append(("init", arguments))
        return self.run


def test_wandb_logs_against_steps_and_a_resumed_run_keeps_its_id(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        logger = WandbLogger(tmp_path, LABELS, {"algo": {"lr": 1e-3}}, mode="offline")
        logger.write(ROW)
        logger.flush()
        logger.close()
        logger.close()
    names = [call[0] for call in fake.calls]
    assert names == ["init", "define_metric", "log", "finish"] * 2
    first, second = fake.calls[0][1], fake.calls[4][1]
    assert first == second
    assert len(first["id"]) == 12
    assert first["dir"] == str(tmp_path)
    assert (first["project"], first["name"], first["mode"]) == ("coterie", "my run", "offline")
    assert (first["group"], first["tags"]) == ("seeds", ["paper", "small"])
    assert first["config"] == {"algo": {"lr": 1e-3}}
    assert first["resume"] == "allow"
    assert fake.calls[1] == ("define_metric", ("*",), {"step_metric": "steps"})
    assert fake.calls[2] == ("log", ROW)


def summary_of(tmp_path):
    rows = [{"steps": steps, "eval/return_mean": value} for steps, value in ((0, 1.0), (10, 3.0), (20, 2.0))]
    return summarize(tmp_path, rows, 20, random={"agent": 0.5})


def test_wandb_shows_videos_and_the_summary_as_a_table(tmp_path, monkeypatch):
    fake = FakeWandb()
    fake.run.summary = {}
    fake.Video = lambda path, format: ("video", path, format)
    fake.Table = lambda columns, data: dict(zip(columns, data[0], strict=True))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger = WandbLogger(tmp_path, LABELS, {})
    logger.video(7, tmp_path / "000000000007.gif")
    logger.summarize(summary_of(tmp_path))
    (_, video), (_, table) = fake.calls[2:4]
    assert video == {"video": ("video", str(tmp_path / "000000000007.gif"), "gif"), "steps": 7}
    expected = {"random": 0.5, "start": 1.0, "now": 2.0, "best": 3.0, "best_steps": 10}
    assert table == {"summary": {"team": "team", **expected}, "steps": 20}
    assert fake.run.summary == {f"return/{name}": value for name, value in expected.items()}


@pytest.mark.slow
def test_the_real_client_of_wandb_takes_rows_videos_and_the_summary(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write_video(tmp_path / "a.gif", np.zeros((3, 32, 32, 3), np.uint8))
    logger = WandbLogger(tmp_path, LABELS, {"algo": {"lr": 1e-3}}, mode="offline")
    logger.write(ROW)
    logger.video(10, tmp_path / "a.gif")
    logger.summarize(summary_of(tmp_path))
    logger.close()
    (media,) = (tmp_path / "wandb").glob("offline-run-*/files/media")
    assert len(list((media / "videos").glob("*.gif"))) == 1
    assert len(list((media / "table").glob("*.json"))) == 1


class FakeMlflow(ModuleType):
    """A replacement for the mlflow package with one experiment that records calls."""

    def __init__(self):
        super().__init__("mlflow")
        self.calls, self.experiments, self.down = [], {}, False
        self.entities = ModuleType("mlflow.entities")
        self.entities.Metric = lambda key, value, timestamp, step: (key, value, step)  # type: ignore[attr-defined]
        self.exceptions = SimpleNamespace(MlflowException=type("MlflowException", (Exception,), {}))

    def MlflowClient(self, tracking_uri):
        self.calls.append(("client", tracking_uri))
        if self.down:
            raise self.exceptions.MlflowException("no route\nto host")
        return self

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name):
        self.experiments[name] = SimpleNamespace(experiment_id="7")
        return "7"

    def create_run(self, experiment, *, tags, run_name):
        self.calls.append(("create_run", experiment, run_name, tags))
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def update_run(self, run_id, status):
        self.calls.append(("update_run", run_id, status))

    def log_param(self, run_id, key, value):
        self.calls.append(("log_param", run_id, key, value))

    def log_batch(self, run_id, metrics):
        if self.down:
            raise self.exceptions.MlflowException("no route to host")
        self.calls.append(("log_batch", run_id, metrics))

    def set_terminated(self, run_id):
        self.calls.append(("set_terminated", run_id))


@pytest.fixture
def mlflow(monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return fake


def test_mlflow_logs_settings_and_metrics_and_continues_a_resumed_run(tmp_path, mlflow, monkeypatch):
    """The resumed run continues in the same store, also from another folder."""
    for place in (tmp_path, tmp_path / "run"):
        place.mkdir(exist_ok=True)
        (tmp_path / "run").mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        logger = MlflowLogger(tmp_path / "run", LABELS, {"algo": {"lr": 1e-3}, "seed": 3})
        logger.write({**ROW, "loss/policy": 2})
        logger.flush()
        logger.close()
        logger.close()
    batch = ("log_batch", "abc", [("eval/adversary/return_mean", 1.5, 10), ("loss/policy", 2.0, 10)])
    assert mlflow.calls == [
        ("client", (tmp_path / "mlruns").as_uri()),
        ("create_run", "7", "my run", {"paper": "true", "small": "true", "group": "seeds"}),
        ("log_param", "abc", "algo.lr", 1e-3),
        ("log_param", "abc", "seed", 3),
        batch,
        ("set_terminated", "abc"),
        ("client", (tmp_path / "mlruns").as_uri()),
        ("update_run", "abc", "RUNNING"),
        batch,
        ("set_terminated", "abc"),
    ]


def test_mlflow_batches_contain_at_most_1000_metrics(tmp_path, mlflow):
    logger = MlflowLogger(tmp_path, LABELS, {}, uri="http://localhost:1")
    logger.write({"steps": 1, **{f"a/{i}": i for i in range(2500)}})
    assert mlflow.calls[0] == ("client", "http://localhost:1")
    assert [len(call[2]) for call in mlflow.calls if call[0] == "log_batch"] == [1000, 1000, 500]


def test_runs_share_one_mlflow_store(tmp_path, mlflow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        MlflowLogger(tmp_path / name, LABELS, {})
    stores = [call[1] for call in mlflow.calls if call[0] == "client"]
    assert stores == [(tmp_path / "mlruns").as_uri()] * 2
    (tmp_path / "old" / "mlruns").mkdir(parents=True)  # runs had a store of their own
    MlflowLogger(tmp_path / "old", LABELS, {})
    last = [call[1] for call in mlflow.calls if call[0] == "client"][-1]
    assert last == (tmp_path / "old" / "mlruns").as_uri()


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "http://localhost:5000", "databricks", "file:///tmp/store"])
def test_any_mlflow_store_can_be_used(tmp_path, mlflow, uri):
    for _ in range(2):
        MlflowLogger(tmp_path, LABELS, {}, uri=uri)
    assert [call[:2] for call in mlflow.calls if call[0] in ("client", "update_run")] == [
        ("client", uri), ("client", uri), ("update_run", "abc")
    ]  # fmt: skip
    MlflowLogger(tmp_path, LABELS, {}, uri="http://localhost:9")  # another store has no such run
    assert mlflow.calls[-1][0] == "create_run"


def started(words, folder):
    config = resolve(words).config
    return trackers(config.log, folder, env=config.env.name, settings=config.tree())


def test_the_settings_of_a_run_select_the_labels(tmp_path, mlflow, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.chdir(tmp_path)
    words = ["log.wandb=true", "log.mlflow=true", "log.mlflow_uri=sqlite:///all.db"]
    (tmp_path / "plain").mkdir()
    started(words, tmp_path / "plain")
    labels = ["log.project=thesis", "log.group=lr", "log.name=first", "log.tags=[a,b]"]
    (tmp_path / "labeled").mkdir()
    started([*words, *labels], tmp_path / "labeled")
    chosen = [{key: call[1][key] for key in ("project", "group", "name", "tags")} for call in fake.calls[::2]]
    assert chosen == [
        {"project": "coterie", "group": None, "name": "plain", "tags": []},
        {"project": "thesis", "group": "lr", "name": "first", "tags": ["a", "b"]},
    ]
    assert set(mlflow.experiments) == {"particle/simple_spread", "thesis"}
    created = [call[2:] for call in mlflow.calls if call[0] == "create_run"]
    assert created == [("plain", {}), ("first", {"a": "true", "b": "true", "group": "lr"})]
    assert {call[1] for call in mlflow.calls if call[0] == "client"} == {"sqlite:///all.db"}


def test_an_unreachable_mlflow_server_is_a_one_line_error(tmp_path, mlflow):
    mlflow.down = True
    with pytest.raises(
        UserError, match=r"^MLflow rejected the run: no route. Check its tracking URI http://localhost:3.$"
    ):
        MlflowLogger(tmp_path, LABELS, {}, uri="http://localhost:3")


def test_training_continues_if_the_mlflow_server_fails(tmp_path, mlflow):
    logger = MlflowLogger(tmp_path, LABELS, {})
    mlflow.down = True
    with pytest.warns(UserWarning, match="MLflow: logging stopped .no route"):
        logger.write(ROW)
    logger.write(ROW)
    logger.close()
    assert mlflow.calls[-1][0] == "create_run"
