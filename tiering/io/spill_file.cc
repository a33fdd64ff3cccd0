// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/spill_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>
#include <utility>

#include "allocator/base/check.h"

namespace stratalloc {
namespace {

constexpr Bytes kBlock = 4096;
// The file grows in steps: writes beyond its end are serialised by ext4 and
// xfs, writes inside it are not.
constexpr Bytes kGrowStep = 64 * kMiB;
// Chunks are 2 MiB and more before they are compressed; this many free extents
// cover 128 GiB of the worst pattern before the list allocates.
constexpr std::size_t kReservedExtents = 32768;

std::string Errno(int error) { return std::strerror(error); }

std::string ChooseDirectory(const std::string& directory) {
  if (!directory.empty()) return directory;
  const char* const named = std::getenv("TMPDIR");
  return named != nullptr && *named != '\0' ? named : "/tmp";
}

}  // namespace

SpillFile::SpillFile(const Options& options)
    : directory_(ChooseDirectory(options.directory)),
      quota_(RoundDown(options.quota, kBlock)),
      names_(options.names) {
  reserved_ = std::min<std::size_t>(kReservedExtents, quota_ / (2 * kMiB) + 64);
  free_.Reserve(reserved_);
  free_.Add(0, quota_);
}

SpillFile::~SpillFile() {
  if (fd_ >= 0) close(fd_);
}

Result<std::unique_ptr<SpillFile>> SpillFile::Open(const Options& options) {
  std::unique_ptr<SpillFile> file(new SpillFile(options));
  STRATALLOC_RETURN_IF_ERROR(file->OpenUnnamed(options));
  STRATALLOC_RETURN_IF_ERROR(file->Probe());
  struct statfs system;
  if (fstatfs(file->fd_, &system) == 0 && system.f_type == TMPFS_MAGIC) {
    Log(LogLevel::kWarning, "the spill directory " + file->directory_ +
                                " is tmpfs: what is evicted to it stays in "
                                "main memory. Set " +
                                options.names.directory + " to a disk");
  }
  return file;
}

Status SpillFile::OpenUnnamed(const Options& options) {
  if (options.without_direct) LeaveDirect("switched off");
  for (;;) {
    const int extra = O_CLOEXEC | (direct_ ? O_DIRECT : 0);
    int error = EOPNOTSUPP;
    if (!options.without_tmpfile) {
      fd_ = open(directory_.c_str(), O_TMPFILE | O_RDWR | extra, 0600);
      error = errno;
    }
    // Old kernels say EISDIR, file systems without it EOPNOTSUPP.
    if (fd_ < 0 && (error == EOPNOTSUPP || error == EISDIR)) {
      std::string name = directory_ + "/stratalloc-spill-XXXXXX";
      fd_ = mkostemp(name.data(), extra);
      error = errno;
      if (fd_ >= 0) {
        unlink(name.c_str());
        Log(LogLevel::kInfo, "the file system of " + directory_ +
                                 " has no O_TMPFILE: the spill file was "
                                 "created with a name and unlinked at once");
      }
    }
    if (fd_ >= 0) break;
    if (error == EINVAL && direct_) {
      LeaveDirect("open: " + Errno(error));
      continue;
    }
    return Fail(ErrorCode::kIo, "cannot create a spill file in " + directory_ +
                                    ": " + Errno(error) + ". Set " +
                                    names_.directory +
                                    " to a directory this process may write "
                                    "to");
  }
  // umask may have taken bits away; nobody else gets any.
  fchmod(fd_, 0600);
  return {};
}

void SpillFile::LeaveDirect(const std::string& reason) {
  direct_ = false;
  Log(LogLevel::kInfo, "the spill file in " + directory_ +
                           " goes through the page cache: O_DIRECT is not "
                           "possible there (" +
                           reason + ")");
}

// Some file systems take O_DIRECT at open and refuse it at the first transfer,
// or want larger blocks: one block is written to find out.
Status SpillFile::Probe() {
  void* const block = operator new(kBlock, std::align_val_t(kBlock));
  std::memset(block, 0, kBlock);
  ssize_t moved = pwrite(fd_, block, kBlock, 0);
  if (moved < 0 && errno == EINVAL && direct_) {
    LeaveDirect("write: " + Errno(errno));
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_DIRECT);
    moved = pwrite(fd_, block, kBlock, 0);
  }
  const int error = moved < 0 ? errno : ENOSPC;
  operator delete(block, std::align_val_t(kBlock));
  if (moved == static_cast<ssize_t>(kBlock)) {
    file_bytes_ = kBlock;
    return {};
  }
  return Fail(ErrorCode::kIo, "cannot write to a spill file in " + directory_ +
                                  ": " + Errno(error) +
                                  ". Free space there, or set " +
                                  names_.directory + " to another file system");
}

// Makes the file at least `end` long; 0 or an errno.
int SpillFile::Extend(std::uint64_t end) {
  if (end <= file_bytes_) return 0;
  const std::uint64_t generous =
      std::max<std::uint64_t>(end, std::min(quota_, RoundUp(end, kGrowStep)));
  int error = ENOSPC;
  for (const std::uint64_t size : {generous, end}) {
    do {
      error = fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP) {
      error = ftruncate(fd_, static_cast<off_t>(size)) == 0 ? 0 : errno;
    }
    if (error != 0) continue;
    file_bytes_ = size;
    return 0;
  }
  return error;
}

// Would the largest free extents together hold it?
bool SpillFile::InPieces(Bytes bytes) const {
  Bytes largest[FilePlace::kMostPieces] = {};
  for (const Extents::Range& range : free_.ranges()) {
    Bytes* const smallest =
        std::min_element(std::begin(largest), std::end(largest));
    *smallest = std::max(*smallest, range.bytes);
  }
  return std::accumulate(std::begin(largest), std::end(largest), Bytes{0}) >=
         bytes;
}

// What is handed out lies between free extents: there is one more of these at
// most. False: no memory.
bool SpillFile::ReserveExtents() {
  const std::size_t most = taken_ + FilePlace::kMostPieces + 1;
  if (most <= reserved_) return true;
  try {
    free_.Reserve(2 * most);
  } catch (const std::bad_alloc&) {
    return false;
  }
  reserved_ = 2 * most;
  return true;
}

// In one piece at the low end, else out of the largest free extents. Nothing,
// a count of 0, if these do not hold it.
FilePlace SpillFile::Take(Bytes bytes) {
  FilePlace place;
  if (const auto offset = free_.TakeLow(bytes)) {
    place.pieces[place.count++] = {*offset, bytes};
    return place;
  }
  if (!InPieces(bytes)) return place;
  while (bytes > 0) {
    const Bytes piece = std::min(bytes, free_.largest());
    place.pieces[place.count++] = {*free_.TakeLow(piece), piece};
    bytes -= piece;
  }
  return place;
}

void SpillFile::GiveBack(const FilePlace& place) {
  for (int i = 0; i < place.count; ++i) {
    free_.Add(place.pieces[i].offset, place.pieces[i].bytes);
  }
  taken_ -= static_cast<std::size_t>(place.count);
}

Result<FilePlace> SpillFile::Allocate(Bytes bytes) {
  if (!ReserveExtents()) {
    return Fail(ErrorCode::kHostOutOfMemory,
                "there is no memory for a list of " + std::to_string(taken_) +
                    " pieces of the spill file. Free host memory");
  }
  const FilePlace place = Take(bytes);
  taken_ += static_cast<std::size_t>(place.count);
  if (place.count == 0) {
    const bool scattered = free_.total() >= bytes;
    return Fail(
        ErrorCode::kIo,
        "the disk budget of " + FormatBytes(quota_) + " has no room for " +
            FormatBytes(bytes) + ": " + FormatBytes(used()) + " are in use" +
            (scattered ? ", and what is free is in small pieces" : "") +
            ". Raise " + names_.quota + "; the memory stays where it is");
  }
  std::uint64_t end = 0;
  for (int i = 0; i < place.count; ++i) {
    end = std::max(end, place.pieces[i].offset + place.pieces[i].bytes);
  }
  if (const int error = Extend(end); error != 0) {
    GiveBack(place);
    return Fail(ErrorCode::kIo,
                "the spill file in " + directory_ + " cannot grow by " +
                    FormatBytes(bytes) + ": " + Errno(error) +
                    ". Free space there, or set " + names_.directory +
                    " to another file system; the memory stays where it is");
  }
  const Bytes now = used_.load(std::memory_order_relaxed) + bytes;
  used_.store(now, std::memory_order_relaxed);
  peak_.store(std::max(now, peak()), std::memory_order_relaxed);
  return place;
}

void SpillFile::Free(const FilePlace& place) {
  GiveBack(place);
  Bytes now = used_.load(std::memory_order_relaxed);
  for (int i = 0; i < place.count; ++i) now -= place.pieces[i].bytes;
  used_.store(now, std::memory_order_relaxed);
  if (now != 0 || fd_ < 0) return;
  // The last chunk left: the file system gets all but one block back.
  if (ftruncate(fd_, kBlock) == 0) file_bytes_ = kBlock;
}

void SpillFile::AbandonAfterFork() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace stratalloc
