"""Smaller requests for a source that fails with the usual ones.

Belongs here: how the suggested sizes follow from the last runs. They cost speed and nothing else: the rows
that are read in the end are the same. ``diff_mode`` is for diffs, which nothing reads yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sync_pipeline.policy.samples import RunOutcome, Sample


class DiffMode(StrEnum):
    """Whether diffs are fetched too."""

    BEST_EFFORT = "best_effort"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class DegradationLimits:
    """Sizes and counts (seed 000, section 1.13). Batches are rows of a page, windows are seconds; the counts
    are of runs in a row. Without ``enabled`` sizes are always the usual ones.
    """

    min_batch_size: int
    default_batch_size: int
    max_batch_size: int
    batch_shrink_factor: float
    batch_grow_factor: float
    min_forward_window_seconds: float
    default_forward_window_seconds: float
    max_forward_window_seconds: float
    rate_limit_threshold: int
    timeout_threshold: int
    content_too_large_threshold: int
    base_sleep_seconds: float
    max_sleep_seconds: float
    recovery_success_count: int
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes for the next run. ``share`` is the batch as a share of the usual one, at most 1. ``window`` is
    the length in seconds of the first step through a list by time, None without steps. ``wait`` is how many
    seconds the source rests first.
    """

    batch: int
    window: float | None
    share: float
    wait: float = 0.0
    diff_mode: DiffMode = DiffMode.BEST_EFFORT
    reasons: tuple[str, ...] = ()


def suggest(samples: Iterable[Sample], limits: DegradationLimits) -> Sizes:
    """Sizes after these runs of one asset, which are in any order."""
    batch, window = float(limits.default_batch_size), limits.default_forward_window_seconds
    limited = slow = large = good = 0
    diff_mode = DiffMode.BEST_EFFORT
    reasons: dict[str, None] = {}
    for sample in sorted(samples if limits.enabled else (), key=lambda s: s.finished_at):
        if sample.outcome is RunOutcome.NEUTRAL:
            continue
        limited = limited + 1 if sample.is_rate_limited else 0
        slow = slow + 1 if sample.is_slow else 0
        large = large + 1 if sample.is_too_large else 0
        if sample.is_slow or sample.is_too_large:
            good = 0
            batch = max(batch * limits.batch_shrink_factor, limits.min_batch_size)
            window = max(window * limits.batch_shrink_factor, limits.min_forward_window_seconds)
            reasons["slow answers" if sample.is_slow else "answers too large"] = None
        elif sample.outcome is RunOutcome.SUCCESS and not sample.is_rate_limited:
            good += 1
            batch = min(batch * limits.batch_grow_factor, limits.default_batch_size, limits.max_batch_size)
            window = min(
                window * limits.batch_grow_factor,
                limits.default_forward_window_seconds,
                limits.max_forward_window_seconds,
            )
        if limited >= limits.rate_limit_threshold or large >= limits.content_too_large_threshold:
            good = 0
            diff_mode = DiffMode.NONE
            reasons["rate limits" if limited else "answers too large"] = None
        if good >= limits.recovery_success_count:
            diff_mode = DiffMode.BEST_EFFORT
    share = min(1.0, batch / limits.default_batch_size)
    wait = 0.0
    if slow >= limits.timeout_threshold:
        wait = min(
            limits.base_sleep_seconds * 2.0 ** (slow - limits.timeout_threshold), limits.max_sleep_seconds
        )
    step = window if window < limits.default_forward_window_seconds else None
    degraded = share < 1.0 or step is not None or diff_mode is DiffMode.NONE
    return Sizes(round(batch), step, share, wait, diff_mode, tuple(reasons) if degraded else ())


def reduced(sizes: Sizes, *, batch: int, window: float, limits: DegradationLimits, reason: str) -> Sizes:
    """``sizes`` with at most ``batch`` rows and ``window`` seconds and no diffs, because of ``reason``. The
    smallest of several suggestions counts.
    """
    least = min(batch, sizes.batch)
    return Sizes(
        least,
        window if sizes.window is None else min(window, sizes.window),
        min(sizes.share, least / limits.default_batch_size),
        sizes.wait,
        DiffMode.NONE,
        (*sizes.reasons, reason),
    )
