// SPDX-License-Identifier: Apache-2.0
#include "tests/system/stress/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "accounting/scope_stack.h"
#include "tests/system/stress/worker.h"

namespace stratalloc {
namespace {

// So many programs have one with steps of the system.
constexpr std::uint64_t kSystemEvery = 4;
// A late answer of the disk comes when another thread's operator has returned,
// or after this.
constexpr int kMostPolls = 100;
constexpr std::chrono::microseconds kPoll{20};

void Add(Tally& to, const Tally& from) {
  to.steps += from.steps;
  to.mallocs += from.mallocs;
  to.frees += from.frees;
  to.operators += from.operators;
  to.scopes += from.scopes;
  to.refused_mallocs += from.refused_mallocs;
  to.refused_operators += from.refused_operators;
  to.faults += from.faults;
  to.elsewhere += from.elsewhere;
  to.copies += from.copies;
  to.freed_elsewhere += from.freed_elsewhere;
  to.poisoned += from.poisoned;
  to.verified += from.verified;
  to.from_bins += from.from_bins;
  to.into_bins += from.into_bins;
  to.gone_back += from.gone_back;
  to.handed += from.handed;
  to.captures += from.captures;
  to.forks += from.forks;
  to.late += from.late;
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
  to.evicted_bytes += from.evicted_bytes;
  to.restored_bytes += from.restored_bytes;
  to.to_disk_bytes += from.to_disk_bytes;
  to.from_disk_bytes += from.from_disk_bytes;
}

void Add(PlannedFaults::ByCall& to, const PlannedFaults::ByCall& from) {
  for (const auto& [call, figures] : from) {
    to[call].planned += figures.planned;
    to[call].struck += figures.struck;
  }
}

// A device that is still to be made. On a larger card of which little is
// allowed, large handles are 4 MiB and the two sizes compete for memory, host
// buffers and chunks.
struct CardPlan {
  Bytes capacity = 0;
  double fraction = 1.0;
  Bytes allowed() const { return static_cast<Bytes>(fraction * capacity); }
};

template <typename Below>
CardPlan DrawCard(Below&& below, bool roomy) {
  constexpr Bytes kCapacities[] = {16 * kMiB, 16 * kMiB, 16 * kMiB,
                                   24 * kMiB, 32 * kMiB, 64 * kMiB};
  CardPlan card{kCapacities[below(std::size(kCapacities))]};
  if (!roomy && below(6) == 0) {
    card.fraction = static_cast<double>(card.capacity) / kGiB;
    card.capacity = kGiB;
  }
  return card;
}

template <typename Below>
void FillPlace(Place& place, std::size_t index, const CardPlan& card,
               int workers, Rig& rig, Below&& below) {
  place.device = &rig.device(index);
  place.fraction = card.fraction;
  place.device->SetFraction(card.fraction);
  place.workers = workers;
  // Of what is allowed, which may be little of the card.
  place.largest = card.allowed() / 2;
  place.live = 3 * card.capacity / workers;
  // Transient blocks inside operators: never more than half of the device.
  if (const Bytes each = card.allowed() / 2 / workers;
      each >= Nest::AtMost(1) && below(3) > 0) {
    place.transient = each;
  }
  place.streams.push_back(kDefaultStream);
  cudaSetDevice(static_cast<int>(index));
  for (std::uint64_t i = below(4); i > 0; --i) {
    place.streams.push_back(rig.NewStream());
  }
}

// Threads of their own, or turns on this one.
template <typename Below>
void RunAll(std::vector<std::unique_ptr<Worker>>& workers, bool threaded,
            int steps, Below&& below) {
  const int count = static_cast<int>(workers.size());
  if (threaded) {
    std::vector<std::thread> running;
    for (auto& worker : workers) {
      running.emplace_back([&] { worker->Run(steps / count); });
    }
    for (std::thread& thread : running) thread.join();
    return;
  }
  while (steps > 0) {
    const int turn =
        count == 1 ? steps : std::min(steps, 1 + static_cast<int>(below(16)));
    workers[below(workers.size())]->Run(turn);
    steps -= turn;
  }
}

std::string WhatIsLeft() {
  char text[2048] = "";
  cudasim_leak_report(text, sizeof(text));
  return std::strcmp(text, "no leaks\n") == 0 ? ""
                                              : std::string("leaked: ") + text;
}

}  // namespace

std::string RunProgram(const ProgramOptions& options, Tally* tally) {
  std::mt19937_64 random(options.seed * 0x9e3779b97f4a7c15 + 1);
  const auto below = [&](std::uint64_t n) { return random() % n; };

  World world;
  // The host has room for everything, and nothing fails: what is refused then
  // says something about the product.
  world.roomy = below(4) == 0;
  const bool roomy = world.roomy;
  int devices = below(3) == 0 ? 2 : 1;
  if (options.devices > 0) devices = options.devices;
  const CardPlan cards[] = {DrawCard(below, roomy), DrawCard(below, roomy)};
  Rig::Options rig_options;
  rig_options.devices = devices;
  rig_options.capacity = cards[0].capacity;
  rig_options.second_capacity = cards[1].capacity;
  rig_options.host_budget = (8 + 4 * below(3)) * kMiB;
  rig_options.disk_budget = below(2) == 0 ? 0 : (4 + 8 * below(5)) * kMiB;
  if (roomy) {
    rig_options.host_budget = 512 * kMiB * static_cast<Bytes>(devices);
    rig_options.disk_budget = 0;
  } else if (cards[0].fraction < 1 || (devices > 1 && cards[1].fraction < 1)) {
    // Four handles of 4 MiB in each.
    rig_options.host_budget += 8 * kMiB;
    if (rig_options.disk_budget > 0) rig_options.disk_budget += 16 * kMiB;
  } else if (rig_options.disk_budget > 0) {
    rig_options.host_budget -= 8 * kMiB;  // the disk alone in a third of these
  }
  rig_options.background = below(10) < 3;
  rig_options.seed = random();
  rig_options.emergency_threshold = below(2) == 0 ? 0.95 : 1.0;
  rig_options.under_pressure = rig_options.emergency_threshold < 1;
  // Requests of several segments, which join and are cut.
  if (below(3) == 0) rig_options.segment_least = 2 * kMiB;
  // Threads here free nothing while they think.
  rig_options.quiet_ns = 5'000'000;
  if (!roomy) {
    rig_options.running_ns = 100'000'000;
    // A cudaEventQuery that returns "not ready" from there on looks like a
    // kernel that runs until one worker has taken its steps. That worker may
    // wait for the same events: only this limit ends such a wait.
    rig_options.busy_ns = 200'000'000;
  }
  world.faulty = below(3) == 0 && !roomy;
  const bool opening_fails = world.faulty && below(3) == 0;
  const std::uint64_t dice = random();
  if (opening_fails) {
    // Refused by the engine, a device is used without tiers.
    rig_options.refusals = true;
    rig_options.prepare = [&] {
      world.faults.PlanOpening(dice / 64, 1 + dice % 16 / 4, dice % 4 == 0);
    };
  }
  auto made = Rig::Make(rig_options);
  world.faults.Clear();
  ++tally->programs;
  if (!made) {
    Add(tally->faults_by_call, world.faults.figures());
    ++tally->not_opened;
    const std::string left = WhatIsLeft();
    if (opening_fails && world.faults.Explains(made.error())) return left;
    return "no device: " + made.error().message + "\n" + left;
  }
  Rig& rig = **made;

  world.rig = &rig;
  world.background = rig_options.background;
  world.disk = rig_options.disk_budget > 0;
  world.corruption = world.disk && below(10) == 0;
  // Drawn from the seed alone, so that the other programs are what they were.
  world.has_system_steps =
      options.seed % kSystemEvery == 0 && !roomy && !world.faulty;
  rig.disk_faults().WaitBeforeLateAnswers([&world] {
    const std::uint64_t seen = world.left;
    for (int i = 0; i < kMostPolls && world.left == seen; ++i) {
      std::this_thread::sleep_for(kPoll);
    }
  });
  for (std::uint64_t i = 2 + below(4); i > 0; --i) {
    world.sizes.push_back(below(3) == 0 ? kMiB + below(3 * kMiB)
                                        : 1 + below(kMiB));
  }
  // Short ones are more frequent: most bugs need few steps.
  const int steps = 10 + static_cast<int>(std::min(below(191), below(191)));
  int threads = options.threads;
  if (threads < 0) {
    threads = below(3) == 0 ? 2 + static_cast<int>(below(3)) : 1;
    if (roomy && below(6) != 0) {
      threads = 2 + static_cast<int>(std::min(below(7), below(7)));
    }
  }
  world.threaded = threads > 1;
  const int count = std::max(threads, devices);
  world.places.resize(static_cast<std::size_t>(devices));
  for (int i = 0; i < devices; ++i) {
    const std::size_t at = static_cast<std::size_t>(i);
    FillPlace(world.places[at], at, cards[at],
              (count + devices - 1 - i) / devices, rig, below);
  }

  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<Worker>(
        world, static_cast<std::size_t>(i % devices), random()));
  }
  for (int place = 0; count > 1 && place < devices; ++place) {
    for (std::uint64_t i = 1 + below(3); i > 0; --i) {
      auto block = workers[static_cast<std::size_t>(place)]->Allocate(
          1 + below(3 * kMiB));
      if (block == nullptr) continue;
      world.places[block->place].shared.push_back(std::move(block));
    }
  }
  RunAll(workers, world.threaded, steps, below);
  world.faults.Clear();

  std::string wrong = world.wrong;
  rig.engine().StopBackground();  // a quiescent point from here on
  wrong += rig.Check();
  const EngineCounters counters = rig.engine().Counters();
  if (counters.dirty_by_checksum != 0) {
    wrong += "bytes had changed under a handle that was not dirty\n";
  }
  for (Place& place : world.places) {
    for (auto& block : place.shared) workers[0]->Free(std::move(block));
  }
  for (auto& block : world.handed) workers[0]->Free(std::move(block));
  tally->pools += world.pools;
  for (auto& worker : workers) {
    worker->FreeAll();
    Add(*tally, worker->tally());
  }
  Add(*tally, counters);
  Add(tally->faults_by_call, world.faults.figures());
  tally->two_devices += devices == 2;
  tally->threaded += world.threaded;
  tally->roomy += world.roomy;
  tally->with_disk += world.disk;
  tally->with_background += rig_options.background;
  workers.clear();
  wrong += rig.Close();
  cudaSetDevice(0);  // as the next one finds it
  if (wrong.empty()) return wrong;
  for (const auto& [call, figures] : world.faults.figures()) {
    wrong += "(" + call + " failed by " + std::to_string(figures.struck) +
             " of " + std::to_string(figures.planned) + " plans)\n";
  }
  return wrong;
}

}  // namespace stratalloc
