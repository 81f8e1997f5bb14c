#pragma once
#include <cstdint>
// One compressed stream: decoded by one warp. Mirrored by the Rust host code.
struct Stream {
  uint64_t from;        // address of the encoded bytes, any alignment
  uint64_t to;          // address of the decoded bytes, any alignment
  uint32_t from_bytes;  // encoded size; nothing outside is ever read
  uint32_t to_bytes;    // decoded size, exact: more or less is an error; nothing outside is ever written
  uint64_t status;      // address of a uint32_t that receives the first error, 0 stays if all is well
};
enum StreamError : uint32_t { kStreamOk = 0, kStreamTruncated = 1, kStreamTooLong = 2, kStreamBadOffset = 3, kStreamTooShort = 4, kStreamBadHeader = 5, kStreamBadCode = 6, kStreamChecksum = 7, kStreamTrailing = 8 };
