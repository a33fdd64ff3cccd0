// SPDX-License-Identifier: Apache-2.0
//
// capture.h: streams that record a graph instead of executing. A capture
// begins on one stream; another joins it by waiting for an event that was
// recorded in it. Every member stream knows the nodes its next node comes
// after (its frontier).
//
// The rules are the device's: a call that a capture forbids fails, and spoils
// (invalidates) the captures it concerns: from then on everything in them
// fails, and the end of the capture gives no graph. README.md has the table.
// Each function below is one kind of call; the callers only pass its answer on.
//
// Cost where nothing captures: one load per call.
//
// Thread-safety: called under the simulator's lock, except any().

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CAPTURE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CAPTURE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/simulator/cudasim/events.h"
#include "tests/simulator/cudasim/graph.h"
#include "tests/simulator/cudasim/status.h"
#include "tests/simulator/cudasim/streams.h"

namespace cudasim {

// The values of cudaStreamCaptureMode.
enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

struct Capture {
  uint64_t id = 0;
  CaptureMode mode = CaptureMode::kGlobal;
  std::thread::id thread;
  Stream* origin = nullptr;
  Graph* graph = nullptr;
  bool owns_graph = false;
  bool invalidated = false;
  std::vector<Stream*> members;         // the origin too
  std::vector<GraphNode*> left_behind;  // frontiers of destroyed members
};

class Captures {
 public:
  explicit Captures(Graphs* graphs) : graphs_(graphs) {}
  Captures(const Captures&) = delete;
  Captures& operator=(const Captures&) = delete;

  long active() const { return count_.load(std::memory_order_relaxed); }
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  // `into`: a graph of the program's that gets the nodes, after
  // `dependencies`; nullptr: a new one.
  Status Begin(Stream* stream, int mode, Graph* into,
               std::vector<GraphNode*> dependencies);
  // Ends it whatever the answer, but for kIllegalState, kCaptureUnmatched and
  // kCaptureWrongThread. *graph is null after an error.
  Status End(Stream* stream, Graph** graph);

  // Work for the stream. *capture: where it is to be recorded; nullptr: run it.
  Status Enqueue(Stream* stream, Capture** capture);
  // A synchronisation or a query of the stream.
  Status Synchronize(Stream* stream);
  // Of everything on the device.
  Status SynchronizeDevice(int device);
  // A query or a synchronisation of the event.
  Status Synchronize(const Event& event);
  // A call that might synchronise: an allocation, a registration.
  Status Unsafe();
  // cudaStreamIsCapturing and its like. For them the status alone is asked.
  cudasim::Status StatusOf(const Stream* stream, int* status,
                           const Capture** capture);

  // Answers true in *done if the capture took the call.
  Status Record(Stream* stream, uint64_t handle, Event* event, bool external,
                bool* done);
  Status Wait(Stream* stream, uint64_t handle, Event* event, bool external,
              bool* done);

  // The capture's next node on this stream.
  GraphNode* Add(Capture* capture, Stream* stream, Work work);
  void Advance(Stream* stream, GraphNode* node) { stream->frontier = {node}; }
  // Adds to or replaces what the stream's next node comes after.
  Status Update(Stream* stream, const std::vector<GraphNode*>& nodes,
                unsigned flags);

  void Invalidate(Capture* capture) { capture->invalidated = true; }
  // The stream is destroyed. Its capture ends with it if it began there.
  void Leave(Stream* stream);
  Capture* Find(uint64_t id);
  // Called, under the lock, with the id of every capture that has ended.
  void OnEnd(void (*function)(unsigned long long)) { on_end_ = function; }
  // For tests.
  void Clear();

 private:
  // The legacy stream stands for all blocking streams of its device.
  Status CheckLegacy(const Stream* stream);
  void Join(Stream* stream, Capture* capture,
            const std::vector<GraphNode*>& nodes);
  void Finish(Capture* capture, bool keep_graph);

  Graphs* const graphs_;
  std::vector<std::unique_ptr<Capture>> active_;
  std::atomic<long> count_{0};
  uint64_t last_id_ = 0;
  void (*on_end_)(unsigned long long) = nullptr;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CAPTURE_H_
