//! Boxes of elements as work for the gather kernel (`src/kernels/gather.cu` and `convert.cuh`, which this file mirrors).

use super::Conversion;
use super::channels::Channels;
use super::conversion::Register;
use super::step::{Code, MAX_STEPS, Normalise, Rounds, Step};
use crate::dataset::{ElementType, StoredType};
use crate::plan::CopyBox;

/// Dimensions that the kernel handles; boxes with more are cut along their outermost ones.
const MAX_DIMENSIONS: usize = 6;
/// Granules that one block of threads takes.
const GRANULES_PER_TILE: u64 = 2048;
/// Widest access of a thread, in bytes.
const MAX_GRANULE_BYTES: u64 = 16;
/// Largest read chunk that regions can address: granules are counted in 32 bits, with room for a last tile.
pub const MAX_CHUNK_BYTES: u64 = 1 << 31;

/// One box for the kernel. Field for field the `Region` of `gather.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Region {
    from: u64,
    to: u64,
    /// The fill element, repeated to 8 bytes; of elements that are converted, the number of the conversion.
    fill: u64,
    first_tile: u64,
    from_strides: [u64; MAX_DIMENSIONS],
    to_strides: [u64; MAX_DIMENSIONS - 1],
    extents: [u32; MAX_DIMENSIONS],
    granules: u32,
    dimensions: u8,
    granule_bytes: u8,
    swap_bytes: u8,
    converted_bytes: u8,
    /// The channel of the first element, of elements that are normalised by channel.
    channel: u32,
    /// The dimension along which channels follow one another, or [`NO_DIMENSION`].
    channel_dimension: u8,
    reserved: [u8; 3],
}

/// No dimension of a region.
const NO_DIMENSION: u8 = u8::MAX;

/// A conversion for the kernel. Field for field the `Conversion` of `convert.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConversionOnDevice {
    steps: [Step; MAX_STEPS],
    step_count: u32,
    load: u8,
    store: u8,
    register: u8,
    /// What results of the normalisation by channel are rounded to.
    rounds: u8,
    /// Bytes from here to the [`ChannelOnDevice`]s, 0: there are none.
    channels: u64,
    /// The element that regions without a source are made of, where channels make it differ.
    fill: u64,
    table: [f32; 256],
}

/// What a channel is normalised by. Field for field the `Channel` of `convert.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChannelOnDevice {
    mean: f64,
    std: f64,
}

const _: () = assert!(size_of::<Region>() == 160 && align_of::<Region>() == 8);
const _: () = assert!(size_of::<Step>() == 16 && size_of::<ConversionOnDevice>() == 1432);
const _: () = assert!(size_of::<ChannelOnDevice>() == 16);

/// A conversion that regions name, with the fill element that is converted by channel.
#[derive(Debug, PartialEq)]
struct Known {
    conversion: Conversion,
    fill: u64,
}

impl ConversionOnDevice {
    fn new(Known { conversion, fill }: &Known, channels: u64) -> Self {
        let mut steps = [Step::new(Code::Round, 0.0); MAX_STEPS];
        let used = conversion.steps();
        steps[..used.len()].copy_from_slice(used);
        Self {
            steps,
            step_count: used.len() as u32,
            load: match conversion.loads() {
                StoredType::Element(element) => element as u8,
                StoredType::BFloat16 => ElementType::ALL.len() as u8,
                StoredType::Byte(_) => ElementType::ALL.len() as u8 + 1,
            },
            store: conversion.output() as u8,
            register: match conversion.register() {
                Register::Signed => 0,
                Register::Unsigned => 1,
                Register::Single => 2,
                Register::Double | Register::None => 3,
            },
            rounds: conversion.channels().map_or(Rounds::Register, Channels::rounds) as u8,
            channels,
            fill: *fill,
            table: match conversion.loads() {
                StoredType::Byte(format) => *format.table(),
                _ => [0.0; 256],
            },
        }
    }
}

/// What the boxes of a read chunk are filled from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A decoded read chunk at this address of the device, its bytes to be swapped or not.
    Decoded {
        /// Address of its first element.
        address: u64,
        /// Elements are in the other byte order.
        swaps_bytes: bool,
    },
    /// The array's fill value, one element in native byte order.
    Fill(&'a [u8]),
}

/// The regions of one launch.
#[derive(Debug, Default)]
pub struct Regions {
    list: Vec<Region>,
    tiles: u64,
    known: Vec<Known>,
}

/// Where the elements of a box come from and go to, the same for all boxes of a read chunk.
struct Elements {
    /// Address of the chunk, 0 for the fill value.
    from: u64,
    from_bytes: u64,
    /// Address of the output.
    to: u64,
    to_bytes: u64,
    fill: u64,
    swaps_bytes: bool,
    converts: bool,
    /// The channels that elements are normalised by.
    channels: Option<Channels>,
}

impl Regions {
    /// The regions for the kernel.
    pub fn list(&self) -> &[Region] {
        &self.list
    }

    /// The conversions that the regions name, and behind them their channels; the kernel expects them right behind the
    /// regions.
    pub fn conversions(&self) -> (Vec<ConversionOnDevice>, Vec<ChannelOnDevice>) {
        let (mut conversions, mut channels) = (vec![], vec![]);
        for (number, known) in self.known.iter().enumerate() {
            let numbers = known.conversion.channels().map_or(&[][..], Channels::numbers);
            let conversions_between = (self.known.len() - number) * size_of::<ConversionOnDevice>();
            let bytes = conversions_between + channels.len() * size_of::<ChannelOnDevice>();
            let offset = if numbers.is_empty() { 0 } else { bytes as u64 };
            conversions.push(ConversionOnDevice::new(known, offset));
            channels.extend(numbers.iter().map(|&Normalise { mean, std }| ChannelOnDevice { mean, std }));
        }
        (conversions, channels)
    }

    /// How many blocks of threads the launch needs.
    pub fn tiles(&self) -> u64 {
        self.tiles
    }

    /// Size of the regions that boxes become, without the conversion that boxes with converted elements share.
    pub fn bytes(boxes: &[CopyBox], conversion: &Conversion) -> u64 {
        let regions = |piece: &CopyBox| piece.extents[..cut(piece)].iter().product::<u64>();
        let count = |piece: &CopyBox| match conversion.channels() {
            None => regions(piece),
            Some(channels) => regions(&channels.apart(piece).0),
        };
        boxes.iter().map(count).sum::<u64>() * size_of::<Region>() as u64
    }

    /// Size of a conversion on the device; 0 if it only copies.
    pub fn conversion_bytes(conversion: &Conversion) -> u64 {
        let channels = conversion.channels().map_or(0, Channels::len) * size_of::<ChannelOnDevice>();
        if conversion.is_copy() { 0 } else { (size_of::<ConversionOnDevice>() + channels) as u64 }
    }

    /// Adds the boxes of one read chunk, whose elements go to the output that starts at `output`.
    pub fn add(&mut self, source: Source<'_>, boxes: &[CopyBox], conversion: &Conversion, output: u64) {
        let to_bytes = conversion.output().size_bytes() as u64;
        let from_bytes = conversion.stored_bytes() as u64;
        let mut elements = Elements {
            from: 0,
            from_bytes,
            to: output,
            to_bytes,
            fill: 0,
            swaps_bytes: false,
            converts: false,
            channels: None,
        };
        match source {
            Source::Fill(logical) => match conversion.fill(logical) {
                Some(fill) => elements.fill = repeated(&fill),
                None => {
                    let of_fill = conversion.of_fill();
                    (elements.from_bytes, elements.converts) = (of_fill.stored_bytes() as u64, true);
                    elements.fill = self.number(of_fill, repeated(logical));
                }
            },
            Source::Decoded { address, swaps_bytes } => {
                (elements.from, elements.swaps_bytes) = (address, swaps_bytes);
                if !conversion.is_copy() {
                    elements.converts = true;
                    elements.fill = self.number(conversion, 0);
                }
            }
        }
        elements.channels = conversion.channels().cloned();
        for piece in boxes {
            let apart = elements.channels.as_ref().map(|channels| channels.apart(piece).0);
            let piece = apart.as_ref().unwrap_or(piece);
            let cut = cut(piece);
            if cut == 0 {
                self.push(&elements, piece);
                continue;
            }
            for (from, to) in outer(piece, cut).rows() {
                let inner = CopyBox {
                    from,
                    to,
                    extents: piece.extents[cut..].into(),
                    from_strides: piece.from_strides[cut..].into(),
                    to_strides: piece.to_strides[cut..].into(),
                };
                self.push(&elements, &inner);
            }
        }
    }

    /// The number of a conversion among the conversions of the launch.
    fn number(&mut self, conversion: &Conversion, fill: u64) -> u64 {
        let same = |known: &Known| known.fill == fill && known.conversion == *conversion;
        self.known.iter().position(same).unwrap_or_else(|| {
            self.known.push(Known { conversion: conversion.clone(), fill });
            self.known.len() - 1
        }) as u64
    }

    fn push(&mut self, elements: &Elements, piece: &CopyBox) {
        let last = piece.extents.len() - 1;
        let fills = elements.from == 0;
        let to = elements.to + piece.to * elements.to_bytes;
        let from = if fills { 0 } else { elements.from + piece.from * elements.from_bytes };
        let (granule, per_granule) = if elements.converts || (!fills && piece.row_step() != 1) {
            (elements.from_bytes, 1)
        } else {
            // Everything that an access is added up from; the granule has to divide it all.
            let mut alignment = MAX_GRANULE_BYTES | to | from | (piece.extents[last] * elements.to_bytes);
            for d in 0..last {
                alignment |= piece.to_strides[d] * elements.to_bytes;
                if !fills {
                    alignment |= piece.from_strides[d] * elements.from_bytes;
                }
            }
            let granule = 1 << alignment.trailing_zeros();
            debug_assert!(granule >= elements.to_bytes, "memory is not aligned to its elements");
            (granule, granule / elements.to_bytes)
        };

        let mut region = Region {
            from,
            to,
            fill: elements.fill,
            first_tile: self.tiles,
            from_strides: [0; MAX_DIMENSIONS],
            to_strides: [0; MAX_DIMENSIONS - 1],
            extents: [1; MAX_DIMENSIONS],
            granules: 0,
            dimensions: piece.extents.len() as u8,
            granule_bytes: granule as u8,
            swap_bytes: if elements.swaps_bytes { elements.from_bytes as u8 } else { 0 },
            converted_bytes: if elements.converts { elements.to_bytes as u8 } else { 0 },
            channel: 0,
            channel_dimension: NO_DIMENSION,
            reserved: [0; 3],
        };
        if let Some(channels) = &elements.channels {
            // The channels of a box that has them apart are a dimension of it, or it has one.
            let (_, dimension, channel) = channels.apart(piece);
            region.channel = channel;
            region.channel_dimension = dimension.map_or(NO_DIMENSION, |dimension| dimension as u8);
        }
        let mut granules = 1;
        for d in 0..=last {
            let per_granule = if d == last { per_granule } else { 1 };
            let extent = piece.extents[d] / per_granule;
            granules *= extent;
            region.extents[d] = extent as u32;
            if !fills {
                region.from_strides[d] = piece.from_strides[d] * per_granule * elements.from_bytes;
            }
            if d < last {
                region.to_strides[d] = piece.to_strides[d] * elements.to_bytes;
            }
        }
        debug_assert!(granules <= MAX_CHUNK_BYTES);
        region.granules = granules as u32;
        self.tiles += granules.div_ceil(GRANULES_PER_TILE);
        self.list.push(region);
    }
}

/// How many of a box's outermost dimensions are too many for the kernel.
fn cut(piece: &CopyBox) -> usize {
    piece.extents.len().saturating_sub(MAX_DIMENSIONS)
}

/// The `cut` outermost dimensions of a box and one more, of extent 1: each row of the result is a region.
fn outer(piece: &CopyBox, cut: usize) -> CopyBox {
    let with_one = |list: &[u64]| list[..cut].iter().copied().chain([1]).collect();
    CopyBox {
        extents: with_one(&piece.extents),
        from_strides: with_one(&piece.from_strides),
        to_strides: with_one(&piece.to_strides),
        ..*piece
    }
}

/// A fill element repeated to 8 bytes.
fn repeated(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.chunks_exact_mut(element.len()).for_each(|place| place.copy_from_slice(element));
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assemble::conversion::Normalisation;
    use crate::assemble::{OutputMemory, host};
    use crate::dataset::{ByteFormat, Cf, FixedScaleOffset};
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
        let words =
            |len: u64, offset: u64, size: usize| ((len + offset) * size as u64).div_ceil(16) as usize + 1;
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
        let output =
            OutputMemory { address: expected.as_mut_ptr() as u64, bytes: expected.len() as u64 * 16 };
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
        let numbers = |count| (0..count).map(|c| Normalise { mean: 3.3 + f64::from(c), std: 1.7 }).collect();
        let normalises = [
            None,
            Some(Normalise { mean: 3.3, std: 1.7 }.into()),
            Some(Normalisation::Channels(Channels::new(place(0, 4, 702), 1, numbers(4)))),
            Some(Normalisation::Channels(Channels::new(place(0, 702, 1), 1, numbers(702)))),
        ];
        let dtypes = ElementType::ALL.map(|(element, ..)| Some(element));
        let dims = vec![(3, 2, 1), (700, 1, 2)];
        for stored in stored_types() {
            for cf in cfs(stored.widened()) {
                for normalise in &normalises {
                    for dtype in dtypes {
                        let conversion =
                            Conversion::new(stored, None, cf.as_ref(), normalise.clone(), dtype).unwrap();
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
        fn the_kernel_normalises_channels_as_the_host_does(
            dims in prop::collection::vec((1u64..5, 0u64..3, 0u64..3), 1..9), (along, last) in (0usize..9, 0usize..9), sample in 0u64..3,
            turns: bool, stored in prop::sample::select(stored_types()), swaps: bool, fills: bool, seed: u64,
        ) {
            let along = along.min(dims.len() - 1);
            let extent = |d: usize| dims[d].0 + dims[d].2;
            // All dimensions up to `last` are channels, of which one says by what they are normalised.
            let last = last.clamp(along, dims.len() - 1);
            let product = |from: usize, to: usize| (from..to).map(extent).product::<u64>();
            let (all, elements) = (product(0, last + 1), product(last + 1, dims.len()));
            let numbers = (0..extent(along)).map(|c| Normalise { mean: c as f64, std: 0.5 + c as f64 }).collect();
            let place = ChannelPlace { first: 0, all, elements };
            let channels = Channels::new(place, product(along + 1, last + 1), numbers);
            let normalise = Some(Normalisation::Channels(channels));
            let conversion = Conversion::new(stored, None, None, normalise, None).unwrap();
            let element = &[1u8, 2, 3, 4, 5, 6, 7, 8][..stored.size_bytes()];
            let to = sample * (0..dims.len()).map(extent).product::<u64>();
            let result =
                both(&conversion, &dims, turns, (1, to), fills.then_some(element), swaps, scrambled(seed));
            assert_same(conversion.output(), true, &result, &format!("{conversion:?}"));
        }
    }
}
