// SPDX-License-Identifier: Apache-2.0
// What the user chose, as the options of those whom it is for. A setting, its
// default and its meaning are declared in Python (stratalloc/settings.py, which
// the README's table comes from); here stands who obeys it.
//
// Python tells every setting, so the defaults below are those of C++ programs
// that configure nothing. A plain value.
#ifndef STRATALLOC_PYTHON_SHIM_CONFIG_H_
#define STRATALLOC_PYTHON_SHIM_CONFIG_H_

#include <span>

#include "allocator/base/result.h"
#include "allocator/device_allocator.h"
#include "tiering/engine/engine.h"

namespace stratalloc {

// How much is recorded, each with what those before it record.
enum class TelemetryLevel { kOff, kCounters, kEvents, kCallsites, kFull };

struct Config {
  bool tiering = true;
  TelemetryLevel telemetry = TelemetryLevel::kCounters;
  DeviceAllocator::Options device;
  Engine::Options engine;

  // Of scopes.
  bool CountsTime() const { return telemetry != TelemetryLevel::kOff; }
  // Are mallocs sampled for the line that asks (core_api/sites.h)?
  bool RecordsSites() const { return telemetry >= TelemetryLevel::kCallsites; }
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

#endif  // STRATALLOC_PYTHON_SHIM_CONFIG_H_
