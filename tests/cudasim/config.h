// SPDX-License-Identifier: Apache-2.0
//
// config.h: what the environment asks of the simulated device, read once when
// the first call arrives (README.md lists the variables). A value that cannot
// be read ends the process with one line: a simulation that silently ran with
// another capacity than the one asked for would prove nothing.

#ifndef STRATALLOC_TESTS_CUDASIM_CONFIG_H_
#define STRATALLOC_TESTS_CUDASIM_CONFIG_H_

#include <cstdint>
#include <string>

namespace cudasim {

struct Config {
  uint64_t capacity = uint64_t{8} << 30;  // per device
  int devices = 1;
  bool async = false;
  uint64_t seed = 0;
  std::string faults;        // "function:nth:error[:forever];..."
  bool noop_launch = false;  // shape-only runs
  std::string leak_report;   // a file name, "stderr", or empty

  static Config FromEnvironment();
};

// Reads "64MiB", "8GiB", "512KiB", "4096B" or "4096". False if it is not that.
bool ParseBytes(const std::string& text, uint64_t* bytes);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_CONFIG_H_
