"""Windows against xbatcher's patches: `input_dims` and `input_overlap` on the same array give the same set of
samples as `window=input_dims` and `stride=input_dims - input_overlap`.
"""

import numpy as np
import pytest

from reading import bits, read_all
from stores import write_array, write_group

xarray = pytest.importorskip("xarray")
xbatcher = pytest.importorskip("xbatcher")

NAMES = ("time", "lat", "lon")
SHAPE = (13, 12, 10)


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    """A store with t (13, 12, 10), whose values are all different, and the same as a DataArray."""
    path = write_group(tmp_path_factory.mktemp("xbatcher") / "test.zarr")
    values = np.arange(np.prod(SHAPE), dtype="int32").reshape(SHAPE)
    write_array(path, "t", values, chunks=(3, 5, 4), codec="raw", dimension_names=NAMES)
    return path, xarray.DataArray(values, dims=NAMES)


def patches(array, window, overlap):
    """xbatcher's patches, each as a batch of its own. Dimensions that it is not told of stay whole."""
    sizes = dict(zip(NAMES, window)) | {name: array.sizes[name] for name in NAMES[len(window) :]}
    generator = xbatcher.BatchGenerator(
        array,
        input_dims=sizes,
        input_overlap={name: size for name, size in zip(NAMES, overlap) if size},
        concat_input_dims=False,
    )
    return [np.ascontiguousarray(patch.transpose(*NAMES).values) for patch in generator]


@pytest.mark.gpu_where(lambda case: len(case["window"]) == 2 or case["shuffle"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "window, overlap",
    [
        ((1,), (0,)),
        ((4,), (0,)),
        ((4,), (3,)),
        ((13,), (5,)),
        ((2, 4), (0, 0)),
        ((3, 5), (2, 3)),
        ((1, 4, 4), (0, 0, 0)),
        ((1, 4, 4), (0, 2, 2)),
        ((2, 6, 3), (1, 0, 1)),
        ((5, 12, 10), (4, 11, 9)),
    ],
)
def test_same_patches(backend, field, window, overlap, shuffle):
    """The same patches, each once; unshuffled also in the same order."""
    path, array = field
    expected = patches(array, window, overlap)
    stride = [size - shared for size, shared in zip(window, overlap)]
    batch_size = max(5, len(expected) // 10)
    (samples,) = read_all(
        backend,
        path,
        arrays=["t"],
        window=list(window),
        stride=stride,
        random_shuffle=shuffle,
        seed=3,
        batch_size=batch_size,
    )
    if shuffle:
        samples = sorted(samples, key=lambda sample: sample.ravel()[0])
        expected = sorted(expected, key=lambda sample: sample.ravel()[0])
    assert len(samples) == len(expected)
    for sample, patch in zip(samples, expected):
        np.testing.assert_array_equal(bits(sample), bits(patch), strict=True)
