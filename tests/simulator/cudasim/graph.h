// SPDX-License-Identifier: Apache-2.0
//
// graph.h: graphs of work. A node is one operation that does not run until the
// graph is launched: what it does, the ranges it touches, and the nodes it
// comes after. Nodes come from a capture (capture.h) or from cudaGraphAdd*Node;
// an executable graph is the list of their works in an order that respects the
// edges, taken at instantiation: later changes of the graph do not reach it.
//
// Handles (cudaGraph_t, cudaGraphNode_t, cudaGraphExec_t) are addresses of the
// objects here; every call asks whether the object is still alive.
//
// A node keeps addresses, never objects: it holds no memory alive, as on a
// device.
//
// Thread-safety: called under the simulator's lock. A work's `run` is called
// under it too and may release it meanwhile.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_GRAPH_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_GRAPH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/address_space.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/status.h"
#include "tests/simulator/cudasim/streams.h"
#include "tests/simulator/cudasim/user_objects.h"

namespace cudasim {

// The values of cudaGraphNodeType.
enum class NodeKind : int {
  kKernel = 0,
  kMemcpy = 1,
  kMemset = 2,
  kHost = 3,
  kGraph = 4,
  kEmpty = 5,
  kWaitEvent = 6,
  kRecordEvent = 7,
};

struct Work {
  NodeKind kind = NodeKind::kEmpty;
  std::string name;  // "cudaMemcpyAsync", "aten::add.Tensor"
  std::vector<cudasim_access> accesses;
  Reach reach = Reach::kDirect;  // of the accesses
  // Does it, on the stream the graph was launched on. May be empty.
  std::function<void(Lock&, Stream*)> run;
  // Its time on the virtual clock, counted at each launch. May be empty.
  std::function<void(Stream*)> charge;
  uint64_t event = 0;  // of the two event kinds
};
using Works = std::vector<std::shared_ptr<const Work>>;

struct Graph;

struct GraphNode {
  Graph* graph = nullptr;
  std::shared_ptr<const Work> work;
  std::unique_ptr<Graph> child;  // of kGraph
  std::vector<GraphNode*> dependencies;
};

struct Graph {
  uint64_t id = 0;
  std::vector<std::unique_ptr<GraphNode>> nodes;  // as they were added
  UserReferences users;
  bool capturing = false;  // a capture adds to it
};

struct GraphExec {
  Works works;
  // The node of each work when it was instantiated, to name it by. Not
  // dereferenced.
  std::vector<const GraphNode*> nodes;
  uint64_t flags = 0;
  UserReferences users;
};

class Graphs {
 public:
  Graph* Create();
  // kInvalidValue: not alive, part of another graph, or being captured to.
  Status Destroy(Graph* graph);
  // A copy with nodes of its own; child graphs too.
  Graph* Clone(const Graph& graph);

  bool IsAlive(const Graph* graph) const { return all_.contains(graph); }
  bool IsAlive(const GraphNode* node) const { return nodes_.contains(node); }
  bool IsAlive(const GraphExec* exec) const { return execs_.contains(exec); }

  // REQUIRES: the dependencies are nodes of the graph.
  GraphNode* Add(Graph* graph, Work work, std::vector<GraphNode*> dependencies);
  GraphNode* AddChild(Graph* graph, const Graph& child,
                      std::vector<GraphNode*> dependencies);
  // Nodes that depended on it no longer do.
  void DestroyNode(GraphNode* node);

  // kInvalidValue: the edges run in a circle.
  Status Instantiate(const Graph& graph, uint64_t flags, GraphExec** exec);
  // Takes the graph's works over. kGraphExecUpdateFailure: the nodes are not
  // the same in kind, number and order.
  Status Update(GraphExec* exec, const Graph& graph);
  Status DestroyExec(GraphExec* exec);

  // True if every node of `wanted` is in `from` or comes before one of it.
  static bool Reaches(const std::vector<GraphNode*>& from,
                      const std::vector<GraphNode*>& wanted);
  // The graph in Graphviz's language.
  static std::string Dot(const Graph& graph);

  long live() const { return static_cast<long>(all_.size()); }
  long live_execs() const { return static_cast<long>(execs_.size()); }
  // For tests; the objects of graphs still alive are lost, not run.
  void Clear();

 private:
  static bool InOrder(const Graph& graph, Works* works,
                      std::vector<const GraphNode*>* nodes);
  void CopyNodes(const Graph& from, Graph* to);
  void Forget(const Graph& graph);

  std::unordered_map<const Graph*, std::unique_ptr<Graph>> all_;
  std::unordered_map<const GraphExec*, std::unique_ptr<GraphExec>> execs_;
  std::unordered_set<const GraphNode*> nodes_;
  uint64_t last_id_ = 0;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_GRAPH_H_
