"""A connection URL is either understood or not shown: a password must never be taken for a host or a name."""

from __future__ import annotations

import pytest

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.operations import environment
from sync_pipeline.store import diagnosis, migrations
from sync_pipeline.store.connecting import describe, parse
from sync_pipeline.store.database import Database

# Characters that end a part of a URL, in a password that nobody escaped.
PASSWORDS = (
    "MARKa/MARKb",
    "MARKa@MARKb",
    "MARKa@MARKb/MARKc",
    "MARKa/MARKb@MARKc",
    "12/MARKb",
    "12/MARKb@MARKc",
    "12/MARKb?MARKc",
    "12@MARKb/MARKc@MARKd",
    "MARKa:12/MARKb",
    "MARKa%MARKb",
    "MARKa MARKb/x",
    "[MARKa/MARKb]",
)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    "form", ["postgresql://u:{}@127.0.0.1:1/x", "postgres://{}@127.0.0.1/x?sslmode=disable"]
)
def test_a_url_whose_password_is_not_escaped_is_refused_and_not_shown(password: str, form: str) -> None:
    url = form.format(password)
    assert "MARK" not in describe(url)
    for action in (
        lambda: parse(url),
        lambda: Database(url),
        lambda: migrations.check(url, "test"),
        lambda: diagnosis.look(url, 2),
        lambda: environment.dagster_url(url, "dagster"),
    ):
        with pytest.raises(ConfigurationError, match=r"SCM_DATABASE_URL .*/ as %2F, @ as %40") as caught:
            action()
        assert "MARK" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "text",
    [
        "host=127.0.0.1 password=a MARKb port=1",
        "host=127.0.0.1 password='a'MARKb' port=1",
        "host=127.0.0.1 port=MARK",
        "host=u:MARK@127.0.0.1 port=1",
        "u:MARK@127.0.0.1",
        "mysql://u:MARK@127.0.0.1/x",
    ],
)
def test_pairs_that_cannot_be_read_are_not_shown(text: str) -> None:
    assert describe(text) == "(not a PostgreSQL URL)"
    with pytest.raises(ConfigurationError, match=r"^SCM_DAGSTER_DATABASE_URL is not") as caught:
        environment.dagster_url(text)
    assert "MARK" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:a%2Fb%40c@db.example.com:6000/scm", "db.example.com:6000/scm"),
        ("postgresql://u:a:b?c#d@db/scm", "db:5432/scm"),
        ("postgresql://u@[2001:db8::1]:5433/scm", "2001:db8::1:5433/scm"),
        ("postgresql://a:1,b:2/scm?target_session_attrs=any", "a,b:1,2/scm"),
        ("postgresql://postgres@/scm?host=/run/my%20sockets&port=5432", "/run/my sockets:5432/scm"),
        ("host=/tmp dbname=scm password='it\\'s /@:'", "/tmp:5432/scm"),
        ("host=h dbname=postgresql://u:MARK@h/x", "h:5432/..."),
        ("dbname=scm hostaddr=10.0.0.1", "10.0.0.1:5432/scm"),
        ("", "local socket:5432/"),
    ],
)
def test_what_can_be_read_is_shown_without_user_and_password(url: str, shown: str) -> None:
    assert describe(url) == shown
