"""Which cases of a parametrised test are in the quick tier; `conftest.repetitions` leaves out more."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Values of a parameter, of which only the chosen ones are in the quick tier.

    For what other tests of that tier try as well, such as every codec through each kind of store.

    Raises:
        ValueError: A chosen one is none of them.
    """
    values = list(values)
    if unknown := [one for one in chosen if one not in values]:
        raise ValueError(f"{unknown} are none of the values")
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.full) for value in values]
