// SPDX-License-Identifier: Apache-2.0
#include "accounting/category.h"

#include <array>
#include <cstddef>
#include <string>

namespace stratalloc {
namespace {

constexpr std::array<const char*, kCategories> kCategoryNames = {
    "unknown", "parameter", "buffer", "gradient", "optimizer", "activation"};
constexpr std::array<const char*, kLifetimeClasses> kLifetimeNames = {
    "unknown", "persistent", "gradient", "optimizer", "transient"};

}  // namespace

const char* CategoryName(Category category) {
  const std::size_t index = Raw(category);
  return index < kCategoryNames.size() ? kCategoryNames[index] : "invalid";
}

const char* LifetimeName(LifetimeClass lifetime) {
  const std::size_t index = Raw(lifetime);
  return index < kLifetimeNames.size() ? kLifetimeNames[index] : "invalid";
}

Result<Category> ParseCategory(std::string_view name) {
  std::string valid;
  for (std::size_t i = 0; i < kCategoryNames.size(); ++i) {
    if (name == kCategoryNames[i]) return static_cast<Category>(i);
    valid += (i == 0 ? "" : ", ") + std::string(kCategoryNames[i]);
  }
  return Fail(ErrorCode::kInvalidArgument, "category '" + std::string(name) +
                                               "' does not exist; use one of " +
                                               valid);
}

}  // namespace stratalloc
