// SPDX-License-Identifier: Apache-2.0
#include "tests/system/stress/shadow.h"

#include <cstring>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr Bytes kEdge = 2 * kMiB;
constexpr Bytes kWord = 8;

// Calls f(offset) for every word of the block that is written and compared.
template <typename F>
void ForEachWord(Address address, Bytes bytes, F&& f) {
  for (Bytes at = 0; at + kWord <= bytes && at < 4 * kWord; at += kWord) {
    f(at);
  }
  if (bytes >= 8 * kWord) f(bytes / 2 / kWord * kWord);
  if (bytes >= kWord) f((bytes - kWord) / kWord * kWord);
  for (Address edge = RoundUp(address + 1, kEdge); edge < address + bytes;
       edge += kEdge) {
    const Bytes at = edge - address;
    if (at >= kWord) f(at - kWord);
    if (at + kWord <= bytes) f(at);
  }
}

std::uint64_t WordAt(std::uint64_t pattern, Bytes at) {
  return pattern * 0x9e3779b97f4a7c15 + at;
}

char* ViewOf(Address address) {
  return static_cast<char*>(
      cudasim_host_view(reinterpret_cast<const void*>(address)));
}

}  // namespace

void Shadow::Fill(std::uint64_t new_pattern) {
  pattern = new_pattern;
  char* const to = ViewOf(address);
  ForEachWord(address, bytes, [&](Bytes at) {
    const std::uint64_t word = WordAt(pattern, at);
    std::memcpy(to + at, &word, kWord);
  });
}

bool Shadow::Holds() const {
  if (pattern == 0) return true;
  const char* const from = ViewOf(address);
  bool holds = true;
  ForEachWord(address, bytes, [&](Bytes at) {
    std::uint64_t word;
    std::memcpy(&word, from + at, kWord);
    if (word != WordAt(pattern, at)) holds = false;
  });
  return holds;
}

}  // namespace stratalloc
