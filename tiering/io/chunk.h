// SPDX-License-Identifier: Apache-2.0
// What lies in the spill file for one handle: a header block, then the
// payload.
//
//   offset            offset + 4096                    offset + 4096 + stored
//   | header, 4 KiB   | payload (a multiple of 4 KiB)  |
//
// The payload is the bytes themselves or what a codec made of them (codec.h).
// The header repeats who the chunk is (identity, generation), how long it is,
// how it is stored and in how many bytes, the XXH3-64 of its bytes and that of
// its payload (the same, if that is the bytes themselves), and ends with the
// XXH3-64 of itself. A read compares it with what the caller remembers: a
// misplaced write, a stale chunk and a flipped bit are told apart, and none
// passes.
//
// Thread-safety: pure functions.
#ifndef STRATALLOC_TIERING_IO_CHUNK_H_
#define STRATALLOC_TIERING_IO_CHUNK_H_

#include <cstdint>
#include <string>

#include "allocator/base/bytes.h"

namespace stratalloc {

// The unit of O_DIRECT on every disk there is, and a page.
inline constexpr Bytes kIoBlock = 4096;

struct ChunkHeader {
  std::uint64_t magic;  // kChunkMagic
  std::uint64_t identity;
  std::uint64_t generation;
  std::uint64_t bytes;             // of the handle's memory
  std::uint64_t stored;            // of the payload
  std::uint32_t codec;             // DiskCodec
  std::uint32_t width;             // of the elements taken into planes
  std::uint64_t checksum;          // XXH3-64 of the bytes
  std::uint64_t payload_checksum;  // XXH3-64 of the payload
  std::uint64_t header_checksum;   // XXH3-64 of the fields above; last
};
static_assert(sizeof(ChunkHeader) == 72);

inline constexpr std::uint64_t kChunkMagic = 0x32306b6e75686373;  // schunk02

// XXH3-64, about 10 GB/s or more per core: far above any disk.
std::uint64_t PayloadChecksum(const void* data, Bytes bytes);

// Fills a block of kIoBlock bytes. `header`: all but magic and header_checksum.
void WriteHeader(void* block, ChunkHeader header);

// "" if the block holds exactly this header, else what differs, for people.
std::string CompareHeader(const void* block, const ChunkHeader& expected);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_CHUNK_H_
