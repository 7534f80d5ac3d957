"""How commands are defined: groups in the help, examples, options that exclude each other, errors in one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from offsets_pipeline.config import load_settings
from offsets_pipeline.errors import OffsetsError
from offsets_pipeline.foreign_errors import in_one_line
from offsets_pipeline.input_text import with_short_words
from offsets_pipeline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DEBUG_ENV = "OFFSETS_DEBUG"
_NO_NEEDS: Mapping[str, str] = MappingProxyType({})
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it

#: Groups of commands in `offsets --help`, in this order.
SOURCES, STATE, QUESTIONS, COORDINATOR, CONNECT, UPKEEP = SECTIONS = (
    "Sources",
    "State",
    "Questions",
    "Coordinator",
    "Connect",
    "Upkeep",
)


class Command(click.Command):
    """A command of `offsets`.

    Args:
        section: the group of commands in `offsets --help`.
        examples: command lines for the end of the command's help.
        exclusive: groups of option names (`--format`); a command line may hold one option of each group.
        required: groups of option names; a command line needs an option of each group.
        needs: by option name, the option that it needs, and after a colon why.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own
        section: str,
        examples: Sequence[str],
        exclusive: Sequence[Sequence[str]] = (),
        required: Sequence[Sequence[str]] = (),
        needs: Mapping[str, str] = _NO_NEEDS,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.examples = examples
        self._exclusive = exclusive
        self._required = required
        self._needs = needs

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Raises click.UsageError."""
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise
        if ctx.resilient_parsing:
            return rest
        given = {
            option
            for parameter in self.params
            if ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
            for option in parameter.opts
        }
        for group in self._exclusive:
            both = [option for option in group if option in given]
            if len(both) > 1:
                raise click.UsageError(f"{both[1]} is not allowed with {both[0]}", ctx)
        for group in self._required:
            if not given.intersection(group):
                raise click.UsageError(f"one of {', '.join(group)} is required", ctx)
        for option, needed in self._needs.items():
            if option in given and needed.partition(":")[0] not in given:
                raise click.UsageError(f"{option} needs {needed}", ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Run the command with the settings that `--config` names."""
        ctx.params["settings"] = load_settings(ctx.params.pop("config"))
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, a line each, so that they can be copied."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


class CommandGroup(click.Group):
    """The program: commands by section, and errors of a command in one line."""

    def leaves(self) -> dict[str, Command]:
        """The commands by name; that of a command within a group has two words."""
        found: dict[str, Command] = {}
        for name, each in self.commands.items():
            if isinstance(each, Command):
                found[name] = each
            elif isinstance(each, click.Group):
                inner = each.commands.items()
                found |= {f"{name} {of_group}": leaf for of_group, leaf in inner if isinstance(leaf, Command)}
        return found

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, section by section."""
        commands = self.leaves()
        width = max(map(len, commands))
        for section in SECTIONS:
            with formatter.section(section):
                rows = [
                    (f"{name:{width}}", each.get_short_help_str(limit=100))
                    for name, each in commands.items()
                    if each.section == section
                ]
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> int:
        """Run a command; returns the exit status, which is 1 after one line on stderr if it failed."""
        try:
            status: int = super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except OffsetsError as error:
            sys.stderr.write(f"offsets: error: {with_short_words(printable(' '.join(str(error).splitlines())))}\n")
            return 1
        except BrokenPipeError:  # the reader of stdout ended, as `head` does
            sys.stderr.close()
            return 0
        except KeyboardInterrupt:
            return _INTERRUPTED
        except Exception as error:
            if os.environ.get(_DEBUG_ENV):
                raise
            sys.stderr.write(f"offsets: error: {in_one_line(error)} ({_DEBUG_ENV}=1 shows where)\n")
            return 1
        return status


def command(
    section: str,
    *examples: str,
    exclusive: Sequence[Sequence[str]] = (),
    required: Sequence[Sequence[str]] = (),
    needs: Mapping[str, str] = _NO_NEEDS,
    name: str | None = None,
    several_stores: bool = False,
) -> Callable[[Callable[..., int]], Command]:
    """Define a command with the options `--store` and `--config`; ``name`` is by default that of the function.

    The function gets ``store`` (``stores``, a tuple, with ``several_stores``), ``settings`` (of `--config`) and the
    command's own options as keywords; it returns the exit status. Its docstring is the help.
    """

    def define(run: Callable[..., int]) -> Command:
        config = click.option("--config", metavar="FILE", type=FILE, help="Settings file (default: conf/offsets.toml).")
        store = click.option(
            "--store",
            "stores" if several_stores else "store",
            required=True,
            multiple=True,
            callback=None if several_stores else _one_store,
            metavar="STORE",
            type=PATH,
            help="Folder of the store, or schema:NAME." + (" May be repeated." if several_stores else ""),
        )
        decorator = click.command(
            name or run.__name__.replace("_", "-"),
            cls=Command,
            section=section,
            examples=examples,
            exclusive=exclusive,
            required=required,
            needs=needs,
        )
        return decorator(store(config(run)))

    return define


def _one_store(ctx: click.Context, option: click.Parameter, stores: tuple[str, ...]) -> str:
    """Return the store of a command that is about one: a second one would replace the first without a word."""
    if len(stores) > 1:
        raise click.BadParameter(f"{ctx.info_name} is about one store: give --store once", ctx, option)
    return stores[0] if stores else ""


#: A path or URI. The command checks it, for its errors say what to do; shells complete it.
PATH = click.Path(readable=False)
FILE = click.Path(readable=False, path_type=Path)


def usage_error_line(error: click.ClickException) -> str:
    """The line on stderr for a command line that is wrong: the reason, the nearest right word, and where to read on."""
    message = with_short_words(error.format_message())
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    program = "offsets" if context is None else context.command_path
    end = "" if message.endswith((".", "?", "?)")) else "."
    return f"offsets: error: {message}{end} See `{program} --help`.\n"
