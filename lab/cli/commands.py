"""The table of verbs, and the commands and groups of Typer that it becomes.

A verb's module is imported when the verb is used. Of Typer only what it documents is used:
``TyperGroup``, ``TyperCommand`` and ``typer.main.get_command``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from lab.cli.manual import Manual, manual_of
from lab.errors import InvalidSpec
from lab.suggest import did_you_mean

_WITH_VALUE = {"--home": "directory", "--remote": "URL"}
"""The global flags that take a value, and the kind of value."""

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


class Verb(TyperCommand):
    """A verb; values of its flags and arguments must not be empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As its base; raises InvalidSpec if a value is given and empty."""
        rest: list[str] = super().parse_args(ctx, args)
        refuse_empty(ctx)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As its base, which puts what is required in braces; manuals do not."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


def refuse_empty(ctx: Any) -> None:
    """Raise InvalidSpec if a value is given and empty, as by an unset variable of a script.

    It would be taken for a missing one: another lab, another home.
    """
    for param in ctx.command.params if not ctx.resilient_parsing else ():
        given = ctx.get_parameter_source(param.name)
        empty = param.default == ctx.params.get(param.name) == ""
        if empty and given is not None and given.name == "COMMANDLINE":
            name = max(param.opts, key=len) if param.opts[0].startswith("-") else param.metavar
            raise InvalidSpec(f"{name}: the value is empty", hint="leave it out, or give a value")


class CommandBehind(Verb):
    """A verb that a command may follow: ``lab run pxc -- make test``.

    The words from ``--`` on are removed before parsing: else ``make`` in ``lab run -- make``
    would be the blueprint.
    """

    takes_command: ClassVar[bool] = True
    behind: ClassVar[str] = "-- CMD..."

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what follows ``--`` for the verb, and parse what precedes it."""
        if "--" in args:
            place = args.index("--")
            ctx.find_root().obj.after_dashes = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with the command."""
        return [*super().collect_usage_pieces(ctx), self.behind]


class CommandMaybeBehind(CommandBehind):
    """A verb that a command may follow: ``lab up --matrix``, ``lab upgrade``."""

    takes_command: ClassVar[bool] = False
    behind: ClassVar[str] = "[-- CMD...]"


class Verbs(TyperGroup):
    """A group whose verbs are in a table, by name: ``module:function``, or a group."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # the library's signature
        """The names, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of that name; an unknown one raises InvalidSpec, except for completion."""
        target = self.table.get(cmd_name)
        if isinstance(target, str):
            return _command(cmd_name, target)
        if target is not None:
            return _group(cmd_name, target)
        if not ctx.resilient_parsing and not cmd_name.startswith("-"):
            raise InvalidSpec(
                f"there is no command {cmd_name!r}",
                hint=did_you_mean(
                    cmd_name, self.table, otherwise=f"`{ctx.command_path} --help` lists them"
                ),
            )
        return None


class ImageVerbs(Verbs):
    """Build, list, show, exchange and remove images."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "build": "lab.cli.verbs.image:build",
        "ls": "lab.cli.verbs.image:ls",
        "show": "lab.cli.verbs.image:show",
        "export": "lab.cli.verbs.archive:export_image",
        "import": "lab.cli.verbs.archive:import_image",
        "rm": "lab.cli.verbs.image:rm",
    }


class TemplateVerbs(Verbs):
    """Build, list, exchange and remove templates, which labs clone."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "build": "lab.cli.verbs.template:build",
        "ls": "lab.cli.verbs.template:ls",
        "export": "lab.cli.verbs.archive:export_template",
        "import": "lab.cli.verbs.archive:import_template",
        "rm": "lab.cli.verbs.template:rm",
    }


class SnapshotVerbs(Verbs):
    """Take, list, protect, exchange and remove snapshots."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "take": "lab.cli.verbs.snapshot:take",
        "ls": "lab.cli.verbs.snapshot:ls",
        "protect": "lab.cli.verbs.snapshot:protect",
        "unprotect": "lab.cli.verbs.snapshot:unprotect",
        "export": "lab.cli.verbs.archive:export_snapshot",
        "import": "lab.cli.verbs.archive:import_snapshot",
        "rm": "lab.cli.verbs.snapshot:rm",
        "prune": "lab.cli.verbs.snapshot:prune",
    }


class EngineVerbs(Verbs):
    """Add, list and remove the engines that labs can run on."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "add": "lab.cli.verbs.engine:add",
        "ls": "lab.cli.verbs.engine:ls",
        "rm": "lab.cli.verbs.engine:rm",
    }


class DatasetVerbs(Verbs):
    """Load data into images that labs begin with."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "create": "lab.cli.verbs.dataset:create",
        "refresh": "lab.cli.verbs.dataset:refresh",
        "ls": "lab.cli.verbs.dataset:ls",
        "show": "lab.cli.verbs.dataset:show",
        "scan": "lab.cli.verbs.dataset:scan",
        "export": "lab.cli.verbs.archive:export_dataset",
        "import": "lab.cli.verbs.archive:import_dataset",
        "rm": "lab.cli.verbs.dataset:rm",
    }


class BenchVerbs(Verbs):
    """Measure labs; compare two of them round by round."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "run": "lab.cli.verbs.bench:run",
        "compare": "lab.cli.verbs.bench:compare",
        "experiment": "lab.cli.verbs.experiment:experiment",
        "ci": "lab.cli.verbs.bench:ci",
        "ls": "lab.cli.verbs.bench:ls",
        "show": "lab.cli.verbs.bench:show",
        "export": "lab.cli.verbs.bench:export",
        "rm": "lab.cli.verbs.bench:rm",
    }


class TokenVerbs(Verbs):
    """Create, list and revoke tokens of the service."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "create": "lab.cli.verbs.token:create",
        "ls": "lab.cli.verbs.token:ls",
        "revoke": "lab.cli.verbs.token:revoke",
    }


class HostVerbs(Verbs):
    """Prepare this host; hosts of a fleet."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "init": "lab.cli.verbs.host:init",
        "ls": "lab.cli.verbs.fleet:ls",
        "show": "lab.cli.verbs.fleet:show",
        "drain": "lab.cli.verbs.fleet:drain",
        "undrain": "lab.cli.verbs.fleet:undrain",
        "adopt": "lab.cli.verbs.fleet:adopt",
        "rm": "lab.cli.verbs.fleet:rm",
    }


class DatabaseVerbs(Verbs):
    """The database of a fleet."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "migrate": "lab.cli.verbs.fleet:migrate",
    }


class RootVerbs(Verbs):
    """Disposable VM labs of MySQL-family clusters: clones of a formed cluster."""

    table: ClassVar[Mapping[str, str | type[Verbs]]] = {
        "up": "lab.cli.verbs.up:up",
        "down": "lab.cli.verbs.down:down",
        "run": "lab.cli.verbs.run:run",
        "ls": "lab.cli.verbs.status:ls",
        "status": "lab.cli.verbs.status:status",
        "wait": "lab.cli.verbs.status:wait",
        "start": "lab.cli.verbs.power:start",
        "stop": "lab.cli.verbs.power:stop",
        "sleep": "lab.cli.verbs.sleep:sleep",
        "wake": "lab.cli.verbs.sleep:wake",
        "promote": "lab.cli.verbs.power:promote",
        "upgrade": "lab.cli.verbs.upgrade:upgrade",
        "extend": "lab.cli.verbs.power:extend",
        "snapshot": SnapshotVerbs,
        "rollback": "lab.cli.verbs.snapshot:rollback",
        "reset": "lab.cli.verbs.reset:reset",
        "standby": "lab.cli.verbs.reset:standby",
        "branch": "lab.cli.verbs.branch:branch",
        "sql": "lab.cli.verbs.sql:sql",
        "exec": "lab.cli.verbs.node_access:execute",
        "ssh": "lab.cli.verbs.node_access:ssh",
        "cp": "lab.cli.verbs.copy:cp",
        "dump": "lab.cli.verbs.copy:dump",
        "logs": "lab.cli.verbs.node_access:logs",
        "console": "lab.cli.verbs.node_access:console",
        "bundle": "lab.cli.verbs.bundle:bundle",
        "open": "lab.cli.verbs.bundle:open_file",
        "bench": BenchVerbs,
        "env": "lab.cli.verbs.env:env",
        "ca": "lab.cli.verbs.ca:ca",
        "engine": EngineVerbs,
        "image": ImageVerbs,
        "template": TemplateVerbs,
        "dataset": DatasetVerbs,
        "serve": "lab.cli.verbs.serve:serve",
        "token": TokenVerbs,
        "host": HostVerbs,
        "db": DatabaseVerbs,
        "gc": "lab.cli.verbs.host:gc",
        "doctor": "lab.cli.verbs.host:doctor",
        "version": "lab.cli.verbs.host:version",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept the global flags after the verb, too."""
        if args and args[-1] in _WITH_VALUE and not ctx.resilient_parsing:
            raise InvalidSpec(f"{args[-1]}: no {_WITH_VALUE[args[-1]]} is given")
        rest: list[str] = super().parse_args(ctx, _globals_first(args))
        refuse_empty(ctx)
        return rest


def root_command() -> Any:
    """The whole command line."""
    app = typer.Typer(
        cls=RootVerbs,
        name="lab",
        help=RootVerbs.__doc__,
        epilog="Exit codes, formats and environment variables: docs/cli.md",
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP_FLAGS,
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def _root(
    ctx: typer.Context,
    home: str = typer.Option(
        "",
        "--home",
        metavar="DIR",
        show_default=False,
        help="Directory for images, templates and labs (LAB_HOME).",
    ),
    remote: str = typer.Option(
        "",
        "--remote",
        metavar="URL",
        show_default=False,
        help="Use the service at this URL (LAB_URL), with the token in LAB_TOKEN.",
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print no notes and no progress."),
    debug: bool = typer.Option(False, "--debug", help="Print a traceback with each error."),
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    app = ctx.obj
    app.home, app.remote = home or None, remote or None
    app.quiet, app.debug = quiet, debug
    if ctx.invoked_subcommand is None:
        if version:
            from lab.cli.verbs.host import version as print_version

            print_version(ctx)
        else:
            typer.echo(ctx.get_help())


def _group_help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _class_of(manual: Manual) -> type[Verb]:
    if manual.may_take_command:
        return CommandMaybeBehind
    return CommandBehind if manual.takes_command else Verb


def _command(name: str, target: str) -> Any:
    module, _, function_name = target.partition(":")
    function = getattr(import_module(module), function_name)
    manual = manual_of(function)
    examples = "".join(f"\n  {example}" for example in manual.examples)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP_FLAGS)
    app.command(
        name,
        cls=_class_of(manual),
        # The control character keeps the help's formatter from refilling the lines.
        help=f"{inspect.getdoc(function)}\n\n\b\nExamples:{examples}",
    )(function)
    return typer.main.get_command(app)


def _group(name: str, kind: type[Verbs]) -> Any:
    app = typer.Typer(
        cls=kind,
        name=name,
        help=kind.__doc__,
        add_completion=False,
        invoke_without_command=True,
        rich_markup_mode=None,
        context_settings=HELP_FLAGS,
    )
    app.callback()(_group_help)
    return typer.main.get_command(app)


def _globals_first(args: list[str]) -> list[str]:
    first: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            return [*first, *rest, word, *words]
        flag, given, _ = word.partition("=")
        if word in ("--debug", "--quiet", "-q") or (given and flag in _WITH_VALUE):
            first.append(word)
        elif word in _WITH_VALUE:
            value = next(words, None)
            if value is None:
                rest.append(word)  # while it is being completed
            else:
                first += [word, value]
        else:
            rest.append(word)
    return first + rest
