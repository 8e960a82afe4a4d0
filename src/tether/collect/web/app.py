"""The routes: who is let in by the guard gets a page or an item, or has a judgement stored. No file or address that was sent is read.

    GET  /open/TOKEN       a link: a cookie for it              GET  /static/NAME       a file of the list below
    GET  /                 the page of an annotator             GET  /api/session       settings and guidelines
    POST /api/next         the item to judge now                POST /api/judgements    store one; 200 means it is on the disk
    POST /api/undo         withdraw one, and get it again       POST /api/join          type a name, where the owner allows it
    GET  /owner            progress, agreement, speed           POST /api/links         a personal link for a name
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tether.access import welcome
from tether.collect.entries import Annotator
from tether.collect.store import Store
from tether.collect.web.body import BadBody, read_object, text
from tether.collect.web.guard import OPEN, Guard
from tether.collect.web.owner import overview
from tether.collect.web.visitors import Role, Visitor, Visitors
from tether.collect.web.wire import FIELDS, Desk, handle
from tether.errors import DataError, StoreConflict, StoreDamaged, StoreError, StoreFull
from tether.report.page import asset, fill

__all__ = ["PAGE_OF", "STATIC", "Office", "build_app"]

_SCRIPT, _STYLE = "text/javascript", "text/css"
STATIC = {
    **dict.fromkeys(("base.css", "compare.css", "text.css", "owner.css", "charts.css"), _STYLE),
    **dict.fromkeys(("api.js", "clock.js", "compare.js", "diff.js", "join.js", "keys.js", "markdown.js", "owner.js"), _SCRIPT),
    **dict.fromkeys(("rank.js", "screen.js", "theme.js", "visible.js"), _SCRIPT),
    "icon.svg": "image/svg+xml",
}
"""Every file that is served, with its type. A name that is not here is 404; none is ever made into a path."""

PAGE_OF = "x-tether-page"
"""The header in which a page says whose it is (``Office.page_of``, which /api/session tells)."""

_LONGEST_NAME = 80


@dataclass
class Office:
    """What the routes share. ``address``: what a link begins with; ``on_link(text)``: a new link of the owner is told."""

    store: Store
    visitors: Visitors
    desk: Desk
    address: str
    log: Callable[..., object]
    on_link: Callable[[str], object] = lambda link: None

    def link(self, visitor: Visitor) -> str:
        """The address that lets this visitor in."""
        return f"{self.address}{OPEN}{self.visitors.link(visitor)}"

    @cached_property
    def _collection(self) -> str:
        return self.store.created_at()

    def page_of(self, annotator: str) -> str:
        """Whose page of which collection, as a hash: also after a restart, and never that of another collection on the same port."""
        return handle("page", self._collection, annotator)

    def named(self, name: str) -> Annotator:
        """The annotator of this name, new where there is none. Spaces do not tell people apart, but where two names of the database differ
        in nothing else. Raises DataError for a name that is none.
        """
        wanted = " ".join(name.split())
        known = {annotator.name: annotator for annotator in self.store.annotators()}
        alike = {" ".join(there.split()): annotator for there, annotator in known.items()}
        return known.get(name) or alike.get(wanted) or self.store.add_annotator(wanted)


def build_app(office: Office, **guard: Any) -> Guard:
    """The ASGI application; ``guard``: settings of ``Guard``."""
    routes = [
        Route("/open/{token:path}", _opener(office)),
        Route("/", _bound(_home, office)),
        Route("/owner", _bound(_owner, office)),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
        Route("/static/{name}", _static),
        Route("/api/session", _bound(_session, office)),
        *(Route(f"/api/{name}", _bound(act, office), methods=["POST"]) for name, act in _ACTS.items()),
    ]
    handlers: dict[Any, Any] = {
        BadBody: lambda request, error: PlainTextResponse(str(error), error.status),
        StoreFull: _failed(office, 507, "The disk of the server is full. This was not stored; everything before it is."),
        StoreConflict: _failed(office, 409, "You have judged this item already, perhaps in another window."),
        StoreDamaged: _failed(office, 503, "The database on the server is damaged, and nothing can be saved. Tell the owner."),
        StoreError: _failed(office, 503, "The database does not answer. Try again."),
        DataError: _failed(office, 422, "This does not fit what is stored. Reload the page."),
        404: lambda request, error: PlainTextResponse("There is nothing here.", 404),
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    guarded = Guard(app, office.visitors, log=office.log, **guard)
    app.state.punish = guarded.punish
    return guarded


def _bound(act: Callable[[Office, Request], Response], office: Office) -> Callable[[Request], Response]:
    """A route; Starlette runs it in a thread of its own, because the database is waited for."""

    def endpoint(request: Request) -> Response:
        return act(office, request)

    return endpoint


def _failed(office: Office, status: int, told: str) -> Callable[[Request, Exception], Response]:
    def handler(request: Request, error: Exception) -> Response:
        office.log("refused", status=status, path=request.url.path, error=str(error))
        return PlainTextResponse(told, status)

    return handler


def _visitor(request: Request, *roles: Role) -> Visitor:
    visitors = request.state.visitors
    for role in roles:
        if role in visitors:
            return visitors[role]
    raise HTTPException(403, "This is for others. Open your own link in this browser.")


def _annotator(office: Office, request: Request) -> str:
    """The id of who asks. A page says whose it is: one that was open when somebody else's link was opened in the same browser must not
    judge in that person's name, and what waits in it is not refused for good.
    """
    annotator = _visitor(request, Role.ANNOTATOR).annotator
    own = office.page_of(annotator)
    if request.headers.get(PAGE_OF, own) != own:
        raise HTTPException(403, "The link of somebody else was opened in this browser. Open your own newest link in it to go on.")
    return annotator


def _opener(office: Office) -> Callable[[Request], Any]:
    """A link that is right is changed for a cookie; a link that is wrong costs time."""

    async def endpoint(request: Request) -> Response:
        found = office.visitors.open(request.path_params["token"])
        if found is None:
            await request.app.state.punish(request.client.host if request.client else "")
            return PlainTextResponse("This link was used before, or never was one. Ask for a new one.", 401)
        visitor, cookie = found
        office.log("opened", role=visitor.role, annotator=visitor.annotator)
        if visitor.role is Role.OWNER:
            office.on_link(office.link(visitor))
        target = "/owner" if visitor.role is Role.OWNER else "/"
        return HTMLResponse(welcome(target, "Go on"), headers={"Set-Cookie": cookie})

    return endpoint


def _home(office: Office, request: Request) -> Response:
    if Role.ANNOTATOR in request.state.visitors:
        return _page("compare.html")
    if Role.GUEST in request.state.visitors:
        return _page("join.html")
    return RedirectResponse("/owner", 303)


def _owner(office: Office, request: Request) -> Response:
    _visitor(request, Role.OWNER)
    names = office.link(Visitor(Role.GUEST)) if office.visitors.names else ""
    return _page("owner.html", names_link=names, now=overview(office.store))


def _session(office: Office, request: Request) -> Response:
    annotator = _annotator(office, request)
    settings = office.store.settings
    return JSONResponse({
        "page": office.page_of(annotator),
        "question": settings.question,
        "guidelines": settings.guidelines,
        "strengths": settings.strengths,
        "comments": settings.comments,
        "break_after_minutes": settings.break_after_minutes,
        "first": not office.store.history(annotator, 1),
    })  # fmt: skip


def _now(office: Office, annotator: str) -> dict[str, Any]:
    """What the page shows next. How many ordinary items are left is told as a share: the count would stand still on a test question."""
    item = office.desk.show(annotator, office.store.next_item(annotator))
    progress, newest = office.store.progress(annotator), office.store.history(annotator, 1)
    share = round(progress.judged / max(progress.judged + progress.open, 1), 2)
    counts = {"judged": progress.judged, "skipped": progress.skipped, "share": share}
    return {"item": item, "progress": counts, "last": newest[0].judgement_id if newest else None}


def _next(office: Office, request: Request) -> Response:
    annotator = _annotator(office, request)
    read_object(request.state.body, ())
    return JSONResponse(_now(office, annotator))


def _judge(office: Office, request: Request) -> Response:
    annotator = _annotator(office, request)
    judgement = office.desk.judgement(annotator, read_object(request.state.body, FIELDS))
    office.store.record(judgement)
    return JSONResponse({"stored": judgement.judgement_id})


def _undo(office: Office, request: Request) -> Response:
    """By its id: asked twice, because the first answer was lost, it still takes back one."""
    annotator = _annotator(office, request)
    wanted = text(read_object(request.state.body, ("judgement_id",)), "judgement_id", 64)
    office.store.undo(annotator, wanted)
    return JSONResponse(_now(office, annotator))


def _join(office: Office, request: Request) -> Response:
    _visitor(request, Role.GUEST, Role.ANNOTATOR)
    if not office.visitors.names:
        raise HTTPException(403, "Ask the owner for a personal link.")
    annotator = office.named(_name(request))
    office.log("joined", annotator=annotator.id, name=annotator.name)
    return JSONResponse({}, headers={"Set-Cookie": office.visitors.admit(Visitor(Role.ANNOTATOR, annotator.id))})


def _link(office: Office, request: Request) -> Response:
    _visitor(request, Role.OWNER)
    annotator = office.named(_name(request))
    return JSONResponse({"name": annotator.name, "link": office.link(Visitor(Role.ANNOTATOR, annotator.id))})


def _name(request: Request) -> str:
    found = text(read_object(request.state.body, ("name",)), "name", _LONGEST_NAME)
    if not found.strip():
        raise BadBody(422, "Type a name.")
    return found


_ACTS = {"next": _next, "judgements": _judge, "undo": _undo, "join": _join, "links": _link}


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    return Response(_file(name), media_type=STATIC[name])


@cache
def _file(name: str) -> str:
    if name == "charts.css":
        return "/* charts" + asset("page.css").partition("/* charts")[2].partition("/* end of charts */")[0]
    return (resources.files("tether.collect.web") / "static" / name).read_text(encoding="utf-8")


def _page(name: str, **values: Any) -> Response:
    return HTMLResponse(fill(name, values, package="tether.collect.web"))
