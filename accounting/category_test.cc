// SPDX-License-Identifier: Apache-2.0
#include "accounting/category.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace stratalloc {
namespace {

TEST(Category, NamesAreDistinct) {
  std::set<std::string> names;
  for (int i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    names.insert(CategoryName(category));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kCategories));
  EXPECT_STREQ(CategoryName(Category::kOptimizerState), "optimizer_state");
}

TEST(Category, OutOfRangeIsNamedNotRead) {
  EXPECT_STREQ(CategoryName(static_cast<Category>(kCategories)), "invalid");
  EXPECT_STREQ(LifetimeName(static_cast<LifetimeClass>(255)), "invalid");
}

TEST(Lifetime, NamesFollowTheEnum) {
  EXPECT_STREQ(LifetimeName(LifetimeClass::kUnknown), "unknown");
  EXPECT_STREQ(LifetimeName(LifetimeClass::kPersistent), "persistent");
  EXPECT_STREQ(LifetimeName(LifetimeClass::kGradient), "gradient");
  EXPECT_STREQ(LifetimeName(LifetimeClass::kOptimizer), "optimizer");
  EXPECT_STREQ(LifetimeName(LifetimeClass::kTransient), "transient");
  EXPECT_STREQ(LifetimeName(LifetimeClass::kStaying), "staying");
}

}  // namespace
}  // namespace stratalloc
