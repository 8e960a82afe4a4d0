"""A collection with something to judge, and the page of it without a socket."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.testclient import TestClient

from tether.collect.entries import Answer, Provenance
from tether.collect.judgement import Item
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.collect.web.app import Office, build_app
from tether.collect.web.limits import Guesses, Rate
from tether.collect.web.visitors import Role, Visitor, Visitors
from tether.collect.web.wire import Desk
from tether.types import Message, Prompt

PORT = 8123
ADDRESS = f"http://127.0.0.1:{PORT}"
OWN = {"Origin": ADDRESS, "X-Tether": "1"}
GUIDELINES = "# What we look for\n\nChoose what you would rather **get**.\n\n1. True beats pleasant.\n2. Short beats long.\n"
MODEL = "secret-model-name"


def collection(path: Any, texts: list[tuple[str, ...]] | int = 3, **settings: Any) -> Store:
    """One item for each tuple of answers; every item wants 9 judgements, so that annotators do not wait for each other."""
    plain = {"gold_share": 0.0, "overlap": 1.0, "judgements_per_overlap_item": 9, "held_out_share": 0.0}
    store = Store.create(path, Settings(**{**plain, **settings}))
    rows = [(f"the first answer {k}", f"the second answer {k}") for k in range(texts)] if isinstance(texts, int) else texts
    store.add_prompts(Prompt(f"p{k}", (Message("user", f"Question {k}?"),)) for k in range(len(rows)))
    source = Provenance(source=MODEL, model=MODEL)
    store.add_answers(Answer(f"{MODEL}-{k}-{n}", f"p{k}", text, source) for k, row in enumerate(rows) for n, text in enumerate(row))
    store.add_items(Item(f"i-{MODEL}-{k}", f"p{k}", tuple(f"{MODEL}-{k}-{n}" for n in range(len(row)))) for k, row in enumerate(rows))
    return store


class Desktop:
    """The app of a store, and browsers that use it. State: what was logged and what links were told."""

    def __init__(self, store: Store, names: bool = False, **guard: Any) -> None:
        self.store, self.logged, self.told = store, [], []
        self.visitors = Visitors(PORT, names)
        self.office = Office(store, self.visitors, Desk(store), ADDRESS, self._log, self.told.append)
        generous = {"rate": Rate(burst=1e9), "guesses": Guesses(free=10**9)}
        self.app = build_app(self.office, port=PORT, **{**generous, **guard})

    def _log(self, event: str, **fields: object) -> None:
        self.logged.append({"event": event, **fields})

    def browser(self) -> TestClient:
        """One that has no cookie yet."""
        return TestClient(self.app, base_url=ADDRESS, follow_redirects=False)

    def enter(self, role: Role, annotator: str = "") -> TestClient:
        """One that has opened its link."""
        browser = self.browser()
        assert browser.get(self.office.link(Visitor(role, annotator))).status_code == 200
        return browser

    def annotator(self, name: str = "Ann") -> TestClient:
        return self.enter(Role.ANNOTATOR, self.office.named(name).id)


def post(browser: TestClient, path: str, body: Any = None, **options: Any) -> Any:
    """A change as our own page asks for it."""
    return browser.post(path, json={} if body is None else body, headers={**OWN, **options.pop("headers", {})}, **options)


def judgement(item: dict[str, Any], choice: str = "left", **fields: Any) -> dict[str, Any]:
    """What the page sends."""
    plain = {"strength": None, "ranking": [], "reason": "", "comment": "", "seconds": 1.5}
    return {"judgement_id": uuid.uuid4().hex, "item": item["item"], "shown": item["shown"], "choice": choice, **plain, **fields}


def next_item(browser: TestClient) -> dict[str, Any]:
    return post(browser, "/api/next").json()["item"]
