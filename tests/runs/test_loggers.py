from __future__ import annotations

import json
import math
import resource
import signal
import sys

import numpy as np
import pytest
import torch
from hypothesis import given

from coterie.core.errors import UserError
from coterie.runs.loggers import JsonlLogger, Logger, Loggers, NullLogger, TensorBoardLogger, complete_bytes, read
from coterie.runs.summary import summarize
from coterie.runs.trackers import Labels, MlflowLogger, WandbLogger
from mutations import FUZZ, assert_one_line, mutated

ROW = {"steps": 10, "eval/adversary/return_mean": 1.5, "loss/policy": math.nan}


class Recorder(Logger):
    def __init__(self):
        self.calls = []

    def write(self, row):
        self.calls.append(row)

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


def test_several_loggers_are_combined_into_one():
    first, second = Recorder(), Recorder()
    both = Loggers([first, NullLogger(), second])
    both.write(ROW)
    both.flush()
    both.close()
    assert first.calls == second.calls == [ROW, "flush", "close"]


# ---------------------------------------------------------------------------------------------------------- JSON Lines


def test_entries_are_strict_json_lines_and_are_flushed_immediately(tmp_path):
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    row = {"steps": 3, "a": 0.1, "b": math.inf, "c": -math.inf, "d": math.nan, "e": np.float32(0.5), "f": np.int64(2)}
    logger.write({**row, "g": torch.tensor(1.5), "h": True, "i": np.float64(math.nan)})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == (
        '{"steps": 3, "a": 0.1, "b": null, "c": null, "d": null, "e": 0.5, "f": 2, "g": 1.5, "h": 1, "i": null}\n'
    )
    logger.close()
    logger.close()


def test_a_reopened_file_is_appended_to(tmp_path):
    for steps in (1, 2, 3):
        logger = JsonlLogger(tmp_path / "m")
        logger.write({"steps": steps})
        assert logger.position() == (tmp_path / "m").stat().st_size
        logger.close()
    assert [row["steps"] for row in read(tmp_path / "m")] == [1, 2, 3]


def test_resuming_removes_entries_written_after_the_checkpoint(tmp_path):
    logger = JsonlLogger(tmp_path / "m")
    logger.write({"steps": 1})
    position = logger.position()
    logger.write({"steps": 2})
    logger.write({"steps": 3})
    logger.close()
    logger = JsonlLogger(tmp_path / "m")
    logger.truncate(position)
    assert logger.position() == position
    logger.write({"steps": 2, "again": 1})
    logger.close()
    assert read(tmp_path / "m") == [{"steps": 1}, {"steps": 2, "again": 1}]


@pytest.mark.parametrize("incomplete", [b"{", b'{"steps": 2}', b"x" * 200_000])
def test_an_incomplete_last_line_is_removed_before_appending(tmp_path, incomplete):
    (tmp_path / "m").write_bytes(b'{"steps": 1}\n' + incomplete)
    logger = JsonlLogger(tmp_path / "m")
    logger.write({"steps": 2})
    logger.close()
    assert (tmp_path / "m").read_bytes() == b'{"steps": 1}\n{"steps": 2}\n'


@pytest.mark.parametrize(("position", "size"), [(0, 0), (5, 0), (13, 13), (20, 13), (26, 26), (1000, 26)])
def test_truncating_keeps_complete_lines_and_never_extends_the_file(tmp_path, position, size):
    (tmp_path / "m").write_bytes(b'{"steps": 1}\n{"steps": 2}\n')
    logger = JsonlLogger(tmp_path / "m")
    logger.truncate(position)
    assert logger.position() == size
    logger.close()


def write_often(logger, row):
    for _ in range(100):
        logger.write(row)


def test_a_full_disk_is_a_one_line_error_and_leaves_complete_entries(tmp_path):
    logger = JsonlLogger(tmp_path / "m")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    row = {"steps": 1, "loss/policy": 0.123456789}
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"^cannot write the file .*m: File too large\. Free some space"):
            write_often(logger, row)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    count = len(read(tmp_path / "m"))
    assert (tmp_path / "m").read_text() == (json.dumps(row) + "\n") * count
    assert count > 10
    logger.write(row)
    assert len(read(tmp_path / "m")) == count + 1
    logger.close()


def test_a_path_that_cannot_be_written_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "m", tmp_path):
        with pytest.raises(UserError, match=r"^cannot write the file .*\. Choose another folder\.$"):
            JsonlLogger(path)


def test_reading_ignores_an_incomplete_last_line_and_converts_null_to_nan(tmp_path):
    (tmp_path / "m").write_bytes(b'{"steps": 1, "a": null}\n{"steps": 2')
    rows = read(tmp_path / "m")
    assert len(rows) == 1
    assert rows[0]["steps"] == 1
    assert math.isnan(rows[0]["a"])
    (tmp_path / "m").write_bytes(b'{"steps": 1}\n{"steps": 2}')
    assert [row["steps"] for row in read(tmp_path / "m")] == [1, 2]
    assert read(tmp_path / "none") == []


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"3", b"\xff", b"", b"{}", b'{"steps": 2, "a": "x"}', b'{"steps": 2, "a": []}']
)
def test_reading_raises_an_error_that_names_an_invalid_line(tmp_path, line):
    (tmp_path / "m").write_bytes(b'{"steps": 1}\n' + line + b'\n{"steps": 3}\n')
    with pytest.raises(UserError, match=r"m: line 2 is not a JSON object of numbers with `steps`\. Remove the line"):
        read(tmp_path / "m")


ENTRIES = b"".join(
    b'{"steps": %d, "eval/a/return_mean": %f, "selfplay/elo": null, "time/wall_s": 1e-3, "lesson/index": 1}\n' % (i, i)
    for i in range(3)
)


@pytest.mark.slow
@FUZZ
@given(content=mutated(ENTRIES))
def test_mutated_metrics_are_read_and_summarized_or_refused_in_one_line(content, tmp_path):
    (tmp_path / "m").write_bytes(content)
    try:
        assert complete_bytes(tmp_path / "m", 10**6) <= len(content)
        rows = read(tmp_path / "m")
    except UserError as error:
        assert_one_line(str(error))
    else:
        assert all(line.isprintable() for line in summarize(tmp_path, rows, 100).text().splitlines())


# --------------------------------------------------------------------------------------------------------- TensorBoard


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_logs_against_steps_and_purges_steps_that_resuming_repeats(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    for steps in (10, 20, 30):
        logger.write({"steps": steps, "eval/return_mean": steps / 4, "loss/policy": math.nan, "n": np.int64(3)})
    logger.flush()
    logger.close()
    logger.close()
    assert scalars(tmp_path, "eval/return_mean") == [(10, 2.5), (20, 5.0), (30, 7.5)]
    (events,) = tmp_path.iterdir()
    # Files are read in the order of their names: first the second, then a number that is 10 after 9.
    events.rename(tmp_path / "events.out.tfevents.0000000001.earlier")
    logger = TensorBoardLogger(tmp_path, purge_step=20)
    logger.write({"steps": 25, "eval/return_mean": 1.0})
    logger.close()
    assert scalars(tmp_path, "eval/return_mean") == [(10, 2.5), (20, 5.0), (25, 1.0)]


def test_tensorboard_shows_what_matters_first_and_the_settings(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    settings = {"algo.lr": 1e-3, "algo.rnn": "gru", "algo.hidden_sizes": [8, 8], "algo.share": True, "env.x": None}
    logger = TensorBoardLogger(tmp_path, settings=settings, returns=["eval/a/return_mean"])
    row = {"eval/a/return_mean": 2.0, "eval/b/return_mean": 3.0, "eval/a/metric/won": 0.5, "rollout/return_mean": 1.0}
    logger.write({"steps": 5, "alternate/index": 1, "time/steps_per_s": 9, **row})
    logger.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = sorted(events.Tags()["scalars"])
    assert tags[:5] == [
        "0_overview/evaluation/a/won",
        "0_overview/evaluation_return/a",
        "0_overview/evaluation_return/b",
        "0_overview/steps_per_s",
        "0_overview/training_return",
    ]
    assert scalars(tmp_path, "0_overview/evaluation_return/b") == [(5, 3.0)]
    found = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = plugin_data_pb2.HParamsPluginData.FromString(found).session_start_info.hparams
    assert given["algo.lr"].number_value == 1e-3
    assert (given["algo.rnn"].string_value, given["algo.share"].string_value) == ("gru", "true")
    assert (given["algo.hidden_sizes"].string_value, given["env.x"].string_value) == ("[8,8]", "null")
    metrics = events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    infos = plugin_data_pb2.HParamsPluginData.FromString(metrics).experiment.metric_infos
    assert [info.name.tag for info in infos] == ["eval/a/return_mean"]


def test_a_tensorboard_folder_that_cannot_be_created_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot write the folder .*file/tensorboard: "):
        TensorBoardLogger(tmp_path / "file" / "tensorboard")


@pytest.mark.parametrize(
    ("module", "make", "install"),
    [
        ("wandb", lambda path: WandbLogger(path, Labels("p", "n"), {}), r"pip install -e '\S+\[wandb\]'$"),
        ("mlflow", lambda path: MlflowLogger(path, Labels("p", "n"), {}), r"pip install -e '\S+\[mlflow\]'$"),
        ("torch.utils.tensorboard", TensorBoardLogger, r"pip install tensorboard$"),
    ],
)
def test_a_missing_library_is_an_error_with_the_command_that_installs_it(tmp_path, monkeypatch, module, make, install):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"^log\.\w+: .* is not installed .*: .*" + install):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []
