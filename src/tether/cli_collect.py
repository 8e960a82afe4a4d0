"""``tether collect``: people compare answers. Registered in ``tether.cli``; as there, commands import what is heavy."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from tether.errors import ConfigError

__all__ = ["collect_app"]

collect_app = App(name="collect", help="People compare answers: a database, a page, and what the judgements are worth.")


@collect_app.command
def serve(
    database: Annotated[str, Parameter(name="DB", help="The database: a SQLite file or a postgresql:// URL.")],
    /,
    *,
    port: Annotated[int, Parameter(help="Port on 127.0.0.1 and ::1; 0 takes a free one.")] = 0,
    host: Annotated[str, Parameter(help="Another address of this machine, such as 192.168.1.20; others can then reach it.")] = "",
    annotator: Annotated[tuple[str, ...], Parameter(negative=(), help="A name that gets a personal link; as often as wanted.")] = (),
    names: Annotated[bool, Parameter(negative=(), help="One link for all; whoever opens it types a name.")] = False,
) -> None:
    """Serve the page where people compare answers; says the links to open. Stop with Ctrl-C.

    Example: tether collect serve answers.db --annotator Ann --annotator Ben
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: expected a number from 0 (a free port) to 65535")
    from tether.collect.web.server import serve as serve_page

    serve_page(database, port=port, host=host, annotators=annotator, names=names)
