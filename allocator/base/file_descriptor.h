// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed at the end of its owner. Moved, not copied.
//
// Thread-safety: the caller's. Locks: none. Errors: those of close are not
// looked at. Invariants: -1 is no descriptor, and is not closed.
#ifndef STRATALLOC_ALLOCATOR_BASE_FILE_DESCRIPTOR_H_
#define STRATALLOC_ALLOCATOR_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace stratalloc {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // A system call's answer; negative is none.
  explicit FileDescriptor(long value) : value_(static_cast<int>(value)) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(FileDescriptor&& other) noexcept
      : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      value_ = std::exchange(other.value_, -1);
    }
    return *this;
  }

  int get() const { return value_; }
  bool is_open() const { return value_ >= 0; }
  void Close() {
    if (value_ >= 0) close(value_);
    value_ = -1;
  }

 private:
  int value_ = -1;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_FILE_DESCRIPTOR_H_
