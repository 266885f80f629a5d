"""From exceptions to one line on stderr and an exit code; no traceback for what a person can correct."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spiritlevel.errors import SpiritlevelError, UsageError

DONE, FAILED, MISUSE, NOT_OK, INTERRUPTED = 0, 1, 2, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without "±" shows "?" in place of failing
    try:
        from spiritlevel.cli.application import app

        code = app(args=[word for word in given if word != "--debug"], prog_name="spiritlevel", standalone_mode=False)
        if code == INTERRUPTED:  # typer catches the interruption itself and says nothing
            return _say("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else DONE
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output, perhaps ``head``, has seen enough
        sys.stdout = None
        return DONE
    except UsageError as error:
        return _fail(error, str(error), MISUSE, debug)
    except SpiritlevelError as error:
        return _fail(error, str(error), FAILED, debug)
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is not None and type(error).__name__ == "NoArgsIsHelpError":  # a command group alone
            print(message())
            return MISUSE
        if message is not None:  # typer's own refusals: an unknown option, a missing argument
            return _fail(error, message() or "the command is not complete; see spiritlevel --help", MISUSE, debug)
        if type(error).__name__ == "Abort":
            return _say("interrupted", INTERRUPTED)
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _fail(error, f"unexpected failure, {words}; run again with --debug to see where", FAILED, debug)


def _fail(error: BaseException, message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    return _say(message, code)


def _say(message: str, code: int) -> int:
    """Print one line, whatever the message held, and return the exit code."""
    print(f"spiritlevel: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code
