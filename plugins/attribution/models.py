"""The five models that divide the credit for an order among its touchpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

__all__ = ["MODELS", "Model", "weights"]

Model = Literal["last_touch", "first_touch", "linear", "position_based", "time_decay"]
MODELS: tuple[Model, ...] = get_args(Model)


def weights(model: Model, ages: Sequence[int], half_life: int) -> list[float]:
    """The weight of each touchpoint by its age at the order, oldest first. The weights sum to 1.

    `ages` and `half_life` are in milliseconds. There must be at least one touchpoint.
    """
    return _MODELS[model](ages, half_life)


def _last_touch(ages: Sequence[int], half_life: int) -> list[float]:
    return [0.0] * (len(ages) - 1) + [1.0]


def _first_touch(ages: Sequence[int], half_life: int) -> list[float]:
    return [1.0] + [0.0] * (len(ages) - 1)


def _linear(ages: Sequence[int], half_life: int) -> list[float]:
    return [1 / len(ages)] * len(ages)


def _position_based(ages: Sequence[int], half_life: int) -> list[float]:
    if len(ages) <= 2:
        return _linear(ages, half_life)
    return [0.4, *[0.2 / (len(ages) - 2)] * (len(ages) - 2), 0.4]


def _time_decay(ages: Sequence[int], half_life: int) -> list[float]:
    # Ages count from the newest touchpoint, whose share is 1. Otherwise all shares of an old journey could round to 0.
    newest = min(ages)
    shares = [2.0 ** (-(age - newest) / half_life) for age in ages]
    total = sum(shares)
    return [share / total for share in shares]


_MODELS: Mapping[Model, Callable[[Sequence[int], int], list[float]]] = {
    "last_touch": _last_touch,
    "first_touch": _first_touch,
    "linear": _linear,
    "position_based": _position_based,
    "time_decay": _time_decay,
}
