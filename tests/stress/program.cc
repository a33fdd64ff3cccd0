// SPDX-License-Identifier: Apache-2.0
#include "tests/stress/program.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "accounting/scope_stack.h"
#include "tests/stress/worker.h"

namespace stratalloc {
namespace {

void Add(Tally& to, const Tally& from) {
  to.steps += from.steps;
  to.mallocs += from.mallocs;
  to.frees += from.frees;
  to.operators += from.operators;
  to.scopes += from.scopes;
  to.refused_mallocs += from.refused_mallocs;
  to.refused_operators += from.refused_operators;
  to.faults += from.faults;
  to.poisoned += from.poisoned;
  to.verified += from.verified;
  to.from_bins += from.from_bins;
  to.into_bins += from.into_bins;
  to.gone_back += from.gone_back;
  to.handed += from.handed;
  to.outermost += from.outermost;
  to.nested += from.nested;
  to.inside += from.inside;
  to.blocked += from.blocked;
  to.met += from.met;
  to.ousted += from.ousted;
  to.lists += from.lists;
  to.slices += from.slices;
  to.halved += from.halved;
  to.refused_lists += from.refused_lists;
}

void Add(Tally& to, const EngineCounters& from) {
  to.evictions += from.evicted_handles;
  to.restores += from.restored_handles;
  to.planned += from.planned_handles;
  to.clean_drops += from.clean_drops;
  to.waited += from.stalls;
  to.to_disk_bytes += from.to_disk_bytes;
  to.from_disk_bytes += from.from_disk_bytes;
}

}  // namespace

std::string RunProgram(const ProgramOptions& options, Tally* tally) {
  std::mt19937_64 random(options.seed * 0x9e3779b97f4a7c15 + 1);
  const auto below = [&](std::uint64_t n) { return random() % n; };

  Rig::Options rig_options;
  constexpr Bytes kCapacities[] = {16 * kMiB, 16 * kMiB, 16 * kMiB,
                                   24 * kMiB, 32 * kMiB, 64 * kMiB};
  rig_options.capacity = kCapacities[below(std::size(kCapacities))];
  rig_options.host_budget = (8 + 4 * below(3)) * kMiB;
  // The host has room for everything, and nothing fails: what is refused then
  // says something about the product.
  const bool roomy = below(4) == 0;
  rig_options.disk_budget = below(2) == 0 ? 0 : (4 + 8 * below(5)) * kMiB;
  // The disk alone in a third of these.
  if (rig_options.disk_budget > 0) rig_options.host_budget -= 8 * kMiB;
  rig_options.background = below(10) < 3;
  rig_options.seed = random();
  rig_options.emergency_threshold = below(2) == 0 ? 0.95 : 1.0;
  rig_options.under_pressure = rig_options.emergency_threshold < 1;
  // Requests of several segments, which join and are cut.
  if (below(3) == 0) rig_options.segment_least = 2 * kMiB;
  // Threads here free nothing while they think.
  rig_options.quiet_ns = 5'000'000;
  if (!roomy) rig_options.running_ns = 100'000'000;
  // On a larger card of which little is allowed, large handles are 4 MiB and
  // the two sizes compete for memory, host buffers and chunks.
  double fraction = 1.0;
  if (roomy) {
    rig_options.host_budget = 512 * kMiB;
    rig_options.disk_budget = 0;
  } else if (below(6) == 0) {
    fraction = static_cast<double>(rig_options.capacity) / kGiB;
    rig_options.capacity = kGiB;
    rig_options.host_budget = (16 + 4 * below(3)) * kMiB;
    if (rig_options.disk_budget > 0) rig_options.disk_budget += 16 * kMiB;
  }
  auto made = Rig::Make(rig_options);
  if (!made) return "no device: " + made.error().message + "\n";
  Rig& rig = **made;

  World world;
  world.rig = &rig;
  world.background = rig_options.background;
  world.fraction = fraction;
  rig.device().SetFraction(fraction);
  world.disk = rig_options.disk_budget > 0;
  world.roomy = roomy;
  world.faults = below(3) == 0 && !roomy;
  world.corruption = world.disk && below(10) == 0;
  world.streams.push_back(kDefaultStream);
  for (std::uint64_t i = below(4); i > 0; --i) {
    world.streams.push_back(rig.NewStream());
  }
  for (std::uint64_t i = 2 + below(4); i > 0; --i) {
    world.sizes.push_back(below(3) == 0 ? kMiB + below(3 * kMiB)
                                        : 1 + below(kMiB));
  }
  // Of what is allowed, which may be little of the card.
  world.largest = static_cast<Bytes>(fraction * rig_options.capacity) / 2;
  // Short ones are more frequent: most bugs need few steps.
  const int steps = 10 + static_cast<int>(std::min(below(191), below(191)));
  int threads = options.threads;
  if (threads < 0) {
    threads = below(3) == 0 ? 2 + static_cast<int>(below(3)) : 1;
    if (roomy && below(6) != 0) {
      threads = 2 + static_cast<int>(std::min(below(7), below(7)));
    }
  }
  // Transient blocks inside operators: never more than half of the device.
  if (const Bytes each = rig_options.capacity / 2 / threads;
      each >= Nest::AtMost(1) && below(3) > 0) {
    world.transient = each;
  }
  world.others_transient = world.transient * (threads - 1);
  world.live = 3 * rig_options.capacity / threads;
  world.threaded = threads > 1;
  SetScopeListener(&rig.engine());

  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < threads; ++i) {
    workers.push_back(std::make_unique<Worker>(world, random()));
  }
  if (world.threaded) {
    for (std::uint64_t i = 1 + below(3); i > 0; --i) {
      auto block = workers[0]->Allocate(1 + below(3 * kMiB));
      if (block != nullptr) world.shared.push_back(std::move(block));
    }
    std::vector<std::thread> running;
    for (auto& worker : workers) {
      running.emplace_back([&] { worker->Run(steps / threads); });
    }
    for (std::thread& thread : running) thread.join();
  } else {
    workers[0]->Run(steps);
  }
  cudasim_clear_faults();
  SetScopeListener(nullptr);

  std::string wrong = world.wrong;
  rig.engine().StopBackground();  // a quiescent point from here on
  wrong += rig.Check();
  const EngineCounters counters = rig.engine().Counters();
  if (counters.dirty_by_checksum != 0) {
    wrong += "bytes had changed under a handle that was not dirty\n";
  }
  for (auto& block : world.shared) workers[0]->Free(std::move(block));
  for (auto& block : world.handed) workers[0]->Free(std::move(block));
  tally->pools += world.pools;
  for (auto& worker : workers) {
    worker->FreeAll();
    Add(*tally, worker->tally());
  }
  Add(*tally, counters);
  ++tally->programs;
  tally->threaded += world.threaded;
  tally->roomy += world.roomy;
  tally->with_disk += world.disk;
  tally->with_background += rig_options.background;
  workers.clear();
  wrong += rig.Close();
  return wrong;
}

}  // namespace stratalloc
