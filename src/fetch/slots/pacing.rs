//! When the next request may be sent.

use std::time::{Duration, Instant};

/// Spreads requests over the time that one takes, as packets are paced.
///
/// Where the latency is the same each time and the network is shared alike, requests that are sent together are answered together, end
/// together, and make room for the next crowd; meanwhile nothing is on the wire. Measured, pacing gains 6 % without latency and 10 % with
/// 30 ms, and nothing with 100 ms (`benches/NOTES.md`).
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// The mean of the last requests' times, from when they were sent to the last byte.
    mean: Option<Duration>,
    /// When the next request may be sent.
    next: Option<Instant>,
}

impl Pacing {
    /// Requests are sent this many times faster than they would end if as many as possible were in flight: pacing is not to limit the rate.
    const FASTER: f64 = 1.25;
    /// How far behind its schedule sending may be and still catch up: this time, since timers wake a millisecond late,
    const ARREARS: Duration = Duration::from_millis(2);
    /// or this part of a request's time, since network threads that have much to do are later.
    const ARREARS_PART: u32 = 8;
    /// How many times there are in the mean, about.
    const TIMES: u32 = 64;
    /// A request counts as at most this many mean ones, because a late one says nothing of the others,
    const MOST_MEANS: u32 = 4;
    /// and as at most this time: when a store answers again that was held up, it need not be spared for long.
    const MOST_TIME: Duration = Duration::from_secs(1);

    /// A request has ended, `time` after it was sent.
    pub fn ended(&mut self, time: Duration) {
        let time = time.min(Self::MOST_TIME);
        self.mean = Some(match self.mean {
            None => time,
            Some(mean) => (mean * (Self::TIMES - 1) + time.min(mean * Self::MOST_MEANS)) / Self::TIMES,
        });
    }

    /// A request is sent, where `most` in flight are possible.
    pub fn sent(&mut self, now: Instant, most: usize) {
        let mean = self.mean.unwrap_or_default();
        let interval = mean.div_f64(Self::FASTER * most.max(1) as f64);
        // What was not used of the time longer ago is lost, or it would be a crowd later.
        let earliest = now.checked_sub(Self::ARREARS.max(mean / Self::ARREARS_PART)).unwrap_or(now);
        self.next = Some(self.next.map_or(now, |next| next.max(earliest)) + interval);
    }

    /// When the next request may be sent, if not now.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.next.filter(|&next| next > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const LATENCY: f64 = 0.1;

    /// Share of a network's rate that requests have, of which `in_flight` are at most: each has one byte, which comes [`LATENCY`] after the
    /// request, beside those of all others that come then. The network has `rate` bytes a second.
    fn share_of_network(in_flight: usize, rate: f64, is_paced: bool) -> f64 {
        let start = Instant::now();
        let at = |now: f64| start + Duration::from_secs_f64(now);
        let mut pacing = Pacing::default();
        // Nanoseconds when answers begin, and billionths of bytes that each connection has got when they end; each with the start of the request.
        let (mut begin, mut end) = (BinaryHeap::new(), BinaryHeap::new());
        let (mut now, mut got, mut ended) = (0.0, 0.0, 0);
        let nanos = |number: f64| (number * 1e9) as u64;
        while now < 5.0 {
            let mut due = f64::INFINITY;
            while begin.len() + end.len() < in_flight {
                if let Some(next) = pacing.due(at(now)).filter(|_| is_paced) {
                    due = (next - start).as_secs_f64();
                    break;
                }
                pacing.sent(at(now), in_flight);
                begin.push(Reverse((nanos(now + LATENCY), nanos(now))));
            }
            let each = rate / end.len().max(1) as f64;
            let next_begin = begin.peek().map_or(f64::INFINITY, |Reverse((time, _))| *time as f64 / 1e9);
            let next_end =
                end.peek().map_or(f64::INFINITY, |Reverse((at, _))| now + (*at as f64 / 1e9 - got) / each);
            let next = next_begin.min(next_end).min(due).max(now);
            got += (next - now) * each;
            now = next;
            if next_begin <= next_end.min(due) {
                let Some(Reverse((_, sent))) = begin.pop() else { break };
                end.push(Reverse((nanos(got + 1.0), sent)));
            } else if next_end <= due {
                let Some(Reverse((_, sent))) = end.pop() else { break };
                pacing.ended(at(now) - at(sent as f64 / 1e9));
                ended += 1;
            }
        }
        f64::from(ended) / (5.0 * rate)
    }

    #[test]
    fn the_line_is_not_idle_while_a_crowd_waits() {
        for (in_flight, rate) in [(200, 1000.0), (64, 320.0), (32, 1000.0), (256, 5000.0)] {
            let possible = (in_flight as f64 / LATENCY / rate).min(1.0);
            let [crowds, paced] =
                [false, true].map(|is_paced| share_of_network(in_flight, rate, is_paced) / possible);
            assert!(crowds < 0.8 && paced > 0.9, "{in_flight} {rate}: {crowds} {paced}");
        }
    }

    #[test]
    fn nothing_waits_before_the_first_answer_or_behind_a_pause() {
        let (mut pacing, start) = (Pacing::default(), Instant::now());
        (0..300).for_each(|_| pacing.sent(start, 32));
        assert_eq!(pacing.due(start), None);
        pacing.ended(Duration::from_millis(96));
        pacing.sent(start, 32);
        assert_eq!(pacing.due(start), Some(start + Duration::from_micros(2400)));
        // An eighth of 96 ms may be made up for, no more.
        let later = start + Duration::from_secs(10);
        pacing.sent(later, 32);
        assert_eq!(pacing.due(later), None);
        (0..4).for_each(|_| pacing.sent(later, 32));
        assert_eq!(pacing.due(later), None);
        pacing.sent(later, 32);
        assert_eq!(pacing.due(later), Some(later + Duration::from_micros(6 * 2400 - 12_000)));
    }

    #[test]
    fn a_late_request_changes_little() {
        let mut pacing = Pacing::default();
        pacing.ended(Duration::from_millis(100));
        pacing.ended(Duration::from_secs(60));
        assert!(pacing.mean.is_some_and(|mean| mean < Duration::from_millis(105)));
        // If all take that long, it is followed, as far as a second.
        (0..1000).for_each(|_| pacing.ended(Duration::from_secs(60)));
        assert!(pacing.mean.is_some_and(|mean| mean > Duration::from_millis(990)));
        assert!(pacing.mean.is_some_and(|mean| mean <= Pacing::MOST_TIME));
    }
}
