// SPDX-License-Identifier: Apache-2.0
#include "tiering/host/memory_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace stratalloc {
namespace {

// A made-up /proc and /sys/fs/cgroup.
class MemoryLimitTest : public testing::Test {
 protected:
  MemoryLimitTest()
      : root_(testing::TempDir() + "limit" + std::to_string(getpid())) {
    Write("/proc/meminfo",
          "MemTotal: 16777216 kB\nMemAvailable:  8388608 kB\n");
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void Group2(const std::string& path, const std::string& max, Bytes current,
              Bytes inactive_file = 0) {
    const std::string group = "/sys/fs/cgroup" + path;
    Write(group + "/memory.max", max);
    Write(group + "/memory.current", std::to_string(current));
    Write(group + "/memory.stat",
          "anon 5\ninactive_file " + std::to_string(inactive_file) + "\n");
  }

  const std::string root_;
};

TEST_F(MemoryLimitTest, WithoutGroupsTheMachineLimits) {
  EXPECT_EQ(AvailableHostMemory(root_), 8 * kGiB);
}

TEST_F(MemoryLimitTest, KnowingNothingDoesNotLimit) {
  EXPECT_EQ(AvailableHostMemory(root_ + "/nowhere"), kNoMemoryLimit);
}

TEST_F(MemoryLimitTest, TheTightestGroupOnTheWayUpLimits) {
  Write("/proc/self/cgroup", "0::/slice/service\n");
  Group2("/slice/service", "max", 100 * kMiB);
  Group2("/slice", std::to_string(kGiB), 700 * kMiB);
  Group2("", "max", kGiB);
  EXPECT_EQ(AvailableHostMemory(root_), 324 * kMiB);
}

TEST_F(MemoryLimitTest, TheGroupsAloneKnowNothingOfTheMachine) {
  EXPECT_EQ(MemoryGroupsLeft(root_), kNoMemoryLimit);
  Write("/proc/self/cgroup", "0::/a\n");
  Group2("/a", std::to_string(16 * kGiB), 4 * kGiB);
  EXPECT_EQ(MemoryGroupsLeft(root_), 12 * kGiB);
  EXPECT_EQ(AvailableHostMemory(root_), 8 * kGiB);
}

TEST_F(MemoryLimitTest, InUseOrNotTheTightestLimitIsTheTotal) {
  EXPECT_EQ(TotalHostMemory(root_), 16 * kGiB);
  EXPECT_EQ(TotalHostMemory(root_ + "/nowhere"), kNoMemoryLimit);
  Write("/proc/self/cgroup", "0::/slice/service\n");
  Group2("/slice/service", "max", 100 * kMiB);
  Group2("/slice", std::to_string(kGiB), 700 * kMiB);
  EXPECT_EQ(TotalHostMemory(root_), kGiB);
}

// Above memory.high the kernel kills nothing, but delays each allocation.
TEST_F(MemoryLimitTest, ThrottledGroupLimitsBelowItsMaximum) {
  Write("/proc/self/cgroup", "0::/a\n");
  Group2("/a", "max", 200 * kMiB);
  Write("/sys/fs/cgroup/a/memory.high", std::to_string(500 * kMiB));
  EXPECT_EQ(AvailableHostMemory(root_), 300 * kMiB);
  EXPECT_EQ(TotalHostMemory(root_), 500 * kMiB);
  Group2("/a", std::to_string(kGiB), 600 * kMiB);
  EXPECT_EQ(AvailableHostMemory(root_), 0u);
  Write("/sys/fs/cgroup/a/memory.high", "max");
  EXPECT_EQ(AvailableHostMemory(root_), 424 * kMiB);
}

TEST_F(MemoryLimitTest, PageCacheThatCanGoIsFree) {
  Write("/proc/self/cgroup", "0::/a\n");
  Group2("/a", std::to_string(kGiB), 900 * kMiB, 200 * kMiB);
  EXPECT_EQ(AvailableHostMemory(root_), 324 * kMiB);
}

TEST_F(MemoryLimitTest, AGroupBeyondItsLimitHasNothing) {
  Write("/proc/self/cgroup", "0::/a\n");
  Group2("/a", std::to_string(kMiB), 2 * kMiB);
  EXPECT_EQ(AvailableHostMemory(root_), 0u);
}

// Inside a container the path is the host's; the mount's root is ours.
TEST_F(MemoryLimitTest, APathOutsideTheMountFallsBackToItsRoot) {
  Write("/proc/self/cgroup", "0::/docker/0123/payload\n");
  Group2("", std::to_string(2 * kGiB), kGiB);
  EXPECT_EQ(AvailableHostMemory(root_), kGiB);
}

TEST_F(MemoryLimitTest, Version1Counts) {
  Write("/proc/self/cgroup", "5:cpu,memory:/job\n0::/\n");
  const std::string group = "/sys/fs/cgroup/memory/job";
  Write(group + "/memory.limit_in_bytes", std::to_string(512 * kMiB));
  Write(group + "/memory.usage_in_bytes", std::to_string(212 * kMiB));
  EXPECT_EQ(AvailableHostMemory(root_), 300 * kMiB);
}

TEST_F(MemoryLimitTest, ThisMachineHasSomeMemory) {
  EXPECT_GT(AvailableHostMemory(), 0u);
}

}  // namespace
}  // namespace stratalloc
