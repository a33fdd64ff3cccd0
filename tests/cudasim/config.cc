// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/config.h"

#include <cstdio>
#include <cstdlib>
#include <limits>

namespace cudasim {
namespace {

[[noreturn]] void Refuse(const char* name, const std::string& value,
                         const char* wanted) {
  std::fprintf(stderr, "cudasim: %s=%s cannot be used: it must be %s\n", name,
               value.c_str(), wanted);
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
  if (value != "0" && value != "1") Refuse(name, value, "0 or 1");
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

Config Config::FromEnvironment() {
  Config config;
  std::string value;
  if (Read("CUDASIM_MEMORY", &value) &&
      (!ParseBytes(value, &config.capacity) || config.capacity == 0)) {
    Refuse("CUDASIM_MEMORY", value, "a size such as 64MiB or 8GiB");
  }
  uint64_t number = 0;
  if (Read("CUDASIM_DEVICES", &value)) {
    if (!ParseNumber(value, &number) || number > 16) {
      Refuse("CUDASIM_DEVICES", value, "a number from 0 to 16");
    }
    config.devices = static_cast<int>(number);
  }
  if (Read("CUDASIM_MODE", &value)) {
    if (value != "eager" && value != "async") {
      Refuse("CUDASIM_MODE", value, "eager or async");
    }
    config.async = value == "async";
  }
  if (Read("CUDASIM_SEED", &value)) {
    if (!ParseNumber(value, &config.seed)) {
      Refuse("CUDASIM_SEED", value, "a number");
    }
  }
  Read("CUDASIM_FAIL", &config.faults);
  config.noop_launch = ReadFlag("CUDASIM_NOOP_LAUNCH");
  Read("CUDASIM_LEAK_REPORT", &config.leak_report);
  return config;
}

}  // namespace cudasim
