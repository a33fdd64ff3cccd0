// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/simulator.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "tests/simulator/cudasim/call_cost.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/refusals.h"

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
  if (const long checked = Launches::Get().checked(); checked > 0) {
    std::fprintf(stderr,
                 "cudasim: %ld raw launches had their pointers checked and "
                 "computed nothing (last: %s); no number that depends on them "
                 "means anything\n",
                 checked, Launches::Get().last_checked().c_str());
  }
  if (!sim.config.numbers) {
    std::fprintf(stderr,
                 "cudasim: CUDASIM_NUMBERS=off: operators computed shapes "
                 "only; no number of this run means anything\n");
  }
  if (Launches::Get().without_twin() > 0 || Refusals::Get().count() > 0) {
    std::fprintf(stderr, "cudasim: in this run:\n%s", RefusedReport().c_str());
  }
  if (sim.config.leak_violations) ReportLeaks();
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
    RenewOwnToken();
    sim.extents.OpenFiles();  // the parent keeps its own
  }
}

}  // namespace

Simulator::Simulator()
    : config(Config::FromEnvironment()),
      arena(config.phantom),
      extents(config.devices, config.phantom),
      peers(config.devices, config.peers),
      addresses(&arena, &extents, &peers, &bytes_gate),
      streams(config.devices),
      clock(config.devices, &streams),
      pools(config.devices),
      sticky(config.devices, kOk),
      cards(config.devices) {
  for (int device = 0; device < config.devices; ++device) {
    SetCard(device, config.CardOf(device));
  }
  async.store(config.async);
  streams.Seed(config.seed);
  streams.hosts().set_per_thread(config.thread_clocks);
  Launches::Get().raw_names().Set(config.raw_launches);
  if (!config.faults.empty()) Faults::PlanFromText(config.faults);
  if (config.pinned_given) pressure.LimitPinned(config.pinned);
  pressure.KeepForPageTables(config.page_tables);
  if (!clock.SlowDownFromText(config.slow_copies)) {
    std::fprintf(stderr,
                 "cudasim: CUDASIM_SLOW_COPIES=%s cannot be used: it must be "
                 "direction:factor or direction:factor:from\n",
                 config.slow_copies.c_str());
    std::_Exit(2);
  }
  const std::string problem = pressure.TakeFromText(config.taken, &extents);
  if (!problem.empty()) {
    std::fprintf(stderr, "cudasim: CUDASIM_TAKEN cannot be used: %s\n",
                 problem.c_str());
    std::_Exit(2);
  }
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
  cards[device].store(&all_cards.emplace_back(card), std::memory_order_release);
  bool modelled = false;
  for (const auto& each : cards) {
    const Card* of_device = each.load();  // null while the first are set
    modelled = modelled || (of_device != nullptr && of_device->modelled);
  }
  keeps_time.store(modelled);
  DeviceMemory& memory = extents.memory(device);
  const uint64_t* const told = config.CapacityOf(device);
  memory.capacity = told != nullptr ? *told : card.memory_bytes;
  memory.cublas = false;
  ChargeContext(device);
}

void Simulator::ChargeContext(int device) {
  const Card& card = *cards[device].load(std::memory_order_acquire);
  DeviceMemory& memory = extents.memory(device);
  memory.context = 0;
  if (config.CapacityOf(device) != nullptr) return;
  if (!IsPrimaryContextActive(device)) return;
  memory.context =
      card.context_bytes + (memory.cublas ? card.cublas_library_bytes : 0);
}

Status Simulator::OpenContext(int device, void (*hold)(int device)) {
  if (IsPrimaryContextActive(device)) {
    hold(device);
    return kOk;
  }
  Lock lock(mu);
  const bool told = config.CapacityOf(device) != nullptr;
  if (!told &&
      extents.memory(device).Free() < cudasim::CardOf(device).context_bytes) {
    return kOutOfMemory;
  }
  hold(device);
  ChargeContext(device);
  return kOk;
}

void Simulator::ResetTime() {
  clock.Reset();
  events.ResetVirtualTimes();
  addresses.ResetReadyAt();
}

void Simulator::ChargeExtra(const Card& card, double ns_each, double count) {
  if (card.modelled) clock.Spend(static_cast<VirtualNs>(ns_each * count));
}

void Simulator::ChargeKernel(Stream* stream, double flops, double bytes,
                             double tflops) {
  const Card& card = cudasim::CardOf(stream->device);
  if (card.modelled) clock.Kernel(card, stream, flops, bytes, tflops);
}

Stream* Simulator::FindStream(uint64_t handle) {
  const ThreadState& thread = ThisThread();
  Stream* const stream = streams.Find(handle, thread.device);
  if (stream == nullptr && streams.WasDestroyed(handle)) {
    char text[32];
    std::snprintf(text, sizeof(text), "0x%llx",
                  static_cast<unsigned long long>(handle));
    violations.Add(
        kind::kStreamGone,
        std::string(thread.calling == nullptr ? "a call"
                                              : thread.calling->name()) +
            " was given stream " + text +
            ", which has been destroyed; missing edge: let go of "
            "the handle before cudaStreamDestroy");
  }
  return stream;
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
  ThisThread().calling = &function;
  if (sim.config.devices > 0) ChargeCall(function, CurrentCard(), &sim.clock);
  if (const Status planned = function.Count(); planned != kOk) {
    if (sim.config.devices > 0 && BreaksDevice(planned)) {
      Lock lock(sim.mu);
      sim.Break(ThisThread().device, planned);
    }
    return planned;
  }
  if (sim.pressure.IsPlanned()) {
    Lock lock(sim.mu);
    sim.pressure.Apply(function, &sim.extents);
  }
  if (sim.forked.load(std::memory_order_relaxed)) return kNotInitialized;
  if (IsDriverDown() && entry != Entry::kBeforeInit) return kDeinitialized;
  if (function.of_runtime()) {
    InitializeDriver();
  } else if (!IsDriverInitialized() && entry != Entry::kBeforeInit) {
    return kNotInitialized;
  }
  // A call that names a device asks for that one itself.
  if (function.of_virtual_memory() &&
      (sim.virtual_memory.load(std::memory_order_relaxed) &
       ((uint32_t{1} << sim.config.devices) - 1)) == 0) {
    return Refusals::Get().Refuse(function.name());
  }
  if (entry == Entry::kQuestion || entry == Entry::kBeforeInit) return kOk;
  if (ThisThread().in_host_function) return kNotPermitted;
  if (!sim.used.load(std::memory_order_relaxed)) sim.used.store(true);
  // The runtime makes the device's context current, the driver does not.
  if (sim.config.devices == 0) return kNoDevice;
  if (function.of_runtime()) {
    if (const Status opened =
            sim.OpenContext(ThisThread().device, KeepPrimaryContext);
        opened != kOk) {
      return opened;
    }
    ThisThread().no_context = false;
  }
  std::unique_lock<std::mutex> lock(sim.mu);
  if (sim.async.load(std::memory_order_relaxed) &&
      sim.streams.Random() % 2 == 0) {
    sim.streams.Step(lock);
  }
  if (entry == Entry::kAllowedWhenBroken) return kOk;
  return sim.sticky[ThisThread().device];
}

}  // namespace cudasim
