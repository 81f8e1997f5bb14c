//! The check of zstd frames, host and device part, against libzstd: no damaged frame passes, every valid one does. And what the host
//! makes of a chunk's headers, copied by the device part or while the chunk passes in pieces, is what it makes of the chunk.
//!
//! The device part runs on the host (`tests/kernels/zstd_test.cc`, `headers_test.cc`), compiled with sanitizers; without g++ there is no
//! test.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use zarr_dali::codec::headers::{LOOK_BACK, Pieces, copy_headers};
use zarr_dali::codec::work::{Verdict as Decision, Work};
use zarr_dali::codec::zstd::{Block, Verdict, blocks, check};
use zarr_dali::codec::{HeaderFormat, blosc};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, Strategy};

const MUTATIONS: usize = 100_000;

/// What a frame is refused for although libzstd takes it, as `src/codec/zstd/blocks.rs` lists it.
const STRICTER: [&str; 12] = [
    "asks for a window",
    "is larger than the window allows",
    "has more literals than it can regenerate",
    "has more sequences than it can regenerate",
    "a Huffman tree is not complete or too deep",
    "an FSE table has more codes than there are",
    "has no sequences, but says so at length",
    "has fewer literals than its Huffman streams need",
    "has a Huffman stream that does not end with a mark",
    "a Huffman stream: StreamError 1",
    "a Huffman stream: StreamError 8",
    "a block: StreamError 2",
];

const HUFFMAN: u32 = 0x100;

/// The device part, as programs that answer case by case.
struct Device {
    check: Program,
    headers: Program,
}

struct Program {
    child: Child,
    cases: ChildStdin,
    answers: ChildStdout,
}

impl Device {
    fn start() -> Option<Self> {
        Some(Self { check: Program::start("zstd_test")?, headers: Program::start("headers_test")? })
    }

    /// A `StreamError`, plus `HUFFMAN` if it came from the literals.
    fn check(&mut self, frame: &[u8], expected: usize, blocks: &[Block], alignment: u32) -> u32 {
        let header = [frame.len() as u32, expected as u32, blocks.len() as u32, alignment];
        // SAFETY: `Block` is `repr(C)`, without padding of the compiler's, and lives as long as `blocks`.
        let blocks = unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), size_of_val(blocks)) };
        let mut answer = [0; 4];
        self.check.ask(&header, &[frame, blocks], &mut answer);
        u32::from_le_bytes(answer)
    }

    /// The headers of a chunk, and the complement of every other byte.
    fn headers(&mut self, chunk: &[u8], expected: usize, format: HeaderFormat) -> Vec<u8> {
        let mut copied = vec![0; chunk.len()];
        self.headers.ask(&[chunk.len() as u32, expected as u32, format as u32], &[chunk], &mut copied);
        copied
    }
}

/// The headers of a chunk as they are copied while it passes, and the complement of every other byte. Also by how many bytes they looked back
/// behind the present piece, at most.
fn passing_headers(chunk: &[u8], expected: usize, format: HeaderFormat) -> (Vec<u8>, usize) {
    let mut copied: Vec<u8> = chunk.iter().map(|byte| !byte).collect();
    let mut passing = Passing { chunk, piece: 0, looked_back: 0 };
    copy_headers(format, expected as u64, &mut passing, &mut copied).unwrap_or_else(|never| match never {});
    (copied, passing.looked_back)
}

/// A chunk that passes in pieces of [`Passing::PIECE_BYTES`].
struct Passing<'a> {
    chunk: &'a [u8],
    /// Where the present piece begins.
    piece: usize,
    looked_back: usize,
}

impl Passing<'_> {
    const PIECE_BYTES: usize = 1000;
}

impl Pieces for Passing<'_> {
    type Error = Infallible;

    fn copy(&mut self, range: Range<usize>, to: &mut [u8]) -> Result<(), Infallible> {
        self.looked_back = self.looked_back.max(self.piece.saturating_sub(range.start));
        self.piece = self.piece.max((range.end - 1) / Self::PIECE_BYTES * Self::PIECE_BYTES);
        to[range.clone()].copy_from_slice(&self.chunk[range]);
        Ok(())
    }
}

impl Program {
    fn start(name: &'static str) -> Option<Self> {
        let mut child = Command::new(compiled(name)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was compiled");
        let (cases, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Some(Self { child, cases, answers })
    }

    fn ask(&mut self, header: &[u32], parts: &[&[u8]], answer: &mut [u8]) {
        header
            .iter()
            .try_for_each(|number| self.cases.write_all(&number.to_le_bytes()))
            .and_then(|()| parts.iter().try_for_each(|part| self.cases.write_all(part)))
            .and_then(|()| self.answers.read_exact(answer))
            .expect("a sanitizer stopped the program");
    }
}

/// `tests/kernels/<name>.cc` as a program, compiled once for all tests.
fn compiled(name: &'static str) -> Option<PathBuf> {
    static PROGRAMS: Mutex<BTreeMap<&str, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    PROGRAMS.lock().unwrap().entry(name).or_insert_with(|| compile(name)).clone()
}

fn compile(name: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = format!("tests/kernels/{name}.cc");
    let status = Command::new("g++")
        .args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-strict-aliasing"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(&source))
        .status()
        .ok()?;
    assert!(status.success(), "g++ does not compile {source}");
    Some(program)
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ value >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn content(kind: usize, bytes: usize, random: &mut Random) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "temperature ",
        "wind ",
        "of ",
        "the ",
        "pressure ",
        "level ",
        "at ",
        "850 ",
        "hPa ",
        "rain\n",
        "a ",
        "x",
    ];
    let mut content = Vec::with_capacity(bytes + 16);
    let mut walk = 1000i32;
    while content.len() < bytes {
        let at = content.len();
        match kind {
            0 => content.extend(WORDS[random.below(WORDS.len())].bytes()),
            1 => content.extend((280.0 + (at as f32 / 900.0).sin() * 15.0).to_le_bytes()),
            // Quantised, as packed fields are.
            2 => {
                walk += random.below(41) as i32 - 20;
                content.extend((250.0 + walk as f32 * 0.001_953_125).to_le_bytes());
            }
            3 => content.extend(((at / 2 * 3) as i16).to_le_bytes()),
            4 => content.extend(random.next().to_le_bytes()),
            5 => content.push(7),
            // Codes of very different lengths.
            6 => content.push((random.next().trailing_zeros() * 3) as u8),
            7 if random.below(60) == 0 => content.extend(random.next().to_le_bytes()),
            7 => content.extend([0; 16]),
            8 => {
                walk += random.below(7) as i32 - 3;
                content.push(walk as u8);
            }
            // Copies from all over.
            9 if at > 100 && random.below(4) > 0 => {
                let from = random.below(at - 40);
                content.extend_from_within(from..from + 3 + random.below(36));
            }
            9 => content.push(random.next() as u8),
            _ => content.extend(((at / 40 % 50) as u16 * 257).to_be_bytes()),
        }
    }
    content.truncate(bytes);
    content
}

const KINDS: usize = 11;

/// One frame, made by one of libzstd's ways.
fn frame(content: &[u8], random: &mut Random) -> Vec<u8> {
    const STRATEGIES: [Strategy; 4] =
        [Strategy::ZSTD_fast, Strategy::ZSTD_lazy, Strategy::ZSTD_btopt, Strategy::ZSTD_btultra2];
    let large = content.len() > 500_000;
    let level = random.below(if large { 12 } else { 28 }) as i32 - 5;
    let parameters = [
        CParameter::CompressionLevel(level),
        CParameter::ContentSizeFlag(random.below(2) == 0),
        CParameter::WindowLog(10 + random.below(12) as u32),
        CParameter::MinMatch(3 + random.below(5) as u32),
        CParameter::Strategy(STRATEGIES[random.below(STRATEGIES.len())]),
        CParameter::EnableLongDistanceMatching(true),
        CParameter::TargetLength(random.below(200) as u32),
    ];
    let mut chosen = vec![parameters[0], parameters[1]];
    for &parameter in &parameters[2..] {
        if random.below(4) == 0 && !(large && matches!(parameter, CParameter::Strategy(_))) {
            chosen.push(parameter);
        }
    }
    if random.below(3) > 0 {
        let mut compressor = Compressor::new(level).unwrap();
        chosen.iter().for_each(|&parameter| compressor.set_parameter(parameter).unwrap());
        return compressor.compress(content).unwrap();
    }
    // Flushed in between, for many blocks that take over tables from each other.
    let mut encoder = zstd::Encoder::new(Vec::new(), level).unwrap();
    chosen.iter().for_each(|&parameter| encoder.set_parameter(parameter).unwrap());
    let mut rest = content;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(1 + random.below(2 + content.len() / 3)));
        encoder.write_all(part).unwrap();
        encoder.flush().unwrap();
        rest = after;
    }
    encoder.finish().unwrap()
}

/// What the GPU has to do with a chunk that is a frame.
fn frame_work(frame: &[u8], expected: usize) -> (Result<Decision, String>, Work) {
    let mut work = Work::default();
    (work.add_zstd_frame(frame, 0, 0..expected as u64), work)
}

/// Host and device part.
fn accept(device: &mut Device, frame: &[u8], expected: usize, alignment: u32) -> Result<bool, String> {
    let (passing, looked_back) = passing_headers(frame, expected, HeaderFormat::Zstd);
    for headers in [device.headers(frame, expected, HeaderFormat::Zstd), passing] {
        assert!(
            frame_work(&headers, expected) == frame_work(frame, expected),
            "by the headers it is another frame"
        );
    }
    if matches!(check(frame, expected as u64)?, Verdict::Cpu(_)) {
        return Ok(false);
    }
    match device.check(frame, expected, &blocks(frame, expected as u64)?, alignment) {
        0 => {
            assert!(looked_back <= LOOK_BACK, "by {looked_back} bytes");
            Ok(true)
        }
        error @ ..HUFFMAN => Err(format!("a block: StreamError {error}")),
        error => Err(format!("a Huffman stream: StreamError {}", error - HUFFMAN)),
    }
}

fn sizes(random: &mut Random, number: usize) -> usize {
    match number % 40 {
        0 => 400_000 + random.below(4_000_000),
        1..4 => 100_000 + random.below(300_000),
        4..12 => 5_000 + random.below(60_000),
        12..34 => 200 + random.below(5_000),
        _ => 1 + random.below(200),
    }
}

#[test]
fn valid_frames_pass() {
    let Some(mut device) = Device::start() else { return };
    let mut random = Random(1);
    let mut on_cpu = 0;
    for number in 0..1_200 {
        let bytes = sizes(&mut random, number);
        let content = content(number / 40 % KINDS, bytes, &mut random);
        let frame = frame(&content, &mut random);
        for expected in [bytes - 1, bytes, bytes + 1] {
            let accepted = accept(&mut device, &frame, expected, number as u32 % 8);
            if expected != bytes {
                assert!(!matches!(accepted, Ok(true)), "{expected} of {bytes} bytes");
            } else if !accepted.expect("valid") {
                on_cpu += 1;
            }
        }
    }
    // Many tiny blocks, from flushing.
    assert!(on_cpu < 60, "{on_cpu} frames are left to the CPU");
}

#[test]
fn every_level_passes() {
    let Some(mut device) = Device::start() else { return };
    let mut random = Random(2);
    for level in -7..=22 {
        for kind in 0..KINDS {
            for (bytes, checksum) in [(3, false), (1000, true), (300_000, false)] {
                let content = content(kind, bytes, &mut random);
                let mut compressor = Compressor::new(level).unwrap();
                compressor.include_checksum(checksum).unwrap();
                let frame = compressor.compress(&content).unwrap();
                let accepted = accept(&mut device, &frame, bytes, 0);
                // From level 16 on, blocks are split often enough to be left to the CPU.
                assert!(
                    accepted == Ok(true) || accepted == Ok(false) && level > 15,
                    "level {level}, kind {kind}"
                );
            }
        }
    }
}

/// Damages a frame behind its header, in one to three places.
fn mutate(frame: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(6) / 3 {
        let at = 5 + random.below(frame.len() - 5);
        match random.below(9) {
            0..4 => frame[at] ^= 1 << random.below(8),
            4 => frame[at] = random.next() as u8,
            5 => frame[at] = frame[at].wrapping_add(1),
            6 => {
                let from = 5 + random.below(frame.len() - 5);
                frame[at] = frame[from];
            }
            // Near the start, where tables are.
            7 => {
                let near = at.min(12 + random.below(80)).min(frame.len() - 1);
                frame[near] ^= 1 << random.below(8);
            }
            _ => {
                let end = frame.len().min(at + 1 + random.below(16));
                frame[at..end].reverse();
            }
        }
    }
}

#[test]
fn damaged_frames_do_not_pass() {
    let Some(mut device) = Device::start() else { return };
    let mut random = Random(3);
    let mut decoder = Decompressor::new().unwrap();
    let (mut accepted, mut by_device, mut stricter) = (0, 0, BTreeMap::<String, usize>::new());
    let mut done = 0;
    for number in 0.. {
        if done >= MUTATIONS {
            break;
        }
        let bytes = sizes(&mut random, number);
        let content = content(random.below(KINDS), bytes, &mut random);
        let frame = frame(&content, &mut random);
        let mut decoded = vec![0; bytes + 64];
        for _ in 0..(1_000_000 / bytes).clamp(5, 200) {
            let mut damaged = frame.clone();
            mutate(&mut damaged, &mut random);
            done += 1;
            let expected = bytes + [0, 0, 0, 0, 1, 5][random.below(6)];
            let decodes = matches!(decoder.decompress_to_buffer(&damaged, &mut decoded[..expected]),
                Ok(found) if found == expected);
            match accept(&mut device, &damaged, expected, random.below(8) as u32) {
                Ok(true) => {
                    accepted += 1;
                    assert!(decodes, "frame {number}: libzstd does not decode it");
                }
                Ok(false) => {}
                Err(problem) => {
                    by_device += usize::from(problem.contains("StreamError"));
                    if decodes {
                        *stricter.entry(problem).or_default() += 1;
                    }
                }
            }
        }
    }
    println!("{done} mutations: {accepted} accepted, {by_device} refused by the device");
    for (problem, count) in &stricter {
        println!("{count} that libzstd decodes: {problem}");
        assert!(STRICTER.iter().any(|kind| problem.contains(kind)), "{problem}");
    }
}

/// Appends a block of `literals` raw literals and up to 6 sequences that all have the same codes, with random extra bits;
/// returns how many bytes it regenerates.
fn push_block(frame: &mut Vec<u8>, last: bool, random: &mut Random) -> usize {
    // Code, baseline, extra bits.
    let (literal, literal_base, literal_bits) =
        [(0, 0, 0), (0, 0, 0), (1, 1, 0), (2, 2, 0), (16, 16, 1)][random.below(5)];
    let (matched, match_base, match_bits) = [(0, 3, 0), (2, 5, 0), (32, 35, 1)][random.below(3)];
    let offset = [0, 1, 1, 1, 1, 2, 3][random.below(7)];
    let sequences = 1 + random.below(6);
    // In the order of reading, the highest bit of each field first.
    let (mut bits, mut literals, mut bytes) = (vec![true], 0, 0);
    for _ in 0..sequences {
        let mut field = |count: usize| {
            let value = random.below(1 << count);
            bits.extend((0..count).rev().map(|bit| value >> bit & 1 == 1));
            value
        };
        field(offset);
        bytes += match_base + field(match_bits);
        literals += literal_base + field(literal_bits);
    }
    // Now and then one too few.
    literals = (literals + random.below(4)).saturating_sub(random.below(30) / 29).min(31);
    bits.reverse();
    let mut block = vec![(literals << 3) as u8];
    block.extend((0..literals).map(|_| random.next() as u8));
    block.extend([sequences as u8, 0b0101_0100, literal, offset as u8, matched]);
    block
        .extend(bits.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit))));
    frame.extend(&((block.len() as u32) << 3 | 2 << 1 | u32::from(last)).to_le_bytes()[..3]);
    frame.extend(block);
    bytes + literals
}

/// Repeat offsets pass from block to block, which no damage to an encoder's frame shows well.
#[test]
fn repeat_offsets_are_those_of_libzstd() {
    let Some(mut device) = Device::start() else { return };
    let mut random = Random(4);
    let mut decoder = Decompressor::new().unwrap();
    let mut decoded = vec![0; 1 << 16];
    let mut agreed = [0; 2];
    for _ in 0..200_000 {
        let raw = random.below(16);
        let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58, (raw << 3) as u8, 0, 0];
        frame.extend((0..raw).map(|_| random.next() as u8));
        let mut expected = raw;
        let count = 1 + random.below(5);
        for number in 1..=count {
            expected += push_block(&mut frame, number == count, &mut random);
        }
        let decodes = matches!(decoder.decompress_to_buffer(&frame, &mut decoded[..expected]),
            Ok(found) if found == expected);
        let accepted = accept(&mut device, &frame, expected, 0);
        assert_eq!(accepted == Ok(true), decodes, "{accepted:?}: {frame:02x?}");
        agreed[usize::from(decodes)] += 1;
    }
    assert!(agreed.iter().all(|&count| count > 20_000), "{agreed:?} valid or not");
}

/// A container of what Blosc makes of `content`.
fn container(content: &[u8], random: &mut Random) -> Vec<u8> {
    const CODECS: [&std::ffi::CStr; 4] = [c"zstd", c"lz4", c"blosclz", c"zlib"];
    let mut encoded = vec![0; content.len() + 16];
    // SAFETY: both pointers are those of slices with these lengths; the name ends with a zero byte.
    let bytes = unsafe {
        blosc_src::blosc_compress_ctx(
            random.below(10) as i32,
            random.below(3) as i32,
            [1, 2, 4, 8, 3, 20][random.below(6)],
            content.len(),
            content.as_ptr().cast(),
            encoded.as_mut_ptr().cast(),
            encoded.len(),
            CODECS[random.below(CODECS.len())].as_ptr(),
            [0, 0, 1 << 12, 1 << 15][random.below(4)],
            1,
        )
    };
    encoded.truncate(usize::try_from(bytes).unwrap());
    encoded
}

/// A container with its blocks in the opposite order: they may have any, and threads that compress leave them in that in which they are done.
fn backwards(container: &[u8]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(*container[at..].first_chunk().unwrap()) as usize;
    let is_copied = container[2] & 2 > 0;
    let count = if is_copied { 0 } else { word(4).div_ceil(word(8)) };
    let starts: Vec<usize> = (0..count).map(|block| word(16 + 4 * block)).chain([container.len()]).collect();
    let mut result = container[..starts[0]].to_vec();
    for block in (0..count).rev() {
        let at = result.len() as u32;
        result[16 + 4 * block..][..4].copy_from_slice(&at.to_le_bytes());
        result.extend(&container[starts[block]..starts[block + 1]]);
    }
    result
}

#[test]
fn a_container_is_planned_by_its_headers() {
    let Some(mut device) = Device::start() else { return };
    let mut random = Random(5);
    let planned = |container: &[u8], expected: usize| {
        let mut work = Work::default();
        (blosc::work(container, expected as u64, &mut work), work)
    };
    let (mut whole, mut damaged) = ([0; 3], [0; 3]);
    for number in 0..2_000 {
        let bytes = sizes(&mut random, number);
        let content = content(random.below(KINDS), bytes, &mut random);
        let container = container(&content, &mut random);
        for turn in 0..11 {
            let mut changed = if turn == 1 { backwards(&container) } else { container.clone() };
            if turn > 1 {
                mutate(&mut changed, &mut random);
            }
            let (passing, looked_back) = passing_headers(&changed, bytes, HeaderFormat::Blosc);
            let (decision, work) = planned(&changed, bytes);
            for headers in [device.headers(&changed, bytes, HeaderFormat::Blosc), passing] {
                let by_headers = planned(&headers, bytes);
                assert!(
                    by_headers.0 == decision && by_headers.1 == work,
                    "{number}, {turn}: {decision:?}, not {:?}",
                    by_headers.0
                );
            }
            assert!(turn > 1 || looked_back <= LOOK_BACK, "{number}, {turn}: by {looked_back} bytes");
            let counts = if turn > 1 { &mut damaged } else { &mut whole };
            counts[match decision {
                Ok(Decision::Gpu) => 0,
                Ok(Decision::Cpu(_)) => 1,
                Err(_) => 2,
            }] += 1;
        }
    }
    println!("whole {whole:?}, damaged {damaged:?}: GPU, CPU, refused");
    assert!(whole[0] > 3_600 && whole[2] == 0 && damaged.iter().all(|&count| count > 20));
}
