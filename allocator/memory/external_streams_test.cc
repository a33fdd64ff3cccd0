// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/external_streams.h"

#include <gtest/gtest.h>

#include "allocator/memory/handle_table.h"

namespace stratalloc {
namespace {

constexpr std::uint64_t Bit(int bit) { return std::uint64_t{1} << bit; }
StreamId OfDevice1(StreamId stream) {
  return StreamElsewhere(DeviceIndex{1}, stream);
}

// Each in its order: the set is the process's.
TEST(ExternalStreamsTest, OnlyWhatWasAddedIsExternal) {
  EXPECT_FALSE(ExternalStreams::Has(StreamId{0x1000}));
  ExternalStreams::Add(StreamId{0x1000});
  ExternalStreams::Add(StreamId{0x1000});
  EXPECT_TRUE(ExternalStreams::Has(StreamId{0x1000}));
  EXPECT_TRUE(ExternalStreams::Has(OfDevice1(StreamId{0x1000})));
  EXPECT_FALSE(ExternalStreams::Has(StreamId{0x1008}));
}

TEST(ExternalStreamsTest, TheDefaultStreamNeverIs) {
  ExternalStreams::Add(kDefaultStream);
  EXPECT_FALSE(ExternalStreams::Has(kDefaultStream));
  EXPECT_FALSE(ExternalStreams::Has(OfDevice1(kDefaultStream)));
}

TEST(ExternalStreamsTest, AThreadsOwnStreamAlwaysIs) {
  EXPECT_TRUE(ExternalStreams::Has(StreamId{2}));
}

TEST(ExternalStreamsTest, TheyHaveNoBitOfTheirOwn) {
  StreamTable table;
  EXPECT_EQ(table.BitOf(kDefaultStream), 0);
  EXPECT_EQ(table.BitOf(StreamId{0x2000}), 1);
  ExternalStreams::Add(StreamId{0x3000});
  EXPECT_EQ(table.BitOf(StreamId{0x3000}), StreamTable::kOverflowBit);
  EXPECT_EQ(table.BitOf(OfDevice1(StreamId{0x3000})), StreamTable::kGraphBit);
  EXPECT_FALSE(table.Has(2));
}

TEST(ExternalStreamsTest, OneThatTurnsExternalIsNotAskedAnyMore) {
  StreamTable table;
  table.BitOf(kDefaultStream);
  table.BitOf(StreamId{0x4000});
  table.BitOf(OfDevice1(StreamId{0x4008}));
  EXPECT_EQ(table.MayAsk(7), 7u);
  ExternalStreams::Add(StreamId{0x4000});
  EXPECT_EQ(table.MayAsk(7), 5u | Bit(StreamTable::kOverflowBit));
  ExternalStreams::Add(StreamId{0x4008});
  EXPECT_EQ(table.MayAsk(7),
            1u | Bit(StreamTable::kOverflowBit) | Bit(StreamTable::kGraphBit));
  EXPECT_EQ(table.MayAsk(0), 0u);
}

// A value alone does not say whose it is. Torch's own do not end, so neither
// does what is known of them.
TEST(ExternalStreamsTest, WhatPyTorchUsesAsItsOwnIsItsOwnForEver) {
  StreamTable table;
  table.BitOf(kDefaultStream);
  ExternalStreams::Add(StreamId{0x6000});
  ExternalStreams::Add(StreamId{0x6008});
  ExternalStreams::NoteLasting(StreamId{0x6000});
  ExternalStreams::NoteLasting(StreamId{0x6010});
  EXPECT_FALSE(ExternalStreams::Has(StreamId{0x6000}));
  EXPECT_TRUE(ExternalStreams::Has(StreamId{0x6008}));
  EXPECT_FALSE(ExternalStreams::Has(StreamId{0x6010}));
  ExternalStreams::Add(StreamId{0x6000});
  EXPECT_FALSE(ExternalStreams::Has(StreamId{0x6000}));
  EXPECT_FALSE(ExternalStreams::Has(OfDevice1(StreamId{0x6000})));
  EXPECT_EQ(table.BitOf(StreamId{0x6000}), 1);
  EXPECT_EQ(table.MayAsk(2), 2u);
}

TEST(ExternalStreamsTest, WhenTheSetIsFullAllAre) {
  for (std::uint64_t i = 1; i <= ExternalStreams::kMost; ++i) {
    ExternalStreams::Add(StreamId{i << 20});
  }
  EXPECT_TRUE(ExternalStreams::Has(StreamId{0x1000}));
  EXPECT_TRUE(ExternalStreams::Has(StreamId{0x5000}));
  EXPECT_FALSE(ExternalStreams::Has(kDefaultStream));
}

}  // namespace
}  // namespace stratalloc
