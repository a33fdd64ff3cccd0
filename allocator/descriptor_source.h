// SPDX-License-Identifier: Apache-2.0
// Descriptors of another process that shares memory with this one.
//
// The sender's socket is asked first, if its nonce is not 0, and pidfd_getfd
// where that fails. The socket's name has the nonce, which names one process
// whatever its pid is here. A pid of another pid namespace may be an unrelated
// process's, of which pidfd_getfd would take a file. The socket also works
// where the kernel refuses pidfd_getfd. The price is a message to the sender
// and back for each descriptor.
// A process that is not stratalloc's may have any bytes for its nonce: no
// socket has that name, and pidfd_getfd asks the pid, as PyTorch does.
// A sender that answers "not shared" is believed: pidfd_getfd would take an
// unrelated file of it.
//
// Thread-safety: the caller's. Locks: none; a caller may hold kImports.
// Errors: what both ways answered, and the causes that this may have.
// kUnsupported where the kernel knows no pidfd; else kDevice.
// Lifetime: both ways stay open until the destructor.
// Invariants: only a socket of the same user is believed; to root, each. It is
// waited for no longer than kPatienceSeconds, and after a failure not asked
// again.
#ifndef STRATALLOC_ALLOCATOR_DESCRIPTOR_SOURCE_H_
#define STRATALLOC_ALLOCATOR_DESCRIPTOR_SOURCE_H_

#include <cstdint>
#include <string>

#include "allocator/base/file_descriptor.h"
#include "allocator/base/result.h"

namespace stratalloc {

class DescriptorSource {
 public:
  static constexpr int kPatienceSeconds = 10;

  DescriptorSource(std::int32_t pid, std::uint32_t nonce)
      : pid_(pid), nonce_(nonce) {}

  // The file that is `descriptor` in the sender.
  Result<FileDescriptor> Take(std::int32_t descriptor);

 private:
  // Not open if the socket did not give it; `why_no_socket_` says why.
  FileDescriptor TakeFromSocket(std::int32_t descriptor);
  bool Connect();
  Result<FileDescriptor> TakeFromProcess(std::int32_t descriptor);
  tl::unexpected<Error> NoCall(const char* name) const;
  tl::unexpected<Error> Refused(const char* name, int error) const;

  const std::int32_t pid_;
  const std::uint32_t nonce_;
  FileDescriptor socket_, process_;
  bool not_shared_ = false;
  std::string why_no_socket_;  // empty while it serves
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_DESCRIPTOR_SOURCE_H_
