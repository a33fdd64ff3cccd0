// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/codec.h"

#define ZSTD_STATIC_LINKING_ONLY  // contexts in memory that we give
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

#include "tiering/io/byte_planes.h"
#include "tiering/io/chunk.h"

namespace stratalloc {
namespace {

// A plane of fp32 is then one block of zstd, whose tables fit it alone.
constexpr Bytes kPlaneBlock = 512 * kKiB;
constexpr int kWidths[] = {1, 2, 4, 8};
constexpr int kMostPlanes = 8;
// Less is not worth the time that it takes to read it back.
constexpr Bytes kLeastSaving = 16;  // 1/16
// Taking apart and joining costs a pass over the chunk.
constexpr Bytes kLeastGain = 32;  // 1/32
constexpr Bytes kSamplePage = kIoBlock;
constexpr Bytes kFewestPieces = 8, kMostPieces = 32;
constexpr Bytes kBytesPerPiece = 256 * kKiB;
constexpr int kZstdLevel = 1;
constexpr int kLz4Acceleration = 1;

constexpr const char* kNames[] = {"off", "lz4", "zstd"};

class Pages {
 public:
  explicit Pages(Bytes bytes)
      : data_(operator new(std::max(bytes, kIoBlock),
                           std::align_val_t(kIoBlock), std::nothrow)) {}
  ~Pages() { operator delete(data_, std::align_val_t(kIoBlock)); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* const data_;
};

struct Choice {
  int width = 1;
  bool compressible[kMostPlanes] = {};
  bool worth_it = false;
};

Bytes Streams(Bytes bytes, int width) {
  return (bytes + kPlaneBlock - 1) / kPlaneBlock * static_cast<Bytes>(width);
}

}  // namespace

const char* DiskCodecName(DiskCodec codec) {
  return kNames[static_cast<int>(codec)];
}

std::optional<DiskCodec> DiskCodecOf(std::string_view name) {
  const auto* const found =
      std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<DiskCodec>(found - std::begin(kNames));
}

struct ChunkCodec::Workspace {
  explicit Workspace(Bytes most)
      : encoded(most),
        most_bytes(most),
        planes(kPlaneBlock),
        scratch(kPlaneBlock),
        lz4(static_cast<Bytes>(LZ4_sizeofState())),
        zstd_out(ZSTD_estimateCCtxSize(kZstdLevel)),
        zstd_in(ZSTD_estimateDCtxSize()),
        compressor(
            zstd_out.data() == nullptr
                ? nullptr
                : ZSTD_initStaticCCtx(zstd_out.data(),
                                      ZSTD_estimateCCtxSize(kZstdLevel))),
        decompressor(zstd_in.data() == nullptr
                         ? nullptr
                         : ZSTD_initStaticDCtx(zstd_in.data(),
                                               ZSTD_estimateDCtxSize())) {}

  bool has_memory() const {
    return encoded.data() != nullptr && planes.data() != nullptr &&
           scratch.data() != nullptr && lz4.data() != nullptr &&
           compressor != nullptr && decompressor != nullptr;
  }

  const Pages encoded;
  const Bytes most_bytes;
  const Pages planes;   // of one block
  const Pages scratch;  // the samples, and what becomes of them
  const Pages lz4, zstd_out, zstd_in;
  ZSTD_CCtx* const compressor;
  ZSTD_DCtx* const decompressor;

  Bytes Compress(DiskCodec codec, const char* from, Bytes bytes, char* to,
                 Bytes room);
  bool Decompress(DiskCodec codec, const char* from, Bytes stored, char* to,
                  Bytes bytes);
  Choice Choose(DiskCodec codec, const char* data, Bytes bytes);
  Bytes EncodeBlocks(DiskCodec codec, const Choice& choice, const char* data,
                     Bytes bytes, Bytes most);
};

// How many bytes it became, 0 if they do not fit into `room`.
Bytes ChunkCodec::Workspace::Compress(DiskCodec codec, const char* from,
                                      Bytes bytes, char* to, Bytes room) {
  if (codec == DiskCodec::kLz4) {
    return static_cast<Bytes>(LZ4_compress_fast_extState(
        lz4.data(), from, to, static_cast<int>(bytes), static_cast<int>(room),
        kLz4Acceleration));
  }
  const std::size_t size =
      ZSTD_compressCCtx(compressor, to, room, from, bytes, kZstdLevel);
  return ZSTD_isError(size) != 0 ? 0 : size;
}

// True if `stored` bytes are all of a stream of exactly `bytes`.
bool ChunkCodec::Workspace::Decompress(DiskCodec codec, const char* from,
                                       Bytes stored, char* to, Bytes bytes) {
  if (codec == DiskCodec::kLz4) {
    return LZ4_decompress_safe(from, to, static_cast<int>(stored),
                               static_cast<int>(bytes)) ==
           static_cast<int>(bytes);
  }
  return codec == DiskCodec::kZstd &&
         ZSTD_decompressDCtx(decompressor, to, bytes, from, stored) == bytes;
}

Choice ChunkCodec::Workspace::Choose(DiskCodec codec, const char* data,
                                     Bytes bytes) {
  const Bytes pieces =
      std::min(std::clamp(bytes / kBytesPerPiece, kFewestPieces, kMostPieces),
               bytes / kSamplePage);
  const Bytes sampled = pieces * kSamplePage;
  // From the ends and evenly between, on whole pages.
  char* const sample = scratch.data();
  for (Bytes i = 0; i < pieces; ++i) {
    const Bytes last = bytes / kSamplePage - 1;
    const Bytes page = pieces == 1 ? 0 : last * i / (pieces - 1);
    std::memcpy(sample + i * kSamplePage, data + page * kSamplePage,
                kSamplePage);
  }
  char* const out = sample + sampled;
  Choice best;
  Bytes least = sampled;
  for (const int width : kWidths) {
    SplitPlanes(sample, sampled, width, planes.data());
    const Bytes plane = sampled / static_cast<Bytes>(width);
    Choice choice{width, {}, true};
    Bytes size = 0;
    for (int i = 0; i < width; ++i) {
      const Bytes small = plane - plane / kLeastSaving;
      const Bytes got =
          Compress(codec, planes.data() + static_cast<Bytes>(i) * plane, plane,
                   out, small);
      choice.compressible[i] = got != 0;
      size += got != 0 ? got : plane;
    }
    const Bytes gain = width == 1 ? 0 : sampled / kLeastGain;
    if (size + gain >= least) continue;
    least = size;
    best = choice;
  }
  best.worth_it = least + sampled / kLeastSaving <= sampled;
  return best;
}

// What it took, lengths included; 0 if that is more than `most`.
Bytes ChunkCodec::Workspace::EncodeBlocks(DiskCodec codec, const Choice& choice,
                                          const char* data, Bytes bytes,
                                          Bytes most) {
  const auto width = static_cast<Bytes>(choice.width);
  char* length_at = encoded.data();
  Bytes used = Streams(bytes, choice.width) * sizeof(std::uint32_t);
  for (Bytes at = 0; at < bytes; at += kPlaneBlock) {
    const Bytes block = std::min(kPlaneBlock, bytes - at);
    const char* from = data + at;
    if (choice.width != 1) {
      SplitPlanes(from, block, choice.width, planes.data());
      from = planes.data();
    }
    const Bytes plane = block / width;
    for (Bytes i = 0; i < width; ++i, from += plane) {
      if (used >= most) return 0;
      char* const to = encoded.data() + used;
      Bytes size = 0;
      if (choice.compressible[i]) {
        size =
            Compress(codec, from, plane, to, std::min(most - used, plane - 1));
      }
      if (size == 0) {
        size = plane;
        if (size > most - used) return 0;
        std::memcpy(to, from, plane);
      }
      const auto length = static_cast<std::uint32_t>(size);
      std::memcpy(length_at, &length, sizeof(length));
      length_at += sizeof(length);
      used += size;
    }
  }
  return used;
}

ChunkCodec::ChunkCodec(Bytes max_chunk_bytes)
    : workspace_(new (std::nothrow) Workspace(max_chunk_bytes)) {}
ChunkCodec::~ChunkCodec() = default;

bool ChunkCodec::has_memory() const {
  return workspace_ != nullptr && workspace_->has_memory();
}

Bytes ChunkCodec::WorkspaceBytes(Bytes max_chunk_bytes) {
  return max_chunk_bytes + 2 * kPlaneBlock +
         static_cast<Bytes>(LZ4_sizeofState()) +
         ZSTD_estimateCCtxSize(kZstdLevel) + ZSTD_estimateDCtxSize();
}

char* ChunkCodec::buffer() const { return workspace_->encoded.data(); }

Stored ChunkCodec::Encode(DiskCodec codec, const void* data, Bytes bytes) {
  const Stored plain{DiskCodec::kOff, 1, bytes};
  const Bytes most = RoundDown(bytes - bytes / kLeastSaving, kIoBlock);
  if (codec == DiskCodec::kOff || bytes % kIoBlock != 0 ||
      bytes > workspace_->most_bytes || most == 0 || most == bytes) {
    return plain;
  }
  const auto* const from = static_cast<const char*>(data);
  const Choice choice = workspace_->Choose(codec, from, bytes);
  if (!choice.worth_it) return plain;
  const Bytes used = workspace_->EncodeBlocks(codec, choice, from, bytes, most);
  if (used == 0) return plain;
  const Bytes stored = RoundUp(used, kIoBlock);
  std::memset(buffer() + used, 0, stored - used);
  return {codec, choice.width, stored};
}

bool ChunkCodec::Decode(const Stored& stored, void* to, Bytes bytes) {
  if (std::find(std::begin(kWidths), std::end(kWidths), stored.width) ==
      std::end(kWidths)) {
    return false;
  }
  const auto width = static_cast<Bytes>(stored.width);
  const Bytes streams = Streams(bytes, stored.width);
  Bytes used = streams * sizeof(std::uint32_t);
  if (bytes % kIoBlock != 0 || used > stored.bytes) return false;
  const char* length_at = buffer();
  for (Bytes at = 0; at < bytes; at += kPlaneBlock) {
    const Bytes block = std::min(kPlaneBlock, bytes - at);
    const Bytes plane = block / width;
    char* const whole = static_cast<char*>(to) + at;
    char* plain = width == 1 ? whole : workspace_->planes.data();
    for (Bytes i = 0; i < width; ++i, plain += plane) {
      std::uint32_t length = 0;
      std::memcpy(&length, length_at, sizeof(length));
      length_at += sizeof(length);
      if (length == 0 || length > plane || length > stored.bytes - used) {
        return false;
      }
      const char* const from = buffer() + used;
      if (length == plane) {
        std::memcpy(plain, from, plane);
      } else if (!workspace_->Decompress(stored.codec, from, length, plain,
                                         plane)) {
        return false;
      }
      used += length;
    }
    if (width != 1) {
      JoinPlanes(workspace_->planes.data(), block, stored.width, whole);
    }
  }
  return RoundUp(used, kIoBlock) == stored.bytes;
}

}  // namespace stratalloc
