"""Arrays written by zarr-python, tensorstore, zarrs or by hand, from one description of them."""

import warnings
from dataclasses import dataclass, field, replace

import numcodecs
import numpy as np
import pytest
import zarr

from chains import BY_HAND, CHAINS, TENSORSTORE, WIDENED, ZARRS, Chain, codec, storage_dtype
from stores import FORMATS, chunk_files, edit_metadata


@dataclass(frozen=True)
class Description:
    """An array to be written, in the terms of the metadata. `chunks` are the read chunks."""

    zarr_format: int
    chain: Chain
    dtype: str
    shape: tuple
    chunks: tuple
    shards: tuple | None = None
    endian: str = "little"
    order: str = "C"
    fill: object = 0
    """See `scalar`."""
    separator: str | None = None
    attributes: dict = field(default_factory=dict)
    dimension_names: tuple | None = None


def narrow_type(name):
    """The type that ml_dtypes has for one that NumPy lacks."""
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))


def scalar(dtype, value):
    """A value of a data type."""
    if dtype in WIDENED:
        return narrow_type(dtype).type(value)
    dtype = np.dtype(dtype)
    return dtype.type(value, np.datetime_data(dtype)) if dtype.kind in "Mm" else dtype.type(value)


def write(writer, path, bits, what):
    """Writes an array whose values, or stored bits for types that NumPy lacks, are `bits`."""
    if 3 not in FORMATS:
        pytest.skip(f"zarr-python {zarr.__version__} is no writer of this matrix, 3 or newer is")
    {TENSORSTORE: _with_tensorstore, ZARRS: _with_zarrs, BY_HAND: _by_hand}.get(writer, _with_zarr_python)(
        path, bits, what
    )


def fill_in_metadata(fill):
    """A fill value as JSON has it."""
    if isinstance(fill, (np.complexfloating, complex)):
        return [fill_in_metadata(fill.real), fill_in_metadata(fill.imag)]
    if isinstance(fill, (np.bool_, np.integer)):
        return fill.item()
    if "int" in fill.dtype.name:
        return int(fill)
    fill = float(fill)
    if np.isnan(fill):
        return "NaN"
    return fill if np.isfinite(fill) else ("Infinity" if fill > 0 else "-Infinity")


def _sharded(what, filters, serializer, compressors):
    """(extents of the chunks, filters, serializer, compressors), sharded if the chain says so."""
    sharding = what.chain.sharding
    if not sharding:
        return what.chunks, filters, serializer, compressors
    index = [codec("bytes", endian=sharding.index_endian)] + ([codec("crc32c")] if sharding.checksum else [])
    chunks, codecs = what.chunks, [*filters, serializer, *compressors]
    if sharding.nested:
        codecs = [_sharding_codec(chunks, codecs, index, sharding)]
        chunks = what.shards
    serializer = _sharding_codec(chunks, codecs, index, sharding)
    chunks = tuple(2 * extent for extent in chunks) if sharding.nested else what.shards
    return chunks, (), serializer, sharding.outer


def _sharding_codec(chunks, codecs, index, sharding):
    return codec(
        "sharding_indexed",
        chunk_shape=list(chunks),
        codecs=list(codecs),
        index_codecs=index,
        index_location=sharding.location,
    )


def _with_zarr_python(path, values, what):
    arguments = {
        "store": str(path),
        "shape": what.shape,
        "fill_value": what.fill,
        "zarr_format": what.zarr_format,
        "config": {"write_empty_chunks": False},
        "attributes": what.attributes,
    }
    if what.zarr_format == 2:
        dtype = values.dtype.newbyteorder(">" if what.endian == "big" else "<")
        filters = [numcodecs.get_codec(dict(filter)) for filter in what.chain.v2_filters(dtype)]
        arguments |= {
            "dtype": dtype,
            "chunks": what.chunks,
            "filters": filters or None,
            "compressors": what.chain.compressor,
            "order": what.order,
        }
        encoding = "v2"
    else:
        codecs = what.chain.codecs(what.dtype, len(what.shape), what.endian)
        chunks, filters, serializer, compressors = _sharded(what, *codecs)
        arguments |= {
            "dtype": values.dtype,
            "chunks": chunks,
            "filters": list(filters) or None,
            "serializer": serializer,
            "compressors": list(compressors) or None,
            "dimension_names": what.dimension_names,
        }
        encoding = "default"
    if what.separator:
        arguments["chunk_key_encoding"] = {"name": encoding, "separator": what.separator}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs and types that the v3 specification does not name
        zarr.create_array(**arguments)[...] = values


def _with_zarrs(path, values, what):
    pytest.importorskip("zarrs", reason="the Python package zarrs is not installed")
    settings = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
    with zarr.config.set(settings):
        _with_zarr_python(path, values, what)


def _with_tensorstore(path, bits, what):
    tensorstore = pytest.importorskip("tensorstore", reason="the Python package tensorstore is not installed")
    fill = fill_in_metadata(what.fill)
    if what.zarr_format == 2:
        dtype = what.dtype
        if dtype not in WIDENED:
            dtype = np.dtype(dtype).newbyteorder(">" if what.endian == "big" else "<").str
        metadata = {
            "shape": what.shape,
            "chunks": what.chunks,
            "dtype": dtype,
            "compressor": what.chain.compressor,
            "fill_value": fill,
            "order": what.order,
        }
        if what.separator:
            metadata["dimension_separator"] = what.separator
    else:
        codecs = what.chain.codecs(what.dtype, len(what.shape), what.endian)
        chunks, filters, serializer, compressors = _sharded(what, *codecs)
        metadata = {
            "shape": what.shape,
            "data_type": what.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "codecs": [*filters, serializer, *compressors],
            "fill_value": fill,
        }
        if what.separator:
            metadata["chunk_key_encoding"] = codec("default", separator=what.separator)
    spec = {
        "driver": "zarr3" if what.zarr_format == 3 else "zarr",
        "kvstore": {"driver": "file", "path": str(path)},
        "create": True,
        "metadata": metadata,
        # No thread pool per array, and files need not reach the disk.
        "context": {"file_io_sync": False},
    }
    array = tensorstore.open(spec).result()
    array.write(bits.view(array.dtype.numpy_dtype)).result()


def _by_hand(path, bits, what):
    special = what.dtype in WIDENED
    written = replace(what, chain=CHAINS[what.chain.written_as or what.chain.name])
    if special:
        written = replace(written, dtype=bits.dtype.name, fill=fill_bits(what))
    _with_zarr_python(path, bits, written)
    for file in chunk_files(path) if what.chain.rewrite else []:
        file.write_bytes(what.chain.rewrite(file.read_bytes()))
    metadata = path / (".zarray" if what.zarr_format == 2 else "zarr.json")
    edit_metadata(metadata, lambda entries: _rename(entries, what, special))


def fill_bits(what):
    """The fill value as it is stored."""
    return np.array(what.fill).view(storage_dtype(what.dtype))[()]


def _rename(metadata, what, special):
    """Metadata of what was made by hand."""
    if special:
        metadata["data_type"] = what.dtype
        metadata["fill_value"] = fill_in_metadata(what.fill)
    if what.chain.written_as and what.zarr_format == 2:
        metadata["compressor"] = what.chain.compressor
    elif what.chain.written_as:
        filters, serializer, compressors = what.chain.codecs(what.dtype, len(what.shape), what.endian)
        metadata["codecs"] = [*filters, serializer, *compressors]
