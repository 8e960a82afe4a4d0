"""A process for the kill tests: judges, and says so on stdout after each acknowledgement. Arguments: DATABASE ANNOTATOR PAUSE_S"""

from __future__ import annotations

import sys
import time
import uuid

from tether.collect.judgement import Choice, Judgement
from tether.collect.store import Store

database, annotator, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
with Store.open(database) as store:
    print("ready", flush=True)
    while (shown := store.next_item(annotator)) is not None:
        name = uuid.uuid4().hex
        store.record(Judgement(name, shown.item.item_id, annotator, Choice.FIRST, shown.shown, comment="x" * 200))
        print(name, flush=True)  # from here on the annotator has been told
        time.sleep(pause)
