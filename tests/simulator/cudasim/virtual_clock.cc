// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/virtual_clock.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <sstream>

namespace cudasim {
namespace {

// Up to here a copy from pageable memory takes the bytes along with the call.
constexpr uint64_t kEmbedded = 64 << 10;

struct Lane {
  bool known = false;
  bool background = false;
  uint64_t epoch = 0;
  VirtualNs now = 0;      // of a background thread
  VirtualNs asked = -1;   // the end of the last query that said no
  uint64_t asked_at = 0;  // the activity then
};

Lane& ThisLane() {
  thread_local Lane lane;
  if (!lane.known) {
    lane.known = true;
    char name[32] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    lane.background = std::strncmp(name, "stratalloc", 10) == 0;
  }
  return lane;
}

void RaiseTo(std::atomic<VirtualNs>& clock, VirtualNs when) {
  VirtualNs now = clock.load(std::memory_order_relaxed);
  while (now < when && !clock.compare_exchange_weak(now, when)) {
  }
}

// 10^9 bytes per second are one byte per nanosecond.
double Duration(double amount, double per_ns) {
  return per_ns > 0 ? amount / per_ns : 0;
}

}  // namespace

VirtualNs VirtualClock::Now() {
  Lane& lane = ThisLane();
  const VirtualNs program = program_now_.load(std::memory_order_relaxed);
  if (!lane.background) return program;
  if (const uint64_t epoch = epoch_.load(); lane.epoch != epoch) {
    lane.epoch = epoch;
    lane.now = 0;
  }
  // Whatever it does now was asked for by the program at the latest now.
  lane.now = std::max(lane.now, program);
  return lane.now;
}

void VirtualClock::Spend(VirtualNs ns) {
  if (ns <= 0) return;
  if (IsBackground()) {
    (void)Now();
    ThisLane().now += ns;
    return;
  }
  program_now_.fetch_add(ns, std::memory_order_relaxed);
  calls_ns_.fetch_add(ns, std::memory_order_relaxed);
}

void VirtualClock::WaitUntil(VirtualNs when) {
  const VirtualNs now = Now();
  if (when <= now) return;
  if (IsBackground()) {
    ThisLane().now = when;
    return;
  }
  host_wait_ns_.fetch_add(when - now, std::memory_order_relaxed);
  RaiseTo(program_now_, when);
}

void VirtualClock::Release(uint64_t token) {
  VirtualNs& released = tokens_[token];
  released = std::max(released, Now());
}

void VirtualClock::Acquire(uint64_t token) {
  const auto found = tokens_.find(token);
  if (found != tokens_.end()) WaitUntil(found->second);
}

void VirtualClock::SetBackground(bool background) {
  Lane& lane = ThisLane();
  lane.background = background;
  lane.now = 0;
}

bool VirtualClock::IsBackground() { return ThisLane().background; }

VirtualNs VirtualClock::EndOf(Stream* stream) const {
  return streams_.VirtualEnd(stream);
}

VirtualNs VirtualClock::EndOfDevice(int device) const {
  return streams_.VirtualEndOfDevice(device);
}

void VirtualClock::Hold(Stream* stream, VirtualNs when) const {
  stream->virtual_end = std::max(stream->virtual_end, when);
}

bool VirtualClock::Reached(VirtualNs end) {
  if (end <= Now()) return true;
  Lane& lane = ThisLane();
  const uint64_t activity = activity_.load(std::memory_order_relaxed);
  if (lane.asked == end && lane.asked_at == activity) {
    WaitUntil(end);
    return true;
  }
  lane.asked = end;
  lane.asked_at = activity;
  return false;
}

BusyTimes::Shared VirtualClock::SharedBus(const Card& card, int device,
                                          Engine engine,
                                          double own_rate) const {
  if (card.pcie_both_gb_per_s <= 0) return {};
  const Engine other =
      engine == Engine::kCopyUp ? Engine::kCopyDown : Engine::kCopyUp;
  return {&engines_[device].copies[static_cast<int>(other)], own_rate,
          card.pcie_both_gb_per_s};
}

BusyTimes::Placed VirtualClock::Submit(Stream* stream, Engine engine,
                                       double latency_ns, double busy_ns,
                                       const BusyTimes::Shared& shared) {
  activity_.fetch_add(1, std::memory_order_relaxed);
  Device& device = engines_[stream->device];
  BusyTimes& copies = device.copies[static_cast<int>(engine)];
  const VirtualNs now = Now();
  // No lane asks for anything before the program's now.
  const VirtualNs earliest = program_now_.load(std::memory_order_relaxed);
  device.compute.Forget(earliest);
  copies.Forget(earliest);
  const VirtualNs ready =
      std::max(now, EndOf(stream)) + std::llround(latency_ns);
  const VirtualNs length = std::llround(std::ceil(busy_ns));
  const BusyTimes::Placed placed =
      engine == Engine::kCompute
          ? device.compute.Place(stream->priority, ready, length)
          : copies.Place(ready, length, shared);
  stream->virtual_end = placed.end;
  return placed;
}

double VirtualClock::Slowness(Engine engine) {
  Slowdown& slow = slow_[static_cast<int>(engine)];
  if (slow.from > 0) {
    --slow.from;
    return 1;
  }
  return slow.factor;
}

void VirtualClock::SlowDown(Engine engine, double factor, long from) {
  slow_[static_cast<int>(engine)] = Slowdown{factor, from};
}

Engine VirtualClock::EngineNamed(const std::string& direction) {
  if (direction == "up") return Engine::kCopyUp;
  if (direction == "down") return Engine::kCopyDown;
  return direction == "peer" ? Engine::kPeer : Engine::kCompute;
}

bool VirtualClock::SlowDownFromText(const std::string& text) {
  std::stringstream plans(text);
  std::string plan;
  while (std::getline(plans, plan, ';')) {
    if (plan.empty()) continue;
    char direction[8] = "";
    double factor = 0;
    long from = 0;
    const int fields =
        std::sscanf(plan.c_str(), "%7[a-z]:%lf:%ld", direction, &factor, &from);
    const Engine engine = EngineNamed(direction);
    if (fields < 2 || engine == Engine::kCompute || !(factor > 0) || from < 0) {
      return false;
    }
    SlowDown(engine, factor, from);
  }
  return true;
}

VirtualNs VirtualClock::Copy(const Card& card, Stream* stream, Route route,
                             bool pageable, uint64_t bytes) {
  const double size = static_cast<double>(bytes);
  Engine engine = Engine::kCompute;
  double rate = 0;
  switch (route) {
    case Route::kUp:
      engine = Engine::kCopyUp;
      totals_.h2d_bytes += size;
      rate = pageable ? card.pageable_up_gb_per_s : card.pcie_up_gb_per_s;
      break;
    case Route::kDown:
      engine = Engine::kCopyDown;
      totals_.d2h_bytes += size;
      rate = pageable ? card.pageable_down_gb_per_s : card.pcie_down_gb_per_s;
      break;
    case Route::kPeer:
      engine = Engine::kPeer;
      totals_.d2d_bytes += size;
      rate = card.peer_gb_per_s;
      break;
    case Route::kOnDevice:
      // Read and written, by the multiprocessors.
      totals_.d2d_bytes += size;
      rate = card.hbm_gb_per_s * card.memory_efficiency / 2;
      break;
  }
  const double slowness = Slowness(engine);
  const bool on_bus = route == Route::kUp || route == Route::kDown;
  const BusyTimes::Placed placed =
      Submit(stream, engine, card.copy_ns, Duration(size, rate) * slowness,
             on_bus ? SharedBus(card, stream->device, engine, rate / slowness)
                    : BusyTimes::Shared{});
  const VirtualNs end = placed.end;
  const auto busy = static_cast<double>(placed.end - placed.start);
  totals_.copy_ns += card.copy_ns + busy;
  double* const by_engine[] = {&totals_.compute_busy_ns, &totals_.up_busy_ns,
                               &totals_.down_busy_ns, &totals_.peer_busy_ns};
  *by_engine[static_cast<int>(engine)] += busy;
  if (pageable && (route == Route::kDown || bytes > kEmbedded)) WaitUntil(end);
  return end;
}

VirtualNs VirtualClock::Fill(const Card& card, Stream* stream, uint64_t bytes) {
  const double busy = Duration(static_cast<double>(bytes),
                               card.hbm_gb_per_s * card.memory_efficiency);
  totals_.memset_bytes += static_cast<double>(bytes);
  totals_.kernel_ns += card.memset_ns + busy;
  totals_.compute_busy_ns += busy;
  return Submit(stream, Engine::kCompute, card.memset_ns, busy).end;
}

VirtualNs VirtualClock::Kernel(const Card& card, Stream* stream, double flops,
                               double bytes, double tflops) {
  // 10^12 operations per second are 1000 per nanosecond.
  const double busy =
      std::max(Duration(flops, 1000 * tflops * card.compute_efficiency),
               Duration(bytes, card.hbm_gb_per_s * card.memory_efficiency));
  totals_.operators += 1;
  totals_.flops += flops;
  totals_.kernel_ns += card.kernel_ns + busy;
  totals_.compute_busy_ns += busy;
  return Submit(stream, Engine::kCompute, card.kernel_ns, busy).end;
}

VirtualNs VirtualClock::Spin(const Card& card, Stream* stream, double ns) {
  totals_.kernel_ns += card.kernel_ns + ns;
  return Submit(stream, Engine::kCompute, card.kernel_ns + ns, 0).end;
}

void VirtualClock::Reset() {
  for (Device& device : engines_) {
    device.compute.Clear();
    for (BusyTimes& busy : device.copies) busy.Clear();
  }
  streams_.ResetVirtualEnds();
  totals_ = VirtualTotals{};
  slow_ = {};
  tokens_.clear();
  program_now_.store(0);
  host_wait_ns_.store(0);
  calls_ns_.store(0);
  epoch_.fetch_add(1);
}

}  // namespace cudasim
