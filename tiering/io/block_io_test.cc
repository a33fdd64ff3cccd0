// SPDX-License-Identifier: Apache-2.0
// The ring and its synchronous fallback, same tests for both.
#include "tiering/io/block_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tiering/io/break_rings_test.h"
#include "tiering/io/io_ring.h"
#include "tiering/io/sync_io.h"

namespace stratalloc {
namespace {

enum class Kind { kRing, kRegisteredRing, kSync };

class BlockIoTest : public testing::TestWithParam<Kind> {
 protected:
  static constexpr Bytes kBytes = 256 * kKiB;

  void SetUp() override {
    data_ = static_cast<char*>(mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(data_, MAP_FAILED);
    std::string name = testing::TempDir() + "block_io_XXXXXX";
    fd_ = mkostemp(name.data(), O_CLOEXEC);
    ASSERT_GE(fd_, 0);
    unlink(name.c_str());
    if (GetParam() == Kind::kSync) {
      io_ = std::make_unique<SyncIo>();
      return;
    }
    // Four entries: 64 requests do not fit the submission queue.
    auto ring = IoRing::Create(4);
    if (!ring) GTEST_SKIP() << ring.error().message;
    if (GetParam() == Kind::kRegisteredRing) {
      const iovec buffer{data_, 2 * kBytes};
      const Status registered = (*ring)->Register(&buffer, 1);
      if (!registered) GTEST_SKIP() << registered.error().message;
      buffer_ = 0;
    }
    io_ = std::move(*ring);
  }
  void TearDown() override {
    io_.reset();
    if (fd_ >= 0) close(fd_);
    munmap(data_, 2 * kBytes);
  }

  // Starts one request per page of [data, data + bytes).
  std::vector<IoRequest> StartPages(bool write, char* data, Bytes bytes,
                                    std::uint64_t offset = 0) {
    std::vector<IoRequest> requests(bytes / 4096);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].write = write;
      requests[i].fd = fd_;
      requests[i].data = data + i * 4096;
      requests[i].bytes = 4096;
      requests[i].offset = offset + i * 4096;
      requests[i].registered_buffer = buffer_;
      io_->Start(&requests[i]);
    }
    return requests;
  }

  void Fill() {
    for (Bytes i = 0; i < kBytes; ++i) data_[i] = static_cast<char>(i * 31);
  }

  char* data_ = nullptr;
  int fd_ = -1;
  int buffer_ = -1;
  std::unique_ptr<BlockIo> io_;
};

TEST_P(BlockIoTest, MovesMoreRequestsThanFitAtOnce) {
  Fill();
  auto writes = StartPages(true, data_, kBytes);
  io_->Flush();
  ASSERT_EQ(io_->Finish(), 0);
  auto reads = StartPages(false, data_ + kBytes, kBytes);
  ASSERT_EQ(io_->Finish(), 0);
  EXPECT_EQ(std::memcmp(data_, data_ + kBytes, kBytes), 0);
  for (const IoRequest& read : reads) EXPECT_EQ(read.done, 4096u);
}

// A read across the end of the file moves part of what was asked, then meets
// the end: the part is there, the failure is ENODATA, the ring goes on.
TEST_P(BlockIoTest, ContinuesAShortReadAndReportsTheEnd) {
  Fill();
  auto writes = StartPages(true, data_, 8192);
  ASSERT_EQ(io_->Finish(), 0);
  IoRequest read;
  read.fd = fd_;
  read.data = data_ + kBytes;
  read.bytes = 4 * 4096;
  read.registered_buffer = buffer_;
  io_->Start(&read);
  EXPECT_EQ(io_->Finish(), ENODATA);
  EXPECT_EQ(read.done, 8192u);
  EXPECT_EQ(std::memcmp(data_, data_ + kBytes, 8192), 0);
  auto again = StartPages(false, data_ + kBytes, 8192);
  EXPECT_EQ(io_->Finish(), 0);
  EXPECT_FALSE(io_->broken());
}

TEST_P(BlockIoTest, ReportsTheFirstErrorAndLeavesNothingBehind) {
  auto good = StartPages(true, data_, kBytes);
  IoRequest bad;
  bad.write = true;
  bad.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  bad.data = data_;
  bad.bytes = 4096;
  bad.registered_buffer = buffer_;
  io_->Start(&bad);
  EXPECT_EQ(io_->Finish(), EBADF);
  close(bad.fd);
  EXPECT_EQ(io_->Finish(), 0);
  auto more = StartPages(true, data_, kBytes);
  EXPECT_EQ(io_->Finish(), 0);
}

volatile sig_atomic_t signals_seen = 0;

// Reads from an empty pipe block until the child writes; a timer interrupts
// the wait all the while.
TEST_P(BlockIoTest, SurvivesSignalsWhileWaiting) {
  signals_seen = 0;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct sigaction action {};
  action.sa_handler = [](int) { signals_seen = signals_seen + 1; };
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 1000}, {0, 1000}};
  setitimer(ITIMER_REAL, &often, nullptr);

  IoRequest read;
  read.fd = ends[0];
  read.data = data_;
  read.bytes = 4096;
  read.offset = ~std::uint64_t{0};  // "the current position"
  read.registered_buffer = buffer_;
  io_->Start(&read);
  io_->Flush();
  const pid_t child = fork();
  if (child == 0) {
    // Not before the parent has been interrupted a few times.
    setitimer(ITIMER_REAL, &often, nullptr);
    while (signals_seen < 20) pause();
    char block[4096];
    std::memset(block, 'x', sizeof(block));
    _exit(write(ends[1], block, sizeof(block)) == 4096 ? 0 : 1);
  }
  close(ends[1]);
  EXPECT_EQ(io_->Finish(), 0);
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read.done, 4096u);
  EXPECT_EQ(data_[4095], 'x');
  EXPECT_GT(signals_seen, 0);
  close(ends[0]);
}

// A program that closes what it does not know, as some do before they become
// daemons, while a read is under way.
TEST_P(BlockIoTest, WhatIsUnderWayOnABrokenRingIsAwaited) {
  if (GetParam() == Kind::kSync) return;  // nothing is under way after Start
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  IoRequest read;
  read.fd = ends[0];
  read.data = data_;
  read.bytes = 4096;
  read.offset = ~std::uint64_t{0};  // "the current position"
  read.registered_buffer = buffer_;
  io_->Start(&read);
  io_->Flush();
  ASSERT_EQ(BreakRings(), 1);
  // Has to be handed over, which shows that the ring is gone.
  ASSERT_EQ(ftruncate(fd_, 4096), 0);
  std::vector<IoRequest> more = StartPages(/*write=*/false, data_ + 4096, 4096);
  std::thread writer([&] {
    // By then the ring has been given up, as a rule; both are right.
    for (int i = 0; i < 1000; ++i) sched_yield();
    char block[4096];
    std::memset(block, 'x', sizeof(block));
    EXPECT_EQ(write(ends[1], block, sizeof(block)), 4096);
  });
  EXPECT_NE(io_->Finish(), 0);
  // Else its memory might be written to when it is somebody else's.
  EXPECT_EQ(read.done, 4096u);
  writer.join();
  EXPECT_TRUE(io_->broken());
  EXPECT_EQ(data_[4095], 'x');
  for (const int end : ends) close(end);
}

INSTANTIATE_TEST_SUITE_P(All, BlockIoTest,
                         testing::Values(Kind::kRing, Kind::kRegisteredRing,
                                         Kind::kSync),
                         [](const auto& info) {
                           switch (info.param) {
                             case Kind::kRing:
                               return "Ring";
                             case Kind::kRegisteredRing:
                               return "RegisteredRing";
                             default:
                               return "Sync";
                           }
                         });

}  // namespace
}  // namespace stratalloc
