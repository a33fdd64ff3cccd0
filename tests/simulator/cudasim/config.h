// SPDX-License-Identifier: Apache-2.0
//
// config.h: what the environment asks of the simulated device, read once when
// the first call arrives (README.md lists the variables). A value that cannot
// be read ends the process with one line: a simulation that silently ran with
// another capacity than the one asked for would prove nothing.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONFIG_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/cards.h"

namespace cudasim {

struct Config {
  // By device, the last one for all that follow; empty: the card's memory.
  std::vector<uint64_t> capacities;
  std::vector<std::string> cards;  // names of presets, by device likewise
  std::string profile;             // a file, or empty
  std::string taken;               // by another process (pressure.h)
  std::string slow_copies;         // "direction:factor[:from];..."
  uint64_t pinned = 0;             // the most the host pins, if given
  bool pinned_given = false;
  uint64_t page_tables = 0;  // kept free of each device for them (pressure.h)
  uint64_t call_ns = 0;      // of CPU that every call burns
  int devices = 1;
  std::string peers = "all";  // which devices reach which, see peers.h
  bool async = false;
  uint64_t seed = 0;
  std::string faults;            // "function:nth:error[:which];..."
  bool noop_launch = false;      // shape-only runs
  std::string raw_launches;      // whose pointers are checked (raw_launches.h)
  bool numbers = true;           // false: operators compute shapes only
  bool phantom = false;          // device memory has addresses, no bytes
  std::string leak_report;       // a file name, "stderr", or empty
  bool leak_violations = false;  // leaks at exit count as violations
  bool thread_clocks = false;    // host_clocks.h
  // Virtual memory management (cuMemCreate, cuMemMap, ...): some devices and
  // virtual machines have none. A bit per device that has it.
  uint32_t virtual_memory = ~uint32_t{0};
  // cuMemUnmap waits for all work of the device first, as some drivers may.
  bool unmap_waits = false;

  static Config FromEnvironment();

  // nullptr: the card decides.
  const uint64_t* CapacityOf(int device) const;
  Card CardOf(int device) const;
};

// Reads "64MiB", "8GiB", "512KiB", "4096B" or "4096". False if it is not that.
bool ParseBytes(const std::string& text, uint64_t* bytes);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONFIG_H_
