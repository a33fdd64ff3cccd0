// SPDX-License-Identifier: Apache-2.0
#include "allocator/heap/free_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "allocator/heap/block.h"

namespace stratalloc {

std::size_t FreeIndex::ClassOf(Bytes size) {
  // The position of the highest bit, then the three below it.
  const int high = std::bit_width(size | kSteps) - 1;
  const auto steps = static_cast<std::size_t>(size >> (high - 3)) % kSteps;
  return std::min(static_cast<std::size_t>(high) * kSteps + steps,
                  kClasses - 1);
}

std::size_t FreeIndex::FirstFrom(std::size_t at) const {
  std::size_t word = at / 64;
  if (word >= kWords) return kClasses;
  std::uint64_t bits = used_[word] & (~std::uint64_t{0} << at % 64);
  while (bits == 0) {
    if (++word == kWords) return kClasses;
    bits = used_[word];
  }
  return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
}

FreeIndex::Place FreeIndex::Insert(const FreeKey& key) {
  const std::size_t at = ClassOf(key.size);
  used_[at / 64] |= std::uint64_t{1} << at % 64;
  if (spare_nodes_.empty()) return classes_[at].insert(key).first;
  spare_nodes_.back().value() = key;
  const Place place =
      classes_[at].insert(std::move(spare_nodes_.back())).position;
  spare_nodes_.pop_back();
  return place;
}

void FreeIndex::Erase(Place place) {
  const std::size_t at = ClassOf(place->size);
  auto node = classes_[at].extract(place);
  if (classes_[at].empty()) used_[at / 64] &= ~(std::uint64_t{1} << at % 64);
  if (spare_nodes_.size() < kSpareNodes) {
    spare_nodes_.push_back(std::move(node));
  }
}

Block* FreeIndex::Find(Bytes size) const {
  std::size_t at = ClassOf(size);
  const auto fits = classes_[at].lower_bound(FreeKey{size, 0, nullptr});
  if (fits != classes_[at].end()) return fits->block;
  at = FirstFrom(at + 1);
  return at == kClasses ? nullptr : classes_[at].begin()->block;
}

Bytes FreeIndex::Largest() const {
  for (std::size_t word = kWords; word-- > 0;) {
    if (used_[word] == 0) continue;
    const auto at =
        word * 64 + static_cast<std::size_t>(std::bit_width(used_[word]) - 1);
    return classes_[at].rbegin()->size;
  }
  return 0;
}

std::size_t FreeIndex::size() const {
  std::size_t size = 0;
  for (const std::set<FreeKey>& tree : classes_) size += tree.size();
  return size;
}

bool FreeIndex::CheckInvariants() const {
  for (std::size_t at = 0; at < kClasses; ++at) {
    const bool bit = (used_[at / 64] >> at % 64 & 1) != 0;
    if (bit == classes_[at].empty()) return false;
    for (auto place = classes_[at].begin(); place != classes_[at].end();
         ++place) {
      const Block& block = *place->block;
      if (ClassOf(place->size) != at || block.size != place->size ||
          block.address != place->address || block.filed != place) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace stratalloc
