// SPDX-License-Identifier: Apache-2.0
//
// The control functions of planned failures and of pressure.

#include <string>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/simulator.h"

using cudasim::ApiFunction;
using cudasim::Engine;
using cudasim::Faults;
using cudasim::Lock;
using cudasim::Simulator;

namespace {

bool HasDevice(int device) {
  return device >= 0 && device < Simulator::Get().config.devices;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int cudasim_fail(const char* function, long nth, int error, int every) {
  if (function == nullptr || nth < 1 || error < 1 || every < 0 ||
      !Faults::Knows(function)) {
    return -1;
  }
  Faults::Plan(function, nth, error, every);
  return 0;
}

void cudasim_clear_faults(void) {
  Faults::Clear();
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.pressure.Clear();
  for (int device = 0; device < sim.config.devices; ++device) {
    sim.extents.memory(device).others = 0;
  }
  for (int engine = 0; engine < cudasim::kEngines; ++engine) {
    sim.clock.SlowDown(static_cast<Engine>(engine), 1, 0);
  }
}

long cudasim_calls(const char* function) { return Faults::Calls(function); }

uint64_t cudasim_take_memory(int device, uint64_t bytes) {
  if (!HasDevice(device)) return 0;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return cudasim::Pressure::Take(&sim.extents.memory(device), bytes);
}

int cudasim_take_memory_at(int device, uint64_t bytes, const char* function,
                           long nth) {
  if (!HasDevice(device) || function == nullptr || nth < 1 ||
      !Faults::Knows(function)) {
    return -1;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.pressure.PlanTake(device, bytes, &ApiFunction::Named(function), nth);
  return 0;
}

int cudasim_slow_copies(const char* direction, double factor, long from) {
  const Engine engine =
      cudasim::VirtualClock::EngineNamed(direction == nullptr ? "" : direction);
  if (engine == Engine::kCompute || !(factor > 0) || from < 0) return -1;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.clock.SlowDown(engine, factor, from);
  return 0;
}

int cudasim_stick_copy(long nth, long steps) {
  if (nth < 1 || steps < 0) return -1;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.pressure.StickCopy(nth, steps);
  return 0;
}

void cudasim_limit_pinned(uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.pressure.LimitPinned(bytes);
}

void cudasim_keep_for_page_tables(uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.pressure.KeepForPageTables(bytes);
}

void cudasim_keep_for_code(uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.pressure.KeepForCode(bytes);
}

uint64_t cudasim_pinned(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.host.pinned_bytes() + sim.extents.host_bytes();
}

}  // extern "C"
#pragma GCC visibility pop
