// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/violations.h"

#include <cstdio>

namespace cudasim {

std::string RangeText(uint64_t address, uint64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), "[0x%llx, +%llu bytes)",
                static_cast<unsigned long long>(address),
                static_cast<unsigned long long>(bytes));
  return text;
}

void Violations::Add(const char* kind, const std::string& sentence) {
  const std::string text = std::string(kind) + ": " + sentence;
  std::lock_guard<std::mutex> lock(mu_);
  ++count_;
  if (texts_.size() < 1000) texts_.push_back(text);
  if (verbose_ && count_ <= 10) {
    std::fprintf(stderr, "cudasim: violation: %s\n", text.c_str());
  }
}

long Violations::count() const {
  std::lock_guard<std::mutex> lock(mu_);
  return count_;
}

bool Violations::Get(long index, std::string* text) const {
  std::lock_guard<std::mutex> lock(mu_);
  if (index < 0 || index >= static_cast<long>(texts_.size())) return false;
  *text = texts_[index];
  return true;
}

bool Violations::GetKind(long index, std::string* kind) const {
  if (!Get(index, kind)) return false;
  kind->resize(kind->find(": "));
  return true;
}

void Violations::Clear() {
  std::lock_guard<std::mutex> lock(mu_);
  texts_.clear();
  count_ = 0;
}

}  // namespace cudasim
