"""The database of one collection: prompts, answers, items, annotators, judgements and scores, on SQLite or PostgreSQL.

A method that returns has its writes on the disk. Any number of processes and threads may use one database at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from tether.collect import schema
from tether.collect.adding import GOLD, Added, add_items, add_prompts, add_rows, answers_of_items, next_number
from tether.collect.assign import assign, progress
from tether.collect.codec import answer_of, answer_row, check_plain, gold_of, prompt_of, text_from_json
from tether.collect.engine import Engine, check_file, reading, shown_place, writing
from tether.collect.engine import sqlalchemy as sa
from tether.collect.entries import Annotator, Answer, ItemState, Progress, Shown, StoredPrompt, plain_text
from tether.collect.judgement import Item, Judgement
from tether.collect.judging import history, judgements_of, record_all, undo
from tether.collect.opening import create_database, open_database, read_settings, write_settings
from tether.collect.order import display_order
from tether.collect.scoring import read_scores, rerank, scorer_ids, write_scores
from tether.collect.settings import CHANGEABLE, Settings, Strategy
from tether.errors import ConfigError, DataError, StoreDamaged
from tether.types import Prompt

__all__ = ["Added", "Store"]


class Store:
    """One collection. Made by ``Store.create``, opened by ``Store.open``; close it, or use it in a ``with`` block.

    Every method raises StoreError where the database refuses, StoreFull where its disk is full (nothing of that call is stored, everything
    before it is), and DataError for contents that cannot be stored. Annotators are named by their ids.

    Example::

        with Store.create("answers.db", Settings(seed=7)) as store:
            store.add_prompts([Prompt("p1", "What is rain?")])
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self.settings = settings

    @classmethod
    def create(cls, url_or_path: str | os.PathLike[str], settings: Settings) -> Store:
        """A new one: at the path of a SQLite file that does not exist yet (mode 0600), or in the PostgreSQL database of a URL."""
        return cls(create_database(url_or_path, settings), settings)

    @classmethod
    def open(cls, url_or_path: str | os.PathLike[str]) -> Store:
        """An existing database, whose file is read once: what a damaged page no longer tells would be missing from every figure and export
        without a word (.25 s at 100,000 comparisons).

        Raises StoreError where there is none, where it is not one of ours, and where a newer Tether wrote it; StoreDamaged where the file
        is not sound.
        """
        store = cls(*open_database(url_or_path))
        try:
            store.check()
        except StoreDamaged:
            store.close()
            raise
        return store

    @property
    def place(self) -> str:
        """Where it is, without a password: for messages."""
        return shown_place(self._engine)

    def created_at(self) -> str:
        """When the collection was made, ISO 8601, UTC; a copy (``exchange.dump``) keeps it, so that it tells collections apart."""
        with reading(self._engine) as connection:
            return connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.key == "created_at")) or ""

    @property
    def engine(self) -> Engine:
        """For ``engine.reading``: views of the whole that this class has no method for."""
        return self._engine

    def check(self) -> None:
        """Read the whole file once. Raises StoreDamaged where it is not sound; PostgreSQL looks after its own."""
        check_file(self._engine)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def change_settings(self, **changes: Any) -> Settings:
        """Change what may change later (``settings.CHANGEABLE``) and return all settings. Raises ConfigError for the others.

        Judgements, sides and the items that are there stay as they are: of ``overlap`` an item learns when it is added. A server that runs
        goes by the settings it was started with.
        """
        if fixed := sorted(set(changes) - set(CHANGEABLE)):
            raise ConfigError(f"{', '.join(fixed)}: fixed when the database was made; only {', '.join(CHANGEABLE)} may change later")
        with writing(self._engine) as connection:
            changed = Settings.from_mapping(asdict(read_settings(connection, self.place)) | changes)
            write_settings(connection, changed)
        self.settings = changed
        return changed

    # What is judged

    def add_prompts(self, prompts: Iterable[Prompt]) -> Added:
        """Store prompts; those that are there with the same contents are counted and left. Training or held out is decided here, by a hash
        of the seed and the text, so that a text is on one side whatever its id, as a string and as the one turn of a user.
        """
        with writing(self._engine) as connection:
            return add_prompts(connection, prompts, self.settings)

    def add_answers(self, answers: Iterable[Answer]) -> Added:
        """Store answers to stored prompts."""
        with writing(self._engine) as connection:
            return add_rows(connection, schema.answers, map(answer_row, answers), {"prompt_id": schema.prompts.c.prompt_id})

    def add_items(self, items: Iterable[Item]) -> Added:
        """Store items of stored answers; with ``gold`` set they are test questions, which every annotator gets some of."""
        with writing(self._engine) as connection:
            added = add_items(connection, items, self.settings)
        if added.new and (self.settings.stratified or self.settings.strategy is not Strategy.RANDOM):
            rerank(self._engine, self.settings)
        return added

    def prompts(self) -> Iterator[StoredPrompt]:
        """In the order they were added, read as they are asked for."""
        yield from self._stream(sa.select(schema.prompts).order_by(schema.prompts.c.number), prompt_of)

    def answers(self) -> Iterator[Answer]:
        """In the order they were added."""
        yield from self._stream(sa.select(schema.answers).order_by(schema.answers.c.number), answer_of)

    def items(self) -> Iterator[Item]:
        """In the order they were added, gold items among them."""
        return (state.item for state in self.item_states())

    def item_states(self) -> Iterator[ItemState]:
        """The items with how they are served."""
        with reading(self._engine) as connection:
            yield from read_item_states(connection)

    def _stream(self, query: Any, convert: Any) -> Iterator[Any]:
        with reading(self._engine) as connection:
            yield from map(convert, connection.execution_options(yield_per=1000).execute(query))

    # Who judges

    def add_annotator(self, name: str) -> Annotator:
        """A new annotator with an id of the store's making ("a1", "a2", ...). Raises DataError for a name that is taken."""
        return self.add_annotators([name])[0]

    def add_annotators(self, names: Iterable[str]) -> list[Annotator]:
        """Several new annotators: all are added or none. Raises DataError for a name that is empty, taken, or there twice."""
        wanted: list[str] = []
        for name in names:
            check_plain(name, "the name of an annotator")
            wanted.append(name.strip())
            if not wanted[-1]:
                raise DataError("the name of an annotator is empty; nobody was added")
        if twice := sorted({name for name in wanted if wanted.count(name) > 1}):
            raise DataError(f"the names {', '.join(map(repr, twice))} come twice; nobody was added: each annotator has a name of one's own")
        table = schema.annotators
        with writing(self._engine) as connection:
            ids = {row.name: row.annotator_id for row in connection.execute(sa.select(table.c.name, table.c.annotator_id))}
            if taken := [f"{name!r} already ({ids[name]})" for name in wanted if name in ids]:
                raise DataError(f"there is an annotator {', '.join(taken)}; choose another name")
            number = next_number(connection, table)
            added = [Annotator(f"a{at + 1}", name) for at, name in enumerate(wanted, start=number)]
            for at, one in enumerate(added, start=number):
                connection.execute(sa.insert(table).values(annotator_id=one.id, name=one.name, number=at))
            return added

    def annotators(self) -> list[Annotator]:
        """In the order they were added."""
        with reading(self._engine) as connection:
            rows = connection.execute(sa.select(schema.annotators).order_by(schema.annotators.c.number))
            return [Annotator(row.annotator_id, row.name) for row in rows]

    def next_item(self, annotator: str) -> Shown | None:
        """The item that the annotator should judge now, with its answers in the order to show; None when nothing is left.

        The item is reserved: asking again (a reload) gives the same one in the same order, and nobody else gets it unless it wants several
        judgements. The order is ``order.display_order``, a function of the seed, the annotator and the item.
        """
        with writing(self._engine) as connection:
            who = _annotator(connection, annotator)
            row = assign(connection, who, self.settings, time.time())
            return None if row is None else _shown(connection, row, who.number, self.settings.seed)

    def progress(self, annotator: str) -> Progress:
        """How much the annotator has done and may still get."""
        with reading(self._engine) as connection:
            _annotator(connection, annotator)
            return progress(connection, annotator)

    # What was said

    def record(self, judgement: Judgement) -> Judgement:
        """Store a judgement and return it as stored (``made_at`` is filled in where it is empty). When this returns, it is on the disk.

        A judgement that is sent again returns the stored one. Raises StoreConflict for another content under the same id and for a second
        word of the annotator on the item (withdraw the first one), DataError where the judgement does not fit its item.
        """
        return self.record_all([judgement])[0]

    def record_all(self, judgements: Sequence[Judgement]) -> list[Judgement]:
        """Several judgements in one transaction: all are stored or none."""
        with writing(self._engine) as connection:
            return record_all(connection, judgements)

    def undo(self, annotator: str, judgement_id: str | None = None) -> Judgement | None:
        """Withdraw the annotator's newest live judgement, or the one named, and return it; None when there is none.

        The row is kept, and the item is the annotator's next one if it still wants a judgement. Withdrawing a named judgement twice returns
        it again.
        """
        with writing(self._engine) as connection:
            _annotator(connection, annotator)
            return undo(connection, annotator, judgement_id, time.time() + 60 * self.settings.reservation_minutes)

    def history(self, annotator: str, limit: int = 50) -> list[Judgement]:
        """The annotator's live judgements, the newest first."""
        with reading(self._engine) as connection:
            _annotator(connection, annotator)
            return history(connection, annotator, limit)

    def judgements(self, include_withdrawn: bool = False) -> Iterator[Judgement]:
        """In the order they were recorded, read as they are asked for; of one moment, whatever is recorded meanwhile."""
        with reading(self._engine) as connection:
            yield from judgements_of(connection, include_withdrawn)

    # What a model says

    def set_scores(self, scorer_id: str, scores: Mapping[str, float]) -> None:
        """The scores of answers by one reward model, replacing its earlier ones of the same answers; then the items are put in order anew.

        The scorer becomes the newest, which Strategy.UNCERTAINTY reads. Annotators are served meanwhile. Raises DataError for no scores, a
        number that is not finite and an answer that is not stored.
        """
        write_scores(self._engine, scorer_id, scores)
        rerank(self._engine, self.settings)

    def scores(self, scorer_id: str) -> dict[str, float]:
        """answer -> score. Raises DataError for a scorer that has none."""
        with reading(self._engine) as connection:
            return read_scores(connection, scorer_id)

    def scorers(self) -> list[str]:
        """The scorers, the newest last."""
        with reading(self._engine) as connection:
            return scorer_ids(connection)


def read_item_states(connection: Any) -> Iterator[ItemState]:
    """The items in the order they were added, inside the caller's transaction."""
    items, places = schema.items, schema.item_answers
    query = sa.select(items, places.c.answer_id).join(places).order_by(items.c.number, places.c.position)
    row, answers = None, []
    for following in connection.execution_options(yield_per=1000).execute(query):
        if row is not None and following.item_id != row.item_id:
            yield _state(row, answers)
            answers = []
        row = following
        answers.append(following.answer_id)
    if row is not None:
        yield _state(row, answers)


def _state(row: Any, answers: Sequence[str]) -> ItemState:
    item = Item(row.item_id, row.prompt_id, tuple(answers), gold_of(row))
    ordinary = row.stream != GOLD
    return ItemState(item, row.wanted if ordinary else None, row.wanted - row.missing if ordinary else 0, row.stream == 1, row.chosen_by)


def _annotator(connection: Any, annotator: str) -> Any:
    row = connection.execute(sa.select(schema.annotators).where(schema.annotators.c.annotator_id == annotator)).first()
    if row is None:
        raise DataError(f"there is no annotator with the id {annotator!r}; add one, or see `annotators`")
    return row


def _shown(connection: Any, row: Any, annotator_number: int, seed: int) -> Shown:
    item = Item(row.item_id, row.prompt_id, answers_of_items(connection, [row.item_id])[row.item_id], gold_of(row))
    shown = display_order(item.answers, seed, annotator_number, row.number)
    answers, prompts = schema.answers, schema.prompts
    texts = {a.answer_id: a.text for a in connection.execute(sa.select(answers).where(answers.c.answer_id.in_(shown)))}
    prompt = connection.scalar(sa.select(prompts.c.text).where(prompts.c.prompt_id == row.prompt_id))
    return Shown(item, text_from_json(prompt), tuple(plain_text(text_from_json(texts[answer])) for answer in shown), shown)
