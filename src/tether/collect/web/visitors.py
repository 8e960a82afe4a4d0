"""Links, cookies, and whom they stand for. All of it is of this start of the server: nothing is stored, so nothing can be stolen later."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tether.access import cookie, cookie_header, fresh_token, same

__all__ = ["Role", "Visitor", "Visitors"]

_MOST_SESSIONS = 5000


class Role(StrEnum):
    """What a visitor may do."""

    OWNER = "owner"  # see how it goes, hand out links
    GUEST = "guest"  # type a name
    ANNOTATOR = "annotator"  # judge


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody whose token is right. ``annotator``: the id, for annotators."""

    role: Role
    annotator: str = ""


@dataclass
class Visitors:
    """State: the links that are open and the cookies that were given. ``port`` is in the cookies' names: cookies know no ports."""

    port: int
    names: bool = False
    _links: dict[str, Visitor] = field(default_factory=dict)
    _sessions: dict[str, Visitor] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def link(self, visitor: Visitor) -> str:
        """A token that works once; for guests, who share one link, as often as it is opened. Another visitor's older link ends."""
        with self._lock:
            earlier = [token for token, other in self._links.items() if other == visitor]
            if earlier and visitor.role is Role.GUEST:
                return earlier[0]
            for token in earlier:
                del self._links[token]
            token = fresh_token()
            self._links[token] = visitor
            return token

    def open(self, token: str) -> tuple[Visitor, str] | None:
        """The visitor of a link with the Set-Cookie header that lets them in; None for a token that is none (any more)."""
        with self._lock:
            found = _find(self._links, token)
            if found is None:
                return None
            known, visitor = found
            if visitor.role is not Role.GUEST:
                del self._links[known]
            return visitor, self._admit(visitor)

    def admit(self, visitor: Visitor) -> str:
        """The Set-Cookie header that lets this visitor in."""
        with self._lock:
            return self._admit(visitor)

    def _admit(self, visitor: Visitor) -> str:
        token = fresh_token()
        self._sessions[token] = visitor
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        return cookie_header(self._cookie(visitor.role), token)

    def of(self, header: str) -> Mapping[Role, Visitor]:
        """Who sends this Cookie header. An owner may be an annotator as well: there is a cookie for each."""
        with self._lock:
            found = (_find(self._sessions, cookie(header, self._cookie(role)) or "") for role in (Role.OWNER, Role.ANNOTATOR))
            return {match[1].role: match[1] for match in found if match is not None}

    def _cookie(self, role: Role) -> str:
        return f"tether_{'owner' if role is Role.OWNER else 'collect'}_{self.port}"


def _find(tokens: Mapping[str, Visitor], token: str) -> tuple[str, Visitor] | None:
    """Every token is compared, each in a time that does not tell where it differs."""
    matches = [(known, visitor) for known, visitor in tokens.items() if same(known, token)]
    return matches[0] if matches else None
