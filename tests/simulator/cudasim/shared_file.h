// SPDX-License-Identifier: Apache-2.0
//
// shared_file.h: the memory file behind a device, and how another process
// finds its way into it. The first 2 MiB describe the rest: whose file it is,
// and a table of what was exported from it. Physical memory starts behind.
//
// A process that got a handle opens /proc/PID/fd/N of the owner. That needs no
// privilege beyond being the same user, works between any two processes that
// see each other's number, and ends with the owner's life, as on a device.
//
// Whether someone else uses a range is told by a lock on it: an importer holds
// a shared lock on the range through its own open file, the owner tries an
// exclusive one. The kernel drops the lock with the importer's death, so
// there is no count that could go wrong.
//
// A file descriptor made by Export() is such an open file by itself, so it
// holds the memory as CUDA says; its file position names the table entry.
//
// Lifetime: shared by those who use it; the last one closes and unmaps it.
// Thread-safety: under the simulator's lock, except that the fields other
// processes write are atomic.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_SHARED_FILE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_SHARED_FILE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cudasim {

// Random, one per process: a process number may come back, this does not.
struct ProcessToken {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const ProcessToken&) const = default;
  auto operator<=>(const ProcessToken&) const = default;
};
const ProcessToken& OwnToken();
// A forked child is another process. REQUIRES: no other thread runs.
void RenewOwnToken();

// What another process may know of an exported extent or event. An `id` of 0:
// gone, or free. Padded, so that a table entry never straddles a page.
struct alignas(64) SharedExtent {
  std::atomic<uint64_t> id;
  uint64_t offset;
  uint64_t bytes;
  int32_t location;
  int32_t device;
  uint32_t handle_types;
  uint32_t rdma_capable;
  std::atomic<int32_t> last_opened_by;  // a process, for violation texts
};
struct alignas(16) SharedEvent {
  std::atomic<uint64_t> id;
  std::atomic<uint64_t> records;
};

struct SharedHeader {
  static constexpr uint64_t kMagic = 0x31304d4953414455;  // "UDASIM01"
  static constexpr uint32_t kExtents = 16384;
  static constexpr uint32_t kEvents = 32768;

  uint64_t magic;
  ProcessToken token;
  int32_t pid;
  int32_t device;  // -1: memory located on the host
  alignas(4096) SharedExtent extents[kExtents];
  SharedEvent events[kEvents];
};

class SharedFile {
 public:
  // Where memory starts: the first 2 MiB are the header.
  static constexpr uint64_t kFirstOffset = uint64_t{2} << 20;
  // 64 TiB: never filled, the file is sparse.
  static constexpr uint64_t kSize = uint64_t{1} << 46;

  // A new, empty file of this process. Ends the process with one line if the
  // system gives none.
  static std::shared_ptr<SharedFile> Create(const std::string& name,
                                            int device);
  // The file behind a path such as /proc/12/fd/3; nullptr unless it is one of
  // these, made by a simulated device of the same version.
  static std::shared_ptr<SharedFile> Open(const std::string& path);
  // The file behind a descriptor of this process, opened anew, and the table
  // entry its position names.
  static std::shared_ptr<SharedFile> OpenExported(int fd, uint32_t* slot);

  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();

  int fd() const { return fd_; }
  SharedHeader& header() const { return *header_; }

  // Owner: takes an entry of the table; -1 when all are taken.
  int TakeExtent();
  int TakeEvent();
  void GiveBackExtent(int slot);
  void GiveBackEvent(int slot);

  // A new descriptor that names the entry and holds its range; -1 and errno.
  int Export(int slot) const;

  // Importer: keeps the range from being emptied. False if the kernel refuses.
  bool Hold(uint64_t offset, uint64_t bytes) const;
  void Release(uint64_t offset, uint64_t bytes) const;
  // Owner: does any other open file hold a byte of the range?
  bool IsHeld(uint64_t offset, uint64_t bytes) const;

 private:
  SharedFile(int fd, SharedHeader* header) : fd_(fd), header_(header) {}

  const int fd_;
  SharedHeader* const header_;
  uint32_t next_extent_ = 0;
  uint32_t next_event_ = 0;
  std::vector<int> free_extents_;
  std::vector<int> free_events_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_SHARED_FILE_H_
