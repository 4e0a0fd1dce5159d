"""Types that several groups of settings use.

Belongs here: the base of the groups, ranges with their unit, and lists. Does not belong here: any setting.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from sync_pipeline.core.job_types import optional_job_types
from sync_pipeline.core.model import JobType


class Group(BaseModel):
    """Settings of one subject. The alias of a field is its flat name, which people write."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, value: object, info: ValidationInfo) -> object:
        # pydantic would read true as 1
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("true and false are no values of it")
        return value


Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
SecondsOrZero = Annotated[float, Field(ge=0, le=31_536_000)]
DaysOrZero = Annotated[float, Field(ge=0, le=36_500)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]
SmallCount = Annotated[int, Field(ge=1, le=1000)]
Rows = Annotated[int, Field(ge=1, le=10_000)]


def _items(value: object) -> tuple[str, ...]:
    """The items of a list or of a comma-separated text, each once. Raises ValueError where it is neither."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError("write a list of texts, or one text with commas")
    stripped = dict.fromkeys(item.strip() for item in items)
    if "" in stripped and not isinstance(value, str):  # which may stand for nothing and for everything
        raise ValueError("an item of the list is empty; leave it out")
    return tuple(filter(None, stripped))


def _hosts(value: object) -> tuple[str, ...]:
    """Hosts as they are compared: lower case, without a default port."""
    items = _items(value)
    if any(re.search(r"[/@\s]", item) for item in items):
        raise ValueError("write hosts only, like gitlab.example.com or svn.example.com:8443")
    return tuple(dict.fromkeys(re.sub(r":(80|443)$", "", item.lower()) for item in items))


def _servers(value: object) -> tuple[str, ...]:
    """Servers as scheme, host and port."""
    items = _items(value)
    if not all(re.fullmatch(r"(https?|svn)://[^/@\s]+/?", item) for item in items):
        raise ValueError("write servers only, like https://svn.example.com or http://svn.example.com:8080")
    return tuple(item.rstrip("/") for item in items)


def _job_types(value: object) -> tuple[JobType, ...]:
    """Job types by any of their names; ``all`` is the empty list."""
    items = _items(value)
    if [item.lower() for item in items] == ["all"]:
        return ()
    return tuple(dict.fromkeys(map(JobType.parse, items)))


def _optional_job_types(value: object) -> tuple[JobType, ...]:
    """Job types that are not synced by default."""
    return optional_job_types(_items(value))


def _owners(value: object) -> tuple[str, ...]:
    """Owners by the rules of Dagster, which would refuse the whole code location."""
    items = _items(value)
    if not all(re.fullmatch(r"team:.+|[\w.%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", i, re.ASCII) for i in items):
        raise ValueError("write e-mail addresses or teams, like ann@example.com or team:platform")
    return items


Names = Annotated[tuple[str, ...], BeforeValidator(_items)]
Owners = Annotated[tuple[str, ...], BeforeValidator(_owners)]
Instances = Annotated[tuple[str, ...], BeforeValidator(_hosts)]
Servers = Annotated[tuple[str, ...], BeforeValidator(_servers)]
JobTypes = Annotated[tuple[JobType, ...], BeforeValidator(_job_types)]
OptionalJobTypes = Annotated[tuple[JobType, ...], BeforeValidator(_optional_job_types)]
