"""Arguments of a `Loader` by array: an entry is named by the array, or by the key that it has in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def places(argument: str, given: Iterable[str], arrays: Sequence[str], keys: Sequence[str]) -> dict[int, str]:
    """Which outputs the names of an argument mean: for the numbers of outputs the names that were given.

    Args:
        argument: What the argument is called.
        given: Its names. Those that are neither an array nor a key are left out.
        arrays: The array of each output.
        keys: The key of each output.

    Raises:
        ValueError: A name is a key of one output and the array of others, or an output is named twice.
    """
    found: dict[int, str] = {}
    for name in given:
        by_key = [at for at, key in enumerate(keys) if key == name]
        by_array = [at for at, array in enumerate(arrays) if array.strip("/") == str(name).strip("/")]
        if by_key and by_array and by_key != by_array:
            others = " and ".join(f'"{keys[at]}"' for at in by_array)
            raise ValueError(
                f'{argument}: "{name}" is the key of the array "{arrays[by_key[0]]}" in a batch, and the '
                f"name of the array whose key is {others}; give a list with one entry for each of "
                f"{list(arrays)}, or other `names`"
            )
        for at in by_key or by_array:
            if at in found:
                raise ValueError(
                    f'{argument}: "{found[at]}" and "{name}" are both the array "{arrays[at]}", whose key in '
                    f'a batch is "{keys[at]}"; leave one out'
                )
            found[at] = name
    return found
