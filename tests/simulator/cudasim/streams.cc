// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/streams.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {

namespace {

// The calling thread's number. What belongs to the thread ends with it, if
// there is anything: only per-thread streams and clocks ever ask.
struct Thread {
  uint64_t number = 0;
  Thread() {
    static std::atomic<uint64_t> last{0};
    number = last.fetch_add(1) + 1;
  }
  ~Thread() {
    Simulator& sim = Simulator::Get();
    Lock lock(sim.mu);
    sim.streams.EndThread(number);
  }
};

}  // namespace

uint64_t ThreadNumber() {
  thread_local const Thread thread;
  return thread.number;
}

std::string Stream::Name() const {
  char text[80];
  if (thread != 0) {
    std::snprintf(text, sizeof(text),
                  "the default stream of thread %llu on device %d",
                  static_cast<unsigned long long>(thread), device);
  } else if (handle == 0) {
    std::snprintf(text, sizeof(text), "the default stream of device %d",
                  device);
  } else {
    std::snprintf(text, sizeof(text), "stream 0x%llx",
                  static_cast<unsigned long long>(handle));
  }
  return text;
}

Streams::Streams(int devices) {
  for (int device = 0; device < devices; ++device) {
    default_streams_.push_back(Add(device));
  }
}

Stream* Streams::Add(int device) {
  for (size_t i = 0; i < retired_.size(); ++i) {
    Stream* stream = retired_[i];
    if (!hosts_.AllCover(stream->index, stream->submitted)) continue;
    // Numbers go on where the old stream ended, so old clocks stay true.
    retired_[i] = retired_.back();
    retired_.pop_back();
    stream->destroyed = false;
    stream->virtual_end = 0;
    stream->device = device;
    stream->thread = 0;
    stream->base = stream->submitted;
    stream->flags = 0;
    stream->priority = 0;
    stream->blocking = true;
    return stream;
  }
  streams_.push_back(std::make_unique<Stream>());
  Stream* stream = streams_.back().get();
  stream->index = streams_.size() - 1;
  stream->device = device;
  return stream;
}

uint64_t Streams::Create(int device, unsigned flags, int priority,
                         bool blocking) {
  Stream* stream = Add(device);
  stream->handle = next_handle_;
  next_handle_ += 16;
  stream->flags = flags;
  stream->priority = priority;
  stream->blocking = blocking;
  handles_[stream->handle] = stream;
  return stream->handle;
}

Status Streams::Destroy(uint64_t handle) {
  auto found = handles_.find(handle);
  if (found == handles_.end()) return kInvalidHandle;
  Stream* stream = found->second;
  stream->destroyed = true;
  retired_.push_back(stream);
  handles_.erase(found);
  return kOk;
}

Stream* Streams::Find(uint64_t handle, int device) {
  if (handle <= 1) return default_streams_[device];
  if (handle == 2) {
    Stream*& own = per_thread_[{ThreadNumber(), device}];
    if (own == nullptr) {
      own = Add(device);
      own->handle = handle;
      own->thread = ThreadNumber();
    }
    return own;
  }
  auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second;
}

bool Streams::WasDestroyed(uint64_t handle) const {
  return handle >= kFirstHandle && handle < next_handle_ &&
         (handle - kFirstHandle) % 16 == 0 && handles_.count(handle) == 0;
}

void Streams::EndThread(uint64_t thread) {
  hosts_.EndThread(thread);
  auto first = per_thread_.lower_bound({thread, 0});
  auto last = first;
  for (; last != per_thread_.end() && last->first.first == thread; ++last) {
    last->second->destroyed = true;
    retired_.push_back(last->second);
  }
  per_thread_.erase(first, last);
}

const VectorClock& Streams::Reached(Stream* stream) {
  return stream == default_streams_[stream->device] ? Past(stream)
                                                    : stream->past;
}

const VectorClock& Streams::Past(Stream* stream) {
  // What the submitting thread has seen completed comes first, too.
  if (hosts_.per_thread()) stream->past.Join(hosts_.Mine());
  Stream* first = default_streams_[stream->device];
  if (stream == first) {
    for (const auto& each : streams_) {
      if (each->device == stream->device && each->blocking) {
        stream->past.Join(each->past);
      }
    }
  } else if (stream->blocking) {
    stream->past.Join(first->past);
  }
  return stream->past;
}

uint64_t Streams::Submit(Stream* stream, std::function<void(Lock&)> run,
                         bool on_host) {
  Operation operation;
  operation.on_host = on_host;
  operation.required = Past(stream);
  operation.number = ++stream->submitted;
  operation.run = std::move(run);
  stream->past.Set(stream->index, operation.number);
  stream->queue.push_back(std::move(operation));
  ++queued_;
  return stream->submitted;
}

void Streams::WaitFor(Stream* stream, const VectorClock& clock) {
  stream->past.Join(clock);
}

VectorClock Streams::DevicePast(int device) {
  VectorClock clock;
  for (const auto& each : streams_) {
    if (each->device == device) clock.Join(each->past);
  }
  return clock;
}

int64_t Streams::VirtualEnd(const Stream* stream) const {
  const Stream* first = default_streams_[stream->device];
  int64_t end = stream->virtual_end;
  if (stream == first) {
    for (const auto& each : streams_) {
      if (each->device == stream->device && each->blocking) {
        end = std::max(end, each->virtual_end);
      }
    }
  } else if (stream->blocking) {
    end = std::max(end, first->virtual_end);
  }
  return end;
}

int64_t Streams::VirtualEndOfDevice(int device) const {
  int64_t end = 0;
  for (const auto& each : streams_) {
    if (each->device == device) end = std::max(end, each->virtual_end);
  }
  return end;
}

void Streams::ResetVirtualEnds() {
  for (const auto& each : streams_) each->virtual_end = 0;
}

bool Streams::IsExecuted(const VectorClock& clock) const {
  for (size_t i = 0; i < clock.size(); ++i) {
    if (streams_[i]->executed < clock.Get(i)) return false;
  }
  return true;
}

void Streams::RunFirst(Lock& lock, Stream* stream) {
  Operation operation = std::move(stream->queue.front());
  stream->queue.pop_front();
  --queued_;
  stream->running = true;
  if (operation.run) operation.run(lock);
  stream->running = false;
  stream->executed = operation.number;
  finished_.notify_all();
}

void Streams::Start(Lock& lock, Stream* stream) {
  if (!stream->queue.front().on_host) {
    RunFirst(lock, stream);
    return;
  }
  auto operation =
      std::make_shared<Operation>(std::move(stream->queue.front()));
  stream->queue.pop_front();
  --queued_;
  stream->running = true;
  // Detached: it may wait for the program as long as it likes, also at exit.
  std::thread([this, stream, operation, mu = lock.mutex()] {
    Lock own(*mu);
    operation->run(own);
    stream->running = false;
    stream->executed = operation->number;
    finished_.notify_all();
  }).detach();
}

bool Streams::Advance(Lock& lock, Stream* stream) {
  if (stream->running || stream->queue.empty()) return false;
  const VectorClock& required = stream->queue.front().required;
  for (size_t i = 0; i < required.size(); ++i) {
    if (i == stream->index || streams_[i]->executed >= required.Get(i)) {
      continue;
    }
    return Advance(lock, streams_[i].get());
  }
  Start(lock, stream);
  return true;
}

void Streams::RunUntil(Lock& lock, Stream* stream, uint64_t number) {
  while (stream->executed < number) {
    if (stream->running) {
      finished_.wait(lock);
      continue;
    }
    // By value: the queue may move while the lock is released further down.
    const VectorClock required = stream->queue.front().required;
    const uint64_t first = stream->queue.front().number;
    for (size_t i = 0; i < required.size(); ++i) {
      if (i != stream->index) {
        RunUntil(lock, streams_[i].get(), required.Get(i));
      }
    }
    if (!stream->running && !stream->queue.empty() &&
        stream->queue.front().number == first) {
      RunFirst(lock, stream);
    }
  }
}

void Streams::Execute(Lock& lock, const VectorClock& target) {
  for (size_t i = 0; i < target.size(); ++i) {
    RunUntil(lock, streams_[i].get(), target.Get(i));
  }
}

void Streams::Synchronize(Lock& lock, const VectorClock& target) {
  const VectorClock reached = target;  // may alias a clock that moves
  Execute(lock, reached);
  hosts_.Observe(reached);
}

namespace {

// A copy that is stuck uses the turn up.
bool LetsTurnPass(Stream* stream) {
  if (stream->queue.empty() || stream->queue.front().stuck == 0) return false;
  --stream->queue.front().stuck;
  return true;
}

}  // namespace

bool Streams::Query(Lock& lock, const VectorClock& target) {
  const VectorClock wanted = target;
  for (size_t i = 0; i < wanted.size() && !held_; ++i) {
    Stream* stream = streams_[i].get();
    if (stream->executed >= wanted.Get(i)) continue;
    if (!stream->running && LetsTurnPass(stream)) return false;
    const uint64_t before = stream->executed;
    while (stream->executed == before && Advance(lock, stream)) {
    }
    break;
  }
  if (!IsExecuted(wanted)) return false;
  hosts_.Observe(wanted);
  return true;
}

void Streams::Step(Lock& lock) {
  if (queued_ == 0 || held_) return;
  const size_t start = random_() % streams_.size();
  const bool urgent_only = random_() % 4 != 0;
  Stream* chosen = nullptr;
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream* stream = streams_[(start + i) % streams_.size()].get();
    if (stream->queue.empty() || stream->running) continue;
    if (chosen != nullptr && stream->priority >= chosen->priority) continue;
    VectorClock required = stream->queue.front().required;
    required.Set(stream->index, 0);
    if (!IsExecuted(required)) continue;
    chosen = stream;
    if (!urgent_only) break;
  }
  if (chosen != nullptr && !LetsTurnPass(chosen)) Start(lock, chosen);
}

long Streams::Run(Lock& lock, Stream* stream, long count) {
  long done = 0;
  for (; done < count && !stream->queue.empty(); ++done) {
    RunUntil(lock, stream, stream->queue.front().number);
  }
  return done;
}

void Streams::Reset(Lock& lock) {
  held_ = false;
  for (size_t device = 0; device < default_streams_.size(); ++device) {
    Synchronize(lock, DevicePast(static_cast<int>(device)));
  }
  while (!handles_.empty()) Destroy(handles_.begin()->first);
  for (const auto& [key, stream] : per_thread_) retired_.push_back(stream);
  per_thread_.clear();
}

}  // namespace cudasim
