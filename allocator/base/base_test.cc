// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/check.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/base/thread_local.h"

namespace stratalloc {
namespace {

TEST(Bytes, FormatsLikeTorchsOutOfMemoryText) {
  EXPECT_EQ(FormatBytes(0), "0 bytes");
  EXPECT_EQ(FormatBytes(512), "512 bytes");
  EXPECT_EQ(FormatBytes(kKiB), "1024 bytes");
  EXPECT_EQ(FormatBytes(kKiB + 512), "1.50 KiB");
  EXPECT_EQ(FormatBytes(2 * kMiB), "2.00 MiB");
  EXPECT_EQ(FormatBytes(3 * kGiB + 256 * kMiB), "3.25 GiB");
}

TEST(Bytes, RoundsToAnyAlignment) {
  EXPECT_EQ(RoundUp(1, 512), 512u);
  EXPECT_EQ(RoundUp(512, 512), 512u);
  EXPECT_EQ(RoundUp(21, 10), 30u);
  EXPECT_EQ(RoundDown(29, 10), 20u);
}

TEST(Ids, OnlyTransientStays) {
  EXPECT_FALSE(IsEvictable(LifetimeClass::kTransient));
  EXPECT_FALSE(IsEvictable(LifetimeClass::kStaying));
  for (int c = 0; c < kLifetimeClasses; ++c) {
    const auto lifetime = static_cast<LifetimeClass>(c);
    EXPECT_EQ(IsEvictable(lifetime), lifetime != LifetimeClass::kTransient &&
                                         lifetime != LifetimeClass::kStaying);
  }
  EXPECT_EQ(Raw(StreamId{7}), 7u);
}

// Of the default stream, which is 0 everywhere, and of any address.
TEST(Ids, AStreamElsewhereKeepsItsDeviceAndItsValue) {
  const std::uint64_t highest = (std::uint64_t{1} << 57) - 1;
  for (const std::uint64_t value : {std::uint64_t{0}, highest}) {
    EXPECT_FALSE(IsElsewhere(StreamId{value}));
    EXPECT_EQ(StreamValue(StreamId{value}), value);
    for (int device = 0; device < kMaxDevices; ++device) {
      const StreamId stream =
          StreamElsewhere(static_cast<DeviceIndex>(device), StreamId{value});
      EXPECT_TRUE(IsElsewhere(stream));
      EXPECT_EQ(DeviceElsewhere(stream), static_cast<DeviceIndex>(device));
      EXPECT_EQ(StreamValue(stream), value);
    }
  }
}

Result<int> Half(int value) {
  if (value % 2 != 0) {
    return Fail(ErrorCode::kInvalidArgument, "odd: " + std::to_string(value));
  }
  return value / 2;
}
Result<int> Quarter(int value) {
  STRATALLOC_ASSIGN_OR_RETURN(const int half, Half(value));
  STRATALLOC_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}
Status IsEven(int value) {
  STRATALLOC_RETURN_IF_ERROR(Half(value));
  return {};
}

TEST(Result, MacrosPassErrorsOn) {
  EXPECT_EQ(Quarter(8).value(), 2);
  ASSERT_FALSE(Quarter(6));
  EXPECT_EQ(Quarter(6).error().message, "odd: 3");
  EXPECT_EQ(Quarter(6).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(IsEven(4));
  EXPECT_FALSE(IsEven(5));
}

std::string logged;
int logged_level = 0;

TEST(Log, GoesToTheSink) {
  SetLogSink([](int level, const char* message) {
    logged_level = level;
    logged = message;
  });
  Log(LogLevel::kWarning, "hello");
  SetLogSink(nullptr);
  EXPECT_EQ(logged, "hello");
  EXPECT_EQ(logged_level, 30);
  testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "to stderr");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "stratalloc: to stderr\n");
}

TEST(CheckDeathTest, PrintsConditionAndMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  STRATALLOC_CHECK(1 + 1 == 2, "never printed");
  EXPECT_DEATH(STRATALLOC_CHECK(1 + 1 == 3, "arithmetic broke"),
               "CHECK failed at .*base_test.cc.*1 \\+ 1 == 3.*arithmetic");
}

TEST(Clock, NeverGoesBack) {
  const std::int64_t before = NowNs();
  EXPECT_GE(NowNs(), before);
}

// What a thread's end finds, in the order in which it comes.
std::vector<std::string> ends;  // the joined thread's, then the test's

struct WithDestructor {
  ~WithDestructor() { ends.push_back("destructor"); }
  void Touch() {}
};

TEST(ThreadEnd, ComesAfterDestructorsAndAgainForWhatWasUsedSince) {
  ends.clear();
  static int mine[2];
  static ThreadEnd* const end = new ThreadEnd([](void* which) {
    ends.push_back(which == &mine[0] ? "first" : "second");
    if (which == &mine[0]) end->Await(&mine[1]);
  });
  std::thread([] {
    end->Await(&mine[0]);
    static thread_local WithDestructor made_later;
    made_later.Touch();
  }).join();
  EXPECT_EQ(ends, (std::vector<std::string>{"destructor", "first", "second"}));
}

}  // namespace
}  // namespace stratalloc
