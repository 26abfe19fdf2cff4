from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from coterie.core import files, serialize
from coterie.core.errors import UserError
from coterie.core.serialize import CorruptError, Segment, Written, compare
from coterie.runs import checkpoints
from coterie.runs.checkpoints import Checkpoints, load, save
from mutations import FUZZ, assert_one_line, mutated
from tinyruns import Process, save_forever


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch):
    """Replaces fsync by a no-op: it is slow on a busy disk, and these tests need no durability."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def same(a, b) -> bool:
    """Returns True if both have the same structure, types and bits."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a).equal(bits(b))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.tobytes() == b.tobytes() and a.shape == b.shape
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


def rich_state() -> dict:
    base = torch.randn(6, 5)
    return {
        "weight": base,
        "transposed": base.T,
        "row": base[2],
        "strided": base[::2, 1:],
        "expanded": torch.randn(3, 1).expand(3, 7),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "empty": torch.zeros(0, 4),
        "also empty": torch.zeros(3, 0, dtype=torch.int64),
        "scalar": torch.tensor(3.5),
        "generator": torch.Generator().manual_seed(1).get_state(),
        "nan": torch.tensor([math.nan, math.inf, -math.inf, -0.0]),
        "types": [torch.zeros(3, dtype=t) for t in serialize.NATIVE],
        "odd types": [
            torch.tensor([1, 2], dtype=t) for t in (torch.uint16, torch.uint32, torch.uint64, torch.complex64)
        ],
        "complex": torch.randn(2, 2, dtype=torch.complex128).conj(),
        "complex scalar": torch.tensor(1 + 2j),
        "one number": torch.randn(1, 3, dtype=torch.complex64)[:, 0],
        "float8": torch.randn(3).to(torch.float8_e4m3fn),
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}, 1: {}}, "param_groups": [{"betas": (0.9, 0.999)}]},
        "keys": {1: "a", True + 1: "b", (1, "x"): "c", None: "d", 0.5: "e", "1": "f"},
        "numpy": {"state": np.random.default_rng(3).bit_generator.state, "array": np.arange(3, dtype=np.uint32)},
        "numpy scalar array": np.array(2.5),
        "ints": [0, -1, 2**63 - 1, 2**63, -(2**63), -(2**64), 2**127 + 1, 10**5000],
        "floats": [0.1, 1e-320, -0.0, math.pi, math.nan, math.inf, -math.inf, 1e308, 1.0],
        "bools": [True, False, None, 1, 0],
        "strings": ["", "tensor", "ü🙂\n\0", "\ud800", "a/b"],
        "nested": ((), [], {}, ([{"x": ()}],)),
        "a/b": torch.tensor([1]),
        "a": {"b": torch.tensor([2])},
        "__metadata__": torch.tensor([3]),
        "": {"": torch.tensor([4])},
        "tensor": {"tensor": "dict"},
    }


def small_state(value: float = 1.0) -> dict:
    return {"weight": torch.full((4, 3), value), "steps": 7, "name": "x"}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "checkpoints" / "000000000010"


# -------------------------------------------------------------------------------------------------- a single checkpoint


def test_every_kind_of_leaf_is_restored_bit_for_bit(path):
    state = rich_state()
    save(path, state, {"return": 1.5, "who": ("me", None), "mean": torch.tensor([1, 2])})
    loaded, metadata = load(path)
    for key in state:
        assert same(state[key], loaded[key]) or isinstance(state[key], torch.nn.Parameter), key
    assert same(state["parameter"].detach(), loaded["parameter"])
    assert list(loaded) == list(state)
    assert same(metadata, {"return": 1.5, "who": ("me", None), "mean": torch.tensor([1, 2])})


def test_saving_a_loaded_checkpoint_writes_the_same_bytes(path, tmp_path):
    save(path, rich_state(), {"a": 1})
    save(tmp_path / "again", *load(path))
    for name in ("state.safetensors", "state.json", "SHA256SUMS"):
        assert (path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_subclasses_of_plain_types_are_loaded_as_plain_types(path):
    state = {"weights": OrderedDict(a=torch.ones(1)), "size": torch.Size([2]), "x": np.float32(0.1), "n": np.int64(3)}
    save(path, state, {})
    loaded, _ = load(path)
    assert same(loaded, {"weights": {"a": torch.ones(1)}, "size": (2,), "x": float(np.float32(0.1)), "n": 3})


def test_loaded_tensors_do_not_share_storage(path):
    shared = torch.zeros(4)
    save(path, {"a": shared, "b": shared, "c": shared[1:]}, {})
    loaded, _ = load(path)
    loaded["a"].add_(1)
    assert loaded["b"].sum() == 0
    assert loaded["c"].shape == (3,)
    assert shared.sum() == 0


@pytest.mark.parametrize("leaf", [{1, 2}, object(), b"bytes", torch.eye(2).to_sparse(), 1j, np.array(["a"])])
def test_an_unsupported_leaf_is_an_error_that_names_its_path_and_nothing_is_written(path, leaf):
    with pytest.raises(TypeError, match="learner/1/odd"):
        save(path, {"learner": [0, {"odd": leaf}]}, {})
    assert not path.parent.exists()


def test_a_checkpoint_is_three_files_without_pickles(path):
    save(path, small_state(), {"a": math.nan})
    assert sorted(file.name for file in path.iterdir()) == ["SHA256SUMS", "state.json", "state.safetensors"]
    text = (path / "state.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["format"] == 1
    if shutil.which("sha256sum"):
        assert (
            subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=path, capture_output=True).returncode == 0
        )


def test_files_and_folder_are_flushed_before_the_checkpoint_is_renamed(path, monkeypatch):
    calls, rename, write = [], Path.rename, files.write_bytes
    monkeypatch.setattr(checkpoints, "sync_folder", lambda folder: calls.append(folder.name))
    monkeypatch.setattr(
        checkpoints, "write_bytes", lambda file, content: (write(file, content), calls.append(file.name))
    )
    monkeypatch.setattr(Path, "rename", lambda self, to: (calls.append(f"rename {to.name}"), rename(self, to))[1])
    save(path, small_state(), {})
    written = ["state.safetensors", "state.json", "SHA256SUMS"]
    assert calls == [*written, f".writing-{path.name}", f"rename {path.name}", "checkpoints"]


def test_saving_over_a_checkpoint_replaces_it(path):
    save(path, small_state(1), {"n": 1})
    save(path, small_state(2), {"n": 2})
    state, metadata = load(path)
    assert state["weight"].unique().tolist() == [2.0]
    assert metadata == {"n": 2}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "SHA256SUMS"])
def test_a_change_of_any_byte_is_detected(path, name):
    save(path, small_state(), {})
    content = (path / name).read_bytes()
    for offset in range(len(content)):
        flip = (1, 32, 255)[offset % 3]
        (path / name).write_bytes(content[:offset] + bytes([content[offset] ^ flip]) + content[offset + 1 :])
        with pytest.raises(CorruptError):
            load(path)
    (path / name).write_bytes(content)
    assert load(path)[0]["steps"] == 7


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "SHA256SUMS"])
def test_a_truncated_or_missing_file_is_detected(path, name):
    save(path, small_state(), {})
    content = (path / name).read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        (path / name).write_bytes(content[:size])
        with pytest.raises(CorruptError):
            load(path)
    (path / name).unlink()
    with pytest.raises(CorruptError, match=name):
        load(path)


def rewrite(path: Path, change) -> None:
    """Changes state.json and updates its hash, as if another version had written it."""
    tree = json.loads((path / "state.json").read_text())
    change(tree)
    (path / "state.json").write_text(json.dumps(tree))
    lines = [f"{checkpoints._hash((path / n).read_bytes())}  {n}\n" for n in ("state.safetensors", "state.json")]
    (path / "SHA256SUMS").write_text("".join(lines))


def test_a_newer_format_is_a_one_line_error(path):
    save(path, small_state(), {})
    rewrite(path, lambda tree: tree.update(format=2, state={"novel": 1}))
    with pytest.raises(
        UserError, match=r"format 2, but this version of Coterie reads up to 1. Update Coterie."
    ) as caught:
        load(path)
    assert not isinstance(caught.value, CorruptError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"format": "1"},
        {"state": {"novel": 1}},
        {"state": {}},
        {"state": {"tensor": "nobody"}},
        {"state": {"int": "zz"}},
        {"state": {"items": [1]}},
    ],
)
def test_invalid_content_with_a_valid_hash_is_a_corrupt_checkpoint(path, change):
    save(path, small_state(), {})
    rewrite(path, lambda tree: tree.update(change))
    with pytest.raises(CorruptError):
        load(path)


# ----------------------------------------------------------------------------------------------------------- comparison


def test_compare_names_every_different_leaf():
    expected = {"body": [{"w": torch.zeros(64, 18)}], "steps": 1, "old": torch.zeros(2), "n": None, "e": {}}
    found = {"body": [{"w": torch.zeros(128, 18)}], "steps": 2, "new": (1.0,), "n": "x", "e": []}
    assert compare(expected, found) == [
        "body/0/w: expected float32 [64, 18], found float32 [128, 18]",
        "old: expected float32 [2], found nothing",
        "n: expected nothing, found str",
        "e: expected empty dict, found empty list",
        "new/0: expected nothing, found float",
    ]


def test_compare_includes_types_and_is_empty_for_equal_shapes():
    assert compare({"a": torch.zeros(2)}, {"a": torch.ones(2)}) == []
    assert compare({"a": torch.zeros(2)}, {"a": torch.zeros(2).double()}) == [
        "a: expected float32 [2], found float64 [2]"
    ]
    state = {key: value for key, value in rich_state().items() if key != "__metadata__"}
    assert compare(state, state) == []


# ------------------------------------------------------------------------------------------------- checkpoints of a run


def test_the_last_two_the_best_and_numbered_checkpoints_are_kept(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints")
    assert store.latest() is None
    assert store.load_best() is None
    for steps in range(100, 900, 100):
        store.save(steps, small_state(steps), {"n": steps}, best=steps == 300, numbered=steps in (100, 500))
    assert [int(path.name) for path in store.all()] == [100, 300, 500, 700, 800]
    latest, best = store.latest(), store.load_best()
    assert latest is not None
    assert (latest.steps, latest.metadata, latest.warning) == (800, {"n": 800}, None)
    assert latest.path == tmp_path / "checkpoints" / "000000000800"
    assert best is not None
    assert (best.steps, best.warning, best.state["weight"][0, 0].item()) == (300, None, 300.0)
    assert (tmp_path / "checkpoints" / "last").read_text() == "000000000800\n"


def test_the_best_checkpoint_of_each_team_is_kept_until_a_better_one_is_saved(tmp_path):
    store = Checkpoints(tmp_path)
    for steps in range(0, 900, 100):
        teams = ["red"] if steps in (100, 200) else ["a/b c"] if steps == 300 else []
        store.save(steps, small_state(steps), {}, best=steps == 100, best_of=teams)
    assert [int(path.name) for path in store.all()] == [100, 200, 300, 700, 800]
    assert store.teams_with_best() == ["a/b c", "red"]
    assert (store.best_steps(), store.best_steps("red"), store.best_steps("a/b c")) == (100, 200, 300)
    assert store.load_best("red").state["weight"][0, 0] == 200
    assert store.load_best("blue").warning == "no checkpoint is marked as best-blue. Using the checkpoint of 800 steps."


def test_a_numbered_checkpoint_is_loaded_by_its_steps(tmp_path):
    store = Checkpoints(tmp_path)
    for steps in (10, 20, 30):
        store.save(steps, small_state(steps), {"n": steps}, numbered=True)
    found = store.load_steps(20)
    assert found is not None
    assert (found.steps, found.metadata, found.warning, found.path.name) == (20, {"n": 20}, None, "000000000020")
    nearest = store.load_steps(25)
    assert nearest is not None
    assert (nearest.steps, nearest.warning) == (
        20,
        "there is no checkpoint of 25 steps. Using the nearest before it, of 20 steps.",
    )
    assert store.load_steps(9) is None
    (found.path / "state.json").unlink()
    with pytest.raises(CorruptError, match="no readable state"):
        store.load_steps(20)


def test_keep_counts_the_newest_and_is_at_least_two(tmp_path):
    store = Checkpoints(tmp_path, keep=3)
    for steps in (1, 2, 3, 4, 5):
        store.save(steps, small_state(), {})
    assert [int(path.name) for path in store.all()] == [3, 4, 5]
    with pytest.raises(ValueError, match="expected at least 2"):
        Checkpoints(tmp_path, keep=1)


def test_a_corrupt_last_checkpoint_falls_back_to_the_previous_one_with_a_warning(tmp_path):
    store = Checkpoints(tmp_path)
    for steps in (10, 20):
        store.save(steps, small_state(steps), {})
    (tmp_path / "000000000020" / "state.safetensors").write_bytes(b"")
    found = store.latest()
    assert found is not None
    assert found.steps == 10
    assert found.warning is not None
    assert (
        "000000000020: corrupt, state.safetensors does not match its hash. Using the checkpoint of 10 steps"
        in found.warning
    )
    store.save(15, small_state(15), {})
    assert [int(path.name) for path in store.all()] == [10, 15]


def test_the_error_names_the_reasons_if_all_checkpoints_are_corrupt(tmp_path):
    store = Checkpoints(tmp_path)
    for steps in (10, 20):
        store.save(steps, small_state(steps), {})
        (tmp_path / f"{steps:012d}" / "state.json").unlink()
    with pytest.raises(CorruptError, match=r"no intact checkpoint .*0020: no readable state.json.*0010"):
        store.latest()


@pytest.mark.parametrize("content", [None, "nonsense", "000000000099"])
def test_an_invalid_last_file_falls_back_to_the_newest_checkpoint_with_a_warning(tmp_path, content):
    store = Checkpoints(tmp_path)
    for steps in (10, 20):
        store.save(steps, small_state(steps), {})
    (tmp_path / "last").unlink() if content is None else (tmp_path / "last").write_text(content)
    found = store.latest()
    assert found is not None
    assert found.steps == 20
    assert found.warning == "no checkpoint is marked as last. Using the checkpoint of 20 steps."


@pytest.mark.parametrize("number", [1, 2])
def test_the_first_checkpoint_is_never_left_without_being_marked_as_best(tmp_path, monkeypatch, number):
    """A process is killed before it writes one of the pointers to its first checkpoint, which a run resumes from."""
    store, writes = Checkpoints(tmp_path), []

    def killed(path, text):
        writes.append(path.name)
        if len(writes) == number:
            raise KeyboardInterrupt
        files.write_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save(0, {"w": torch.zeros(2)}, {}, best=True)
    assert len(writes) == number
    assert store.latest() is None or (store.has_best() and store.load_best().warning is None)


def test_a_corrupt_best_checkpoint_falls_back_to_the_last_one_with_a_warning(tmp_path):
    store = Checkpoints(tmp_path)
    for steps in (10, 20, 30):
        store.save(steps, small_state(steps), {}, best=steps == 10)
    (tmp_path / "000000000010" / "SHA256SUMS").write_text("")
    best = store.load_best()
    assert best is not None
    assert best.steps == 30
    assert "000000000010: corrupt" in str(best.warning)


def test_a_checkpoint_of_a_newer_format_is_not_skipped(tmp_path):
    store = Checkpoints(tmp_path)
    for steps in (10, 20):
        store.save(steps, small_state(steps), {})
    rewrite(tmp_path / "000000000020", lambda tree: tree.update(format=99))
    with pytest.raises(UserError, match="format 99"):
        store.latest()


def test_other_files_are_not_changed(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "000000000005").write_text("a file")
    (tmp_path / "12").mkdir()
    store = Checkpoints(tmp_path)
    for steps in (10, 20, 30):
        store.save(steps, small_state(), {})
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "12").is_dir()
    assert (tmp_path / "000000000005").is_file()


# ------------------------------------------------------------------------------------------------------------- segments


def segment(value: float) -> Segment:
    """Returns a segment: a large part of a state that does not change."""
    return Segment(lambda: {"marks": torch.tensor([True]), "values": torch.full((50,), float(value))}, Written())


def with_segments(*segments: Segment, value: float = 1.0) -> dict:
    return {**small_state(value), "replay": dict(enumerate(segments))}


def files_of(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in (folder / "segments").iterdir()}


def test_segments_are_read_bit_for_bit(path, tmp_path):
    one, two = segment(1), segment(2)
    save(path, with_segments(one, two), {})
    state, _ = load(path)
    assert same(state["replay"][0].read(), one.read())
    assert same(state["replay"][1].read(), two.read())
    assert state["replay"][1].written.digest == two.written.digest
    save(tmp_path / "elsewhere" / path.name, state, {})
    again, _ = load(tmp_path / "elsewhere" / path.name)
    assert same(again["replay"][1].read(), two.read())
    assert files_of(path.parent).keys() == files_of(tmp_path / "elsewhere").keys()


def test_a_segment_file_is_named_by_the_hash_of_its_content(path):
    one = segment(1)
    save(path, with_segments(one), {})
    content = (path.parent / "segments" / f"{one.written.digest}.safetensors").read_bytes()
    assert checkpoints._hash(content) == one.written.digest
    assert one.written.digest in (path / "state.json").read_text()


def test_a_segment_is_read_and_written_once(tmp_path):
    reads = []
    store, one = Checkpoints(tmp_path), Segment(lambda: reads.append(1) or {"x": torch.ones(3)}, Written())
    store.save(10, with_segments(one), {})
    before = files_of(tmp_path)
    store.save(20, with_segments(one), {})
    assert (len(reads), files_of(tmp_path)) == (1, before)
    (tmp_path / "segments" / next(iter(before))).unlink()  # a missing file is written again
    store.save(30, with_segments(one), {})
    assert len(reads) == 2
    assert files_of(tmp_path).keys() == before.keys()


def test_segments_are_kept_while_one_of_the_newest_checkpoints_refers_to_them(tmp_path):
    store, segments = Checkpoints(tmp_path), [segment(i) for i in range(5)]
    for i in range(4):
        store.save(i, with_segments(segments[i], segments[i + 1]), {}, best=i == 0, numbered=i == 1)
        names = {f"{segments[k].written.digest}.safetensors" for k in range(max(0, i - 1), i + 2)}
        assert files_of(tmp_path).keys() == names, i
    best, numbered = store.load_best(), store.load_steps(1)
    assert best is not None
    assert (best.steps, best.warning) == (0, None)
    assert numbered is not None
    assert numbered.steps == 1
    with pytest.raises(CorruptError, match="is missing or cannot be read"):
        best.state["replay"][0].read()


def test_a_checkpoint_without_its_segments_is_incomplete_but_its_policies_can_be_loaded(tmp_path):
    store, one = Checkpoints(tmp_path / "run"), segment(1)
    copied = shutil.copytree(store.save(10, with_segments(one), {}), tmp_path / "copied" / "000000000010")
    with pytest.raises(CorruptError, match=rf"copied/000000000010: incomplete, .*{one.written.digest}.* is missing"):
        load(copied)
    assert load(copied, segments=False)[0]["steps"] == 7
    other = Checkpoints(tmp_path / "copied")
    with pytest.raises(CorruptError, match="copy the folder `segments`"):
        other.latest()
    found = other.latest(segments=False)
    assert found is not None
    assert found.steps == 10
    shutil.copytree(tmp_path / "run" / "segments", tmp_path / "copied" / "segments")
    assert same(load(copied)[0]["replay"][0].read(), one.read())


def test_a_corrupt_segment_falls_back_to_the_previous_checkpoint(tmp_path):
    store, one, two = Checkpoints(tmp_path), segment(1), segment(2)
    store.save(10, with_segments(one), {})
    store.save(20, with_segments(one, two), {})
    file = tmp_path / "segments" / f"{two.written.digest}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    found = store.latest()
    assert found is not None
    assert found.steps == 10
    assert "is not what was written" in str(found.warning)


def test_partially_written_segments_are_removed_and_other_files_are_kept(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(10, with_segments(segment(1)), {})
    (tmp_path / "segments" / ".writing-abc").write_bytes(b"half")
    (tmp_path / "segments" / "notes.txt").write_text("mine")
    store.save(20, small_state(), {})
    store.save(30, small_state(), {})
    assert list(files_of(tmp_path)) == ["notes.txt"]


# ----------------------------------------------------------------------------------------------- crashes and full disks


class Crash(BaseException):
    """A crash of the process, after which no clean-up code runs."""


WRITING = (
    *((os, name) for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "open")),
    (files, "write_bytes"),
)


class Disk:
    """Counts calls that write to the disk. Call `fail_at` raises the error, and so do all calls after a crash."""

    def __init__(self, monkeypatch, fail_at: int | None, error: BaseException, torn: bool = False):
        self.calls, self.fail_at, self.error, self.torn, self.crashed = 0, fail_at, error, torn, False
        for module, name in WRITING:
            monkeypatch.setattr(module, name, self._counting(getattr(module, name), name))
        monkeypatch.setattr(checkpoints, "write_bytes", files.write_bytes)

    def _counting(self, call, name):
        def counted(*args, **kwargs):
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return call(*args, **kwargs)  # reading and syncing folders changes nothing
            fails = self.crashed or self.calls == self.fail_at
            self.calls += 1
            if not fails:
                return call(*args, **kwargs)
            if name == "write_bytes" and self.torn and not self.crashed:
                Path(args[0]).write_bytes(args[1][: len(args[1]) // 2])
            self.crashed = isinstance(self.error, Crash)
            raise self.error

        return counted


def prepared(folder: Path) -> Checkpoints:
    store = Checkpoints(folder)
    for steps in (10, 20, 30):
        store.save(steps, with_segments(segment(steps), segment(steps + 10), value=steps), {}, best=steps == 10)
    return store


def scenario(store: Checkpoints, replacing: bool) -> None:
    state = with_segments(segment(40), segment(50), value=40)
    store.save(30 if replacing else 40, state, {}, best=True, numbered=True)


def count_calls(folder: Path, replacing: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        store = prepared(folder)
        disk = Disk(patch, None, Crash())
        scenario(store, replacing)
    return disk.calls


@pytest.mark.slow
@pytest.mark.parametrize(("replacing", "torn"), [(False, False), (True, True)])
def test_a_crash_at_any_write_leaves_complete_checkpoints_only(tmp_path, replacing, torn):
    total = count_calls(tmp_path / "count", replacing)
    assert total > 10
    for fail_at in range(total):
        folder = tmp_path / f"{fail_at}"
        store = prepared(folder)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, fail_at, Crash(), torn)
            with pytest.raises(Crash):
                scenario(store, replacing)
        for path in store.all():
            load(path, segments=False)
        found, best = store.latest(), store.load_best()
        assert found is not None
        assert found.warning is None, (fail_at, found.warning)
        value = found.state["weight"][0, 0].item()
        assert value in (30.0, 40.0)
        assert [part.read()["values"][0].item() for part in found.state["replay"].values()] == [value, value + 10]
        assert best is not None
        assert best.warning is None
        assert best.state["weight"][0, 0].item() in (10.0, 40.0)
        store.save(50, small_state(50), {})
        assert not [*folder.glob(".*"), *folder.glob("segments/.*")], fail_at
        values = [load(path, segments=path in store.all()[-2:])[0]["weight"][0, 0].item() for path in store.all()]
        assert values[-2:] in ([30.0, 50.0], [40.0, 50.0])


@pytest.mark.slow
@pytest.mark.parametrize(("replacing", "number"), [(False, errno.ENOSPC), (True, errno.EIO)])
def test_a_failing_disk_is_a_one_line_error_and_the_previous_checkpoint_is_kept(tmp_path, replacing, number):
    total, refused = count_calls(tmp_path / "count", replacing), 0
    for fail_at in range(total):
        folder = tmp_path / f"{fail_at}"
        store = prepared(folder)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, fail_at, OSError(number, os.strerror(number)))
            try:
                scenario(store, replacing)
            except UserError as error:
                message = str(error)
            else:  # an error from creating an existing folder is ignored
                message = "cannot write nothing. Free some space"
                assert load(store.all()[-1])[0]["weight"][0, 0] == 40
        assert re.fullmatch(r"cannot write .*\. (Free some space|Choose another folder).*", message)
        refused += "nothing" not in message
        found = store.latest()
        assert found is not None
        assert found.warning is None
        assert found.state["weight"][0, 0].item() in (30.0, 40.0)
        assert not [*folder.glob(".writing-*"), *folder.glob("segments/.writing-*")]
        store.save(50, small_state(50), {})
        assert store.latest().steps == 50  # type: ignore[union-attr]
    assert refused >= total - 3


def test_an_interrupt_while_writing_leaves_no_files(path, monkeypatch):
    save(path, small_state(1), {})
    monkeypatch.setattr(checkpoints, "write_bytes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        save(path, small_state(2), {})
    assert load(path)[0]["weight"][0, 0] == 1
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("where", ["file/checkpoints", "file"])
def test_a_folder_that_cannot_be_created_is_a_one_line_error(tmp_path, where):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"^cannot write .*file.*\. Choose another folder\.$"):
        Checkpoints(tmp_path / where).save(1, small_state(), {})
    with pytest.raises(UserError, match=r"^cannot write the checkpoint .*\. Choose another folder\.$"):
        save(tmp_path / where / "x", small_state(), {})


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_not_the_last(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)
    store.save(1, small_state(), {})
    read = checkpoints.load

    def load_late(path, **options):
        if path.name.endswith("1"):
            shutil.rmtree(path)
            store.save(2, small_state(), {})
        return read(path, **options)

    monkeypatch.setattr(checkpoints, "load", load_late)
    found = store.latest()
    assert (found.steps, found.warning) == (2, None)


@pytest.mark.slow
def test_a_killed_process_always_leaves_a_loadable_checkpoint(tmp_path):
    store, before, rng = Checkpoints(tmp_path), 0, random.Random(0)
    for _ in range(3):
        process = Process(tmp_path.parent, prepare=partial(save_forever, tmp_path))
        process.wait_for(lambda steps=before: (found := store.latest()) is not None and found.steps > steps)
        assert process.kill_after(rng.random() * 0.1)
        found = store.latest()
        if found is not None:
            assert found.metadata == {"n": found.steps}
            assert found.state["w"].unique().tolist() == [float(found.steps)]
            assert found.steps >= before
            before = found.steps
    assert before > 0


LEAVES = {
    "w": {"tensor": "w"},
    "t": {"tuple": [1, {"float": "nan"}]},
    "i": {"int": "0xff"},
    "x": {"items": [[1, "a"]]},
    "a": {"array": {"tensor": "w", "dtype": "int32", "shape": [2]}},
    "s": {"segment": "s"},
}
TREE = {"format": 1, "metadata": {"dict": {"n": 1}}, "state": {"dict": LEAVES}, "segments": {"s": "0" * 64}}


@pytest.mark.slow
@FUZZ
@given(content=mutated(json.dumps(TREE).encode()))
def test_mutated_trees_are_loaded_or_refused_in_one_line(content, tmp_path):
    """The hashes are those of the mutated files, as an attacker would write them."""
    if not (tmp_path / "c").exists():
        save(tmp_path / "c", {"w": torch.zeros(2)}, {})
    (tmp_path / "c" / "state.json").write_bytes(content)
    names = ("state.safetensors", "state.json")
    sums = (f"{hashlib.sha256((tmp_path / 'c' / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (tmp_path / "c" / "SHA256SUMS").write_text("".join(sums))
    try:
        load(tmp_path / "c", segments=False)
    except UserError as error:
        assert_one_line(str(error))
