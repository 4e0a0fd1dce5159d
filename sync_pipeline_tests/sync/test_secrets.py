"""The token of a server stays out of rows, logs and errors, however the server repeats it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import SecretStr

from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.test_upgrade import contents


@pytest.mark.parametrize("where", ["message", "fieldName", "status 400", "status 500", "an id"])
def test_a_token_without_a_prefix_that_a_query_error_repeats_is_shown_nowhere(
    forge: Forge, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "Zq8vXw3LkTn5RbYd7McF"
    token = forge.gitlab.token(forge.user)
    forge.gitlab.tokens[secret] = token
    forge.other_settings(gitlab_token=SecretStr(secret))
    odd = f"{secret} \0 \ud800 " + secret * 200
    errors: dict[str, Any] = {
        "message": {"errors": [{"message": f"bad token {odd}"}]},
        "fieldName": {
            "errors": [{"message": "x", "extensions": {"code": "undefinedField", "fieldName": odd}}]
        },
        "an id": {"data": {"currentUser": {"id": 1}, "project": {"id": f"gid://gitlab/Project/{odd}"}}},
    }
    forge.gitlab.faults.add(
        "/api/graphql",
        faults.json_answer(
            int(where[-3:]) if "status" in where else 200, errors.get(where, {"message": odd})
        ),
        times=None,
    )
    base = forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.commit("topic", "Topic\n", files={"b": "1\n"}, parents=[base])
    forge.gitlab.open_merge_request(forge.project, title="Topic", source="topic", author=forge.user)
    forge.tick()
    reports = forge.both()
    assert [report.error for report in reports] == [None, None]
    notices = [row["notice"] for row in forge.rows("SELECT notice FROM scm.sync_runs")]
    assert all(notices) or where == "status 500"
    # No part of it either, where a long message was cut.
    assert secret[:8] not in str(contents(forge.database.url))
    assert secret[:8] not in caplog.text
