// SPDX-License-Identifier: Apache-2.0
// Host memory in a spill file, for programs that want it there without a
// device: any bytes at any address, cut into the disk tier's chunks.
//
// Thread-safety: every method but the destructor; one at a time has the file.
// Blocks: Write and Read wait for the disk, Close for whoever is at it.
// Fails: as the disk tier does, naming directory, quota and cause;
// kHostOutOfMemory, where there is no memory to work with; kShutdown
// after Close and in the child of a fork; kInvalidArgument for a ticket that is
// not held, or a length that is not its.
// After fork: the child's Close lets go of the file and takes no lock.
// Lifetime: after Close no descriptor is open and no ticket is held.
#ifndef STRATALLOC_TIERING_IO_HOST_SPILL_H_
#define STRATALLOC_TIERING_IO_HOST_SPILL_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/mutex.h"
#include "allocator/base/result.h"
#include "tiering/io/disk_tier.h"

namespace stratalloc {

class HostSpill {
 public:
  struct Options {
    std::string directory;  // "" = $TMPDIR or /tmp
    Bytes quota = 0;
    DiskCodec codec = DiskCodec::kOff;
    WrapIo wrap_io = {};  // see DiskTier::Options
  };
  struct Numbers {
    Bytes used = 0;     // of what is held
    Bytes stored = 0;   // of the quota, that it takes
    Bytes written = 0;  // ever
  };

  static Result<std::unique_ptr<HostSpill>> Open(const Options& options);
  ~HostSpill();

  // A ticket for `bytes` of `data`; 0 bytes have one, too.
  Result<std::uint64_t> Write(const void* data, Bytes bytes);
  // All of the ticket, verified. On failure `to` may have some of it.
  Status Read(std::uint64_t ticket, void* to, Bytes bytes);
  Status Free(std::uint64_t ticket);
  // Zeros but for `written` once it is closed.
  Numbers Count();
  void Close();
  bool in_child() const;

 private:
  struct Held {
    Bytes bytes = 0;
    std::vector<DiskChunk> chunks;
  };
  explicit HostSpill(const Options& options);
  static Result<std::unique_ptr<HostSpill>> TryOpen(const Options& options);
  Status CheckOwner() const;
  Status CheckOpen() const REQUIRES(mutex_);
  Result<Held*> Find(std::uint64_t ticket) REQUIRES(mutex_);
  void Abandon() STRATALLOC_TS(no_thread_safety_analysis);
  Status WritePieces(const char* data, std::uint64_t ticket, Held* held)
      REQUIRES(mutex_);
  Status ReadPieces(const Held& held, char* to) REQUIRES(mutex_);
  void FreePieces(const Held& held) REQUIRES(mutex_);
  Result<std::uint64_t> TryWrite(const char* data, Bytes bytes)
      REQUIRES(mutex_);
  tl::unexpected<Error> Failed(const char* verb, Bytes bytes, Error error) const
      REQUIRES(mutex_);

  const Options options_;
  const pid_t owner_;
  Mutex mutex_{LockRank::kTier};
  std::unique_ptr<DiskTier> tier_ GUARDED_BY(mutex_);  // nullptr: closed
  // What is not made of whole pages goes through it.
  void* const staging_;
  std::map<std::uint64_t, Held> held_ GUARDED_BY(mutex_);
  std::uint64_t last_ticket_ GUARDED_BY(mutex_) = 0;
  Bytes used_ GUARDED_BY(mutex_) = 0, written_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_HOST_SPILL_H_
