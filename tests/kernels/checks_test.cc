// Computes the checksums, and undoes the deltas, of the records of standard input on the host.
//
// A record: kind (a CheckKind; 64 + element size: delta), lanes (1 or 64), offset of the buffer,
// expected checksum, size in bytes; then the data, and for a delta the expected data. Buffers are
// on the heap, of exact size, so that AddressSanitizer sees every stray access.

#include "checks.cuh"

#include <cstring>

#include "delta.cuh"
#include "lanes.h"

namespace {

struct Record {
  uint32_t kind, lanes, offset, expected, bytes;
};

constexpr uint32_t kDelta = 64;

bool check(Crew<64>& crew, const Record& record, const Exact& data, bool backwards) {
  const Check check{data.address(), record.bytes, record.expected, 0, record.kind, 0};
  const auto shared = std::make_unique<checks::Shared>();
  memset(static_cast<void*>(shared.get()), 0xaa, sizeof(*shared));
  if (record.lanes == 1) return checks::checksum(OneLane(), *shared, check) == record.expected;
  uint32_t wrong = 0;
  crew.run(backwards, [&](Crew<64>::Lane lane) {
    wrong += checks::checksum(lane, *shared, check) != record.expected;
  });
  return wrong == 0;
}

bool undo_delta(Crew<64>& crew, const Record& record, const Exact& data, bool backwards) {
  const Exact expected(record.bytes, 0);
  if (!read_input(expected.get(), record.bytes)) exit(3);
  const uint32_t element_bytes = record.kind - kDelta;
  const Delta chunk{data.address(), record.bytes / element_bytes, element_bytes, 0};
  if (record.lanes == 1) {
    delta::undo(OneLane(), chunk);
  } else {
    crew.run(backwards, [&](Crew<64>::Lane lane) { delta::undo(lane, chunk); });
  }
  return memcmp(data.get(), expected.get(), record.bytes) == 0;
}

}  // namespace

int main() {
  Crew<64> crew;
  Record record;
  unsigned long count = 0, wrong = 0;
  for (; read_input(&record, sizeof(record)); ++count) {
    const Exact data(record.bytes, record.offset);
    if (!read_input(data.get(), record.bytes)) return 3;
    const auto task = record.kind > kDelta ? undo_delta : check;
    if (!task(crew, record, data, count % 2)) {
      ++wrong;
      fprintf(stderr, "record %lu: kind %u, %u lanes, %u bytes at offset %u\n", count, record.kind,
              record.lanes, record.bytes, record.offset);
    }
  }
  printf("%lu\n", count);
  return wrong ? 1 : 0;
}
