// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/capture.h"

#include <algorithm>
#include <utility>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

bool IsLegacy(const Stream& stream) { return stream.handle == 0; }

void AddMissing(std::vector<GraphNode*>* nodes,
                const std::vector<GraphNode*>& more) {
  for (GraphNode* each : more) {
    if (std::find(nodes->begin(), nodes->end(), each) == nodes->end()) {
      nodes->push_back(each);
    }
  }
}

}  // namespace

Status Captures::Begin(Stream* stream, int mode, Graph* into,
                       std::vector<GraphNode*> dependencies) {
  if (mode < 0 || mode > static_cast<int>(CaptureMode::kRelaxed)) {
    return kInvalidValue;
  }
  if (IsLegacy(*stream)) return kCaptureUnsupported;
  if (stream->capture != nullptr) return kIllegalState;
  if (into != nullptr && into->capturing) return kInvalidValue;
  auto capture = std::make_unique<Capture>();
  capture->id = ++last_id_;
  capture->mode = static_cast<CaptureMode>(mode);
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->owns_graph = into == nullptr;
  capture->graph = into != nullptr ? into : graphs_->Create();
  capture->graph->capturing = true;
  Join(stream, capture.get(), dependencies);
  active_.push_back(std::move(capture));
  count_.fetch_add(1);
  return kOk;
}

Status Captures::End(Stream* stream, Graph** graph) {
  *graph = nullptr;
  Capture* const capture = stream->capture;
  if (capture == nullptr) return kIllegalState;
  if (capture->origin != stream) {
    Invalidate(capture);
    return kCaptureUnmatched;
  }
  if (capture->mode != CaptureMode::kRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  Status status = kOk;
  if (capture->invalidated) {
    status = kCaptureInvalidated;
  } else {
    std::vector<GraphNode*> ends = capture->left_behind;
    for (const Stream* each : capture->members) {
      AddMissing(&ends, each->frontier);
    }
    if (!Graphs::Reaches(stream->frontier, ends)) status = kCaptureUnjoined;
  }
  if (status == kOk) *graph = capture->graph;
  Finish(capture, status == kOk);
  return status;
}

void Captures::Finish(Capture* capture, bool keep_graph) {
  for (Stream* each : capture->members) {
    each->capture = nullptr;
    each->frontier.clear();
  }
  capture->graph->capturing = false;
  if (!keep_graph && capture->owns_graph) graphs_->Destroy(capture->graph);
  const uint64_t id = capture->id;
  std::erase_if(active_,
                [capture](const auto& each) { return each.get() == capture; });
  count_.fetch_sub(1);
  if (on_end_ != nullptr) on_end_(id);
}

Status Captures::CheckLegacy(const Stream* stream) {
  if (!IsLegacy(*stream)) return kOk;
  Status status = kOk;
  for (const auto& capture : active_) {
    for (const Stream* member : capture->members) {
      if (!member->blocking || member->device != stream->device) continue;
      Invalidate(capture.get());
      status = kCaptureImplicit;
    }
  }
  return status;
}

Status Captures::Enqueue(Stream* stream, Capture** capture) {
  *capture = nullptr;
  if (!any()) return kOk;
  if (stream->capture == nullptr) return CheckLegacy(stream);
  if (stream->capture->invalidated) return kCaptureInvalidated;
  *capture = stream->capture;
  return kOk;
}

Status Captures::Synchronize(Stream* stream) {
  if (!any()) return kOk;
  if (stream->capture == nullptr) return CheckLegacy(stream);
  if (stream->capture->invalidated) return kCaptureInvalidated;
  Invalidate(stream->capture);
  return kCaptureUnsupported;
}

Status Captures::SynchronizeDevice(int device) {
  Status status = kOk;
  for (const auto& capture : active_) {
    for (const Stream* member : capture->members) {
      if (member->device != device) continue;
      Invalidate(capture.get());
      status = kCaptureUnsupported;
    }
  }
  return status;
}

Status Captures::Synchronize(const Event& event) {
  if (event.capture != 0) {
    Capture* const capture = Find(event.capture);
    if (capture == nullptr) return kInvalidValue;  // it has ended
    Invalidate(capture);
    return kCapturedEvent;
  }
  return Unsafe();
}

Status Captures::Unsafe() {
  if (!any()) return kOk;
  const auto mode = static_cast<CaptureMode>(ThisThread().capture_mode);
  if (mode == CaptureMode::kRelaxed) return kOk;
  Status status = kOk;
  for (const auto& capture : active_) {
    const bool forbids = capture->thread == std::this_thread::get_id()
                             ? capture->mode != CaptureMode::kRelaxed
                             : mode == CaptureMode::kGlobal &&
                                   capture->mode == CaptureMode::kGlobal;
    if (!forbids) continue;
    Invalidate(capture.get());
    status = kCaptureUnsupported;
  }
  return status;
}

cudasim::Status Captures::StatusOf(const Stream* stream, int* status,
                                   const Capture** capture) {
  *status = 0;
  *capture = nullptr;
  if (!any()) return kOk;
  if (IsLegacy(*stream)) {
    // Unlike a use of the stream, the question spoils nothing.
    for (const auto& each : active_) {
      for (const Stream* member : each->members) {
        if (member->blocking && member->device == stream->device) {
          return kCaptureImplicit;
        }
      }
    }
    return kOk;
  }
  if (stream->capture == nullptr) return kOk;
  *status = stream->capture->invalidated ? 2 : 1;
  if (!stream->capture->invalidated) *capture = stream->capture;
  return kOk;
}

Status Captures::Record(Stream* stream, uint64_t handle, Event* event,
                        bool external, bool* done) {
  *done = true;
  Capture* capture = nullptr;
  if (const Status status = Enqueue(stream, &capture); status != kOk) {
    return status;
  }
  if (capture == nullptr) {
    event->capture = 0;
    event->frontier.clear();
    *done = false;
    return kOk;
  }
  if (external) {
    Work work;
    work.kind = NodeKind::kRecordEvent;
    work.name = "an event record";
    work.event = handle;
    Add(capture, stream, std::move(work));
    return kOk;
  }
  event->capture = capture->id;
  event->frontier = stream->frontier;
  return kOk;
}

Status Captures::Wait(Stream* stream, uint64_t handle, Event* event,
                      bool external, bool* done) {
  *done = true;
  Capture* const theirs = event->capture != 0 ? Find(event->capture) : nullptr;
  Capture* capture = nullptr;
  if (theirs == nullptr || stream->capture != nullptr) {
    if (const Status status = Enqueue(stream, &capture); status != kOk) {
      return status;
    }
  }
  if (capture == nullptr) {
    if (event->capture == 0) {
      *done = false;
      return kOk;
    }
    if (theirs == nullptr) return kCapturedEvent;  // its capture has ended
    if (theirs->invalidated) return kCaptureInvalidated;
    if (IsLegacy(*stream)) {
      Invalidate(theirs);
      return kCaptureImplicit;
    }
    Join(stream, theirs, event->frontier);
    return kOk;
  }
  if (external) {
    Work work;
    work.kind = NodeKind::kWaitEvent;
    work.name = "an event wait";
    work.event = handle;
    Add(capture, stream, std::move(work));
    return kOk;
  }
  if (event->capture == 0 && !event->recorded) return kOk;
  if (theirs == nullptr) {
    Invalidate(capture);
    return kCaptureIsolation;
  }
  if (theirs != capture) {
    Invalidate(capture);
    Invalidate(theirs);
    return kCaptureMerge;
  }
  AddMissing(&stream->frontier, event->frontier);
  return kOk;
}

void Captures::Join(Stream* stream, Capture* capture,
                    const std::vector<GraphNode*>& nodes) {
  stream->capture = capture;
  stream->frontier = nodes;
  capture->members.push_back(stream);
}

GraphNode* Captures::Add(Capture* capture, Stream* stream, Work work) {
  GraphNode* const node =
      graphs_->Add(capture->graph, std::move(work), stream->frontier);
  Advance(stream, node);
  return node;
}

Status Captures::Update(Stream* stream, const std::vector<GraphNode*>& nodes,
                        unsigned flags) {
  if (stream->capture == nullptr) return kIllegalState;
  if (stream->capture->invalidated) return kCaptureInvalidated;
  if (flags > 1) return kInvalidValue;
  for (const GraphNode* node : nodes) {
    if (!graphs_->IsAlive(node) || node->graph != stream->capture->graph) {
      return kInvalidValue;
    }
  }
  if (flags == 1) stream->frontier.clear();
  AddMissing(&stream->frontier, nodes);
  return kOk;
}

void Captures::Leave(Stream* stream) {
  Capture* const capture = stream->capture;
  if (capture == nullptr) return;
  if (capture->origin == stream) return Finish(capture, false);
  AddMissing(&capture->left_behind, stream->frontier);
  std::erase(capture->members, stream);
  stream->capture = nullptr;
  stream->frontier.clear();
}

Capture* Captures::Find(uint64_t id) {
  for (const auto& each : active_) {
    if (each->id == id) return each.get();
  }
  return nullptr;
}

void Captures::Clear() {
  while (!active_.empty()) Finish(active_.back().get(), false);
}

}  // namespace cudasim
