"""The five attribution models: published examples computed by hand, and rules for any journey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.plugins.attribution.models import MODELS, Model, weights

DAY = 86_400_000
WEEK = 7 * DAY

# Ages of touches, oldest first, from none at all to 10^12 milliseconds (31 years); many are equal.
AGES = st.lists(
    st.one_of(st.integers(0, 10**12), st.sampled_from([0, 1, DAY, WEEK, 10**12])), min_size=1, max_size=200
).map(lambda ages: sorted(ages, reverse=True))


def days(*ages: float) -> list[int]:
    return [int(age * DAY) for age in ages]


def test_published_example_of_time_decay() -> None:
    """By hand: "Time-Decay Attribution Example", https://docs.attributionapp.com/docs/time-decay-attribution-example-direct-included

    Visits from Facebook, Adwords, directly, from Facebook and directly, 8, 5, 4, 2 and 0 days before a conversion
    of $10. Their parts are 2^(-8/7) = .45, 2^(-5/7) = .61, 2^(-4/7) = .67, 2^(-2/7) = .82 and 1, of 3.56 in all.
    """
    shares = weights("time_decay", days(8, 5, 4, 2, 0), WEEK)
    assert [round(share, 3) for share in shares] == [0.127, 0.171, 0.189, 0.231, 0.281]
    assert [round(10 * share, 2) for share in shares] == [1.27, 1.71, 1.89, 2.31, 2.81]


def test_published_example_of_linear() -> None:
    """By hand: "Linear Attribution Example", https://docs.attributionapp.com/docs/linear-attribution-example-direct-included

    The same five visits: a fifth of the $10 for each, so $4 for Facebook, $2 for Adwords and $4 for the direct ones.
    """
    facebook, adwords, direct, facebook_again, direct_again = weights("linear", days(8, 5, 4, 2, 0), WEEK)
    assert 10 * (facebook + facebook_again) == pytest.approx(4)
    assert 10 * adwords == pytest.approx(2)
    assert 10 * (direct + direct_again) == pytest.approx(4)


def test_published_example_of_position_based() -> None:
    """By hand: "Position-Based Attribution Example", https://docs.attributionapp.com/docs/position-based-attribution-example/edit

    Visits from Facebook, Adwords and directly, 4, 1 and 0 days before a conversion of $10: $4, $2 and $4. A single
    visit gets all of it; of two visits the 40 % of each are prorated to 100 %.
    """
    assert [10 * share for share in weights("position_based", days(4, 1, 0), WEEK)] == pytest.approx([4, 2, 4])
    assert weights("position_based", days(4, 0), WEEK) == [0.5, 0.5]
    assert weights("position_based", days(4), WEEK) == [1]
    assert weights("position_based", days(5, 4, 3, 2, 1, 0), WEEK) == pytest.approx([0.4, 0.05, 0.05, 0.05, 0.05, 0.4])


def test_first_and_last_give_all_credit_to_one_touch() -> None:
    assert weights("first_touch", days(8, 5, 0), WEEK) == [1, 0, 0]
    assert weights("last_touch", days(8, 5, 0), WEEK) == [0, 0, 1]


def test_a_touch_one_half_life_older_has_half_the_share() -> None:
    older, newer = weights("time_decay", days(8, 1), WEEK)
    assert newer == pytest.approx(2 * older)
    older, newer = weights("time_decay", days(3, 2.5), DAY // 2)
    assert newer == pytest.approx(2 * older)


@given(st.sampled_from(MODELS), AGES, st.sampled_from([1, DAY, WEEK, 10**12]))
def test_every_touch_has_a_weight_and_they_sum_to_one(model: Model, ages: list[int], half_life: int) -> None:
    shares = weights(model, ages, half_life)
    assert len(shares) == len(ages)
    assert all(0 <= share <= 1 for share in shares)
    assert abs(sum(shares) - 1) < 1e-9


@given(AGES, st.sampled_from([1, DAY, WEEK, 10**12]))
def test_time_decay_never_gives_a_newer_touch_less(ages: list[int], half_life: int) -> None:
    shares = weights("time_decay", ages, half_life)
    assert shares == sorted(shares)
    assert shares[-1] == max(shares) > 0
    of_age: dict[int, float] = {}
    assert all(of_age.setdefault(age, share) == share for age, share in zip(ages, shares, strict=True))


@given(AGES)
def test_ages_matter_in_time_decay_only(ages: list[int]) -> None:
    for model in MODELS:
        if model != "time_decay":
            assert weights(model, ages, WEEK) == weights(model, [0] * len(ages), WEEK)


@given(AGES)
def test_position_based_gives_most_to_the_ends_and_shares_the_rest(ages: list[int]) -> None:
    first, *middle, last = weights("position_based", [*ages, 0, 0], WEEK)
    assert first == last == 0.4
    assert sum(middle) == pytest.approx(0.2)
    assert len({*middle}) == 1
