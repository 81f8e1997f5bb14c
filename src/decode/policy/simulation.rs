//! The policy with a reader, cores, a GPU and a consumer in simulated time.

use super::{Backlog, Policy};

use std::collections::VecDeque;

/// A reader, cores and a GPU in simulated time, and what they did.
#[derive(Clone, Copy)]
struct Machine {
    /// Batches in flight and chunks of each. Uneven: one of four needs half of all chunks, which the others share.
    depth: u64,
    chunks: u64,
    uneven: bool,
    cores: u64,
    /// Seconds of a core for a chunk.
    core_seconds: f64,
    /// Seconds of the GPU for any number of chunks.
    gpu_seconds: f64,
    /// Seconds between two batches that the consumer takes, if they are there.
    period: f64,
    /// Seconds by which each chunk that the GPU decodes delays the consumer, whose GPU it is.
    stolen: f64,
    /// The SM partition, if the driver gives one.
    partition: Option<Partition>,
    batches: u64,
}

#[derive(Clone, Copy)]
struct Partition {
    /// Seconds for each chunk, one after the other, besides those that any number takes.
    seconds: f64,
    /// By which each delays the consumer.
    stolen: f64,
}

#[derive(Debug)]
struct Outcome {
    seconds: f64,
    waited: f64,
    /// Shares of the chunks.
    by_gpu: f64,
    by_partition: f64,
}

impl Machine {
    fn run(self, gpu: bool, cpu: bool) -> Outcome {
        const BYTES: u64 = 1000;
        const TICK: f64 = 2e-4;
        let (mut policy, alone) = (Policy::new(self.cores), Policy::default());
        let mut backlog = Backlog::default();
        let mut missing: VecDeque<u64> = VecDeque::new();
        let (mut planned, mut taken, mut by_gpu, mut by_partition, mut waited) =
            (0u64, 0u64, 0u64, 0u64, 0.0);
        let mut cores: Vec<Option<(u64, f64)>> = vec![None; if cpu { self.cores as usize } else { 0 }];
        // Groups on the GPU: what is in them, when it arrived and when it is done. A lane takes all that waits.
        let mut lanes: Vec<(Vec<(u64, f64)>, f64)> = vec![(vec![], 0.0); 4];
        let mut waiting: Vec<(u64, f64)> = vec![];
        let (mut now, mut next_take, mut waits) = (0.0, 0.0, false);
        // What each chunk of a lane's group steals, if it is decoded on the SM partition.
        let (mut on_partition, mut partition_until) = (vec![None; lanes.len()], 0.0f64);
        let mut fill = (0, 0);
        while taken < self.batches {
            now += TICK;
            while planned < (taken + self.depth).min(self.batches) {
                let chunks = match (self.uneven, planned % 4) {
                    (false, _) => self.chunks,
                    (true, 0) => 2 * self.chunks,
                    (true, _) => self.chunks * 2 / 3,
                };
                (0..chunks).for_each(|_| backlog.push(planned, BYTES));
                missing.push_back(chunks);
                planned += 1;
            }
            let mut finish = |batch: u64, taken: u64| missing[(batch - taken) as usize] -= 1;
            for core in &mut cores {
                if let Some((batch, end)) = *core
                    && end <= now
                {
                    finish(batch, taken);
                    policy.cpu_ends(BYTES, self.core_seconds, now);
                    *core = None;
                }
                if core.is_none()
                    && let Some(batch) = (if gpu { &policy } else { &alone }).next_for_cpu(&mut backlog)
                {
                    policy.cpu_begins(now);
                    *core = Some((batch, now + self.core_seconds));
                }
            }
            if gpu {
                let mut next = |policy: &mut Policy| match cpu {
                    true => policy.next_for_gpu(&mut backlog, now),
                    false => backlog.for_gpu(0),
                };
                while waiting.len() < 1000
                    && let Some(batch) = next(&mut policy)
                {
                    waiting.push((batch, now));
                    by_gpu += 1;
                }
                for ((group, end), on_partition) in lanes.iter_mut().zip(&mut on_partition) {
                    if *end <= now {
                        next_take += on_partition.take().unwrap_or(self.stolen) * group.len() as f64;
                        for (batch, arrived) in group.drain(..) {
                            finish(batch, taken);
                            policy.gpu_ends(BYTES, now - arrived);
                        }
                        if !waiting.is_empty() {
                            // As many as a lane has memory for.
                            let rest = waiting.split_off(waiting.len().min(100));
                            *group = std::mem::replace(&mut waiting, rest);
                            *end = now + self.gpu_seconds;
                            if let Some(partition) = self.partition
                                && policy.keeps_to_sm_partition(fill.0, fill.1)
                            {
                                by_partition += group.len() as u64;
                                partition_until =
                                    partition_until.max(now) + partition.seconds * group.len() as f64;
                                (*end, *on_partition) =
                                    (partition_until + self.gpu_seconds, Some(partition.stolen));
                            }
                        }
                    }
                }
            }
            let ready = missing.iter().filter(|&&missing| missing == 0).count() as u64;
            fill = (ready, missing.len() as u64);
            let wants = now >= next_take;
            policy.fill(ready, missing.len() as u64);
            if wants && !waits {
                waits = missing[0] > 0;
                policy.wanted(waits, ready, missing.len() as u64, now);
            }
            if wants && missing[0] == 0 {
                missing.pop_front();
                taken += 1;
                next_take = now + self.period;
                if std::mem::take(&mut waits) {
                    policy.handed_over(now);
                }
            } else if wants {
                waited += TICK;
            }
            assert!(now < 1000.0, "nothing moves any more");
        }
        let all = (self.batches * self.chunks) as f64;
        Outcome { seconds: now, waited, by_gpu: by_gpu as f64 / all, by_partition: by_partition as f64 / all }
    }
}

const MACHINE: Machine = Machine {
    depth: 16,
    chunks: 48,
    uneven: false,
    cores: 16,
    core_seconds: 0.007,
    gpu_seconds: 0.025,
    period: 0.0,
    stolen: 0.0,
    partition: None,
    batches: 150,
};

#[test]
fn idle_cores_that_suffice_leave_the_gpu_to_the_model() {
    // 16 cores do a batch in 21 ms.
    for period in [0.03, 0.125] {
        let outcome = Machine { period, batches: 600, ..MACHINE }.run(true, true);
        // The GPU helps in the beginning only.
        assert!(outcome.by_gpu < 0.036 && outcome.waited < 0.15, "{outcome:?}");
    }
}

#[test]
fn the_gpu_does_what_few_cores_cannot_finish_in_time() {
    // Two cores do a batch in 168 ms, 71 % of what is needed in 120 ms.
    let outcome = Machine { cores: 2, period: 0.12, batches: 400, ..MACHINE }.run(true, true);
    assert!(outcome.waited < 0.1, "{outcome:?}");
    assert!((0.2..0.45).contains(&outcome.by_gpu), "{outcome:?}");
}

#[test]
fn a_consumer_that_waits_gets_at_least_what_the_better_side_alone_would_do() {
    for (core_seconds, gpu_seconds) in
        [(0.007, 0.025), (0.02, 0.5), (0.05, 0.02), (0.004, 0.3), (0.03, 0.025)]
    {
        let machine = Machine { core_seconds, gpu_seconds, batches: 2400, ..MACHINE };
        let (gpu, cpu) = (machine.run(true, false), machine.run(false, true));
        let both = machine.run(true, true);
        let better = gpu.seconds.min(cpu.seconds);
        assert!(both.seconds < better * 1.1, "{both:?} beside {gpu:?} and {cpu:?}");
    }
}

#[test]
fn a_training_that_lends_its_gpu_is_as_fast_as_with_the_better_side_alone() {
    const BATCHES: u64 = 400;
    const PERIOD: f64 = 0.125;
    // Rates of one core and of the GPU as measured beside each other, for batches of 16 windows of two steps.
    for (store, chunks, core_seconds, gpu_seconds, stolen) in [
        ("zstd", 102, 7e-3, 25e-3, 91e-6),
        ("sharded", 816, 1.1e-3, 10e-3, 10e-6),
        ("blosc-lz4", 17, 8.3e-3, 6e-3, 240e-6),
        ("blosc-zstd", 17, 15e-3, 10e-3, 280e-6),
    ] {
        for cores in [1, 2, 3, 4, 6, 8, 16] {
            let machine = Machine {
                chunks,
                cores,
                core_seconds,
                gpu_seconds,
                stolen,
                period: PERIOD,
                batches: BATCHES,
                ..MACHINE
            };
            let (gpu, cpu) = (machine.run(true, false), machine.run(false, true));
            let both = machine.run(true, true);
            let better = gpu.seconds.min(cpu.seconds);
            let about = format!("{store}, {cores} cores: {both:?} beside {gpu:?} and {cpu:?}");
            assert!(both.seconds < better * 1.01, "{about}");
            // Cores that do half of the work give the training back half of what it lent.
            let alone = BATCHES as f64 * PERIOD;
            if cpu.seconds < 2.0 * alone && cpu.seconds > 1.05 * alone {
                assert!(both.seconds - alone < 0.7 * (gpu.seconds - alone), "{about}");
            }
        }
    }
}

#[test]
fn the_gpu_takes_its_time_where_that_is_enough_for_the_consumer() {
    const PERIOD: f64 = 0.125;
    let (batches, stolen, stolen_on_partition) = (600, 90e-6, 45e-6);
    for depth in [2, 4, 16] {
        for (cores, cpu) in [(4, true), (4, false)] {
            let all = Machine { depth, chunks: 102, cores, period: PERIOD, batches, stolen, ..MACHINE };
            let wide = all.run(true, cpu);
            // Half as long as the training needs for a batch.
            let enough = Partition { seconds: PERIOD / 2.0 / 102.0, stolen: stolen_on_partition };
            let spared = Machine { partition: Some(enough), ..all }.run(true, cpu);
            let about = format!("{depth} in flight, CPU {cpu}: {spared:?} beside {wide:?}");
            assert!(spared.waited < wide.waited + 0.3, "{about}");
            assert!(spared.by_partition > 0.8 * spared.by_gpu, "{about}");
            let alone = batches as f64 * PERIOD;
            assert!(spared.seconds - alone < 0.7 * (wide.seconds - alone), "{about}");
        }
    }
}

#[test]
fn the_gpu_does_not_take_its_time_where_the_consumer_would_wait() {
    const PERIOD: f64 = 0.125;
    for (depth, cpu, uneven) in [(2, false), (4, false), (4, true), (16, false), (16, true)]
        .into_iter()
        .flat_map(|(depth, cpu)| [(depth, cpu, false), (depth, cpu, true)])
    {
        let batches = 6000;
        let (cores, period, stolen) = (4, PERIOD, 90e-6);
        let all = Machine { depth, chunks: 102, uneven, cores, period, batches, stolen, ..MACHINE };
        let wide = all.run(true, cpu);
        for times in [1.2, 1.5, 2.0] {
            let partition = Partition { seconds: times * PERIOD / 102.0, stolen: 45e-6 };
            let slow = Machine { partition: Some(partition), ..all }.run(true, cpu);
            let about = format!("{depth} in flight, {times} times too slow, CPU {cpu}, uneven {uneven}");
            assert!(slow.by_partition > 0.0, "{about}");
            assert!(slow.seconds < wide.seconds * 1.02, "{about}: {slow:?} beside {wide:?}");
        }
    }
}

#[test]
fn a_few_batches_in_flight_are_enough_to_go_on() {
    for depth in [1, 2, 3] {
        for period in [0.0, 0.05] {
            for partition in [None, Some(Partition { seconds: 1e-4, stolen: 0.0 })] {
                let outcome = Machine { depth, period, partition, batches: 40, ..MACHINE }.run(true, true);
                assert!(outcome.seconds < 40.0 * (period + 0.06), "{depth}: {outcome:?}");
            }
        }
    }
}
