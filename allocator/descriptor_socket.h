// SPDX-License-Identifier: Apache-2.0
// The socket between a process that shares memory and its receivers: its name,
// its messages, and which users may ask.
//
// The socket is abstract (no file), of type SOCK_SEQPACKET, and is found in
// one network namespace. Its name holds the sender's own pid and a nonce, both
// of which travel with the memory. The nonce keeps processes apart that have
// one pid in two pid namespaces. It is no secret: /proc/net/unix lists it.
// The receiver sends one request for each descriptor. Each is answered by one
// message, with the descriptor (SCM_RIGHTS) where its `error` is 0. A user that
// may not ask gets no answer: the sender hangs up.
//
// Thread-safety: any thread; functions without state. Locks: none.
// Errors: none. A user that the kernel does not name is none.
#ifndef STRATALLOC_ALLOCATOR_DESCRIPTOR_SOCKET_H_
#define STRATALLOC_ALLOCATOR_DESCRIPTOR_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <optional>

namespace stratalloc {

struct DescriptorRequest {
  std::int32_t descriptor;  // the sender's number
};
struct DescriptorAnswer {
  std::int32_t error;  // an errno of the sender's
};
constexpr int kNotShared = ENOENT;  // the number is none of what is shared

struct SocketName {
  sockaddr_un address;
  socklen_t bytes;
};
SocketName NameOfSocket(std::int32_t pid, std::uint32_t nonce);

// A process of its owner's user or root may take what is shared.
inline bool MayTake(uid_t asks, uid_t owner) {
  return asks == owner || asks == 0;
}
// The effective user of the other side, as the kernel noted it at connect or
// listen. None where the kernel does not say.
std::optional<uid_t> UserOfPeer(int socket);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_DESCRIPTOR_SOCKET_H_
