"""The commands that install the schema: migrate, sql, version."""

# ruff: noqa: PLC0415 - psycopg is imported by the commands that connect, so that --help is quick

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from penstock import __version__
from penstock.dsn import find_dsn

from .connection import connect, connect_or_embedded, dsn_option, json_option
from .failures import Failure

__all__ = ["migrate", "sql", "version"]


@click.command()
@dsn_option
@json_option
def migrate(dsn: str | None, as_json: bool) -> None:
    """Install the schema in a database, or upgrade it."""
    from penstock.schema import install

    with connect_or_embedded(dsn) as connection:
        done = install(connection)
        database = connection.info.dbname
    before = done.before.package_version if done.before else None
    if as_json:
        facts = {
            "database": database,
            "before": before,
            "after": done.after.package_version,
            "migration": done.after.migration,
            "migrations": list(done.migrations),
            "changed": done.changed,
        }
        click.echo(json.dumps(facts))
        return
    verb = "installed" if before is None else "upgraded" if done.changed else "already current"
    click.echo(f"{database}: schema penstock {done.after.package_version} {verb}")
    for name in done.migrations:
        click.echo(f"  {name}")


@click.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def sql(output: Path | None) -> None:
    """Print the schema as plain SQL for psql."""
    from penstock.schema import script

    if output is None:
        click.echo(script(), nl=False)
        return
    try:
        output.write_text(script(), encoding="utf-8")
    except OSError as exc:
        raise Failure(f"cannot write {output}: {exc.strerror}") from None
    click.echo(f"Wrote {output}. Install it: psql --set ON_ERROR_STOP=1 --file {output}", err=True)


@click.command()
@dsn_option
@json_option
def version(dsn: str | None, as_json: bool) -> None:
    """Print the version of the package, and of a database."""
    resolved = find_dsn(dsn, os.environ)
    facts: dict[str, str | int | None] = {"package": __version__}
    if resolved is not None:
        from penstock.schema import installed_version

        with connect(resolved) as connection:
            found = installed_version(connection)
        facts["schema"] = found.package_version if found else None
        facts["migration"] = found.migration if found else None
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"penstock {__version__}")
    if "schema" in facts:
        installed = f"{facts['schema']} (migration {facts['migration']})"
        click.echo(f"schema {installed if facts['schema'] else 'not installed'}")
