// SPDX-License-Identifier: Apache-2.0
// The way of one chunk between memory and the spill file: its requests, the
// block of its header, and what moves them: io_uring or system calls, on a
// thread with a deadline.
//
//   Start (the payload is on its way) -> fill header() -> Finish
//
// Thread-safety: stuck(), uses_ring() and registered() from any thread, the
// rest by one caller at a time. Errors: Finish returns an errno; ETIMEDOUT
// where the disk did not answer. While stuck() nothing may be started, and the
// memory of the late transfer is the kernel's. Lifetime: the destructor waits
// for what is in flight.
#ifndef STRATALLOC_TIERING_IO_CHUNK_TRANSFER_H_
#define STRATALLOC_TIERING_IO_CHUNK_TRANSFER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "allocator/base/bytes.h"
#include "tiering/io/block_io.h"
#include "tiering/io/chunk.h"
#include "tiering/io/deadline_io.h"
#include "tiering/io/io_ring.h"
#include "tiering/io/spill_file.h"

namespace stratalloc {

class ChunkTransfer {
 public:
  struct Options {
    // Page-aligned pinned buffers of max_chunk_bytes, registered with io_uring
    // where the kernel allows it.
    void* staging[2] = {nullptr, nullptr};
    Bytes max_chunk_bytes = 0;
    WrapIo wrap_io = {};
    std::chrono::nanoseconds deadline{};  // of one chunk
    bool without_io_uring = false;
    bool without_registration = false;
  };
  explicit ChunkTransfer(const Options& options);
  ChunkTransfer(const ChunkTransfer&) = delete;
  ChunkTransfer& operator=(const ChunkTransfer&) = delete;

  // `place`: the header, then `stored` bytes.
  void Start(bool write, int fd, char* data, const FilePlace& place,
             Bytes stored);
  char* header() const { return header_.data(); }
  // The header goes behind, and all of it is waited for.
  int Finish();
  // Has the ring failed, and is the transfer worth another try without it?
  bool LeaveBrokenRing();
  bool stuck() const {
    const DeadlineIo* const io = io_now_.load(std::memory_order_acquire);
    return io != nullptr && io->stuck();
  }
  std::chrono::nanoseconds deadline() const { return options_.deadline; }
  bool uses_ring() const { return uses_ring_; }
  bool registered() const { return registered_; }
  void AbandonAfterFork() { io_->AbandonAfterFork(); }

 private:
  // One page, for headers.
  class Block {
   public:
    Block() : data_(operator new(kIoBlock, std::align_val_t(kIoBlock))) {}
    ~Block() { operator delete(data_, std::align_val_t(kIoBlock)); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    char* data() const { return static_cast<char*>(data_); }

   private:
    void* const data_;
  };

  void Open();
  void Use(std::unique_ptr<BlockIo> moves);
  void RegisterStaging(IoRing& ring);
  int RegisteredBuffer(const char* data, Bytes bytes) const;

  const Options options_;
  Block header_;
  std::vector<IoRequest> requests_;  // reserved for the largest chunk
  // They end before what their requests name.
  std::unique_ptr<DeadlineIo> broken_, io_;
  std::atomic<const DeadlineIo*> io_now_{nullptr};
  std::atomic<bool> uses_ring_{false}, registered_{false};
  // Of the chunk under way:
  bool write_ = false;
  int fd_ = -1;
  std::uint64_t offset_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_CHUNK_TRANSFER_H_
