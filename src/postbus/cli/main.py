"""The `postbus` command.

The declarations in `postbus.settings` make the flags of `serve`, so a setting is written down once.
A command imports its modules when it runs: `serve` must be ready within a second.
"""

import inspect
import sys
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_origin

import typer

from postbus.cli.feed import app as feed
from postbus.cli.pipeline import app as pipelines
from postbus.cli.quick_imports import imported_quickly
from postbus.cli.syphon import syphon
from postbus.settings import (
    Settings,
    SettingsError,
    declared,
    flag_of,
    unknown_variables,
    variable_of,
)

# The status for an unusable command line, as distinct from work that failed.
_USAGE = 2

app = typer.Typer(
    name="postbus",
    help="The service bus you run yourself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(pipelines, name="pipeline")
app.add_typer(feed, name="feed")
app.command()(syphon)


class Form(StrEnum):
    """The formats of an exported namespace."""

    TOML = "toml"
    EMULATOR = "emulator"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)


def _with_flags(command: Callable[[dict[str, object]], None]) -> Callable[..., None]:
    """Give a command one flag for each setting; the command is called with the given flags."""

    def run(**flags: object) -> None:
        command({name: value for name, value in flags.items() if value is not None})

    parameters = []
    for name, field in declared().items():
        flag = flag_of(name)
        spelled = f"{flag}/--no-{flag[2:]}" if field.annotation is bool else flag
        several = get_origin(field.annotation) is tuple
        option = typer.Option(
            spelled,
            help=f"{field.description}. [{_shown(field.get_default())}]",
            show_default=False,
            metavar="<name>" if several else None,
        )
        given: Any = list[str] if several else field.annotation
        # None means "not given", so that variable and file get their turn.
        kind: Any = Annotated[given | None, option]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        )
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


@app.command()
@_with_flags
def serve(flags: dict[str, object]) -> None:
    """Start the broker and serve until told to stop (SIGTERM or Ctrl-C; twice forces)."""
    settings = _load(flags)
    with imported_quickly():
        from postbus.server import run

    sys.exit(run(settings))


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="Folder to make; it must not be there yet")],
    data: Annotated[
        Path | None, typer.Option(help="Data folder to copy [the setting `data`]")
    ] = None,
) -> None:
    """Copy a data folder, in use or not, into a folder that `serve --data` can open."""
    settings = _load({} if data is None else {"data": data})
    from postbus.ops.backup import BackupRefused, back_up

    try:
        back_up(settings.data, target)
    except BackupRefused as error:
        _fail(str(error), status=1)
    print(f"{settings.data} is copied to {target}")


@app.command()
def reload(
    data: Annotated[
        Path | None, typer.Option(help="Data folder of the server to ask [the setting `data`]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what is different; change nothing")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what is not in the file, with its messages")
    ] = False,
) -> None:
    """Let a running server read its --config file again and make its entities like it."""
    settings = _load({} if data is None else {"data": data})
    from postbus.ops.control import ControlError
    from postbus.ops.reload_request import ask_reload, report

    try:
        outcome = ask_reload(settings.data, dry_run=dry_run, prune=prune)
    except ControlError as error:
        _fail(str(error), status=1)
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line, style in report(outcome, dry_run=dry_run):
        console.print(Text(line, style))
    if outcome.error is not None:
        _fail(f"not carried out to the end: {outcome.error}", status=1)


@app.command()
def export(
    data: Annotated[
        Path | None, typer.Option(help="Data folder to read, in use or not [the setting `data`]")
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="Our own file, or the emulator's Config.json")
    ] = Form.TOML,
    keys: Annotated[
        bool, typer.Option("--keys", help="With the keys of authorization rules")
    ] = False,
) -> None:
    """Print the entities of a namespace as a file that --config reads."""
    settings = _load({} if data is None else {"data": data})
    from postbus.ops.export import ExportRefused, export_folder

    try:
        exported = export_folder(settings.data, settings.namespace_name, form.value, keys=keys)
    except ExportRefused as error:
        _fail(str(error), status=1)
    sys.stdout.write(exported.text)
    for line in exported.lost:
        print(f"postbus: not written: {line}", file=sys.stderr)


@app.command()
def cert(
    data: Annotated[
        Path | None, typer.Option(help="Data folder to make them in [the setting `data`]")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder to make them in, instead of the data folder")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Host name or address that clients use, besides localhost; repeatable"),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new certificate although the old one would do")
    ] = False,
) -> None:
    """Make a local CA and a certificate for TLS, and say what to set for each SDK."""
    settings = _load({} if data is None else {"data": data})
    from postbus.settings import MADE_CERTIFICATE
    from postbus.tls.certificates import CertificateError
    from postbus.tls.local_ca import make_certificate, told

    place = settings.data / MADE_CERTIFICATE.parent if folder is None else folder
    try:
        made = make_certificate(place, name or [], renew=renew)
    except CertificateError as error:
        _fail(str(error), status=1)
    print(told(made, settings.data if folder is None else None))


@app.command("settings")
@_with_flags
def show_settings(flags: dict[str, object]) -> None:
    """Show every setting, its value with these flags, variables and file, and what it is for."""
    settings = _load(flags)
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "variable", "meaning", box=None, pad_edge=False)
    for name, field in declared().items():
        given = name in settings.model_fields_set
        value = _shown(getattr(settings, name))
        table.add_row(
            flag_of(name),
            f"[bold]{value}[/bold]" if given else value,
            variable_of(name),
            field.description,
        )
    Console(highlight=False).print(table)


@app.command()
@_with_flags
def doctor(flags: dict[str, object]) -> None:
    """Say which code runs here and on what, and whether anything is in its way."""
    settings = _load(flags)
    from rich.console import Console
    from rich.table import Table

    from postbus.ops.doctor import examine

    table = Table(box=None, pad_edge=False, show_header=False)
    findings = examine(settings)
    for name, fact, trouble in findings:
        table.add_row("[bold red]✗[/bold red]" if trouble else "✓", name, fact)
        if trouble:
            table.add_row("", "", trouble)
    Console(highlight=False).print(table)
    sys.exit(1 if any(one.trouble for one in findings) else 0)


@app.command()
def version() -> None:
    """Print the version."""
    print(f"postbus {version_of('postbus')}")


def _load(flags: dict[str, object]) -> Settings:
    for name in unknown_variables():
        print(f"postbus: {name} is set, but there is no such setting", file=sys.stderr)
    try:
        return Settings.load(flags)
    except SettingsError as error:
        _fail(*error.problems, status=_USAGE)


def _fail(*lines: str, status: int) -> NoReturn:
    for line in lines:
        print(f"postbus: {line}", file=sys.stderr)
    sys.exit(status)
