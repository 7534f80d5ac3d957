"""How commands are declared: classes of options, sections of the help, and errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import click
from click.core import ParameterSource

from offsets_pipeline.common.extras import needed_extra
from offsets_pipeline.common.foreign_errors import in_one_line
from offsets_pipeline.common.input_text import printable, with_short_words
from offsets_pipeline.errors import OffsetsError

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings

DEBUG_ENV = "OFFSETS_DEBUG"
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it

_Options = TypeVar("_Options", bound="Options")
_CommandOptions = TypeVar("_CommandOptions", bound="CommandOptions")


class _Declared:
    """An option or an argument, without the name of its attribute."""

    def __init__(self, kind: type[click.Parameter], names: Sequence[str], attributes: Mapping[str, Any]) -> None:
        self._kind = kind
        self._names = names
        self._attributes = attributes

    def parameter(self, name: str) -> click.Parameter:
        """Return click's parameter for the attribute ``name``."""
        return self._kind([*self._names, name], **self._attributes)


def option(*names: str, **attributes: Any) -> Any:  # noqa: ANN401 - the attribute has the type of the value
    """Declare an option as an attribute of a class of `Options`; the attributes are those of `click.Option`.

    The help shows a default that says something, and a number as N.
    """
    if isinstance(kind := attributes.get("type"), click.IntRange):
        attributes.setdefault("metavar", "N")
        kind.name = "integer"  # click's errors name it
    attributes.setdefault("show_default", bool(attributes.get("default")))
    return _Declared(click.Option, names, attributes)


def flag(*names: str, help: str) -> Any:  # noqa: A002, ANN401 - click's name
    """Declare an option without a value, a bool."""
    return option(*names, is_flag=True, help=help)


def several(name: str, *, help: str, **attributes: Any) -> Any:  # noqa: A002, ANN401
    """Declare an option that may be repeated, a tuple."""
    return option(name, multiple=True, help=f"{help} May be repeated.", **attributes)


def argument(metavar: str, **attributes: Any) -> Any:  # noqa: ANN401
    """Declare an argument; the attributes are those of `click.Argument`."""
    return _Declared(click.Argument, (), {"metavar": metavar, **attributes})


def grouped(options: type[_Options]) -> _Options:
    """Declare a group of options in its place among a command's options."""
    return cast("_Options", options)


class Options:
    """Options that commands share. A class attribute declares an option; the attribute of an object has its value.

    The order of the attributes is that of the help. Those of base classes come first.

    Attributes:
        exclusive: Groups of option names (`--format`). A command line may have one option of each group.
        required: Groups of option names. A command line needs an option of each group.
        needs: Option names with the option that each one needs, and after a colon why.
        of_one_store: Option names. A command line with one of them may name one store only.
    """

    exclusive: ClassVar[Sequence[Sequence[str]]] = ()
    required: ClassVar[Sequence[Sequence[str]]] = ()
    needs: ClassVar[Sequence[tuple[str, str]]] = ()
    of_one_store: ClassVar[Sequence[str]] = ()

    def __init__(self, **values: object) -> None:
        vars(self).update(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the options and their groups with click's values, which are by name of attribute."""
        declared = cls._declared()
        return cls(
            **{name: values[name] if isinstance(each, _Declared) else each.of(values) for name, each in declared}
        )

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        """Return click's parameters, in the order of the help."""
        found: list[click.Parameter] = []
        for name, each in cls._declared():
            found += [each.parameter(name)] if isinstance(each, _Declared) else each.parameters()
        return found

    @classmethod
    def with_groups(cls) -> Iterator[type[Options]]:
        """Yield this class, and the groups among its options."""
        yield cls
        for _, each in cls._declared():
            if not isinstance(each, _Declared):
                yield from each.with_groups()

    @classmethod
    def _declared(cls) -> Iterator[tuple[str, _Declared | type[Options]]]:
        # an option that a class declares again keeps its place
        found = {name: each for base in reversed(cls.__mro__) for name, each in vars(base).items()}
        for name, each in found.items():
            if isinstance(each, _Declared) or (isinstance(each, type) and issubclass(each, Options)):
                yield name, each


class CommandOptions(Options):
    """The options of a command, and its work. The docstring of a command's class is its help.

    Attributes:
        work: The function that does the work, after its module in this package. It gets this object and the settings.
        failed: The exit status after an error.
    """

    work: ClassVar[str]
    failed: ClassVar[int] = 1
    config: Path | None

    def check(self) -> None:
        """Raise click.UsageError for values that do not go together."""

    def run(self, settings: Settings) -> int | None:
        """Run the command with the settings that `--config` names; returns the exit status, None for success.

        It imports what it needs when it runs: help and completion start at once, and questions import no Spark.
        """
        module, _, function = self.work.partition(".")
        status: int | None = getattr(import_module(f"offsets_pipeline.cli.{module}"), function)(self, settings)
        return status


class HelpSection:
    """A section of `offsets --help`, with its commands in the order of their definition."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.commands: list[Command] = []

    def command(self, name: str, *examples: str) -> Callable[[type[_CommandOptions]], type[_CommandOptions]]:
        """Define a command by the class of its options; the arguments are those of `Command`."""

        def define(options: type[_CommandOptions]) -> type[_CommandOptions]:
            self.commands.append(Command(name, self.title, options, examples))
            return options

        return define


class Command(click.Command):
    """A command of `offsets`.

    Args:
        name: the command's last word.
        section: the title of its section in `offsets --help`.
        options: its options and its work.
        examples: command lines for the end of the command's help.
    """

    def __init__(self, name: str, section: str, options: type[CommandOptions], examples: Sequence[str]) -> None:
        super().__init__(name, params=options.parameters(), help=options.__doc__, callback=self._run)
        self.section = section
        self.options = options
        self.examples = examples

    def _run(self, **values: object) -> int | None:
        from offsets_pipeline.common.config import load_settings
        from offsets_pipeline.common.warnings import set_line_times
        from offsets_pipeline.store.delta.s3_access import use_settings

        options = self.options.of(values)
        set_line_times(are_on=False)
        settings = load_settings(options.config)
        use_settings(settings.s3)
        options.check()
        return options.run(settings)

    def invoke(self, ctx: click.Context) -> int:
        """Run the command; returns the exit status, after one line on stderr if it failed."""
        try:
            return super().invoke(ctx) or 0
        except (click.ClickException, click.exceptions.Exit):
            raise
        except OffsetsError as error:
            sys.stderr.write(error_line(error))
        except BrokenPipeError:  # the reader of stdout ended, as `head` does
            sys.stderr.close()
            return 0
        except KeyboardInterrupt:
            return _INTERRUPTED
        except Exception as error:
            if os.environ.get(DEBUG_ENV):
                raise
            extra = needed_extra(error) if isinstance(error, ModuleNotFoundError) else None
            sys.stderr.write(f"offsets: error: {extra or f'{in_one_line(error)} ({DEBUG_ENV}=1 shows where)'}\n")
        return self.options.failed

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
        for options in self.options.with_groups():
            self._check(options, given, ctx)
        return rest

    def _check(self, options: type[Options], given: set[str], ctx: click.Context) -> None:
        """Raise click.UsageError if the options ``given`` do not go together."""
        for group in options.exclusive:
            both = [option for option in group if option in given]
            if len(both) > 1:
                raise click.UsageError(f"{both[1]} is not allowed with {both[0]}", ctx)
        for group in options.required:
            if not given.intersection(group):
                raise click.UsageError(f"one of {', '.join(group)} is required", ctx)
        for option, needed in options.needs:
            if option in given and needed.partition(":")[0] not in given:
                raise click.UsageError(f"{option} needs {needed}", ctx)
        for option in options.of_one_store:
            if option in given and len(set(ctx.params.get("stores", ()))) > 1:
                raise click.UsageError(f"{option} is about one store: give --store once", ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, a line each, so that they can be copied."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


class CommandGroup(click.Group):
    """The program: commands by section."""

    def leaves(self) -> dict[str, Command]:
        """The commands by name; the name of a command within a group has two words."""
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
        for section, of_section in groupby(commands.items(), key=lambda named: named[1].section):
            with formatter.section(section):
                formatter.write_dl(
                    [(f"{name:{width}}", each.get_short_help_str(limit=100)) for name, each in of_section]
                )


def error_line(error: OffsetsError) -> str:
    """The line on stderr for a command that failed."""
    return f"offsets: error: {with_short_words(printable(' '.join(str(error).splitlines())))}\n"


def usage_error_line(error: click.ClickException) -> str:
    """The line on stderr for a command line that is wrong: the reason, the nearest right word, and where to read on."""
    message = with_short_words(error.format_message())
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    program = "offsets" if context is None else context.command_path
    end = "" if message.endswith((".", "?", "?)")) else "."
    return f"offsets: error: {message}{end} See `{program} --help`.\n"
