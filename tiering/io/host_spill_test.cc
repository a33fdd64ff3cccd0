// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/host_spill.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tiering/io/disk_faults_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kPage = 4096;

// Tells of what is about to be moved, and of what has been.
class Watched final : public BlockIo {
 public:
  struct Watcher {
    std::function<void(const IoRequest&)> starts = [](const IoRequest&) {};
    std::function<void()> finishes = [] {};
  };
  Watched(const Watcher& watcher, std::unique_ptr<BlockIo> io)
      : watcher_(watcher), io_(std::move(io)) {}
  void Start(IoRequest* request) override {
    watcher_.starts(*request);
    io_->Start(request);
  }
  void Flush() override { io_->Flush(); }
  int Finish() override {
    const int error = io_->Finish();
    watcher_.finishes();
    return error;
  }
  bool broken() const override { return io_->broken(); }
  void AbandonAfterFork() override { io_->AbandonAfterFork(); }

  static std::unique_ptr<HostSpill> Open(const Watcher& watcher) {
    HostSpill::Options options;
    options.directory = testing::TempDir();
    options.quota = 64 * kMiB;
    options.wrap_io = [&watcher](std::unique_ptr<BlockIo> io) {
      return std::make_unique<Watched>(watcher, std::move(io));
    };
    auto spill = HostSpill::Open(options);
    EXPECT_TRUE(spill) << spill.error().message;
    return spill ? std::move(*spill) : nullptr;
  }

 private:
  const Watcher& watcher_;
  const std::unique_ptr<BlockIo> io_;
};

class HostSpillTest : public testing::Test {
 protected:
  std::unique_ptr<HostSpill> Open(Bytes quota,
                                  DiskCodec codec = DiskCodec::kOff) {
    HostSpill::Options options;
    options.directory = testing::TempDir();
    options.quota = quota;
    options.codec = codec;
    options.wrap_io = faults_.Wrap();
    auto spill = HostSpill::Open(options);
    EXPECT_TRUE(spill) << spill.error().message;
    return spill ? std::move(*spill) : nullptr;
  }
  static std::vector<char> Data(Bytes bytes) {
    std::vector<char> data(bytes);
    for (Bytes i = 0; i < bytes; ++i) {
      data[i] = static_cast<char>(i * 2654435761U >> 20);
    }
    return data;
  }

  DiskFaults faults_;
};

TEST_F(HostSpillTest, AnyLengthAtAnyAddress) {
  for (const DiskCodec codec : {DiskCodec::kOff, DiskCodec::kZstd}) {
    const auto spill = Open(64 * kMiB, codec);
    ASSERT_TRUE(spill);
    for (const Bytes bytes : {Bytes{0}, Bytes{1}, kPage - 1, kPage, kPage + 1,
                              8 * kMiB, 8 * kMiB + 1, 17 * kMiB + 12345}) {
      for (const Bytes shift : {0, 1, 64}) {
        const std::vector<char> data = Data(bytes + shift);
        // What stands behind it is nobody's.
        std::vector<char> back(bytes + shift + 1, 0x55);
        const auto ticket = spill->Write(data.data() + shift, bytes);
        ASSERT_TRUE(ticket) << ticket.error().message;
        EXPECT_EQ(spill->Count().used, bytes);
        ASSERT_TRUE(spill->Read(*ticket, back.data() + shift, bytes));
        ASSERT_TRUE(std::equal(data.begin() + static_cast<long>(shift),
                               data.end(),
                               back.begin() + static_cast<long>(shift)));
        EXPECT_EQ(back.back(), 0x55);
        ASSERT_TRUE(spill->Free(*ticket));
      }
    }
    EXPECT_EQ(spill->Count().used, 0u);
    EXPECT_EQ(spill->Count().stored, 0u);
  }
}

TEST_F(HostSpillTest, WhatDoesNotFitLeavesNothing) {
  const auto spill = Open(12 * kMiB);
  ASSERT_TRUE(spill);
  const std::vector<char> data = Data(20 * kMiB);
  const auto kept = spill->Write(data.data(), kMiB);
  ASSERT_TRUE(kept);
  const Bytes stored = spill->Count().stored;
  const auto refused = spill->Write(data.data(), data.size());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  const std::string& message = refused.error().message;
  for (const std::string& word :
       {std::string("12.00 MiB"), std::string("20.00 MiB"),
        std::string("Raise quota")}) {
    EXPECT_NE(message.find(word), std::string::npos) << message;
  }
  for (const std::string& word :
       {std::string("disk_budget"), std::string("disk budget"),
        std::string("stays where it is")}) {
    EXPECT_EQ(message.find(word), std::string::npos) << message;
  }
  EXPECT_NE(message.find(" " + FormatBytes(stored) + " are in use"),
            std::string::npos)
      << "its own pieces are in nobody's way: " << message;
  EXPECT_EQ(spill->Count().stored, stored);
  EXPECT_EQ(spill->Count().used, kMiB);
  EXPECT_EQ(spill->Count().written, kMiB);
  // A disk that is full in the middle of it.
  faults_.FailWrites(1);
  EXPECT_FALSE(spill->Write(data.data(), 9 * kMiB));
  EXPECT_EQ(spill->Count().stored, stored);
  std::vector<char> back(kMiB);
  ASSERT_TRUE(spill->Read(*kept, back.data(), kMiB));
  EXPECT_TRUE(std::equal(back.begin(), back.end(), data.begin()));
}

TEST_F(HostSpillTest, MistakesAndDamageAreTold) {
  HostSpill::Options bad;
  bad.directory = testing::TempDir() + "missing";
  bad.quota = kMiB;
  EXPECT_EQ(HostSpill::Open(bad).error().code, ErrorCode::kIo);
  bad.quota = kPage;
  EXPECT_EQ(HostSpill::Open(bad).error().code, ErrorCode::kInvalidArgument);

  const auto spill = Open(kMiB);
  ASSERT_TRUE(spill);
  std::vector<char> data = Data(5000);
  const auto ticket = spill->Write(data.data(), 5000);
  ASSERT_TRUE(ticket);
  for (const Status& status :
       {spill->Read(*ticket, data.data(), 4999), spill->Free(*ticket + 1),
        spill->Read(*ticket + 1, data.data(), 5000)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
  faults_.FlipReads(1);
  const Status damaged = spill->Read(*ticket, data.data(), 5000);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ErrorCode::kCorrupt);
  spill->Close();
  spill->Close();
  EXPECT_EQ(spill->Read(*ticket, data.data(), 5000).error().code,
            ErrorCode::kShutdown);
  EXPECT_EQ(spill->Write(data.data(), 1).error().code, ErrorCode::kShutdown);
}

// Whole pages go from where they are to where they are wanted.
TEST_F(HostSpillTest, WholePagesAreNotCopied) {
  constexpr Bytes kBytes = 8 * kMiB + 3 * kPage;
  constexpr std::align_val_t kPages{kPage};
  char* const data = static_cast<char*>(operator new(kBytes + kPage, kPages));
  char* const back = static_cast<char*>(operator new(kBytes + kPage, kPages));
  const std::vector<char> made = Data(kBytes + kPage);
  std::copy(made.begin(), made.end(), data);
  std::fill_n(back, kBytes + kPage, 0x55);
  Bytes direct = 0;
  Watched::Watcher watcher;
  watcher.starts = [&](const IoRequest& request) {
    for (const char* from : {data, back}) {
      if (request.data >= from && request.data < from + kBytes) {
        direct += request.bytes;
      }
    }
  };
  const auto spill = Watched::Open(watcher);
  ASSERT_TRUE(spill);
  const auto ticket = spill->Write(data, kBytes);
  ASSERT_TRUE(ticket) << ticket.error().message;
  EXPECT_EQ(direct, kBytes);
  ASSERT_TRUE(spill->Read(*ticket, back, kBytes));
  EXPECT_EQ(direct, 2 * kBytes);
  EXPECT_TRUE(std::equal(data, data + kBytes, back));
  EXPECT_EQ(back[kBytes], 0x55) << "what stands behind it is nobody's";
  // Elsewhere, and back to where it is not so.
  ASSERT_TRUE(spill->Read(*ticket, back + 1, kBytes));
  EXPECT_EQ(direct, 2 * kBytes);
  EXPECT_TRUE(std::equal(data, data + kBytes, back + 1));
  operator delete(data, kPages);
  operator delete(back, kPages);
}

// The lock is another thread's when the child is made: inside a write.
TEST_F(HostSpillTest, AChildNeverWaits) {
  std::atomic<bool> inside{false}, over{false};
  Watched::Watcher watcher;
  watcher.finishes = [&] {
    inside.store(true);
    inside.notify_one();
    over.wait(false);
  };
  const auto spill = Watched::Open(watcher);
  ASSERT_TRUE(spill);
  const std::vector<char> data = Data(kPage);
  std::thread busy([&] {
    const auto ticket = spill->Write(data.data(), data.size());
    EXPECT_TRUE(ticket);
  });
  inside.wait(false);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // whoever waits is ended
    const auto refused = spill->Write(data.data(), 1);
    (void)spill->Count();
    spill->Close();
    _exit(!refused && refused.error().code == ErrorCode::kShutdown ? 0 : 1);
  }
  int status = 1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  over.store(true);
  over.notify_one();
  busy.join();
}

}  // namespace
}  // namespace stratalloc
