// SPDX-License-Identifier: Apache-2.0
//
// What is alive: the leak report.

#include <cstdio>
#include <string>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

// Lines of one kind of object: the first few, then how many more.
class Listing {
 public:
  Listing(const char* kind, std::string* text) : kind_(kind), text_(text) {}
  ~Listing() {
    if (count_ > kShown) {
      *text_ += "... and " + std::to_string(count_ - kShown) + " more " +
                kind_ + "\n";
    }
  }
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;
  void Add(const std::string& line) {
    if (++count_ <= kShown) *text_ += line + "\n";
  }

 private:
  static constexpr long kShown = 16;
  const char* const kind_;
  std::string* const text_;
  long count_ = 0;
};

std::string Describe(const Extent& extent) {
  char line[160];
  std::snprintf(line, sizeof(line),
                "%s 0x%llx: %llu bytes on %s %d, %d references, %d mappings",
                extent.imported()    ? "memory of another process"
                : extent.from_malloc ? "allocation"
                                     : "handle",
                static_cast<unsigned long long>(extent.id),
                static_cast<unsigned long long>(extent.bytes),
                extent.location == Location::kDevice ? "device" : "host node",
                extent.device, extent.references, extent.mappings);
  return line;
}

}  // namespace

std::string LeakReport() {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  std::string text;
  {
    Listing handles("handles or allocations", &text);
    for (const auto& [id, extent] : sim.extents.live()) {
      // Variables stay to the end, chunks of pools are not the program's.
      if (extent.of_module || extent.pooled) continue;
      handles.Add(Describe(extent));
    }
    Listing reservations("reservations", &text);
    for (const auto& [start, bytes] : sim.addresses.reservations()) {
      if (sim.addresses.IsMalloc(start) || sim.addresses.IsOfModule(start)) {
        continue;
      }
      reservations.Add("reservation " + RangeText(start, bytes));
    }
    Listing mappings("mappings", &text);
    for (const auto& [start, mapping] : sim.addresses.mappings()) {
      if (mapping.extent->from_malloc || mapping.extent->pooled ||
          mapping.extent->of_module) {
        continue;
      }
      mappings.Add("mapping " + RangeText(start, mapping.bytes));
    }
    Listing blocks("blocks of memory pools", &text);
    for (const auto& [start, bytes] : sim.pools.Live()) {
      blocks.Add("block of a memory pool " + RangeText(start, bytes));
    }
    Listing events("events", &text);
    for (const auto& [handle, event] : sim.events.all()) {
      char line[40];
      std::snprintf(line, sizeof(line), "event 0x%llx",
                    static_cast<unsigned long long>(handle));
      events.Add(line);
    }
    Listing streams("streams", &text);
    for (const auto& [handle, stream] : sim.streams.handles()) {
      streams.Add(stream->Name());
    }
    Listing host("pinned host ranges", &text);
    for (const auto& [start, range] : sim.host.ranges()) {
      host.Add((range.mapped_bytes != 0 ? "pinned host allocation "
                                        : "registered host range ") +
               RangeText(start, range.bytes));
    }
  }
  return text.empty() ? "no leaks\n" : text;
}

long ReportLeaks() {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  long count = 0;
  for (const auto& [start, mapping] : sim.addresses.mappings()) {
    if (mapping.extent->pooled || sim.addresses.IsOfModule(start)) continue;
    const bool malloc = mapping.extent->from_malloc;
    sim.violations.Add(
        kind::kMappingLeak,
        sim.BlockText(start, mapping.bytes) +
            (malloc ? " was never freed; missing: cudaFree of it"
                    : " is still mapped; missing: cuMemUnmap of it, after a "
                      "synchronisation of what uses it"));
    ++count;
  }
  for (const auto& [id, extent] : sim.extents.live()) {
    if (extent.references == 0 || extent.of_module) continue;
    sim.violations.Add(
        kind::kMappingLeak,
        Describe(extent) + ": still held; missing: cuMemRelease of it");
    ++count;
  }
  return count;
}

}  // namespace cudasim
