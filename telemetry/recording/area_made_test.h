// SPDX-License-Identifier: Apache-2.0
// Areas in files of a test, and these files as bytes: for the tests of what
// reads them. Files lie in the test's own folder.
#ifndef STRATALLOC_TELEMETRY_RECORDING_AREA_MADE_TEST_H_
#define STRATALLOC_TELEMETRY_RECORDING_AREA_MADE_TEST_H_

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "allocator/events/event_area.h"

namespace stratalloc {

inline std::string Path(const std::string& name) {
  return std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
}

inline std::string Whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void Put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<long>(bytes.size()));
}

// Three rings. An area is never unmapped; whoever counts leaks sees it here.
inline EventArea& Made(const std::string& file, std::uint64_t ring_capacity,
                       Bytes names_bytes) {
  static auto& made = *new std::vector<EventArea*>;
  EventAreaOptions options;
  options.rings = 3;
  options.ring_capacity = ring_capacity;
  options.names_bytes = names_bytes;
  options.file = file;
  made.push_back(*EventArea::Make(options));
  return *made.back();
}

}  // namespace stratalloc

#endif  // STRATALLOC_TELEMETRY_RECORDING_AREA_MADE_TEST_H_
