from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core import files, serialize
from coterie.core.errors import UserError
from coterie.core.segments import Segment, Written
from coterie.runs import checkpoints
from coterie.runs.checkpoints import Checkpoints, CorruptError, compare, load, save


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Nothing here needs to outlive a power cut, and a busy disk takes its time to make sure that it would."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def same(a, b) -> bool:
    """Equal in structure, types and bits."""
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


# ------------------------------------------------------------------------------------------------------- one checkpoint


def test_every_kind_of_leaf_comes_back_bit_for_bit(path):
    state = rich_state()
    save(path, state, {"return": 1.5, "who": ("me", None), "mean": torch.tensor([1, 2])})
    loaded, metadata = load(path)
    for key in state:
        assert same(state[key], loaded[key]) or isinstance(state[key], torch.nn.Parameter), key
    assert same(state["parameter"].detach(), loaded["parameter"])
    assert list(loaded) == list(state)
    assert same(metadata, {"return": 1.5, "who": ("me", None), "mean": torch.tensor([1, 2])})


def test_saving_what_was_loaded_writes_the_same_bytes(path, tmp_path):
    save(path, rich_state(), {"a": 1})
    save(tmp_path / "again", *load(path))
    for name in ("state.safetensors", "state.json", "SHA256SUMS"):
        assert (path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_subclasses_of_plain_types_come_back_as_the_plain_ones(path):
    state = {"weights": OrderedDict(a=torch.ones(1)), "size": torch.Size([2]), "x": np.float32(0.1), "n": np.int64(3)}
    save(path, state, {})
    loaded, _ = load(path)
    assert same(loaded, {"weights": {"a": torch.ones(1)}, "size": (2,), "x": float(np.float32(0.1)), "n": 3})


def test_loaded_tensors_have_memory_of_their_own(path):
    shared = torch.zeros(4)
    save(path, {"a": shared, "b": shared, "c": shared[1:]}, {})
    loaded, _ = load(path)
    loaded["a"].add_(1)
    assert loaded["b"].sum() == 0
    assert loaded["c"].shape == (3,)
    assert shared.sum() == 0


@pytest.mark.parametrize("leaf", [{1, 2}, object(), b"bytes", torch.eye(2).to_sparse(), 1j, np.array(["a"])])
def test_what_cannot_be_held_is_refused_with_its_place_and_nothing_is_written(path, leaf):
    with pytest.raises(TypeError, match="learner/1/odd"):
        save(path, {"learner": [0, {"odd": leaf}]}, {})
    assert not path.parent.exists()


def test_files_are_three_readable_and_without_pickles(path):
    save(path, small_state(), {"a": math.nan})
    assert sorted(file.name for file in path.iterdir()) == ["SHA256SUMS", "state.json", "state.safetensors"]
    text = (path / "state.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["format"] == 1
    if shutil.which("sha256sum"):
        assert (
            subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=path, capture_output=True).returncode == 0
        )


def test_files_and_folder_are_on_the_disk_before_the_checkpoint_gets_its_name(path, monkeypatch):
    calls, rename, write = [], Path.rename, files.write_bytes
    monkeypatch.setattr(checkpoints, "sync_folder", lambda folder: calls.append(folder.name))
    monkeypatch.setattr(
        checkpoints, "write_bytes", lambda file, content: (write(file, content), calls.append(file.name))
    )
    monkeypatch.setattr(Path, "rename", lambda self, to: (calls.append(f"rename {to.name}"), rename(self, to))[1])
    save(path, small_state(), {})
    there = [
        "state.safetensors",
        "state.json",
        "SHA256SUMS",
        f".writing-{path.name}",
        f"rename {path.name}",
        "checkpoints",
    ]
    assert calls == there


def test_saving_over_a_checkpoint_replaces_it(path):
    save(path, small_state(1), {"n": 1})
    save(path, small_state(2), {"n": 2})
    state, metadata = load(path)
    assert state["weight"].unique().tolist() == [2.0]
    assert metadata == {"n": 2}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "SHA256SUMS"])
def test_a_change_of_any_byte_is_found(path, name):
    save(path, small_state(), {})
    content = (path / name).read_bytes()
    for place in range(len(content)):
        for flip in (1, 32, 255):
            (path / name).write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            with pytest.raises(CorruptError):
                load(path)
    (path / name).write_bytes(content)
    assert load(path)[0]["steps"] == 7


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "SHA256SUMS"])
def test_a_cut_or_missing_file_is_found_and_named(path, name):
    save(path, small_state(), {})
    content = (path / name).read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        (path / name).write_bytes(content[:size])
        with pytest.raises(CorruptError):
            load(path)
    (path / name).unlink()
    with pytest.raises(CorruptError, match=name):
        load(path)


def test_a_missing_folder_is_a_corrupt_checkpoint(path):
    with pytest.raises(CorruptError, match="no readable SHA256SUMS"):
        load(path)


def rewrite(path: Path, change) -> None:
    """Changes state.json and its hash with it, as another version would have written it."""
    tree = json.loads((path / "state.json").read_text())
    change(tree)
    (path / "state.json").write_text(json.dumps(tree))
    lines = [f"{checkpoints._hash((path / n).read_bytes())}  {n}\n" for n in ("state.safetensors", "state.json")]
    (path / "SHA256SUMS").write_text("".join(lines))


def test_a_newer_format_is_refused_on_one_line(path):
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
def test_well_hashed_nonsense_is_corrupt_and_not_a_traceback(path, change):
    save(path, small_state(), {})
    rewrite(path, lambda tree: tree.update(change))
    with pytest.raises(CorruptError):
        load(path)


# ----------------------------------------------------------------------------------------------------------- comparison


def test_compare_names_every_leaf_that_differs():
    expected = {"body": [{"w": torch.zeros(64, 18)}], "steps": 1, "old": torch.zeros(2), "n": None, "e": {}}
    found = {"body": [{"w": torch.zeros(128, 18)}], "steps": 2, "new": (1.0,), "n": "x", "e": []}
    assert compare(expected, found) == [
        "body/0/w: expected float32 [64, 18], found float32 [128, 18]",
        "old: expected float32 [2], found nothing",
        "n: expected nothing, found str",
        "e: expected empty dict, found empty list",
        "new/0: expected nothing, found float",
    ]


def test_compare_sees_types_and_is_empty_for_equal_shapes():
    assert compare({"a": torch.zeros(2)}, {"a": torch.ones(2)}) == []
    assert compare({"a": torch.zeros(2)}, {"a": torch.zeros(2).double()}) == [
        "a: expected float32 [2], found float64 [2]"
    ]
    state = {key: value for key, value in rich_state().items() if key != "__metadata__"}
    assert compare(state, state) == []


# ------------------------------------------------------------------------------------------------- checkpoints of a run


def test_last_and_the_one_before_stay_best_and_numbered_too(tmp_path):
    there = Checkpoints(tmp_path / "checkpoints")
    assert there.latest() is None
    assert there.load_best() is None
    for steps in range(100, 900, 100):
        there.save(steps, small_state(steps), {"n": steps}, best=steps == 300, numbered=steps in (100, 500))
    assert [int(path.name) for path in there.all()] == [100, 300, 500, 700, 800]
    latest, best = there.latest(), there.load_best()
    assert latest is not None
    assert (latest.steps, latest.metadata, latest.warning) == (800, {"n": 800}, None)
    assert latest.path == tmp_path / "checkpoints" / "000000000800"
    assert best is not None
    assert (best.steps, best.warning, best.state["weight"][0, 0].item()) == (300, None, 300.0)
    assert (tmp_path / "checkpoints" / "last").read_text() == "000000000800\n"


def test_a_numbered_one_is_loaded_by_its_steps(tmp_path):
    there = Checkpoints(tmp_path)
    for steps in (10, 20, 30):
        there.save(steps, small_state(steps), {"n": steps}, numbered=True)
    found = there.load_steps(20)
    assert found is not None
    assert (found.steps, found.metadata, found.warning, found.path.name) == (20, {"n": 20}, None, "000000000020")
    assert there.load_steps(25) is None
    (found.path / "state.json").unlink()
    with pytest.raises(CorruptError, match="no readable state"):
        there.load_steps(20)


def test_keep_counts_the_newest_and_is_at_least_two(tmp_path):
    there = Checkpoints(tmp_path, keep=3)
    for steps in (1, 2, 3, 4, 5):
        there.save(steps, small_state(), {})
    assert [int(path.name) for path in there.all()] == [3, 4, 5]
    with pytest.raises(ValueError, match="expected at least 2"):
        Checkpoints(tmp_path, keep=1)


def test_steps_beyond_twelve_digits_sort_by_number(tmp_path):
    there = Checkpoints(tmp_path)
    for steps in (10**12 - 1, 10**12, 10**13):
        there.save(steps, small_state(), {})
    assert [int(path.name) for path in there.all()] == [10**12, 10**13]


def test_a_corrupt_last_one_falls_back_and_says_so(tmp_path):
    there = Checkpoints(tmp_path)
    for steps in (10, 20):
        there.save(steps, small_state(steps), {})
    (tmp_path / "000000000020" / "state.safetensors").write_bytes(b"")
    found = there.latest()
    assert found is not None
    assert found.steps == 10
    assert found.warning is not None
    assert (
        "000000000020: corrupt, state.safetensors does not match its hash. Using the checkpoint of 10 steps"
        in found.warning
    )
    there.save(15, small_state(15), {})
    assert [int(path.name) for path in there.all()] == [10, 15]


def test_all_corrupt_is_an_error_with_the_reasons(tmp_path):
    there = Checkpoints(tmp_path)
    for steps in (10, 20):
        there.save(steps, small_state(steps), {})
        (tmp_path / f"{steps:012d}" / "state.json").unlink()
    with pytest.raises(CorruptError, match=r"no intact checkpoint .*0020: no readable state.json.*0010"):
        there.latest()


@pytest.mark.parametrize("content", [None, "", "nonsense", "000000000099"])
def test_a_lost_pointer_gives_the_newest_with_a_warning(tmp_path, content):
    there = Checkpoints(tmp_path)
    for steps in (10, 20):
        there.save(steps, small_state(steps), {})
    (tmp_path / "last").unlink() if content is None else (tmp_path / "last").write_text(content)
    found = there.latest()
    assert found is not None
    assert found.steps == 20
    assert found.warning == "no checkpoint is marked as last. Using the checkpoint of 20 steps."


def test_a_corrupt_best_gives_the_last_and_says_so(tmp_path):
    there = Checkpoints(tmp_path)
    for steps in (10, 20, 30):
        there.save(steps, small_state(steps), {}, best=steps == 10)
    (tmp_path / "000000000010" / "SHA256SUMS").write_text("")
    best = there.load_best()
    assert best is not None
    assert best.steps == 30
    assert "000000000010: corrupt" in str(best.warning)


def test_a_newer_format_is_not_passed_over(tmp_path):
    there = Checkpoints(tmp_path)
    for steps in (10, 20):
        there.save(steps, small_state(steps), {})
    rewrite(tmp_path / "000000000020", lambda tree: tree.update(format=99))
    with pytest.raises(UserError, match="format 99"):
        there.latest()


def test_foreign_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "000000000005").write_text("a file")
    (tmp_path / "12").mkdir()
    there = Checkpoints(tmp_path)
    for steps in (10, 20, 30):
        there.save(steps, small_state(), {})
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "12").is_dir()
    assert (tmp_path / "000000000005").is_file()


# ------------------------------------------------------------------------------------------------------------- segments


def segment(value: float) -> Segment:
    """A large piece of a state that never changes."""
    return Segment(lambda: {"marks": torch.tensor([True]), "rows": torch.full((50,), float(value))}, Written())


def with_segments(*segments: Segment, value: float = 1.0) -> dict:
    return {**small_state(value), "replay": dict(enumerate(segments))}


def files_of(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in (folder / "segments").iterdir()}


def test_segments_come_back_bit_for_bit_when_they_are_read(path, tmp_path):
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


def test_a_segment_is_a_file_that_bears_the_hash_of_its_content(path):
    one = segment(1)
    save(path, with_segments(one), {})
    content = (path.parent / "segments" / f"{one.written.digest}.safetensors").read_bytes()
    assert checkpoints._hash(content) == one.written.digest
    assert one.written.digest in (path / "state.json").read_text()


def test_a_segment_is_read_and_written_once(tmp_path):
    reads = []
    there, one = Checkpoints(tmp_path), Segment(lambda: reads.append(1) or {"x": torch.ones(3)}, Written())
    there.save(10, with_segments(one), {})
    before = files_of(tmp_path)
    there.save(20, with_segments(one), {})
    assert (len(reads), files_of(tmp_path)) == (1, before)
    (tmp_path / "segments" / next(iter(before))).unlink()  # somebody cleared the folder: it is written again
    there.save(30, with_segments(one), {})
    assert len(reads) == 2
    assert files_of(tmp_path).keys() == before.keys()


def test_segments_stay_while_one_of_the_newest_checkpoints_names_them(tmp_path):
    there, made = Checkpoints(tmp_path), [segment(i) for i in range(5)]
    for i in range(4):
        there.save(i, with_segments(made[i], made[i + 1]), {}, best=i == 0, numbered=i == 1)
        names = {f"{made[k].written.digest}.safetensors" for k in range(max(0, i - 1), i + 2)}
        assert files_of(tmp_path).keys() == names, i
    best, numbered = there.load_best(), there.load_steps(1)
    assert best is not None
    assert (best.steps, best.warning) == (0, None)
    assert numbered is not None
    assert numbered.steps == 1
    with pytest.raises(CorruptError, match="is missing or cannot be read"):
        best.state["replay"][0].read()


def test_a_checkpoint_without_its_segments_is_not_whole_but_its_policies_can_be_had(tmp_path):
    there, one = Checkpoints(tmp_path / "run"), segment(1)
    alone = shutil.copytree(there.save(10, with_segments(one), {}), tmp_path / "copied" / "000000000010")
    with pytest.raises(CorruptError, match=rf"copied/000000000010: incomplete, .*{one.written.digest}.* is missing"):
        load(alone)
    assert load(alone, segments=False)[0]["steps"] == 7
    copied = Checkpoints(tmp_path / "copied")
    with pytest.raises(CorruptError, match="copy the folder `segments`"):
        copied.latest()
    found = copied.latest(segments=False)
    assert found is not None
    assert found.steps == 10
    shutil.copytree(tmp_path / "run" / "segments", tmp_path / "copied" / "segments")
    assert same(load(alone)[0]["replay"][0].read(), one.read())


def test_a_change_of_a_segment_is_found_and_the_checkpoint_before_taken(tmp_path):
    there, one, two = Checkpoints(tmp_path), segment(1), segment(2)
    there.save(10, with_segments(one), {})
    there.save(20, with_segments(one, two), {})
    file = tmp_path / "segments" / f"{two.written.digest}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    found = there.latest()
    assert found is not None
    assert found.steps == 10
    assert "is not what was written" in str(found.warning)


def test_what_an_interrupted_write_of_a_segment_left_is_removed_and_other_files_are_not(tmp_path):
    there = Checkpoints(tmp_path)
    there.save(10, with_segments(segment(1)), {})
    (tmp_path / "segments" / ".writing-abc").write_bytes(b"half")
    (tmp_path / "segments" / "notes.txt").write_text("mine")
    there.save(20, small_state(), {})
    there.save(30, small_state(), {})
    assert list(files_of(tmp_path)) == ["notes.txt"]


# ----------------------------------------------------------------------------------------------- crashes and full disks


class Crash(BaseException):
    """The process is gone: not even clean-up code runs after it."""


WRITING = (
    *((os, name) for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "open")),
    (files, "write_bytes"),
)


class Disk:
    """Counts the calls that change the disk; at the chosen one it fails, and after a crash so do all later ones."""

    def __init__(self, monkeypatch, fail_at: int | None, error: BaseException, torn: bool = False):
        self.calls, self.fail_at, self.error, self.torn, self.dead = 0, fail_at, error, torn, False
        for module, name in WRITING:
            monkeypatch.setattr(module, name, self._counting(getattr(module, name), name))
        monkeypatch.setattr(checkpoints, "write_bytes", files.write_bytes)

    def _counting(self, call, name):
        def counted(*args, **kwargs):
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return call(*args, **kwargs)  # reading and syncing folders changes nothing
            fails = self.dead or self.calls == self.fail_at
            self.calls += 1
            if not fails:
                return call(*args, **kwargs)
            if name == "write_bytes" and self.torn and not self.dead:
                Path(args[0]).write_bytes(args[1][: len(args[1]) // 2])
            self.dead = isinstance(self.error, Crash)
            raise self.error

        return counted


def prepared(folder: Path) -> Checkpoints:
    there = Checkpoints(folder)
    for steps in (10, 20, 30):
        there.save(steps, with_segments(segment(steps), segment(steps + 10), value=steps), {}, best=steps == 10)
    return there


def scenario(there: Checkpoints, replacing: bool) -> None:
    state = with_segments(segment(40), segment(50), value=40)
    there.save(30 if replacing else 40, state, {}, best=True, numbered=True)


def count_calls(folder: Path, replacing: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        there = prepared(folder)
        disk = Disk(patch, None, Crash())
        scenario(there, replacing)
    return disk.calls


@pytest.mark.parametrize("replacing", [False, True])
@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_write_leaves_complete_checkpoints_only(tmp_path, replacing, torn):
    total = count_calls(tmp_path / "count", replacing)
    assert total > 10
    for fail_at in range(total):
        folder = tmp_path / f"{fail_at}"
        there = prepared(folder)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, fail_at, Crash(), torn)
            with pytest.raises(Crash):
                scenario(there, replacing)
        for path in there.all():
            load(path, segments=False)
        found, best = there.latest(), there.load_best()
        assert found is not None
        assert found.warning is None, (fail_at, found.warning)
        value = found.state["weight"][0, 0].item()
        assert value in (30.0, 40.0)
        assert [part.read()["rows"][0].item() for part in found.state["replay"].values()] == [value, value + 10]
        assert best is not None
        assert best.warning is None
        assert best.state["weight"][0, 0].item() in (10.0, 40.0)
        there.save(50, small_state(50), {})
        assert not [*folder.glob(".*"), *folder.glob("segments/.*")], fail_at
        whole = [load(path, segments=path in there.all()[-2:])[0]["weight"][0, 0].item() for path in there.all()]
        assert whole[-2:] in ([30.0, 50.0], [40.0, 50.0])


@pytest.mark.parametrize("replacing", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_is_one_clear_line_and_the_checkpoint_before_stays(tmp_path, replacing, number):
    total, refused = count_calls(tmp_path / "count", replacing), 0
    for fail_at in range(total):
        folder = tmp_path / f"{fail_at}"
        there = prepared(folder)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, fail_at, OSError(number, os.strerror(number)))
            try:
                scenario(there, replacing)
            except UserError as error:
                message = str(error)
            else:  # making a folder that is there may fail without harm
                message = "cannot write nothing. Free some space"
                assert load(there.all()[-1])[0]["weight"][0, 0] == 40
        assert re.fullmatch(r"cannot write .*\. (Free some space|Choose another folder).*", message)
        refused += "nothing" not in message
        found = there.latest()
        assert found is not None
        assert found.warning is None
        assert found.state["weight"][0, 0].item() in (30.0, 40.0)
        assert not [*folder.glob(".writing-*"), *folder.glob("segments/.writing-*")]
        there.save(50, small_state(50), {})
        assert there.latest().steps == 50  # type: ignore[union-attr]
    assert refused >= total - 3


def test_an_interrupt_while_writing_leaves_nothing_behind(path, monkeypatch):
    save(path, small_state(1), {})
    monkeypatch.setattr(checkpoints, "write_bytes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        save(path, small_state(2), {})
    assert load(path)[0]["weight"][0, 0] == 1
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_really_full_disk_is_one_clear_line(tmp_path):
    """The operating system refuses to let files grow past a size, which writes notice as they notice a full disk."""
    program = """
        import resource, signal, sys, torch
        from coterie.runs.checkpoints import Checkpoints
        from coterie.core.errors import UserError
        there = Checkpoints(sys.argv[1])
        there.save(10, {"w": torch.ones(10)}, {})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            there.save(20, {"w": torch.ones(100_000)}, {})
        except UserError as error:
            print(error, there.latest().steps)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    expected = f"cannot write the checkpoint {tmp_path / 'c' / '000000000020'}: File too large. Free some space"
    assert done.stdout.startswith(expected)
    assert done.stdout.endswith(" 10\n")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["000000000010", "last"]


@pytest.mark.parametrize("where", ["file/checkpoints", "file"])
def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path, where):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"^cannot write .*file.*\. Choose another folder\.$"):
        Checkpoints(tmp_path / where).save(1, small_state(), {})
    with pytest.raises(UserError, match=r"^cannot write the checkpoint .*\. Choose another folder\.$"):
        save(tmp_path / where / "x", small_state(), {})


def test_a_killed_process_always_leaves_a_checkpoint_that_loads(tmp_path):
    program = """
        import sys, torch
        from coterie.runs.checkpoints import Checkpoints
        there = Checkpoints(sys.argv[1])
        torch.set_num_threads(1)
        found = there.latest()
        steps = found.steps if found else 0
        print("ready", flush=True)
        while True:
            steps += 1
            there.save(steps, {"w": torch.full((200, 100), float(steps))}, {"n": steps}, best=steps % 3 == 0)
    """
    there, before, chance = Checkpoints(tmp_path), 0, random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05 + chance.random() * 0.3)
        process.kill()
        process.wait()
        process.stdout.close()
        found = there.latest()
        if found is not None:
            assert found.metadata == {"n": found.steps}
            assert found.state["w"].unique().tolist() == [float(found.steps)]
            assert found.steps >= before
            before = found.steps
    assert before > 0
