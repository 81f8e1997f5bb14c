"""What becomes of a reader's outputs on their way into a batch: names, types, layouts, DALI's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr_dali import _dali_errors, _keys

if TYPE_CHECKING:
    import torch
    from nvidia.dali.data_node import DataNode

    Graph = Callable[[dict[str, DataNode]], Any]

BFLOAT16 = "bfloat16"
"""A type of torch that DALI does not have."""
NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NAMES += ("float16", "float32", "float64")
"""Of the types that DALI has."""
NOT_OF_TORCH = ("uint16", "uint32", "uint64")
"""Types that DALI cannot hand to torch."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of a reader, as they are wanted in a batch."""

    names: tuple[str, ...]
    casts: dict[str, tuple[str, str | None]]
    """Types that single outputs are cast to behind the reader, and from which, if that is known."""
    layouts: dict[str, str]
    graph: Graph | None
    of_torch: dict[str, str]
    """Types that torch makes of single outputs, which are float32 until then."""
    behind: dict[str, str]
    """Types that outputs are cast to behind `graph`, which alone knows them."""
    of_all: str | None
    """The type that torch makes of all outputs of `graph` that are float32."""

    def nodes(self, outputs: Any) -> dict[str, DataNode]:
        """The outputs of the pipeline by the keys of a batch. To be called while the pipeline is defined."""
        from nvidia.dali import fn

        given = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        nodes = dict(zip(self.names, given))
        for name, (dtype, source) in self.casts.items():
            nodes[name] = _cast(nodes[name], dtype, source)
        for name, layout in self.layouts.items():
            nodes[name] = fn.reinterpret(nodes[name], layout=layout)
        return nodes if self.graph is None else self._through_graph(nodes)

    def _through_graph(self, nodes: dict[str, DataNode]) -> dict[str, DataNode]:
        from nvidia.dali.data_node import DataNode

        found = self.graph(dict(nodes))
        if isinstance(found, DataNode):
            found = [found]
        if not isinstance(found, Mapping):
            if not isinstance(found, (list, tuple)) or len(found) != len(nodes):
                raise TypeError(
                    "graph: has to return a dictionary of DALI's nodes, whose keys are those of a batch, or "
                    f"as many nodes as it is given ({len(nodes)}), not {_in_words(found)}"
                )
            found = dict(zip(nodes, found))
        wrong = [name for name, node in found.items() if not isinstance(node, DataNode)]
        if wrong or not found:
            raise TypeError(
                f"graph: has to return DALI's nodes, such as fn.flip(...) gives, not {_in_words(found)}"
            )
        found = {str(name): node for name, node in found.items()}
        elsewhere = [name for name, node in found.items() if node.device == "gpu"]
        if elsewhere and all(node.device == "cpu" for node in nodes.values()):
            raise ValueError(
                f'graph: "{elsewhere[0]}" is on the GPU, but the loader has device="cpu"; leave out what '
                'moves it there, such as .gpu(), or give device="cuda"'
            )
        return self._cast_behind(found)

    def _cast_behind(self, nodes: dict[str, DataNode]) -> dict[str, DataNode]:
        """The outputs of `graph` with the types that are asked for by their own names."""
        from nvidia.dali import fn

        for name in (*self.behind, *self.of_torch):
            if name not in nodes:
                given = "" if name in self.behind else f", of which {self.of_torch[name]} is made behind it"
                raise ValueError(
                    f'dtype: graph returns no output "{name}"{given}, only {list(nodes)}; name one of these, '
                    f"or of what it is given, {list(self.names)}"
                )
        types = {name: "float32" if name in self.of_torch else one for name, one in self.behind.items()}
        return nodes | {name: fn.cast(nodes[name], dtype=dali_type(one)) for name, one in types.items()}

    def explain(self, error: BaseException) -> None:
        """Raises an error of the pipeline in the words of the loader's arguments, if it is one of them."""
        has_graph = self.graph is not None
        if isinstance(error, KeyError) and "DALIDataType" in str(error):
            raise ValueError(_dali_errors.of_type(error.args[0], has_graph)) from error
        if problem := _dali_errors.in_words_of_the_loader(str(error), self.layouts, has_graph):
            raise ValueError(problem) from error
        said = _dali_errors.message(str(error))
        if said != str(error) and type(error) in (RuntimeError, TypeError, ValueError):
            raise type(error)(said) from error

    def of_batch(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A batch with the types that torch makes. What operators made of other types stays as it is."""
        import torch

        types = dict.fromkeys(tensors, self.of_all) if self.of_all else self.of_torch
        wanted = {name: getattr(torch, dtype) for name, dtype in types.items()}
        return {
            name: tensor.to(wanted[name]) if name in wanted and tensor.dtype == torch.float32 else tensor
            for name, tensor in tensors.items()
        }


def arrays_of(arrays: Sequence[str], arguments: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The array of each output besides that of the indices; its key where it is none of `arrays` alone."""
    own = list(names[: len(names) - bool(arguments.get("return_index"))])
    stacked = arguments.get("stack") or arguments.get("stack_channels")
    return list(arrays) if arrays and not stacked else own


def names_of(
    arrays: Sequence[str],
    arguments: Mapping[str, Any],
    names: str | Sequence[str] | Mapping[str, str] | None,
) -> list[str]:
    """The names of a reader's outputs; of several with `return_index` the last is that of the indices."""
    with_index = bool(arguments.get("return_index"))
    stacked = arguments.get("stack") or arguments.get("stack_channels")
    own = list(arrays) if arrays and not stacked else ["data"]
    expected = len(own) + with_index
    if isinstance(names, Mapping):
        known = [*own, "index"] if with_index else own
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"names: there is no output {unknown[0]!r}, only {known}")
        names = [names.get(name, name) for name in known]
    chosen = list(own if names is None else [names] if isinstance(names, str) else names)
    if with_index and len(chosen) == len(own):
        chosen.append("index")
    if len(chosen) != expected:
        raise ValueError(f"names: {chosen} are {len(chosen)}, but the outputs are {expected}: {own}")
    if wrong := [name for name in chosen if not isinstance(name, str)]:
        raise TypeError(f"names: {wrong[0]!r} is no text")
    if len(set(chosen)) != len(chosen):
        raise ValueError(
            f"names: {chosen} are not all different; give each output of `arrays` a name of its own"
        )
    return chosen


def outputs_of(
    names: Sequence[str],
    arrays: Sequence[str],
    *,
    dtype: Any,
    layout: Any,
    graph: Graph | None,
    sources: Callable[[], Sequence[str | None]],
) -> tuple[Any, Outputs]:
    """The reader's own `dtype`, and what is done with its outputs.

    Args:
        names: Keys of the outputs; behind those of `arrays` may be that of the indices.
        arrays: The array of each output, which `dtype` and `layout` may name in place of its key.
        dtype: Of the outputs. With `graph` also of what it returns, by names that only it knows.
        layout: Of the outputs.
        graph: What makes others of them.
        sources: Asks for the types of the outputs without `dtype`; called where they matter.

    Raises:
        ValueError: A type that torch does not have, or a number of values that is not that of the outputs.
        TypeError: No type, no layout or no function.
    """
    if graph is not None and not callable(graph):
        raise TypeError(f"graph: has to be a function of DALI's nodes, not {_in_words(graph)}")
    own = names[: len(arrays)]
    behind = {}
    if graph is not None and isinstance(dtype, Mapping):
        ahead = set(_keys.places("dtype", dtype, arrays, own).values())
        behind = {
            name: _type_name(one) for name, one in dtype.items() if name not in ahead and one is not None
        }
        dtype = {name: one for name, one in dtype.items() if name in ahead}
    types = {name: _type_name(one) for name, one in _for_each("dtype", dtype, own, arrays).items()}
    layouts = _for_each("layout", layout, own, arrays)
    for name, one in layouts.items():
        if not isinstance(one, str):
            raise TypeError(f'layout: has to be a text such as "CHW", not {_in_words(one)}, for {name}')
    # What all outputs have in common the reader itself does, without another pass.
    common = len(types) == len(own) and len(set(types.values())) == 1
    # DALI has no bfloat16, and its CPU backend rounds to float16 by other rules than the reader, in a cast.
    late = {BFLOAT16} if common or graph is not None else {BFLOAT16, "float16"}
    of_torch = {name: one for name, one in types.items() if one in late}
    types = {name: "float32" if name in of_torch else one for name, one in types.items()}
    of_reader = dali_type(next(iter(types.values()))) if common else None
    casts = {}
    if types and not common:
        known = dict(zip(own, sources()))
        casts = {name: (one, known.get(name)) for name, one in types.items() if one != known.get(name)}
    is_one = not isinstance(dtype, (Mapping, list, tuple))
    of_all = BFLOAT16 if graph is not None and is_one and of_torch else None
    if of_all:
        of_torch = {}
    of_torch |= {name: one for name, one in behind.items() if one in (BFLOAT16, "float16")}
    return of_reader, Outputs(tuple(names), casts, layouts, graph, of_torch, behind, of_all)


def _for_each(argument: str, value: Any, names: Sequence[str], arrays: Sequence[str]) -> dict[str, Any]:
    """One value for all outputs, one for each in their order, or some by key or array; None is left out."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        given = _keys.places(argument, value, arrays, names)
        if unknown := [name for name in value if name not in given.values()]:
            others = "" if list(arrays) == list(names) else f" of the arrays {list(arrays)}"
            raise ValueError(f"{argument}: there is no output {unknown[0]!r}, only {list(names)}{others}")
        found = {names[at]: value[name] for at, name in given.items()}
    elif isinstance(value, (list, tuple)):
        if len(value) != len(names):
            raise ValueError(
                f"{argument}: {list(value)} are {len(value)}, but the outputs are {len(names)}: {list(names)}"
            )
        found = dict(zip(names, value))
    else:
        found = dict.fromkeys(names, value)
    return {name: one for name, one in found.items() if one is not None}


def _type_name(dtype: Any) -> str:
    """The name of an element type of numpy, of torch, of DALI or in words.

    Raises:
        TypeError: It is none.
        ValueError: DALI cannot hand it to torch.
    """
    name = getattr(dtype, "name", getattr(dtype, "__name__", dtype))
    if str(name).removeprefix("torch.") == BFLOAT16:
        return BFLOAT16
    name = dali_name(dtype)
    if name in NOT_OF_TORCH:
        raise ValueError(f"dtype: DALI has no torch tensors of {name}; give {wider(name)} in its place")
    return name


def dali_type(dtype: Any) -> Any:
    """DALI's name of an element type of NumPy, which counts first as in torch (`float` is float64), of torch,
    or in words.

    Raises:
        TypeError: It is none.
    """
    import numpy as np
    from nvidia.dali import types

    if isinstance(dtype, str):
        dtype = getattr(types.DALIDataType, dtype, dtype)
    if isinstance(dtype, types.DALIDataType):
        return dtype
    try:
        known = np.dtype(dtype).name
    except TypeError:
        known = dtype
    try:
        return types.to_dali_type(known)
    except TypeError as error:
        raise TypeError(
            f"dtype: {dtype!r} is no type of numbers that DALI has; give one such as float32, int64 or bool"
        ) from error


def dali_name(dtype: Any) -> str:
    """The name of an element type that DALI has.

    Raises:
        TypeError: It is none.
    """
    if isinstance(dtype, str) and dtype in NAMES:
        return dtype  # without DALI, which `zarr-dali info` does without
    name = str(dali_type(dtype)).rpartition(".")[2].lower()
    return {"float": "float32"}.get(name, name)


def wider(name: str) -> str:
    """The signed type that holds the values of an unsigned one, or for 64 bits as many of them as one can."""
    return {"uint16": "int32", "uint32": "int64", "uint64": "int64"}[name]


def lacking(types: Mapping[str, str]) -> str | None:
    """What is wrong with the types of outputs that reach torch as they are, and the remedy."""
    found = {name: one for name, one in types.items() if one in NOT_OF_TORCH}
    if not found:
        return None
    said = ", ".join(f"{name} is {one}" for name, one in found.items())
    several = len(types) > 1
    remedy = (
        {name: wider(one) for name, one in found.items()} if several else wider(next(iter(found.values())))
    )
    return f"dtype: {said}, of which DALI has no torch tensors; give a type, such as dtype={remedy!r}"


def _cast(node: DataNode, dtype: str, source: str | None) -> DataNode:
    """A cast with the reader's rules: to integers the nearest, ties to even, saturated, NaN as 0; as bool
    everything but 0 is true. `fn.cast` has others for floating-point numbers.
    """
    from nvidia.dali import fn
    from nvidia.dali.math import floor

    wanted = dali_type(dtype)
    if "float" in dtype or "float" not in (source or "float"):
        return fn.cast(node, dtype=wanted)
    if source == "float16":  # DALI does not compute with it
        node = fn.cast(node, dtype=dali_type("float32"))
    if dtype == "bool":
        return node != 0
    below = floor(node)
    above = node - below
    is_odd = below - floor(below / 2) * 2 != 0
    nearest = below + ((above > 0.5) | ((above == 0.5) & is_odd))
    return fn.cast(nearest, dtype=wanted) * fn.cast(node == node, dtype=wanted)


def _in_words(value: Any) -> str:
    """A value or a dictionary of values, by their types."""
    if isinstance(value, Mapping):
        return f"a dictionary of {_types(value.values())}"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} values of {_types(value)}"
    return type(value).__name__


def _types(values: Iterable[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values})) or "nothing"
