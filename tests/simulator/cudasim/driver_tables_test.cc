// SPDX-License-Identifier: Apache-2.0
//
// Tables of the driver: CUPTI's is there and has no entries, others are
// refused.

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

CUuuid TableOfCupti() {
  const unsigned char bytes[] = {0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4,
                                 0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6,
                                 0x6e, 0x6a, 0xed, 0x7f};
  CUuuid id = {};
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    id.bytes[i] = static_cast<char>(bytes[i]);
  }
  return id;
}

class DriverTablesTest : public SimulatorTest {
 protected:
  const CUuuid id_ = TableOfCupti();
  const void* table_ = nullptr;
};

TEST_F(DriverTablesTest, TableOfCuptiHasNoEntries) {
  const long refused = cudasim_refused_calls();
  ASSERT_EQ(cuGetExportTable(&table_, &id_), CUDA_SUCCESS);
  ASSERT_NE(table_, nullptr);
  EXPECT_EQ(*static_cast<const uint64_t*>(table_), sizeof(uint64_t));
  EXPECT_EQ(cudasim_refused_calls(), refused);
}

// CUPTI 13.2 calls the entries at 0x118 and 0x228 whatever the size.
TEST_F(DriverTablesTest, EntryBeyondTheSizeRefusesByName) {
  ASSERT_EQ(cuGetExportTable(&table_, &id_), CUDA_SUCCESS);
  for (const size_t offset : {0x8, 0x118, 0x228, 0xff8}) {
    const long refused = cudasim_refused_calls();
    const auto entry = *reinterpret_cast<int (*const*)()>(
        static_cast<const char*>(table_) + offset);
    ASSERT_NE(entry, nullptr) << offset;
    EXPECT_EQ(entry(), CUDA_ERROR_NOT_SUPPORTED) << offset;
    EXPECT_EQ(cudasim_refused_calls(), refused + 1) << offset;
  }
}

TEST_F(DriverTablesTest, OtherTableIsRefused) {
  CUuuid other = id_;
  other.bytes[15] ^= 1;
  const long refused = cudasim_refused_calls();
  EXPECT_EQ(cuGetExportTable(&table_, &other), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cudasim_refused_calls(), refused + 1);
  EXPECT_EQ(table_, nullptr);
}

TEST_F(DriverTablesTest, NullArgumentIsAnInvalidValue) {
  EXPECT_EQ(cuGetExportTable(nullptr, &id_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetExportTable(&table_, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverTablesTest, FunctionIsFoundByItsName) {
  void* function = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuGetExportTable", &function, 12000, 0, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuGetExportTable));
}

}  // namespace
}  // namespace cudasim
