// SPDX-License-Identifier: Apache-2.0
// How a chunk's payload is stored: as it is, or compressed by lz4 or zstd, with
// its bytes taken into planes first (byte_planes.h) where that helps. What
// helps is found out from each chunk's own bytes: samples of it are compressed
// at every width, and planes that do not get smaller are stored as they are.
//
//   encoded: | lengths, uint32 each | streams, one after the other | zeros |
//
// One stream for each plane of each block of 512 KiB. A stream as long as its
// plane is the plane itself; else it is compressed. Zeros up to 4 KiB.
//
// Thread-safety: none; whoever has it is alone.
// Allocates: in the constructor alone, which throws nothing: has_memory() tells
// whether there was enough. Pages that are never used cost nothing.
// Fails: Encode gives the plain bytes where too little is saved. Decode says
// false for what no Encode made, whatever it is.
#ifndef STRATALLOC_TIERING_IO_CODEC_H_
#define STRATALLOC_TIERING_IO_CODEC_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "allocator/base/bytes.h"

namespace stratalloc {

// The numbers are in chunk headers.
enum class DiskCodec : std::uint8_t { kOff = 0, kLz4 = 1, kZstd = 2 };

const char* DiskCodecName(DiskCodec codec);  // "off", "lz4", "zstd"
std::optional<DiskCodec> DiskCodecOf(std::string_view name);

// How the bytes of one chunk are stored.
struct Stored {
  DiskCodec codec = DiskCodec::kOff;
  int width = 1;    // of the elements whose bytes were taken apart
  Bytes bytes = 0;  // whole blocks of 4 KiB
};

class ChunkCodec {
 public:
  explicit ChunkCodec(Bytes max_chunk_bytes);
  ~ChunkCodec();
  // Else nothing below may be called.
  bool has_memory() const;
  // What one takes at most, beside itself.
  static Bytes WorkspaceBytes(Bytes max_chunk_bytes);

  // Of `bytes` of `data`, which both may be anything. kOff: `data` is stored as
  // it is; else what is stored lies in buffer().
  Stored Encode(DiskCodec codec, const void* data, Bytes bytes);
  // buffer() has `stored.bytes` of an encoded chunk of `bytes`; they become
  // plain bytes in `to`. REQUIRES: both fit the largest chunk.
  bool Decode(const Stored& stored, void* to, Bytes bytes);
  // Page-aligned, of the largest chunk's size.
  char* buffer() const;

 private:
  struct Workspace;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_CODEC_H_
