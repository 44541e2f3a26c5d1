"""Disagreeing sentinels: the choice of the newest primary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingestd.plugins.stores.redis.sentinel import NewestPrimary, SentinelAnswer

FORMER, PRIMARY, OTHER = ("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379)
ANSWERS = st.builds(SentinelAnswer, st.integers(0, 5), st.sampled_from([FORMER, PRIMARY, OTHER]))


@given(st.lists(ANSWERS, min_size=1, max_size=5))
def test_the_highest_epoch_names_the_primary(answers: list[SentinelAnswer]) -> None:
    newest = NewestPrimary(5)
    newest.learn(answers, 0.0)
    highest = max(answer.epoch for answer in answers)
    assert newest.address in {answer.primary for answer in answers if answer.epoch == highest}


@given(st.lists(st.lists(ANSWERS, min_size=1, max_size=2), max_size=10), st.floats(0, 1e6))
def test_a_minority_never_brings_an_older_primary_back(turns: list[list[SentinelAnswer]], now: float) -> None:
    newest = NewestPrimary(5)
    newest.learn([SentinelAnswer(6, PRIMARY)] * 3, 0.0)
    for answers in turns:
        assert not newest.learn(answers, now)
    assert newest.address == PRIMARY


def test_an_outdated_majority_is_ignored_for_ten_seconds() -> None:
    """A majority may be a second late. But sentinels that were set up anew begin at epoch 0, and must count at last."""
    newest = NewestPrimary(3)
    newest.learn([SentinelAnswer(1, FORMER)] * 2 + [SentinelAnswer(2, PRIMARY)], 100.0)
    assert newest.address == PRIMARY
    assert not newest.learn([SentinelAnswer(1, FORMER)] * 2, 109.0)
    assert newest.learn([SentinelAnswer(1, FORMER)] * 2, 111.0)
    assert newest.address == FORMER


def test_within_one_epoch_the_majority_decides_and_a_draw_changes_nothing() -> None:
    newest = NewestPrimary(4)
    newest.learn([SentinelAnswer(0, FORMER)] * 4, 0.0)
    assert not newest.learn([SentinelAnswer(0, PRIMARY)] * 2 + [SentinelAnswer(0, FORMER)] * 2, 1.0)
    assert newest.learn([SentinelAnswer(0, PRIMARY)] * 3 + [SentinelAnswer(0, FORMER)], 2.0)
    assert newest.address == PRIMARY
