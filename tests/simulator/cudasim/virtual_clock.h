// SPDX-License-Identifier: Apache-2.0
//
// virtual_clock.h: how long a run would have taken on the card. Nothing here
// looks at a real clock: a call adds its cost to the calling thread's time, an
// operation gets its start and end when it is submitted, from the card's
// figures (cards.h), so a program of one thread has the same virtual time in
// eager and async mode, on any machine.
//
//   start of an operation = the latest of
//     the calling thread's now, the end of the stream's last operation and of
//     the events it waited for, the default stream's rules, the moment the
//     bytes it touches were mapped or brought by a background thread;
//   then its fixed latency passes, which needs no engine; then its engine
//   (compute, copy up, copy down, copy to a peer; one of each per device) is
//   busy for bytes / bandwidth or operations / peak, in the first gap there is.
//   A kernel of an urgent stream takes the engine from less urgent ones
//   (priority_times.h). A copy is slower while the other direction is busy, if
//   the card's bus has less than both rates together (pcie_both_gb_per_s).
//
// So small kernels of two streams overlap, large ones share the throughput one
// after the other, and a copy overlaps with computing.
//
// Lanes: all threads of the program share one host clock (autograd's threads
// work while the main thread waits), but a background thread has its own,
// which starts each call no earlier than the program's: its waiting stops
// nobody. A thread is one if its name starts with "stratalloc" or if it says
// so (cudasim_set_background). A thread that waited for another one continues
// at that one's time, where the program tells of it (cudasim_thread_release and
// cudasim_thread_acquire).
//
// In force while the device's card is modelled; otherwise every function
// returns at once and all times are 0.
//
// Thread-safety: functions that take a stream are called under the
// simulator's lock; those of the calling thread's lane need none.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_VIRTUAL_CLOCK_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_VIRTUAL_CLOCK_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/simulator/cudasim/busy_times.h"
#include "tests/simulator/cudasim/cards.h"
#include "tests/simulator/cudasim/priority_times.h"
#include "tests/simulator/cudasim/streams.h"

namespace cudasim {

enum class Engine : int { kCompute, kCopyUp, kCopyDown, kPeer };
inline constexpr int kEngines = 4;

// What has been submitted since the last reset.
struct VirtualTotals {
  double h2d_bytes = 0;
  double d2h_bytes = 0;
  double d2d_bytes = 0;
  double memset_bytes = 0;
  double operators = 0;
  double flops = 0;
  double kernel_ns = 0;  // latencies included
  double copy_ns = 0;
  double compute_busy_ns = 0;  // engines, latencies excluded
  double up_busy_ns = 0;
  double down_busy_ns = 0;
  double peer_busy_ns = 0;
};

// What a copy moves; the engine follows.
enum class Route { kUp, kDown, kOnDevice, kPeer };

class VirtualClock {
 public:
  VirtualClock(int devices, Streams* streams)
      : streams_(*streams), engines_(devices) {}
  VirtualClock(const VirtualClock&) = delete;
  VirtualClock& operator=(const VirtualClock&) = delete;

  // The calling thread's lane.
  VirtualNs Now();
  void Spend(VirtualNs ns);        // it works
  void WaitUntil(VirtualNs when);  // it waits for the device
  // Whoever acquires the token goes on from here at the earliest. REQUIRE: the
  // simulator's lock.
  void Release(uint64_t token);
  void Acquire(uint64_t token);
  void SetBackground(bool background);
  bool IsBackground();

  // Each returns the operation's end. REQUIRES: the simulator's lock.
  VirtualNs Copy(const Card& card, Stream* stream, Route route, bool pageable,
                 uint64_t bytes);
  VirtualNs Fill(const Card& card, Stream* stream, uint64_t bytes);
  VirtualNs Kernel(const Card& card, Stream* stream, double flops, double bytes,
                   double tflops);
  // A kernel of one thread that waits for so long and needs no engine.
  VirtualNs Spin(const Card& card, Stream* stream, double ns);

  // When everything submitted to the stream is over.
  VirtualNs EndOf(Stream* stream) const;
  VirtualNs EndOfDevice(int device) const;
  // The stream's next operation does not start before `when`.
  void Hold(Stream* stream, VirtualNs when) const;
  // May a query of something that ends at `end` say yes? A thread that asks
  // twice in a row with nothing in between is waiting: its clock is moved
  // there. REQUIRES: mu.
  bool Reached(VirtualNs end);

  double host_wait_ns() const { return host_wait_ns_.load(); }
  double calls_ns() const { return calls_ns_.load(); }
  const VirtualTotals& totals() const { return totals_; }
  // All clocks and totals to 0; streams and events keep nothing.
  void Reset();

  // Planned faults: from now on, after `from` more copies of that direction,
  // they are `factor` times slower. Factor 1 ends it.
  void SlowDown(Engine engine, double factor, long from);
  // Likewise "up:4;down:2:100" (direction:factor or direction:factor:from).
  // False if it is not of that form.
  bool SlowDownFromText(const std::string& text);
  // The engine of "up", "down" and "peer"; kCompute for anything else.
  static Engine EngineNamed(const std::string& direction);

 private:
  struct Device {
    PriorityTimes compute;
    std::array<BusyTimes, kEngines> copies;  // by engine
  };
  BusyTimes::Placed Submit(Stream* stream, Engine engine, double latency_ns,
                           double busy_ns,
                           const BusyTimes::Shared& shared = {});
  // What a copy in one direction of the bus shares with the other.
  BusyTimes::Shared SharedBus(const Card& card, int device, Engine engine,
                              double own_rate) const;
  double Slowness(Engine engine);

  struct Slowdown {
    double factor = 1;
    long from = 0;
  };

  Streams& streams_;
  std::vector<Device> engines_;
  std::array<Slowdown, kEngines> slow_;
  std::unordered_map<uint64_t, VirtualNs> tokens_;
  VirtualTotals totals_;
  std::atomic<VirtualNs> program_now_{0};
  std::atomic<int64_t> host_wait_ns_{0};
  std::atomic<int64_t> calls_ns_{0};
  std::atomic<uint64_t> epoch_{0};     // of Reset, for the lanes of threads
  std::atomic<uint64_t> activity_{0};  // submissions, for Reached
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_VIRTUAL_CLOCK_H_
