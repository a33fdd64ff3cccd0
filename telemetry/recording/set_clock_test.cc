// SPDX-License-Identifier: Apache-2.0
// A program whose calendar is set while it records: a process of its own, since
// everything in it sees the clock that is defined here.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "telemetry/recording/area_made_test.h"
#include "telemetry/recording/recorder.h"

namespace {
std::atomic<std::int64_t> seconds_ahead{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += seconds_ahead;
  return static_cast<int>(failed);
}

namespace stratalloc {
namespace {

using Json = nlohmann::json;

// The head is the first section; its text begins behind 32 bytes.
Json HeadOf(const std::string& path) {
  const std::string bytes = Whole(path);
  const std::size_t begin = bytes.find('{');
  std::uint64_t length = 0;
  bytes.copy(reinterpret_cast<char*>(&length), sizeof(length), begin - 8);
  return Json::parse(bytes.substr(begin, length));
}

TEST(Recorder, ARecordingIsAsLongAsItTookWhateverTheCalendarDoes) {
  for (const std::int64_t set : {-3600, 3600}) {
    seconds_ahead = 0;
    const auto recording =
        Recorder::Get().Begin({}, [] { return std::vector<Json>{}; });
    ASSERT_TRUE(recording);
    seconds_ahead = set;
    ASSERT_TRUE(Recorder::Get().Write(
        *recording, Path("set"), {}, [] { return std::vector<Json>{}; }, true));
    const std::int64_t duration = HeadOf(Path("set"))["duration"];
    EXPECT_GE(duration, 0);
    EXPECT_LT(duration, std::int64_t{1800} * 1'000'000'000);
  }
}

}  // namespace
}  // namespace stratalloc
