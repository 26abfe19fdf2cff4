"""The compiled kernels: libraries of a wheel, or one in the user's cache folder, compiled once per machine."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.core.text import shell_word
from coterie.core.user_folders import user_folder

SOURCE = Path(__file__).parent / "source"
PREBUILT = Path(__file__).parent / "prebuilt"
"""Folder of the libraries in a wheel, see `make wheel`."""

FLAGS = (
    *("-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math"),
    *("-fvisibility=hidden", "-fPIC", "-shared"),
    # Tuned for Zen 2 and 3, GCC leaves multiplications and additions apart in some loops, such as those over a single
    # row, and fuses them in others. The bits of a row would depend on the number of rows.
    "--param=avoid-fma-max-bits=0",
)
_THREADS = "-pthread"
_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"])
_V3 = _V2 | frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])
LEVELS = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""Processor features that a prebuilt library needs, by level. Source: x86-64 psABI, micro-architecture levels."""
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_SECONDS = 600


class KernelsUnavailableError(Exception):
    """The kernels cannot be compiled or loaded. The message is the reason, without a full stop."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        path: The program.
        version: First line of its version.
    """

    path: str
    version: str


def find_compiler() -> Compiler:
    """Returns the compiler that `CXX` names, else the first of c++, g++ and clang++.

    Raises:
        KernelsUnavailableError: If there is none.
    """
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        return Compiler(path, told.partition("\n")[0].strip())
    looked_for = f"CXX={named}" if named else ", ".join(_COMPILERS)
    raise KernelsUnavailableError(f"no C++ compiler found ({looked_for})")


def sources() -> list[Path]:
    """Returns the files to compile, and the headers, sorted by name."""
    return sorted((*SOURCE.glob("*.cpp"), *SOURCE.glob("*.hpp")))


def processor_features() -> str:
    """Returns what `-march=native` depends on, as far as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return platform.machine() + " " + " ".join(sorted(line.split(":", 1)[1].split()))
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()}"


def cache_key(compiler: Compiler, flags: tuple[str, ...]) -> str:
    """Returns the hash of everything that the compiled library depends on."""
    digest = hashlib.sha256()
    for source in sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    for part in (compiler.path, compiler.version, *flags, processor_features(), sys.platform):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


def flags_for(processor: str, compiler: Compiler) -> tuple[str, ...]:
    """Returns the compiler's flags for `native` or one of `LEVELS`.

    A product is fused with the addition that follows, except in files that turn this off. Clang heeds them only with a
    value of its own.
    """
    contraction = "fast-honor-pragmas" if "clang" in compiler.version else "fast"
    return (*FLAGS, f"-ffp-contract={contraction}", f"-march={processor}", _THREADS)


def available_library(on_compiling: Callable[[], object] = lambda: None) -> Path:
    """Returns the wheel's library for the highest level of this processor, else one compiled for this machine.

    Args:
        on_compiling: Called before the compiler, which takes 10 to 30 seconds.

    Raises:
        KernelsUnavailableError: If there is neither, with the reason why none can be compiled.
    """
    return prebuilt_library() or cached_library(on_compiling)


def prebuilt_library() -> Path | None:
    """Returns the wheel's library for the highest level of this processor; None if there is none for it.

    A library for the exact processor is not faster than that for its level.
    """
    features = set(processor_features().split())
    for level, needed in reversed(LEVELS.items()):
        library = PREBUILT / prebuilt_name(level)
        if needed <= features and library.exists():
            return library
    return None


def prebuilt_name(level: str) -> str:
    """Returns the file name of a library for one of `LEVELS`, which contains a hash of its source."""
    digest = hashlib.sha256()
    for source in sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return f"{digest.hexdigest()[:16]}-{level}.so"


def cached_library(on_compiling: Callable[[], object] = lambda: None) -> Path:
    """Returns the compiled library, which is compiled if the cache does not hold it.

    Raises:
        KernelsUnavailableError: If there is no compiler, it fails, or the cache folder is not safe to load code from.
    """
    compiler = find_compiler()
    folder = private_folder(_cache_root() / "coterie" / "kernels")
    flags = flags_for("native", compiler)
    library = folder / f"{cache_key(compiler, flags)}.so"
    if not library.exists():
        on_compiling()
        compile_library(compiler, flags, library)
    require_private(library)
    return library


def compile_library(compiler: Compiler, flags: tuple[str, ...], library: Path) -> None:
    """Compiles the kernels into the file `library`, which appears complete or not at all.

    Processes that compile at the same time do not disturb each other: each writes a file of its own and renames it.

    Raises:
        KernelsUnavailableError: If the compiler fails, with its first error.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=library.parent, suffix=".compiling")
    except OSError as error:
        raise KernelsUnavailableError(f"cannot write to {library.parent}: {error.strerror}") from error
    os.close(handle)
    try:
        files = [str(source) for source in sources() if source.suffix == ".cpp"]
        try:
            done = subprocess.run(
                [compiler.path, *flags, *files, "-o", temporary],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise KernelsUnavailableError(f"{compiler.path} failed: {error}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["no message"]
            raise KernelsUnavailableError(f"{compiler.path} failed: {lines[0].strip()[:200]}")
        os.chmod(temporary, 0o700)
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _cache_root() -> Path:
    root = user_folder("XDG_CACHE_HOME", ".cache")
    if root is None:
        raise KernelsUnavailableError("no cache folder: there is no home. Set XDG_CACHE_HOME to a folder of yours")
    return root


def private_folder(path: Path) -> Path:
    """Returns a folder that nobody else can write to, and creates it if it is missing.

    Raises:
        KernelsUnavailableError: If it cannot be created, or other users could replace what is in it.
    """
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, path):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise KernelsUnavailableError(f"cannot create {path}: {error.strerror}") from error
    for folder in (path.parent, path):
        require_private(folder)
    return path


def require_private(path: Path) -> None:
    """Raises KernelsUnavailableError if `path` is a link, another user's, or writable by others.

    A library that is loaded runs with the rights of this process.
    """
    if not hasattr(os, "geteuid"):  # Windows, where profile folders are private
        return
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise KernelsUnavailableError(f"{path} is a symbolic link. Remove it")
    if status.st_uid != os.geteuid():
        raise KernelsUnavailableError(f"{path} belongs to another user. Set XDG_CACHE_HOME to a folder of yours")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KernelsUnavailableError(f"{path} is writable by other users. Run: chmod go-w {shell_word(path)}")
