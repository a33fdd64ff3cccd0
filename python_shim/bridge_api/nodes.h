// SPDX-License-Identifier: Apache-2.0
// Autograd's backward: the scopes of its nodes. For threads and failure see
// setup.h.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_NODES_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_NODES_H_

#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"

namespace stratalloc::core {

// Who numbers the nodes of the calling thread: the next one's number, and the
// thread's own, as a node is asked for them in backward. Once, for good.
STRATALLOC_API void NumberNodes(std::uint64_t (*next)(),
                                std::uint64_t (*thread)());

// A node runs on this thread until LeaveNode: what it allocates is charged to
// the scope in which it was made. To nobody if that is not known (more than
// 65536 scopes ago), which is counted.
STRATALLOC_API void EnterNode(std::uint64_t thread, std::uint64_t number);
// The same of one without a number, which gives a leaf its gradient: to the
// scope that its memory is charged to.
STRATALLOC_API void EnterNodeOfLeaf(Address memory);
STRATALLOC_API void LeaveNode();
// The same of a leaf's node: its gradient is charged as such, and to the leaf's
// scope. One that shares its memory with others' stays where one of them is.
STRATALLOC_API void LeaveNodeOfLeaf(Address gradient, Bytes bytes);
// The same of a gradient of several parts, while the leaf's node is open.
STRATALLOC_API void PartOfGradient(Address part, Bytes bytes);
// Is a scope or a node open on this thread?
STRATALLOC_API bool InsideScope();

// Nodes whose scope was not known.
std::uint64_t NodesWithoutScope();

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_NODES_H_
