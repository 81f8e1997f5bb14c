//! References in parquet files, as fsspec writes them: metadata in one JSON file, and of each array files with `record_size` chunks each, in
//! the order of the chunk grid.
//!
//! Source: fsspec's `LazyReferenceMapper`, which kerchunk and VirtualiZarr write with. It knows arrays of Zarr format 2 only.

use super::super::contract::folders_below;
use super::table::{Packed, Packer, Reference, Texts};
use crate::error::Error;
use crate::json;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use serde_json::Value;

/// What the JSON file says.
#[derive(Debug)]
pub struct Catalogue {
    /// Metadata files by key.
    pub metadata: BTreeMap<String, Bytes>,
    /// References in a parquet file.
    record_rows: u64,
    /// Number of chunks along each dimension, of arrays by name.
    grids: BTreeMap<String, Vec<u64>>,
}

/// Where the reference of a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Name of the array.
    pub array: &'a str,
    /// Number of the array's parquet file.
    pub record: u64,
    pub row: u64,
}

impl Catalogue {
    /// Key of the JSON file.
    pub const KEY: &'static str = ".zmetadata";
    /// The most references in a parquet file.
    const MOST_ROWS: u64 = 1 << 20;

    /// Reads the JSON file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(document: Vec<u8>) -> Result<Self, String> {
        let parsed = json::parse(&document).map_err(|error| format!("it is no JSON ({error})"))?;
        let record_rows = parsed["record_size"].as_u64().filter(|rows| (1..=Self::MOST_ROWS).contains(rows));
        let record_rows = record_rows.ok_or_else(|| {
            format!(
                "its record_size is {}, not a number from 1 to {}",
                parsed["record_size"],
                Self::MOST_ROWS
            )
        })?;
        let files = parsed["metadata"].as_object().ok_or("it has no \"metadata\"")?;
        let (mut metadata, mut grids) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in files {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let (array, file) = key.rsplit_once('/').unwrap_or(("", key));
            if file == ".zarray" && !array.is_empty() {
                let own = json::parse(text.as_bytes()).unwrap_or_default();
                let grid = grid(&own).ok_or_else(|| format!("\"{key}\" has no shape or no chunks"))?;
                grids.insert(array.to_string(), grid);
            } else if file == "zarr.json" {
                return Err(format!(
                    "\"{key}\" is of Zarr format 3, whose chunks parquet files cannot name: write JSON"
                ));
            }
            metadata.insert(key.clone(), Bytes::from(text));
        }
        metadata.insert(Self::KEY.into(), document.into());
        Ok(Self { metadata, record_rows, grids })
    }

    /// Where the reference of a chunk is. `None` if the key is of no chunk of an array.
    pub fn row(&self, key: &str) -> Option<Row<'_>> {
        let split = |(at, _)| Some((self.grids.get_key_value(&key[..at])?, &key[at + 1..]));
        let ((array, grid), chunk) = key.rmatch_indices('/').find_map(split)?;
        let mut coordinates = chunk.split(['.', '/']).map(|part| {
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<u64>().ok().filter(|_| is_number)
        });
        // An array without dimensions has one chunk.
        let grid = if grid.is_empty() { &[1][..] } else { grid };
        let mut number = 0u64;
        for &extent in grid {
            let coordinate = coordinates.next()??;
            number = number.checked_mul(extent)?.checked_add(coordinate).filter(|_| coordinate < extent)?;
        }
        let (record, row) = (number / self.record_rows, number % self.record_rows);
        coordinates.next().is_none().then_some(Row { array, record, row })
    }

    /// Names of the folders directly below one, as [`folders_below`] has them.
    pub fn folders(&self, below: &str) -> Vec<String> {
        folders_below(&self.metadata, below)
    }

    /// Reads a parquet file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn record(&self, file: Vec<u8>) -> Result<Record, String> {
        // The crate indexes with what the file says.
        let read = catch_unwind(AssertUnwindSafe(|| Record::read(file.into(), self.record_rows)));
        read.unwrap_or_else(|payload| Err(Error::panic("reading a parquet file", &*payload).to_string()))
    }
}

/// Number of chunks along each dimension.
fn grid(array: &Value) -> Option<Vec<u64>> {
    let (shape, chunks) = (array["shape"].as_array()?, array["chunks"].as_array()?);
    let along = |(extent, chunk): (&Value, &Value)| {
        Some(extent.as_u64()?.div_ceil(chunk.as_u64().filter(|&chunk| chunk > 0)?))
    };
    (shape.len() == chunks.len()).then(|| shape.iter().zip(chunks).map(along).collect())?
}

/// The references of a parquet file.
#[derive(Debug)]
pub struct Record {
    rows: Vec<Packed>,
    texts: Texts,
}

impl Record {
    /// The most bytes that a parquet file may have in memory.
    const MOST_BYTES: u64 = 256 << 20;

    fn read(file: Bytes, most_rows: u64) -> Result<Self, String> {
        let damaged = |error: ParquetError| format!("it is damaged ({error})");
        let reader = SerializedFileReader::new(file).map_err(damaged)?;
        let groups = reader.metadata().row_groups();
        let rows = groups.iter().try_fold(0u64, |rows, group| {
            rows.checked_add(u64::try_from(group.num_rows()).ok()?).filter(|&rows| rows <= most_rows)
        });
        if rows.is_none() {
            return Err(format!("it has more rows than the record_size, {most_rows}"));
        }
        let bytes = groups.iter().try_fold(0u64, |bytes, group| {
            let of_group = group.columns().iter().try_fold(0u64, |bytes, column| {
                bytes.checked_add(u64::try_from(column.uncompressed_size()).ok()?)
            });
            bytes.checked_add(of_group?).filter(|&bytes| bytes <= Self::MOST_BYTES)
        });
        if bytes.is_none() {
            return Err(format!("it has more than {} bytes without compression", Self::MOST_BYTES));
        }
        let mut packer = Packer::new(Self::MOST_BYTES);
        let mut packed = vec![];
        for number in 0..reader.num_row_groups() {
            let group = reader.get_row_group(number).map_err(damaged)?;
            let columns = Columns::read(&*group)?;
            for row in 0..columns.rows {
                let reference = columns.pack(row, &mut packer);
                packed.push(reference.map_err(|problem| format!("row {} {problem}", packed.len()))?);
            }
        }
        packed.shrink_to_fit();
        Ok(Self { rows: packed, texts: packer.finish() })
    }

    /// The reference in a row; `None` if there is none.
    ///
    /// # Errors
    /// Rows that the file does not have.
    pub fn get(&self, row: u64) -> Result<Option<Reference>, String> {
        let packed = usize::try_from(row).ok().and_then(|row| self.rows.get(row));
        let packed = packed.ok_or_else(|| format!("it has {} rows and no row {row}", self.rows.len()))?;
        Ok(self.texts.unpack(*packed))
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.rows) as u64 + self.texts.memory_bytes()
    }
}

/// The columns of a row group. One that is not there has no values.
struct Columns {
    rows: usize,
    path: Vec<Option<ByteArray>>,
    raw: Vec<Option<ByteArray>>,
    offset: Vec<Option<i64>>,
    size: Vec<Option<i64>>,
}

impl Columns {
    fn read(group: &dyn RowGroupReader) -> Result<Self, String> {
        let rows = usize::try_from(group.metadata().num_rows()).map_err(|error| error.to_string())?;
        let texts = |name| column(group, name, rows).and_then(|column| column.map_or(Ok(vec![]), texts_of));
        let numbers =
            |name| column(group, name, rows).and_then(|column| column.map_or(Ok(vec![]), numbers_of));
        let columns = Self {
            rows,
            path: texts("path")?,
            raw: texts("raw")?,
            offset: numbers("offset")?,
            size: numbers("size")?,
        };
        if columns.path.is_empty() && columns.raw.is_empty() && rows > 0 {
            return Err("it has neither of the columns \"path\" and \"raw\"".into());
        }
        Ok(columns)
    }

    fn pack(&self, row: usize, packer: &mut Packer) -> Result<Packed, String> {
        if let Some(Some(raw)) = self.raw.get(row) {
            return packer.inline(raw.data());
        }
        let number = |column: &[Option<i64>], name: &str| match column.get(row) {
            None | Some(None) => Ok(0),
            Some(Some(number)) => {
                u64::try_from(*number).map_err(|_| format!("has the {name} {number}, which no object has"))
            }
        };
        let (start, bytes) = (number(&self.offset, "offset")?, number(&self.size, "size")?);
        let Some(Some(path)) = self.path.get(row) else {
            return match (start, bytes) {
                (0, 0) => Ok(Packed::Missing),
                _ => Err(format!("has an offset or a size ({start}, {bytes}) and no path")),
            };
        };
        let path = std::str::from_utf8(path.data()).map_err(|_| "has a path that is no UTF-8")?;
        match (start, bytes) {
            (0, 0) => packer.whole(path),
            (start, bytes) => packer.piece(path, start, bytes),
        }
    }
}

/// A column that is to be read.
struct Column<'a> {
    name: &'a str,
    reader: ColumnReader,
    kind: Type,
    nullable: bool,
    rows: usize,
}

/// A column of a row group, if it is there.
fn column<'a>(group: &dyn RowGroupReader, name: &'a str, rows: usize) -> Result<Option<Column<'a>>, String> {
    let metadata = group.metadata();
    let is_named = |number: &usize| metadata.column(*number).column_path().parts() == [name];
    let Some(number) = (0..metadata.num_columns()).find(is_named) else { return Ok(None) };
    let description = metadata.column(number).column_descr();
    if description.max_rep_level() > 0 || description.max_def_level() > 1 {
        return Err(format!("its column \"{name}\" has lists"));
    }
    let (kind, nullable) = (description.physical_type(), description.max_def_level() > 0);
    let reader =
        group.get_column_reader(number).map_err(|error| format!("its column \"{name}\": {error}"))?;
    Ok(Some(Column { name, reader, kind, nullable, rows }))
}

/// All values of a column.
fn values<T: DataType>(column: Column<'_>) -> Result<Vec<Option<T::T>>, String> {
    let Column { name, reader, nullable, rows, .. } = column;
    let mut reader: ColumnReaderImpl<T> = get_typed_column_reader(reader);
    let (mut levels, mut found) = (vec![], vec![]);
    let read = reader.read_records(rows, Some(&mut levels), None, &mut found);
    let (records, ..) = read.map_err(|error| format!("its column \"{name}\": {error}"))?;
    if records != rows {
        return Err(format!("its column \"{name}\" has {records} of {rows} rows"));
    }
    if !nullable {
        return Ok(found.into_iter().map(Some).collect());
    }
    let mut found = found.into_iter();
    Ok(levels.into_iter().map(|level| found.next_if_level(level)).collect())
}

/// Takes a value where a level says that there is one.
trait NextIfLevel: Iterator {
    fn next_if_level(&mut self, level: i16) -> Option<Self::Item>;
}

impl<I: Iterator> NextIfLevel for I {
    fn next_if_level(&mut self, level: i16) -> Option<Self::Item> {
        if level > 0 { self.next() } else { None }
    }
}

/// The texts of a column. Writers have given one without any the type of Python's `nan`, or of nothing at all.
fn texts_of(column: Column<'_>) -> Result<Vec<Option<ByteArray>>, String> {
    let (name, kind, rows) = (column.name, column.kind, column.rows);
    let is_empty = match kind {
        Type::BYTE_ARRAY => return values::<ByteArrayType>(column),
        Type::DOUBLE => values::<DoubleType>(column)?.iter().flatten().all(|value| value.is_nan()),
        Type::FLOAT => values::<FloatType>(column)?.iter().flatten().all(|value| value.is_nan()),
        Type::INT32 => values::<Int32Type>(column)?.iter().all(Option::is_none),
        _ => false,
    };
    if is_empty {
        Ok(vec![None; rows])
    } else {
        Err(format!("its column \"{name}\" is of type {kind}, not of texts"))
    }
}

fn numbers_of(column: Column<'_>) -> Result<Vec<Option<i64>>, String> {
    let (name, kind) = (column.name, column.kind);
    match kind {
        Type::INT64 => values::<Int64Type>(column),
        Type::INT32 => {
            Ok(values::<Int32Type>(column)?.into_iter().map(|number| number.map(i64::from)).collect())
        }
        _ => Err(format!("its column \"{name}\" is of type {kind}, not of whole numbers")),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    use std::sync::Arc;

    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use proptest::prelude::*;

    /// `path`, `offset`, `size` and `raw`.
    type Values<'a> = (Option<&'a str>, i64, i64, Option<&'a [u8]>);

    const SCHEMA: &str = "message schema { optional binary path (UTF8); required int64 offset; required int64 size; optional binary raw; }";

    /// A file of references in two row groups.
    pub fn parquet(rows: &[Values<'_>]) -> Vec<u8> {
        written(SCHEMA, rows)
    }

    fn written(schema: &str, rows: &[Values<'_>]) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let zstd = Compression::ZSTD(ZstdLevel::default());
        let properties = Arc::new(WriterProperties::builder().set_compression(zstd).build());
        let mut file = vec![];
        let mut writer = SerializedFileWriter::new(&mut file, schema.clone(), properties).unwrap();
        for rows in [&rows[..rows.len() / 2], &rows[rows.len() / 2..]] {
            let texts = |of: fn(&Values<'_>) -> Option<Vec<u8>>| -> (Vec<ByteArray>, Vec<i16>) {
                let levels = rows.iter().map(|row| i16::from(of(row).is_some())).collect();
                (rows.iter().filter_map(of).map(ByteArray::from).collect(), levels)
            };
            let mut group = writer.next_row_group().unwrap();
            for column in schema.get_fields() {
                let mut writer = group.next_column().unwrap().unwrap();
                match column.name() {
                    name if column.get_physical_type() == Type::BYTE_ARRAY => {
                        let (values, levels) = match name {
                            "path" => texts(|row| row.0.map(|path| path.as_bytes().to_vec())),
                            _ => texts(|row| row.3.map(<[u8]>::to_vec)),
                        };
                        writer.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
                    }
                    name => {
                        let of = |row: &Values<'_>| if name == "size" { row.2 } else { row.1 };
                        let values: Vec<i64> = rows.iter().map(of).collect();
                        writer.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
                    }
                }
                writer.close().unwrap();
            }
            group.close().unwrap();
        }
        writer.close().unwrap();
        file
    }

    fn catalogue(record_size: u64) -> Catalogue {
        let document = format!(
            r#"{{"record_size": {record_size}, "metadata": {{".zattrs": {{"x": NaN}}, "a/.zarray": {{"shape": [5, 7], "chunks": [2, 3]}}, "g/s/.zarray": "{{\"shape\": [], \"chunks\": []}}", "/a/.zattrs": {{}}, "g//.zattrs": {{}}}}}}"#
        );
        Catalogue::parse(document.into()).unwrap()
    }

    fn target(name: &str, piece: Option<std::ops::Range<u64>>) -> Option<Reference> {
        Some(Reference::Target { name: name.into(), piece })
    }

    #[test]
    fn chunks_are_rows_in_the_order_of_the_grid() {
        let catalogue = catalogue(4);
        for (key, expected) in [
            ("a/0.0", Some(("a", 0, 0))),
            ("a/1.0", Some(("a", 0, 3))),
            ("a/1/1", Some(("a", 1, 0))),
            ("a/2.2", Some(("a", 2, 0))),
            ("g/s/0", Some(("g/s", 0, 0))),
            ("a/3.0", None),
            ("a/0.3", None),
            ("a/0", None),
            ("a/0.0.0", None),
            ("a/+0.0", None),
            ("a/.0", None),
            ("a/99999999999999999999.0", None),
            ("a", None),
            ("b/0.0", None),
            ("a/.zarray/0.0", None),
        ] {
            let row = catalogue.row(key).map(|row| (row.array, row.record, row.row));
            assert_eq!(row, expected, "{key}");
        }
        assert_eq!(catalogue.folders(""), ["a", "g"]);
        assert_eq!(catalogue.folders("g/"), ["s"]);
        assert_eq!(catalogue.metadata[".zattrs"], &b"{\"x\":\"NaN\"}"[..]);
    }

    #[test]
    fn rows_are_references() {
        let rows: [Values<'_>; 5] = [
            (Some("s3://b/x"), 10, 20, None),
            (None, 0, 0, None),
            (Some("s3://b/x"), 0, 0, None),
            (None, 0, 0, Some(b"\xff\0")),
            (Some("y"), 5, 0, Some(b"base64:AAE=")),
        ];
        let record = catalogue(5).record(parquet(&rows)).unwrap();
        let expected = [
            target("s3://b/x", Some(10..30)),
            None,
            target("s3://b/x", None),
            Some(Reference::Inline(Bytes::from_static(b"\xff\0"))),
            Some(Reference::Inline(Bytes::from_static(b"\0\x01"))),
        ];
        for (row, expected) in (0..).zip(expected) {
            assert_eq!(record.get(row).unwrap(), expected, "{row}");
        }
        assert!(record.get(5).unwrap_err().contains("5 rows and no row 5"));
        assert!(record.memory_bytes() > 0);
        // A file of texts alone, and one of pieces alone.
        let record = catalogue(5).record(written("message m { optional binary raw; }", &rows)).unwrap();
        assert_eq!(record.get(0).unwrap(), None);
        assert!(record.get(3).unwrap().is_some());
        let record = catalogue(5).record(written(
            "message m { optional binary path; required int64 size; required int64 offset; }",
            &rows,
        ));
        assert_eq!(record.unwrap().get(0).unwrap(), target("s3://b/x", Some(10..30)));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (rows, problem) in [
            (&[(Some("x"), -1, 2, None)][..], "offset -1"),
            (&[(Some("x"), 1, -2, None)], "size -2"),
            (&[(None, 0, 2, None)], "row 0 has an offset or a size (0, 2) and no path"),
            (&[(None, 0, 0, None); 6], "more rows than the record_size, 5"),
            (&[(None, 0, 0, Some(&b"base64:A*"[..]))], "row 0 is no base64"),
        ] {
            let error = catalogue(5).record(parquet(rows)).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let rows = [(None, 1, 2, None), (None, 3, 4, None)];
        for (schema, problem) in [
            ("message m { required int64 path; }", "\"path\" is of type INT64"),
            ("message m { required int64 offset; required int64 size; }", "neither of the columns"),
        ] {
            let error = catalogue(5).record(written(schema, &rows)).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        for file in [&b""[..], b"PAR1", b"no parquet at all, but some text"] {
            assert!(catalogue(5).record(file.to_vec()).unwrap_err().contains("damaged"));
        }
        for (document, problem) in [
            ("", "no JSON"),
            ("{}", "record_size is null"),
            (r#"{"record_size": 0, "metadata": {}}"#, "record_size is 0"),
            (r#"{"record_size": 99999999, "metadata": {}}"#, "record_size is 99999999"),
            (r#"{"record_size": 9}"#, "no \"metadata\""),
            (r#"{"record_size": 9, "metadata": {"a/.zarray": {"shape": [4]}}}"#, "a/.zarray"),
            (r#"{"record_size": 9, "metadata": {"a/.zarray": {"shape": [4], "chunks": [0]}}}"#, "a/.zarray"),
            (r#"{"record_size": 9, "metadata": {"a/zarr.json": {}}}"#, "format 3"),
        ] {
            let error = Catalogue::parse(document.into()).unwrap_err();
            assert!(error.contains(problem), "{document}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn a_damaged_file_is_an_error_or_another_one_and_never_a_panic(
            at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>(), cuts in any::<bool>(),
        ) {
            let mut file = parquet(&[(Some("s3://b/x"), 10, 20, None), (None, 0, 0, Some(b"raw")), (Some("y"), 0, 0, None)]);
            let at = at.index(file.len());
            file[at] = with;
            if cuts {
                file.truncate(cut.index(file.len()));
            }
            if let Ok(record) = catalogue(5).record(file) {
                let _ = (record.get(0), record.get(4));
            }
        }
    }
}
