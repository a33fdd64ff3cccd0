// SPDX-License-Identifier: Apache-2.0
// A file that one process of a test shares and another one takes.
//
// Thread-safety: one thread. Errors: that of Take, as a text.
// Lifetime: a file is shared until SharedDescriptors::Close.
#ifndef STRATALLOC_ALLOCATOR_SHARED_FILE_TEST_H_
#define STRATALLOC_ALLOCATOR_SHARED_FILE_TEST_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "allocator/cuda/shared_descriptors.h"
#include "allocator/descriptor_server.h"
#include "allocator/descriptor_source.h"
#include "allocator/forked_process_test.h"

namespace stratalloc {

inline int Exported() {
  const int descriptor = memfd_create("shared", MFD_CLOEXEC);
  SharedDescriptors::Add(descriptor);
  return descriptor;
}

inline ino_t FileOf(int descriptor) {
  struct stat file {};
  return fstat(descriptor, &file) == 0 ? file.st_ino : 0;
}

// What a process needs to know of one that shares.
struct Shared {
  std::int32_t pid;
  std::uint32_t nonce;
  std::int32_t descriptor;
  ino_t file;
};
inline Shared Share() {
  const int descriptor = Exported();
  return {getpid(), DescriptorServer::Nonce(), descriptor, FileOf(descriptor)};
}

// "" if it is the file that was shared, else the error.
inline std::string Take(const Shared& shared) {
  DescriptorSource source(shared.pid, shared.nonce);
  const Result<FileDescriptor> taken = source.Take(shared.descriptor);
  if (!taken) return taken.error().message;
  return FileOf(taken->get()) == shared.file ? "" : "another file";
}

// In a process that may not use pidfd_getfd.
inline std::string TakeConfined(const Shared& shared, uid_t user = 0) {
  ForkedProcess receiver([&](int socket) {
    if (user != 0 && setresuid(user, user, user) != 0) return 1;
    RefusePidfdGetfd();
    SendText(socket, "=" + Take(shared));
    return 0;
  });
  const std::string answer = ReceiveText(receiver.socket());
  EXPECT_EQ(receiver.End(), 0);
  return answer;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_SHARED_FILE_TEST_H_
