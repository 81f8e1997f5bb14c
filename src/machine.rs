//! What this machine gives the process.

use std::fs;
use std::path::Path;

/// Memory in bytes that the process may use: the machine's, or what its container or job is limited to. 8 GiB where the system does not tell.
pub fn memory_bytes() -> u64 {
    const UNKNOWN: u64 = 8 << 30;
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = text("/proc/meminfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .map_or(UNKNOWN, |kib| kib << 10);
    let limit = memory_limit(&text("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    machine.min(limit.unwrap_or(u64::MAX))
}

/// The least memory limit of the control groups, of version 1 or 2, that `groups` names, and of those around them; `mounted` is where they are
/// mounted.
fn memory_limit(groups: &str, mounted: &Path) -> Option<u64> {
    let mut limits = vec![];
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (roots, file): (&[&str], _) = match controllers {
            "" => (&["", "unified"], "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (&["memory"], "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for root in roots.iter().map(|root| mounted.join(root)) {
            // In a container the path can be the host's, of which nothing is mounted but the container's own group, as the root.
            for group in Path::new(path.trim_start_matches('/')).ancestors() {
                let text = fs::read_to_string(root.join(group).join(file)).unwrap_or_default();
                // Where there is no limit, version 2 says "max", and version 1 a number near 2^63.
                limits.extend(text.trim().parse::<u64>());
            }
        }
    }
    limits.into_iter().filter(|&limit| limit > 0).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of the groups that `groups` names, where these files are mounted.
    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let mounted = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = mounted.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        memory_limit(groups, mounted.path())
    }

    #[test]
    fn the_least_limit_of_a_group_and_of_those_around_it_counts() {
        let job = [
            ("system.slice/job_7/memory.max", "16000\n"),
            ("system.slice/job_7/step_0/memory.max", "max\n"),
            ("system.slice/memory.max", "90000\n"),
            ("other/memory.max", "5\n"),
        ];
        assert_eq!(limit("0::/system.slice/job_7/step_0\n", &job), Some(16000));
        // A container of a hybrid hierarchy, whose path is the host's.
        let container = [("memory/memory.limit_in_bytes", "700\n"), ("memory/docker/x", "0")];
        assert_eq!(
            limit("3:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n0::/docker/1\n", &container),
            Some(700)
        );
        assert_eq!(limit("0::/\n", &[("unified/memory.max", "42")]), Some(42));
        assert_eq!(limit("0::/\n", &[("memory.max", "max\n")]), None);
        for nothing in ["", "0", "0:", "2:memory", "nonsense\n\n"] {
            assert_eq!(limit(nothing, &[]), None);
        }
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes() >= 64 << 20);
    }
}
