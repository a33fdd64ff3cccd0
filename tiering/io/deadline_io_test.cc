// SPDX-License-Identifier: Apache-2.0
// DeadlineIo: order, errors, and a transfer that comes too late.
#include "tiering/io/deadline_io.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace stratalloc {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

// Notes what it is asked, and ends a Finish once it is let.
class Noted final : public BlockIo {
 public:
  void Start(IoRequest* request) override { started.push_back(request); }
  void Flush() override { flushes.fetch_add(1); }
  int Finish() override {
    waiting.store(true);
    held.wait(true);
    waiting.store(false);
    return error;
  }
  bool broken() const override { return error == EIO; }

  std::vector<IoRequest*> started;
  std::atomic<int> flushes{0};
  std::atomic<bool> held{false}, waiting{false};
  int error = 0;
};

class DeadlineIoTest : public testing::Test {
 protected:
  void Open(std::chrono::nanoseconds most) {
    auto moves = std::make_unique<Noted>();
    moves_ = moves.get();
    io_ = std::make_unique<DeadlineIo>(std::move(moves), most);
  }
  void Release() {
    moves_->held.store(false);
    moves_->held.notify_all();
  }

  Noted* moves_ = nullptr;
  std::unique_ptr<DeadlineIo> io_;
  IoRequest requests_[4];
};

TEST_F(DeadlineIoTest, RequestsAreStartedInTheirOrder) {
  Open(minutes(1));
  for (int round = 0; round < 200; ++round) {
    io_->Start(&requests_[0]);
    io_->Start(&requests_[1]);
    io_->Flush();
    io_->Start(&requests_[2]);
    ASSERT_EQ(io_->Finish(), 0);
    ASSERT_EQ(
        moves_->started,
        (std::vector<IoRequest*>{&requests_[0], &requests_[1], &requests_[2]}));
    moves_->started.clear();
  }
}

TEST_F(DeadlineIoTest, FlushSetsRequestsGoingBeforeFinish) {
  Open(minutes(1));
  io_->Start(&requests_[0]);
  io_->Flush();
  while (moves_->flushes.load() == 0) std::this_thread::yield();
  EXPECT_EQ(io_->Finish(), 0);
}

TEST_F(DeadlineIoTest, ErrorAndBrokenComeFromInside) {
  Open(minutes(1));
  moves_->error = EIO;
  io_->Start(&requests_[0]);
  EXPECT_EQ(io_->Finish(), EIO);
  EXPECT_TRUE(io_->broken());
  EXPECT_FALSE(io_->stuck());
}

TEST_F(DeadlineIoTest, LateTransferIsStuckUntilItEnds) {
  Open(milliseconds(1));
  moves_->held.store(true);
  moves_->error = EIO;
  io_->Start(&requests_[0]);
  EXPECT_EQ(io_->Finish(), ETIMEDOUT);
  EXPECT_TRUE(io_->stuck());
  EXPECT_FALSE(io_->broken()) << "it is asked when it has ended";
  Release();
  while (io_->stuck()) std::this_thread::yield();
  moves_->error = 0;
  io_->Start(&requests_[1]);
  int error = io_->Finish();
  while (error == ETIMEDOUT) {  // a busy machine
    while (io_->stuck()) std::this_thread::yield();
    error = io_->Finish();
  }
  EXPECT_EQ(error, 0) << "the late one's error is not the next one's";
}

TEST_F(DeadlineIoTest, EndWaitsForALateTransfer) {
  Open(milliseconds(1));
  moves_->held.store(true);
  io_->Start(&requests_[0]);
  ASSERT_EQ(io_->Finish(), ETIMEDOUT);
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    io_.reset();
    ended.store(true);
  });
  EXPECT_TRUE(moves_->waiting.load());
  EXPECT_FALSE(ended.load());
  Release();
  ends.join();
}

}  // namespace
}  // namespace stratalloc
