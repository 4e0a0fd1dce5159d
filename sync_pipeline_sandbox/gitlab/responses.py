"""Responses other than data: the error bodies of the API, letter by letter, and the redirect of moved
projects.

Belongs here: one exception per kind of refusal. Other modules decide when to refuse.
"""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """An answer that ends a request: a status with a JSON body, or with plain text."""

    def __init__(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """``body`` is a JSON value, or bytes for plain text."""
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers or {}


def message(status: int, text: str) -> Refusal:
    """``{"message": ...}``, the form of the API helpers."""
    return Refusal(status, {"message": text})


def not_found(what: str | None = None) -> Refusal:
    """``404 Project Not Found`` and the like; without a word the form of a row that is not there, with a
    small f."""
    return message(404, f"404 {what} Not Found" if what else "404 Not found")


def forbidden(reason: str | None = None) -> Refusal:
    """The user may not."""
    return message(403, f"403 Forbidden - {reason}" if reason else "403 Forbidden")


def unauthorized() -> Refusal:
    """No token, or a wrong one."""
    return message(401, "401 Unauthorized")


def no_route() -> Refusal:
    """No such route, or one of a paid edition."""
    return Refusal(404, {"error": "404 Not Found"})


def invalid(*texts: str) -> Refusal:
    """Parameters that are wrong."""
    return Refusal(400, {"error": ", ".join(texts)})


def token_expired() -> Refusal:
    """The token is past its day."""
    text = "Token is expired. You can either do re-authorization or token refresh."
    return Refusal(401, {"error": "invalid_token", "error_description": text})


def token_revoked() -> Refusal:
    """The token was revoked."""
    text = "Token was revoked. You have to re-authorize from the user."
    return Refusal(401, {"error": "invalid_token", "error_description": text})


def insufficient_scope(scopes: str) -> Refusal:
    """The token's scopes are too few."""
    text = "The request requires higher privileges than provided by the access token."
    return Refusal(403, {"error": "insufficient_scope", "error_description": text, "scope": scopes})


def offset_too_large(limit: int, kind: str) -> Refusal:
    """Offset paging past the ceiling."""
    text = (
        f"Offset pagination has a maximum allowed offset of {limit} for requests that return objects of type "
        f"{kind}. Remaining records can be retrieved using keyset pagination."
    )
    return Refusal(405, {"error": text})


def keyset_unavailable() -> Refusal:
    """Keyset paging in an order that has none."""
    return Refusal(405, {"error": "Keyset pagination is not yet available for this type of request"})


def moved(location: str) -> Refusal:
    """A project asked for by an old path."""
    return Refusal(
        301, f"This resource has been moved permanently to {location}".encode(), {"Location": location}
    )


def moved_for_writes() -> Refusal:
    """Anything but a read of a project by an old path."""
    return message(405, "Non GET methods are not allowed for moved projects")
