"""Finding captures and sessions by a text in their names, messages, points, commands and names of changed files."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.branch.graph import walk_all
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.facts import FoundFacts, MatchFacts, SearchFacts
from waypoint.model.records import Capture, Point, Setting
from waypoint.model.requests import SearchRequest
from waypoint.model.times import iso_time
from waypoint.processes.respawn import redact
from waypoint.service.home import Home
from waypoint.session.birth import rights
from waypoint.session.differences import as_utf8
from waypoint.session.live.session import LiveSession
from waypoint.session.views import scope_of
from waypoint.upper.changes import changed_targets
from waypoint.upper.names import changed_names

_MOST_ENTRIES = 400_000
"""Files and folders that one search looks at: about two seconds."""
_MOST_MATCHES = 20  # listed of one capture
_LENGTH = 200  # of a match


async def search(home: Home, request: SearchRequest) -> SearchFacts:
    """The captures and live sessions that the caller may see and that match, the newest first, sessions before
    captures. The changed files of sessions, tips of branches and checkpoints are searched.
    """
    resources = home.sessions.resources
    sees = rights.may_see(resources)
    running = [one for name in home.sessions.running if (one := home.sessions.find(name)) is not None]
    lives = [_Live.of(one) for one in running if sees(one.record.row.setting.user)]
    lives.sort(key=lambda one: one.started, reverse=True)
    return await asyncio.to_thread(_Search(home, request.text, sees).run, lives, request.limit)


class _Live(NamedTuple):
    """`commands`: those since the last point."""

    branch: str
    started: float
    tree: str
    setting: Setting
    commands: tuple[str, ...]

    @classmethod
    def of(cls, live: LiveSession) -> "_Live":
        row = live.record.row
        return cls(live.branch, row.started, row.tree, row.setting, tuple(live.commands))


class _Search:
    """One search. `sees`: as in rights.may_see."""

    def __init__(self, home: Home, text: str, sees: rights.MaySee) -> None:
        self._home = home
        self._names = home.names
        self._resources = home.sessions.resources
        self._text = text.casefold()
        self._sees = sees
        self._left = _MOST_ENTRIES
        self._unsearched: list[str] = []

    def run(self, lives: list[_Live], limit: int) -> SearchFacts:
        found: list[FoundFacts] = []
        is_limited = False
        for one in self._all(lives):
            is_limited = len(found) == limit
            if is_limited:
                break
            found.append(one)
        return SearchFacts(found=found, is_limited=is_limited, unsearched=self._unsearched)

    def _all(self, lives: list[_Live]) -> Iterator[FoundFacts]:
        for live in lives:
            ref = self._names.ref(live.branch)
            own = [("name", live.branch)] if ref is None or ref.capture is None else []
            matches = self._in_texts([*own, *(("command", line) for line in live.commands)])
            files = self._in_files(live.branch, self._resources.pool.path(live.tree), live.setting)
            if facts := _facts([*matches, *files], iso_time(live.started), live.branch, [live.branch]):
                yield facts
        points = self._points()
        for ids in walk_all(self._names):
            captures, names = self._names.captures_of(ids, may_lack=True), self._names.names_of_all(ids)
            for capture in (captures[ident] for ident in ids if ident in captures):
                if self._sees(capture.setting.user):
                    matches = self._in_capture(capture, names[capture.id], points.get(capture.id, []))
                    at = iso_time(capture.created)
                    if facts := _facts(matches, at, capture.branch, names[capture.id], capture.id):
                        yield facts

    def _in_capture(self, capture: Capture, names: list[str], points: list[Point]) -> list[MatchFacts]:
        labels = [one.label for one in points]
        texts = [*(("name", one) for one in names), *(("label", one) for one in labels)]
        texts += [("message", capture.message)] if capture.message not in labels else []
        texts += [("command", line) for one in points for line in one.commands]
        matches = self._in_texts(texts)
        if names:
            matches += self._in_files(names[0], self._home.captures.tree_on_disk(capture), capture.setting)
        return matches

    def _points(self) -> dict[str, list[Point]]:
        """The points whose label or commands match, by capture, the oldest first."""
        found: dict[str, list[Point]] = {}
        for operations in self._names.iter_operations():
            for one in operations:
                if one.point is not None and any(map(self._matches, (one.point.label, *one.point.commands))):
                    found.setdefault(one.point.capture, []).insert(0, one.point)
        return found

    def _matches(self, text: str) -> bool:
        return self._text in text.casefold()

    def _in_texts(self, texts: Iterable[tuple[str, str]]) -> list[MatchFacts]:
        return [
            MatchFacts(where=where, text=self._shown(text))  # type: ignore[typeddict-item]
            for where, text in texts
            if self._matches(text)
        ]

    def _shown(self, text: str) -> str:
        """The line of the text that matches, without secrets."""
        line = next(filter(self._matches, text.splitlines()), text)
        return redact.script(line)[:_LENGTH]

    def _in_files(self, name: str, tree: str | None, setting: Setting) -> list[MatchFacts]:
        """The changed files that match. `tree`: None: it is not on disk. `name`: for the list of those not searched."""
        found: list[MatchFacts] = []
        if tree is None or self._left <= 0:
            self._unsearched.append(name)
            return found
        try:
            scopes = {target: scope_of(self._resources.places, setting, target, ()) for target in changed_targets(tree)}
            wanted = {target: scope.concerns for target, scope in sorted(scopes.items()) if scope is not None}
            with open_folder(tree) as opened, rights.as_caller(self._resources):
                for path in changed_names(opened, wanted):
                    self._left -= 1
                    if path and self._matches(path):
                        found.append(MatchFacts(where="file", text=as_utf8(path)))
                    if self._left <= 0:
                        self._unsearched.append(name)
                        break
        except FileNotFoundError:  # it was removed meanwhile
            self._unsearched.append(name)
        return found


def _facts(
    matches: list[MatchFacts], at: str, branch: str, names: list[str], capture: str | None = None
) -> FoundFacts | None:
    if not matches:
        return None
    shown = matches[:_MOST_MATCHES]
    more = len(matches) - len(shown)
    return FoundFacts(capture=capture, at=at, branch=branch, names=names, matches=shown, more=more)
