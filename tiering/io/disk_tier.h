// SPDX-License-Identifier: Apache-2.0
// The disk tier: handle contents in one unnamed spill file (O_TMPFILE, 0600),
// moved by io_uring with O_DIRECT, compressed where that saves enough
// (codec.h), each chunk stamped with identity, generation and XXH3-64, all
// checked on the way back.
//
// Thread-safety: every method, from any thread. Locks: one for a transfer
// (LockRank::kDisk), held across it; one for what of the file is free.
// Blocks: Write and Read wait for the disk, and for transfers of other threads;
// Free and the counters do not.
// Fails: kIo with errno's text and the directory when the disk fails, does not
// answer in time or is full (the caller keeps the bytes where they are; after
// repeated failures the tier goes offline and says so once); kCorrupt when what
// came back is not what was written. After fork: the child calls
// AbandonAfterFork(); every later call fails with kShutdown and nothing is
// submitted to the parent's ring.
#ifndef STRATALLOC_TIERING_IO_DISK_TIER_H_
#define STRATALLOC_TIERING_IO_DISK_TIER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/result.h"
#include "tiering/io/block_io.h"
#include "tiering/io/codec.h"
#include "tiering/io/spill_file.h"

namespace stratalloc {

// Where a chunk lies and what it must look like when read back.
struct DiskChunk {
  FilePlace place;  // the header, then what is stored
  Bytes bytes = 0;  // 0 = no chunk
  std::uint64_t identity = 0;
  std::uint64_t generation = 0;
  std::uint64_t checksum = 0;  // XXH3-64 of the bytes
  Stored stored;               // what lies in the file
  std::uint64_t payload_checksum = 0;

  explicit operator bool() const { return bytes != 0; }
};

class DiskTier {
 public:
  static constexpr std::chrono::nanoseconds kNoDeadline =
      std::chrono::nanoseconds::max();
  struct Options {
    std::string directory;  // must exist; "" = $TMPDIR or /tmp
    Bytes budget = 0;       // quota of the file
    Bytes max_chunk_bytes = 0;
    // Two page-aligned pinned buffers of max_chunk_bytes each; registered with
    // io_uring where the kernel lets us.
    void* staging[2] = {nullptr, nullptr};
    DiskCodec codec = DiskCodec::kOff;  // where Write is not told another
    // For max_chunk_bytes, with its memory; nullptr: Open makes one.
    std::shared_ptr<ChunkCodec> coder = nullptr;
    SpillNames names = {};
    // None: nothing is between.
    WrapIo wrap_io = {};
    // For one chunk. A disk that takes longer does not answer: memory that it
    // was to fill may be freed only once stuck() is false.
    std::chrono::nanoseconds deadline = std::chrono::seconds(60);
    // What is not even tried, as if the kernel or the file system had refused
    // it.
    struct Without {
      bool io_uring = false;
      bool registration = false;
      bool tmpfile = false;
      bool direct = false;
    } without = {};
  };
  // kHostOutOfMemory: there is no memory for what it works with.
  static Result<std::unique_ptr<DiskTier>> Open(const Options& options);
  ~DiskTier();

  // Writes `bytes` (a multiple of 4096) from page-aligned `data`. `codec`: of
  // this chunk, else the tier's.
  Result<DiskChunk> Write(const void* data, Bytes bytes, std::uint64_t identity,
                          std::uint64_t generation,
                          std::optional<DiskCodec> codec = std::nullopt);
  // Reads the chunk into page-aligned `to` and verifies it.
  Status Read(const DiskChunk& chunk, void* to);
  // Did the last Write fail because the budget has no room?
  bool spent() const;
  void Free(const DiskChunk& chunk);

  // What a chunk of `bytes` takes of the budget at most: its header is beside
  // it.
  static Bytes FileBytes(Bytes bytes);
  // What this one takes.
  static Bytes FileBytes(const DiskChunk& chunk);
  // Within the budget, even if nothing of it can be saved by a codec. A
  // Write that is asked for nevertheless succeeds if what it stores has room.
  bool HasRoom(Bytes bytes) const;
  // What was ever written, and the bytes that it was stored in, both without
  // headers.
  Bytes written() const;
  Bytes written_stored() const;
  Bytes used() const;
  Bytes peak() const;
  Bytes budget() const;
  bool offline() const;
  // A transfer came too late and has not ended: Write and Read fail at once,
  // and what the late one was to read into is the kernel's still.
  bool stuck() const;
  Status CheckAnswers() const;           // fails then, with the reason
  const std::string& directory() const;  // where the file is
  // "io_uring, O_DIRECT, registered buffers" or what it fell back to.
  std::string Mode() const;
  void AbandonAfterFork();

 private:
  struct State;
  explicit DiskTier(std::unique_ptr<State> state);
  static Result<std::unique_ptr<DiskTier>> TryOpen(const Options& options);
  std::unique_ptr<State> state_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_DISK_TIER_H_
