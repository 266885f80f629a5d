"""From exceptions to one line on stderr and an exit code; no traceback for what a person can correct."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from spiritlevel.cli import standard_output
from spiritlevel.cli.beginning import BEGINNING
from spiritlevel.cli.by_ranks import end_at_once, may_speak
from spiritlevel.cli.signals import WATCH, Stopped, watched
from spiritlevel.values.errors import SpiritlevelError, UsageError

DONE, FAILED, MISUSE, NOT_OK, INTERRUPTED = 0, 1, 2, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 129, 130 or 143 where a signal stopped it."""
    BEGINNING.again()
    standard_output.open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without "±" shows "?" in place of failing
    try:
        with watched():
            code = _flushed(_run(list(sys.argv[1:] if arguments is None else arguments)))
            end_at_once(code)
            return code
    except KeyboardInterrupt:  # while all was done, or while a first signal was dealt with
        return _say("interrupted", WATCH.code)
    finally:
        if arguments is not None:  # the program goes on
            standard_output.give_back()


def _run(given: list[str]) -> int:
    debug = "--debug" in given
    try:
        from spiritlevel.cli.application import app

        code = app(args=[word for word in given if word != "--debug"], prog_name="spiritlevel", standalone_mode=False)
        if code == INTERRUPTED:  # typer catches the interruption itself and says nothing
            return _say("interrupted", WATCH.code)
        return code if isinstance(code, int) else DONE
    except KeyboardInterrupt:
        return _say("interrupted", WATCH.code)
    except Stopped as stop:
        return _say(str(stop), WATCH.code)
    except UsageError as error:
        return _fail(error, failure_in_words(error), MISUSE, debug)
    except SpiritlevelError as error:
        return _fail(error, failure_in_words(error), FAILED, debug)
    except SystemExit as error:
        if _completing(given):
            return error.code if isinstance(error.code, int) else DONE
        if isinstance(error.__context__, BrokenPipeError) and standard_output.reader_gone():  # typer's answer to it
            return _hushed()
        return _fail(error, failure_in_words(error), FAILED, debug)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and standard_output.reader_gone():
            return _hushed()
        message = getattr(error, "format_message", None)
        if message is not None and type(error).__name__ == "NoArgsIsHelpError":  # a command group alone
            print(message())
            return MISUSE
        if message is not None:  # typer's own refusals: an unknown option, a missing argument
            return _fail(error, message() or "the command is not complete; see spiritlevel --help", MISUSE, debug)
        if type(error).__name__ == "Abort":
            return _say("interrupted", WATCH.code)
        return _fail(error, failure_in_words(error), FAILED, debug)


def _completing(given: Sequence[str]) -> bool:
    """Whether a shell asks what could follow, or for its script: typer ends the program itself then."""
    asked = any(word.startswith(("--install-completion", "--show-completion")) for word in given)
    return asked or "_SPIRITLEVEL_COMPLETE" in os.environ


def failure_in_words(error: BaseException) -> str:
    """Return what went wrong as one sentence, whoever raised it."""
    if isinstance(error, SpiritlevelError):
        from spiritlevel.cli.spoken import in_cli_words

        return in_cli_words(str(error))
    if isinstance(error, SystemExit):
        return (
            f"the code of the model or of the data ended the program with SystemExit({error.code!r}); take that call "
            "out, or put it below if __name__ == '__main__'"
        )
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"unexpected failure, {words}; run again with --debug to see where"


def _fail(error: BaseException, message: str, code: int, debug: bool) -> int:
    if WATCH.received is not None:  # an interruption may come out of other code as any failure
        message, code = "interrupted", WATCH.code
    if debug:
        import traceback

        from spiritlevel.values.cleaning import lines_for_terminal

        with contextlib.suppress(OSError, ValueError):
            print(lines_for_terminal("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    return _say(message, code)


def _say(message: str, code: int) -> int:
    """Print one line, whatever the message held, and return the exit code."""
    from spiritlevel.cli.screens import note

    if not may_speak():
        return code
    note(f"spiritlevel: {' '.join(message.split())}")
    return code


def _flushed(code: int) -> int:
    """Return the exit code once everything is written, which only then is known."""
    try:
        with standard_output.writing():
            sys.stdout.flush()
    except (SpiritlevelError, ValueError) as error:
        return _say(str(error), code or FAILED)
    return code


def _hushed() -> int:
    """The reader of our output, perhaps ``head``, has seen enough."""
    standard_output.hush()
    return DONE
