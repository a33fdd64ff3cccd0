// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/ordering.h"

#include <algorithm>
#include <chrono>

#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/graph_calls.h"
#include "tests/simulator/cudasim/ipc.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

// What waiting for the event means here. One that another process recorded
// stands for everything that process can have waited for.
VectorClock ClockOf(Simulator& sim, const char* what, const Event& event) {
  if (!event.imported) return event.clock;
  CheckEventOwner(what, event);
  VectorClock clock = sim.recorded_for_others;
  clock.Join(event.clock);
  return clock;
}

}  // namespace

void RunOnHost(const std::function<void(Status)>& callback, Status status) {
  ThreadState& thread = ThisThread();
  const bool outer = thread.in_host_function;
  thread.in_host_function = true;
  callback(status);
  thread.in_host_function = outer;
}

Status StreamCreate(unsigned flags, int priority, uint64_t* handle) {
  if (handle == nullptr || (flags & ~kStreamNonBlocking) != 0) {
    return kInvalidValue;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *handle = sim.streams.Create(
      ThisThread().device, flags,
      std::clamp(priority, kHighestPriority, kLowestPriority),
      (flags & kStreamNonBlocking) == 0);
  return kOk;
}

Status StreamDestroy(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (Stream* stream = sim.FindStream(handle)) sim.captures.Leave(stream);
  return sim.streams.Destroy(handle);
}

Status StreamSynchronize(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(handle);
  if (stream == nullptr) return kInvalidHandle;
  if (const Status status = sim.captures.Synchronize(stream); status != kOk) {
    return status;
  }
  sim.clock.WaitUntil(sim.clock.EndOf(stream));
  sim.streams.Synchronize(lock, sim.streams.Reached(stream));
  sim.pools.AfterSynchronize();
  return sim.sticky[stream->device];
}

Status StreamQuery(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(handle);
  if (stream == nullptr) return kInvalidHandle;
  if (const Status status = sim.captures.Synchronize(stream); status != kOk) {
    return status;
  }
  if (!sim.clock.Reached(sim.clock.EndOf(stream))) return kNotReady;
  if (!sim.streams.Query(lock, sim.streams.Reached(stream))) return kNotReady;
  return sim.sticky[stream->device];
}

Status StreamWaitEvent(uint64_t stream_handle, uint64_t event_handle,
                       bool external) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(stream_handle);
  Event* event = sim.events.Find(event_handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  bool captured = false;
  const Status status =
      sim.captures.Wait(stream, event_handle, event, external, &captured);
  if (status != kOk || captured) return status;
  WaitNow(stream, event);
  return kOk;
}

Status StreamInfo(uint64_t handle, unsigned* flags, int* priority,
                  int* device) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(handle);
  if (stream == nullptr) return kInvalidHandle;
  if (flags != nullptr) *flags = stream->flags;
  if (priority != nullptr) *priority = stream->priority;
  if (device != nullptr) *device = stream->device;
  return kOk;
}

Status StreamCallback(uint64_t handle, std::function<void(Status)> callback) {
  Simulator& sim = Simulator::Get();
  Status status = kOk;
  {
    Lock lock(sim.mu);
    Stream* stream = sim.FindStream(handle);
    if (stream == nullptr) return kInvalidHandle;
    Capture* capture = nullptr;
    status = sim.captures.Enqueue(stream, &capture);
    if (status != kOk) return status;
    if (capture != nullptr) {
      sim.captures.Invalidate(capture);
      return kCaptureUnsupported;
    }
    if (sim.async.load()) {
      const int device = stream->device;
      sim.streams.Submit(
          stream,
          [&sim, device, callback](Lock& held) {
            const Status now = sim.sticky[device];
            held.unlock();
            RunOnHost(callback, now);
            held.lock();
          },
          /*on_host=*/true);
      return kOk;
    }
    status = sim.sticky[stream->device];
  }
  RunOnHost(callback, status);
  return kOk;
}

Status StreamCall(uint64_t handle, void (*function)(void*), void* argument) {
  if (function == nullptr) return kInvalidValue;
  Simulator& sim = Simulator::Get();
  if (sim.captures.any()) {
    Lock lock(sim.mu);
    Stream* stream = sim.FindStream(handle);
    if (stream == nullptr) return kInvalidHandle;
    Capture* capture = nullptr;
    const Status status = sim.captures.Enqueue(stream, &capture);
    if (status != kOk) return status;
    if (capture != nullptr) {
      sim.captures.Add(capture, stream, HostWork(function, argument));
      return kOk;
    }
  }
  return StreamCallback(handle, [function, argument](Status status) {
    if (status == kOk) function(argument);
  });
}

Status EventCreate(unsigned flags, uint64_t* handle) {
  // Blocking sync (1), no timing (2), interprocess (4).
  if (handle == nullptr || (flags & ~7u) != 0) return kInvalidValue;
  if ((flags & kEventInterprocess) != 0 && (flags & kEventDisableTiming) == 0) {
    return kInvalidValue;  // an event for other processes cannot time
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *handle = sim.events.Create(ThisThread().device, flags);
  return kOk;
}

Status EventDestroy(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.events.Destroy(handle);
}

void RecordNow(Lock& lock, Event* event, Stream* stream) {
  Simulator& sim = Simulator::Get();
  if (sim.async.load()) event->clock = sim.streams.Past(stream);
  event->recorded = true;
  if (CardOf(event->device).modelled) {
    event->virtual_ns = std::max(sim.clock.Now(), sim.clock.EndOf(stream));
  }
  event->time = std::chrono::steady_clock::now();
  if ((event->flags & kEventInterprocess) != 0) {
    CheckEventOwner("cudaEventRecord", *event);
    NoteSharedRecord(*event);
    const VectorClock clock = event->clock;  // the event may go meanwhile
    sim.recorded_for_others.Join(clock);
    sim.streams.Execute(lock, clock);
  }
}

void WaitNow(Stream* stream, const Event* event) {
  Simulator& sim = Simulator::Get();
  sim.clock.Hold(stream, event->virtual_ns);
  sim.streams.WaitFor(stream, ClockOf(sim, "cudaStreamWaitEvent", *event));
}

Status EventRecord(uint64_t event_handle, uint64_t stream_handle,
                   bool external) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Event* event = sim.events.Find(event_handle);
  Stream* stream = sim.FindStream(stream_handle);
  if (event == nullptr || stream == nullptr) return kInvalidHandle;
  if (event->device != stream->device) return kInvalidHandle;
  bool captured = false;
  const Status status =
      sim.captures.Record(stream, event_handle, event, external, &captured);
  if (status != kOk || captured) return status;
  // External events are nodes of a graph: only while a stream captures.
  if (external) return kInvalidValue;
  RecordNow(lock, event, stream);
  return kOk;
}

Status EventQuery(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Event* event = sim.events.Find(handle);
  if (event == nullptr) return kInvalidHandle;
  if (const Status status = sim.captures.Synchronize(*event); status != kOk) {
    return status;
  }
  const int device = event->device;
  if (!sim.clock.Reached(event->virtual_ns)) return kNotReady;
  // By value: the event may go meanwhile.
  const VectorClock clock = ClockOf(sim, "cudaEventQuery", *event);
  if (!sim.streams.Query(lock, clock)) return kNotReady;
  return sim.sticky[device];
}

Status EventSynchronize(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Event* event = sim.events.Find(handle);
  if (event == nullptr) return kInvalidHandle;
  if (const Status status = sim.captures.Synchronize(*event); status != kOk) {
    return status;
  }
  const int device = event->device;
  sim.clock.WaitUntil(event->virtual_ns);
  const VectorClock clock = ClockOf(sim, "cudaEventSynchronize", *event);
  sim.streams.Synchronize(lock, clock);
  sim.pools.AfterSynchronize();
  return sim.sticky[device];
}

Status EventElapsed(float* milliseconds, uint64_t start_handle,
                    uint64_t end_handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Event* start = sim.events.Find(start_handle);
  Event* end = sim.events.Find(end_handle);
  if (milliseconds == nullptr) return kInvalidValue;
  if (start == nullptr || end == nullptr || !start->recorded ||
      !end->recorded || start->capture != 0 || end->capture != 0 ||
      ((start->flags | end->flags) & kEventDisableTiming) != 0) {
    return kInvalidHandle;
  }
  if (!sim.streams.IsExecuted(start->clock) ||
      !sim.streams.IsExecuted(end->clock)) {
    return kNotReady;
  }
  if (CardOf(start->device).modelled && CardOf(end->device).modelled) {
    if (std::max(start->virtual_ns, end->virtual_ns) > sim.clock.Now()) {
      return kNotReady;
    }
    *milliseconds =
        static_cast<float>(end->virtual_ns - start->virtual_ns) / 1e6f;
    return kOk;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return kOk;
}

Status DeviceSynchronize() {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  const int device = ThisThread().device;
  if (const Status status = sim.captures.SynchronizeDevice(device);
      status != kOk) {
    return status;
  }
  sim.clock.WaitUntil(sim.clock.EndOfDevice(device));
  sim.streams.Synchronize(lock, sim.streams.DevicePast(device));
  sim.pools.AfterSynchronize();
  return sim.sticky[device];
}

}  // namespace cudasim
