// SPDX-License-Identifier: Apache-2.0
//
// Executable graphs: instantiation and launch. A launch submits every node to
// the stream it was launched on, one after another: any order the edges allow
// is a device's right. In async mode each node is an operation of its own in
// the stream's queue with its accesses noted, so the checker sees each replay.

#include <chrono>
#include <string>
#include <utility>

#include "tests/simulator/cudasim/graph_calls.h"
#include "tests/simulator/cudasim/ordering.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

// Whatever a node was recorded with must still be there: the graph keeps
// addresses, nobody keeps the memory for it.
bool Usable(Simulator& sim, const Work& work, const Stream& stream) {
  for (const cudasim_access& access : work.accesses) {
    if (access.bytes == 0 || !sim.arena.IsDevice(access.address)) continue;
    const char* kind = nullptr;
    const std::string problem =
        sim.addresses.Problem(access.address, access.bytes, stream.device,
                              access.write != 0, &kind, work.reach);
    if (problem.empty()) continue;
    sim.violations.Add(kind, work.name + " in a graph on " + stream.Name() +
                                 (access.write != 0 ? " writes " : " reads ") +
                                 sim.BlockText(access.address, access.bytes) +
                                 ", but " + problem);
    sim.Break(stream.device, kIllegalAddress);
    return false;
  }
  return true;
}

void RunWork(Simulator& sim, Lock& lock, const Work& work, Stream* stream) {
  if (work.run && Usable(sim, work, *stream)) work.run(lock, stream);
}

void Submit(Simulator& sim, Lock& lock, std::shared_ptr<const Work> work,
            Stream* stream) {
  if (work->event != 0) {
    Event* event = sim.events.Find(work->event);
    if (event == nullptr) {
      sim.violations.Add(kind::kStreamGone, "a graph on " + stream->Name() +
                                                " has " + work->name +
                                                " whose event is gone");
    } else if (work->kind == NodeKind::kRecordEvent) {
      RecordNow(lock, event, stream);
    } else {
      WaitNow(stream, event);
    }
    return;
  }
  if (work->charge) work->charge(stream);
  if (!sim.async.load()) return RunWork(sim, lock, *work, stream);
  const VectorClock past = sim.streams.Past(stream);
  const uint64_t number = sim.streams.Submit(
      stream,
      [&sim, work, stream](Lock& held) { RunWork(sim, held, *work, stream); });
  for (const cudasim_access& access : work->accesses) {
    sim.NoteAccess(stream, past, number, work->name + " in a graph",
                   access.address, access.bytes,
                   static_cast<Use>(access.write));
  }
}

GraphExec* FindExec(const Simulator& sim, uint64_t handle) {
  auto* const exec = reinterpret_cast<GraphExec*>(handle);
  return sim.graphs.IsAlive(exec) ? exec : nullptr;
}

Graph* FindGraph(const Simulator& sim, uint64_t handle) {
  auto* const graph = reinterpret_cast<Graph*>(handle);
  return sim.graphs.IsAlive(graph) ? graph : nullptr;
}

}  // namespace

Work HostWork(void (*function)(void*), void* argument) {
  Work work;
  work.kind = NodeKind::kHost;
  work.name = "a host function";
  work.run = [function, argument](Lock& lock, Stream* stream) {
    if (Simulator::Get().sticky[stream->device] != kOk) return;
    lock.unlock();
    RunOnHost([function, argument](Status) { function(argument); }, kOk);
    lock.lock();
  };
  return work;
}

Status GraphInstantiate(uint64_t handle, uint64_t flags, uint64_t* exec) {
  // Auto free on launch, upload, device launch, use node priority.
  if (exec == nullptr || flags > 15) return kInvalidValue;
  constexpr uint64_t kDeviceLaunch = 4;
  if ((flags & kDeviceLaunch) != 0) return kNotSupported;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Graph* graph = FindGraph(sim, handle);
  if (graph == nullptr) return kInvalidValue;
  GraphExec* made = nullptr;
  const Status status = sim.graphs.Instantiate(*graph, flags, &made);
  if (status != kOk) return status;
  made->users = graph->users;
  sim.users.RetainAll(made->users);
  *exec = reinterpret_cast<uint64_t>(made);
  return kOk;
}

Status GraphUpdate(uint64_t exec_handle, uint64_t graph_handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  GraphExec* exec = FindExec(sim, exec_handle);
  Graph* graph = FindGraph(sim, graph_handle);
  if (exec == nullptr || graph == nullptr) return kInvalidValue;
  return sim.graphs.Update(exec, *graph);
}

Status GraphExecFlags(uint64_t handle, uint64_t* flags) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  GraphExec* exec = FindExec(sim, handle);
  if (exec == nullptr || flags == nullptr) return kInvalidValue;
  *flags = exec->flags;
  return kOk;
}

Status GraphExecDestroy(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  GraphExec* exec = FindExec(sim, handle);
  if (exec == nullptr) return kInvalidValue;
  sim.users.ReleaseAll(&exec->users);
  const Status status = sim.graphs.DestroyExec(exec);
  sim.users.RunDestructors(lock);
  return status;
}

Status GraphUpload(uint64_t exec, uint64_t stream) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  if (FindExec(sim, exec) == nullptr) return kInvalidValue;
  Stream* found = sim.FindStream(stream);
  if (found == nullptr) return kInvalidHandle;
  Capture* capture = nullptr;
  const Status status = sim.captures.Enqueue(found, &capture);
  if (capture == nullptr) return status;
  sim.captures.Invalidate(capture);
  return kCaptureUnsupported;
}

Status GraphLaunch(uint64_t exec_handle, uint64_t stream_handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  GraphExec* exec = FindExec(sim, exec_handle);
  if (exec == nullptr) return kInvalidValue;
  Stream* stream = sim.FindStream(stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  Capture* capture = nullptr;
  if (const Status status = sim.captures.Enqueue(stream, &capture);
      status != kOk) {
    return status;
  }
  const Works works = exec->works;  // the exec may go while it runs
  if (capture != nullptr) {
    Graph child;
    GraphNode* last = nullptr;
    for (const auto& work : works) {
      auto node = std::make_unique<GraphNode>();
      node->graph = &child;
      node->work = work;
      if (last != nullptr) node->dependencies = {last};
      last = node.get();
      child.nodes.push_back(std::move(node));
    }
    sim.captures.Advance(
        stream, sim.graphs.AddChild(capture->graph, child, stream->frontier));
    return kOk;
  }
  for (const auto& work : works) Submit(sim, lock, work, stream);
  return sim.sticky[stream->device];
}

}  // namespace cudasim
