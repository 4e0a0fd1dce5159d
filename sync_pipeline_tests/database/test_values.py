"""Values that PostgreSQL refuses are stored visibly and can be had back; secrets are not stored."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sync_pipeline.database import values
from sync_pipeline.database.pool import Connection, Database

_NASTY = st.text(
    st.sampled_from(["\0", "\ud800", "\udfff", "\\", "u", "0", "N", "x", "é", "\U0001f600"]), max_size=6
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _NASTY
_JSON = st.recursive(
    _SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(_NASTY, part, max_size=3)
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_NASTY, _JSON, max_size=4))
def test_what_was_escaped_comes_back_as_it_was(source: dict[str, Any]) -> None:
    stored, escaped = values.payload(source)
    text = json.dumps(stored.obj, ensure_ascii=False)
    text.encode()  # no half of a surrogate pair is left
    assert "\\u0000" not in text.replace("\\\\", "")
    assert values.restored(json.loads(text), escaped) == source
    if not escaped:
        assert stored.obj == source


def _stored(conn: Connection, source: dict[str, Any]) -> tuple[Any, bool]:
    value, escaped = values.payload(source)
    query = "SELECT one AS direct, s.two AS of_rows FROM (SELECT %(one)s::jsonb AS one) AS o, "
    query += "json_to_recordset(%(rows)s) AS s (two jsonb)"
    row = conn.execute(query, {"one": value, "rows": values.recordset([{"two": value}])}).fetchone()
    assert row is not None
    assert row["direct"] == row["of_rows"]
    return row["direct"], escaped


def test_nasty_objects_are_taken_by_postgresql(database: Database) -> None:
    deep: Any = "bottom"
    for _ in range(900):
        deep = [deep]
    source = {
        "a\0": {"b\ud83d": ["c\0d", "back\\slash", "pair \U0001f600"]},
        "nan": math.nan,
        "less": -math.inf,
        "digits": 10**4000,
        "more digits": -(16**5000),
        "tiny": 5e-324,
    }
    with database.connection() as conn:
        stored, escaped = _stored(conn, source)
        assert escaped
        assert stored["a\\u0000"] == {"b\\ud83d": ["c\\u0000d", "back\\\\slash", "pair \U0001f600"]}
        assert (stored["nan"], stored["less"]) == ("\\NaN", "\\-Infinity")
        back = values.restored(stored, escaped)
        assert math.isnan(back.pop("nan"))
        assert back == {name: value for name, value in source.items() if name != "nan"}
        assert "[nested too deep]" in json.dumps(_stored(conn, {"deep": deep})[0])
        plain = {"path": "C:\\u0000 is only text", "n": 2**63, "x": None}
        assert _stored(conn, plain) == (plain, False)


@pytest.mark.parametrize(
    ("source", "stored"),
    [
        ({"runners_token": "GR13", "ci": [{"jobToken": "x", "CI-Job-Token": 5}]},
         {"runners_token": "[redacted]", "ci": [{"jobToken": "[redacted]", "CI-Job-Token": "[redacted]"}]}),
        ({"import_url": "https://u:p@host/a.git", "web_url": "https://host/@types/x"},
         {"import_url": "https://[redacted]@host/a.git", "web_url": "https://host/@types/x"}),
        ({"password": None, "token": "", "has_token": True},
         {"password": None, "token": "", "has_token": True}),
        ({"access_token": {"a": 1}, "title": "token"}, {"access_token": "[redacted]", "title": "token"}),
    ],
)  # fmt: skip
def test_secrets_are_not_stored_at_any_depth(source: dict[str, Any], stored: dict[str, Any]) -> None:
    assert values.payload(source)[0].obj == stored
