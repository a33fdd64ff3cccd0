// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/graph.h"

#include <algorithm>
#include <cstdio>

namespace cudasim {

Graph* Graphs::Create() {
  auto graph = std::make_unique<Graph>();
  graph->id = ++last_id_;
  Graph* const made = graph.get();
  all_[made] = std::move(graph);
  return made;
}

void Graphs::Forget(const Graph& graph) {
  for (const auto& node : graph.nodes) {
    nodes_.erase(node.get());
    if (node->child != nullptr) Forget(*node->child);
  }
}

Status Graphs::Destroy(Graph* graph) {
  auto found = all_.find(graph);
  if (found == all_.end() || graph->capturing) return kInvalidValue;
  Forget(*graph);
  all_.erase(found);
  return kOk;
}

void Graphs::CopyNodes(const Graph& from, Graph* to) {
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : from.nodes) {
    auto copy = std::make_unique<GraphNode>();
    copy->graph = to;
    copy->work = node->work;
    if (node->child != nullptr) {
      copy->child = std::make_unique<Graph>();
      copy->child->id = ++last_id_;
      CopyNodes(*node->child, copy->child.get());
    }
    copies[node.get()] = copy.get();
    nodes_.insert(copy.get());
    to->nodes.push_back(std::move(copy));
  }
  for (const auto& node : from.nodes) {
    for (const GraphNode* each : node->dependencies) {
      copies[node.get()]->dependencies.push_back(copies[each]);
    }
  }
}

Graph* Graphs::Clone(const Graph& graph) {
  Graph* const made = Create();
  CopyNodes(graph, made);
  return made;
}

GraphNode* Graphs::Add(Graph* graph, Work work,
                       std::vector<GraphNode*> dependencies) {
  auto node = std::make_unique<GraphNode>();
  node->graph = graph;
  node->work = std::make_shared<const Work>(std::move(work));
  node->dependencies = std::move(dependencies);
  GraphNode* const made = node.get();
  nodes_.insert(made);
  graph->nodes.push_back(std::move(node));
  return made;
}

GraphNode* Graphs::AddChild(Graph* graph, const Graph& child,
                            std::vector<GraphNode*> dependencies) {
  Work work;
  work.kind = NodeKind::kGraph;
  work.name = "a child graph";
  GraphNode* const node = Add(graph, std::move(work), std::move(dependencies));
  node->child = std::make_unique<Graph>();
  node->child->id = ++last_id_;
  CopyNodes(child, node->child.get());
  return node;
}

void Graphs::DestroyNode(GraphNode* node) {
  Graph* const graph = node->graph;
  for (const auto& each : graph->nodes) std::erase(each->dependencies, node);
  if (node->child != nullptr) Forget(*node->child);
  nodes_.erase(node);
  std::erase_if(graph->nodes,
                [node](const auto& each) { return each.get() == node; });
}

bool Graphs::InOrder(const Graph& graph, Works* works,
                     std::vector<const GraphNode*>* nodes) {
  // Captured graphs list their nodes in an order that works already; edges
  // that were added later may run backwards.
  std::unordered_set<const GraphNode*> done;
  std::vector<const GraphNode*> left;
  for (const auto& node : graph.nodes) left.push_back(node.get());
  while (!left.empty()) {
    std::vector<const GraphNode*> later;
    for (const GraphNode* node : left) {
      const bool ready = std::all_of(
          node->dependencies.begin(), node->dependencies.end(),
          [&](const GraphNode* each) { return done.contains(each); });
      if (!ready) {
        later.push_back(node);
        continue;
      }
      done.insert(node);
      if (node->child != nullptr) {
        if (!InOrder(*node->child, works, nodes)) return false;
      } else {
        works->push_back(node->work);
        nodes->push_back(node);
      }
    }
    if (later.size() == left.size()) return false;
    left = std::move(later);
  }
  return true;
}

Status Graphs::Instantiate(const Graph& graph, uint64_t flags,
                           GraphExec** exec) {
  auto made = std::make_unique<GraphExec>();
  made->flags = flags;
  if (!InOrder(graph, &made->works, &made->nodes)) return kInvalidValue;
  *exec = made.get();
  execs_[*exec] = std::move(made);
  return kOk;
}

Status Graphs::Update(GraphExec* exec, const Graph& graph) {
  Works works;
  std::vector<const GraphNode*> nodes;
  if (!InOrder(graph, &works, &nodes)) return kInvalidValue;
  const bool same =
      std::equal(works.begin(), works.end(), exec->works.begin(),
                 exec->works.end(), [](const auto& a, const auto& b) {
                   return a->kind == b->kind && a->name == b->name;
                 });
  if (!same) return kGraphExecUpdateFailure;
  exec->works = std::move(works);
  exec->nodes = std::move(nodes);
  return kOk;
}

Status Graphs::DestroyExec(GraphExec* exec) {
  return execs_.erase(exec) == 1 ? kOk : kInvalidValue;
}

bool Graphs::Reaches(const std::vector<GraphNode*>& from,
                     const std::vector<GraphNode*>& wanted) {
  std::unordered_set<const GraphNode*> missing(wanted.begin(), wanted.end());
  std::unordered_set<const GraphNode*> seen;
  std::vector<const GraphNode*> open(from.begin(), from.end());
  while (!open.empty() && !missing.empty()) {
    const GraphNode* const node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    missing.erase(node);
    open.insert(open.end(), node->dependencies.begin(),
                node->dependencies.end());
  }
  return missing.empty();
}

std::string Graphs::Dot(const Graph& graph) {
  std::unordered_map<const GraphNode*, size_t> numbers;
  std::string nodes;
  std::string edges;
  const std::string prefix = "graph_" + std::to_string(graph.id) + "_node_";
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = *graph.nodes[i];
    numbers[&node] = i;
    nodes += "\"" + prefix + std::to_string(i) + "\" [label=\"" +
             std::to_string(i) + ": " + node.work->name + "\"];\n";
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const GraphNode* each : graph.nodes[i]->dependencies) {
      edges += "\"" + prefix + std::to_string(numbers[each]) + "\" -> \"" +
               prefix + std::to_string(i) + "\";\n";
    }
  }
  return "digraph dot {\n" + nodes + edges + "}\n";
}

void Graphs::Clear() {
  all_.clear();
  execs_.clear();
  nodes_.clear();
}

}  // namespace cudasim
