// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace cudasim {
namespace {

static_assert(sizeof(SharedHeader) <= SharedFile::kFirstOffset);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

constexpr char kName[] = "cudasim-";

ProcessToken NewToken() {
  ProcessToken token;
  if (getrandom(&token, sizeof(token), 0) !=
      static_cast<ssize_t>(sizeof(token))) {
    std::perror("cudasim: getrandom");
    std::_Exit(2);
  }
  return token;
}

ProcessToken& Token() {
  static ProcessToken token = NewToken();
  return token;
}

SharedHeader* MapHeader(int fd) {
  void* const at = mmap(nullptr, SharedFile::kFirstOffset,
                        PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<SharedHeader*>(at);
}

std::string OwnPath(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

bool LockBytes(int fd, int command, short type, uint64_t offset,
               uint64_t bytes) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(bytes);
  return fcntl(fd, command, &lock) == 0;
}

// Where a link of /proc leads: nothing else is opened, because opening may
// have effects (a pipe waits, a device starts).
bool LeadsToAFileOfOurs(const std::string& path) {
  char target[256];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target) - 1);
  if (length <= 0) return false;
  target[length] = '\0';
  return std::string(target).rfind(std::string("/memfd:") + kName, 0) == 0;
}

}  // namespace

const ProcessToken& OwnToken() { return Token(); }
void RenewOwnToken() { Token() = NewToken(); }

std::shared_ptr<SharedFile> SharedFile::Create(const std::string& name,
                                               int device) {
  const int fd = memfd_create((kName + name).c_str(), MFD_CLOEXEC);
  SharedHeader* header = nullptr;
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(kSize)) != 0 ||
      (header = MapHeader(fd)) == nullptr) {
    std::perror("cudasim: cannot create a memory file");
    std::_Exit(2);
  }
  header->magic = SharedHeader::kMagic;
  header->token = OwnToken();
  header->pid = getpid();
  header->device = device;
  return std::shared_ptr<SharedFile>(new SharedFile(fd, header));
}

std::shared_ptr<SharedFile> SharedFile::Open(const std::string& path) {
  if (!LeadsToAFileOfOurs(path)) return nullptr;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  struct stat status = {};
  SharedHeader* header = nullptr;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<uint64_t>(status.st_size) == kSize) {
    header = MapHeader(fd);
  }
  if (header == nullptr || header->magic != SharedHeader::kMagic) {
    if (header != nullptr) munmap(header, kFirstOffset);
    close(fd);
    return nullptr;
  }
  return std::shared_ptr<SharedFile>(new SharedFile(fd, header));
}

std::shared_ptr<SharedFile> SharedFile::OpenExported(int fd, uint32_t* slot) {
  const off_t position = lseek(fd, 0, SEEK_CUR);
  const off_t first = offsetof(SharedHeader, extents);
  if (position < first || (position - first) % sizeof(SharedExtent) != 0) {
    return nullptr;
  }
  const uint64_t index =
      static_cast<uint64_t>(position - first) / sizeof(SharedExtent);
  if (index >= SharedHeader::kExtents) return nullptr;
  *slot = static_cast<uint32_t>(index);
  return Open(OwnPath(fd));
}

SharedFile::~SharedFile() {
  munmap(header_, kFirstOffset);
  close(fd_);
}

int SharedFile::TakeExtent() {
  if (!free_extents_.empty()) {
    const int slot = free_extents_.back();
    free_extents_.pop_back();
    return slot;
  }
  return next_extent_ < SharedHeader::kExtents
             ? static_cast<int>(next_extent_++)
             : -1;
}

int SharedFile::TakeEvent() {
  if (!free_events_.empty()) {
    const int slot = free_events_.back();
    free_events_.pop_back();
    return slot;
  }
  return next_event_ < SharedHeader::kEvents ? static_cast<int>(next_event_++)
                                             : -1;
}

void SharedFile::GiveBackExtent(int slot) {
  header_->extents[slot].id.store(0);
  free_extents_.push_back(slot);
}

void SharedFile::GiveBackEvent(int slot) {
  header_->events[slot].id.store(0);
  free_events_.push_back(slot);
}

int SharedFile::Export(int slot) const {
  const int fd = open(OwnPath(fd_).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return -1;
  const SharedExtent& extent = header_->extents[slot];
  const off_t position = static_cast<off_t>(offsetof(SharedHeader, extents) +
                                            slot * sizeof(SharedExtent));
  if (!LockBytes(fd, F_OFD_SETLKW, F_RDLCK, extent.offset, extent.bytes) ||
      lseek(fd, position, SEEK_SET) != position) {
    close(fd);
    return -1;
  }
  return fd;
}

bool SharedFile::Hold(uint64_t offset, uint64_t bytes) const {
  return LockBytes(fd_, F_OFD_SETLKW, F_RDLCK, offset, bytes);
}

void SharedFile::Release(uint64_t offset, uint64_t bytes) const {
  LockBytes(fd_, F_OFD_SETLK, F_UNLCK, offset, bytes);
}

bool SharedFile::IsHeld(uint64_t offset, uint64_t bytes) const {
  if (!LockBytes(fd_, F_OFD_SETLK, F_WRLCK, offset, bytes)) return true;
  LockBytes(fd_, F_OFD_SETLK, F_UNLCK, offset, bytes);
  return false;
}

}  // namespace cudasim
