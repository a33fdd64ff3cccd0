// SPDX-License-Identifier: Apache-2.0
//
// simulator.h: the whole simulated machine, one object per process, and the
// entry that every CUDA function passes through. The driver_*.cc and
// runtime_*.cc files translate CUDA's signatures; the work is done by the
// nouns held here.
//
// Locks, in order: `mu` (everything below), `bytes_gate` (shared: a copy moves
// bytes; exclusive: pages change), the violation list's own.
//
// Lifetime: made at the first call, never destroyed: libraries call CUDA from
// their exit handlers.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_SIMULATOR_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_SIMULATOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/accesses.h"
#include "tests/simulator/cudasim/address_space.h"
#include "tests/simulator/cudasim/arena.h"
#include "tests/simulator/cudasim/capture.h"
#include "tests/simulator/cudasim/cards.h"
#include "tests/simulator/cudasim/config.h"
#include "tests/simulator/cudasim/contexts.h"
#include "tests/simulator/cudasim/events.h"
#include "tests/simulator/cudasim/extents.h"
#include "tests/simulator/cudasim/faults.h"
#include "tests/simulator/cudasim/graph.h"
#include "tests/simulator/cudasim/holds.h"
#include "tests/simulator/cudasim/host_memory.h"
#include "tests/simulator/cudasim/limits.h"
#include "tests/simulator/cudasim/peers.h"
#include "tests/simulator/cudasim/pools.h"
#include "tests/simulator/cudasim/pressure.h"
#include "tests/simulator/cudasim/status.h"
#include "tests/simulator/cudasim/streams.h"
#include "tests/simulator/cudasim/user_objects.h"
#include "tests/simulator/cudasim/violations.h"
#include "tests/simulator/cudasim/virtual_clock.h"

namespace cudasim {

struct Segment;

// How an access is noted. The first three are cudasim_access's `write`.
enum class Use {
  kRead,
  kWrite,
  kFirstWrite,  // of a block that an allocator has just handed out
  kCopyIn,      // a write whose bytes come from the host
};

struct Simulator {
  static Simulator& Get();

  const Config config;
  // A bit per device that has cuMemCreate and its like (CUDASIM_VMM).
  std::atomic<uint32_t> virtual_memory{config.virtual_memory};
  bool HasVirtualMemory(int device) const {
    return virtual_memory.load(std::memory_order_relaxed) >> device & 1;
  }
  // cuMemUnmap waits for all work of the device first (CUDASIM_UNMAP).
  std::atomic<bool> unmap_waits{config.unmap_waits};
  Arena arena;
  std::mutex mu;
  std::shared_mutex bytes_gate;
  Extents extents;
  Peers peers;
  AddressSpace addresses;
  HostMemory host;
  Streams streams;
  VirtualClock clock;
  Pressure pressure;
  Limits limits;
  Events events;
  Pools pools;
  AccessLog log;
  VectorClock recorded_for_others;  // by interprocess events, see ipc.h
  Graphs graphs;
  UserObjects users;
  Captures captures{&graphs};
  Violations violations;
  std::vector<Status> sticky;       // by device; kOk: healthy
  std::atomic<bool> broken{false};  // some device is; read without `mu`
  // By device. A card is never changed nor destroyed, only replaced.
  std::vector<std::atomic<const Card*>> cards;
  std::deque<Card> all_cards;  // those and what they replaced; under `mu`
  std::atomic<bool> async{false};
  std::atomic<bool> keeps_time{false};  // some card is modelled
  std::atomic<bool> used{false};        // a call other than counting was made
  std::atomic<bool> forked{false};  // in a child of a process that used CUDA
  std::atomic<long> bridged_ops{0};

  // Gives the device another card, and the card's memory where the program
  // has not been told how much there is. REQUIRES: mu.
  void SetCard(int device, const Card& card);

  // What the device's primary context and the libraries' code take of its
  // memory is what its card says: nothing while there is no context, and
  // nothing where the program was told how much there is. REQUIRES: mu.
  void ChargeContext(int device);
  // Makes the primary context, for the runtime to keep or for a holder of it.
  // kOutOfMemory: the device has no room for it, and there is none.
  Status OpenContext(int device, void (*hold)(int device));

  // The virtual clock starts again at 0. REQUIRES: mu.
  void ResetTime();
  // What a call costs beyond its own price, for so many of what it did.
  void ChargeExtra(const Card& card, double ns_each, double count);
  // A kernel on the stream's virtual clock, if its card is modelled. REQUIRES:
  // mu.
  void ChargeKernel(Stream* stream, double flops, double bytes, double tflops);

  // The device breaks: every later call on it returns `status`.
  void Break(int device, Status status) {
    sticky[device] = status;
    broken.store(true, std::memory_order_relaxed);
  }

  // The stream a CUDA call was given, on the calling thread's device. nullptr
  // for a handle that is not alive; if it was once, that is a violation.
  // REQUIRES: mu.
  Stream* FindStream(uint64_t handle);

  // The range cut where its mapping changes. Unmapped parts lie on the line at
  // their address. REQUIRES: mu.
  std::vector<Segment> Segments(uint64_t address, uint64_t bytes) const;
  // "[0x7e.., +512 bytes) of handle 0x51.. at offset 1024". REQUIRES: mu.
  std::string BlockText(uint64_t address, uint64_t bytes) const;

  // Notes an access of [address, +bytes) by operation `number` of the stream,
  // with Past(stream) taken before it was submitted. REQUIRES: mu, async.
  void NoteAccess(Stream* stream, const VectorClock& past, uint64_t number,
                  const std::string& name, uint64_t address, uint64_t bytes,
                  Use use);
  // True if something queued or unobserved writes there. REQUIRES: mu.
  bool HasPendingWrite(uint64_t address, uint64_t bytes);
  // A violation if a host thread is computing on the range right now, in
  // either mode; `own`: this thread counts too. REQUIRES: mu.
  void CheckHolds(const std::string& what, uint64_t address, uint64_t bytes,
                  bool write, bool own);
  // The program takes the range away with `what`: whatever is still pending
  // there is a violation. `segments` are those from before. REQUIRES: mu.
  void ForgetRange(const std::string& what,
                   const std::vector<Segment>& segments);

 private:
  Simulator();
};

// The part of a device range that one mapping holds, or a range of the host.
struct Segment {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t line = 0;     // where its bytes lie on the log's line
  uint64_t mapping = 0;  // Mapping::serial; 0: host
};

// What CUDA keeps per thread.
struct ThreadState {
  int device = 0;                   // of the current context, else `selected`
  int selected = 0;                 // what cudaSetDevice said last
  int last_error = kOk;             // the runtime's
  bool no_context = !IsLinkedIn();  // until something makes one current
  int capture_mode = 0;
  Stream* launching = nullptr;           // inside a twin
  bool in_host_function = false;         // of a stream
  bool costed = false;                   // the twin has said what it costs
  const ApiFunction* calling = nullptr;  // the CUDA function last entered
};
ThreadState& ThisThread();

// The card of a device, and of the calling thread's current one.
const Card& CardOf(int device);
const Card& CurrentCard();

// Which calls a broken device still serves: those that give back what a program
// frees in destructors, only look at the program's own state, or order work
// without doing any. (A real one refuses them all; there, frees in destructors
// end the process.) cuMemUnmap and cuMemRelease are refused, as on a real one.
// kBeforeInit: the few that the driver answers before cuInit.
enum class Entry { kNormal, kAllowedWhenBroken, kQuestion, kBeforeInit };

// Counts the call, applies planned failures, the fork rule and the sticky
// error, and in async mode lets a random stream take a step.
Status Enter(ApiFunction& function, Entry entry = Entry::kNormal);

// A function the simulated device does not have (refusals.h): counted, and
// named on stderr the first time.
int Unsupported(const char* function);

// The leak report: one line per live object, or "no leaks".
std::string LeakReport();
// Each mapping and each handle the program still holds becomes a violation;
// returns how many.
long ReportLeaks();

// Whether the process has a card of this number.
inline bool IsDevice(int device) {
  return device >= 0 && device < Simulator::Get().config.devices;
}

}  // namespace cudasim

// First statement of each driver and runtime function. `name` is CUDA's name
// without version suffix.
#define CUDASIM_ENTER(name, ...)                                     \
  static ::cudasim::ApiFunction& api_function =                      \
      ::cudasim::ApiFunction::Named(name);                           \
  if (const ::cudasim::Status entry_status =                         \
          ::cudasim::Enter(api_function __VA_OPT__(, ) __VA_ARGS__); \
      entry_status != ::cudasim::kOk)                                \
  return CUDASIM_ANSWER(entry_status)

// Second statement of driver functions that work in the current context.
#define CUDASIM_NEEDS_CONTEXT()           \
  if (::cudasim::ThisThread().no_context) \
  return CUDASIM_ANSWER(::cudasim::kInvalidContext)

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_SIMULATOR_H_
