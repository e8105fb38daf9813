"""The command line: a shell over the store, the gateway and the rollouts. `commands` lists what there is.

Data goes to stdout, everything said about it to stderr. An error is `error: ...`, a blank line and `hint: ...`; exit
status 1 means that the command could not do it, 2 that it was asked wrongly.
"""

import os
import sys
from importlib.metadata import version

from cyclopts import App
from cyclopts.exceptions import CycloptsError, UnknownCommandError

from rolltape.cli import terminal
from rolltape.cli.commands import COMMANDS, epilogue
from rolltape.errors import RolltapeError


def _usage_error(error: CycloptsError) -> str:
    if isinstance(error, UnknownCommandError) and error.unused_tokens:  # its own words would import every command
        return terminal.worded(f"unknown command {error.unused_tokens[0]!r}", "rolltape --help lists the commands")
    return terminal.worded(str(error), " ".join(["rolltape", *(error.command_chain or ()), "--help"]))


app = App(
    name="rolltape",
    version=lambda: version("rolltape"),
    help="Record the exact tokens of every model call that an unmodified agent harness makes, and train on them.",
    help_format="plaintext",
    help_epilogue=epilogue(("rolltape demo", "rolltape serve --help")),
    error_formatter=_usage_error,
    error_console=terminal.plain_errors(),
)
for order, (name, command) in enumerate(COMMANDS.items()):
    shown = {} if command.commands else {"help_epilogue": epilogue(command.examples)}
    app.command(command.where, name=name, help=command.help, sort_key=order, **shown)


def main() -> None:
    """Run the command that `sys.argv` names and exit with its status."""
    try:
        app(sys.argv[1:])
    except RolltapeError as error:
        terminal.fail(error.message, error.hint)
    except BrokenPipeError:  # the reader of our output has enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        terminal.fail(f"{where}{error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)
