"""Compiling the kernels: the cache, its permissions, and machines without a compiler."""

import os
import stat
import subprocess
import sys

import pytest

from coterie.kernels import build
from coterie.kernels.build import KernelsUnavailableError
from places import ROOT


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """A compiler that writes its arguments to the output file, and counts its calls."""
    program = tmp_path / "bin" / "cxx"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "cxx 1.0"; exit 0; fi\n'
        f'echo call >> {tmp_path}/calls\nwhile [ "$1" != -o ]; do shift; done\necho library > "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return program


def calls(tmp_path):
    return (tmp_path / "calls").read_text().count("call")


def test_the_library_is_compiled_once_and_belongs_to_the_user_alone(fake_compiler, tmp_path):
    announced = []
    library = build.available_library(lambda: announced.append(1))
    again = build.available_library(lambda: announced.append(2))
    assert (library.read_text(), again, calls(tmp_path), announced) == ("library\n", library, 1, [1])
    for path in (library, library.parent, library.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert [file.name for file in library.parent.iterdir()] == [library.name]


def test_another_compiler_version_compiles_again(fake_compiler, tmp_path):
    first = build.cached_library()
    fake_compiler.write_text(fake_compiler.read_text().replace("cxx 1.0", "cxx 2.0"))
    assert build.cached_library() != first
    assert calls(tmp_path) == 2


def test_the_key_depends_on_source_flags_and_processor(monkeypatch, tmp_path):
    compiler = build.Compiler("c++", "1.0")
    key = build.cache_key(compiler, ("-O3",))
    assert build.cache_key(compiler, ("-O2",)) != key
    monkeypatch.setattr(build, "processor_features", lambda: "another")
    assert build.cache_key(compiler, ("-O3",)) != key
    monkeypatch.undo()
    (tmp_path / "changed.cpp").write_text("int x;")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    assert build.cache_key(compiler, ("-O3",)) != key


@pytest.mark.parametrize("place", ["library", "kernels", "coterie"])
def test_a_library_that_others_could_replace_is_not_loaded(fake_compiler, place):
    library = build.cached_library()
    exposed = {"library": library, "kernels": library.parent, "coterie": library.parent.parent}[place]
    exposed.chmod(0o777)
    with pytest.raises(KernelsUnavailableError, match=r"writable by other users. Run: chmod go-w"):
        build.cached_library()


def test_a_linked_library_is_not_loaded(fake_compiler, tmp_path):
    library = build.cached_library()
    library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(tmp_path / "elsewhere.so")
    with pytest.raises(KernelsUnavailableError, match="symbolic link"):
        build.cached_library()


def test_a_library_of_another_user_is_not_loaded(fake_compiler, monkeypatch):
    build.cached_library()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(KernelsUnavailableError, match="belongs to another user"):
        build.cached_library()


def test_a_failing_compiler_is_reported_with_its_first_error_and_leaves_nothing(fake_compiler, tmp_path):
    fake_compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\necho "x.cpp:1: error: no" >&2\nexit 1\n'
    )
    with pytest.raises(KernelsUnavailableError, match=r"x.cpp:1: error: no$"):
        build.cached_library()
    assert list((tmp_path / "cache/coterie/kernels").iterdir()) == []


def test_without_a_compiler_the_reason_names_what_was_looked_for(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(KernelsUnavailableError, match=r"no C\+\+ compiler found \(c\+\+, g\+\+, clang\+\+\)"):
        build.find_compiler()


def test_processes_that_compile_at_the_same_time_do_not_disturb_each_other(fake_compiler, tmp_path):
    code = "from coterie.kernels.build import cached_library; print(cached_library().read_text(), end='')"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in running] == ["library\n"] * 3
    assert len(list((tmp_path / "cache/coterie/kernels").iterdir())) == 1


def test_without_a_compiler_the_best_library_of_the_wheel_that_the_processor_can_run_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    with pytest.raises(KernelsUnavailableError, match=r"no C\+\+ compiler found"):
        build.available_library()
    for level in build.LEVELS:
        (tmp_path / build.prebuilt_name(level)).write_text(level)
    for level, features in build.LEVELS.items():
        monkeypatch.setattr(build, "processor_features", lambda features=features: " ".join(features))
        assert build.available_library().read_text() == level
    monkeypatch.setattr(build, "processor_features", lambda: "sse2")
    with pytest.raises(KernelsUnavailableError):
        build.available_library()
    monkeypatch.setattr(build, "processor_features", lambda: " ".join(build.LEVELS["x86-64-v3"]))
    monkeypatch.setattr(build, "sources", list)  # a library of another source
    with pytest.raises(KernelsUnavailableError):
        build.available_library()


def test_the_library_of_a_wheel_is_used_at_once_although_there_is_a_compiler(fake_compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setattr(build, "processor_features", lambda: " ".join(build.LEVELS["x86-64-v3"]))
    library = tmp_path / build.prebuilt_name("x86-64-v3")
    library.touch()
    announced = []
    assert build.available_library(lambda: announced.append(1)) == library
    assert not announced
    assert not (tmp_path / "calls").exists()
    assert not (tmp_path / "cache").exists()


def test_a_wheel_is_built_with_the_standard_library_only():
    """When pip runs `hatch_build.py`, no other package is installed, not even Coterie."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from coterie.kernels import build; print(build.SOURCE)"
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT / "src")]
    imported = subprocess.run(command, capture_output=True, text=True)
    assert imported.stdout.strip() == str(build.SOURCE), imported.stderr
