"""A store in memory that stops before each of its steps, and every order in which
the steps of several can go.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, final

from tokenlake.errors import (
    IntegrityError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.runtime.store import Leftover, Link, ObjectInfo, Store

Outcome = Literal["created", "equal", "replaced"]
Step = Callable[[str, str], None]
See = Callable[[Hashable], None]
#: Actions, or actions on files of a name, that are worth a stop; None: all.
Stops = frozenset[str | tuple[str, str]] | None


def go_on(*_: Hashable) -> None:
    """Stop nowhere, and note nothing."""


@final
class MemoryStore(Store):
    """Objects in a dictionary, as an object store keeps them: each call is one atomic
    step.

    Args:
        step: called before each with what it is and its key.
        see: called after it with what came of it.
    """

    def __init__(
        self, objects: dict[str, bytes], step: Step = go_on, see: See = go_on
    ) -> None:
        self.objects, self._step, self._see = objects, step, see

    def _do(self, action: str, key: str, act: Callable[[], Any]) -> Any:
        self._step(action, key)
        try:
            found = act()
        except StoreError as error:
            self._see((action, key, type(error)))
            raise
        self._see((action, key, found))
        return found

    @property
    def url(self) -> str:
        return "memory"

    def read(self, key: str) -> bytes:
        return self._do("read", key, lambda: self._there(key))

    def _there(self, key: str) -> bytes:
        if key not in self.objects:
            raise NotFoundError(f"there is no {key}", key=key)
        return self.objects[key]

    def open(
        self, key: str, *, size: int | None = None, sha256: str | None = None
    ) -> BinaryIO:
        return io.BytesIO(self.read(key))

    def size(self, key: str) -> int | None:
        return self._do(
            "size", key, lambda: len(self.objects[key]) if key in self.objects else None
        )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._do("list", prefix, lambda: self._listed(prefix)))

    def _listed(self, prefix: str) -> tuple[ObjectInfo, ...]:
        below = f"{prefix}/" if prefix else ""
        keys = sorted(key for key in self.objects if key.startswith(below))
        return tuple(ObjectInfo(key, len(self.objects[key]), 0.0) for key in keys)

    def list_dirs(self, prefix: str) -> builtins.list[str]:
        return [*self._do("list_dirs", prefix, lambda: self._folders(prefix))]

    def _folders(self, prefix: str) -> tuple[str, ...]:
        below = f"{prefix}/" if prefix else ""
        rests = [
            key.removeprefix(below) for key in self.objects if key.startswith(below)
        ]
        return tuple(sorted({rest.partition("/")[0] for rest in rests if "/" in rest}))

    def put_new(
        self,
        key: str,
        data: bytes,
        *,
        replace_orphan: bool | Callable[[], bool] = False,
    ) -> Outcome:
        found = self._do("put_new", key, lambda: self._created(key, data))
        if found is None:
            return "created"
        if found == data:
            return "equal"
        if not (replace_orphan() if callable(replace_orphan) else replace_orphan):
            raise VersionConflictError(f"{key} is there with other bytes", key=key)
        return self.swap(key, data, found)

    def _created(self, key: str, data: bytes) -> bytes | None:
        found = self.objects.get(key)
        self.objects.setdefault(key, data)
        return found

    def link_all(
        self, links: Sequence[Link]
    ) -> builtins.list[Outcome | NotFoundError | IntegrityError]:
        results: builtins.list[Outcome | NotFoundError | IntegrityError] = []
        for link in links:
            try:
                results.append(self._link(link))
            except (NotFoundError, IntegrityError) as error:
                results.append(error)
        return results

    def _link(self, link: Link) -> Outcome:
        data = self.read(link.source)
        if hashlib.sha256(data).hexdigest() != link.sha256:
            raise IntegrityError(f"{link.source} is damaged", file=link.source)
        return self.put_new(link.target, data, replace_orphan=link.orphan)

    def delete(self, key: str) -> None:
        self._do("delete", key, lambda: self._there(key) and self.objects.pop(key))

    def swap(self, key: str, data: bytes, expected: bytes | None) -> Outcome:
        return self._do("swap", key, lambda: self._swapped(key, data, expected))

    def _swapped(self, key: str, data: bytes, expected: bytes | None) -> Outcome:
        found = self.objects.get(key)
        if found == data:
            return "equal"
        if found != expected:
            raise VersionConflictError(f"{key} is another one", key=key)
        self.objects[key] = data
        return "created" if found is None else "replaced"

    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        return []

    def remove_leftover(self, leftover: Leftover) -> bool:
        return False

    def temp(self, prefix: str) -> Path:
        raise StoreError("the store in memory takes no files")

    def _put(self, puts: Sequence[Any]) -> builtins.list[Outcome]:
        raise StoreError("the store in memory takes no files")


@final
class _Actor:
    """One process: runs until its next step, and waits there for its turn."""

    def __init__(
        self, work: Callable[[Store], Any], objects: dict[str, bytes], stops: Stops
    ) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._work, self._stops = work, stops
        self._store = MemoryStore(objects, self._stop, self._note)
        self._turn, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.ended = False
        self.outcome: Any = None
        self.seen = 0  # a hash of all that its steps gave

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self.outcome = self._work(self._store)
        except Exception as error:
            self.outcome = error
        except SystemExit:
            pass
        self.ended = True
        self._stopped.release()

    def begin(self) -> None:
        """Go to the first step, and do not take it."""
        self._thread.start()
        self.advance()

    def advance(self) -> None:
        """Take one step, and go to the next."""
        self._turn.release()
        self._stopped.acquire()

    def kill(self) -> None:
        """End a process that waits for its turn."""
        if not self.ended:
            self._killed = True
            self.advance()
        self._thread.join()

    def _note(self, fact: Hashable) -> None:
        self.seen = hash((self.seen, fact))

    def _stop(self, action: str, key: str) -> None:
        if self._killed:
            raise SystemExit
        if (
            self._stops is not None
            and (action, key.rpartition("/")[2]) not in self._stops
            and action not in self._stops
        ):
            return
        self._stopped.release()
        self._turn.acquire()
        if self._killed:
            raise SystemExit


@dataclass
class Walk:
    """What an exploration saw: whole runs, and states that differ."""

    runs: int = 0
    states: set[Hashable] = field(default_factory=set)
    outcomes: set[tuple[str, ...]] = field(default_factory=set)


def explore(
    begin: dict[str, bytes],
    works: list[Callable[[Store], Any]],
    check: Callable[[dict[str, bytes]], None],
    end: Callable[[dict[str, bytes], list[Any]], Any],
    stops: Stops = None,
) -> Walk:
    """Run several processes on one store in every order of their steps.

    Two orders that lead to the same objects, with each process having seen the same, go
    on in the same ways: what comes after is looked at once. A process that is never
    given its turn again has died, and `check` sees that too.

    Args:
        begin: the objects there are.
        works: what each process does.
        check: looks at the objects after every step.
        end: looks at the objects and the outcomes when all have ended; its answer is
            counted.
        stops: the actions to stop at, besides those on JSON files; None: all.
    """
    walk = Walk()
    todo: list[tuple[int, ...]] = [()]
    while todo:
        _run(begin, works, todo.pop(), walk, todo, check, end, stops)
    return walk


def _run(
    begin: dict[str, bytes],
    works: list[Callable[[Store], Any]],
    schedule: tuple[int, ...],
    walk: Walk,
    todo: list[tuple[int, ...]],
    check: Callable[[dict[str, bytes]], None],
    end: Callable[[dict[str, bytes], list[Any]], Any],
    stops: Stops,
) -> None:
    objects = dict(begin)
    actors = [_Actor(work, objects, stops) for work in works]
    for actor in actors:
        actor.begin()
    taken = list(schedule)
    for index in schedule:
        actors[index].advance()
    try:
        while True:
            state = (
                hash(frozenset(objects.items())),
                tuple((actor.seen, actor.ended) for actor in actors),
            )
            if state in walk.states:
                return
            walk.states.add(state)
            check(objects)
            able = [index for index, actor in enumerate(actors) if not actor.ended]
            if not able:
                break
            todo.extend((*taken, other) for other in able[1:])
            actors[able[0]].advance()
            taken.append(able[0])
        walk.runs += 1
        walk.outcomes.add(end(objects, [actor.outcome for actor in actors]))
    except AssertionError as error:
        raise AssertionError(f"{error}; after the steps {taken}") from error
    finally:
        for actor in actors:
            actor.kill()
