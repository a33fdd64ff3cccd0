// SPDX-License-Identifier: Apache-2.0
// What instructions.py runs under callgrind: each measured call is alone in a
// function of its own, whose inclusive cost is read by name.
//
//   hot_path PAIRS
//
// On the simulated device, as the bridge calls it: tiering on, the ledger
// plugged in, no scope but where a row says so, class "unknown" (which can be
// evicted).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "python_shim/bridge_api/blocks.h"
#include "python_shim/bridge_api/nodes.h"
#include "python_shim/bridge_api/operators.h"
#include "python_shim/bridge_api/setup.h"
#include "python_shim/c_api/c_api.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace {

using namespace stratalloc;

Address Malloc(Bytes size) {
  const Result<AllocatedBlock> block =
      core::Malloc(0, size, kDefaultStream, MallocHint::kNone);
  if (!block) {
    std::fprintf(stderr, "hot_path: %s\n", block.error().message.c_str());
    std::exit(1);
  }
  return block->address;
}

void Free(Address address) {
  AllocatedBlock block;
  if (!core::Free(address, &block)) std::exit(1);
}

}  // namespace

// One pair of functions per row of the table. The comment in the assembly keeps
// equal functions apart.
#define MEASURED(name)                                                     \
  extern "C" __attribute__((noinline)) Address malloc_##name(Bytes size) { \
    asm volatile("# malloc_" #name);                                       \
    return Malloc(size);                                                   \
  }                                                                        \
  extern "C" __attribute__((noinline)) void free_##name(Address address) { \
    asm volatile("# free_" #name);                                         \
    Free(address);                                                         \
  }
MEASURED(512B)
MEASURED(64KiB)
MEASURED(4MiB)
MEASURED(64MiB)
MEASURED(best_fit)
MEASURED(in_operator)
MEASURED(in_scope)

// An operator and its return; its operands are there.
#define MEASURED_OPERATOR(name)                                      \
  extern "C" __attribute__((noinline)) bool enter_##name(            \
      std::span<const Access> operands) {                            \
    asm volatile("# enter_" #name);                                  \
    return core::EnterOperator(0, kDefaultStream, "bench", operands) \
        .has_value();                                                \
  }                                                                  \
  extern "C" __attribute__((noinline)) void leave_##name() {         \
    core::LeaveOperator();                                           \
    asm volatile("# leave_" #name);                                  \
  }
MEASURED_OPERATOR(nothing)
MEASURED_OPERATOR(three_of_one)
MEASURED_OPERATOR(eight_apart)

// A call that enters, and one that leaves.
#define MEASURED_ENTRY(name, entering, leaving, ...)                    \
  extern "C" __attribute__((noinline)) void enter_##name(__VA_ARGS__) { \
    asm volatile("# enter_" #name);                                     \
    entering;                                                           \
  }                                                                     \
  extern "C" __attribute__((noinline)) void leave_##name() {            \
    leaving;                                                            \
    asm volatile("# leave_" #name);                                     \
  }
#define MEASURED_SCOPE(name)                                 \
  MEASURED_ENTRY(name, stratalloc_scope_enter_module(scope), \
                 stratalloc_scope_leave_module(0), std::uint32_t scope)
#define MEASURED_NODE(name)                                                 \
  MEASURED_ENTRY(name, core::EnterNode(kThread, number), core::LeaveNode(), \
                 std::uint64_t number)

namespace {

// Autograd's numbers: of nodes, and of the one thread there is.
std::uint64_t next_node = 0;
constexpr std::uint64_t kThread = 1;
// What the leaf's node is given and gives.
Address leaf = 0, gradient = 0;
constexpr Bytes kLeaf = 4096;

}  // namespace

MEASURED_SCOPE(scope)
MEASURED_SCOPE(scope_of_node)
MEASURED_SCOPE(scope_of_malloc)
MEASURED_NODE(node)
MEASURED_NODE(node_apart)
MEASURED_ENTRY(leaf, core::EnterNodeOfLeaf(leaf),
               core::LeaveNodeOfLeaf(gradient, kLeaf))

namespace {

template <bool (*Enter)(std::span<const Access>), void (*Leave)()>
void Operators(int pairs, std::span<const Access> operands) {
  for (int i = 0; i < pairs; ++i) {
    if (!Enter(operands)) std::exit(1);
    Leave();
  }
}

template <Address (*Take)(Bytes), void (*Give)(Address)>
void Pairs(int pairs, Bytes size) {
  Free(Malloc(size));  // makes the segment
  for (int i = 0; i < pairs; ++i) Give(Take(size));
}

// What accounting does for modules, for the nodes that they make, and for the
// first malloc in each.
void Scopes(int pairs) {
  core::NumberNodes([] { return next_node; }, [] { return kThread; });
  const std::uint32_t layers[] = {stratalloc_scope_intern("bench.a"),
                                  stratalloc_scope_intern("bench.b")};
  for (int i = 0; i < pairs; ++i) {
    enter_scope(layers[i % 2]);
    leave_scope();
  }
  for (int i = 0; i < pairs; ++i) {
    enter_scope_of_node(layers[i % 2]);
    next_node++;
    leave_scope_of_node();
  }
  for (int i = 0; i < pairs; ++i) {
    enter_scope_of_malloc(layers[i % 2]);
    free_in_scope(malloc_in_scope(512));
    leave_scope_of_malloc();
  }
}

// Backward through what Scopes made, as autograd goes, and in an order that it
// never has.
void Nodes(int pairs) {
  const auto nodes = static_cast<std::uint64_t>(pairs);
  for (std::uint64_t i = 0; i < nodes; ++i) {
    enter_node(nodes - 1 - i);
    leave_node();
  }
  for (std::uint64_t i = 0; i < nodes; ++i) {
    enter_node_apart(i * 377 % nodes);
    leave_node_apart();
  }
  leaf = Malloc(kLeaf);
  gradient = Malloc(kLeaf);
  for (int i = 0; i < pairs; ++i) {
    enter_leaf();
    leave_leaf();
  }
  Free(leaf);
  Free(gradient);
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 1000;
  // Two tiers; what is not said is as ever.
  const stratalloc_setting settings[] = {{"host_budget", "67108864"}};
  stratalloc_error error;
  if (stratalloc_configure(settings, 1, &error) != 0) {
    std::fprintf(stderr, "hot_path: %s\n", error.message);
    return 1;
  }
  // valgrind leaves the simulated device few addresses, of which a reservation
  // would take all: then this one makes it take half, and the checksum kernel
  // has room beside it.
  CUdeviceptr room = 0;
  if (cuInit(0) != CUDA_SUCCESS ||
      cuMemAddressReserve(&room, 2 * kMiB, 0, 0, 0) != CUDA_SUCCESS) {
    return 1;
  }
  if (const Status begun = core::Init(1); !begun) {
    std::fprintf(stderr, "hot_path: %s\n", begun.error().message.c_str());
    return 1;
  }
  Pairs<malloc_512B, free_512B>(pairs, 512);
  Pairs<malloc_64KiB, free_64KiB>(pairs, 64 * kKiB);
  Pairs<malloc_4MiB, free_4MiB>(pairs, 4 * kMiB);
  Pairs<malloc_64MiB, free_64MiB>(pairs, 64 * kMiB);
  // A block of no size that was freed just now: the bins are emptied, a block
  // is merged and split again.
  for (int i = 0; i < pairs; ++i) {
    free_best_fit(malloc_best_fit(static_cast<Bytes>(i % 256 + 1) * 512));
  }
  // Inside an operator, which pins what it allocates.
  for (int i = 0; i < pairs; ++i) {
    if (!core::EnterOperator(0, kDefaultStream, "bench", {})) return 1;
    free_in_operator(malloc_in_operator(512));
    core::LeaveOperator();
  }
  Operators<enter_nothing, leave_nothing>(pairs, {});
  // Parameters of a layer, side by side in one handle; and one in each of eight
  // handles, the last of which is written.
  constexpr Bytes kApart = 32 * kMiB;  // no handle is larger
  const Address base = Malloc(9 * kApart);
  const Access of_one[] = {{base, 4096, false},
                           {base + 4096, 512, false},
                           {base + 8192, 4096, true}};
  Operators<enter_three_of_one, leave_three_of_one>(pairs, of_one);
  std::vector<Access> apart;
  for (Bytes i = 0; i < 8; ++i) {
    apart.push_back({base + i * kApart, 4096, i == 7});
  }
  Operators<enter_eight_apart, leave_eight_apart>(pairs, apart);
  Free(base);
  Scopes(pairs);
  Nodes(pairs);
  return core::NodesWithoutScope() == 0 ? 0 : 1;
}
