//! The samples of several stores that are read separately.

use super::windows::Windows;

/// All samples of a reader: windows over one domain or more, numbered domain by domain. A domain is what windows lie in:
/// all stores if they are joined to one array, else a single store. No window has elements in two domains.
#[derive(Clone, Debug)]
pub struct Domains {
    domains: Vec<Domain>,
    /// Whether each domain is a store by itself.
    separate: bool,
}

/// A domain with at least one sample.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Number of the store, of stores that are read separately; else 0.
    pub store: usize,
    /// The windows in it.
    pub windows: Windows,
    /// Number of its first sample.
    pub first: u64,
}

impl Domains {
    /// The windows over stores that are joined, or over the only one.
    pub fn joined(windows: Windows) -> Self {
        Self { domains: vec![Domain { store: 0, windows, first: 0 }], separate: false }
    }

    /// The windows over each store that has any, with the store's number. `None` if there are more than can be counted.
    ///
    /// # Panics
    /// Without any windows.
    pub fn separate(stores: impl IntoIterator<Item = (usize, Windows)>) -> Option<Self> {
        let (mut domains, mut first) = (vec![], 0u64);
        for (store, windows) in stores {
            let samples = windows.len();
            domains.push(Domain { store, windows, first });
            first = first.checked_add(samples).filter(|&all| all <= i64::MAX as u64)?;
        }
        assert!(!domains.is_empty(), "a reader has samples");
        Some(Self { domains, separate: true })
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.domains.last().map_or(0, |last| last.first + last.windows.len())
    }

    /// Never: a reader has samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The domains, in the order of their samples.
    pub fn iter(&self) -> std::slice::Iter<'_, Domain> {
        self.domains.iter()
    }

    /// The windows of the first domain: in the extents of a sample along the window's dimensions all domains agree.
    pub fn first(&self) -> &Windows {
        &self.domains[0].windows
    }

    /// The windows of a domain.
    pub fn windows(&self, domain: usize) -> &Windows {
        &self.domains[domain].windows
    }

    /// Whether each domain is a store by itself.
    pub fn is_separate(&self) -> bool {
        self.separate
    }

    /// The number of a sample's domain, and of its window along each axis there.
    pub fn place(&self, sample: u64) -> (usize, Vec<u64>) {
        let domain = self.domains.partition_point(|domain| domain.first <= sample) - 1;
        let Domain { windows, first, .. } = &self.domains[domain];
        (domain, windows.places(sample - first))
    }

    /// How many numbers name a sample.
    pub fn index_len(&self) -> usize {
        self.first().dimensions() + usize::from(self.separate)
    }

    /// The numbers that name a sample: of stores that are read separately the store's, then one index for each dimension of
    /// the user's window.
    pub fn index(&self, sample: u64) -> Vec<i64> {
        let (domain, _) = self.place(sample);
        let Domain { store, windows, first } = &self.domains[domain];
        let store = self.separate.then_some(*store as i64);
        store.into_iter().chain(windows.index(sample - first)).collect()
    }

    /// The sample that these numbers name.
    ///
    /// # Errors
    /// Why there is none: which of the numbers does not fit, and which would.
    pub fn sample(&self, index: &[i64]) -> Result<u64, String> {
        let (domain, index) = match (self.separate, index.split_first()) {
            (true, Some((store, index))) => {
                let place = usize::try_from(*store)
                    .ok()
                    .and_then(|store| self.domains.binary_search_by_key(&store, |domain| domain.store).ok());
                let Some(place) = place else {
                    let stores = self.domains.len();
                    return Err(format!("store {store} is none of the {stores} that have samples"));
                };
                (&self.domains[place], index)
            }
            _ => (&self.domains[0], index),
        };
        let number = domain.windows.sample(index).map_err(|d| {
            let known = domain.windows.axes()[d].describe();
            let place = if self.separate { format!(" of store {}", domain.store) } else { String::new() };
            format!("along dimension {d}{place} samples are at {known}")
        })?;
        Ok(domain.first + number)
    }
}

impl<'a> IntoIterator for &'a Domains {
    type Item = &'a Domain;
    type IntoIter = std::slice::Iter<'a, Domain>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::super::WindowArguments;
    use super::*;

    fn windows(steps: u64) -> Windows {
        let given = WindowArguments { window: Some(&[3]), ..WindowArguments::default() };
        Windows::new(&[steps, 2], &given).unwrap()
    }

    #[test]
    fn samples_are_numbered_store_by_store() {
        let domains = Domains::separate([(0, windows(4)), (2, windows(3)), (5, windows(5))]).unwrap();
        assert_eq!((domains.len(), domains.index_len()), (6, 2));
        let indices: Vec<_> = (0..6).map(|sample| domains.index(sample)).collect();
        assert_eq!(indices, [[0, 0], [0, 1], [2, 0], [5, 0], [5, 1], [5, 2]]);
        assert_eq!([1, 2, 4].map(|sample| domains.place(sample)), [(0, vec![1]), (1, vec![0]), (2, vec![1])]);
        for (sample, index) in indices.iter().enumerate() {
            assert_eq!(domains.sample(index), Ok(sample as u64));
        }
        let refused = |index: &[i64]| domains.sample(index).unwrap_err();
        assert_eq!(refused(&[1, 0]), "store 1 is none of the 3 that have samples");
        assert_eq!(refused(&[5, 3]), "along dimension 0 of store 5 samples are at 0 to 2");
        let joined = Domains::joined(windows(4));
        assert_eq!((joined.len(), joined.index_len(), joined.index(1)), (2, 1, vec![1]));
    }

    #[test]
    fn more_samples_than_can_be_counted_are_none() {
        let given = WindowArguments { window: Some(&[1]), ..WindowArguments::default() };
        let many = Windows::new(&[1 << 62], &given).unwrap();
        assert!(Domains::separate([(0, many.clone())]).is_some());
        assert!(Domains::separate([(0, many.clone()), (1, many)]).is_none());
    }
}
