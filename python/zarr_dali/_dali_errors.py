"""Errors of a pipeline in the words of a `Loader`: which argument, operator or output they are about.

DALI puts the message between the traceback of the pipeline's definition and places in its own sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FOLLOWS = "encountered:\n"
_ENDS = ("\nC++ context", "\nCurrent pipeline object is no longer valid.")


def message(text: str) -> str:
    """What an operator says, without what DALI puts around it."""
    if _FOLLOWS not in text:
        return text
    said = text.rpartition(_FOLLOWS)[2]
    return min((said.partition(end)[0] for end in _ENDS), key=len).strip()


def in_words_of_the_loader(text: str, layouts: Mapping[str, str], has_graph: bool) -> str | None:
    """What the error of a pipeline says of `layout` or of `graph`; None of anything else.

    Args:
        text: Of the error.
        layouts: Of the outputs, by their names.
        has_graph: Whether there are operators of a `graph`.
    """
    said = message(text)
    shape = re.search(r"'(\w*)' is not compatible with a (\d+)D", said)
    if "fn.reinterpret`" in text and "in _through_graph" not in text and shape:
        names = [name for name, layout in layouts.items() if layout == shape[1]]
        whose = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
        return (
            f'layout: "{shape[1]}" has {len(shape[1])} letters, but a sample of {whose} has {shape[2]} '
            "dimensions, those of the window among them; give one letter for each, by names if they differ"
        )
    if "in _through_graph" in text and "fn.readers.zarr`" not in text:
        where = re.search(r"operator `(?:nvidia\.dali\.)?([\w.]+)`", text)
        hint = " (`layout=` gives outputs other letters)" if "layout" in said else ""
        return f"graph: {where[1] if where else 'an operator'} refuses what it is given{hint}: {said}"
    if has_graph and "IsDenseTensor" in text:
        return (
            "graph: the samples of a batch have different shapes, and a tensor has one; make them alike, "
            "with fn.crop, fn.resize or fn.pad"
        )
    return None


def of_type(dtype: object, has_graph: bool) -> str:
    """What is wrong with a batch of a type of DALI that torch does not have."""
    name = str(dtype).rpartition(".")[2].lower()
    if has_graph:
        return (
            f"graph: an output is {name}, of which DALI has no torch tensors; cast it there with fn.cast, or "
            "give its name in `dtype`"
        )
    return f"DALI has no torch tensors of the type {name}; give `dtype`, such as int32 or float32"
