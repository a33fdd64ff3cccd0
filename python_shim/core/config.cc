// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core/config.h"

#include <locale.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace stratalloc {
namespace {

bool Read(std::string_view text, bool* to) {
  *to = text == "on";
  return *to || text == "off";
}

bool Read(std::string_view text, std::string* to) {
  *to = text;
  return true;
}

bool Read(std::string_view text, TelemetryLevel* to) {
  constexpr std::string_view kLevels[] = {"off", "counters", "events",
                                          "callsites", "full"};
  const auto* const found =
      std::find(std::begin(kLevels), std::end(kLevels), text);
  *to = static_cast<TelemetryLevel>(found - std::begin(kLevels));
  return found != std::end(kLevels);
}

bool Read(std::string_view text, DiskCodec* to) {
  const std::optional<DiskCodec> found = DiskCodecOf(text);
  *to = found.value_or(DiskCodec::kOff);
  return found.has_value();
}

template <typename Number>
bool Read(std::string_view text, Number* to) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *to);
  return error == std::errc() && stopped == end;
}

// Digits, a point and an exponent, in the C locale. from_chars of double is
// newer than the systems that wheels are for (bazel/floor).
bool Read(std::string_view text, double* to) {
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string copy(text);
  if (copy.empty() || copy.front() == '+' ||
      copy.find_first_not_of("0123456789.eE+-") != std::string::npos) {
    return false;
  }
  char* stopped = nullptr;
  *to = strtod_l(copy.c_str(), &stopped, c_locale);
  return stopped == copy.c_str() + copy.size() && std::isfinite(*to);
}

struct Setting {
  std::string_view key;
  bool (*obey)(std::string_view value, Config& config);
};

constexpr Setting kSettings[] = {
    {"tiering",
     [](std::string_view value, Config& c) { return Read(value, &c.tiering); }},
    {"gpu_limit", [](std::string_view value,
                     Config& c) { return Read(value, &c.device.gpu_limit); }},
    {"host_budget",
     [](std::string_view value, Config& c) {
       return Read(value, &c.device.host_budget) &&
              Read(value, &c.engine.lower.host_budget);
     }},
    // What somebody asked for is not overruled by the memory that the machine
    // has available. No key of Config: what it looked like before it was
    // resolved.
    {"host_budget_is_given",
     [](std::string_view value, Config& c) {
       return Read(value, &c.engine.lower.host_budget_is_given);
     }},
    {"disk_budget",
     [](std::string_view value, Config& c) {
       return Read(value, &c.device.disk_budget) &&
              Read(value, &c.engine.lower.disk_budget);
     }},
    {"disk_dir",
     [](std::string_view value, Config& c) {
       return Read(value, &c.engine.lower.disk_dir);
     }},
    {"disk_codec",
     [](std::string_view value, Config& c) {
       return Read(value, &c.engine.lower.disk_codec);
     }},
    {"gpu_offload_threshold",
     [](std::string_view value, Config& c) {
       return Read(value, &c.engine.gpu_offload_threshold);
     }},
    {"gpu_emergency_threshold",
     [](std::string_view value, Config& c) {
       return Read(value, &c.device.emergency_threshold);
     }},
    {"gpu_reload_threshold",
     [](std::string_view value, Config& c) {
       return Read(value, &c.engine.gpu_reload_threshold);
     }},
    {"cpu_offload_threshold",
     [](std::string_view value, Config& c) {
       return Read(value, &c.engine.lower.cpu_offload_threshold);
     }},
    {"eager_offload",
     [](std::string_view value, Config& c) {
       return Read(value, &c.engine.under_pressure);
     }},
    {"telemetry", [](std::string_view value,
                     Config& c) { return Read(value, &c.telemetry); }},
};

}  // namespace

Result<TelemetryLevel> ReadTelemetryLevel(std::string_view name) {
  TelemetryLevel level{};
  if (Read(name, &level)) return level;
  return Fail(ErrorCode::kInvalidArgument,
              "stratalloc: there is no telemetry level \"" + std::string(name) +
                  "\"; use off, counters, events, callsites or full");
}

Result<Config> ReadConfig(std::span<const ConfigItem> items) {
  Config config;
  for (const ConfigItem& item : items) {
    const Setting* found = nullptr;
    for (const Setting& setting : kSettings) {
      if (setting.key == item.key) found = &setting;
    }
    if (found == nullptr) {
      return Fail(ErrorCode::kInvalidArgument,
                  std::string("the core knows no setting ") + item.key +
                      ": libstratalloc.so is not of this package's version");
    }
    if (!found->obey(item.value, config)) {
      return Fail(
          ErrorCode::kInvalidArgument,
          std::string("the core cannot read ") + item.key + ":" + item.value);
    }
  }
  config.device.tiering = config.tiering;
  return config;
}

}  // namespace stratalloc
