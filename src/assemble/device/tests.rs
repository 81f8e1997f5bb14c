//! The kernel, compiled for the host, against the plain assembler of the host.

use super::*;
use crate::assemble::conversion::Normalization;
use crate::assemble::{OutputMemory, host};
use crate::dataset::{ByteFormat, Cf, ElementType, FixedScaleOffset, StoredType};
use crate::plan::ChannelPlace;

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use proptest::prelude::*;

type Gather = unsafe extern "C" fn(*const Region, u32, u64);

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The kernel itself, compiled for the host: `tests/kernels/gather_on_host.cc` says how.
fn kernel() -> Gather {
    static KERNEL: OnceLock<Gather> = OnceLock::new();
    *KERNEL.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("gather.so");
        let root = env!("CARGO_MANIFEST_DIR");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let status = std::process::Command::new(compiler)
            .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas"])
            .args([
                "-I",
                &format!("{root}/src/kernels"),
                &format!("{root}/tests/kernels/gather_on_host.cc"),
                "-o",
            ])
            .arg(&library)
            .status();
        assert!(status.unwrap().success());
        let library = CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library has that function with that signature, and is never closed.
        unsafe {
            let library = dlopen(library.as_ptr(), 2);
            let function = dlsym(library, c"gather_on_host".as_ptr());
            assert!(!function.is_null());
            std::mem::transmute::<*mut c_void, Gather>(function)
        }
    })
}

fn run(regions: &Regions) {
    let bytes = |list: *const u8, bytes: usize| {
        // SAFETY: plain data of that size.
        unsafe { std::slice::from_raw_parts(list, bytes) }
    };
    let (list, (conversions, channels)) = (regions.list(), regions.conversions());
    let work = [
        bytes(list.as_ptr().cast(), size_of_val(list)),
        bytes(conversions.as_ptr().cast(), size_of_val(&conversions[..])),
        bytes(channels.as_ptr().cast(), size_of_val(&channels[..])),
    ];
    let words: Vec<u64> =
        work.concat().chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    // SAFETY: regions and conversions lie behind one another; what they name are the test's buffers.
    unsafe { kernel()(words.as_ptr().cast(), list.len() as u32, regions.tiles()) };
}

/// Elements of one box: (extent, slack in the source, slack in the destination) of each dimension.
type Dimensions = Vec<(u64, u64, u64)>;

/// Assembles one box by the kernel and on the host; gives both outputs.
fn both(
    conversion: &Conversion,
    dims: &Dimensions,
    turns: bool,
    offsets: (u64, u64),
    fill: Option<&[u8]>,
    swaps: bool,
    content: impl Fn(usize) -> u64,
) -> (Vec<u8>, Vec<u8>) {
    let dense = |slack: &dyn Fn(usize) -> u64| {
        let mut strides = vec![1; dims.len()];
        for d in (1..dims.len()).rev() {
            strides[d - 1] = strides[d] * (dims[d].0 + slack(d));
        }
        let all = strides[0] * dims[0].0;
        (strides, all)
    };
    let (mut from_strides, from_len) = dense(&|d| dims[d].1);
    if turns {
        // Transposed: the first dimension is the contiguous one. Strides need not fit the extents to be copied.
        from_strides.reverse();
    }
    let from_len = from_len.max(dims.iter().zip(&from_strides).map(|(d, stride)| d.0 * stride).sum());
    let (to_strides, to_len) = dense(&|d| dims[d].2);
    let extents = dims.iter().map(|d| d.0).collect();
    let piece = CopyBox {
        from: offsets.0,
        to: offsets.1,
        extents,
        from_strides: from_strides.into(),
        to_strides: to_strides.into(),
    }
    .collapsed();
    // Buffers of u128 are aligned as the device's allocations are.
    let words = |len: u64, offset: u64, size: usize| ((len + offset) * size as u64).div_ceil(16) as usize + 1;
    let size = conversion.stored_bytes();
    let from: Vec<u128> = (0..words(from_len, offsets.0, size))
        .map(|i| u128::from(content(2 * i)) | u128::from(content(2 * i + 1)) << 64)
        .collect();
    let mut to = vec![0u128; words(to_len, offsets.1, conversion.output().size_bytes())];
    let mut expected = to.clone();

    let source = match fill {
        Some(fill) => Source::Fill(fill),
        None => Source::Decoded { address: from.as_ptr() as u64, swaps_bytes: swaps && size > 1 },
    };
    let mut regions = Regions::default();
    let boxes = [piece];
    regions.add(source, &boxes, conversion, to.as_mut_ptr() as u64);
    let (conversions, channels) = regions.conversions();
    let work = size_of_val(regions.list()) + size_of_val(&conversions[..]) + size_of_val(&channels[..]);
    assert!(work as u64 <= Regions::bytes(&boxes, conversion) + Regions::conversion_bytes(conversion));
    run(&regions);

    let mut decoded: Vec<u8> = from.iter().flat_map(|word| word.to_ne_bytes()).collect();
    if swaps {
        decoded.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    let source = fill.map_or(host::Source::Decoded(&decoded), host::Source::Fill);
    let output = OutputMemory { address: expected.as_mut_ptr() as u64, bytes: expected.len() as u64 * 16 };
    // SAFETY: `expected` is this thread's alone.
    unsafe { host::assemble(source, &boxes, conversion, output) };
    let bytes = |words: Vec<u128>| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    (bytes(to), bytes(expected))
}

/// The same bytes, or where they were computed, NaN in both.
fn assert_same(output: ElementType, computed: bool, (actual, expected): &(Vec<u8>, Vec<u8>), what: &str) {
    let stored = StoredType::Element(output);
    let size = output.size_bytes();
    for (i, (a, b)) in actual.chunks_exact(size).zip(expected.chunks_exact(size)).enumerate() {
        let nan = |element: &[u8]| computed && output.is_float() && stored.number(element).is_nan();
        assert!(a == b || nan(a) && nan(b), "{what}, element {i}: {a:x?} is not {b:x?}");
    }
}

fn scrambled(seed: u64) -> impl Fn(usize) -> u64 {
    move |i| {
        let mixed = (i as u64 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }
}

fn stored_types() -> Vec<StoredType> {
    let elements = ElementType::ALL.into_iter().map(|(element, ..)| StoredType::Element(element));
    let bytes = ByteFormat::ALL.into_iter().map(|(format, _)| StoredType::Byte(format));
    elements.chain([StoredType::BFloat16]).chain(bytes).collect()
}

/// Decodings of every kind, as far as they suit the type.
fn cfs(reads_as: ElementType) -> Vec<Option<Cf>> {
    let of = |computes_in, masks: &[f64], scale_factor, add_offset, is_bool| {
        Some(Cf { reads_as, computes_in, masks: masks.to_vec(), scale_factor, add_offset, is_bool })
    };
    let float = if reads_as.fits_single() { ElementType::Float32 } else { ElementType::Float64 };
    let mut cfs = vec![
        None,
        of(float, &[1.0, 0.1, -3.0], None, None, false),
        of(ElementType::Float64, &[0.0], Some(0.01), Some(-273.15), false),
        of(ElementType::Float64, &[], None, Some(1e5), true),
    ];
    if reads_as.is_float() {
        cfs.push(of(reads_as, &[], Some(0.1), Some(3.3), false));
    }
    cfs
}

#[test]
fn the_kernel_computes_what_the_host_does() {
    // Small numbers, halfway cases, limits and NaNs with the smallest payload among random bits.
    let small = |i: usize| match i % 6 {
        5 => [0x7F80_0001_FF80_0001, 0x7FF0_0000_0000_0001][i / 6 % 2],
        0 => i as u64 / 6 % 7,
        1 => (i as f64 / 8.0 - 20.0).to_bits(),
        2 => u64::from((i as f32 / 8.0 - 20.0).to_bits()) << 32 | u64::from((i as f32 * 1e7).to_bits()),
        3 => (i as f64).exp2().to_bits(),
        _ => scrambled(7)(i),
    };
    // Both dimensions of the destination in turn have the channels.
    let place = |first, all, elements| ChannelPlace { first, all, elements };
    let numbers = |count| (0..count).map(|c| Normalize { mean: 3.3 + f64::from(c), std: 1.7 }).collect();
    let normalizes = [
        None,
        Some(Normalize { mean: 3.3, std: 1.7 }.into()),
        Some(Normalization::Channels(Channels::new(place(0, 4, 702), 1, numbers(4)))),
        Some(Normalization::Channels(Channels::new(place(0, 702, 1), 1, numbers(702)))),
    ];
    let dtypes = ElementType::ALL.map(|(element, ..)| Some(element));
    let dims = vec![(3, 2, 1), (700, 1, 2)];
    for stored in stored_types() {
        for cf in cfs(stored.widened()) {
            for normalize in &normalizes {
                for dtype in dtypes {
                    let conversion =
                        Conversion::new(stored, None, cf.as_ref(), normalize.clone(), dtype).unwrap();
                    let result = both(&conversion, &dims, false, (1, 2), None, false, small);
                    let what = format!("{stored:?} {conversion:?}");
                    assert_same(conversion.output(), !conversion.is_copy(), &result, &what);
                }
            }
        }
    }
}

#[test]
fn the_kernel_undoes_fixedscaleoffset_as_the_host_does() {
    for (astype, ..) in ElementType::ALL {
        for (dtype, ..) in ElementType::ALL {
            let filter = FixedScaleOffset { offset: 271.3, scale: 7.0, dtype, astype };
            let conversion =
                Conversion::new(StoredType::Element(astype), Some(filter), None, None, None).unwrap();
            let dims = vec![(2, 0, 0), (900, 0, 0)];
            let result = both(&conversion, &dims, false, (0, 0), None, false, scrambled(3));
            assert_same(dtype, true, &result, &format!("{filter:?}"));
        }
    }
}

proptest! {
    #[test]
    fn the_kernel_does_what_the_host_assembler_does(
        dims in prop::collection::vec((1u64..5, 0u64..3, 0u64..3), 1..9),
        turns: bool, stored in prop::sample::select(stored_types()),
        dtype in prop::option::of(prop::sample::select(ElementType::ALL.map(|(element, ..)| element).to_vec())),
        offsets in (0u64..9, 0u64..9), swaps: bool, fills: bool, seed: u64,
    ) {
        let conversion = Conversion::new(stored, None, None, None, dtype).unwrap();
        let element = &[1u8, 2, 3, 4, 5, 6, 7, 8][..stored.size_bytes()];
        let result =
            both(&conversion, &dims, turns, offsets, fills.then_some(element), swaps, scrambled(seed));
        assert_same(conversion.output(), !conversion.is_copy(), &result, "");
    }

    #[test]
    fn the_kernel_normalizes_channels_as_the_host_does(
        dims in prop::collection::vec((1u64..5, 0u64..3, 0u64..3), 1..9), (along, last) in (0usize..9, 0usize..9), sample in 0u64..3,
        turns: bool, stored in prop::sample::select(stored_types()), swaps: bool, fills: bool, seed: u64,
    ) {
        let along = along.min(dims.len() - 1);
        let extent = |d: usize| dims[d].0 + dims[d].2;
        // All dimensions up to `last` are channels, of which one says by what they are normalized.
        let last = last.clamp(along, dims.len() - 1);
        let product = |from: usize, to: usize| (from..to).map(extent).product::<u64>();
        let (all, elements) = (product(0, last + 1), product(last + 1, dims.len()));
        let numbers = (0..extent(along)).map(|c| Normalize { mean: c as f64, std: 0.5 + c as f64 }).collect();
        let place = ChannelPlace { first: 0, all, elements };
        let channels = Channels::new(place, product(along + 1, last + 1), numbers);
        let normalize = Some(Normalization::Channels(channels));
        let conversion = Conversion::new(stored, None, None, normalize, None).unwrap();
        let element = &[1u8, 2, 3, 4, 5, 6, 7, 8][..stored.size_bytes()];
        let to = sample * (0..dims.len()).map(extent).product::<u64>();
        let result =
            both(&conversion, &dims, turns, (1, to), fills.then_some(element), swaps, scrambled(seed));
        assert_same(conversion.output(), true, &result, &format!("{conversion:?}"));
    }
}
