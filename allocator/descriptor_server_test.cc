// SPDX-License-Identifier: Apache-2.0
// DescriptorServer and DescriptorSource, between processes that fork.
#include "allocator/descriptor_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "allocator/cuda/shared_descriptors.h"
#include "allocator/descriptor_socket.h"
#include "allocator/descriptor_source.h"
#include "allocator/forked_process_test.h"
#include "allocator/shared_file_test.h"

namespace stratalloc {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Threads of a server's in this process, by their numbers.
std::vector<std::string> Threads() {
  std::vector<std::string> found;
  DIR* const all = opendir("/proc/self/task");
  while (const dirent* each = readdir(all)) {
    std::ifstream file(std::string("/proc/self/task/") + each->d_name +
                       "/comm");
    std::string name;
    if (std::getline(file, name) && name == "stratalloc-fds") {
      found.push_back(each->d_name);
    }
  }
  closedir(all);
  return found;
}

int CountThreads() {
  int count = 0;
  DIR* const all = opendir("/proc/self/task");
  while (const dirent* each = readdir(all)) count += each->d_name[0] != '.';
  closedir(all);
  return count;
}

// The first: TSan ends a fork that joins a thread while its parent has one at
// the same address.
TEST(DescriptorServer, EndsWithTheProcessAndKeepsItsNonce) {
  ForkedProcess process([](int socket) {
    const Shared shared = Share();
    while (Threads().empty()) sched_yield();  // until it has its name
    DescriptorServer::Stop();
    // The kernel lists a thread for a moment after it was joined.
    for (int i = 0; !Threads().empty(); ++i) {
      if (i == 100'000) return 3;
      sched_yield();
    }
    const int left = CountThreads();
    if (DescriptorServer::Nonce() != shared.nonce) return 1;
    if (CountThreads() != left) return 2;
    SendTo(socket, shared);
    AwaitEnd(socket);
    // exit() stops it by itself; here once more.
    DescriptorServer::Stop();
    return 0;
  });
  const Shared shared = ReceiveFrom<Shared>(process.socket());
  EXPECT_THAT(TakeConfined(shared), HasSubstr("connect: Connection refused"));
  EXPECT_EQ(Take(shared), "") << "by pidfd_getfd, as before";
  EXPECT_EQ(process.End(), 0);
}

TEST(DescriptorServer, GivesWhatIsSharedWherePidfdGetfdIsRefused) {
  const Shared shared = Share();
  ASSERT_NE(shared.nonce, 0u);
  EXPECT_EQ(DescriptorServer::Nonce(), shared.nonce) << "equal memory";
  EXPECT_EQ(TakeConfined(shared), "=");
  Shared nameless = shared;
  nameless.nonce = 0;
  EXPECT_THAT(TakeConfined(nameless),
              AllOf(StartsWith("=pidfd_getfd: Operation not permitted. "),
                    HasSubstr("--cap-add=SYS_PTRACE"),
                    HasSubstr("kernel.yama.ptrace_scope"),
                    HasSubstr("the sender names none")));
  SharedDescriptors::Close(shared.descriptor);
}

TEST(DescriptorServer, GivesNothingElse) {
  const Shared shared = Share();
  const int other = memfd_create("not shared", MFD_CLOEXEC);
  // pidfd_getfd would take it: a process may trace itself.
  Shared wrong{shared.pid, shared.nonce, other, FileOf(other)};
  EXPECT_THAT(Take(wrong), HasSubstr("does not share descriptor"));
  wrong.nonce = 0;
  EXPECT_EQ(Take(wrong), "");
  close(other);
  // What is shared no more is given no more, though the number is in use.
  SharedDescriptors::Close(shared.descriptor);
  ASSERT_EQ(memfd_create("same number", MFD_CLOEXEC), shared.descriptor);
  EXPECT_THAT(Take(shared), HasSubstr("does not share descriptor"));
  close(shared.descriptor);
}

// A number that another process has in this pid namespace.
TEST(DescriptorServer, IsAskedBeforeThePid) {
  const int descriptor = Exported();
  ForkedProcess other([&](int socket) {
    const int file = memfd_create("another file", MFD_CLOEXEC);
    if (dup2(file, descriptor) != descriptor) return 1;
    SendTo(socket, FileOf(descriptor));
    AwaitEnd(socket);
    return 0;
  });
  const auto theirs = ReceiveFrom<ino_t>(other.socket());
  EXPECT_EQ(Take({other.pid(), 0, descriptor, theirs}), "");
  const std::unique_ptr<DescriptorServer> server =
      DescriptorServer::Start(other.pid());
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(
      Take({other.pid(), server->nonce(), descriptor, FileOf(descriptor)}), "");
  EXPECT_EQ(other.End(), 0);
  SharedDescriptors::Close(descriptor);
}

TEST(DescriptorServer, ANonceWithoutASocketIsASenderOfPyTorchs) {
  Shared shared = Share();
  shared.nonce ^= 1;
  EXPECT_EQ(Take(shared), "");
  EXPECT_THAT(TakeConfined(shared),
              AllOf(StartsWith("=pidfd_getfd: Operation not permitted. "),
                    HasSubstr("connect: Connection refused"),
                    HasSubstr("another network namespace"),
                    HasSubstr("its allocator is not stratalloc")));
  SharedDescriptors::Close(shared.descriptor);
}

TEST(DescriptorServer, APeerThatSaysNothingHoldsUpNoOther) {
  const Shared shared = Share();
  const SocketName name = NameOfSocket(shared.pid, shared.nonce);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 100; ++i) {  // more than it has places
    silent.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(
        connect(silent.back().get(),
                reinterpret_cast<const sockaddr*>(&name.address), name.bytes),
        0);
  }
  EXPECT_EQ(TakeConfined(shared), "=");
  SharedDescriptors::Close(shared.descriptor);
}

TEST(DescriptorServer, ASenderThatEndedIsNamed) {
  ForkedProcess sender([](int socket) {
    SendTo(socket, Share());
    return 0;
  });
  const Shared shared = ReceiveFrom<Shared>(sender.socket());
  EXPECT_EQ(sender.End(), 0);
  EXPECT_THAT(Take(shared),
              AllOf(StartsWith("pidfd_open:No such process. "),
                    HasSubstr("the sender has ended"),
                    HasSubstr("connect: Connection refused (it has ended")));
}

TEST(DescriptorServer, WhatWasTakenOutlivesItsSender) {
  ForkedProcess sender([](int socket) {
    const Shared shared = Share();
    if (write(shared.descriptor, "kept", 4) != 4) return 1;
    SendTo(socket, shared);
    AwaitEnd(socket);
    return 0;
  });
  const Shared shared = ReceiveFrom<Shared>(sender.socket());
  DescriptorSource source(shared.pid, shared.nonce);
  const Result<FileDescriptor> taken = source.Take(shared.descriptor);
  ASSERT_TRUE(taken.has_value()) << taken.error().message;
  EXPECT_EQ(sender.End(), 0);
  char bytes[5] = {};
  EXPECT_EQ(pread(taken->get(), bytes, 4, 0), 4);
  EXPECT_STREQ(bytes, "kept");
  // It hung up between two of them.
  const Result<FileDescriptor> next = source.Take(shared.descriptor);
  ASSERT_FALSE(next.has_value());
  EXPECT_THAT(next.error().message, HasSubstr("the sender hung up"));
}

TEST(DescriptorServer, AForkedChildHasItsOwn) {
  const Shared shared = Share();
  ForkedProcess child([&](int socket) {
    if (!Threads().empty()) return 1;
    // What the parent shares is not this process's.
    if (SharedDescriptors::Use(shared.descriptor, [] {})) return 2;
    SendTo(socket, Share());
    AwaitEnd(socket);
    return Threads().size() == 1 ? 0 : 3;
  });
  const Shared theirs = ReceiveFrom<Shared>(child.socket());
  EXPECT_NE(theirs.nonce, shared.nonce);
  EXPECT_EQ(TakeConfined(theirs), "=");
  EXPECT_EQ(TakeConfined(shared), "=");
  EXPECT_EQ(child.End(), 0);
  SharedDescriptors::Close(shared.descriptor);
}

// A copy of its listening socket would take connections that none answers.
TEST(DescriptorServer, AForkedChildKeepsNothingOpenOfItsParents) {
  ForkedProcess parent([](int socket) -> int {
    const Shared shared = Share();
    const ForkedProcess child([&](int) {
      SendTo(socket, shared);
      AwaitEnd(socket);
      return 0;
    });
    _exit(0);  // without Stop
  });
  const Shared shared = ReceiveFrom<Shared>(parent.socket());
  int status = -1;
  ASSERT_EQ(waitpid(parent.pid(), &status, 0), parent.pid());
  EXPECT_THAT(Take(shared), HasSubstr("connect: Connection refused"));
}

TEST(DescriptorServer, ItsThreadHandlesNoSignal) {
  ASSERT_NE(DescriptorServer::Nonce(), 0u);
  ASSERT_EQ(TakeConfined(Share()), "=") << "so it has its name";
  const std::vector<std::string> threads = Threads();
  ASSERT_EQ(threads.size(), 1u);
  std::ifstream file("/proc/self/task/" + threads[0] + "/status");
  std::string line, blocked;
  while (std::getline(file, line)) {
    if (line.starts_with("SigBlk:")) blocked = line;
  }
  // All but KILL, STOP and two of the C library's.
  EXPECT_THAT(blocked, HasSubstr("fffffffe7ffbfeff"));
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_FALSE(sigismember(&mine, SIGINT)) << "the program's stay as they are";
}

}  // namespace
}  // namespace stratalloc
