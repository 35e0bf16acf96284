"""All commands under one roof, and what happens when something goes wrong.

Every mistake of a user ends as one line on stderr and an exit code (2, or the error's own): what was wrong, why, and
what to do instead. Exit code 1 is for trouble that may pass without anybody changing a word: services try again then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO, final

import typer
from typer.core import TyperGroup

from quietsum.cli.account.calibrate import calibrate
from quietsum.cli.account.curve import curve
from quietsum.cli.account.explain import explain
from quietsum.cli.account.spend import spend
from quietsum.cli.look.alerts import alerts
from quietsum.cli.look.audit import audit
from quietsum.cli.look.claims import check
from quietsum.cli.look.doctor import doctor
from quietsum.cli.look.export import export
from quietsum.cli.look.ledger import app as ledger
from quietsum.cli.look.predict import predict
from quietsum.cli.look.receipts import receipts
from quietsum.cli.look.report import report
from quietsum.cli.look.runs import compare, runs, show
from quietsum.cli.look.serve import serve
from quietsum.cli.look.suspects import suspects
from quietsum.cli.shared.arguments import restore_help
from quietsum.cli.shared.fractions import resolve_fractions
from quietsum.cli.shared.screen import guard_screens
from quietsum.cli.sites.data import app as data
from quietsum.cli.sites.keys import app as keys
from quietsum.cli.sites.party import app as party
from quietsum.cli.survey.ask import ask
from quietsum.cli.survey.local import app as local
from quietsum.cli.train.datasets import datasets
from quietsum.cli.train.drill import drill
from quietsum.cli.train.flower import superlink
from quietsum.cli.train.new import new
from quietsum.cli.train.plan import plan
from quietsum.cli.train.run import run
from quietsum.cli.train.selfcheck import selfcheck
from quietsum.cli.train.tradeoff import tradeoff
from quietsum.cli.train.train import train
from quietsum.errors import QuietsumError, may_pass

__all__ = ["app"]

# What typer raises for a wrong word. Up to version 0.25 these are click's classes, later ones bring their own, and no
# public name is left for them but that of this one subclass.
_Usage: Any = typer.BadParameter.__mro__[1]
_Complaint: Any = typer.BadParameter.__mro__[2]

WHOLE = "QUIETSUM_TRACEBACK"
"""Set in the environment, an error of a user's own code is shown whole, with what it says."""
PASSING = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


@final
class Commands(TyperGroup):
    """A group that turns errors into one line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; with ``standalone_mode`` the process ends with the exit code."""
        code = 0
        try:
            for stream in (
                sys.stdout,
                sys.stderr,
            ):  # a terminal that cannot show Greek gets question marks, no traceback
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(errors="replace")
            words = resolve_fractions(self, sys.argv[1:] if args is None else args)
            if not {"-h", "--help"}.isdisjoint(words):
                restore_help(self)
            with guard_screens():
                result = super().main(
                    words, prog_name, complete_var, standalone_mode=False, windows_expand_args=windows_expand_args,
                    **extra,
                )  # fmt: skip
            code = result if isinstance(result, int) else 0
            sys.stdout.flush()
        except QuietsumError as error:
            code = _refuse(str(error), error.exit_code)
        except _Usage as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help, which typer may have printed
                print(error.format_message(), end="")
            else:
                where = error.ctx.command_path if error.ctx else "quietsum"
                code = _refuse(f"{_say_once(error)}{_say_example(error)} Try '{where} --help'.")
        except _Complaint as error:
            code = _refuse(error.format_message())
        except (ArithmeticError, MemoryError) as error:
            code = _refuse(
                f"these numbers lead beyond what a computer can hold ({error}); check noise, steps and group"
            )
        except (typer.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except BrokenPipeError:  # the reader has left, as `| head` does
            _discard(sys.stdout)
            code = BROKEN_PIPE
        except OSError as error:  # a full disk, a missing permission: the system's reason, no traceback
            where = f" at {error.filename}" if error.filename else ""
            code = _refuse(
                f"the system refused to read or write{where}: {error.strerror or error}",
                PASSING if may_pass(error) else USAGE,
            )
        except Exception as error:
            where = _in_own_code(error)
            if not where or os.environ.get(WHOLE):  # a mistake of ours, which somebody has to read as it is
                raise
            code = _refuse(
                f"code of your own failed ({type(error).__name__} in {where}); mend it there. What it said may quote a "
                f"row: {WHOLE}=1 shows it all"
            )
        if standalone_mode:
            sys.exit(code)
        return code


def _say_once(error: Any) -> str:
    """The message of a wrong word. Click and typer each add what was meant, so it may stand there twice."""
    message: str = error.format_message()
    opening, meant, names = message.partition("Did you mean")
    if meant:
        message = f"{opening}{meant}{names.split('Did you mean')[0].rstrip()}"
    return message


def _say_example(error: Any) -> str:
    """What a person who left the value of an option out most likely meant."""
    if "'--resume' requires" in error.format_message():
        return " Name the run, as in quietsum run --resume latest."
    return ""


def _in_own_code(error: BaseException) -> str:
    """The innermost line of a user's own module, a task's say, that ``error`` came through; empty where there is none.

    Only where nothing of quietsum was called by it in turn: such an error is ours.
    """
    ours = str(Path(__file__).resolve().parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(ours):
            return ""
        elsewhere = frame.filename.startswith((sys.prefix, sys.base_prefix, "<"))
        if not elsewhere and not {"site-packages", "dist-packages"} & set(Path(frame.filename).parts):
            return f"{Path(frame.filename).name}, line {frame.lineno}, {frame.name}"
    return ""


def _refuse(message: str, code: int = USAGE) -> int:
    from quietsum.cli.shared.output import text_width

    with contextlib.suppress(BrokenPipeError), guard_screens():
        lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
        if sys.stderr.isatty():  # people read words in lines; whatever reads a pipe wants one line for one error
            lines = textwrap.wrap(f"error: {lines[0]}", text_width(), subsequent_indent="  ") + [
                part
                for line in lines[1:]
                for part in textwrap.wrap(line, text_width(), initial_indent="  ", subsequent_indent="  ")
            ]
            print("\n".join(lines), file=sys.stderr)
        else:
            print("error:", "\n  ".join(lines), file=sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """Let what is still buffered go nowhere, so that the interpreter's last flush is quiet."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


app = typer.Typer(
    cls=Commands,
    name="quietsum",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from quietsum import __version__

        print(f"quietsum {__version__}")
        raise typer.Exit


@app.callback()
def quietsum(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one model across sites that never share data; prove what it cost.

    Start with: quietsum new run.toml, then quietsum plan run.toml
    """


TRAIN, ASK, ACROSS, LOOK, ACCOUNT = "Train", "Ask", "Across machines", "Look", "Account"
ledger.command()(receipts)

app.command(rich_help_panel=TRAIN)(new)
app.command(rich_help_panel=TRAIN)(plan)
app.command(rich_help_panel=TRAIN)(run)
app.command(rich_help_panel=TRAIN)(train)
app.command(rich_help_panel=TRAIN)(tradeoff)
app.command(rich_help_panel=TRAIN)(drill)
app.command(rich_help_panel=TRAIN)(selfcheck)
app.command(rich_help_panel=ASK)(ask)
app.add_typer(local, name="local", rich_help_panel=ASK)
app.add_typer(party, name="party", rich_help_panel=ACROSS)
app.add_typer(data, name="data", rich_help_panel=ACROSS)
app.add_typer(keys, name="keys", rich_help_panel=ACROSS)
app.command(rich_help_panel=ACROSS)(superlink)
app.command(rich_help_panel=LOOK)(datasets)
app.command(rich_help_panel=LOOK)(runs)
app.command(rich_help_panel=LOOK)(show)
app.command(rich_help_panel=LOOK)(serve)
app.command(rich_help_panel=LOOK)(compare)
app.command(rich_help_panel=LOOK)(report)
app.command(rich_help_panel=LOOK)(audit)
app.command(rich_help_panel=LOOK)(check)
app.command(rich_help_panel=LOOK)(predict)
app.command(rich_help_panel=LOOK)(export)
app.command(rich_help_panel=LOOK)(suspects)
app.add_typer(ledger, name="ledger", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(alerts)
app.command(rich_help_panel=LOOK)(doctor)
app.command(rich_help_panel=ACCOUNT)(spend)
app.command(rich_help_panel=ACCOUNT)(calibrate)
app.command(rich_help_panel=ACCOUNT)(curve)
app.command(rich_help_panel=ACCOUNT)(explain)
