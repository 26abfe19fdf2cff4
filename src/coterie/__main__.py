"""The command `coterie`: runs the command line and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

BROKEN_PIPE, USER_ERROR, FAILED, INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `coterie ARGV...` (the process' own arguments if None) and returns the exit code.

    0: done; 2: a mistake of the user's, told in one line on stderr; 3: a number was not finite, or an environment
    failed; 130: interrupted.
    With COTERIE_DEBUG=1 in the environment, errors keep their traceback.
    """
    from coterie.errors import EnvironmentFailedError, NonFiniteError, UserError, WorkersFailedError

    # Before PyTorch is loaded: threads that wait for each other spin a little and then sleep. On two quiet cores this
    # keeps 0.93 of the speed; where others use the cores too, spinning on makes two threads many times slower than one.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that env=module:factory finds modules where the user stands
    try:
        from coterie.cli import run

        code = run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output has gone. Nothing more can be said; flushing at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except UserError as error:
        return _say(str(error), USER_ERROR)
    except (NonFiniteError, WorkersFailedError, EnvironmentFailedError) as error:
        return _say(str(error), FAILED)


def _say(message: str, code: int) -> int:
    if os.environ.get("COTERIE_DEBUG", "") not in {"", "0"} and sys.exc_info()[0] is not KeyboardInterrupt:
        import traceback

        traceback.print_exc()
    print(f"coterie: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
