// SPDX-License-Identifier: Apache-2.0
#include "allocator/descriptor_socket.h"

#include <cstddef>
#include <cstdio>

namespace stratalloc {

SocketName NameOfSocket(std::int32_t pid, std::uint32_t nonce) {
  SocketName name{};
  name.address.sun_family = AF_UNIX;
  // The first byte stays zero: an abstract name. 1 is the protocol's version.
  const int length =
      std::snprintf(name.address.sun_path + 1, sizeof name.address.sun_path - 1,
                    "stratalloc-shares-1-%d-%08x", pid, nonce);
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path)) + 1 +
               static_cast<socklen_t>(length);
  return name;
}

std::optional<uid_t> UserOfPeer(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return std::nullopt;
  }
  return peer.uid;
}

}  // namespace stratalloc
