// Decodes the streams of standard input on the host, and compares with what is expected of them.
//
// A record: encoded bytes, decoded bytes, expected status (255: any error), checksum of the decoded
// bytes, lanes (1 or 32), offset of both buffers; then the encoded bytes. Buffers are on the heap,
// of exact size, so that AddressSanitizer sees every stray access.

#include "inflate.cuh"

#include <cstring>

#include "lanes.h"

namespace {

struct Record {
  uint32_t from_bytes, to_bytes, status, checksum, lanes, offset;
};

uint32_t crc32(const uint8_t* data, size_t bytes) {
  uint32_t table[256];
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320 : 0);
  }
  uint32_t value = ~0u;
  for (size_t i = 0; i < bytes; ++i) value = value >> 8 ^ table[(value ^ data[i]) & 255];
  return ~value;
}

}  // namespace

int main() {
  Crew<32> crew;
  Record record;
  uint64_t count = 0, accepted = 0, wrong = 0;
  for (; read_input(&record, sizeof(record)); ++count) {
    const Exact from(record.from_bytes, record.offset), to(record.to_bytes, record.offset / 4);
    if (!read_input(from.get(), record.from_bytes)) return 3;
    memset(to.get(), 0x55, record.to_bytes);
    const auto shared = std::make_unique<deflate::Shared>();
    memset(static_cast<void*>(shared.get()), 0xaa, sizeof(*shared));
    const Stream stream{from.address(), to.address(), record.from_bytes, record.to_bytes, 0};

    uint32_t status = 0;
    if (record.lanes == 1) {
      status = deflate::Decoder<OneLane>(OneLane(), *shared, stream).run();
    } else {
      crew.run(count % 2, [&](Crew<32>::Lane lane) {
        const uint32_t own = deflate::Decoder<Crew<32>::Lane>(lane, *shared, stream).run();
        if (lane.lane() == 0) status = own;
      });
    }
    accepted += status == 0;
    const bool expected = record.status == 255 ? status != 0 : status == record.status;
    if (!expected || (status == 0 && crc32(to.get(), record.to_bytes) != record.checksum)) {
      ++wrong;
      fprintf(stderr, "record %llu, %u lanes, %u to %u bytes: status %u, expected %u%s\n",
              static_cast<unsigned long long>(count), record.lanes, record.from_bytes,
              record.to_bytes, status, record.status, expected ? ", other bytes" : "");
    }
  }
  printf("%llu %llu\n", static_cast<unsigned long long>(count),
         static_cast<unsigned long long>(accepted));
  return wrong ? 1 : 0;
}
