// SPDX-License-Identifier: Apache-2.0
#include "allocator/ladder/out_of_memory_text.h"

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
  if (!facts.refusal.empty()) {
    text += "stratalloc could not evict more: " + Sentence(facts.refusal);
  }
  if (!facts.why_no_reclaimer.empty()) {
    text += "stratalloc can evict nothing from this GPU: " +
            Sentence(facts.why_no_reclaimer);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

}  // namespace stratalloc
