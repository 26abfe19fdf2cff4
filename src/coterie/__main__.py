"""The command `coterie`: runs the command line and reports errors as one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

BROKEN_PIPE, USER_ERROR, FAILED, INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command `coterie`.

    With `--traceback`, or COTERIE_DEBUG=1 in the environment, errors are printed with their traceback.

    Args:
        argv: Arguments of the command. Default: those of the process, which ends within a few seconds after this
            returns, even if threads that an environment started do not.

    Returns:
        The exit code: 0 for success, 1 if the output was closed, 2 for an error of the user or the file system, 3 for a
            non-finite number or a failed environment, 130 if interrupted.
    """
    if argv is not None:
        return _main(argv)
    from coterie.core import waiting

    waiting.is_command = True
    code = 1  # for an exception that is not reported here, whose traceback Python prints
    try:
        code = _main(sys.argv[1:])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    finally:
        waiting.end_soon(code)
    return code


def _main(argv: Sequence[str]) -> int:
    from coterie.core.errors import ReportedError, UserError, of_system
    from coterie.core.user_folders import without_invalid_folders

    words = list(argv)
    traceback = "--traceback" in words or os.environ.get("COTERIE_DEBUG", "") not in {"", "0"}
    try:
        from coterie.cli.app import run
        from coterie.config.user_code import search_current_folder

        search_current_folder()  # so that env=module:factory finds modules there
        with without_invalid_folders():
            code = run([word for word in words if word != "--traceback"])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output is gone. Redirect stdout, so that flushing at exit does not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _report("interrupted", INTERRUPTED, traceback=False)
    except ReportedError as error:
        from coterie.ranks.rank_failure import LOST, write_failure

        code = USER_ERROR if isinstance(error, UserError) else FAILED
        if type(error).__name__ == "RankLostError":
            code = LOST
        if error.is_reported or write_failure(error):
            return code
        return _report(str(error), code, traceback=traceback)
    except OSError as error:
        return _report(of_system(error), USER_ERROR, traceback=traceback)


def _report(message: str, code: int, *, traceback: bool) -> int:
    from coterie.core.terminal import print_message, print_traceback

    if traceback:
        print_traceback()
    print_message(message)
    return code


if __name__ == "__main__":
    sys.exit(main())
