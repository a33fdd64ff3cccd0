// SPDX-License-Identifier: Apache-2.0
// Which users a DescriptorServer gives to. Not in Bazel's sandbox, where root
// is the only user.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/descriptor_socket.h"
#include "allocator/shared_file_test.h"

namespace stratalloc {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uid_t kOrdinary = 65533;

TEST(DescriptorUsers, ItsOwnUserAndRootMayTake) {
  EXPECT_TRUE(MayTake(1000, 1000));
  EXPECT_TRUE(MayTake(0, 1000));
  EXPECT_FALSE(MayTake(1000, 0));
  EXPECT_FALSE(MayTake(1001, 1000));
  // Processes of other users are root's to make.
  if (geteuid() != 0) return;
  const Shared shared = Share();
  EXPECT_THAT(
      TakeConfined(shared, kOrdinary),
      AllOf(StartsWith("=pidfd_getfd: "), HasSubstr("it is another user's")));
  // One that does not look whose the socket is gets no answer.
  ForkedProcess receiver([&](int socket) {
    if (setresuid(kOrdinary, kOrdinary, kOrdinary) != 0) return 1;
    const FileDescriptor peer(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    const SocketName name = NameOfSocket(shared.pid, shared.nonce);
    if (connect(peer.get(), reinterpret_cast<const sockaddr*>(&name.address),
                name.bytes) != 0) {
      return 2;
    }
    const DescriptorRequest request{shared.descriptor};
    send(peer.get(), &request, sizeof request, MSG_NOSIGNAL);
    DescriptorAnswer answer;
    SendTo(socket, recv(peer.get(), &answer, sizeof answer, 0) > 0 ? 2 : 1);
    return 0;
  });
  EXPECT_EQ(ReceiveFrom<int>(receiver.socket()), 1);
  EXPECT_EQ(receiver.End(), 0);
  // Root takes an ordinary user's.
  ForkedProcess sender([](int socket) {
    if (setresuid(kOrdinary, kOrdinary, kOrdinary) != 0) return 1;
    SendTo(socket, Share());
    AwaitEnd(socket);
    return 0;
  });
  EXPECT_EQ(TakeConfined(ReceiveFrom<Shared>(sender.socket())), "=");
  EXPECT_EQ(sender.End(), 0);
  SharedDescriptors::Close(shared.descriptor);
}

}  // namespace
}  // namespace stratalloc
