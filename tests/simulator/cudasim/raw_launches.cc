// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/raw_launches.h"

#include <cstring>
#include <functional>
#include <sstream>
#include <utility>

namespace cudasim {

void RawLaunchNames::Set(const std::string& names) {
  std::lock_guard<std::mutex> lock(mu_);
  parts_.clear();
  all_ = names == "all";
  if (all_) return;
  std::stringstream text(names);
  for (std::string part; std::getline(text, part, ';');) {
    if (!part.empty()) parts_.push_back(part);
  }
}

bool RawLaunchNames::Covers(const std::string& kernel) const {
  std::lock_guard<std::mutex> lock(mu_);
  if (all_) return true;
  for (const std::string& part : parts_) {
    if (kernel.find(part) != std::string::npos) return true;
  }
  return false;
}

std::vector<PointerArgument> PointerArguments(
    const Simulator& sim, const std::vector<KernelParameter>& parameters,
    void* const* arguments) {
  std::vector<PointerArgument> pointers;
  for (size_t i = 0; i < parameters.size(); ++i) {
    uint64_t value = 0;
    if (parameters[i].bytes != sizeof(value)) continue;
    std::memcpy(&value, arguments[i], sizeof(value));
    if (sim.arena.IsDevice(value) || sim.arena.IsView(value) ||
        sim.host.IsPinned(value, 1)) {
      pointers.push_back({i, value});
    }
  }
  return pointers;
}

bool PointersUsable(Simulator& sim, const std::string& name,
                    const Stream& stream,
                    const std::vector<PointerArgument>& pointers,
                    const char* when) {
  for (const PointerArgument& pointer : pointers) {
    const char* kind = kind::kIllegalAddress;
    std::string problem;
    if (sim.arena.IsView(pointer.address)) {
      problem = "this is the host's view of a device address";
    } else if (sim.arena.IsDevice(pointer.address)) {
      problem = sim.addresses.Problem(pointer.address, 1, stream.device,
                                      /*write=*/false, &kind);
      // A free that was asked for after the launch says nothing when it runs.
      if (problem.empty() && *when == '\0') {
        problem = sim.pools.Problem(pointer.address, 1);
        kind = kind::kUseAfterFree;
      }
    } else if (CardOf(stream.device).kernels_reach_host == 0) {
      problem = kHostOutOfReach;
    }
    if (problem.empty()) continue;
    sim.violations.Add(
        kind, "kernel " + name + " on " + stream.Name() + when +
                  " has as argument " + std::to_string(pointer.number) +
                  " the address of " + sim.BlockText(pointer.address, 1) +
                  ", but " + problem);
    sim.Break(stream.device, kIllegalAddress);
    return false;
  }
  return true;
}

void SubmitPointers(Simulator& sim, const std::string& name, Stream* stream,
                    const std::vector<PointerArgument>& pointers, bool twin) {
  if (CardOf(stream->device).modelled) {
    for (const PointerArgument& pointer : pointers) {
      sim.clock.Hold(stream, sim.addresses.ReadyAt(pointer.address, 1));
    }
  }
  if (!sim.async.load()) return;
  const VectorClock past = sim.streams.Past(stream);
  std::function<void(Lock&)> run;
  if (!twin) {
    run = [&sim, name, stream, pointers](Lock&) {
      PointersUsable(sim, name, *stream, pointers, " (when it ran)");
    };
  }
  const uint64_t number = sim.streams.Submit(stream, std::move(run));
  for (const PointerArgument& pointer : pointers) {
    sim.NoteAccess(stream, past, number, "kernel " + name, pointer.address, 1,
                   Use::kRead);
  }
}

std::vector<cudasim_access> AccessesOf(
    const std::vector<PointerArgument>& pointers) {
  std::vector<cudasim_access> accesses;
  for (const PointerArgument& pointer : pointers) {
    accesses.push_back({pointer.address, 1, 0});
  }
  return accesses;
}

}  // namespace cudasim
