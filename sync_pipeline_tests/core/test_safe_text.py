"""The filters for texts of others: a terminal, JSON and Markdown show them and obey nothing in them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core.errors import ConfigurationError, SyncError
from sync_pipeline.core.safe_text import code, one_line, visible, visible_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ümlaut, 漢字", "plain, ümlaut, 漢字"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("one\ntwo\r\tthree", r"one\ntwo\r\tthree"),
        ("\u202etxt.exe", r"\u202etxt.exe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_one_line_is_one_line() -> None:
    assert one_line(" a\n\tb\x1b[2J\u2028c ") == r"a b\x1b[2J c"


@given(st.text())
def test_a_document_says_the_same_and_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    document = visible_json(json.dumps({"x": text}, ensure_ascii=False, indent=2))
    assert json.loads(document) == {"x": text}
    assert document.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[x](http://evil)", "`[x](http://evil)`"),
        ("a`![](http://evil/pixel.png)`b", "`a'![](http://evil/pixel.png)'b`"),
        ("a|b\\|c", "`a¦b\\¦c`"),
        ("one\n# two", "`one # two`"),
        ("", ""),
    ],
)
def test_markdown_shows_it_as_code(text: str, shown: str) -> None:
    assert code(text) == shown


def test_an_error_may_quote_a_source() -> None:
    assert str(SyncError("it says \x1b[2J")) == r"it says \x1b[2J"
    assert ConfigurationError("a\x07", "b\x9b").problems == (r"a\x07", r"b\x9b")
