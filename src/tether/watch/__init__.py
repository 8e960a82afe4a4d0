"""The report of a run, live in the browser of this machine while it trains. Reads the run folder and nothing else; changes nothing.

    live      a run folder -> the newest page, built only when a file changed
    app       a request -> a response: who may see what, as a pure function of both
    server    sockets: 127.0.0.1 and ::1, one thread a connection
    live.js   brings the open page up to date without reloading it

Imports no torch. Security: shared/reliability.md 2.2, as far as a page that only reads needs it.
"""

from __future__ import annotations

from tether.watch.server import watch

__all__ = ["watch"]
