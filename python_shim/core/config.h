// SPDX-License-Identifier: Apache-2.0
// What the user chose, as the options of those whom it is for. A setting, its
// default and its meaning are declared in Python (stratalloc/settings.py, which
// the README's table comes from); here stands who obeys it.
//
// Python tells every setting, so the defaults below are those of C++ programs
// that configure nothing. A plain value.
#ifndef STRATALLOC_PYTHON_SHIM_CORE_CONFIG_H_
#define STRATALLOC_PYTHON_SHIM_CORE_CONFIG_H_

#include <span>
#include <string_view>

#include "allocator/base/result.h"
#include "allocator/device_allocator.h"
#include "tiering/engine/engine.h"

namespace stratalloc {

// How much is recorded, each with what those before it record.
enum class TelemetryLevel { kOff, kCounters, kEvents, kCallsites, kFull };
// Of scopes.
constexpr bool CountsTime(TelemetryLevel level) {
  return level != TelemetryLevel::kOff;
}
// In rings, from then on (telemetry/recording/recorder.h).
constexpr bool RecordsEvents(TelemetryLevel level) {
  return level >= TelemetryLevel::kEvents;
}
// Are mallocs sampled for the line that asks (bridge_api/sites.h)?
constexpr bool RecordsSites(TelemetryLevel level) {
  return level >= TelemetryLevel::kCallsites;
}
// "events"; kInvalidArgument if no level is called so.
// Of every malloc the whole stack.
constexpr bool RecordsStacks(TelemetryLevel level) {
  return level >= TelemetryLevel::kFull;
}
Result<TelemetryLevel> ReadTelemetryLevel(std::string_view name);

struct Config {
  bool tiering = true;
  TelemetryLevel telemetry = TelemetryLevel::kCounters;
  DeviceAllocator::Options device;
  Engine::Options engine;
};

// One setting and its value, both as STRATALLOC_CONF writes them; sizes in
// bytes.
struct ConfigItem {
  const char* key;
  const char* value;
};
// kInvalidArgument, naming the key, if there is no such setting or its values
// are others.
Result<Config> ReadConfig(std::span<const ConfigItem> items);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_CORE_CONFIG_H_
