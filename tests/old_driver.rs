//! Drivers of CUDA 12: a stub in the place of libcuda answers for one release and has no function that came after CUDA 12.0.
//! What the GPU backend asks of a driver is done with it, in a process of its own. Without gcc there is no test.

#[path = "common/driver.rs"]
mod driver;

use std::fs;
use std::process::Command;
use std::sync::Arc;

use zarr_dali::gpu::{DeviceMemory, Gpu, GreenContext, Kernels, PinnedMemory};

/// The driver's functions for a partition of the multiprocessors, which came with CUDA 12.4 and 12.5.
const LATER: [&str; 2] = ["cuGreenCtx", "DevResource"];

/// Runs [`uses_the_driver`] with a stub for a release and a compute capability: what it printed, and what the stub was asked.
fn with_stub(release: u32, capability: u32) -> Option<(String, Vec<String>)> {
    with_stub_and(release, capability, "")
}

/// As [`with_stub`], with a value of `ZARR_DALI_KERNELS`.
fn with_stub_and(release: u32, capability: u32, kernels: &str) -> Option<(String, Vec<String>)> {
    let folder = driver::stub(release, capability)?;
    let log = folder.path().join("log");
    let set = |command: &mut Command| {
        command.env("STUB_LOG", &log).env("ZARR_DALI_KERNELS", kernels);
    };
    let printed = driver::run(&folder, "uses_the_driver", set);
    let asked = fs::read_to_string(&log).unwrap_or_default();
    Some((printed, asked.lines().map(str::to_owned).collect()))
}

#[test]
#[ignore = "run by the others, with a stub of the driver"]
fn uses_the_driver() {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return println!("refused: {error}"),
    };
    gpu.bind().expect("bind");
    assert_eq!(gpu.free_bytes().expect("memory"), 3 << 30);
    let kernels = match Kernels::load(&gpu) {
        Ok(kernels) => kernels,
        Err(error) => return println!("refused: {error}"),
    };
    let stream = gpu.stream().expect("a stream");
    let memory = DeviceMemory::new(&gpu, 1 << 20).expect("device memory");
    drop(PinnedMemory::new(&gpu, 1 << 20).expect("pinned memory"));
    for event in [gpu.event().expect("an event"), gpu.quiet_event().expect("an event")] {
        event.record(&stream).expect("record");
        stream.wait(&event).expect("wait");
        event.synchronize().expect("synchronize");
    }
    // SAFETY: nothing runs on the stub, which only notes the launch.
    unsafe { kernels.gather(&stream, memory.address(), 1, 1) }.expect("a launch");
    stream.synchronize().expect("synchronize");
    assert!(GreenContext::of(&Arc::clone(&gpu)).is_none());
    println!("worked");
}

#[test]
fn a_driver_of_cuda_12_is_used_with_what_it_has() {
    for (capability, image) in [
        (70, "sm_70"),
        (75, "sm_75"),
        (80, "sm_80"),
        (87, "sm_86"),
        (89, "sm_89"),
        (90, "sm_90"),
        (100, "ptx"),
        (120, "ptx"),
    ] {
        let Some((printed, asked)) = with_stub(12_020, capability) else { return };
        assert!(printed.contains("worked"), "{printed}");
        assert!(printed.contains("for CUDA 12.2, has no green contexts"), "{printed}");
        assert_eq!(asked.first().map(String::as_str), Some("cuDriverGetVersion"), "before anything else");
        assert!(asked.contains(&format!("image {image}")), "capability {capability}: {asked:?}");
        assert!(asked.contains(&"cuLaunchKernel".into()));
        assert!(!asked.iter().any(|name| LATER.iter().any(|later| name.contains(later))));
    }
}

#[test]
fn a_driver_of_cuda_13_gets_the_kernels_of_cuda_13() {
    let Some((printed, asked)) = with_stub(13_000, 90) else { return };
    assert!(printed.contains("worked"), "{printed}");
    assert!(asked.contains(&"image fatbin".into()), "{asked:?}");
    let Some((_, asked)) = with_stub_and(13_000, 90, "12") else { return };
    assert!(asked.contains(&"image sm_90".into()), "{asked:?}");
}

#[test]
fn older_drivers_and_gpus_are_named() {
    let Some((printed, asked)) = with_stub(11_080, 80) else { return };
    assert!(
        printed.contains("the driver is for CUDA 11.8, older than 12.0; install an NVIDIA driver"),
        "{printed}"
    );
    assert_eq!(asked, ["cuDriverGetVersion"]);
    let Some((printed, _)) = with_stub(12_020, 61) else { return };
    assert!(printed.contains("compute capability 6.1, older than 7.0"), "{printed}");
}
