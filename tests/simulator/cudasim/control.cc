// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/control.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tests/simulator/cudasim/control_text.h"
#include "tests/simulator/cudasim/driver_entry.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/raw_launches.h"
#include "tests/simulator/cudasim/refusals.h"
#include "tests/simulator/cudasim/simulator.h"

namespace {

using cudasim::CopyText;
using cudasim::Launches;
using cudasim::Lock;
using cudasim::Refusals;
using cudasim::Simulator;

bool HasDevice(int device) {
  return device >= 0 && device < Simulator::Get().config.devices;
}

uint64_t Handle(void* stream) { return reinterpret_cast<uint64_t>(stream); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

uint64_t cudasim_arena_base(void) { return Simulator::Get().arena.base(); }
uint64_t cudasim_arena_size(void) { return Simulator::Get().arena.size(); }
uint64_t cudasim_delta(void) { return Simulator::Get().arena.delta(); }

void* cudasim_host_view(const void* pointer) {
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  Simulator& sim = Simulator::Get();
  if (!sim.arena.IsDevice(address)) return reinterpret_cast<void*>(address);
  if (sim.extents.phantom()) {
    Lock lock(sim.mu);
    uint64_t start = 0;
    const cudasim::Mapping* mapping =
        sim.addresses.FindMapping(address, &start);
    if (mapping == nullptr || sim.extents.IsPhantom(*mapping->extent)) {
      cudasim::Unsupported("the host's view of phantom memory");
      return nullptr;
    }
  }
  return sim.arena.View(address);
}

int cudasim_set_virtual_memory(int device, int supported) {
  Simulator& sim = Simulator::Get();
  if (device < -1 || device >= sim.config.devices) return -1;
  Lock lock(sim.mu);
  for (const auto& [id, extent] : sim.extents.live()) {
    if (extent.location == cudasim::Location::kDevice) return -1;
  }
  const uint32_t which = device < 0 ? ~uint32_t{0} : uint32_t{1} << device;
  if (supported != 0) {
    sim.virtual_memory.fetch_or(which);
  } else {
    sim.virtual_memory.fetch_and(~which);
  }
  return 0;
}

int cudasim_set_phantom(int phantom) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  for (const auto& [id, extent] : sim.extents.live()) {
    if (extent.location == cudasim::Location::kDevice) return -1;
  }
  // A process that started with it has no place where bytes could be.
  if (phantom == 0 && sim.arena.delta() == 0) return -1;
  sim.extents.SetPhantom(phantom != 0);
  return 0;
}

int cudasim_is_phantom(void) {
  return Simulator::Get().extents.phantom() ? 1 : 0;
}

int cudasim_numbers(void) { return Simulator::Get().config.numbers ? 1 : 0; }

int cudasim_range_is_accessible(uint64_t address, uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  uint64_t start = 0;
  const cudasim::Mapping* mapping = sim.addresses.FindMapping(address, &start);
  if (mapping == nullptr) return 0;
  const cudasim::ThreadState& thread = cudasim::ThisThread();
  const int device = mapping->extent->location == cudasim::Location::kDevice
                         ? mapping->extent->device
                     : thread.launching != nullptr ? thread.launching->device
                                                   : thread.device;
  return sim.addresses.Problem(address, bytes, device, true).empty() ? 1 : 0;
}

int cudasim_load_cublas(int device) {
  if (!HasDevice(device)) return cudasim::kInvalidDevice;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (const cudasim::Status unsafe = sim.captures.Unsafe();
      unsafe != cudasim::kOk) {
    return unsafe;
  }
  cudasim::DeviceMemory& memory = sim.extents.memory(device);
  memory.cublas = true;
  sim.ChargeContext(device);
  return cudasim::kOk;
}

uint64_t cudasim_context_bytes(int device) {
  if (!HasDevice(device)) return 0;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.extents.memory(device).context;
}

void cudasim_set_capacity(int device, uint64_t bytes) {
  if (!HasDevice(device)) return;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.extents.memory(device).capacity = bytes;
}

uint64_t cudasim_capacity(int device) {
  if (!HasDevice(device)) return 0;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.extents.memory(device).capacity;
}

uint64_t cudasim_used(int device) {
  if (!HasDevice(device)) return 0;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.extents.Settle();
  return sim.extents.memory(device).used;
}

uint64_t cudasim_peak_used(int device) {
  if (!HasDevice(device)) return 0;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.extents.memory(device).peak;
}

void cudasim_set_unmap_waits(int waits) {
  Simulator::Get().unmap_waits.store(waits != 0);
}

void cudasim_set_mode(int async_mode) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  for (int device = 0; device < sim.config.devices; ++device) {
    sim.streams.Synchronize(lock, sim.streams.DevicePast(device));
  }
  sim.log.Clear();
  sim.async.store(async_mode != 0);
}

int cudasim_mode(void) { return Simulator::Get().async.load() ? 1 : 0; }

void cudasim_set_seed(uint64_t seed) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.streams.Seed(seed);
}

void cudasim_hold_streams(int held) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.streams.Hold(held != 0);
}

long cudasim_run_stream(void* stream, long count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  cudasim::Stream* found =
      sim.streams.Find(Handle(stream), cudasim::ThisThread().device);
  return found == nullptr ? -1 : sim.streams.Run(lock, found, count);
}

void cudasim_reset_for_testing(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.streams.Reset(lock);
  sim.events.Clear();
  sim.log.Clear();
  cudasim::Holds::Clear();
  sim.streams.hosts().set_per_thread(sim.config.thread_clocks);
  sim.captures.Clear();
  sim.graphs.Clear();
  sim.violations.Clear();
  sim.peers.Clear();
  sim.pools.Reset();
  cudasim::RaiseDriverForTesting();
  sim.unmap_waits.store(sim.config.unmap_waits);
  std::fill(sim.sticky.begin(), sim.sticky.end(), cudasim::kOk);
  sim.broken.store(false, std::memory_order_relaxed);
  for (int device = 0; device < sim.config.devices; ++device) {
    cudasim::DeviceMemory& memory = sim.extents.memory(device);
    memory.peak = memory.used;
    memory.others = 0;
  }
  sim.bridged_ops.store(0);
  sim.ResetTime();
  cudasim::Faults::Clear();
  sim.pressure.Clear();
  sim.limits.Clear();
  cudasim::Faults::ResetCounts();
  Launches::Get().ResetCounts();
  Refusals::Get().ResetCounts();
  cudasim::ThisThread().last_error = cudasim::kOk;
}

void cudasim_shut_down(void) { cudasim::ShutDownDriver(); }

void cudasim_clear_errors(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  std::fill(sim.sticky.begin(), sim.sticky.end(), cudasim::kOk);
  sim.broken.store(false, std::memory_order_relaxed);
  cudasim::ThisThread().last_error = cudasim::kOk;
}

int cudasim_broken(void) {
  return Simulator::Get().broken.load(std::memory_order_relaxed) ? 1 : 0;
}

int cudasim_device_error(int device) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (device < 0 || device >= static_cast<int>(sim.sticky.size())) return 0;
  return sim.sticky[device];
}

void cudasim_begin_operator(void* stream, const char*) {
  Simulator& sim = Simulator::Get();
  if (!sim.async.load()) return;
  Lock lock(sim.mu);
  cudasim::Stream* found =
      sim.streams.Find(Handle(stream), cudasim::ThisThread().device);
  if (found == nullptr) return;
  const cudasim::VectorClock past = sim.streams.Past(found);
  sim.streams.Execute(lock, past);
}

void cudasim_note_access(void* stream, const char* name,
                         const cudasim_access* accesses, int count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  cudasim::Stream* found =
      sim.streams.Find(Handle(stream), cudasim::ThisThread().device);
  if (found == nullptr) {
    sim.violations.Add(cudasim::kind::kStreamGone,
                       std::string(name) + " ran on a stream that is gone");
    return;
  }
  for (int i = 0; i < count; ++i) {
    const cudasim_access& access = accesses[i];
    if (access.bytes == 0) continue;
    const char* kind = cudasim::kind::kIllegalAddress;
    std::string problem;
    if (!sim.arena.IsDevice(access.address)) {
      if (cudasim::CardOf(found->device).kernels_reach_host != 0) continue;
      problem = cudasim::kHostOutOfReach;
    } else {
      problem = sim.addresses.Problem(access.address, access.bytes,
                                      found->device, access.write != 0, &kind);
    }
    if (problem.empty()) {
      problem = sim.pools.Problem(access.address, access.bytes);
      kind = cudasim::kind::kUseAfterFree;
    }
    if (problem.empty()) continue;
    sim.violations.Add(kind, std::string(name) + " on " + found->Name() +
                                 (access.write ? " writes " : " reads ") +
                                 sim.BlockText(access.address, access.bytes) +
                                 ", but " + problem);
    sim.Break(found->device, cudasim::kIllegalAddress);
  }
  if (cudasim::CardOf(found->device).modelled) {
    for (int i = 0; i < count; ++i) {
      sim.clock.Hold(
          found, sim.addresses.ReadyAt(accesses[i].address, accesses[i].bytes));
    }
  }
  if (!sim.async.load()) return;
  const cudasim::VectorClock past = sim.streams.Past(found);
  // Computed already; queued all the same, so that a query may say "not yet".
  const uint64_t number = sim.streams.Submit(found, nullptr);
  for (int i = 0; i < count; ++i) {
    const cudasim_access& access = accesses[i];
    sim.NoteAccess(found, past, number, name, access.address, access.bytes,
                   access.write == 0   ? cudasim::Use::kRead
                   : access.write == 2 ? cudasim::Use::kFirstWrite
                                       : cudasim::Use::kWrite);
  }
}

void cudasim_block_freed(uint64_t address, uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  if (!sim.async.load()) return;
  Lock lock(sim.mu);
  for (const cudasim::Segment& segment : sim.Segments(address, bytes)) {
    sim.log.MarkFreed(segment.line, segment.bytes);
  }
}

long cudasim_hold_ranges(const char* name, const cudasim_access* accesses,
                         int count) {
  return cudasim::Holds::Add(name, accesses, count);
}

void cudasim_release_ranges(long token) { cudasim::Holds::Release(token); }

void cudasim_set_thread_clocks(int per_thread) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.streams.hosts().set_per_thread(per_thread != 0);
}

void cudasim_thread_release(uint64_t token) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.streams.hosts().Release(token);
  if (sim.keeps_time.load()) sim.clock.Release(token);
}

void cudasim_thread_acquire(uint64_t token) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.streams.hosts().Acquire(token);
  if (sim.keeps_time.load()) sim.clock.Acquire(token);
}

long cudasim_captures(void) { return Simulator::Get().captures.active(); }

int cudasim_stream_capture(void* stream, unsigned long long* id) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (id != nullptr) *id = 0;
  const cudasim::Stream* found =
      sim.streams.Find(Handle(stream), cudasim::ThisThread().device);
  if (found == nullptr || found->capture == nullptr) return 0;
  if (id != nullptr) *id = found->capture->id;
  return found->capture->invalidated ? 2 : 1;
}

int cudasim_capture_operator(void* stream, const char* name,
                             const cudasim_access* accesses, int count,
                             int (*run)(void* state),
                             void (*destroy)(void* state), void* state) {
  // Whatever happens, the state is given back when nobody needs it.
  const std::shared_ptr<void> owned(state, destroy);
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  cudasim::Stream* found =
      sim.streams.Find(Handle(stream), cudasim::ThisThread().device);
  if (found == nullptr) return cudasim::kInvalidHandle;
  cudasim::Capture* capture = nullptr;
  if (const cudasim::Status status = sim.captures.Enqueue(found, &capture);
      status != cudasim::kOk) {
    return status;
  }
  if (capture == nullptr) return cudasim::kIllegalState;
  cudasim::Work work;
  work.kind = cudasim::NodeKind::kKernel;
  work.name = name;
  for (int i = 0; i < count; ++i) {
    // Only the device's own memory is looked at when it runs.
    if (sim.arena.IsDevice(accesses[i].address)) {
      work.accesses.push_back(accesses[i]);
    }
  }
  work.run = [&sim, run, owned](Lock& held, cudasim::Stream* on) {
    held.unlock();
    const int failed = run(owned.get());
    held.lock();
    if (failed != 0)
      sim.Break(on->device, static_cast<cudasim::Status>(failed));
  };
  sim.captures.Add(capture, found, std::move(work));
  return cudasim::kOk;
}

void cudasim_on_capture_end(void (*function)(unsigned long long id)) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.captures.OnEnd(function);
}

long cudasim_violation_count(void) {
  return Simulator::Get().violations.count();
}

int cudasim_violation(long index, char* text, int bytes) {
  std::string found;
  if (!Simulator::Get().violations.Get(index, &found)) return -1;
  return CopyText(found, text, bytes);
}

int cudasim_violation_kind(long index, char* text, int bytes) {
  std::string found;
  if (!Simulator::Get().violations.GetKind(index, &found)) return -1;
  return CopyText(found, text, bytes);
}

void cudasim_clear_violations(void) { Simulator::Get().violations.Clear(); }

void cudasim_set_verbose(int verbose) {
  Simulator::Get().violations.set_verbose(verbose != 0);
}

long cudasim_live_handles(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return std::count_if(sim.extents.live().begin(), sim.extents.live().end(),
                       [](const auto& each) { return !each.second.of_module; });
}

long cudasim_live_reservations(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return std::count_if(
      sim.addresses.reservations().begin(), sim.addresses.reservations().end(),
      [&](const auto& each) { return !sim.addresses.IsOfModule(each.first); });
}

long cudasim_live_mappings(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return std::count_if(
      sim.addresses.mappings().begin(), sim.addresses.mappings().end(),
      [&](const auto& each) { return !sim.addresses.IsOfModule(each.first); });
}

long cudasim_live_events(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.events.live();
}

long cudasim_live_streams(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.streams.live();
}

long cudasim_live_host_allocations(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return static_cast<long>(sim.host.ranges().size());
}

int cudasim_leak_report(char* text, int bytes) {
  return CopyText(cudasim::LeakReport(), text, bytes);
}

long cudasim_report_leaks(void) { return cudasim::ReportLeaks(); }

long cudasim_refused_calls(void) { return Refusals::Get().count(); }

int cudasim_refused_names(char* text, int bytes) {
  const std::string names = Refusals::Get().Names();
  return names.empty() ? -1 : CopyText(names, text, bytes);
}

int cudasim_refusal(const char* function) {
  if (function == nullptr || !Refusals::Get().IsDeclared(function) ||
      cudasim::HasDriverFunction(function)) {
    return cudasim::kOk;
  }
  return Refusals::AnswerOf(function);
}

void cudasim_count_bridged(long operators) {
  Simulator::Get().bridged_ops.fetch_add(operators, std::memory_order_relaxed);
}

long cudasim_bridged_ops(void) { return Simulator::Get().bridged_ops.load(); }

}  // extern "C"
#pragma GCC visibility pop
