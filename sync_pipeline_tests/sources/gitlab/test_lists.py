"""Flat lists: every row once, keys that no column can hold in quarantine, and rows that are gone."""

from __future__ import annotations

from typing import Any

from sync_pipeline.core.errors import RowUnreadable
from sync_pipeline.sources.gitlab.lists import ListReader, RowList
from sync_pipeline.sources.gitlab.transport import Client, Instance
from sync_pipeline_tests.sources.gitlab.servers import answer, scripted


def _parse(data: Any) -> str:
    if "tag" not in data:
        raise RowUnreadable("the row has no tag", payload=b"{}")
    return str(data["tag"])


_TAGS = RowList(("tags",), "tag", _parse)


def client(url: str) -> Client:
    return Instance(url, "token", sleep=lambda _: None).client()


def test_a_key_that_no_column_can_hold_goes_to_quarantine_and_the_other_rows_are_read() -> None:
    rows = [{"tag": "v1"}, {"tag": "nul\0x"}, {"tag": "x" * 7500}, {}, {"tag": "v2"}]
    with scripted(answer(rows)) as server:
        pages = list(ListReader(client(server.url), 7, _TAGS).read())
    assert [row for page in pages for row in page.rows] == ["v1", "v2"]
    keys = [row.natural_key for page in pages for row in page.quarantined]
    assert keys[0] == "nul\\0x"
    assert keys[1].startswith("xxx")
    assert len(keys) == 3
    assert [page.complete for page in pages] == [False, True]
