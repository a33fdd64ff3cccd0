// SPDX-License-Identifier: Apache-2.0
#include "allocator/out_of_memory_text.h"

#include <algorithm>
#include <cstddef>

namespace stratalloc {
namespace {

// Native's sentences about who else uses the card; a long list is cut, so that
// the rest of the text is still read.
std::string Processes(const OutOfMemoryFacts& facts) {
  constexpr std::size_t kMost = 16;
  std::string text;
  Bytes others = 0;
  for (std::size_t i = 0; i < facts.processes.size(); ++i) {
    const ProcessMemory& process = facts.processes[i];
    const bool own = process.pid == facts.own_pid;
    if (i >= kMost && !own) {
      others += process.bytes;
      continue;
    }
    text += own ? "Including non-PyTorch memory, this process"
                : "Process " + std::to_string(process.pid);
    text += " has " + FormatBytes(process.bytes) + " memory in use. ";
  }
  if (others > 0) {
    text +=
        "Further processes have " + FormatBytes(others) + " memory in use. ";
  }
  return text;
}

// What was said elsewhere is a sentence here, if it ends as one or not.
std::string Sentence(std::string text) {
  if (!text.ends_with('.')) text += '.';
  return text;
}

}  // namespace

std::string OutOfMemoryText(const OutOfMemoryFacts& facts) {
  std::string text =
      "CUDA out of memory. Tried to allocate " + FormatBytes(facts.requested) +
      ". GPU " + std::to_string(static_cast<int>(facts.device)) +
      " has a total capacity of " + FormatBytes(facts.total) + " of which " +
      FormatBytes(facts.free) + " is free. " + Processes(facts);
  if (facts.limit < facts.total) {
    text += FormatBytes(facts.limit) + " allowed; ";
  }
  text += "Of the allocated memory " + FormatBytes(facts.allocated) +
          " is allocated by PyTorch, ";
  if (facts.in_private_pools > 0) {
    text += "with " + FormatBytes(facts.in_private_pools) +
            " allocated in private pools (e.g., CUDA Graphs), ";
  }
  text +=
      "and " +
      FormatBytes(facts.reserved - std::min(facts.reserved, facts.allocated)) +
      " is reserved by PyTorch but unallocated.";
  // Native goes on with advice to set expandable_segments:True, which would
  // change nothing here: every segment is (pytorch issue 173049).
  if (!facts.refusal.empty()) {
    text += " stratalloc could not evict more: " + Sentence(facts.refusal);
  }
  if (!facts.why_no_reclaimer.empty()) {
    text += " stratalloc can evict nothing from this GPU: " +
            Sentence(facts.why_no_reclaimer);
  }
  text +=
      "  See documentation for Memory Management  "
      "(https://docs.pytorch.org/docs/stable/notes/"
      "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
  return text;
}

}  // namespace stratalloc
