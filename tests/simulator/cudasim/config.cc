// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/config.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "tests/simulator/cudasim/peers.h"
#include "tests/simulator/cudasim/profile.h"

namespace cudasim {
namespace {

[[noreturn]] void Refuse(const char* name, const std::string& value,
                         const std::string& problem) {
  std::fprintf(stderr, "cudasim: %s=%s cannot be used: %s\n", name,
               value.c_str(), problem.c_str());
  std::_Exit(2);
}

bool Read(const char* name, std::string* value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return false;
  *value = text;
  return true;
}

bool ParseNumber(const std::string& text, uint64_t* number) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  char* end = nullptr;
  *number = std::strtoull(text.c_str(), &end, 10);
  return *end == '\0';
}

bool ReadFlag(const char* name) {
  std::string value;
  if (!Read(name, &value)) return false;
  if (value != "0" && value != "1") Refuse(name, value, "it must be 0 or 1");
  return value == "1";
}

}  // namespace

bool ParseBytes(const std::string& text, uint64_t* bytes) {
  const size_t digits = text.find_first_not_of("0123456789");
  uint64_t number = 0;
  if (!ParseNumber(text.substr(0, digits), &number)) return false;
  const std::string unit =
      digits == std::string::npos ? "B" : text.substr(digits);
  int shift = 0;
  if (unit == "KiB") {
    shift = 10;
  } else if (unit == "MiB") {
    shift = 20;
  } else if (unit == "GiB") {
    shift = 30;
  } else if (unit == "TiB") {
    shift = 40;
  } else if (unit != "B") {
    return false;
  }
  if (number > (std::numeric_limits<uint64_t>::max() >> shift)) return false;
  *bytes = number << shift;
  return true;
}

namespace {

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t comma; (comma = text.find(',', start)) != std::string::npos;) {
    parts.push_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  parts.push_back(text.substr(start));
  return parts;
}

// A list names one device after the other, so it says how many there are
// where nothing else does.
void FitDevices(const char* name, size_t entries, bool devices_given,
                Config* config) {
  if (entries <= static_cast<size_t>(config->devices)) return;
  if (devices_given || entries > 16) {
    Refuse(name, std::to_string(entries) + " entries",
           "there must be no more of them than there are devices "
           "(CUDASIM_DEVICES)");
  }
  config->devices = static_cast<int>(entries);
}

}  // namespace

const uint64_t* Config::CapacityOf(int device) const {
  if (capacities.empty()) return nullptr;
  return &capacities[std::min<size_t>(device, capacities.size() - 1)];
}

Card Config::CardOf(int device) const {
  Card card =
      cards.empty()
          ? Card::Generic()
          : *Card::Preset(cards[std::min<size_t>(device, cards.size() - 1)]);
  if (!profile.empty()) {
    const std::string problem = ApplyProfileFile(profile, &card);
    if (!problem.empty()) Refuse("CUDASIM_PROFILE", profile, problem);
  }
  if (call_ns != 0) card.burn_call_ns = static_cast<double>(call_ns);
  return card;
}

Config Config::FromEnvironment() {
  Config config;
  std::string value;
  uint64_t number = 0;
  if (Read("CUDASIM_DEVICES", &value)) {
    if (!ParseNumber(value, &number) || number > 16) {
      Refuse("CUDASIM_DEVICES", value, "it must be a number from 0 to 16");
    }
    config.devices = static_cast<int>(number);
  }
  const bool devices_given = Read("CUDASIM_DEVICES", &value);
  if (Read("CUDASIM_MEMORY", &value)) {
    for (const std::string& part : Split(value)) {
      if (!ParseBytes(part, &number) || number == 0) {
        Refuse("CUDASIM_MEMORY", value,
               "it must be a size such as 64MiB or 8GiB, or one per device "
               "(64MiB,128MiB)");
      }
      config.capacities.push_back(number);
    }
    FitDevices("CUDASIM_MEMORY", config.capacities.size(), devices_given,
               &config);
  }
  if (Read("CUDASIM_CARD", &value)) {
    config.cards = Split(value);
    for (const std::string& part : config.cards) {
      if (Card::Preset(part) != nullptr) continue;
      Refuse(
          "CUDASIM_CARD", value,
          "it must be one of " + Card::PresetNames() + ", or one per device");
    }
    FitDevices("CUDASIM_CARD", config.cards.size(), devices_given, &config);
  }
  if (Read("CUDASIM_PEERS", &value)) {
    std::vector<uint32_t> reachable;
    if (!Peers::Parse(config.devices, value, &reachable)) {
      Refuse("CUDASIM_PEERS", value,
             "all, none, or pairs of devices such as 0-1,2-3");
    }
    config.peers = value;
  }
  if (Read("CUDASIM_MODE", &value)) {
    if (value != "eager" && value != "async") {
      Refuse("CUDASIM_MODE", value, "it must be eager or async");
    }
    config.async = value == "async";
  }
  if (Read("CUDASIM_SEED", &value)) {
    if (!ParseNumber(value, &config.seed)) {
      Refuse("CUDASIM_SEED", value, "it must be a number");
    }
  }
  Read("CUDASIM_FAIL", &config.faults);
  Read("CUDASIM_PROFILE", &config.profile);
  if (Read("CUDASIM_CALL_NS", &value)) {
    if (!ParseNumber(value, &config.call_ns) || config.call_ns > 1000000000) {
      Refuse("CUDASIM_CALL_NS", value, "it must be nanoseconds, at most 10^9");
    }
  }
  Read("CUDASIM_TAKEN", &config.taken);
  Read("CUDASIM_SLOW_COPIES", &config.slow_copies);
  config.pinned_given = Read("CUDASIM_PINNED", &value);
  if (config.pinned_given && !ParseBytes(value, &config.pinned)) {
    Refuse("CUDASIM_PINNED", value, "it must be a size such as 64MiB, or 0");
  }
  if (Read("CUDASIM_PAGE_TABLES", &value) &&
      !ParseBytes(value, &config.page_tables)) {
    Refuse("CUDASIM_PAGE_TABLES", value, "it must be a size such as 16MiB");
  }
  config.noop_launch = ReadFlag("CUDASIM_NOOP_LAUNCH");
  Read("CUDASIM_CHECK_RAW_LAUNCHES", &config.raw_launches);
  Read("CUDASIM_LEAK_REPORT", &config.leak_report);
  config.leak_violations = ReadFlag("CUDASIM_LEAK_VIOLATIONS");
  if (Read("CUDASIM_HOST_CLOCKS", &value)) {
    if (value != "process" && value != "threads") {
      Refuse("CUDASIM_HOST_CLOCKS", value, "process or threads");
    }
    config.thread_clocks = value == "threads";
  }
  if (Read("CUDASIM_VMM", &value)) {
    const std::vector<std::string> parts = Split(value);
    for (const std::string& part : parts) {
      if (part == "on" || part == "off") continue;
      Refuse("CUDASIM_VMM", value,
             "it must be on or off, or one per device (off,on)");
    }
    FitDevices("CUDASIM_VMM", parts.size(), devices_given, &config);
    for (int device = 0; device < config.devices; ++device) {
      const size_t entry = std::min<size_t>(device, parts.size() - 1);
      if (parts[entry] == "off") config.virtual_memory &= ~(1u << device);
    }
  }
  if (Read("CUDASIM_UNMAP", &value)) {
    if (value != "returns" && value != "waits") {
      Refuse("CUDASIM_UNMAP", value, "it must be returns or waits");
    }
    config.unmap_waits = value == "waits";
  }
  if (Read("CUDASIM_NUMBERS", &value)) {
    if (value != "on" && value != "off") {
      Refuse("CUDASIM_NUMBERS", value, "it must be on or off");
    }
    config.numbers = value == "on";
  }
  // Without numbers nobody looks at the bytes.
  config.phantom = Read("CUDASIM_PHANTOM", &value) ? ReadFlag("CUDASIM_PHANTOM")
                                                   : !config.numbers;
  return config;
}

}  // namespace cudasim
