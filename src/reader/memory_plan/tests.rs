use super::*;

use proptest::prelude::*;

/// Numbers of a reader of either backend.
#[derive(Clone, Debug)]
struct Case {
    batch_bytes: u64,
    least_depth: u64,
    cache_bytes: u64,
    threads: (u64, u64),
    host: HostBudget,
    overhead: Overhead,
    /// Reusable bytes for each batch in flight.
    reusable_bytes: u64,
    all_chunk_bytes: u64,
    gpu: GpuNeeds,
    chunks: BatchChunks,
    device: DeviceBudget,
}

impl Case {
    fn needs(&self) -> Needs<'_> {
        Needs {
            batch_bytes: self.batch_bytes,
            least_depth: self.least_depth,
            cache_bytes: self.cache_bytes,
            io_threads: self.threads.0,
            decode_threads: self.threads.1,
            host: self.host,
            overhead: self.overhead,
            largest_chunk: Some(LargestChunk { bytes: 1000, array: "array \"a\"".into() }),
            reusable_bytes: Box::new(|depth| (depth * self.reusable_bytes).min(self.all_chunk_bytes)),
            all_chunk_bytes: self.all_chunk_bytes,
        }
    }

    fn on_cpu(&self) -> Result<MemoryPlan> {
        let needs = self.needs();
        HostShare::on_cpu(&needs).map(|host| MemoryPlan::on_cpu(&needs, host))
    }

    fn on_gpu(&self) -> Result<(MemoryPlan, GpuMemoryPlan)> {
        let needs = self.needs();
        let host = HostShare::on_gpu(&needs, &self.gpu)?;
        MemoryPlan::on_gpu(&needs, &self.gpu, host, self.device, || self.chunks.clone())
    }

    /// The same with budgets that are exactly these.
    fn with_budgets(&self, host_bytes: u64, device_bytes: u64) -> Self {
        Self {
            host: HostBudget { bytes: host_bytes, most_bytes: host_bytes },
            device: DeviceBudget { bytes: device_bytes, most_bytes: device_bytes },
            ..self.clone()
        }
    }

    /// The same without anything that later batches can use.
    fn without_reuse(&self) -> Self {
        Self { cache_bytes: 0, reusable_bytes: 0, ..self.clone() }
    }

    /// Host memory beside outputs, pinned memory and cached chunks that counts.
    fn overhead_bytes(&self, threads: usize, depth: u64) -> u64 {
        let Overhead { scratch_bytes, planning_bytes, planned_bytes, order_bytes, index_bytes } =
            self.overhead;
        let all = scratch_bytes * threads as u64 + planned_bytes * depth;
        (all + planning_bytes + order_bytes + index_bytes).saturating_sub(64 << 20)
    }
}

/// Numbers of bytes of all magnitudes up to `1 << bits`.
fn bytes(bits: u32) -> impl Strategy<Value = u64> {
    (0..=bits).prop_flat_map(|bits| 0..=1u64 << bits)
}

fn cases() -> impl Strategy<Value = Case> {
    let overhead = (0u64..100_000, bytes(28), bytes(28), bytes(24))
        .prop_map(|(chunks, scratch, order, index)| Overhead::new(chunks, scratch, order, index));
    let kind = (any::<bool>(), any::<bool>());
    let part = (1u64..1 << 26, 1u64..1 << 24, 1u64..1 << 24, kind, bytes(12), bytes(12));
    let gpu =
        (prop::collection::vec(part, 1..4), bytes(25), any::<bool>()).prop_map(|(parts, pinned, cufile)| {
            let needs = parts.iter().map(
                |&(unit_bytes, upload_bytes, chunk_bytes, (gpu_decodes, is_sequential), ..)| PartNeeds {
                    unit_bytes,
                    upload_bytes,
                    chunk_bytes,
                    gpu_decodes,
                    is_sequential,
                },
            );
            let gpu = GpuNeeds { parts: needs.collect(), largest_pinned_bytes: pinned, uses_cufile: cufile };
            let chunks = BatchChunks {
                touched: parts.iter().map(|part| part.4.max(part.5)).collect(),
                new: parts.iter().map(|part| part.5).collect(),
            };
            (gpu, chunks)
        });
    let budgets = (bytes(33), 1u64..5, bytes(36), 1u64..5);
    let cache = prop_oneof![Just(0), bytes(28)];
    let reuse = (prop_oneof![Just(0), bytes(24)], bytes(30));
    let numbers = (bytes(28), 1u64..20, cache, (0u64..20, 0u64..20));
    (numbers, budgets, overhead, reuse, gpu).prop_map(
        |((batch_bytes, least_depth, cache_bytes, threads), budgets, overhead, reuse, (gpu, chunks))| Case {
            batch_bytes,
            least_depth,
            cache_bytes,
            threads,
            host: HostBudget { bytes: budgets.0, most_bytes: budgets.0 * budgets.1 },
            overhead,
            reusable_bytes: reuse.0,
            all_chunk_bytes: reuse.1,
            gpu,
            chunks,
            device: DeviceBudget { bytes: budgets.2, most_bytes: budgets.2 * budgets.3 },
        },
    )
}

/// The least budget of this name that an error says.
fn needed<T: std::fmt::Debug>(name: &str, plan: Result<T>) -> Option<u64> {
    match plan {
        Err(Error::Budget { name: found, needed_bytes, .. }) if found == name => Some(needed_bytes),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn cpu_plans_stay_within_the_host_budget(case in cases()) {
        let Ok(plan) = case.on_cpu() else { return Ok(()) };
        let used = case.batch_bytes * plan.depth
            + case.overhead_bytes(plan.decode_threads, plan.depth)
            + plan.chunk_cache_bytes;
        prop_assert!(used <= plan.host_bytes && plan.host_bytes <= case.host.most_bytes, "{used} {plan:?}");
        prop_assert!(plan.depth >= case.least_depth && plan.depth <= MAX_CPU_DEPTH.max(case.least_depth));
        prop_assert!(plan.decode_threads as u64 <= case.threads.1);
        prop_assert_eq!(plan.decode_threads == 0, case.threads.1 == 0);
        prop_assert!(plan.chunk_cache_bytes >= case.cache_bytes.min(case.all_chunk_bytes), "{plan:?}");
    }

    #[test]
    fn gpu_plans_stay_within_the_device_budget(case in cases()) {
        let Ok((plan, gpu)) = case.on_gpu() else { return Ok(()) };
        let used = case.batch_bytes * (plan.depth + BATCHES_HELD_BY_DALI)
            + plan.chunk_cache_bytes
            + gpu.gpu_workers * gpu.arena_bytes
            + gpu.upload_pool_bytes
            + gpu.staging_bytes;
        prop_assert!(used <= usable_bytes(gpu.budget_bytes), "{used} {plan:?} {gpu:?}");
        prop_assert!(gpu.budget_bytes <= case.device.most_bytes);
        prop_assert!(plan.depth >= case.least_depth && plan.depth <= MOST_DEPTH.max(case.least_depth));
        prop_assert!((1..=MAX_GPU_WORKERS).contains(&gpu.gpu_workers));
        let left = usable_bytes(gpu.budget_bytes) - case.gpu.fixed_bytes(&case.needs()) - gpu.staging_bytes;
        let given = case.cache_bytes.min(case.all_chunk_bytes);
        prop_assert!(plan.chunk_cache_bytes < left || left < 4 || given >= left / 4 * 3, "{plan:?} {gpu:?}");
        prop_assert!(case.gpu.parts.iter().all(|part| part.unit_bytes <= gpu.arena_bytes), "{gpu:?}");
        prop_assert!(case.gpu.parts.iter().all(|part| part.upload_bytes <= gpu.upload_pool_bytes), "{gpu:?}");
        let buffers = (case.threads.0 + plan.decode_threads as u64) * gpu.packed_bytes;
        prop_assert!(buffers * 4 <= gpu.upload_pool_bytes.min(plan.host_bytes), "{gpu:?}");
        prop_assert_eq!(gpu.staging_bytes == 0, !case.gpu.uses_cufile || case.threads.0 == 0);
        prop_assert!(plan.chunk_cache_bytes >= case.cache_bytes.min(case.all_chunk_bytes), "{plan:?}");
    }

    #[test]
    fn pinned_memory_holds_a_chunk_and_stays_within_the_host_budget(case in cases()) {
        let Ok((plan, _)) = case.on_gpu() else { return Ok(()) };
        prop_assert!(plan.host_bytes >= case.gpu.largest_pinned_bytes);
        let used = plan.host_bytes + case.overhead_bytes(plan.decode_threads, plan.depth);
        prop_assert!(used <= case.host.most_bytes, "{used} {plan:?}");
    }

    #[test]
    fn the_least_host_budget_of_an_error_suffices(case in cases()) {
        let least = |host_bytes, on_gpu| {
            let case = case.with_budgets(host_bytes, u64::MAX / 2);
            match on_gpu {
                true => needed("host_memory_budget", case.on_gpu()),
                false => needed("host_memory_budget", case.on_cpu()),
            }
        };
        for on_gpu in [true, false] {
            let Some(bytes) = least(0, on_gpu) else { continue };
            prop_assert_eq!(least(bytes, on_gpu), None);
            prop_assert_eq!(least(bytes - 1, on_gpu), Some(bytes));
        }
    }

    #[test]
    fn the_least_device_budget_of_an_error_suffices(case in cases()) {
        let least = |bytes| needed("device_memory_budget", case.with_budgets(1 << 40, bytes).on_gpu());
        let Some(bytes) = least(case.device.bytes) else { return Ok(()) };
        prop_assert_eq!(least(bytes), None);
        prop_assert_eq!(least(bytes - 1), Some(bytes));
    }

    #[test]
    fn an_automatic_device_budget_is_raised_only_as_far_as_needed(case in cases()) {
        let case = Case { host: HostBudget { bytes: 1 << 40, most_bytes: 1 << 40 }, ..case };
        let Ok((_, gpu)) = case.on_gpu() else { return Ok(()) };
        prop_assert!(gpu.budget_bytes >= case.device.bytes);
        if gpu.budget_bytes > case.device.bytes {
            let less = case.with_budgets(1 << 40, gpu.budget_bytes - 1).on_gpu();
            prop_assert_eq!(needed("device_memory_budget", less), Some(gpu.budget_bytes));
        }
    }

    #[test]
    fn more_memory_is_never_worse(case in cases(), more in bytes(34)) {
        let case = case.without_reuse();
        let (host, device) = (case.host.bytes, case.device.bytes);
        let small = case.with_budgets(host, device);
        let large = case.with_budgets(host + more, device);
        if let Ok(small) = small.on_cpu() {
            let large = large.on_cpu().unwrap();
            // More decode threads need scratch memory, which may leave less for batches.
            prop_assert!(small.depth <= large.depth || small.decode_threads < large.decode_threads);
            prop_assert!(small.host_bytes <= large.host_bytes);
        }
        let mut threads = [&small, &large].map(|case| {
            HostShare::on_cpu(&case.needs()).map_or(0, |share| share.decode_threads)
        }).into_iter();
        prop_assert!(threads.next() <= threads.next());
        // Staging buffers grow in steps, which may leave less for batches.
        let without_cufile = |case: Case| Case { gpu: GpuNeeds { uses_cufile: false, ..case.gpu.clone() }, ..case };
        if let Ok((small, gpu)) = without_cufile(small).on_gpu() {
            let (large, larger_gpu) = without_cufile(case.with_budgets(host, device + more)).on_gpu().unwrap();
            prop_assert!(small.depth <= large.depth, "{small:?} {large:?}");
            prop_assert!(gpu.budget_bytes <= larger_gpu.budget_bytes);
            prop_assert_eq!(small.decode_threads, large.decode_threads);
        }
    }

    #[test]
    fn chunks_are_not_counted_for_batches_that_do_not_fit(case in cases()) {
        let case = case.with_budgets(1 << 40, case.batch_bytes);
        let needs = case.needs();
        let host = HostShare::on_gpu(&needs, &case.gpu).unwrap();
        let plan = MemoryPlan::on_gpu(&needs, &case.gpu, host, case.device, || panic!("counted"));
        prop_assert!(needed("device_memory_budget", plan).is_some());
    }
}

#[test]
fn batches_that_cannot_be_listed_are_refused() {
    let fits = (64u64 << 20) / 2100;
    assert!(check_batch(fits, 0).is_ok());
    let error = check_batch(fits + 1, 0).unwrap_err();
    let least = needed::<()>("host_memory_budget", Err(error)).unwrap();
    assert!(check_batch(fits + 1, least).is_ok() && check_batch(fits + 1, least - 1).is_err());
}
