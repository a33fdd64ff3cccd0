// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/chunk_transfer.h"

#include <sys/resource.h>
#include <sys/uio.h>

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "tiering/io/sync_io.h"

namespace stratalloc {
namespace {

// Requests of 1 MiB keep a 2 MiB chunk's two halves in flight together; large
// chunks use up to 4 MiB, eight or so in flight: beyond that NVMe gains
// nothing and the block layer splits again.
constexpr Bytes kSmallestRequest = kMiB;
constexpr Bytes kLargestRequest = 4 * kMiB;
constexpr Bytes kRequestsPerChunk = 8;
constexpr unsigned kRingEntries = 64;

Bytes RequestBytes(Bytes chunk) {
  return std::clamp(RoundUp(chunk / kRequestsPerChunk, kMiB), kSmallestRequest,
                    kLargestRequest);
}

// Of a chunk's payload, in as many pieces as there may be, and its header.
Bytes MostRequests(Bytes chunk) {
  return chunk / RequestBytes(chunk) + FilePlace::kMostPieces + 2;
}

std::string LockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return FormatBytes(limit.rlim_cur);
}

}  // namespace

ChunkTransfer::ChunkTransfer(const Options& options) : options_(options) {
  Open();
  requests_.reserve(MostRequests(options_.max_chunk_bytes));
}

void ChunkTransfer::Open() {
  Result<std::unique_ptr<IoRing>> ring =
      options_.without_io_uring ? Fail(ErrorCode::kUnsupported, "switched off")
                                : IoRing::Create(kRingEntries);
  if (!ring) {
    Log(LogLevel::kInfo,
        "the disk tier works without io_uring, one transfer after the other (" +
            ring.error().message + ")");
    Use(std::make_unique<SyncIo>());
    return;
  }
  uses_ring_ = true;
  RegisterStaging(**ring);
  Use(std::move(*ring));
}

void ChunkTransfer::Use(std::unique_ptr<BlockIo> moves) {
  if (options_.wrap_io) moves = options_.wrap_io(std::move(moves));
  auto io = std::make_unique<DeadlineIo>(std::move(moves), options_.deadline);
  io_now_.store(io.get(), std::memory_order_release);
  io_ = std::move(io);
}

void ChunkTransfer::RegisterStaging(IoRing& ring) {
  if (options_.staging[0] == nullptr || options_.staging[1] == nullptr ||
      options_.max_chunk_bytes == 0) {
    return;
  }
  const iovec buffers[2] = {{options_.staging[0], options_.max_chunk_bytes},
                            {options_.staging[1], options_.max_chunk_bytes}};
  const Status status = options_.without_registration
                            ? Fail(ErrorCode::kUnsupported, "switched off")
                            : ring.Register(buffers, 2);
  registered_ = status.has_value();
  if (registered_) return;
  Log(LogLevel::kInfo,
      "the disk tier's buffers are not registered with io_uring: " +
          status.error().message + "; " +
          FormatBytes(2 * options_.max_chunk_bytes) +
          " needed, the limit on locked memory (ulimit -l) is " +
          LockedMemoryLimit() + ". Transfers cost a little more");
}

int ChunkTransfer::RegisteredBuffer(const char* data, Bytes bytes) const {
  if (!registered_) return -1;
  for (int i = 0; i < 2; ++i) {
    const char* const start = static_cast<const char*>(options_.staging[i]);
    if (data >= start && data + bytes <= start + options_.max_chunk_bytes) {
      return i;
    }
  }
  return -1;
}

void ChunkTransfer::Start(bool write, int fd, char* data,
                          const FilePlace& place, Bytes stored) {
  write_ = write;
  fd_ = fd;
  offset_ = place.offset();
  const Bytes step = RequestBytes(stored);
  // One more for the header: the vector must not move while requests fly.
  requests_.clear();
  requests_.reserve(MostRequests(stored));
  Bytes header_bytes = kIoBlock;
  for (int i = 0; i < place.count; ++i) {
    const FilePlace::Piece& piece = place.pieces[i];
    for (Bytes at = std::exchange(header_bytes, 0); at < piece.bytes;) {
      IoRequest& request = requests_.emplace_back();
      request.write = write;
      request.fd = fd;
      request.data = data;
      request.bytes = std::min(step, piece.bytes - at);
      request.offset = piece.offset + at;
      request.registered_buffer = RegisteredBuffer(request.data, request.bytes);
      io_->Start(&request);
      at += request.bytes;
      data += request.bytes;
    }
  }
  io_->Flush();
}

int ChunkTransfer::Finish() {
  IoRequest& request = requests_.emplace_back();
  request.write = write_;
  request.fd = fd_;
  request.data = header();
  request.bytes = kIoBlock;
  request.offset = offset_;
  io_->Start(&request);
  return io_->Finish();
}

bool ChunkTransfer::LeaveBrokenRing() {
  if (!io_->broken()) return false;
  Log(LogLevel::kWarning,
      "io_uring stopped taking requests; the disk tier goes on without it, "
      "one transfer after the other");
  // A thread may be asking the old one.
  broken_ = std::move(io_);
  Use(std::make_unique<SyncIo>());
  uses_ring_ = false;
  registered_ = false;
  return true;
}

}  // namespace stratalloc
