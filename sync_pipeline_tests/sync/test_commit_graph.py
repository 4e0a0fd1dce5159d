"""Which rows of the list of all refs are facts: those that wanted commits lead to, in any order."""

from __future__ import annotations

import random

import pytest

from sync_pipeline.core.gitlab_rows import CommitRow
from sync_pipeline.sync.commit_graph import Candidates
from sync_pipeline_tests.facts.gitlab_facts import commit, sha


def names(rows: list[CommitRow]) -> set[str]:
    return {str(row.title).removeprefix("Commit ") for row in rows}


def some_graph(chance: random.Random, count: int) -> dict[str, list[str]]:
    """Parents by name: lines, forks, merges and several roots."""
    return {
        str(n): [str(p) for p in chance.sample(range(n), min(n, chance.choice([0, 1, 1, 1, 1, 2])))]
        for n in range(count)
    }


def reached(graph: dict[str, list[str]], tips: list[str], seen: set[str]) -> set[str]:
    found: set[str] = set()
    todo = [tip for tip in tips if tip not in seen]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += [parent for parent in graph[one] if parent not in seen]
    return found


@pytest.mark.parametrize("seed", range(25))
def test_each_commit_that_a_tip_reaches_is_a_fact_and_no_other(seed: int) -> None:
    chance = random.Random(seed)
    graph = some_graph(chance, 200)
    tips = chance.sample(sorted(graph), 6)
    # Whatever was stored before is whole, and is neither wanted nor followed.
    seen = reached(graph, chance.sample(sorted(graph), 2), set()) if seed % 2 else set()
    candidates = Candidates(sha(tip) for tip in tips)
    order = sorted(graph, key=int, reverse=True)
    if seed % 3:
        chance.shuffle(order)
    found: set[str] = set()
    for first in range(0, len(order), 20):
        page = [commit(name, *graph[name]) for name in order[first : first + 20]]
        rows = candidates.take(page, {sha(name) for name in seen})
        assert found.isdisjoint(names(rows))
        found |= names(rows)
    assert found == reached(graph, tips, seen)


def test_the_list_ends_once_nothing_is_wanted_or_a_walk_is_cheaper() -> None:
    def hidden(count: int) -> list[CommitRow]:
        return [commit(f"hidden {count} {n}", "x") for n in range(count)]

    one = Candidates([sha("b")])
    one.take([commit("b", "a"), *hidden(50)], {sha("a")})
    assert not one.is_worth_more
    # A walk of the one wanted commit costs as much as the next page.
    one = Candidates([sha("b")])
    one.take([commit("b", "a"), *hidden(50)])
    assert not one.is_worth_more
    many = Candidates(sha(str(n)) for n in range(30))
    for number in range(10):
        assert many.is_worth_more
        many.take([commit(str(number)), *hidden(10)])
    assert not many.is_worth_more
    # Half of ten pages is enough.
    many.take([commit(str(n)) for n in range(10, 25)] + hidden(5))
    many.take([commit(str(n), f"{n}p") for n in range(25, 30)])
    assert len(many.wanted) == 5
    assert not many.is_worth_more
    many.take([commit(f"{n}p", f"{n}q") for n in range(25, 30)])
    assert many.is_worth_more


def test_rows_without_a_child_wait_in_bounded_memory() -> None:
    candidates = Candidates([sha("tip")])
    for first in range(0, 5000, 100):
        assert candidates.take([commit(f"hidden {n}") for n in range(first, first + 100)]) == []
    # Git lists a parent before its child if clocks were wrong.
    assert candidates.take([commit("parent")]) == []
    assert names(candidates.take([commit("tip", "parent")])) == {"tip", "parent"}
    candidates = Candidates([sha("tip")])
    candidates.take([commit("parent"), *(commit(f"hidden {n}") for n in range(5000))])
    assert names(candidates.take([commit("tip", "parent")])) == {"tip"}
    assert candidates.wanted == {sha("parent")}
