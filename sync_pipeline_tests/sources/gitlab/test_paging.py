"""Paging: every row of a list is read, also of one that moves while it is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sync_pipeline.core.errors import Transient
from sync_pipeline.core.model import TimeWindow
from sync_pipeline.sources.gitlab import paging
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.paging import Key, Position, step
from sync_pipeline.sources.gitlab.transport import Client, Instance
from sync_pipeline_tests.sources.gitlab.servers import answer, scripted

T0 = datetime(2024, 5, 6, tzinfo=UTC)


def client(url: str) -> Client:
    return Instance(url, "token", sleep=lambda _: None).client()


# --- By links ---------------------------------------------------------------------------------------------


def _page(rows: list[Any], following: str | None, **headers: str) -> bytes:
    link = {"Link": f'<https://other.test/api/v4/x?{following}>; rel="next"'} if following else {}
    return answer(rows, headers={**link, **headers})


def test_pages_end_with_the_links_not_with_totals_short_or_empty_pages() -> None:
    responses = [
        _page([1, 2], "page=2", **{"X-Total": "2", "X-Total-Pages": "1"}),
        _page([], "page=3"),
        _page([3], "page=4"),
        _page([4], None),
    ]
    with scripted(*responses) as server:
        found = [
            row
            for page in paging.pages(client(server.url), "/projects/1/x", {"sort": "asc"})
            for row in page.data
        ]
        assert found == [1, 2, 3, 4]
        assert server.asked[1].target == "/api/v4/projects/1/x?per_page=100&sort=asc&page=2"


@pytest.mark.parametrize("link", ["cursor={}", "page={}"])
def test_a_list_with_ever_new_rows_and_links_ends(link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a row nor a link comes twice, so only the number of pages tells."""
    monkeypatch.setattr(paging, "_MAX_PAGES_BY_CURSOR", 20)
    monkeypatch.setattr(paging, "_MAX_PAGES_BY_NUMBER", 30)
    query: dict[str, str | int] = {"pagination": "keyset"} if link.startswith("cursor") else {}
    with scripted(*(_page([number], link.format(number + 2)) for number in range(60))) as server:
        with pytest.raises(Transient) as caught:
            list(paging.pages(client(server.url), "/projects/1/x", query))
        assert caught.value.code == "paging_loop"
        assert len(server.asked) == (21 if query else 31)


def test_a_full_page_without_any_paging_header_is_not_the_last() -> None:
    full = [answer(list(range(first, first + 100))) for first in (0, 100)]
    with scripted(*full, answer([200])) as server:
        found = [row for page in paging.pages(client(server.url), "/x") for row in page.data]
        assert len(found) == 201
        assert [asked.target for asked in server.asked[1:]] == [
            "/api/v4/x?per_page=100&page=2",
            "/api/v4/x?per_page=100&page=3",
        ]


def test_an_empty_page_ends_lists_that_announce_one_too_many() -> None:
    with scripted(_page([1], "page=2"), _page([], "page=3")) as server:
        assert [page.data for page in paging.pages(client(server.url), "/x", empty_ends=True)] == [[1], []]


def test_a_circle_of_links_ends() -> None:
    with scripted(_page([1], "page=2")) as server, pytest.raises(Transient) as caught:
        list(paging.pages(client(server.url), "/x"))
    assert caught.value.code == "paging_loop"


def test_the_same_page_under_every_number_ends() -> None:
    with scripted(*(_page([1, 2], f"page={n}") for n in range(2, 9))) as server:
        with pytest.raises(Transient) as caught:
            list(paging.pages(client(server.url), "/x"))
        assert caught.value.code == "paging_loop"
        assert len(server.asked) == 2


def test_pages_that_come_again_in_turn_end() -> None:
    turns = [_page([n % 3, n % 3 + 10], f"page={n + 2}") for n in range(9)]
    with scripted(*turns) as server:
        with pytest.raises(Transient) as caught:
            list(paging.pages(client(server.url), "/x"))
        assert caught.value.code == "paging_loop"
        assert len(server.asked) == 4


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_link_back_ends_a_list_that_brings_new_rows_for_ever(number: int) -> None:
    first = [_page([n], f"page={n + 2}") for n in range(2)]
    with scripted(*first, *(_page([n], f"page={number}") for n in range(2, 30))) as server:
        with pytest.raises(Transient) as caught:
            list(paging.pages(client(server.url), "/x"))
        assert caught.value.code == "paging_loop"
        assert len(server.asked) == 3


def _commits(page: int) -> list[dict[str, Any]]:
    return [
        {"id": f"{page * 100 + n:040x}", "parent_ids": [f"{page * 100 + n + 1:040x}"]} for n in range(100)
    ]


def test_a_history_without_an_end_is_an_error() -> None:
    # A hundred new commits with each answer, which links to the page that was asked for.
    responses = [_page(_commits(0), "page=2"), *(_page(_commits(n), "page=2") for n in range(1, 30))]
    days = TimeWindow(T0, T0 + timedelta(days=1))
    for of_days in (False, True):
        with scripted(*responses) as server:
            reader = CommitReader(client(server.url), 1)
            with pytest.raises(Transient) as caught:
                list(reader.read_days(days) if of_days else reader.read_tip(f"{0:040x}"))
            assert caught.value.code == "paging_loop"
            assert len(server.asked) == 2


@pytest.mark.parametrize("link", ["cursor=abc", "page=1000"])
def test_a_link_that_does_not_count_ends_a_history_that_brings_new_commits_for_ever(link: str) -> None:
    days = TimeWindow(T0, T0 + timedelta(days=1))
    for of_days in (False, True):
        with scripted(*(_page(_commits(n), link) for n in range(30))) as server:
            reader = CommitReader(client(server.url), 1)
            with pytest.raises(Transient) as caught:
                list(reader.read_days(days) if of_days else reader.read_tip(f"{0:040x}"))
            assert caught.value.code == "paging_loop"
            assert len(server.asked) == 2


@pytest.mark.parametrize("link", ["page=2", "cursor=abc"])
def test_a_time_whose_pages_never_end_is_an_error(link: str) -> None:
    rows = [
        [{"id": page * 100 + n, "updated_at": "2024-05-06T00:00:01.000Z"} for n in range(100)]
        for page in range(9)
    ]
    with scripted(*(_page(one, link) for one in rows)) as server:
        window = TimeWindow(T0, T0 + timedelta(days=1))
        with pytest.raises(Transient) as caught:
            list(paging.by_time(client(server.url), "/x", {}, window, _version))
        assert caught.value.code == "paging_loop"
        # The window, then what is left of it from that time on, then two pages of that time.
        assert len(server.asked) == 4


def _version(row: Any) -> Key:
    return row["id"], datetime.fromisoformat(row["updated_at"])


def test_something_else_than_a_list_is_refused() -> None:
    with scripted(answer({"message": "hello"})) as server, pytest.raises(Transient):
        list(paging.pages(client(server.url), "/x"))


# --- By time ----------------------------------------------------------------------------------------------


class MovingList:
    """A list as GitLab keeps it: microseconds inside, milliseconds shown, inclusive bounds, pages of four."""

    per_page = 4

    def __init__(
        self,
        offsets: list[int],
        *,
        seconds: bool = False,
        counts: bool = False,
        shuffle: random.Random | None = None,
    ) -> None:
        """Rows of one time are in another order with each answer where there is a ``shuffle``."""
        self.counts, self.shuffle = counts, shuffle
        self.shown = (lambda time: time.replace(microsecond=0)) if seconds else shown
        self.rows = {number: T0 + timedelta(microseconds=offset) for number, offset in enumerate(offsets)}
        self.clock = T0 + timedelta(seconds=2)

    def edit(self, number: int) -> None:
        """The row moves to the end."""
        self.clock += timedelta(microseconds=400)
        self.rows[number] = self.clock

    def delete(self, number: int) -> None:
        self.rows.pop(number, None)

    def ask(self, position: Position) -> tuple[list[Key], bool, int | None]:
        matching = sorted(
            (time, self.shuffle.random() if self.shuffle else 0.0, number)
            for number, time in self.rows.items()
            if position.after <= time <= position.before
        )
        first = (position.page - 1) * self.per_page
        page = matching[first : first + self.per_page]
        keys = [(number, self.shown(time)) for time, _, number in page]
        return keys, len(matching) > first + self.per_page, len(matching) if self.counts else None


def shown(time: datetime) -> datetime:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def read(
    moving: MovingList, window: TimeWindow, between: Callable[[], None] = lambda: None
) -> tuple[set[Key], int]:
    position: Position | None = paging.start(window)
    found: set[Key] = set()
    asked = 0
    while position is not None:
        keys, more, total = moving.ask(position)
        found.update(key for key in keys if key not in position.seen)
        position = step(position, keys, more, total)
        asked += 1
        if position is not None:
            between()
    return found, asked


_OFFSETS = st.lists(st.integers(0, 12).map(lambda number: number * 700), max_size=40)
_CHANGES = st.lists(
    st.tuples(st.sampled_from(["edit", "delete", "new", "none"]), st.integers(0, 45)), max_size=25
)


@settings(max_examples=400, deadline=None)
@given(
    offsets=_OFFSETS,
    changes=_CHANGES,
    short=st.booleans(),
    seconds=st.booleans(),
    stretch=st.booleans(),
    shuffle=st.none() | st.randoms(use_true_random=False),
)
def test_no_row_is_lost_while_the_list_moves(
    offsets: list[int],
    changes: list[tuple[str, int]],
    short: bool,
    seconds: bool,
    stretch: bool,
    shuffle: random.Random | None,
) -> None:
    # Some servers show whole seconds of what they sort by microseconds; some do not count.
    spread = [n * 200 if stretch else n for n in offsets]
    moving = MovingList(spread, seconds=seconds, counts=shuffle is not None, shuffle=shuffle)
    todo = iter(changes)
    # A window that ends before the edits, as an incremental one does, or after them.
    window = TimeWindow(T0, T0 + timedelta(milliseconds=500 if short else 60_000))

    def change() -> None:
        what, number = next(todo, ("none", 0))
        if what == "edit" and number in moving.rows:
            moving.edit(number)
        elif what == "delete":
            moving.delete(number)
        elif what == "new":
            moving.edit(100 + number)

    found, _ = read(moving, window, change)
    expected = {(number, moving.shown(time)) for number, time in moving.rows.items() if time < window.until}
    assert expected <= found


@settings(max_examples=100, deadline=None)
@given(offsets=_OFFSETS)
def test_a_still_list_is_read_whole_and_nothing_outside_it(offsets: list[int]) -> None:
    moving = MovingList(offsets)
    window = TimeWindow(T0, T0 + timedelta(milliseconds=20))
    found, _ = read(moving, window)
    assert found == {(number, shown(time)) for number, time in moving.rows.items()}


def test_two_passes_that_lack_the_same_row_are_not_believed() -> None:
    """Rows of one time in another order with each answer: row 5 is missing twice, in the place of row 0."""
    first, second, third = [0, 1, 2, 3], [0, 4], [4, 5]
    keys = {number: (number, T0) for number in range(6)}
    position = replace(paging.start(TimeWindow(T0, T0 + timedelta(days=1))), tie=True, until=T0)
    for pages in ((first, second), (first, second)):
        for more, page in zip((True, False), pages, strict=True):
            moved = step(position, [keys[number] for number in page], more, 6)
            assert moved is not None
            position = moved
        assert position.tie
    moved = step(position, [keys[number] for number in first], True, 6)
    assert moved is not None
    assert step(moved, [keys[number] for number in third], False, 6) is None


def test_a_page_more_costs_a_request_more() -> None:
    moving = MovingList([number * 5000 for number in range(300)])
    _, asked = read(moving, TimeWindow(T0, T0 + timedelta(seconds=60)))
    assert asked == 100  # pages of four, of which one row repeats the one before


def test_more_rows_of_one_time_than_a_page_are_read_by_number() -> None:
    moving = MovingList([5000] * 250 + [9000] * 3)
    found, _ = read(moving, TimeWindow(T0, T0 + timedelta(seconds=60)))
    assert len(found) == 253


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_one_time_in_an_order_that_changes_with_each_answer_are_all_read(seed: int) -> None:
    moving = MovingList([5000] * 105 + [9000] * 3, counts=True, shuffle=random.Random(seed))
    found, _ = read(moving, TimeWindow(T0, T0 + timedelta(seconds=60)))
    assert len(found) == 108


@pytest.mark.parametrize("seed", range(20))
def test_a_row_that_leaves_such_a_time_hides_no_other(seed: int) -> None:
    moving = MovingList([5000] * 40, counts=True, shuffle=random.Random(seed))
    victims = iter(range(6))
    found, _ = read(moving, TimeWindow(T0, T0 + timedelta(seconds=60)), lambda: moving.edit(next(victims, 0)))
    assert {number for number, _ in found} == set(range(40))


def test_without_a_count_rows_of_one_time_are_asked_for_in_another_order() -> None:
    class Unsettled(MovingList):
        """Rows that were made one after the other have an order of their own."""

        def ask(self, position: Position) -> tuple[list[Key], bool, int | None]:
            self.shuffle = random.Random(0) if position.passes >= 3 else shuffle
            return super().ask(position)

    shuffle = random.Random(1)
    found, _ = read(Unsettled([5000] * 105, shuffle=shuffle), TimeWindow(T0, T0 + timedelta(seconds=60)))
    assert len(found) == 105


@pytest.mark.parametrize("counts", [False, True])
def test_a_time_that_never_rests_is_an_error_not_a_loss(counts: bool) -> None:
    moving = MovingList([5000] * 250, counts=counts)
    victims = iter(range(250))
    with pytest.raises(Transient) as caught:
        read(moving, TimeWindow(T0, T0 + timedelta(seconds=60)), lambda: moving.delete(next(victims)))
    assert caught.value.code == "unstable"


def test_a_list_in_another_order_is_refused() -> None:
    position = paging.start(TimeWindow(T0, T0 + timedelta(days=1)))
    with pytest.raises(Transient) as caught:
        step(position, [(1, T0 + timedelta(seconds=2)), (2, T0)], True)
    assert caught.value.code == "unordered"


def test_an_empty_page_with_more_behind_it_is_passed() -> None:
    position = paging.start(TimeWindow(T0, T0 + timedelta(days=1)))
    following = step(position, [], True)
    assert following is not None
    assert following.page == 2


def test_the_edges_of_a_window_go_outward_to_milliseconds() -> None:
    window = TimeWindow(T0 + timedelta(microseconds=1500), T0 + timedelta(microseconds=2500))
    position = paging.start(window)
    assert paging.stamp(position.after) == "2024-05-06T00:00:00.001Z"
    assert paging.stamp(position.before) == "2024-05-06T00:00:00.003Z"
