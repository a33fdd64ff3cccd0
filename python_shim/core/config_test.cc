// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core/config.h"

#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace stratalloc {
namespace {

TEST(Config, EverySettingReachesThoseWhomItIsFor) {
  const std::vector<ConfigItem> items = {
      {"tiering", "off"},
      {"gpu_limit", "1"},
      {"host_budget", "2"},
      {"host_budget_is_given", "on"},
      {"disk_budget", "3"},
      {"disk_dir", "/a folder"},
      {"disk_codec", "zstd"},
      {"gpu_offload_threshold", "0.25"},
      {"gpu_emergency_threshold", "0.5"},
      {"gpu_reload_threshold", "1.25e-1"},
      {"cpu_offload_threshold", "0.75"},
      {"eager_offload", "on"},
      {"telemetry", "callsites"},
  };
  const Result<Config> read = ReadConfig(items);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_FALSE(read->tiering);
  EXPECT_FALSE(read->device.tiering);
  EXPECT_EQ(read->device.gpu_limit, 1u);
  EXPECT_EQ(read->device.host_budget, 2u);
  EXPECT_EQ(read->engine.lower.host_budget, 2u);
  EXPECT_TRUE(read->engine.lower.host_budget_is_given);
  EXPECT_EQ(read->device.disk_budget, 3u);
  EXPECT_EQ(read->engine.lower.disk_budget, 3u);
  EXPECT_EQ(read->engine.lower.disk_dir, "/a folder");
  EXPECT_EQ(read->engine.lower.disk_codec, DiskCodec::kZstd);
  EXPECT_EQ(read->engine.gpu_offload_threshold, 0.25);
  EXPECT_EQ(read->device.emergency_threshold, 0.5);
  EXPECT_EQ(read->engine.gpu_reload_threshold, 0.125);
  EXPECT_EQ(read->engine.lower.cpu_offload_threshold, 0.75);
  EXPECT_TRUE(read->engine.under_pressure);
  EXPECT_EQ(read->telemetry, TelemetryLevel::kCallsites);
}

TEST(Config, SitesAreRecordedFromCallsitesOn) {
  for (const auto& [level, records] : {std::pair{"off", false},
                                       {"counters", false},
                                       {"events", false},
                                       {"callsites", true},
                                       {"full", true}}) {
    const ConfigItem item{"telemetry", level};
    const Result<Config> read = ReadConfig({&item, 1});
    ASSERT_TRUE(read.has_value()) << level;
    EXPECT_EQ(RecordsSites(read->telemetry), records) << level;
    EXPECT_EQ(CountsTime(read->telemetry), std::string_view(level) != "off");
  }
  EXPECT_FALSE(RecordsSites(Config{}.telemetry));
}

TEST(Config, WhatIsNotSaidStays) {
  const Result<Config> read = ReadConfig({});
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->tiering);
  EXPECT_EQ(read->device.host_budget, 0u);
}

TEST(Config, WhatCannotBeReadIsNamed) {
  for (const ConfigItem& item : {ConfigItem{"host_budjet", "1"},
                                 {"host_budget", "1MiB"},
                                 {"host_budget", "-1"},
                                 {"host_budget", ""},
                                 {"gpu_limit", "18446744073709551616"},
                                 {"gpu_offload_threshold", "half"},
                                 {"gpu_offload_threshold", ""},
                                 {"gpu_offload_threshold", " 0.5"},
                                 {"gpu_offload_threshold", "+0.5"},
                                 {"gpu_offload_threshold", "0.5x"},
                                 {"gpu_offload_threshold", "0x1p-1"},
                                 {"gpu_offload_threshold", "0.5e"},
                                 {"gpu_offload_threshold", "1e999"},
                                 {"gpu_offload_threshold", "nan"},
                                 {"telemetry", "loud"},
                                 {"disk_codec", "zip"},
                                 {"tiering", "yes"}}) {
    const Result<Config> read = ReadConfig({&item, 1});
    ASSERT_FALSE(read.has_value()) << item.key;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(read.error().message.find(item.key), std::string::npos)
        << read.error().message;
  }
}

}  // namespace
}  // namespace stratalloc
