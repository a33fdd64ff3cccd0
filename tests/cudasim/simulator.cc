// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/simulator.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/cudasim/call_cost.h"
#include "tests/cudasim/launches.h"
#include "tests/cudasim/refusals.h"

namespace cudasim {
namespace {

// What no run may hide, also when it is nothing.
std::string RefusedReport() {
  const long launches = Launches::Get().without_twin();
  const long calls = Refusals::Get().count();
  return "launches without a host twin: " + std::to_string(launches) +
         (launches > 0 ? " (last: " + Launches::Get().last_missing() + ")"
                       : "") +
         "\nrefused calls: " + std::to_string(calls) +
         (calls > 0 ? " (" + Refusals::Get().Names() + ")" : "") + "\n";
}

void AtExit() {
  Simulator& sim = Simulator::Get();
  if (sim.forked.load()) return;
  if (!sim.config.leak_report.empty()) {
    const std::string text = LeakReport() + RefusedReport();
    if (sim.config.leak_report == "stderr") {
      std::fprintf(stderr, "cudasim: at exit:\n%s", text.c_str());
    } else if (std::FILE* file =
                   std::fopen(sim.config.leak_report.c_str(), "w")) {
      std::fputs(text.c_str(), file);
      std::fclose(file);
    } else {
      std::fprintf(stderr, "cudasim: cannot write CUDASIM_LEAK_REPORT=%s\n",
                   sim.config.leak_report.c_str());
    }
  }
  if (sim.config.noop_launch) {
    std::fprintf(stderr,
                 "cudasim: CUDASIM_NOOP_LAUNCH=1: %ld kernel launches did "
                 "nothing; no number of this run means anything\n",
                 Launches::Get().without_twin());
  }
  if (Launches::Get().without_twin() > 0 || Refusals::Get().count() > 0) {
    std::fprintf(stderr, "cudasim: in this run:\n%s", RefusedReport().c_str());
  }
  if (const long count = sim.violations.count(); count > 0) {
    std::fprintf(stderr, "cudasim: %ld violation%s in this run\n", count,
                 count == 1 ? "" : "s");
  }
}

void InForkedChild() {
  Simulator& sim = Simulator::Get();
  // As on a real device: a child of a process that initialised CUDA has none.
  if (sim.used.load()) {
    sim.forked.store(true);
  } else {
    sim.extents.OpenFiles();  // the parent keeps its own
  }
}

}  // namespace

Simulator::Simulator()
    : config(Config::FromEnvironment()),
      extents(config.devices),
      addresses(&arena, &extents, &bytes_gate),
      streams(config.devices),
      clock(config.devices, &streams),
      sticky(config.devices, kOk),
      cards(config.devices) {
  for (int device = 0; device < config.devices; ++device) {
    SetCard(device, config.CardOf(device));
  }
  async.store(config.async);
  streams.Seed(config.seed);
  if (!config.faults.empty()) Faults::PlanFromText(config.faults);
}

Simulator& Simulator::Get() {
  static Simulator* const simulator = [] {
    auto* made = new Simulator;
    return made;
  }();
  static const bool hooked = [] {
    std::atexit(AtExit);
    pthread_atfork(nullptr, nullptr, InForkedChild);
    return true;
  }();
  (void)hooked;
  return *simulator;
}

void Simulator::SetCard(int device, const Card& card) {
  cards[device].store(new Card(card), std::memory_order_release);
  bool modelled = false;
  for (const auto& each : cards) {
    const Card* of_device = each.load();  // null while the first are set
    modelled = modelled || (of_device != nullptr && of_device->modelled);
  }
  keeps_time.store(modelled);
  DeviceMemory& memory = extents.memory(device);
  const uint64_t* const told = config.CapacityOf(device);
  memory.capacity = told != nullptr ? *told : card.memory_bytes;
  memory.context = told != nullptr ? 0 : card.context_bytes;
}

void Simulator::ResetTime() {
  clock.Reset();
  events.ResetVirtualTimes();
  addresses.ResetReadyAt();
}

void Simulator::ChargeKernel(Stream* stream, double flops, double bytes,
                             double tflops) {
  const Card& card = cudasim::CardOf(stream->device);
  if (card.modelled) clock.Kernel(card, stream, flops, bytes, tflops);
}

const Card& CardOf(int device) {
  return *Simulator::Get().cards[device].load(std::memory_order_acquire);
}

const Card& CurrentCard() { return CardOf(ThisThread().device); }

ThreadState& ThisThread() {
  thread_local ThreadState state;
  return state;
}

Status Enter(ApiFunction& function, Entry entry) {
  Simulator& sim = Simulator::Get();
  if (sim.config.devices > 0) ChargeCall(function, CurrentCard(), &sim.clock);
  if (const Status planned = function.Count(); planned != kOk) return planned;
  if (sim.forked.load(std::memory_order_relaxed)) return kNotInitialized;
  if (entry == Entry::kQuestion) return kOk;
  if (!sim.used.load(std::memory_order_relaxed)) sim.used.store(true);
  // The runtime makes the device's context current, the driver does not.
  if (function.of_runtime()) ThisThread().no_context = false;
  if (sim.config.devices == 0) return kNoDevice;
  std::unique_lock<std::mutex> lock(sim.mu);
  if (sim.async.load(std::memory_order_relaxed) &&
      sim.streams.Random() % 2 == 0) {
    sim.streams.Step(lock);
  }
  if (entry == Entry::kAllowedWhenBroken) return kOk;
  return sim.sticky[ThisThread().device];
}

namespace {

// Conflicts of one call, one entry per earlier operation: an operation that
// touched many small pieces of a range is reported once.
class Conflicts {
 public:
  void Add(const Conflict& conflict) {
    auto [entry, is_new] = entries_.try_emplace(
        {conflict.earlier.stream, conflict.earlier.number}, conflict);
    if (is_new) return;
    Conflict& known = entry->second;
    const uint64_t end = std::max(known.address + known.bytes,
                                  conflict.address + conflict.bytes);
    known.address = std::min(known.address, conflict.address);
    known.bytes = end - known.address;
    known.earlier_wrote |= conflict.earlier_wrote;
  }
  const auto& entries() const { return entries_; }

 private:
  std::map<std::pair<size_t, uint64_t>, Conflict> entries_;
};

const char* Verb(bool write) { return write ? " writes" : " reads"; }

}  // namespace

void Simulator::NoteAccess(Stream* stream, const VectorClock& past,
                           uint64_t number, const std::string& name,
                           uint64_t address, uint64_t bytes, bool write) {
  const auto ordered = [&](const Stamp& earlier) {
    return past.Covers(earlier.stream, earlier.number) ||
           streams.IsObserved(earlier.stream, earlier.number) ||
           (earlier.stream == stream->index && earlier.number <= number);
  };
  const std::string who = name + " on " + stream->Name();
  const Stamp stamp{stream->index, number,
                    std::make_shared<const std::string>(who)};
  Conflicts conflicts;
  log.Note(address, bytes, write, stamp, ordered,
           [&](const Conflict& each) { conflicts.Add(each); });
  for (const auto& [key, each] : conflicts.entries()) {
    violations.Add(who + Verb(write) + " " +
                   RangeText(each.address, each.bytes) + ", which " +
                   *each.earlier.name + Verb(each.earlier_wrote) +
                   ", and nothing orders the two");
  }
  if (log.IsLarge()) {
    log.Sweep([&](const Stamp& earlier) {
      return streams.IsObserved(earlier.stream, earlier.number);
    });
  }
}

bool Simulator::HasPendingWrite(uint64_t address, uint64_t bytes) const {
  return log.HasWrite(address, bytes, [&](const Stamp& earlier) {
    return streams.IsObserved(earlier.stream, earlier.number);
  });
}

void Simulator::CheckHolds(const std::string& what, uint64_t address,
                           uint64_t bytes, bool write, bool own) {
  const std::string* name = holds.Conflict(address, bytes, write, own);
  if (name == nullptr) return;
  violations.Add(what +
                 (own     ? " takes "
                  : write ? " writes "
                          : " reads ") +
                 RangeText(address, bytes) + (own ? " away" : "") + " while " +
                 *name + " is computing on it");
}

void Simulator::ForgetRange(const std::string& what, uint64_t address,
                            uint64_t bytes) {
  Conflicts conflicts;
  log.Forget(
      address, bytes,
      [&](const Stamp& earlier) {
        return streams.IsObserved(earlier.stream, earlier.number);
      },
      [&](const Conflict& each) { conflicts.Add(each); });
  for (const auto& [key, each] : conflicts.entries()) {
    violations.Add(what + " takes " + RangeText(each.address, each.bytes) +
                   " away, which " + *each.earlier.name +
                   Verb(each.earlier_wrote) +
                   ", and nothing proves that it has finished");
  }
}

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
                extent.from_malloc ? "allocation" : "handle",
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
      handles.Add(Describe(extent));
    }
    Listing reservations("reservations", &text);
    for (const auto& [start, bytes] : sim.addresses.reservations()) {
      if (sim.addresses.IsMalloc(start)) continue;
      reservations.Add("reservation " + RangeText(start, bytes));
    }
    Listing mappings("mappings", &text);
    for (const auto& [start, mapping] : sim.addresses.mappings()) {
      if (mapping.extent->from_malloc) continue;
      mappings.Add("mapping " + RangeText(start, mapping.bytes));
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

}  // namespace cudasim
