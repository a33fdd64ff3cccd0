// SPDX-License-Identifier: Apache-2.0
//
// streams.h: streams as queues. In async mode an operation waits in its
// stream's queue until something makes the stream advance: a synchronisation,
// a query, or a seeded step. While streams are held (Hold), a synchronisation
// and Run are all that does. Each operation carries the clock of what it must
// come after (its stream's past, what the stream waited for, the default
// stream's rules); executing it executes that first.
//
// Two clocks must not be confused. `executed` is what has happened; only the
// simulator knows it. What the program can know to have happened, because a
// synchronisation or a successful query said so, is observed (host_clocks.h).
// The pending-access check believes that alone: a step that happened to run in
// time proves nothing.
//
// In eager mode nothing is queued and no clock moves.
//
// Thread-safety: called under the simulator's lock. Execute, Step and
// Synchronize may release and take it again while a host function runs.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_STREAMS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_STREAMS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/clocks.h"
#include "tests/simulator/cudasim/host_clocks.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

struct Capture;    // capture.h
struct GraphNode;  // graph.h

using Lock = std::unique_lock<std::mutex>;

struct Operation {
  bool on_host = false;  // a host function: it may wait for the program
  uint64_t number = 0;
  VectorClock required;
  std::function<void(Lock&)> run;
  long stuck = 0;  // turns it still lets pass (pressure.h)
};

struct Stream {
  uint64_t handle = 0;  // 0: the default stream of its device
  uint64_t thread = 0;  // of a per-thread default stream (handle 2)
  size_t index = 0;     // in clocks; used again when nothing can refer to it
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  bool blocking = true;  // ordered with the default stream
  bool destroyed = false;
  uint64_t submitted = 0;
  uint64_t base = 0;  // submitted before this stream took the index over
  uint64_t executed = 0;
  VectorClock past;  // of the next operation
  std::deque<Operation> queue;
  int64_t virtual_end = 0;     // of all its work so far (virtual_clock.h)
  bool running = false;        // a host function of it runs, without the lock
  Capture* capture = nullptr;  // it records instead of executing
  std::vector<GraphNode*> frontier;  // what its next node comes after

  std::string Name() const;
};

class Streams {
 public:
  explicit Streams(int devices);
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  uint64_t Create(int device, unsigned flags, int priority, bool blocking);
  // Queued work still runs, the handle is unknown from now on.
  Status Destroy(uint64_t handle);
  // 0 and 1 (cudaStreamLegacy) are the default stream of `device`, 2
  // (cudaStreamPerThread) is the calling thread's own on it, made at its first
  // use. nullptr for handles that are not alive.
  Stream* Find(uint64_t handle, int device);
  // A stream had this handle once, and no other ever will.
  bool WasDestroyed(uint64_t handle) const;
  // The thread's own default streams go.
  void EndThread(uint64_t thread);

  // Applies the default stream's rules and returns the past of what would be
  // submitted to the stream next.
  const VectorClock& Past(Stream* stream);
  // What waiting for the stream waits for: its own past. Only new work of a
  // blocking stream waits for the default stream.
  const VectorClock& Reached(Stream* stream);
  // Queues an operation after Past(stream); returns its number.
  uint64_t Submit(Stream* stream, std::function<void(Lock&)> run,
                  bool on_host = false);
  // The operation submitted last lets `turns` steps or queries pass.
  void Delay(Stream* stream, long turns) { stream->queue.back().stuck = turns; }
  void WaitFor(Stream* stream, const VectorClock& clock);
  // Everything submitted to the device so far.
  VectorClock DevicePast(int device);

  // When what was submitted is over on the virtual clock, with the default
  // stream's rules.
  int64_t VirtualEnd(const Stream* stream) const;
  int64_t VirtualEndOfDevice(int device) const;
  void ResetVirtualEnds();

  bool IsExecuted(const VectorClock& clock) const;
  void Execute(Lock& lock, const VectorClock& target);
  // Executes, and the program knows it.
  void Synchronize(Lock& lock, const VectorClock& target);
  // The answer of a query. Each one moves the needed streams forward by at
  // most one operation, so a program that polls gets there.
  bool Query(Lock& lock, const VectorClock& target);
  // Executes the first operation of some stream, or nothing. Priorities are
  // hints, as on the device: three times in four only the most urgent of the
  // streams that could go on are considered.
  void Step(Lock& lock);
  // While held, Step does nothing and a query only answers: what has run does
  // not depend on how many calls a program makes.
  void Hold(bool held) { held_ = held; }
  // The first operations of the stream, `count` at most, each after what it has
  // to come after. Returns how many of the stream's ran.
  long Run(Lock& lock, Stream* stream, long count);

  HostClocks& hosts() { return hosts_; }
  // By the calling thread.
  bool IsObserved(size_t index, uint64_t number) {
    return hosts_.Covers(index, number);
  }
  std::string NameOf(size_t index) const { return streams_[index]->Name(); }

  long live() const { return static_cast<long>(handles_.size()); }
  const std::unordered_map<uint64_t, Stream*>& handles() const {
    return handles_;
  }
  void Seed(uint64_t seed) { random_.seed(seed); }
  uint64_t Random() { return random_(); }
  // Everything executed and observed, all created streams forgotten.
  void Reset(Lock& lock);

 private:
  static constexpr uint64_t kFirstHandle = 0x570000000010;

  Stream* Add(int device);
  void RunUntil(Lock& lock, Stream* stream, uint64_t number);
  void RunFirst(Lock& lock, Stream* stream);
  // As RunFirst, but a host function runs on a thread of its own: the caller
  // only asked.
  void Start(Lock& lock, Stream* stream);
  // Starts one operation that the stream's first one needs, or that one.
  // False if there is nothing but running host functions to wait for.
  bool Advance(Lock& lock, Stream* stream);

  std::vector<std::unique_ptr<Stream>> streams_;  // by index
  std::vector<Stream*> default_streams_;          // by device
  std::unordered_map<uint64_t, Stream*> handles_;
  std::vector<Stream*> retired_;  // destroyed; used again once observed
  // By thread number and device.
  std::map<std::pair<uint64_t, int>, Stream*> per_thread_;
  HostClocks hosts_;
  std::condition_variable finished_;  // a host function ended
  std::mt19937_64 random_;
  uint64_t next_handle_ = kFirstHandle;
  long queued_ = 0;
  bool held_ = false;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_STREAMS_H_
