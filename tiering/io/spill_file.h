// SPDX-License-Identifier: Apache-2.0
// The file behind the disk tier: unnamed (O_TMPFILE, mode 0600), so that
// nothing is left when the process dies in any way, opened with O_DIRECT, so
// that evicted weights do not push the page cache out. Space is handed out in
// extents under a quota and reused.
//
// Fallbacks, each announced once with its reason: a file system without
// O_TMPFILE gets a named file (mkostemp) that is unlinked at once; one without
// O_DIRECT gets buffered I/O.
//
// Thread-safety: none but used() and peak(), which any thread may read.
// Blocks: Allocate may extend the file.
// Allocates: Allocate alone, where more pieces are handed out than ever before;
// so that Free never does.
// Fails: Open with kIo naming the directory; Allocate with kIo when the quota
// is spent, or with the errno's text when the file system is full; with
// kHostOutOfMemory when there is no memory for the list of extents.
// Invariants: used() + free extents = quota; extents are multiples of 4096.
#ifndef STRATALLOC_TIERING_IO_SPILL_FILE_H_
#define STRATALLOC_TIERING_IO_SPILL_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/extents.h"
#include "allocator/base/result.h"

namespace stratalloc {

// What its user calls the two, for messages.
struct SpillNames {
  const char* quota = "disk_budget";
  const char* directory = "disk_dir";
};

// Where in the file something lies: mostly in one piece, in more only where no
// free extent holds it. What is compressed leaves holes of every size.
struct FilePlace {
  struct Piece {
    std::uint64_t offset = 0;
    Bytes bytes = 0;
  };
  static constexpr int kMostPieces = 4;
  Piece pieces[kMostPieces];
  int count = 0;

  // Of the first piece, which has a block at least.
  std::uint64_t offset() const { return pieces[0].offset; }
};

class SpillFile {
 public:
  struct Options {
    std::string directory;  // "" = $TMPDIR or /tmp
    Bytes quota = 0;
    SpillNames names = {};
    bool without_tmpfile = false;
    bool without_direct = false;
  };
  static Result<std::unique_ptr<SpillFile>> Open(const Options& options);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Room for `bytes`, a multiple of 4096. The file system has it unless it
  // cannot reserve any (then a write may still meet ENOSPC).
  Result<FilePlace> Allocate(Bytes bytes);
  void Free(const FilePlace& place);
  bool HasRoom(Bytes bytes) const {
    return free_.largest() >= bytes || InPieces(bytes);
  }

  int fd() const { return fd_; }
  bool direct() const { return direct_; }
  const std::string& directory() const { return directory_; }
  Bytes quota() const { return quota_; }
  Bytes used() const { return used_.load(std::memory_order_relaxed); }
  Bytes peak() const { return peak_.load(std::memory_order_relaxed); }
  Bytes file_bytes() const { return file_bytes_; }

  // In a forked child: closes the descriptor; the parent's file lives on.
  void AbandonAfterFork();

 private:
  explicit SpillFile(const Options& options);
  Status OpenUnnamed(const Options& options);
  Status Probe();
  void LeaveDirect(const std::string& reason);
  int Extend(std::uint64_t end);
  bool InPieces(Bytes bytes) const;
  bool ReserveExtents();
  FilePlace Take(Bytes bytes);
  void GiveBack(const FilePlace& place);

  const std::string directory_;
  const Bytes quota_;
  const SpillNames names_;
  int fd_ = -1;
  bool direct_ = true;
  Bytes file_bytes_ = 0;
  std::size_t taken_ = 0;     // pieces that are handed out
  std::size_t reserved_ = 0;  // free extents that need no more memory
  Extents free_;
  std::atomic<Bytes> used_{0};
  std::atomic<Bytes> peak_{0};
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_SPILL_FILE_H_
