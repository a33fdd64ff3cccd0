// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/graph_calls.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "tests/simulator/cudasim/ordering.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

template <typename Object>
uint64_t Handle(Object* object) {
  return reinterpret_cast<uint64_t>(object);
}

// The living object of a handle, or nullptr.
template <typename Object>
Object* Alive(const Simulator& sim, uint64_t handle) {
  auto* const object = reinterpret_cast<Object*>(handle);
  return sim.graphs.IsAlive(object) ? object : nullptr;
}

// False if one of them is no node of the graph, or is there twice.
bool NodesOf(const Simulator& sim, const Graph* graph, const uint64_t* handles,
             size_t count, std::vector<GraphNode*>* nodes) {
  if (count != 0 && handles == nullptr) return false;
  for (size_t i = 0; i < count; ++i) {
    auto* const node = Alive<GraphNode>(sim, handles[i]);
    if (node == nullptr || node->graph != graph ||
        std::find(nodes->begin(), nodes->end(), node) != nodes->end()) {
      return false;
    }
    nodes->push_back(node);
  }
  return true;
}

Status GiveList(const std::vector<uint64_t>& found, uint64_t* out,
                size_t* count) {
  if (count == nullptr) return kInvalidValue;
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) {
      out[i] = i < found.size() ? found[i] : 0;
    }
  }
  *count = found.size();
  return kOk;
}

}  // namespace

Status StreamBeginCapture(uint64_t stream_handle, int mode,
                          uint64_t graph_handle, const uint64_t* dependencies,
                          size_t count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  Graph* into = nullptr;
  std::vector<GraphNode*> nodes;
  if (graph_handle != 0) {
    into = Alive<Graph>(sim, graph_handle);
    if (into == nullptr || !NodesOf(sim, into, dependencies, count, &nodes)) {
      return kInvalidValue;
    }
  }
  const Status status =
      sim.captures.Begin(stream, mode, into, std::move(nodes));
  // The operator bridge looks at bytes while it captures, to know the shapes.
  // What is queued may run now as well as later; it proves nothing.
  if (status == kOk && sim.async.load()) {
    sim.streams.Execute(lock, sim.streams.DevicePast(stream->device));
  }
  return status;
}

Status StreamEndCapture(uint64_t handle, uint64_t* graph) {
  if (graph == nullptr) return kInvalidValue;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *graph = 0;
  Stream* stream = sim.FindStream(handle);
  if (stream == nullptr) return kInvalidHandle;
  Graph* made = nullptr;
  const Status status = sim.captures.End(stream, &made);
  *graph = Handle(made);
  return status;
}

Status StreamCaptureInfo(uint64_t handle, CaptureInfo* info) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *info = CaptureInfo{};
  Stream* stream = sim.FindStream(handle);
  if (stream == nullptr) return kInvalidHandle;
  const Capture* capture = nullptr;
  const Status status = sim.captures.StatusOf(stream, &info->status, &capture);
  if (capture == nullptr) return status;
  info->id = capture->id;
  info->graph = capture->graph;
  info->dependencies = stream->frontier.data();
  info->count = stream->frontier.size();
  return status;
}

Status StreamUpdateCapture(uint64_t handle, const uint64_t* nodes, size_t count,
                           unsigned flags) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(handle);
  if (stream == nullptr) return kInvalidHandle;
  std::vector<GraphNode*> wanted;
  for (size_t i = 0; i < count; ++i) {
    wanted.push_back(reinterpret_cast<GraphNode*>(nodes[i]));
  }
  return sim.captures.Update(stream, wanted, flags);
}

Status ExchangeCaptureMode(int* mode) {
  if (mode == nullptr || *mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, ThisThread().capture_mode);
  return kOk;
}

Status GraphCreate(unsigned flags, uint64_t* graph) {
  if (graph == nullptr || flags != 0) return kInvalidValue;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *graph = Handle(sim.graphs.Create());
  return kOk;
}

Status GraphDestroy(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  if (graph == nullptr || graph->capturing) return kInvalidValue;
  sim.users.ReleaseAll(&graph->users);
  const Status status = sim.graphs.Destroy(graph);
  sim.users.RunDestructors(lock);
  return status;
}

Status GraphClone(uint64_t handle, uint64_t* clone) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  if (graph == nullptr || clone == nullptr) return kInvalidValue;
  Graph* const made = sim.graphs.Clone(*graph);
  made->users = graph->users;
  sim.users.RetainAll(made->users);
  *clone = Handle(made);
  return kOk;
}

Status GraphNodes(uint64_t handle, bool roots_only, uint64_t* nodes,
                  size_t* count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  if (graph == nullptr) return kInvalidValue;
  std::vector<uint64_t> found;
  for (const auto& node : graph->nodes) {
    if (roots_only && !node->dependencies.empty()) continue;
    found.push_back(Handle(node.get()));
  }
  return GiveList(found, nodes, count);
}

Status GraphEdges(uint64_t handle, uint64_t* from, uint64_t* to,
                  size_t* count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  if (graph == nullptr || count == nullptr ||
      (from == nullptr) != (to == nullptr)) {
    return kInvalidValue;
  }
  std::vector<uint64_t> starts, ends;
  for (const auto& node : graph->nodes) {
    for (GraphNode* each : node->dependencies) {
      starts.push_back(Handle(each));
      ends.push_back(Handle(node.get()));
    }
  }
  size_t room = *count;
  (void)GiveList(starts, from, &room);
  return GiveList(ends, to, count);
}

Status GraphNodeNeighbours(uint64_t handle, bool dependents, uint64_t* nodes,
                           size_t* count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* node = Alive<GraphNode>(sim, handle);
  if (node == nullptr) return kInvalidValue;
  std::vector<uint64_t> found;
  if (dependents) {
    for (const auto& each : node->graph->nodes) {
      const auto& before = each->dependencies;
      if (std::find(before.begin(), before.end(), node) != before.end()) {
        found.push_back(Handle(each.get()));
      }
    }
  } else {
    for (GraphNode* each : node->dependencies) found.push_back(Handle(each));
  }
  return GiveList(found, nodes, count);
}

Status GraphNodeType(uint64_t handle, int* type) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* node = Alive<GraphNode>(sim, handle);
  if (node == nullptr || type == nullptr) return kInvalidValue;
  *type = static_cast<int>(node->work->kind);
  return kOk;
}

Status GraphChangeEdges(uint64_t handle, bool add, const uint64_t* from,
                        const uint64_t* to, size_t count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  if (graph == nullptr || (count != 0 && (from == nullptr || to == nullptr))) {
    return kInvalidValue;
  }
  for (size_t i = 0; i < count; ++i) {
    auto* const first = Alive<GraphNode>(sim, from[i]);
    auto* const second = Alive<GraphNode>(sim, to[i]);
    if (first == nullptr || second == nullptr || first == second ||
        first->graph != graph || second->graph != graph) {
      return kInvalidValue;
    }
    auto& edges = second->dependencies;
    const auto found = std::find(edges.begin(), edges.end(), first);
    if ((found == edges.end()) != add) return kInvalidValue;
    if (add) {
      edges.push_back(first);
    } else {
      edges.erase(found);
    }
  }
  return kOk;
}

Status GraphDestroyNode(uint64_t handle) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* node = Alive<GraphNode>(sim, handle);
  if (node == nullptr || node->graph->capturing) return kInvalidValue;
  sim.graphs.DestroyNode(node);
  return kOk;
}

Status GraphWriteDot(uint64_t handle, const char* path) {
  std::string text;
  {
    Simulator& sim = Simulator::Get();
    Lock lock(sim.mu);
    auto* graph = Alive<Graph>(sim, handle);
    if (graph == nullptr || path == nullptr) return kInvalidValue;
    text = Graphs::Dot(*graph);
  }
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return kOperatingSystem;
  std::fputs(text.c_str(), file);
  std::fclose(file);
  return kOk;
}

Status GraphAdd(uint64_t handle, const uint64_t* dependencies, size_t count,
                Work work, uint64_t* node) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  std::vector<GraphNode*> before;
  if (graph == nullptr || node == nullptr ||
      !NodesOf(sim, graph, dependencies, count, &before)) {
    return kInvalidValue;
  }
  *node = Handle(sim.graphs.Add(graph, std::move(work), std::move(before)));
  return kOk;
}

Status GraphAddChild(uint64_t handle, const uint64_t* dependencies,
                     size_t count, uint64_t child_handle, uint64_t* node) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  auto* child = Alive<Graph>(sim, child_handle);
  std::vector<GraphNode*> before;
  if (graph == nullptr || child == nullptr || graph == child ||
      node == nullptr || !NodesOf(sim, graph, dependencies, count, &before)) {
    return kInvalidValue;
  }
  *node = Handle(sim.graphs.AddChild(graph, *child, std::move(before)));
  return kOk;
}

Status GraphAddEvent(uint64_t graph, const uint64_t* dependencies, size_t count,
                     bool record, uint64_t event, uint64_t* node) {
  Work work;
  work.kind = record ? NodeKind::kRecordEvent : NodeKind::kWaitEvent;
  work.name = record ? "an event record" : "an event wait";
  work.event = event;
  {
    Simulator& sim = Simulator::Get();
    Lock lock(sim.mu);
    if (sim.events.Find(event) == nullptr) return kInvalidHandle;
  }
  return GraphAdd(graph, dependencies, count, std::move(work), node);
}

Status UserObjectCreate(void* pointer, void (*destroy)(void*), unsigned count,
                        unsigned flags, uint64_t* object) {
  constexpr unsigned kNoDestructorSync = 1;
  if (object == nullptr || destroy == nullptr || count == 0 ||
      flags != kNoDestructorSync) {
    return kInvalidValue;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  *object = Handle(sim.users.Create(pointer, destroy, count));
  return kOk;
}

Status UserObjectRetain(uint64_t object, unsigned count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.users.Retain(reinterpret_cast<UserObject*>(object), count);
}

Status UserObjectRelease(uint64_t object, unsigned count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  const Status status =
      sim.users.Release(reinterpret_cast<UserObject*>(object), count);
  sim.users.RunDestructors(lock);
  return status;
}

Status GraphRetainUser(uint64_t handle, uint64_t object, unsigned count,
                       bool move) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  auto* user = reinterpret_cast<UserObject*>(object);
  if (graph == nullptr || count == 0) return kInvalidValue;
  if (!move) {
    const Status status = sim.users.Retain(user, count);
    if (status != kOk) return status;
  }
  graph->users[user] += count;
  return kOk;
}

Status GraphReleaseUser(uint64_t handle, uint64_t object, unsigned count) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  auto* graph = Alive<Graph>(sim, handle);
  auto* user = reinterpret_cast<UserObject*>(object);
  if (graph == nullptr || graph->users[user] < count) return kInvalidValue;
  graph->users[user] -= count;
  const Status status = sim.users.Release(user, count);
  sim.users.RunDestructors(lock);
  return status;
}

}  // namespace cudasim
