//! Lists of numbers as arguments: JSON, or a file of NumPy. A file holds lists of any length and takes no more than their bytes.

use crate::error::Result;
use crate::options::argument;

use std::fs::File;
use std::io::{BufReader, Read};

/// A table of numbers, row by row.
#[derive(Debug, PartialEq)]
pub struct Table<T> {
    /// All numbers.
    pub values: Vec<T>,
    /// Numbers of a row; 1 of a plain list.
    pub columns: usize,
}

/// A type of numbers that lists can hold.
pub trait Number: Copy + serde::de::DeserializeOwned {
    /// What such numbers are called.
    const KIND: &'static str;
    /// The number in the bytes of an element of NumPy's type `code`, such as `<i8`. `None` if the type is another one, or the number too
    /// large.
    fn parse(code: &str, bytes: &[u8]) -> Option<Self>;
}

impl Number for i64 {
    const KIND: &'static str = "integers (int64)";

    fn parse(code: &str, bytes: &[u8]) -> Option<Self> {
        Some(match code {
            "<i8" => Self::from_le_bytes(bytes.try_into().ok()?),
            "<u8" => u64::from_le_bytes(bytes.try_into().ok()?).try_into().ok()?,
            "<i4" => i32::from_le_bytes(bytes.try_into().ok()?).into(),
            "<u4" => u32::from_le_bytes(bytes.try_into().ok()?).into(),
            _ => return None,
        })
    }
}

impl Number for f64 {
    const KIND: &'static str = "floating-point numbers (float64)";

    fn parse(code: &str, bytes: &[u8]) -> Option<Self> {
        Some(match code {
            "<f8" => Self::from_le_bytes(bytes.try_into().ok()?),
            "<f4" => f32::from_le_bytes(bytes.try_into().ok()?).into(),
            "<i8" | "<u8" | "<i4" | "<u4" => i64::parse(code, bytes)? as Self,
            _ => return None,
        })
    }
}

/// The table in a text: JSON of a list of numbers, or of a list of lists of them, or the name of a file that `numpy.save` wrote.
///
/// # Errors
/// Texts and files with something else, by the argument's name.
pub fn table<T: Number>(name: &'static str, text: &str) -> Result<Table<T>> {
    let refused = |problem: String| argument(name, problem);
    if text.trim_start().starts_with('[') {
        return from_json(text).map_err(refused);
    }
    let file = File::open(text).map_err(|error| {
        refused(format!("\"{text}\" cannot be opened ({error}); give a .npy file, or a list as JSON"))
    })?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    from_file(BufReader::new(file), bytes).map_err(|problem| refused(format!("\"{text}\" {problem}")))
}

fn from_json<T: Number>(text: &str) -> Result<Table<T>, String> {
    if let Ok(values) = serde_json::from_str(text) {
        return Ok(Table { values, columns: 1 });
    }
    let rows: Vec<Vec<T>> = serde_json::from_str(text)
        .map_err(|error| format!("is no list of {}, and no list of such lists ({error})", T::KIND))?;
    let columns = rows.first().map_or(1, Vec::len);
    if let Some(row) = rows.iter().position(|row| row.len() != columns) {
        return Err(format!("has {} numbers in row {row}, but {columns} in the first", rows[row].len()));
    }
    Ok(Table { values: rows.concat(), columns })
}

/// What the header of a file of NumPy says.
#[derive(Debug, PartialEq)]
struct Header {
    code: String,
    shape: Vec<u64>,
}

fn from_file<T: Number>(mut file: impl Read, file_bytes: u64) -> Result<Table<T>, String> {
    let Header { code, shape } = header(&mut file)?;
    let size: usize = code.get(2..).and_then(|size| size.parse().ok()).unwrap_or(0);
    // No number has more bytes.
    if size > 8 || T::parse(&code, &vec![0; size]).is_none() {
        return Err(format!("holds elements of type {code}; give {}", T::KIND));
    }
    let columns = match shape[..] {
        [_] => 1,
        [_, columns] => columns as usize,
        _ => return Err(format!("has the shape {shape:?}; give one dimension, or two: rows and columns")),
    };
    let count = shape.iter().fold(1, |all: u64, &extent| all.saturating_mul(extent));
    let needed = count.saturating_mul(size as u64);
    let short = || format!("is cut short: {needed} bytes of numbers in a file of {file_bytes}");
    if needed > file_bytes {
        return Err(short());
    }
    let mut values = Vec::with_capacity(count as usize);
    let mut block = vec![0; size << 13];
    let mut left = count as usize;
    while left > 0 {
        let now = left.min(1 << 13);
        let bytes = &mut block[..now * size];
        file.read_exact(bytes).map_err(|_| short())?;
        for element in bytes.chunks_exact(size) {
            let value = T::parse(&code, element)
                .ok_or_else(|| format!("has a number of type {code} that is too large"))?;
            values.push(value);
        }
        left -= now;
    }
    Ok(Table { values, columns })
}

/// Reads the header, so that the numbers come next.
fn header(file: &mut impl Read) -> Result<Header, String> {
    const MAGIC: &[u8] = b"\x93NUMPY";
    const MOST_BYTES: usize = 1 << 16;
    let foreign = || "is no file of NumPy; write it with numpy.save".to_string();
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(|_| foreign())?;
    if !start.starts_with(MAGIC) {
        return Err(foreign());
    }
    let mut length = [0; 4];
    let wide = if start[6] == 1 { 2 } else { 4 };
    file.read_exact(&mut length[..wide]).map_err(|_| foreign())?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_BYTES {
        return Err(foreign());
    }
    let mut text = vec![0; length];
    file.read_exact(&mut text).map_err(|_| foreign())?;
    let text = String::from_utf8_lossy(&text);
    // {'descr': '<i8', 'fortran_order': False, 'shape': (3, 2), }
    let behind = |name: &str| text.split_once(&format!("'{name}':")).map(|(_, rest)| rest.trim_start());
    let code = behind("descr").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next());
    let shape = behind("shape").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
    let (Some(code), Some(shape), Some(order)) = (code, shape, behind("fortran_order")) else {
        return Err("holds elements of several fields; give plain numbers".into());
    };
    let extents = shape.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    let shape = extents.map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| foreign())?;
    if order.starts_with("True") && shape.len() > 1 {
        return Err("is in Fortran's order; write it in C's, with numpy.ascontiguousarray".into());
    }
    Ok(Header { code: code.into(), shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, values: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(values);
        bytes
    }

    fn read<T: Number>(bytes: &[u8]) -> Result<Table<T>, String> {
        from_file(bytes, bytes.len() as u64)
    }

    #[test]
    fn lists_of_json_and_of_numpy_are_tables() {
        assert_eq!(table("samples", "[3, 1]").unwrap(), Table { values: vec![3i64, 1], columns: 1 });
        assert_eq!(
            table("samples", " [[3, 1], [4, 5]]").unwrap(),
            Table { values: vec![3i64, 1, 4, 5], columns: 2 }
        );
        assert_eq!(table::<f64>("weights", "[1, 0.5]").unwrap().values, [1.0, 0.5]);
        let rows = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1), }\n";
        let values: Vec<u8> = [7i64, -2].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(read(&file(rows, &values)).unwrap(), Table { values: vec![7i64, -2], columns: 1 });
        let plain = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n";
        assert_eq!(
            read(&file(plain, &2.5f32.to_le_bytes())).unwrap(),
            Table { values: vec![2.5f64], columns: 1 }
        );
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let header = |code: &str, order: &str, shape: &str| {
            file(
                &format!("{{'descr': '{code}', 'fortran_order': {order}, 'shape': ({shape}), }}\n"),
                &[255; 16],
            )
        };
        for (bytes, reason) in [
            (b"PK".to_vec(), "no file of NumPy"),
            (header("<f8", "False", "2,"), "type <f8; give integers"),
            (header("<i8", "True", "2, 1"), "Fortran"),
            (header("<i8", "False", "3,"), "cut short: 24 bytes"),
            (header("<i8", "False", "1, 1, 1"), "the shape [1, 1, 1]"),
            (header("<i8", "False", "9223372036854775807, 9223372036854775807"), "cut short"),
            (header("<u8", "False", "1,"), "too large"),
            (header("<i", "False", "1,"), "type <i;"),
            (header("<i99999999999999", "False", "1,"), "type <i99999999999999;"),
            (file("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,), }\n", &[0; 8]), "fields"),
        ] {
            let problem = read::<i64>(&bytes).unwrap_err();
            assert!(problem.contains(reason), "{problem}: {reason}");
        }
        for (text, reason) in [
            ("[[1], [2, 3]]", "2 numbers in row 1, but 1 in the first"),
            ("[1.5]", "no list of integers"),
            ("[1, 2", "no list of integers"),
            ("nowhere.npy", "cannot be opened"),
        ] {
            let error = table::<i64>("samples", text).unwrap_err().to_string();
            assert!(error.contains("`samples`") && error.contains(reason), "{error}: {reason}");
        }
    }
}
