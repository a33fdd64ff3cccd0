// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/host_spill.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tiering/io/disk_faults_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kPage = 4096;

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
  EXPECT_EQ(message.find("disk_budget"), std::string::npos) << message;
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

// The lock is another thread's when the child is made.
TEST_F(HostSpillTest, AChildNeverWaits) {
  const auto spill = Open(64 * kMiB);
  ASSERT_TRUE(spill);
  const std::vector<char> data = Data(4 * kMiB);
  std::atomic<bool> over{false};
  std::thread busy([&] {
    while (!over.load()) {
      const auto ticket = spill->Write(data.data(), data.size());
      if (ticket) (void)spill->Free(*ticket);
    }
  });
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const auto refused = spill->Write(data.data(), 1);
      (void)spill->Count();
      spill->Close();
      _exit(!refused && refused.error().code == ErrorCode::kShutdown ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  over.store(true);
  busy.join();
}

}  // namespace
}  // namespace stratalloc
