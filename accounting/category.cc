// SPDX-License-Identifier: Apache-2.0
#include "accounting/category.h"

#include <array>
#include <cstddef>

namespace stratalloc {
namespace {

constexpr std::array<const char*, kCategories> kCategoryNames = {
    "unknown",    "parameter", "buffer",    "gradient", "optimizer_state",
    "activation", "input",     "temporary", "workspace"};
constexpr std::array<const char*, kLifetimeClasses> kLifetimeNames = {
    "unknown", "persistent", "gradient", "optimizer", "transient", "staying"};

}  // namespace

const char* CategoryName(Category category) {
  const std::size_t index = Raw(category);
  return index < kCategoryNames.size() ? kCategoryNames[index] : "invalid";
}

const char* LifetimeName(LifetimeClass lifetime) {
  const std::size_t index = Raw(lifetime);
  return index < kLifetimeNames.size() ? kLifetimeNames[index] : "invalid";
}

}  // namespace stratalloc
