"""Writes what repeats the operator's schema: the page `arguments.md` and the wrapper `zarr_dali.readers`.

python docs/generate.py

The schema in `cpp_shim/schema.cc` is the only place where arguments are described. Run this after a change
there, with the new library installed; a test fails while the files say something else.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from nvidia.dali import backend, types

import zarr_dali  # noqa: F401  registers the operator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "arguments.md"
WRAPPER = ROOT / "python" / "zarr_dali" / "readers.py"
SCHEMA = "readers__Zarr"
COLUMNS = 110

GROUPS = {
    "What is read": (
        *("path", "join", "per_store", "arrays", "stack", "stack_channels"),
        *("missing_chunks", "follow_links", "storage_options"),
    ),
    "Samples": (
        *("window", "stride", "dilation", "offsets", "dimension_offsets"),
        *("roi_start", "roi_end", "select", "exclude", "breaks"),
        *("samples", "weights", "samples_per_epoch", "mask", "min_foreground", "mask_cache"),
        "return_index",
    ),
    "Values": ("mask_and_scale", "mean", "std", "normalize", "dtype"),
    "Order": ("random_shuffle", "initial_fill", "seed", "position"),
    "Reader shards and epochs": ("shard_id", "num_shards", "stick_to_shard", "pad_last_batch"),
    "Decoding, threads and memory": (
        *("decode", "gpu_zstd", "io", "num_io_threads", "num_decode_threads"),
        *("cache_bytes", "cache_dir", "cache_dir_bytes"),
        *("device_memory_budget", "host_memory_budget", "prefetch_queue_depth", "lazy_init"),
    ),
    "Of every DALI operator": ("device", "name", "preserve", "bytes_per_sample_hint"),
}
"""The headings of the page, and the order of the wrapper's arguments."""


OF_WRAPPER = {
    "offsets": "int | Sequence[int] | Mapping[str, Sequence[int]] | None",
    "storage_options": "str | Mapping[str, Any]",
    "per_store": "str | Sequence[Mapping[str, Any] | None]",
    "dimension_offsets": "str | Mapping[str, Any]",
    "select": "str | Mapping[str, Any]",
    "normalize": "str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]",
    "position": "str | Mapping[str, Any]",
    "dtype": "Any",
}
"""What the wrapper takes beside what the operator does (python/zarr_dali/_operator_arguments.py)."""


@dataclass(frozen=True)
class Argument:
    """An argument of the operator. `default` is Python source, None for one that has to be given."""

    name: str
    annotation: str
    default: str | None
    text: str

    @property
    def paragraphs(self) -> list[str]:
        """The description, each paragraph in one line."""
        return [" ".join(part.split()) for part in self.text.split("\n\n")]


GENERAL = (
    Argument(
        "device",
        'Literal["cpu", "gpu"] | None',
        "None",
        "The backend: where chunks are decoded as a rule, and where the outputs are. Without it the CPU.",
    ),
    Argument("name", "str | None", "None", "Name of the operator, for `reader_meta` and the iterators."),
)
"""What DALI adds to every operator outside the schema."""


def arguments() -> dict[str, Argument]:
    """The operator's arguments in the order of `GROUPS`; those that it only refuses are left out.

    Raises:
        KeyError: GROUPS and the schema do not have the same names.
    """
    schema = backend.GetSchema(SCHEMA)
    found = {argument.name: argument for argument in GENERAL}
    for name in schema.GetArgumentNames():
        if not schema.IsDeprecatedArg(name):
            found[name] = _argument(schema, name)
    ordered = {name: found.pop(name) for names in GROUPS.values() for name in names}
    if found:
        raise KeyError(f"{sorted(found)} are in no group of {__file__}")
    return ordered


def _argument(schema, name: str) -> Argument:
    text = schema.GetArgumentDox(name)
    annotation = _annotation(name, schema.GetArgumentType(name), text)
    default = None
    if schema.IsArgumentOptional(name):
        default = "None"
        if schema.HasArgumentDefaultValue(name):
            value = ast.literal_eval(schema.GetArgumentDefaultValueString(name))
            # A list of one default is the value itself: lists are no defaults in Python.
            (value,) = value if isinstance(value, list) else [value]
            value = bool(value) if schema.GetArgumentType(name) == types.BOOL else value
            default = f'"{value}"' if isinstance(value, str) else repr(value)
        else:
            annotation += " | None"
    return Argument(name, annotation, default, text)


def _annotation(name: str, dtype: types.DALIDataType, text: str) -> str:
    if name == "path":
        return "Paths"
    if dtype in types._vector_types:
        element = _scalar(types._vector_types[dtype])
        return f"{element} | Sequence[{element}]"
    # A description that begins with values in quotes has them all.
    if dtype == types.STRING and (values := re.findall(r'``("[^"]+")``', text.split("\n\n")[0])):
        return f"Literal[{', '.join(values)}]"
    return _scalar(dtype)


def _scalar(dtype: types.DALIDataType) -> str:
    if dtype == types.DATA_TYPE:
        return "DALIDataType"
    return type(types._known_types[dtype][1](0)).__name__


def page() -> str:
    """The page, in Markdown."""
    found = arguments()
    lines = [
        "# The operator's arguments",
        "",
        "<!-- Made from the operator's schema by docs/generate.py: the text is in cpp_shim/schema.cc. -->",
        "",
        "`fn.readers.zarr(...)`, with the alias `fn.zarr_reader`. `zarr_dali.readers.zarr(...)` is the same",
        "with types and help for editors, which do not see DALI's plugins, and takes dictionaries where the",
        "operator wants JSON, and types of NumPy and PyTorch, or their names, as `dtype`.",
        "`help(fn.readers.zarr)` shows this text as well.",
        "",
    ]
    for paragraph in _plain(backend.GetSchema(SCHEMA).Dox()).split("\n\n"):
        lines += [_wrapped(" ".join(paragraph.split())), ""]
    for heading, names in GROUPS.items():
        lines += [f"## {heading}", ""]
        for name in names:
            argument = found[name]
            kind = argument.annotation.replace("Paths", "str | Sequence[str]")
            default = "has to be given" if argument.default is None else f"default `{argument.default}`"
            lines += [f"### `{name}`", "", f"`{kind}`, {default}", ""]
            for paragraph in argument.paragraphs:
                lines += [_wrapped(_plain(paragraph)), ""]
    return "\n".join(lines).rstrip() + "\n"


def wrapper() -> str:
    """The module `zarr_dali.readers`, as Python source."""
    found = arguments()
    signature = []
    for argument in found.values():
        default = "" if argument.default is None else f" = {argument.default}"
        annotation = OF_WRAPPER.get(argument.name, argument.annotation)
        signature.append(f"    {argument.name}: {annotation}{default},")
    first, *rest = _plain(backend.GetSchema(SCHEMA).Dox()).split("\n\n")
    body = [" ".join(first.split()), ""]
    for paragraph in rest:
        body += [_wrapped(" ".join(paragraph.split()), COLUMNS - 4), ""]
    body += [_wrapped(ABOUT_WRAPPER, COLUMNS - 4), "", "Args:"]
    for argument in found.values():
        head, *more = [_plain(paragraph) for paragraph in argument.paragraphs]
        body.append(_wrapped(f"{argument.name}: {head}", COLUMNS - 4, "    ", "        "))
        for paragraph in more:
            body.append(_wrapped(paragraph, COLUMNS - 4, "        ", "        "))
    body += [
        "",
        "Returns:",
        "    One output, or a list of them: one for each of `arrays`, or one for all with `stack`; then the",
        "    indices with `return_index`.",
    ]
    return WRAPPER_SOURCE.format(
        signature="\n".join(signature),
        docstring=textwrap.indent("\n".join(body), "    ", lambda line: bool(line.strip())).lstrip(),
    )


def _plain(text: str) -> str:
    """Code in single backquotes."""
    return text.replace("``", "`")


def _wrapped(text: str, columns: int = COLUMNS, first: str = "", others: str = "") -> str:
    # A piece of code stays in one line, where Markdown and editors find it.
    pieces = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    return textwrap.fill(
        pieces,
        columns,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\0", " ")


ABOUT_WRAPPER = (
    "What the operator takes as JSON may be a dictionary or a list here: `select`, `normalize` (also the "
    "name of a file of JSON), `storage_options`, `per_store`, `dimension_offsets` and `position`. "
    "`offsets` may be a dictionary of steps by dimension, and `dtype` a type of NumPy or PyTorch or the "
    "name of one."
)

WRAPPER_SOURCE = '''"""The operator with types, for editors and type checkers: they do not see DALI's plugins.

Made from the operator's schema by docs/generate.py: change the text in cpp_shim/schema.cc.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from zarr_dali import _operator_arguments

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def zarr(
    *,
{signature}
) -> DataNode | list[DataNode]:
    """{docstring}
    """
    given = locals()
    from nvidia.dali import fn  # here, because the package says first which release of DALI it needs

    return fn.readers.zarr(**_operator_arguments.of_wrapper(_other_than_defaults(given)))


def _other_than_defaults(given: dict[str, Any]) -> dict[str, Any]:
    # To DALI an argument with its default is not the same as none: a seed of -1 hides the pipeline's. And in
    # DALI's conditional mode `zarr` is rewritten and has further local variables.
    parameters = inspect.signature(zarr).parameters.values()
    return {{each.name: given[each.name] for each in parameters if not _same(given[each.name], each.default)}}


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(default, (bool, int, str)) and value == default)
'''


if __name__ == "__main__":
    PAGE.write_text(page())
    WRAPPER.write_text(wrapper())
